"""Why a task is where it is: sentences for a person, from the same records that decided, with the evidence as data."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from fleetcraft.core.names import CLAIM, DRAFT, FENCED, HELD, Token
from fleetcraft.core.outcome import Start
from fleetcraft.core.resources import Request
from fleetcraft.core.states import TaskState
from fleetcraft.readmodel.detail import AttemptView, TaskDetail, show_task
from fleetcraft.readmodel.records import scan
from fleetcraft.readmodel.status import what_it_lacks, what_keeps_workers
from fleetcraft.readmodel.words import tasks_are, took
from fleetcraft.spool.held import BATCH_PREFIX
from fleetcraft.spool.reading import SpoolFold
from fleetcraft.spool.spool import Spool


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """One state with its reasons."""

    name: str
    id: str
    state: TaskState
    sentences: tuple[str, ...]
    evidence: tuple[dict[str, Any], ...]

    def as_json(self) -> dict[str, Any]:
        """The JSON document, without its schema."""
        return {
            "name": self.name,
            "id": self.id,
            "state": self.state.value,
            "sentences": list(self.sentences),
            "evidence": list(self.evidence),
        }


def explain_task(spool: Spool, name: str, reader: SpoolFold | None = None) -> Explanation:
    """Say why. Raises TaskUnknown, OSError."""
    detail = show_task(spool, name, reader)
    reaps = _reap_notes(spool, {view.worker for view in detail.attempts if _is_lost(view)})
    sentences = [f"Task {detail.name!r} ({detail.id}) is {detail.state.value}."]
    sentences += _state_sentences(detail)
    sentences += [_attempt_sentence(view, reaps) for view in detail.attempts]
    sentences += _budget_sentences(detail)
    evidence = [view.as_json() for view in detail.attempts]
    evidence += [{"note": "reap", **note} for notes in reaps.values() for note in notes]
    return Explanation(
        name=detail.name, id=str(detail.id), state=detail.state, sentences=tuple(sentences), evidence=tuple(evidence)
    )


def _is_lost(view: AttemptView) -> bool:
    return view.facts.get("outcome") == "lost" or view.state == "open"


def _reap_notes(spool: Spool, lives: set[str]) -> dict[str, list[dict[str, Any]]]:
    """What reapers wrote about the death of these lives."""
    found: dict[str, list[dict[str, Any]]] = {}
    if not lives:
        return found
    for reaper, record in scan(spool, [b'"what":"reap"']):
        life = record.get("life")
        if life in lives:
            facts = {"life": life, "by": reaper, "reason": record.get("reason"), "facts": record.get("facts")}
            found.setdefault(str(life), []).append({**facts, "at_utc": record.get("at")})
    return found


def _state_sentences(detail: TaskDetail) -> Iterator[str]:
    state = detail.state
    if state in (TaskState.HELD, TaskState.BLOCKED):
        yield from _upstream(detail)
    elif state is TaskState.WAITING:
        yield from _waiting(detail)
    elif state is TaskState.CLAIMED:
        yield from _claimed(detail)
    elif state is TaskState.CANCELLED:
        yield "A person cancelled it." + (" It had not been started." if not detail.attempts else "")
    elif state is TaskState.QUARANTINED:
        yield (
            f"It was set aside: {detail.verdict.losses} workers died while it ran, without an explanation, "
            f"the last time while nothing else ran there. `fleetcraft task retry {detail.name}` runs it again."
        )
    elif state is TaskState.RUNNING and detail.cancel_requested:
        yield "Its cancel was requested; the worker has not ended it yet."


def _upstream(detail: TaskDetail) -> Iterator[str]:
    after = tuple(detail.task.get("after") or ())
    if not after:
        yield "It is held without a condition: it waits for its backoff, or for the next worker to look."
    for name in after:
        yield f"It waits for {name!r}, which {_standing(detail, name)}."
    if detail.state is TaskState.BLOCKED:
        root = _root(detail, after)
        why = f": at the root of it, {root!r} {_standing(detail, root)}" if root not in after else ""
        yield f"That can no longer come true{why}. `fleetcraft task retry {root}` would open the way again."


def _root(detail: TaskDetail, after: tuple[str, ...]) -> str:
    """The ended task that everything between waits for."""
    held, spool = detail.picture.held, detail.picture.spool
    name = held.blockers.get(after, after[0])
    seen: set[str] = set()
    while name not in held.roots and name not in seen:
        seen.add(name)
        found = spool.find(name)
        line = spool.task(found) if found is not None else None
        between = line.get("after") if line is not None else None
        name = held.blockers.get(tuple(between), name) if isinstance(between, list) else name
    return name


def _standing(detail: TaskDetail, name: str) -> str:
    picture = detail.picture
    if name.startswith(BATCH_PREFIX) and name[len(BATCH_PREFIX) :].isdigit():
        states = picture.states.get(int(name[len(BATCH_PREFIX) :]))
        if states is None:
            return "does not exist yet"
        parts = [f"{len(ranges):,} {state.value}" for state, ranges in states.items() if ranges]
        return f"has {', '.join(parts)}"
    found = picture.spool.find(name)
    return "does not exist yet" if found is None else f"is {picture.state(found.batch, found.index).value}"


def _cover(detail: TaskDetail) -> list[Token]:
    spool, found = detail.picture.spool, []
    for token in detail.picture.tokens:
        batch = spool.batch(token.batch)
        if batch is None or spool.is_folded(token.batch) or token.gen != detail.verdict.gen:
            continue
        for number, first, last, _ in batch.origins(token.start, token.stop):
            if number == detail.id.batch and first <= detail.id.index < last:
                found.append(token)
    return found


def _waiting(detail: TaskDetail) -> Iterator[str]:
    cover = _cover(detail)
    if not cover:
        yield "No token offers it. `fleetcraft spool check --repair` offers it again."
    for token in cover:
        if token.form == DRAFT:
            yield f"It was published and not offered yet ({token.name}); `fleetcraft spool check --repair` does it."
            continue
        place = f"lane {token.lane} at priority {token.priority}"
        yield f"It is on offer in {place}, as attempt {token.attempt} (token {token.name})."
    picture = detail.picture
    before = [
        token for token in picture.tokens
        if not token.form and token.lane == detail.lane and token.priority > detail.priority
    ]  # fmt: skip
    if before:
        number = sum(token.count for token in before)
        yield f"{number:,} waiting {'task' if number == 1 else 'tasks'} of its lane have a higher priority."
    ways = [f"It asks for {lack}." for lack in what_it_lacks(picture, Request.from_json(detail.request))]
    ways = [*what_keeps_workers(picture), *ways]
    yield from ways
    running = picture.counts()[TaskState.RUNNING]
    if not ways and running:
        yield f"Nothing stands in its way: {tasks_are(running)} running, and it starts when a slot is free."


def _claimed(detail: TaskDetail) -> Iterator[str]:
    for token in _cover(detail):
        if token.form == FENCED:
            yield f"Its worker {token.life} died; the task is on its way back (token {token.name})."
        elif token.form in (CLAIM, DRAFT):
            worker = next((worker for worker in detail.picture.workers if worker.life == token.life), None)
            where = f" on {worker.host}, which is {worker.state.value}" if worker else ""
            yield f"Worker {token.life}{where} holds it (token {token.name})."
            if worker is not None and worker.reason:
                yield f"About that worker: {worker.reason}."
        elif token.form == HELD:
            continue
    last = detail.attempts[-1] if detail.attempts else None
    if last is not None and last.state == "ended" and not last.final:
        yield f"Attempt {last.attempt} did not settle it; it is tried again when its backoff is over."


def _attempt_sentence(view: AttemptView, reaps: dict[str, list[dict[str, Any]]]) -> str:
    facts = view.facts
    where = f"on {view.host or view.worker}"
    if facts.get("slot") is not None:
        where += f", slot {facts['slot']}"
    label = f"Attempt {view.attempt}" + (f" of generation {view.gen}" if view.gen else "")
    if view.state == "running":
        return f"{label} runs {where} (worker {view.worker}{f', pid {view.pid}' if view.pid else ''})."
    if view.state == "open":
        return f"{label} was started {where}, and its worker {view.worker} ended without a word about it."
    wall_s = facts.get("wall_s")
    after = f" after {took(wall_s)}" if wall_s is not None else ""
    text = f"{label} {_how_it_ended(view)}{after} {where}"
    if facts.get("error"):
        text += f": {facts['error']}"
    if view.how == Start.GROUP and facts.get("outcome") == "lost":
        text += f" (one of {view.group} short calls started together, so it is not charged)"
    for note in reaps.get(view.worker, ())[:1]:
        text += f". Evidence of its worker's death: {note['reason']}"
    return text + "."


def _how_it_ended(view: AttemptView) -> str:
    facts = view.facts
    outcome = facts.get("outcome")
    if outcome == "lost":
        charge = "counted towards quarantine" if view.counted else "charged to nobody"
        return f"was lost ({facts.get('cause') or 'worker_gone'}, {charge})"
    if outcome == "succeeded":
        return "succeeded"
    words = {
        "failed": "failed",
        "timeout": "ran out of time",
        "out_of_memory": "ran out of memory",
        "output_invalid": "ended well but its outputs did not hold",
        "abandoned": "was abandoned, its worker having been taken for dead",
        "cancelled": "was cancelled",
    }
    text = words.get(str(outcome), f"ended as {outcome}")
    if facts.get("signal"):
        return f"{text} (signal {facts['signal']})"
    if facts.get("exit") not in (None, 0):
        return f"{text} (exit {facts['exit']})"
    return text


def _budget_sentences(detail: TaskDetail) -> Iterator[str]:
    if detail.state is not TaskState.FAILED:
        return
    retries = int(detail.task.get("retries", 0) or 0)
    allowed = f"{retries} {'retry' if retries == 1 else 'retries'}"
    yield f"It was allowed {allowed}, and none is left."
    yield f"See `fleetcraft task logs {detail.name}`; `fleetcraft task retry {detail.name}` runs it again."
