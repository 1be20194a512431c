"""What an ended attempt means: outcome, cause, and whether the task is tried again. Pure: evidence in, value out.

Budgets belong to causes. A failure, a timeout and running out of memory each have their own; a loss charges
nobody.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from fleetcraft.core.states import LossCause, Outcome, TaskState
from fleetcraft.core.task import DEFAULT_RESUME_EXIT

DEFAULT_BACKOFF_S = 0.5
MAX_BACKOFF_S = 60.0
# A task that asks to be resumed again and again makes no progress; this many is a mistake, not a checkpoint.
MAX_RESUMES = 1000
VRAM_GROWTH = 1.25

_MEMORY_WORDS = re.compile(
    rb"CUDA out of memory|OutOfMemoryError|CUDA_ERROR_OUT_OF_MEMORY|HIP out of memory|std::bad_alloc|MemoryError"
    rb"|Cannot allocate memory|oom-kill|Out Of Memory"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """How often a task ended in each way before, in its generation."""

    failures: int = 0
    timeouts: int = 0
    memory: int = 0
    invalid: int = 0
    losses: int = 0
    resumed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """How an attempt ended, as far as anyone can tell."""

    exit_code: int | None = None
    signal: int | None = None
    stop_reason: str | None = None  # "timeout", "cancelled", or "drain"
    drain_cause: LossCause = LossCause.DRAINED
    output_problem: str | None = None
    error: str | None = None
    memory_evidence: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ruling:
    """What follows. `retry_in_s` is set when this worker keeps the task and tries again."""

    outcome: Outcome
    final: TaskState | None
    cause: str = ""
    error: str | None = None
    retry_in_s: float | None = None
    give_back: bool = False
    tally: Tally = Tally()


def rule(end: End, task: Mapping[str, Any], tally: Tally) -> Ruling:
    """Judge one attempt of `task` that ended so, after the attempts in `tally`."""
    if end.stop_reason == "cancelled":
        return Ruling(outcome=Outcome.CANCELLED, final=TaskState.CANCELLED, error=end.error, tally=tally)
    clean = end.exit_code == 0 and end.error is None
    if clean and end.output_problem is None and end.stop_reason != "timeout":
        return Ruling(outcome=Outcome.SUCCEEDED, final=TaskState.SUCCEEDED, tally=tally)
    if end.stop_reason == "drain":
        resumable = end.exit_code == task.get("resume_exit", DEFAULT_RESUME_EXIT)
        cause = LossCause.CHECKPOINTED if resumable else end.drain_cause
        return Ruling(outcome=Outcome.LOST, final=None, cause=cause, give_back=True, tally=tally)
    if end.stop_reason == "timeout":
        limit = task.get("timeout", 0)
        return _charge("timeouts", Outcome.TIMEOUT, f"ran longer than its timeout of {limit:g} s", task, tally)
    if end.exit_code == task.get("resume_exit", DEFAULT_RESUME_EXIT) and end.error is None:
        return _resume(task, tally)
    if end.memory_evidence is not None:
        return _charge("memory", Outcome.OUT_OF_MEMORY, end.memory_evidence, task, tally)
    if clean:
        return _charge("invalid", Outcome.OUTPUT_INVALID, end.output_problem or "", task, tally)
    text = end.error or (f"signal {end.signal}" if end.signal else f"exit {end.exit_code}")
    return _charge("failures", Outcome.FAILED, text, task, tally)


def _resume(task: Mapping[str, Any], tally: Tally) -> Ruling:
    """The task itself asks to be run again later: a loss that charges nobody, within reason."""
    tally = replace(tally, resumed=tally.resumed + 1)
    if tally.resumed > MAX_RESUMES:
        text = f"asked to be resumed {tally.resumed} times"
        return Ruling(outcome=Outcome.FAILED, final=TaskState.FAILED, error=text, tally=tally)
    return Ruling(
        outcome=Outcome.LOST,
        final=None,
        cause=LossCause.CHECKPOINTED,
        retry_in_s=_backoff_s(task, tally.resumed),
        tally=tally,
    )


def _charge(budget: str, outcome: Outcome, text: str, task: Mapping[str, Any], tally: Tally) -> Ruling:
    used = getattr(tally, budget) + 1
    tally = replace(tally, **{budget: used})
    # A task whose output was wrong failed: both draw on one budget.
    spent = tally.failures + tally.invalid if budget in ("failures", "invalid") else used
    allowed = int(task.get("retries", 0))
    if spent > allowed:
        return Ruling(outcome=outcome, final=TaskState.FAILED, error=text, tally=tally)
    return Ruling(outcome=outcome, final=None, error=text, retry_in_s=_backoff_s(task, spent), tally=tally)


def _backoff_s(task: Mapping[str, Any], times: int) -> float:
    base = float(task.get("backoff", DEFAULT_BACKOFF_S))
    return min(base * 2.0 ** min(times - 1, 20), max(MAX_BACKOFF_S, base))


def grown_vram(vram_bytes: int | None, tally: Tally) -> int | None:
    """The GPU memory to reserve after so many attempts ran out of it."""
    return None if vram_bytes is None else int(vram_bytes * VRAM_GROWTH**tally.memory)


def memory_evidence(exit_code: int | None, signal: int | None, tail: bytes, oom_kills: int | None) -> str | None:
    """Why a failed attempt is taken to have run out of memory, or None.

    `tail` is the end of its output; `oom_kills` how many kills the cgroup counted meanwhile (None: unknown).
    """
    killed = signal == 9 or exit_code == 137
    if killed and oom_kills:
        return f"killed by the memory cgroup ({oom_kills} kills counted)"
    if exit_code == 0:
        return None
    found = _MEMORY_WORDS.search(tail)
    if found:
        return f"its output says {found[0].decode()!r}"
    return None
