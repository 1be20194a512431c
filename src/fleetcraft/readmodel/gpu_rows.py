"""What is gathered of one GPU and one host, and what follows from it for the rules of classes."""

from __future__ import annotations

from dataclasses import dataclass, field

from fleetcraft.core.states import WorkerState
from fleetcraft.readmodel.gpu_queue import Served
from fleetcraft.usage.classify import Cause, Class, Verdict
from fleetcraft.usage.gputail import GpuTail
from fleetcraft.usage.tails import HostTail
from fleetcraft.usage.thresholds import Thresholds


@dataclass(slots=True, kw_only=True)
class Row:
    """One GPU while facts are gathered."""

    host: str
    uuid: str
    index: int | None = None
    name: str = ""
    memory_bytes: int | None = None
    job: str = ""
    tail: GpuTail | None = None
    served: Served | None = None
    expected: bool = False
    silence: str = ""


@dataclass(slots=True, kw_only=True)
class Place:
    """One host while facts are gathered."""

    host: str
    tail: HostTail | None = None
    rows: dict[str, Row] = field(default_factory=dict)
    jobs: list[str] = field(default_factory=list)
    served: list[Served] = field(default_factory=list)
    expected: bool = False
    silence: str = ""
    down: str = ""  # what the scheduler says of a node that does not answer it


# Their GPU shares the memory of the host, so memory in use does not tell who holds it.
_UNIFIED = ("GH200", "GB10", "GB200", "GB300", "MI300A")


def silence_of(row: Row, place: Place) -> tuple[Cause, str]:
    """Why nothing comes, as far as is known; looked at only where nothing does."""
    tail = row.tail
    word = place.tail.sampler if place.tail is not None else {}
    age = "" if tail is None else f"; the last sample is {tail.age_s:.0f} s old"
    if place.down:
        return Cause.NODE_DOWN, f"the scheduler says that the node is {place.down}{age}"
    if row.served is not None and row.served.worker.state in (WorkerState.LOST, WorkerState.STALE):
        state = row.served.worker.state.value
        return Cause.WORKER_LOST, f"its worker is {state}: {row.served.worker.reason}{age}"
    if tail is not None and tail.ended:
        why = f" ({tail.end_text})" if tail.end_text else ""
        return Cause.SAMPLER_ENDED, f"its sampler ended{why}{age}"
    if word.get("state") == "storage_full":
        return Cause.STORAGE_FULL, f"its sampler cannot write: the storage is full{age}"
    if tail is None or tail.latest is None:
        told = row.silence or _no_sampler(row.served)
        cause = Cause.NOT_MEASURED if not row.silence and is_unmeasured(row.served) else Cause.NO_SAMPLER
        return cause, told or "a worker holds it, and no sampler ever wrote about it"
    if row.silence:
        return Cause.WORKER_LOST, f"{row.silence}{age}"
    gone = _no_sampler(row.served)
    if gone:
        return Cause.NOT_MEASURED if is_unmeasured(row.served) else Cause.NO_SAMPLER, f"{gone}{age}"
    return Cause.SAMPLER_SILENT, f"its sampler fell silent without a word{age}"


def is_unmeasured(served: Served | None) -> bool:
    """True where a person told the worker to measure nothing."""
    told = served.beat.get("telemetry") if served is not None else None
    return isinstance(told, dict) and told.get("state") == "off"


def _no_sampler(served: Served | None) -> str:
    """What a worker that is well says of a sampler that does not run; empty where it runs."""
    told = served.beat.get("telemetry") if served is not None else None
    if not isinstance(told, dict) or told.get("state") not in ("off", "failed", "starting"):
        return ""
    if told["state"] == "off":
        return "its worker was told to measure nothing"
    why = f"its sampler {told['reason']}" if told.get("reason") else "its sampler does not run"
    return f"{why}, and {'is started again' if told['state'] == 'starting' else 'is not started any more'}"


def host_state(place: Place) -> str:
    """What a host's sampler says of all of it; `ok` where it says nothing."""
    state = place.tail.sampler.get("state") if place.tail is not None else None
    return state if state in ("hung", "telemetry_broken") else "ok"


def state_text(tail: GpuTail | None, place: Place) -> str:
    """Why a device is not well, and for how long at least."""
    if tail is None or tail.latest is None or tail.latest.state == "ok":
        return ""
    word = place.tail.sampler.get("reason") if place.tail is not None else ""
    reasons = sorted(set(tail.latest.reasons.values()))
    since = _bad_since_ms(tail)
    now_ms = tail.now_ms()
    age = "" if since is None or now_ms is None else f" for at least {(now_ms - since) / 1000:.0f} s"
    why = str(word or ", ".join(reasons))
    return f"{tail.latest.state}{age}{f': {why}' if why else ''}"


def _bad_since_ms(tail: GpuTail) -> int | None:
    """When the present state began, as far as was read."""
    since = None
    for series in tail.series:
        states = series.states or ["ok"] * len(series.utc_ms)
        for stamp, state in zip(series.utc_ms, states, strict=True):
            since = (stamp if since is None else since) if state != "ok" else None
    return since


def job_age_s(tail: GpuTail | None, served: Served | None) -> float | None:
    """By the host's own clock, and by the worker's word."""
    ages = []
    if tail is not None and tail.latest is not None and tail.began_ms is not None:
        ages.append((tail.latest.utc_ms - tail.began_ms) / 1000 + tail.age_s)
    if served is not None and served.worker.since_utc is not None and served.worker.age_s is not None:
        at_utc = served.beat.get("at_utc")
        if isinstance(at_utc, (int, float)):
            ages.append(at_utc - served.worker.since_utc)
    return max(ages, default=None)


def ever_active(tail: GpuTail | None, thresholds: Thresholds) -> bool | None:
    """True where it was active within the grace of its job; None where nothing is known."""
    if tail is None:
        return None
    active_ms, known_ms = tail.active_ms(max(thresholds.grace_s, thresholds.window_s), thresholds.active_pct)
    return active_ms > 0 if known_ms else None


def own_pids(tail: GpuTail) -> bool | None:
    """True where a process of ours held it; None where nothing is known."""
    known = [value for one in tail.series for value in one.columns.get("own_pids", ()) if value is not None]
    return any(known) if known else None


def held_bytes(tail: GpuTail, thresholds: Thresholds) -> float | None:
    """The most that was in use within the window, above what an unused device shows."""
    span = tail.span(thresholds.window_s)
    if span is None:
        return None
    used: list[float] = []
    for series in tail.series:
        part = series.clip(*span)
        column = part.columns.get("memory_used_bytes") or part.columns.get("own_memory_bytes") or []
        used += [value for value in column if value is not None]
    return max(0.0, max(used) - tail.baseline_bytes) if used else None


def is_unified(tail: GpuTail | None, name: str) -> bool:
    """True where memory in use says nothing about who holds the GPU."""
    told = tail.latest.reasons.get("memory_used_bytes") if tail is not None and tail.latest is not None else None
    return told == "unified_memory" or any(word in name.split() for word in _UNIFIED)


def free_s(tail: GpuTail | None, thresholds: Thresholds, verdict: Verdict) -> float | None:
    """How long it was free; only a free one has such a time."""
    if tail is None or verdict.kind is not Class.FREE_IDLE:
        return None
    return tail.free_s(thresholds.active_pct, thresholds.reserved_bytes)


def deep_coverage(tail: GpuTail | None, thresholds: Thresholds, deep_s: float) -> float | None:
    """How much was seen of all that was read back."""
    if tail is None or deep_s <= thresholds.window_s:
        return None  # that of the window is told anyway
    window = tail.window(deep_s)
    return window.observed_ms / window.length_ms if window is not None and window.length_ms else None
