"""One attempt in progress, and how its end is put into words for a receipt."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fleetcraft.core.names import TaskId
from fleetcraft.core.outcome import Start
from fleetcraft.core.states import LossCause
from fleetcraft.workers.book import Claim
from fleetcraft.workers.child import Child, Ended
from fleetcraft.workers.slots import Slot
from fleetcraft.workers.verdict import End, Ruling


@dataclass(slots=True)
class Running:
    """One attempt in progress."""

    claim: Claim
    position: int
    id: TaskId
    attempt: int
    task: Mapping[str, Any]
    slot: Slot
    log: tuple[int, int]  # file number, first byte
    at_utc: float
    at_mono_s: float
    child: Child | None = None
    stage: str = "run"
    deadline_s: float | None = None
    permits: list[str] = field(default_factory=list)
    how: Start = Start.SINGLE
    first: Ended | None = None  # how the task itself ended, while its validator runs
    proofs: list[dict[str, Any]] = field(default_factory=list)
    announced: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Concluded:
    """What the loop is told about a finished attempt."""

    id: TaskId
    ruling: Ruling
    wall_s: float
    claim: Claim
    position: int
    attempt: int
    count: int = 1


def receipt_details(
    running: Running, ruling: Ruling, ended: Ended | None, end_utc: float, log: tuple[int, int, int]
) -> dict[str, Any]:
    """The part of a receipt that only people and reports read."""
    details: dict[str, Any] = {
        "s": running.slot.number,
        "at": round(running.at_utc, 3),
        "end": round(end_utc, 3),
        "log": list(log),
    }
    if running.slot.gpus:
        details["gpus"] = list(running.slot.gpus)
    if running.how != Start.SINGLE:
        details["how"] = running.how.value
    if ruling.cause:
        details["cause"] = str(ruling.cause)
    if ruling.error:
        details["error"] = ruling.error
    if ruling.retry_in_s is not None:
        details["retry_in_s"] = round(ruling.retry_in_s, 3)
    if running.proofs:
        details["outputs"] = running.proofs
    if ended is not None:
        details.update(wall=round(ended.wall_s, 4), cpu=round(ended.cpu_s, 4), rss_kib=ended.rss_kib)
        if ended.exit_code is not None:
            details["exit"] = ended.exit_code
        if ended.signal is not None:
            details["signal"] = ended.signal
        if ended.left_background:
            details["left_background"] = list(ended.left_background)
        if ended.unkillable:
            details["unkillable"] = [list(entry) for entry in ended.unkillable]
    return details


def end_of(ended: Ended, problem: str | None, drain_cause: LossCause | None) -> End:
    """The evidence for the ruling."""
    return End(
        exit_code=ended.exit_code,
        signal=ended.signal,
        stop_reason=ended.stop_reason,
        drain_cause=drain_cause or LossCause.DRAINED,
        output_problem=problem,
    )


def how(ended: Ended) -> str:
    """`exit 3` or `signal 9`."""
    return f"signal {ended.signal}" if ended.signal else f"exit {ended.exit_code}"


def spawn_problem(error: OSError, task: Mapping[str, Any]) -> str:
    """Why a program could not be started, naming the program or the missing folder."""
    program = task["command"][0] if "command" in task else "/bin/sh"
    cwd = task.get("cwd", "/")
    if error.errno == errno.ENOENT and not os.path.isdir(cwd):
        return f"the working directory {cwd} does not exist on this host"
    reason = os.strerror(error.errno or 0)
    return f"cannot start {program!r}: {reason}"
