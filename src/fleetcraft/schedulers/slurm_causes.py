"""Why a job ended: from its state, its exit column and the last lines of its log.

Slurm's exit column alone proves nothing: it is 0:0 for jobs that ran out of time or lost their node, and it takes 128
from every larger code. The state decides, and our own exit record knows better.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from fleetcraft.schedulers.slurm_states import read_state

_EXIT = re.compile(r"([0-9]{1,5}):([0-9]{1,5})")
_BY_SIGNAL = {4: "illegal_instruction", 6: "abort", 7: "bus_error", 8: "arithmetic", 9: "killed", 11: "segfault"}
_BY_SIGNAL |= {15: "terminated", 24: "cpu_time", 25: "file_size", 53: "stdio", 125: "oom"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ExitReading:
    """One exit column, read in the light of the state."""

    exit: int | None = None
    signal: int | None = None
    cause: str | None = None
    success: bool | None = None  # None: it has not ended


def split_exit(text: str) -> tuple[int | None, int | None]:
    """The two numbers of `1:0`: exit code and signal."""
    match = _EXIT.fullmatch(text.strip())
    return (int(match[1]), int(match[2])) if match else (None, None)


def read_exit(state: str, exit_text: str) -> ExitReading:
    """What ended the job. Only a COMPLETED one succeeded, whatever its exit column says."""
    code, signal = split_exit(exit_text)
    reading = read_state(state)
    if reading.outcome is None:
        return ExitReading(exit=code, signal=signal)
    if reading.outcome == "completed":
        return ExitReading(exit=code, signal=signal, success=True)
    cause = reading.outcome
    if cause == "failed":
        cause = "app" if code else _BY_SIGNAL.get(signal or 0, "signal" if signal else "app")
    return ExitReading(exit=code, signal=signal, cause=cause, success=False)


def is_bad(exit_text: str) -> bool:
    """True when an exit column tells of something that went wrong."""
    code, signal = split_exit(exit_text)
    return bool(code or signal)


_LOG: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (cause, re.compile(pattern, re.IGNORECASE))
    for cause, pattern in (
        ("timeout", r"DUE TO TIME LIMIT"),
        ("preempted", r"DUE TO PREEMPTION"),
        ("requeued", r"DUE TO JOB REQUEUE"),
        ("node_fail", r"DUE TO NODE FAILURE|node failure on "),
        # The memory of a GPU is another thing: more of the node's would not help.
        ("gpu_oom", r"CUDA(?: error:)? out of memory|CUDA_ERROR_OUT_OF_MEMORY|cuda\.OutOfMemoryError"),
        ("oom", r"oom[-_ ]kill(?:ed)?\b|out[ -]of[ -]memory|exceeded (?:(?:job|step|its|virtual) )?memory limit"),
        ("stdio", r"could not open (?:stdout|stderr|stdin) file|unable to open (?:stdout|stderr|output) file"),
        ("launch_failed", r"task launch failed|launch failed requeued held|Prolog(?: hook)? failed"),
        ("cancelled", r"\*\*\* (?:JOB|STEP) \S+ ON \S+ CANCELLED AT \S+ \*\*\*"),
    )
)


def log_cause(text: str) -> str | None:
    """What the end of a job's log tells when accounting does not; None when it tells nothing."""
    for cause, pattern in _LOG:
        if pattern.search(text):
            return cause
    return None


_RETRY = {
    "node_fail": "same_resources",
    "boot_fail": "same_resources",
    "preempted": "same_resources",
    "launch_failed": "same_resources",
    "stdio": "same_resources",  # once the folder of its output exists
    "requeued": "same_resources",
    "oom": "more_memory",
    "timeout": "more_time",
}


def retry_after(cause: str | None) -> str:
    """What a second try would need: same_resources, more_memory, more_time, or never by itself."""
    return _RETRY.get(cause or "", "never")


def exclude_nodes_hint(cause: str | None) -> bool:
    """True when the next try had better go around the nodes of this one."""
    return cause in ("node_fail", "boot_fail")
