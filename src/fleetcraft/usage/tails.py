"""The newest part of every host's telemetry: what each GPU showed lately, and how old that is.

Age is told by one clock, the file server's: the time of a file against that of a file made just now. The clocks of
hosts may differ from it and from each other; a host's own stamps are only ever compared among themselves.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fleetcraft.telemetry.fields import NAMES
from fleetcraft.telemetry.segment import decode_reasons
from fleetcraft.telemetry.segment_read import number
from fleetcraft.usage.api import Context, Gpu
from fleetcraft.usage.gputail import GpuTail, Latest
from fleetcraft.usage.pieces import open_file, read_all, read_lines
from fleetcraft.usage.segmentread import Statement, gpu_of, read_segment, stamp_of
from fleetcraft.usage.series import Series, hold_all
from fleetcraft.usage.sources import SEGMENT, Source, in_root

# A segment is rotated after a day, so an older one is not written any more.
_LIVE_FOR_MS = 2 * 86_400_000
_REACH_MS = 90_000
_END_BYTES = 1 << 14


@dataclass(frozen=True, slots=True, kw_only=True)
class Now:
    """The time at the file server, and where it is from."""

    utc_s: float
    source: str  # file_server, or local_clock where nothing may be written there


@dataclass(slots=True, kw_only=True)
class HostTail:
    """One host. Without GPUs where nothing was written yet; `sampler` is what its sampler says of itself."""

    host: str
    age_s: float | None = None  # of the newest file
    gpus: dict[Gpu, GpuTail] = field(default_factory=dict)
    statements: list[Statement] = field(default_factory=list)
    sampler: Mapping[str, Any] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    bytes_read: int = 0


def server_now(root: str) -> Now:
    """The time of a file that is made now, and removed again."""
    path = os.path.join(root, f".now-{os.getpid()}-{os.urandom(4).hex()}")
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.write(descriptor, b"\n")
            return Now(utc_s=os.fstat(descriptor).st_mtime, source="file_server")
        finally:
            os.close(descriptor)
            os.unlink(path)
    except OSError:
        return Now(utc_s=time.time(), source="local_clock")


@dataclass(slots=True)
class Tails:
    """Reads the ends of files again and again; what did not change is not read again."""

    horizon_s: float
    _known: dict[str, tuple[tuple[int, int, float], _Part]] = field(default_factory=dict)

    def read(self, root: str, now: Now, hosts: Iterable[str] | None = None) -> dict[str, HostTail]:
        """Every host of a telemetry root."""
        found: dict[str, HostTail] = {}
        by_host: dict[str, list[Source]] = {}
        for source in in_root(root, hosts):
            by_host.setdefault(source.host, []).append(source)
        for host, sources in by_host.items():
            found[host] = self._host(host, sources, now, self.horizon_s)
        try:
            with os.scandir(root) as entries:
                names = [entry.name for entry in entries if entry.is_dir() and not entry.name.startswith(".")]
        except OSError:
            names = []
        for name in names:
            if name not in found and (hosts is None or name in set(hosts)):
                found[name] = HostTail(host=name)
        for host, tail in found.items():
            tail.sampler = _sampler_word(os.path.join(root, host))
        return found

    def _host(self, host: str, sources: Sequence[Source], now: Now, horizon_s: float) -> HostTail:
        tail = HostTail(host=host)
        parts: dict[Gpu, list[Series]] = {}
        ages: list[float] = []
        for source, age_s in self._live(sources, now, horizon_s):
            try:
                part = self._part(source.path, horizon_s)
            except (OSError, ValueError) as error:
                tail.problems.append(f"{source.path}: {error}")
                continue
            ages.append(age_s)
            tail.statements += part.statements
            tail.bytes_read += part.bytes_read
            for gpu, series in part.series.items():
                parts.setdefault(gpu, []).append(series)
            for gpu, told in part.gpus.items():
                _newer(tail, gpu, told, age_s)
        tail.age_s = min(ages, default=None)
        for gpu, some in parts.items():
            known = tail.gpus.get(gpu)
            if known is None:
                continue
            known.series = hold_all([one.take(0, len(one.utc_ms)) for one in some])
            job = known.context.job
            # What another job measured here before is not a gap of this one.
            begins = [one.began_ms for one in some if one.began_ms is not None and one.context.job == job]
            known.began_ms = min(begins, default=None)
        return tail

    def _live(self, sources: Sequence[Source], now: Now, horizon_s: float) -> list[tuple[Source, float]]:
        """The files that may hold something of the horizon, and always the newest, with their ages; oldest first."""
        segments = sorted((one for one in sources if one.kind == SEGMENT), key=lambda one: one.start_ms or 0)
        chosen: list[tuple[Source, float]] = []
        for place, source in enumerate(reversed(segments)):
            if place and (source.start_ms or 0) < (segments[-1].start_ms or 0) - _LIVE_FOR_MS:
                break
            try:
                age_s = max(0.0, now.utc_s - os.stat(source.path).st_mtime)
            except OSError:
                continue
            if not place or age_s <= horizon_s + _REACH_MS / 1000:
                chosen.append((source, age_s))
        return chosen[::-1]

    def _part(self, path: str, horizon_s: float) -> _Part:
        status = os.stat(path)
        mark = (status.st_size, status.st_mtime_ns, horizon_s)
        known = self._known.get(path)
        if known is not None and known[0] == mark:
            return known[1]
        part = _read_part(path, horizon_s)
        self._known[path] = (mark, part)
        return part


@dataclass(slots=True, kw_only=True)
class _Told:
    """What one file says of a GPU."""

    context: Context
    latest: Latest | None
    device: Mapping[str, Any]
    ended: bool
    end_text: str


@dataclass(slots=True, kw_only=True)
class _Part:
    """The end of one file."""

    gpus: dict[Gpu, _Told]
    series: dict[Gpu, Series]
    statements: list[Statement]
    bytes_read: int


def _newer(tail: HostTail, gpu: Gpu, told: _Told, age_s: float) -> None:
    known = tail.gpus.get(gpu)
    before = known.latest if known is not None else None
    if before is not None and (told.latest is None or told.latest.utc_ms < before.utc_ms):
        return
    baseline, limit = told.device.get("baseline_bytes"), told.device.get("power_limit_w")
    tail.gpus[gpu] = GpuTail(
        gpu=gpu, context=told.context, latest=told.latest, age_s=age_s, ended=told.ended, end_text=told.end_text,
        baseline_bytes=float(baseline) if isinstance(baseline, (int, float)) else 0.0,
        power_limit_w=float(limit) if isinstance(limit, (int, float)) else None,
        parent=str(told.device.get("parent") or ""),
    )  # fmt: skip


def _read_part(path: str, horizon_s: float) -> _Part:
    last_ms = _last_stamp(path)
    since_ms = None if last_ms is None else last_ms - round(horizon_s * 1000) - _REACH_MS
    lines = read_lines(path, stamp_of, since_ms, None)
    segment = read_segment(lines.head, lines.body, path, os.path.basename(os.path.dirname(path)))
    devices = segment.numbered()
    names = lines.head.decode("utf-8", "replace").split("\n")[1].split(",")
    latest = _latest(lines.body, names, set(devices))
    ends = [one for one in segment.statements if one.kind == "end"]
    by_gpu = {one.gpu: one for one in segment.series}
    told = {}
    for n, device in devices.items():
        gpu = gpu_of(segment.host, device, n)
        context = by_gpu[gpu].context if gpu in by_gpu else _named(segment.context, device)
        told[gpu] = _Told(
            context=context, latest=latest.get(n), device=device, ended=bool(ends),
            end_text=str(ends[-1].body.get("why") or "") if ends else "",
        )  # fmt: skip
    read = sum(piece.end - piece.start for piece in lines.pieces)
    return _Part(gpus=told, series=by_gpu, statements=segment.statements, bytes_read=read)


def _named(context: Context, device: Mapping[str, Any]) -> Context:
    from dataclasses import replace

    return replace(context, device_name=str(device.get("name") or ""))


def _last_stamp(path: str) -> int | None:
    with open(open_file(path), "rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - _END_BYTES))
        data = file.read()
    whole = data[: data.rfind(b"\n") + 1]
    for line in reversed(whole.split(b"\n")):
        stamp = stamp_of(line)
        if stamp is not None:
            return stamp
    return None


def _latest(body: bytes, names: Sequence[str], wanted: set[str]) -> dict[str, Latest]:
    place = {name: at for at, name in enumerate(names)}
    found: dict[str, Latest] = {}
    if not {"utc_ms", "gpu", "state"} <= set(place):
        return found
    end = len(body)
    while end > 0 and len(found) < len(wanted):
        begin = body.rfind(b"\n", 0, end - 1) + 1
        line, end = body[begin:end].decode("utf-8", "replace").rstrip("\n"), begin
        cells = line.split(",")
        if line.startswith("#") or len(cells) != len(names) or not cells[place["utc_ms"]].isdigit():
            continue
        n = cells[place["gpu"]]
        if n in wanted and n not in found:
            values = {
                name: value for name in NAMES if name in place and (value := number(cells[place[name]])) is not None
            }
            reasons = decode_reasons(cells[place["reasons"]]) if "reasons" in place else {}
            found[n] = Latest(
                utc_ms=int(cells[place["utc_ms"]]), state=cells[place["state"]], values=values,
                reasons={name: reason.value for name, reason in reasons.items()},
            )  # fmt: skip
    return found


def _sampler_word(folder: str) -> Mapping[str, Any]:
    """The newest of the state files of a host's samplers, with what any of them notes of its devices."""
    newest: tuple[float, Mapping[str, Any]] | None = None
    notes: dict[str, Any] = {}
    try:
        names = [name for name in os.listdir(folder) if name.startswith("sampler") and name.endswith(".json")]
    except OSError:
        return {}
    for name in names:
        path = os.path.join(folder, name)
        try:
            at = os.stat(path).st_mtime
            told = json.loads(read_all(path))
        except (OSError, ValueError):
            continue
        if not isinstance(told, dict):
            continue
        if isinstance(told.get("notes"), dict) and told.get("state") != "ended":
            notes.update(told["notes"])
        if newest is None or at > newest[0]:
            newest = (at, told)
    return {} if newest is None else {**newest[1], "notes": notes}
