"""The worker's sampler: a helper process that measures the GPUs as long as the worker lives.

The worker reads nothing of what it measures and waits for nothing, so a driver that hangs costs the worker nothing.
The pipe between them is never written to: its end is how the sampler knows that the worker is gone, however it went.
"""

from __future__ import annotations

import fcntl
import json
import os
import sys
from dataclasses import dataclass
from typing import Any

import fleetcraft
from fleetcraft.core.clock import Clock
from fleetcraft.core.errors import EXIT_USAGE
from fleetcraft.spool.spool import Spool
from fleetcraft.workers.child import Supervisor
from fleetcraft.workers.options import WorkerOptions

# The first tasks go first, and a worker that lives for a moment needs none.
START_AFTER_S = 1.0
# After a crash it is started again, each time later; after the last of these it is left alone.
BACKOFF_S = (1.0, 10.0, 60.0, 300.0)
# One that ran so long was well: what happened before is forgotten.
WELL_AFTER_S = 3600.0
END_GRACE_S = 2.0
_MOST_SAID = 300


def telemetry_root(spool_root: str) -> str:
    """Where the samples of a spool's nodes are."""
    return os.path.join(spool_root, "telemetry")


def _high(descriptor: int) -> int:
    """The same above the three standard ones, which a worker may have been started without."""
    if descriptor > 2:
        return descriptor
    try:
        return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 3)
    finally:
        os.close(descriptor)


@dataclass(slots=True)
class SamplerChild:
    """Starts it, notices its end, starts it again a few times, and says how it stands."""

    supervisor: Supervisor
    clock: Clock
    spool: Spool
    options: WorkerOptions
    life: str
    host: str
    job: str
    has_gpus: bool
    next_s: float = float("inf")  # when `step` has something to do
    pid: int | None = None
    starts: int = 0
    reason: str = ""
    _failures: int = 0
    _started_s: float = 0.0
    _pipe: int = -1
    _said: int = -1

    def __post_init__(self) -> None:
        if self.has_gpus and self.options.telemetry_s is not None:
            self.next_s = self.clock.mono() + START_AFTER_S

    def step(self, now_s: float) -> str | None:
        """Start it when that is due, and notice its end; returns what a person should hear."""
        if self.pid is None:
            return self._start(now_s) if now_s >= self.next_s else None
        status = self.supervisor.helper_status(self.pid)
        return None if status is None else self._on_end(status, now_s)

    def _start(self, now_s: float) -> str | None:
        reader, self._pipe = map(_high, os.pipe2(os.O_CLOEXEC))
        self._said = _high(os.memfd_create("sampler", os.MFD_CLOEXEC))
        place = os.path.dirname(os.path.dirname(os.path.abspath(fleetcraft.__file__ or "")))
        path = os.pathsep.join(part for part in (place, os.environ.get("PYTHONPATH", "")) if part)
        # Its working directory is a person's, and what lies there must not be taken for a module.
        argv = [sys.executable, "-P", "-m", "fleetcraft.telemetry.sampler", json.dumps(self._told())]
        try:
            self.pid = self.supervisor.start_helper(argv, {**os.environ, "PYTHONPATH": path}, reader, self._said)
        except OSError as error:
            self._close()
            return self._later(f"cannot be started: {error}", now_s)
        finally:
            os.close(reader)
        self.starts += 1
        self._started_s, self.reason, self.next_s = now_s, "", float("inf")
        return None

    def _told(self) -> dict[str, Any]:
        environment = os.environ
        return {
            "root": telemetry_root(os.path.abspath(self.spool.layout.root)),
            "interval_s": self.options.telemetry_s,
            "gpus": self.options.gpus,
            "host": self.host,
            "job": self.job,
            "step": environment.get("SLURM_STEP_ID", ""),
            "fleet": environment.get("FLEETCRAFT_FLEET", ""),
            "spool": os.path.basename(os.path.abspath(self.spool.layout.root)),
            "life": self.life,
            "shared": self.spool.files.shared,
            "minded": True,
            "wait": True,
        }

    def _on_end(self, status: int, now_s: float) -> str | None:
        code = os.waitstatus_to_exitcode(status)
        said = self._last_words()
        self.pid = None
        self._close()
        if now_s - self._started_s >= WELL_AFTER_S:
            self._failures = 0
        how = f"ended with exit code {code}" if code >= 0 else f"was ended by signal {-code}"
        if code == EXIT_USAGE:
            self._failures = len(BACKOFF_S)  # it would say the same again
        return self._later(f"{how}{f': {said}' if said else ''}", now_s)

    def _later(self, reason: str, now_s: float) -> str:
        self.reason = reason
        if self._failures >= len(BACKOFF_S):
            self.next_s = float("inf")
            return f"the GPU sampler {reason}; GPUs are not measured any more"
        wait_s = BACKOFF_S[self._failures]
        self._failures += 1
        self.next_s = now_s + wait_s
        return f"the GPU sampler {reason}; it is started again in {wait_s:g} s"

    def _last_words(self) -> str:
        size = os.fstat(self._said).st_size
        text = os.pread(self._said, _MOST_SAID, max(0, size - _MOST_SAID)).decode("utf-8", "replace")
        return " ".join(text.split())

    def describe(self) -> dict[str, Any] | None:
        """For the heartbeat; None where nothing is measured and nothing should be."""
        if not self.has_gpus:
            return None
        if self.options.telemetry_s is None:
            state = "off"
        elif self.pid is not None:
            state = "on"
        else:
            state = "failed" if self.next_s == float("inf") else "starting"
        told: dict[str, Any] = {"state": state, "interval_s": self.options.telemetry_s}
        if self.pid is not None:
            told["pid"] = self.pid
            told["since_s"] = round(self.clock.mono() - self._started_s, 1)
        if self.starts > 1:
            told["starts"] = self.starts
        if self.reason:
            told["reason"] = self.reason[:_MOST_SAID]
        return told

    def _close(self) -> None:
        for descriptor in (self._pipe, self._said):
            if descriptor >= 0:
                os.close(descriptor)
        self._pipe = self._said = -1

    def close(self) -> None:
        """Let it end. One that sits in the driver for ever is left to the kernel."""
        pid, self.pid, self.next_s = self.pid, None, float("inf")
        self._close()
        if pid is not None:
            self.supervisor.end_helper(pid, END_GRACE_S)
