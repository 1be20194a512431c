"""Watching GPUs: one look after another, alerts told once with their end, and jobs given back where that was asked for.

The book is written before anything is sent, so that a watcher that is ended tells nothing twice. Nothing is ever ended
without --release.
"""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from fleetcraft.core.errors import FleetcraftError, OutOfReach, UsageError
from fleetcraft.fleet import records as kinds
from fleetcraft.fleet.notify import Post, Runner, post_json
from fleetcraft.fleet.state import FleetState, Job
from fleetcraft.fleet.tail import job_ids
from fleetcraft.readmodel.fleet_gpus import HOLDING
from fleetcraft.readmodel.gpu_alerts import blind_subjects, find_alerts, read_disk
from fleetcraft.readmodel.gpu_picture import GpusNow
from fleetcraft.schedulers.api import Observation
from fleetcraft.store.files import Files, explain, publish_file
from fleetcraft.usage.alerts import AlertBook, Event
from fleetcraft.usage.release import GpuOfJob, JobIdle, Ruling, Step, rule
from fleetcraft.wiring.gpu_look import Looker

_TIMEOUT_S = 10.0
_FINISH_S, _SAVE_S = 60.0, 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Channels:
    """Where alerts go beside the terminal."""

    command: tuple[str, ...] = ()
    webhook: str | None = None


@dataclass(slots=True, kw_only=True)
class Watched:
    """What one look brought."""

    picture: GpusNow
    events: list[Event]
    active: list[tuple[str, str]]  # kind and text of every alert that is not over
    rulings: dict[str, Ruling] = field(default_factory=dict)  # by job; only with --release
    said: list[str] = field(default_factory=list)  # what was sent, done, or failed

    def as_json(self) -> dict[str, Any]:
        """The JSON document, without its schema."""
        return {
            "at_utc": round(self.picture.at_utc, 3),
            "events": [event.as_json() for event in self.events],
            "active": [{"kind": kind, "text": text} for kind, text in self.active],
            "classes": self.picture.counts(),
            "totals": self.picture.totals(),
            "release": {job: {"step": ruling.step.value, "why": ruling.why} for job, ruling in self.rulings.items()},
            "said": self.said,
            "thresholds": self.picture.thresholds.as_json(),
            "problems": list(self.picture.problems),
        }


def parse_channels(command: str | None, webhook: str | None) -> Channels:
    """Raises UsageError for what cannot be sent to."""
    try:
        words = tuple(shlex.split(command)) if command else ()
    except ValueError as error:
        raise UsageError(
            f"--command {command!r} cannot be split into words: {error}.", hint="Look at its quotes."
        ) from error
    if webhook is not None and urlsplit(webhook).scheme not in ("http", "https"):
        raise UsageError(f"--webhook {webhook!r} is no address.", hint="Write http://... or https://...")
    return Channels(command=words, webhook=webhook)


Cancel = Callable[[str, str, str], list[str]]  # fleet, token, why; returns problems in words


@dataclass(slots=True)
class Watch:
    """A watcher. `release` is off unless a person turned it on."""

    looker: Looker
    state_path: str
    channels: Channels = field(default_factory=Channels)
    release: bool = False
    runner: Runner | None = None
    post: Post = post_json
    cancel: Cancel | None = None
    files: Files = field(default_factory=Files)

    def step(self) -> Watched:
        """One look, and what follows from it. Raises UsageError, OutOfReach, OSError."""
        with self._book() as book:
            picture = self.looker.look()
            limits, now_utc = picture.thresholds, picture.at_utc
            events = book.look(
                find_alerts(picture, book, self._disks()),
                now_utc,
                clear_s=limits.clear_s,
                blind=blind_subjects(picture),
            )
            watched = Watched(picture=picture, events=events, active=[])
            watched.active = [(entry.kind, entry.text) for _, entry in book.active()]
            steps = self._rule(picture, book, watched) if self.release else []
            self._save(book)
            for event in events:
                watched.said += self._send(event.as_json())
            for fleet, job, ruling in steps:
                watched.said += self._act(fleet, job, ruling, now_utc)
        return watched

    def _disks(self) -> list[Any]:
        places = []
        if self.looker.spool is not None:
            places.append((self.looker.spool.layout.root, "the spool"))
        places += [(root, "telemetry") for root in self.looker.roots() if self.looker.spool is None]
        return [disk for path, what in places if (disk := read_disk(path, what)) is not None]

    # Release

    def _rule(self, picture: GpusNow, book: AlertBook, watched: Watched) -> list[tuple[str, Job, Ruling]]:
        """What is next for each job. Warnings are counted here, and written by `_act`."""
        steps = []
        for name, job in _our_jobs(self.looker.states, self.looker.mine):
            idle = job_idle(name, job, picture, self.looker, book.warnings.get(job.token, ()))
            ruling = rule(idle, picture.at_utc, picture.thresholds)
            watched.rulings[str(job.ref)] = ruling
            if ruling.step is Step.NONE:
                if not ruling.why.startswith("it was warned"):
                    book.warnings.pop(job.token, None)
                continue
            book.warnings.setdefault(job.token, []).append(picture.at_utc)
            steps.append((name, job, ruling))
        return steps

    def _act(self, fleet: str, job: Job, ruling: Ruling, now_utc: float) -> list[str]:
        """Write the step into the fleet's records first; without that nothing is done."""
        event = {
            "what": f"idle_{ruling.step.value}", "kind": "release", "fleet": fleet, "job": str(job.ref),
            "text": f"job {job.ref} of fleet {fleet}: {ruling.why}", "at_utc": now_utc,
        }  # fmt: skip
        try:
            self._record(fleet, job, event)
        except FleetcraftError as error:
            return [f"nothing was done about job {job.ref}: {error}"]
        said = [event["text"], *self._send(event)]
        if ruling.step is Step.RELEASE:
            problems = (self.cancel or self._cancel)(fleet, job.token, f"idle: {ruling.why}")
            said += problems or [f"job {job.ref} was drained and cancelled; its work went back"]
        return [str(text) for text in said]

    def _record(self, fleet: str, job: Job, event: Mapping[str, Any]) -> None:
        from fleetcraft.actions.fleet_open import open_existing

        assert self.looker.spool is not None  # noqa: S101  jobs of ours come from a spool
        log = open_existing(self.looker.spool, fleet).log
        log.state_fact(kinds.NOTE, what=event["what"], token=job.token, reason=event["text"])

    def _cancel(self, fleet: str, token: str, why: str) -> list[str]:
        from fleetcraft.actions.fleet_end import cancel_fleet

        assert self.looker.spool is not None  # noqa: S101  jobs of ours come from a spool
        _, report = cancel_fleet(self.looker.spool, fleet, [token], why=why, finish_s=_FINISH_S, save_s=_SAVE_S)
        return report.problems

    # Telling

    def _send(self, event: Mapping[str, Any]) -> list[str]:
        body = json.dumps(event, allow_nan=False).encode() + b"\n"
        said = []
        if self.channels.command:
            answer = (self.runner or _local()).run(list(self.channels.command), stdin=body, timeout_s=_TIMEOUT_S)
            if answer.code != 0:
                why = answer.problem or answer.err.strip()[-200:] or answer.code
                said.append(f"{self.channels.command[0]} failed: {why}")
        if self.channels.webhook:
            problem = self.post(self.channels.webhook, body, _TIMEOUT_S)
            if problem:
                said.append(f"{urlsplit(self.channels.webhook).netloc}: {problem}")
        return said

    # The book

    @contextmanager
    def _book(self) -> Iterator[AlertBook]:
        """The book of this watcher, alone on this host for the time of a look."""
        try:
            os.makedirs(os.path.dirname(self.state_path) or ".", exist_ok=True)
        except OSError as error:
            raise explain(error, f"Cannot keep what was told in {self.state_path}") from error
        # A name in the kernel and no lock on the storage: it goes with its process.
        name = hashlib.sha256(os.path.abspath(self.state_path).encode()).hexdigest()[:32]
        with socket.socket(socket.AF_UNIX) as held:
            try:
                held.bind(f"\0fleetcraft-watch-{name}")
            except OSError as error:
                raise OutOfReach(
                    f"Another watcher looks just now and keeps {self.state_path}.",
                    hint="Give this one its own --state.",
                ) from error
            yield self._load()

    def _load(self) -> AlertBook:
        try:
            with open(self.state_path, encoding="utf-8") as file:
                return AlertBook.from_json(json.load(file))
        except (OSError, ValueError):
            return AlertBook()

    def _save(self, book: AlertBook) -> None:
        data = json.dumps(book.as_json(), allow_nan=False).encode() + b"\n"
        try:
            publish_file(self.files, self.state_path, data)
        except OSError as error:
            raise explain(error, f"Cannot keep what was told in {self.state_path}") from error


def _local() -> Runner:
    from fleetcraft.transports.local import LocalTransport

    return LocalTransport()


def _our_jobs(states: Mapping[str, FleetState], mine: Observation | None) -> list[tuple[str, Job]]:
    """The jobs of fleets of this spool that hold nodes by the scheduler's last word, not by ours."""
    if mine is None or not mine.answered:
        return []
    held = {ref for ref, view in mine.jobs.items() if view.state in HOLDING and not view.stale}
    return [
        (name, job)
        for name, state in states.items()
        for job in state.jobs.values()
        if job.is_live and job.ref is not None and str(job.ref) in held and job.serves_work
    ]


def job_idle(fleet: str, job: Job, picture: GpusNow, looker: Looker, warned_utc: Sequence[float]) -> JobIdle:
    """One job of ours as the rule wants to see it."""
    ids = job_ids(job)
    gpus = [gpu for gpu in picture.gpus if gpu.job in ids]
    pattern_age = looker.heartbeat_age_s(ids)
    return JobIdle(
        job=str(job.ref), is_ours=bool(fleet), warned_utc=warned_utc,
        gpus=[
            GpuOfJob(kind=gpu.kind, cause=gpu.verdict.cause, free_s=gpu.free_s, coverage=gpu.deep_coverage)
            for gpu in gpus
        ],
        expected_gpus=job.nodes * job.gpus_per_node if job.gpus_per_node else None,
        running_tasks=sum(looker.running_tasks.get(one, 0) for one in ids),
        heartbeat_age_s=pattern_age, scheduler_answered=bool(picture.scheduler_answered),
    )  # fmt: skip


def default_state_path(looker: Looker) -> str:
    """In the telemetry folder that is watched, for each user."""
    roots = looker.roots()
    if not roots:
        raise UsageError("There is nothing to watch.", hint="Name a spool or a telemetry folder.")
    return os.path.join(roots[0], f"alerts-{os.getuid()}.json")
