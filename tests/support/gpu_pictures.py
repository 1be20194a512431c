"""Pictures of GPUs for tests: segments of a given age, workers as heartbeats have them, and finished pictures."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fleetcraft.core.states import WorkerState
from fleetcraft.readmodel.gpu_now import read_now
from fleetcraft.readmodel.gpu_picture import GpusNow, HostNow
from fleetcraft.readmodel.gpu_queue import LaneNow, QueueNow, Served
from fleetcraft.readmodel.lives import WorkerView
from fleetcraft.usage.tails import Now, Tails
from fleetcraft.usage.thresholds import Thresholds
from tests.support.telemetry_files import START_MS, steady, write_segment

GIB = 1 << 30
BUSY = {
    "util_pct": 95.0,
    "memory_used_bytes": 60.0 * GIB,
    "memory_total_bytes": 80.0 * GIB,
    "power_w": 600.0,
    "own_pids": 1,
}
HELD = {**BUSY, "util_pct": 0.0, "power_w": 90.0}
FREE = {"util_pct": 0.0, "memory_used_bytes": 0.0, "memory_total_bytes": 80.0 * GIB, "power_w": 80.0, "own_pids": 0}
HOUR = range(0, 3600, 10)


def segment(
    root: Path, host: str, *gpus: Mapping[str, float], seconds: range = HOUR, age_s: float = 2.0, **more: Any
) -> Path:
    """An hour of the same values for each GPU; the last of them came `age_s` ago by the file server's clock."""
    rows = sorted(
        row
        for n, values in enumerate(gpus)
        for row in ((second, n, values) for second, _, _ in steady(seconds, values))
    )
    path = write_segment(root, host, sorted(rows, key=lambda row: row[:2]), gpus=len(gpus), **more)
    at = time.time() - age_s
    os.utime(path, (at, at))
    return path


def served(
    host: str, uuids: Sequence[str], *, state: WorkerState = WorkerState.UP, reason: str = "", job: str = "7",
    used: float = 0.0, running: Sequence[Mapping[str, Any]] = (), cpus: int = 8, memory_bytes: int = 80 * GIB,
    **beat: Any,
) -> Served:  # fmt: skip
    """A worker with these GPUs."""
    worker = WorkerView(
        life=f"{host}-life", state=state, reason=reason, host=host, pid=1, job_id=job, age_s=1.0, since_utc=None,
        cpus=cpus, gpus=len(uuids), gpu_memory_bytes=memory_bytes, running=len(running), done=0, rate_per_s=None,
        buried=False,
    )  # fmt: skip
    listed = [{"uuid": uuid, "name": "H100", "memory_bytes": memory_bytes, "used": used} for uuid in uuids]
    content = {"capacity": {"cpus": cpus, "used_cpus": 0, "gpus": listed}, "running": list(running), **beat}
    return Served(worker=worker, beat=content)


def queue_of(*lanes: LaneNow, served: Sequence[Served] = (), **more: Any) -> QueueNow:
    """A queue with these lanes."""
    return QueueNow(lanes={lane.lane: lane for lane in lanes}, served=served, **more)


def picture(root: Path, *, deep_s: float = 3600.0, limits: Thresholds | None = None, **more: Any) -> GpusNow:
    """What the telemetry in `root` shows now, joined with the rest."""
    now = Now(utc_s=time.time(), source="file_server")
    tails = Tails(deep_s + 90).read(str(root), now) if root.is_dir() else {}
    return read_now(tails, limits or Thresholds(), at_utc=START_MS / 1000 + 3600, deep_s=deep_s, **more)


def host(seen: GpusNow, name: str) -> HostNow:
    """One host of a picture."""
    return next(host for host in seen.hosts if host.host == name)


def kinds(seen: GpusNow) -> list[str]:
    """The classes, by host and GPU."""
    return [gpu.kind.value for gpu in seen.gpus]
