"""Workers as a person sees them: what each says of itself, and what can be seen of it from here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fleetcraft.core.states import WorkerState
from fleetcraft.spool import host
from fleetcraft.spool.evidence import Liveness, ReapPolicy, Watch, judge
from fleetcraft.spool.life import DEAD, LIVE
from fleetcraft.spool.reading import LifeReading, SpoolFold

# A heartbeat is due every 5 s; one that is this old has missed several.
STALE_AFTER_S = 20.0
_SAYS = {state.value: state for state in WorkerState}


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerView:
    """One worker life. What is not known is None, with `reason` saying why."""

    life: str
    state: WorkerState
    reason: str
    host: str | None
    pid: int | None
    job_id: str | None
    age_s: float | None  # since the last heartbeat, by the two hosts' clocks
    since_utc: float | None
    cpus: int | None
    gpus: int | None
    gpu_memory_bytes: int | None  # of its largest GPU
    running: int
    done: int
    rate_per_s: float | None
    buried: bool  # nothing of it is left to do for anybody
    telemetry: str | None = None  # how its sampler stands: on, off, starting or failed; None: no GPU, or not told
    telemetry_reason: str | None = None

    @property
    def unmeasured(self) -> str:
        """Why the GPUs of a running worker are not measured, where that was not asked for; else empty."""
        if not self.is_running or self.telemetry in (None, "on", "off") or not self.telemetry_reason:
            return ""
        return f"its GPUs are not measured: the sampler {self.telemetry_reason}"

    @property
    def is_running(self) -> bool:
        """True while nothing proves that it ended."""
        return self.state not in (WorkerState.STOPPED, WorkerState.LOST)

    @property
    def is_up(self) -> bool:
        """True when it may start tasks."""
        return self.state in (WorkerState.STARTING, WorkerState.UP)

    def as_json(self) -> dict[str, Any]:
        """For the JSON document."""
        return {name: getattr(self, name) for name in self.__slots__}


def read_workers(reader: SpoolFold, now_utc: float) -> list[WorkerView]:
    """Every worker life of which more than its records is known; `reader` must be fresh.

    Left out are maintenance lives, and ended lives that were read from the shortcut of all dead ones.
    """
    return [
        view_life(reading, reader, now_utc)
        for reading in reader.lives.values()
        if (reading.identity is None and not reading.cached)
        or (reading.identity is not None and reading.identity.kind == "worker")
    ]


def view_life(reading: LifeReading, reader: SpoolFold, now_utc: float) -> WorkerView:
    """One life as seen now."""
    beat = reading.heartbeat or {}
    identity = reading.identity
    age_s = None
    at_utc = beat.get("at_utc", identity.created_utc if identity else None)
    if isinstance(at_utc, (int, float)):
        age_s = max(0.0, round(now_utc - at_utc, 1))
    state, reason = _state(reading, beat, age_s)
    cpus, gpus, memory_bytes = _capacity(beat.get("capacity"))
    is_running = state not in (WorkerState.STOPPED, WorkerState.LOST)
    running = sum(len(ranges) for (life, *_), ranges in reader.fold.open.items() if life == reading.life and is_running)
    counts = beat.get("counts")
    rate = beat.get("rate_per_s")
    sampler = beat.get("telemetry")
    told = sampler if isinstance(sampler, Mapping) else {}
    return WorkerView(
        life=reading.life,
        state=state,
        reason=reason,
        host=identity.host if identity else None,
        pid=identity.pid if identity else None,
        job_id=identity.job_id if identity else None,
        age_s=age_s if reading.state != DEAD else None,
        since_utc=identity.created_utc if identity else None,
        cpus=cpus,
        gpus=gpus,
        gpu_memory_bytes=memory_bytes,
        running=min(running, cpus) if cpus else running,
        done=sum(value for value in counts.values() if isinstance(value, int)) if isinstance(counts, Mapping) else 0,
        rate_per_s=float(rate) if isinstance(rate, (int, float)) and is_running else None,
        buried=reading.state == DEAD,
        telemetry=str(told["state"]) if told.get("state") else None,
        telemetry_reason=str(told["reason"]) if told.get("reason") else None,
    )


def _capacity(capacity: Any) -> tuple[int | None, int | None, int | None]:
    """CPUs, GPUs, and the memory of the largest GPU."""
    if not isinstance(capacity, Mapping):
        return None, None, None
    cpus, gpus = capacity.get("cpus"), capacity.get("gpus")
    devices = [gpu for gpu in gpus if isinstance(gpu, Mapping)] if isinstance(gpus, list) else []
    sizes = [gpu["memory_bytes"] for gpu in devices if isinstance(gpu.get("memory_bytes"), int)]
    return (
        cpus if isinstance(cpus, int) else None,
        len(gpus) if isinstance(gpus, list) else None,
        max(sizes, default=None),
    )


def _state(reading: LifeReading, beat: Mapping[str, Any], age_s: float | None) -> tuple[WorkerState, str]:
    said = _SAYS.get(str(beat.get("state", "")))
    why = str(beat.get("reason") or "")
    if reading.state == DEAD:
        if said is WorkerState.STOPPED or not beat:
            return WorkerState.STOPPED, why
        return WorkerState.LOST, "it died; what it held went back"
    if reading.state is None:
        return WorkerState.STARTING, "its state file is not visible yet"
    if reading.state != LIVE:
        return WorkerState.LOST, f"it died; what it held is being taken over ({reading.state})"
    if reading.identity is not None and reading.identity.boot_id == host.boot_id():
        # Only what this host can see of its own processes is used; no policy of waiting takes part.
        evidence = judge(reading.identity, Watch(0, 0.0), 0.0, ReapPolicy())
        if evidence.liveness is Liveness.DEAD:
            return WorkerState.LOST, f"{evidence.reason}; the next worker or `fleetcraft spool reap` takes over"
        if evidence.liveness is Liveness.ALIVE and beat:
            return said or WorkerState.UP, why
    if not beat:
        return WorkerState.STARTING, "no heartbeat yet"
    if age_s is not None and age_s > STALE_AFTER_S:
        return WorkerState.STALE, f"no heartbeat for {age_s:.0f} s; that proves nothing"
    return said or WorkerState.UP, why
