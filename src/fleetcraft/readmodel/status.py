"""The numbers of a spool: how many tasks stand where, how fast they end, and what stands in the way."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from fleetcraft.core.quantities import format_bytes
from fleetcraft.core.resources import Request
from fleetcraft.core.states import TaskState, WorkerState
from fleetcraft.readmodel.lives import WorkerView
from fleetcraft.readmodel.picture import Picture, take_picture
from fleetcraft.readmodel.words import tasks_are
from fleetcraft.spool.reading import SpoolFold
from fleetcraft.spool.spool import Spool

_SHOWN = 4
_OPEN = (TaskState.WAITING, TaskState.CLAIMED, TaskState.RUNNING)


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusView:
    """One dated reading. The states add up to `total`."""

    spool: str
    at_utc: float
    total: int
    counts: dict[TaskState, int]
    uncovered: int
    rate_per_s: float | None
    rate_reason: str
    eta_s: float | None
    eta_reason: str
    batches: int
    files: int
    foreign: int
    damaged: int
    stopped: bool
    workers: tuple[WorkerView, ...]
    ended_workers: int
    in_the_way: tuple[str, ...]

    @property
    def ended(self) -> int:
        """How many tasks have ended."""
        return sum(count for state, count in self.counts.items() if state.ended)

    @property
    def unfinished(self) -> int:
        """How many tasks have not ended and still can."""
        return self.total - self.ended - self.counts[TaskState.BLOCKED]

    def as_json(self) -> dict[str, Any]:
        """The JSON document, without its schema."""
        return {
            "spool": self.spool,
            "at_utc": round(self.at_utc, 3),
            "total": self.total,
            **{state.value: self.counts[state] for state in TaskState},
            "uncovered": self.uncovered,
            "rate_per_s": self.rate_per_s,
            "rate_reason": self.rate_reason or None,
            "eta_s": self.eta_s,
            "eta_reason": self.eta_reason or None,
            "batches": self.batches,
            "files": self.files,
            "foreign": self.foreign,
            "damaged": self.damaged,
            "stopped": self.stopped,
            "workers": [worker.as_json() for worker in self.workers],
            "ended_workers": self.ended_workers,
            "in_the_way": list(self.in_the_way),
        }


def read_status(spool: Spool, reader: SpoolFold | None = None) -> StatusView:
    """Read the status; with the same `reader` again only what is new costs time. Raises OSError."""
    picture = take_picture(spool, reader)
    counts = picture.counts()
    left = sum(counts[state] for state in _OPEN) + counts[TaskState.HELD]
    rate, rate_reason = _rate(picture)
    eta, eta_reason = _eta(left, rate, rate_reason)
    lives = picture.reader.lives.values()
    shown = [worker for worker in picture.workers if not worker.buried]
    return StatusView(
        spool=spool.layout.root,
        at_utc=picture.now_utc,
        total=spool.total(),
        counts=counts,
        uncovered=picture.count_uncovered(),
        rate_per_s=rate,
        rate_reason=rate_reason,
        eta_s=eta,
        eta_reason=eta_reason,
        batches=len(spool.batches()),
        files=count_files(spool),
        foreign=picture.foreign,
        damaged=sum(reading.damaged for reading in lives) + picture.reader.requests.damaged,
        stopped=picture.reader.requests.stopped,
        workers=tuple(shown),
        ended_workers=len(picture.workers)
        - len(shown)
        + sum(reading.cached and reading.identity is None for reading in lives),
        in_the_way=tuple(what_stands_in_the_way(picture, counts)),
    )


def _rate(picture: Picture) -> tuple[float | None, str]:
    up = [worker for worker in picture.workers if worker.is_running and worker.state is not WorkerState.STALE]
    if not up:
        return None, "no worker is up"
    rates = [worker.rate_per_s for worker in up if worker.rate_per_s is not None]
    if not rates:
        return None, "no worker has measured its rate yet"
    return round(sum(rates), 3), ""


def _eta(left: int, rate: float | None, reason: str) -> tuple[float | None, str]:
    if not left:
        return 0.0, ""
    if rate is None:
        return None, reason
    if rate <= 0:
        return None, "nothing ended lately"
    return round(left / rate, 1), ""


def count_files(spool: Spool) -> int:
    """Files below the spool; a file that vanishes meanwhile is no matter."""
    return sum(len(names) for _, _, names in os.walk(spool.layout.root))


def what_stands_in_the_way(picture: Picture, counts: dict[TaskState, int]) -> Iterator[str]:
    """Sentences, the most useful first; none while everything is on its way."""
    if sum(counts[state] for state in (*_OPEN, TaskState.HELD)):
        yield from what_keeps_workers(picture)
    yield from _unfit(picture)
    if counts[TaskState.BLOCKED]:
        yield _blocked(picture, counts[TaskState.BLOCKED])
    if picture.count_uncovered():
        number = picture.count_uncovered()
        yield f"{tasks_are(number)} without a token; `fleetcraft spool check --repair` offers them again."
    for batch in picture.unfinished:
        yield f"Batch {batch} was published and never offered; `fleetcraft spool check --repair` offers it."


def what_keeps_workers(picture: Picture) -> Iterator[str]:
    """What keeps every task from being started: a stop, no worker, workers in trouble."""
    requests = picture.reader.requests
    if requests.stopped:
        why = f" ({requests.stop_reason})" if requests.stop_reason else ""
        yield f"The spool was stopped by request{why}; `fleetcraft spool resume` goes on."
    if not any(worker.is_running for worker in picture.workers):
        yield "No worker is up; start one with `fleetcraft worker run`."
    troubled = [sentence for worker in picture.workers if not worker.buried and (sentence := _trouble(worker))]
    yield from troubled[:_SHOWN]
    if len(troubled) > _SHOWN:
        yield f"{len(troubled) - _SHOWN} more workers are not as they should be; see `fleetcraft worker list`."


def _trouble(worker: WorkerView) -> str:
    """What keeps one worker from its work; empty when nothing does."""
    name = f"Worker {worker.life} on {worker.host}"
    match worker.state:
        case WorkerState.LOST:
            return f"{name} is lost: {worker.reason}."
        case WorkerState.STALE:
            return f"{name} is silent: {worker.reason}."
        case WorkerState.STORAGE_FULL:
            return f"{name} says that the storage is full; it goes on when space returns."
        case WorkerState.DRAINING:
            return f"{name} is draining{f': {worker.reason}' if worker.reason else ''}."
        case WorkerState.UP:
            return f"{name}: {worker.reason}." if worker.reason else ""
        case _:
            return ""


def _blocked(picture: Picture, number: int) -> str:
    names = sorted(picture.held.roots)
    shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    return f"{tasks_are(number)} blocked: they wait for {shown}, which did not succeed."


def _unfit(picture: Picture) -> Iterator[str]:
    """Lanes that wait and that nothing here could ever run."""
    waiting: dict[str, tuple[Request, int]] = {}
    for token in picture.tokens:
        batch = picture.spool.batch(token.batch)
        if batch is not None and not token.form:
            request, number = waiting.get(token.lane, (batch.request, 0))
            waiting[token.lane] = (request, number + token.count)
    for lane, (request, number) in sorted(waiting.items()):
        yield from (
            f"{tasks_are(number)} waiting for {lack} (lane {lane})." for lack in what_it_lacks(picture, request)
        )


def what_it_lacks(picture: Picture, request: Request) -> Iterator[str]:
    """What a request asks for and nothing here could ever give."""
    for name, asked in request.uses:
        ceiling = picture.reader.requests.limits.get(name)
        if ceiling is not None and asked > ceiling:
            yield f"{asked} of {name} each, and its limit is {ceiling}"
    able = [worker for worker in picture.workers if worker.is_running and worker.cpus is not None]
    lack = _lack(request, able) if able else None
    if lack is not None:
        yield lack


def _lack(request: Request, able: list[WorkerView]) -> str | None:
    """What a request asks for and no worker has."""
    gpus, cpus = max(worker.gpus or 0 for worker in able), max(worker.cpus or 0 for worker in able)
    if request.gpus > gpus:
        have = "no worker has any" if not gpus else f"the largest worker has {gpus}"
        return f"{request.gpus:g} GPUs each, and {have}"
    if request.cpus > cpus:
        return f"{request.cpus} CPUs each, and the largest worker has {cpus}"
    known = [worker.gpu_memory_bytes for worker in able if worker.gpu_memory_bytes is not None]
    if request.vram_bytes is not None and request.gpus and known and request.vram_bytes > max(known):
        return f"{format_bytes(request.vram_bytes)} of GPU memory, and the largest GPU has {format_bytes(max(known))}"
    return None
