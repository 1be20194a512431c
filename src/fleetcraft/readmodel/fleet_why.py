"""Why a fleet, or one of its jobs, is as it is: the last decisions with their evidence, from its records."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fleetcraft.core.quantities import format_duration
from fleetcraft.fleet import records as kinds
from fleetcraft.fleet.records import Record
from fleetcraft.fleet.state import FleetState, Job, Phase
from fleetcraft.readmodel.fleet_jobs import said_its_end
from fleetcraft.readmodel.words import SECONDS, local_time

_DECISIONS = (kinds.INTENT, kinds.REJECTED, kinds.UNRESOLVED, kinds.CANCEL, kinds.DRAIN, kinds.RESUME, kinds.NOTE)
_SHOWN = 8
# What stands for the reason where a person gave none.
ASKED_FOR = "asked for"


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetExplanation:
    """Sentences for a person, and the records that they come from."""

    name: str
    job: str | None
    sentences: tuple[str, ...]
    evidence: tuple[Mapping[str, Any], ...]

    def as_json(self) -> dict[str, Any]:
        """The JSON document, without its schema."""
        return {
            "name": self.name,
            "job": self.job,
            "sentences": list(self.sentences),
            "evidence": [dict(one) for one in self.evidence],
        }


def explain_fleet(
    name: str, log: Sequence[Record], state: FleetState, *, most: int = _SHOWN, zone: str | None = None
) -> FleetExplanation:
    """The last decisions about a fleet, newest first. `zone` is the time zone in which a person reads."""
    records = [record for record in log if record.kind in _DECISIONS]
    shown = list(reversed(records[-most:]))
    sentences = [_head(name, state)]
    for record in shown:
        sentences += _tell(record, zone)
    if len(records) > len(shown):
        sentences.append(f"Not shown: {len(records) - len(shown)} earlier.")
    sentences += state.problems
    return FleetExplanation(name=name, job=None, sentences=tuple(sentences), evidence=tuple(_evidence(shown)))


def explain_job(
    name: str, log: Sequence[Record], job: Job, *,
    zone: str | None = None, ended: Mapping[str, Any] | None = None, output: str = "", now_utc: float | None = None,
) -> FleetExplanation:  # fmt: skip
    """Everything that was decided and seen about one job, oldest first.

    `ended` is what its own script wrote at its end, and `output` the file with what it said.
    """
    records = [record for record in log if _is_about(record, job.token)]
    sentences = [_job_head(job)]
    for record in records:
        sentences += _tell(record, zone)
    over = said_its_end(job, ended)
    if over:
        sentences.append(f"{over[0].upper()}{over[1:]}.")
    if now_utc is not None and job.phase is Phase.SUBMITTED and job.is_live:
        heard_utc = job.seen_utc if job.seen_utc is not None else job.intent_utc
        ago = "an unknown time" if heard_utc is None else _time(max(0.0, now_utc - heard_utc))
        sentences.append(
            f"The last word about it on record is {ago} old; `fleetcraft fleet status {name}` asks the scheduler."
        )
    if output and job.ref is not None:
        sentences.append(f"What it said is in {output}.")
    return FleetExplanation(
        name=name,
        job=str(job.ref) if job.ref is not None else job.token,
        sentences=tuple(sentences),
        evidence=tuple(_evidence(records)),
    )


def find_job(states: Mapping[str, FleetState], words: str) -> tuple[str, Job] | None:
    """The fleet and the job of a scheduler's id or of a token (its begin is enough); ids may be used again."""
    for name, state in states.items():
        job = state.by_ref(words)
        if job is not None:
            return name, job
    found = [
        (name, job) for name, state in states.items() for job in state.jobs.values() if job.token.startswith(words)
    ]
    return found[0] if len(found) == 1 and len(words) > len("fc") else None


def _is_about(record: Record, token: str) -> bool:
    body = record.body
    return body.get("token") == token or token in (body.get("tokens") or ())


def _head(name: str, state: FleetState) -> str:
    live = state.live()
    spec = state.spec() or state.specs.get(max(state.specs, default=0))
    said = "nothing was submitted for it yet"
    if spec is not None:
        nodes = _counted(spec.nodes, "node")
        said = f"it was asked to be {nodes} of {spec.site.partition.name} ({spec.site.profile})"
    return f"Fleet {name} has {_counted(len(live), 'live job')}; {said}."


def _counted(number: int, word: str) -> str:
    return f"{number:,} {word if number == 1 else word + 's'}"


def _job_head(job: Job) -> str:
    known = "was rejected" if job.phase is Phase.REJECTED else "has no known answer yet"
    if job.phase is Phase.SUBMITTED:
        known = f"is {job.state.value}" if job.state is not None else "was submitted and not seen yet"
    cause = job.cause or job.reason
    return f"Job {job.ref or job.token} {known}{f': {cause}' if cause else ''}."


def _tell(record: Record, zone: str | None) -> Iterator[str]:
    body, at = record.body, local_time(record.at_utc, zone, SECONDS)
    token = str(body.get("token", ""))
    match record.kind:
        case kinds.INTENT:
            nodes = body.get("nodes")
            wants = f"{nodes} {'node' if nodes == 1 else 'nodes'} for {_time(body.get('time_limit_s'))}"
            yield f"{at}: {token} was asked for ({wants}){_why(body)}."
            yield from _decisions(body.get("decisions"))
        case kinds.SUBMITTED:
            ref = body.get("ref")
            job = ref.get("id", "?") if isinstance(ref, Mapping) else "?"
            yield f"{at}: {token} is job {job} ({body.get('outcome', '')})."
        case kinds.REJECTED:
            yield f"{at}: {token} was not submitted ({body.get('code', '')}): {body.get('text', '')}."
        case kinds.UNRESOLVED:
            yield f"{at}: the answer about {token} was lost: {body.get('text', '')}."
        case kinds.SEEN:
            cause = body.get("cause") or body.get("reason") or ""
            yield f"{at}: {token} is {body.get('state')} ({body.get('raw_state')}){f': {cause}' if cause else ''}."
        case kinds.CANCEL:
            tokens = ", ".join(map(str, body.get("tokens", ())))
            yield f"{at}: the end of {tokens} was asked for{_why(body)}."
        case kinds.DRAIN:
            yield f"{at}: the fleet was drained{_why(body)}."
        case kinds.RESUME:
            yield f"{at}: the drain was taken back{_why(body)}."
        case kinds.NOTE if body.get("what") == "refused":
            yield f"{at}: nothing was submitted: {body.get('reason', '')}."
            yield from _decisions(body.get("decisions"), only_refused=True)
        case kinds.NOTE:
            yield f"{at}: {body.get('what', 'note')}: {body.get('reason', '')}."
        case kinds.IDLE:
            tail_s = body.get("since_last_task_s")
            said = body.get("reason") or f"its nodes were idle for {_time(tail_s)} at its end"
            yield f"{at}: {said}."
        case _:
            yield f"{at}: {record.kind} {token}".rstrip() + "."


def _why(body: Mapping[str, Any]) -> str:
    """The reason behind a sentence; a person who gave none only asked for it."""
    why = str(body.get("why") or "")
    return f": {why}" if why and why != ASKED_FOR else ""


def _decisions(decisions: Any, *, only_refused: bool = False) -> Iterator[str]:
    for one in decisions if isinstance(decisions, Sequence) else ():
        if isinstance(one, Mapping) and not (only_refused and one.get("allowed")):
            word = "allowed" if one.get("allowed") else "refused"
            yield f"  {one.get('guard', '?')} {word}: {one.get('reason', '')}"


def _evidence(records: Iterable[Record]) -> Iterator[Mapping[str, Any]]:
    for record in records:
        yield {"number": record.number, **record.body}


def _time(seconds: Any) -> str:
    return format_duration(seconds) if isinstance(seconds, (int, float)) else "an unknown time"
