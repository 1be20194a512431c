"""What a reader of a ledger should know beside the numbers: its sources, and what in them does not fit together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from fleetcraft.readmodel.gpu_allocations import Allocations
from fleetcraft.readmodel.gpu_attempts import Journals
from fleetcraft.usage.api import Gpu
from fleetcraft.usage.ledger import Evidence


def _some(count: int, one: str, many: str) -> str:
    return f"{count} {one if count == 1 else many}"


def sources_of(allocations: Allocations, journals: Journals, evidences: Sequence[Evidence]) -> list[str]:
    """What was read, in sentences."""
    attempts = sum(1 for _ in journals.attempts)
    sampled, gpus = _gpus(one for one in evidences if one.profile is not None), _gpus(evidences)
    lone = sum(1 for stay in allocations.stays if not stay.fleet)
    said = []
    if allocations.jobs:
        said.append(f"scheduler records of the fleets: {allocations.jobs} jobs")
    if lone:
        said.append(f"worker lives that no fleet's job holds: {lone} stays, from their beginning to the last heartbeat")
    lives = len(journals.lives)
    said.append(f"journals: {_some(lives, 'worker life', 'worker lives')}, {_some(attempts, 'attempt', 'attempts')}")
    if gpus:
        said.append(f"telemetry: samples of {sampled} of {gpus} allocated GPUs")
    return said


def _gpus(evidences: Iterable[Evidence]) -> int:
    """How many GPUs: one that was allocated twice, one time after the other, is one."""
    told = [(one.line.gpu.host.partition(".")[0], one.line.gpu.uuid) for one in evidences if one.line.is_gpu]
    return len({one for one in told if one[1]}) + sum(1 for _, uuid in told if not uuid)


def held_twice(evidences: Sequence[Evidence]) -> list[str]:
    """GPUs that two allocations hold at once: a worker beside a job on the same node, or a job id that is not told."""
    last: dict[Gpu, tuple[int, str]] = {}
    found = []
    for one in sorted(evidences, key=lambda one: one.line.spans):
        line = one.line
        if not line.gpu.uuid:
            continue
        key = replace(line.gpu, index=0)
        start_ms, end_ms = line.spans[0][0], line.spans[-1][1]
        before_ms, job = last.get(key, (0, ""))
        if start_ms < before_ms:
            text = f"{line.gpu.host}: {line.gpu.uuid} stands in two allocations at once"
            found.append(f"{text} ({job or 'no job'}, {line.job or 'no job'}); its time counts in both")
        last[key] = max((before_ms, job), (end_ms, line.job))
    return found


def outside(evidences: Sequence[Evidence]) -> list[str]:
    """Attempts beyond their allocation: the clocks of nodes and scheduler differ, or a record is wrong."""
    worst_ms, where = 0, ""
    for one in evidences:
        low = min(start for start, _ in one.line.spans)
        for hold in one.holds:
            if hold.start_ms < low - 2000 and hold.end_ms > low and low - hold.start_ms > worst_ms:
                worst_ms, where = low - hold.start_ms, one.line.gpu.host
    if not worst_ms:
        return []
    return [f"{where}: an attempt began {worst_ms / 1000:.1f} s before its allocation; clocks may differ"]
