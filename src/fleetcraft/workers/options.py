"""How one worker is to run: everything a person may choose, checked once, before anything is touched."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from fleetcraft.core.errors import UsageError
from fleetcraft.core.quantities import parse_duration_s
from fleetcraft.telemetry.interval import check_interval_s

DEFAULT_IDLE_EXIT_S = 600.0
DEFAULT_DRAIN_BEFORE_S = 120.0
DEFAULT_JOB_GRACE_S = 30.0
DEFAULT_TELEMETRY_S = 10.0
NEVER = "never"
WATCHES = ("auto", "poll")
# A number this large is a time since the epoch, not a duration: it stands for more than thirty years.
_EPOCH_FROM_S = 1e9
_GPUS = re.compile(r"auto|none|[0-9]{1,4}|simulated:[1-9][0-9]{0,3}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """The choices for one worker life. Raises UsageError when one of them cannot be."""

    spool: str
    cpus: int | None = None  # None: all that this process may use
    gpus: str = "auto"  # auto, none, a count, or simulated:N
    idle_exit_s: float | None = DEFAULT_IDLE_EXIT_S  # None: never; 0: as soon as nothing can ever run here
    deadline_utc: float | None = None  # when this machine is taken away
    drain_before_s: float = DEFAULT_DRAIN_BEFORE_S  # how long before the deadline the drain begins
    max_tasks: int | None = None
    watch: str = "auto"
    lease_s: float | None = None  # None: silence alone never proves a death
    job_id: str | None = None
    # How long the heartbeat of another job's worker stands still before the scheduler is asked, and how long its word
    # that the job ended must hold before the worker's tasks are taken over.
    job_grace_s: float = DEFAULT_JOB_GRACE_S
    pass_env: tuple[str, ...] = ()
    heartbeat_s: float = 5.0
    kill_grace_s: float = 10.0
    crash_limit: int = 3
    telemetry_s: float | None = DEFAULT_TELEMETRY_S  # how often GPUs are measured; None: never
    quiet: bool = False

    def __post_init__(self) -> None:
        if not self.spool:
            raise UsageError("A worker needs a spool.", hint="Name it with --spool.")
        if self.cpus is not None and not 1 <= self.cpus <= 100_000:
            raise UsageError(f"--cpus {self.cpus} must be a whole number from 1 to 100000.")
        if not _GPUS.fullmatch(self.gpus):
            raise UsageError(f"--gpus {self.gpus!r} must be auto, none, a number, or simulated:N.")
        if self.watch not in WATCHES:
            raise UsageError(f"--watch {self.watch!r} must be one of {', '.join(WATCHES)}.")
        if self.max_tasks is not None and self.max_tasks < 1:
            raise UsageError(f"--max-tasks {self.max_tasks} must be one or more.")
        self._check_times()
        for name in self.pass_env:
            if not _VARIABLE.fullmatch(name):
                raise UsageError(f"--pass-env {name!r} is not a valid variable name.")
        if self.crash_limit < 1:
            raise UsageError(f"The crash limit {self.crash_limit} must be one or more.")
        if self.telemetry_s is not None:
            check_interval_s(self.telemetry_s, "--telemetry")

    def _check_times(self) -> None:
        # The three periods are one policy: a lease shorter than two beats would take living workers for dead.
        if not self.heartbeat_s > 0 or not self.kill_grace_s >= 0 or not self.drain_before_s >= 0:
            raise UsageError("The heartbeat period must be above zero, and the graces zero or more.")
        if not (math.isfinite(self.job_grace_s) and self.job_grace_s > 0):
            raise UsageError(f"The job grace {self.job_grace_s!r} is not a time above zero.")
        if self.lease_s is not None and self.lease_s < 2 * self.heartbeat_s:
            raise UsageError(
                f"--lease {self.lease_s:g}s is shorter than two heartbeats ({2 * self.heartbeat_s:g}s).",
                hint="Choose at least twice the directory cache time of the file system plus two heartbeats.",
            )
        for value in (self.idle_exit_s, self.deadline_utc):
            if value is not None and not (math.isfinite(value) and value >= 0):
                raise UsageError(f"{value!r} is not a time of zero or more seconds.")


def parse_idle_exit_s(text: str) -> float | None:
    """Seconds, or None for `never`. Raises UsageError."""
    return None if text == NEVER else parse_duration_s(text, "--idle-exit")


def parse_telemetry_s(text: str) -> float | None:
    """Seconds between two samples, or None for `off`. Raises UsageError."""
    if text in ("on", "off"):
        return DEFAULT_TELEMETRY_S if text == "on" else None
    return check_interval_s(parse_duration_s(text, "--telemetry"), "--telemetry")


def parse_deadline_utc(text: str, now_utc: float, what: str = "--deadline") -> float:
    """A moment from a duration from now (`2h`), a time since the epoch, or an ISO time (local unless it names a zone).

    Raises UsageError.
    """
    raw = text.strip()
    if re.fullmatch(r"\d+(\.\d+)?", raw) and float(raw) >= _EPOCH_FROM_S:
        return float(raw)
    if re.match(r"\d{4}-\d{2}-\d{2}", raw):
        from datetime import datetime

        try:
            return datetime.fromisoformat(raw).timestamp()
        except (ValueError, OverflowError, OSError):
            raise UsageError(
                f"{what} {text!r} is not a time.", hint="Write 2h, or 2031-05-04T12:00:00+02:00."
            ) from None
    return now_utc + parse_duration_s(raw, what)


def deadline_from_environment(environment: dict[str, str], now_utc: float) -> float | None:
    """The deadline that the surroundings set: ours first, then the one that Slurm gives to a job."""
    for name in ("FLEETCRAFT_DEADLINE", "SLURM_JOB_END_TIME"):
        text = environment.get(name, "").strip()
        if text:
            return parse_deadline_utc(text, now_utc, name)
    return None


def job_grace_from_environment(environment: dict[str, str]) -> float:
    """The grace that the surroundings set, for sites whose scheduler answers faster or slower than most."""
    text = environment.get("FLEETCRAFT_JOB_GRACE", "").strip()
    return parse_duration_s(text, "FLEETCRAFT_JOB_GRACE") if text else DEFAULT_JOB_GRACE_S
