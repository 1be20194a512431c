"""Model FLOPs utilization of a spool: which attempt computed how much, on which device, beside what was allocated.

Nothing here divides; that is `usage.mfu_join`. What an attempt reported counts; what its task declared counts only for
one that ended done; for any other there is a reason and no number.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fleetcraft.core.errors import SpoolDamaged, UsageError
from fleetcraft.core.names import TaskId
from fleetcraft.core.states import LossCause, Outcome
from fleetcraft.fleet.state import FleetState
from fleetcraft.readmodel.gpu_allocations import same_host
from fleetcraft.readmodel.gpu_attempts import Attempt
from fleetcraft.readmodel.gpu_ledger import Asked, Gathered, gather
from fleetcraft.readmodel.gpu_samples import Samples
from fleetcraft.spool.ledger import Batch
from fleetcraft.spool.spool import Spool
from fleetcraft.usage.api import Gpu
from fleetcraft.usage.flops import resolve
from fleetcraft.usage.mfu_join import Key, MfuTable, Work, join
from fleetcraft.usage.mfu_means import Device
from fleetcraft.usage.peaks import PRECISIONS, Peak

_BLOCK = 1024
NOT_DECLARED = "its task declares no FLOPs and it reported none"
_OPEN = "it runs and reported no FLOPs yet"


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The table, None where no GPU was allocated in that time, and what does not fit together."""

    table: MfuTable | None
    problems: tuple[str, ...]
    samples: int  # devices that were sampled


def read_mfu(
    spool: Spool, states: Mapping[str, FleetState], asked: Asked, *, by: str = "family", precision: str = "bf16",
    peaks: tuple[Peak, ...] | None = None,
) -> Found:  # fmt: skip
    """Join attempts, allocations and samples. Raises OSError, UsageError."""
    found = gather(spool, states, asked)
    problems = tuple(dict.fromkeys([*found.problems, *found.samples.problems]))
    low_ms, high_ms = found.period
    if low_ms >= high_ms or not any(one.line.is_gpu for one in found.evidences):
        return Found(table=None, problems=problems, samples=len(found.samples.series))
    table = join(
        found.evidences, works_of(spool, _on_gpus(found)), Devices(found.samples).of, period=found.period, by=by,
        precision=precision, peaks=peaks,
    )  # fmt: skip
    return Found(table=table, problems=problems, samples=len(found.samples.series))


def _on_gpus(found: Gathered) -> list[Attempt]:
    return [attempt for attempt in found.journals.attempts if attempt.gpus]


@dataclass(slots=True)
class Devices:
    """The device of a GPU by its samples, each read once."""

    samples: Samples
    _known: dict[Gpu, Device | None] = field(default_factory=dict)

    def of(self, gpu: Gpu) -> Device | None:
        """The device; None where nothing sampled it."""
        if gpu not in self._known:
            self._known[gpu] = self._read(gpu)
        return self._known[gpu]

    def _read(self, gpu: Gpu) -> Device | None:
        key = next((one for one in self.samples.series if one[1] == gpu.uuid and same_host(one[0], gpu.host)), None)
        if key is None:
            return None
        some = self.samples.series[key]
        names = [one.context.device_name for one in some if one.context.device_name]
        return Device.of(
            names[-1] if names else "", (stretch for one in some for stretch in one.stretches()),
            simulated=any(one.context.simulated for one in some),
        )  # fmt: skip


def works_of(spool: Spool, attempts: Iterable[Attempt]) -> dict[Key, Work]:
    """What each attempt computed, by the key of its hold."""
    declared = _Declared(spool)
    chains: dict[tuple[int, int, int, int], list[Attempt]] = {}
    for one in attempts:
        chains.setdefault((one.batch, one.index, one.gen, one.count), []).append(one)
    works: dict[Key, Work] = {}
    for chain in chains.values():
        chain.sort(key=lambda one: (one.attempt, one.start_ms))
        for place, one in enumerate(chain):
            key = (one.task, one.attempt, one.start_ms)
            if key not in works:
                works[key] = _work(one, declared)
            if one.outcome == Outcome.SUCCEEDED and one.flops is None:
                _spread(works, [*_saved_before(chain, place), one])
    return works


def _work(one: Attempt, declared: _Declared) -> Work:
    flops, reason, precision = declared.of(one)
    if one.flops is not None:
        flops, reason = one.flops, ""
    elif one.outcome != Outcome.SUCCEEDED:
        flops, reason = None, f"it ended {one.outcome} and reported no FLOPs" if one.outcome else _OPEN
    return Work(
        name=one.name, family=one.request.family or "", flops=flops, reason=reason if flops is None else "",
        precision=precision, reported=one.flops is not None,
    )  # fmt: skip


def _saved_before(chain: list[Attempt], place: int) -> list[Attempt]:
    """The attempts from whose saved state this one went on."""
    first = place
    while first > 0 and chain[first - 1].outcome == Outcome.LOST and chain[first - 1].cause == LossCause.CHECKPOINTED:
        first -= 1
    return chain[first:place]


def _spread(works: dict[Key, Work], parts: list[Attempt]) -> None:
    """Give a declared number to all attempts that made it together, by their time; what was reported stands."""
    keys = [(one.task, one.attempt, one.start_ms) for one in parts]
    last = works[keys[-1]]
    if last.flops is None or len(parts) == 1:
        return
    left = last.flops - sum(one.flops for one in parts if one.flops is not None)
    silent = [(key, one) for key, one in zip(keys, parts, strict=True) if one.flops is None]
    whole = sum(max(1, (one.end_ms or one.start_ms) - one.start_ms) for _, one in silent)
    for key, one in silent:
        part = max(1, (one.end_ms or one.start_ms) - one.start_ms) / whole
        why = "" if left > 0 else "earlier attempts reported more FLOPs than the task declares"
        works[key] = Work(
            name=last.name, family=last.family, flops=left * part if left > 0 else None, reason=why,
            precision=last.precision,
        )  # fmt: skip


@dataclass(slots=True)
class _Declared:
    """FLOPs and precision that tasks declare, read in blocks, since every open of a file is a question to a server."""

    spool: Spool
    blocks: dict[tuple[int, int], list[tuple[float | None, str, str]]] = field(default_factory=dict)

    def of(self, one: Attempt) -> tuple[float | None, str, str]:
        """FLOPs, or the reason for none, and the precision; of several calls all together."""
        found = [self._task(TaskId(one.batch, index)) for index in range(one.index, one.index + one.count)]
        missing = [reason for flops, reason, _ in found if flops is None]
        if missing:
            of = f" ({len(missing)} of {one.count} calls)" if one.count > 1 else ""
            return None, missing[0] + of, found[0][2]
        kinds = {precision for _, _, precision in found}
        if len(kinds) > 1:
            return None, f"its calls declare several precisions: {', '.join(sorted(kinds))}", ""
        return sum(flops for flops, _, _ in found if flops is not None), "", found[0][2]

    def _task(self, task: TaskId) -> tuple[float | None, str, str]:
        located = self.spool.locate(task)
        if located is None:
            return None, "its batch is not there any more", ""
        batch, position = located
        block, place = divmod(position, _BLOCK)
        key = (batch.number, block)
        if key not in self.blocks:
            self.blocks[key] = _read(batch, block)
        return self.blocks[key][place]


def _read(batch: Batch, block: int) -> list[tuple[float | None, str, str]]:
    start, stop = block * _BLOCK, min((block + 1) * _BLOCK, batch.count)
    try:
        lines = [json.loads(line) for line in batch.lines(start, stop)]
    except (SpoolDamaged, ValueError) as error:
        return [(None, f"its line in the ledger cannot be read: {error}", "")] * (stop - start)
    return [_declaration({**batch.defaults(start + place), **line}) for place, line in enumerate(lines)]


def _declaration(task: Mapping[str, Any]) -> tuple[float | None, str, str]:
    precision = str(task.get("precision") or "")
    if task.get("flops") is None:
        return None, NOT_DECLARED, precision
    if precision and precision not in PRECISIONS:
        return None, f"its precision {precision!r} is none of {', '.join(PRECISIONS)}", ""
    try:
        return resolve(task["flops"]), "", precision
    except (UsageError, TypeError, ValueError) as error:
        return None, f"what its task declares is no FLOPs: {error}", precision
