"""What somebody should hear about the GPUs: found in one picture, grouped by host so that one fault rings once."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from fleetcraft.core.quantities import format_bytes, format_duration
from fleetcraft.readmodel.gpu_picture import GpuNow, GpusNow, HostNow
from fleetcraft.usage.alerts import AlertBook, Finding
from fleetcraft.usage.classify import IDLE, Cause, Class
from fleetcraft.usage.thresholds import Thresholds

KINDS = (
    "idle_while_work_waits", "free_idle", "reserved_idle", "silent", "hung", "lost", "telemetry_broken", "missing",
    "throttled", "hot", "errors", "row_remap", "disk",
)  # fmt: skip
# Bits of the driver that mean trouble; a power cap under full load is how a GPU works.
_SLOWED = {0x08: "hardware slowdown", 0x20: "software thermal", 0x40: "hardware thermal", 0x80: "power brake"}
_COUNTERS = {
    "xid_events": "Xid events",
    "ecc_uncorrected": "uncorrected memory errors",
    "remapped_rows": "remapped memory rows",
}
# What a sampler notes of memory rows that went bad.
_REMAPS = {
    "row_remap_pending": "waits for a reset to replace bad memory rows",
    "row_remap_failure": "could not replace a bad memory row",
    "page_retirement_pending": "waits for a reset to put bad memory pages out of use",
}
_DISK_SLACK = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Disk:
    """A file system that matters, as full as it is."""

    path: str
    what: str
    used: float | None  # shares; None where it does not tell
    used_inodes: float | None
    free_bytes: int


def read_disk(path: str, what: str) -> Disk | None:
    """How full the file system of a path is; None where that cannot be asked."""
    try:
        told = os.statvfs(path)
    except OSError:
        return None
    usable = told.f_blocks - told.f_bfree + told.f_bavail  # as df reckons it, without what root keeps back
    return Disk(
        path=path, what=what, used=1 - told.f_bavail / usable if usable else None,
        used_inodes=1 - told.f_favail / told.f_files if told.f_files else None,
        free_bytes=told.f_bavail * told.f_frsize,
    )  # fmt: skip


def find_alerts(picture: GpusNow, book: AlertBook, disks: Sequence[Disk] = ()) -> list[Finding]:
    """Everything that holds now. Counters of the book move on."""
    found: list[Finding] = []
    for host in picture.hosts:
        found += _of_host(host, picture, book)
    for disk in disks:
        found += _of_disk(disk, picture.thresholds, book)
    return found


def blind_subjects(picture: GpusNow) -> set[str]:
    """Hosts about which this picture says nothing: what was told of their GPUs is not over because they are silent."""
    return {gpus_of(host) for host in picture.hosts if not host.reports}


def gpus_of(host: HostNow) -> str:
    """The subject of alerts about the GPUs of a host, which is not the host itself."""
    return f"GPUs of {host.host}"


def _of_host(host: HostNow, picture: GpusNow, book: AlertBook) -> Iterator[Finding]:
    limits, now_utc = picture.thresholds, picture.at_utc
    if not host.reports and not _is_unmeasured(host):
        age_s = host.age_s
        jobs = f" (jobs {', '.join(host.jobs)})" if host.jobs else ""
        yield Finding(
            key=f"silent:{host.host}", kind="silent", subject=host.host,
            text=f"{host.host} is silent{jobs}: {host.reason}",
            # One that never reported may be starting; one that did has been silent for long enough already.
            hold_s=limits.silent_s if age_s is None else 0.0,
            since_utc=None if age_s is None else now_utc - age_s,
            numbers={"age_s": age_s, "gpus": len(host.gpus)},
        )  # fmt: skip
    yield from _idle(host, limits, now_utc)
    for kind in (Class.HUNG, Class.LOST, Class.BROKEN):
        some = [gpu for gpu in host.gpus if gpu.kind is kind]
        if some:
            yield _finding(host, kind.value.replace("-", "_"), some, kind.value)
    if host.reports:
        yield from _group(
            host, "missing", lambda gpu: not gpu.uuid and not gpu.reports, "allocated and not seen by anybody"
        )
    yield from _group(host, "throttled", _is_slowed, "slowed down", hold_s=limits.throttle_s)
    yield from _group(
        host, "hot", lambda gpu: gpu.reports and gpu.values.get("temperature_c", 0.0) >= limits.hot_c,
        f"at {limits.hot_c:g} C or more", hold_s=limits.throttle_s,
    )  # fmt: skip
    noted = host.sampler.get("notes")
    for gpu in host.gpus:
        yield from _errors(host, gpu, book)
        if gpu.reports and isinstance(noted, Mapping):
            yield from _remaps(host, gpu, noted.get(gpu.uuid))


def _is_unmeasured(host: HostNow) -> bool:
    """True where nothing comes because a person wanted it so."""
    return bool(host.gpus) and all(gpu.verdict.cause is Cause.NOT_MEASURED for gpu in host.gpus)


def _idle(host: HostNow, limits: Thresholds, now_utc: float) -> Iterator[Finding]:
    """Two kinds: work waits that it could run, and idle for too long whatever the reason."""
    yield from _group(
        host, "idle_while_work_waits",
        lambda gpu: gpu.kind in (Class.FREE_IDLE, Class.RESERVED_IDLE) and gpu.verdict.cause is Cause.WORK_WAITS,
        "idle while work waits", hold_s=limits.idle_with_work_s,
    )  # fmt: skip
    for name, kinds, limit_s in (
        ("free_idle", (Class.FREE_IDLE,), limits.nudge_free_s),
        ("reserved_idle", (Class.RESERVED_IDLE, Class.WAITING), limits.nudge_reserved_s),
    ):
        some = [gpu for gpu in host.gpus if gpu.kind in kinds and gpu.idle_s is not None and gpu.idle_s >= limit_s]
        if some:
            longest_s = max(gpu.idle_s or 0.0 for gpu in some)
            what = f"{kinds[0].value} for up to {format_duration(longest_s)} (limit {format_duration(limit_s)})"
            yield _finding(host, name, some, what, since_utc=now_utc - longest_s)


def _group(
    host: HostNow, kind: str, holds: Callable[[GpuNow], bool], what: str, *, hold_s: float = 0.0
) -> Iterator[Finding]:
    some = [gpu for gpu in host.gpus if holds(gpu)]
    if some:
        yield _finding(host, kind, some, what, hold_s=hold_s)


def _finding(
    host: HostNow, kind: str, gpus: Sequence[GpuNow], what: str, *, hold_s: float = 0.0, since_utc: float | None = None
) -> Finding:
    names = ", ".join(str(gpu.index) for gpu in gpus if gpu.index is not None)
    why = next((gpu.verdict.text for gpu in gpus if gpu.kind in IDLE or not gpu.reports or gpu.verdict.rule == 2), "")
    if kind == "throttled":
        why = ", ".join(sorted({word for gpu in gpus for word in _slowed(gpu)}))
    jobs = sorted({gpu.job for gpu in gpus if gpu.job})
    job = f" (job {', '.join(jobs)})" if jobs else ""
    return Finding(
        key=f"{kind}:{host.host}", kind=kind, subject=gpus_of(host), hold_s=hold_s, since_utc=since_utc,
        text=f"{host.host}{job}: GPU {names or '?'} {what}{f': {why}' if why and why != what else ''}",
        numbers={"gpus": len(gpus), "jobs": jobs, "uuids": [gpu.uuid for gpu in gpus]},
    )  # fmt: skip


def _slowed(gpu: GpuNow) -> list[str]:
    mask = int(gpu.values.get("throttle_mask", 0.0))
    return [word for bit, word in _SLOWED.items() if mask & bit]


def _is_slowed(gpu: GpuNow) -> bool:
    return gpu.reports and bool(_slowed(gpu))


def _errors(host: HostNow, gpu: GpuNow, book: AlertBook) -> Iterable[Finding]:
    grown = book.growth(gpu.key, {name: gpu.values.get(name) for name in _COUNTERS})
    if not grown:
        return
    said = ", ".join(f"{number:.0f} new {_COUNTERS[name]}" for name, number in grown.items())
    xid = gpu.values.get("xid")
    last = f" (the last Xid is {xid:.0f})" if xid is not None and "xid_events" in grown else ""
    yield Finding(
        key=f"errors:{gpu.key}", kind="errors", subject=gpus_of(host),
        text=f"{host.host}: GPU {gpu.index} had {said}{last}", numbers={**grown, "xid": xid, "uuid": gpu.uuid},
    )  # fmt: skip


def _remaps(host: HostNow, gpu: GpuNow, notes: object) -> Iterator[Finding]:
    said = [text for note, text in _REMAPS.items() if isinstance(notes, list) and note in notes]
    if said:
        yield Finding(
            key=f"row_remap:{gpu.key}", kind="row_remap", subject=gpus_of(host),
            text=f"{host.host}: GPU {gpu.index} {' and '.join(said)}; tell the site", numbers={"uuid": gpu.uuid},
        )  # fmt: skip


def _of_disk(disk: Disk, limits: Thresholds, book: AlertBook) -> Iterator[Finding]:
    key = f"disk:{disk.path}"
    entry = book.entries.get(key)
    # Once told, it must become clearly better before it is over.
    edge = limits.disk_full - (_DISK_SLACK if entry is not None and entry.told_utc is not None else 0.0)
    for share, what in ((disk.used, "of its space"), (disk.used_inodes, "of its inodes")):
        if share is not None and share >= edge:
            yield Finding(
                key=key, kind="disk", subject=disk.path,
                text=f"the storage of {disk.what} ({disk.path}) has used {100 * share:.0f} % {what}; "
                f"{format_bytes(disk.free_bytes)} are free",
                numbers={"used": round(share, 4), "free_bytes": disk.free_bytes},
            )  # fmt: skip
            return
