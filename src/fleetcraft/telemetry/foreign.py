"""Logs of GPUs that another tool wrote, in columns, in the order of the file; no line is dropped without a word.

A clean log goes through a fast path that proves on the way that it is clean: stamps are stamps, numbers are numbers
within their bounds, and every line has as many cells as the header. Whatever fails there is read line by line.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from typing import TYPE_CHECKING

from fleetcraft.telemetry.api import Reason
from fleetcraft.telemetry.foreign_bursts import backward, bursts, doubled, has_bursts, interval_of
from fleetcraft.telemetry.foreign_columns import BARE, DATE, INDEX, NAME, STAMP, TIME, UUID, columns_of
from fleetcraft.telemetry.foreign_fast import read_clean
from fleetcraft.telemetry.foreign_log import LABELS, Finding, Log, careful_column, device_of, say_clock
from fleetcraft.telemetry.foreign_scan import Part, Scan, delimiter_of, scan
from fleetcraft.telemetry.foreign_time import Clock
from fleetcraft.telemetry.values import field_of

if TYPE_CHECKING:
    from datetime import tzinfo

_ERRORS = ("Failed to initialize NVML", "NVIDIA-SMI has failed", "Unable to determine the device handle", "No devices")
_HOUR_MS = 3_600_000

__all__ = ["Finding", "Log", "is_log", "parse_log"]


def is_log(head: bytes) -> bool:
    """True where the first lines look like a log that can be read here."""
    text = head.decode("utf-8", "replace")
    found = scan(text.rpartition("\n")[0] + "\n") if "\n" in text else scan(text + "\n")
    return bool(found.parts) or _bare_header(text) is not None


def parse_log(
    data: bytes, *, zone: tzinfo | None = None, day: str = "", columns: Sequence[str] | None = None
) -> Log:  # fmt: skip
    """Read a log. `columns` names those of a log without a header. Raises ValueError for a day that is none.

    `zone` is that of stamps without one, and `day` the first day of a log that tells only times of day.
    """
    text = data.decode("utf-8-sig", "replace")
    log = None if columns is not None else read_clean(text, zone)
    if log is None:
        log = _careful(text, Clock(zone, day), columns)
    _finish(log, zone)
    return log


def _bare_header(text: str) -> tuple[str, ...] | None:
    """The header that a log without one seems to have; None where its numbers do not fit it."""
    line = next((line for line in text.split("\n") if line.strip("\0\r ")), "")
    cells = [cell.strip() for cell in line.split(delimiter_of(line, len(BARE)))]
    if len(cells) != len(BARE) or Clock(None).stamp(cells[0]) is None:
        return None
    told = [
        field_of(column.kind, cell, scale=column.scale).value
        for column, cell in zip(columns_of(BARE)[1:], cells[1:], strict=True)
    ]
    used, total, util, _power = told
    return BARE if used is not None and total is not None and util is not None and used <= total else None


def _careful(text: str, clock: Clock, columns: Sequence[str] | None) -> Log:
    """Line by line."""
    found = scan(text, columns)
    log = Log()
    if columns is None and not found.parts:
        bare = _bare_header(text)
        if bare is not None:
            found = scan(text, bare)
            log.find("no_header", f"it has no header: its columns are taken for {', '.join(bare)}, because they fit")
    log.cut_tail = found.cut_tail
    unplaced = 0
    for part in found.parts:
        unplaced += _take_part(log, part, clock, found)
    log.malformed = found.bad_lines
    _say_scan(log, found, unplaced)
    say_clock(log, clock)
    log.zone_known = clock.told_none == 0 or clock.has_zone
    return log


def _take_part(log: Log, part: Part, clock: Clock, found: Scan) -> int:
    """Rows below one header. Returns how many of them have no place in time for want of a date."""
    kinds = columns_of(part.header, is_dmon=part.is_dmon)
    place = {column.kind: at for at, column in enumerate(kinds)}
    stamp_of = _stamps(place, clock)
    before = len(log.utc_ms)
    kept: list[list[str]] = []
    unplaced = 0
    for cells in part.rows:
        stamp = stamp_of(cells) if stamp_of is not None else None
        if stamp is not None:
            kept.append(cells)
            log.utc_ms.append(stamp)
        elif stamp_of is None or (TIME in place and DATE not in place and STAMP not in place and not clock.has_day):
            unplaced += 1
        else:
            found.damage(part.delimiter.join(cells))
    _take_devices(log, place, kept, before)
    for at, column in enumerate(kinds):
        if column.kind in LABELS:
            continue
        if column.kind not in log.columns:
            log.columns[column.kind] = []
            _lack(log, column.kind, before)
        careful_column(log, column, [cells[at] for cells in kept], part.delimiter)
    for name, values in log.columns.items():
        _lack(log, name, len(log.utc_ms) - len(values))
    return unplaced


def _lack(log: Log, name: str, many: int) -> None:
    """Rows under a header that does not have the column."""
    if many:
        values = log.columns[name]
        log.absent.setdefault(name, {}).update(dict.fromkeys(range(len(values), len(values) + many), Reason.NOT_FOUND))
        values.extend([None] * many)
        reasons = log.reasons.setdefault(name, {})
        reasons[Reason.NOT_FOUND] = reasons.get(Reason.NOT_FOUND, 0) + many


def _stamps(place: dict[str, int], clock: Clock) -> Callable[[list[str]], int | None] | None:
    if STAMP in place:
        at = place[STAMP]
        return lambda cells: clock.stamp(cells[at])
    if TIME not in place:
        return None
    time, date = place[TIME], place.get(DATE)
    return lambda cells: clock.split("" if date is None else cells[date], cells[time])


def _take_devices(log: Log, place: dict[str, int], kept: list[list[str]], before: int) -> None:
    label = place.get(UUID, place.get(INDEX))
    if label is None:
        if log.device is not None:
            log.device += [""] * len(kept)
        return
    if log.device is None:
        log.device = [""] * before
    mine = [device_of(cells[label]) for cells in kept]
    log.device += mine
    if NAME in place:
        log.names.update((device, cells[place[NAME]].strip()) for device, cells in zip(mine, kept, strict=True))


def _say_scan(log: Log, found: Scan, unplaced: int) -> None:
    if found.bad_lines:
        log.find(
            "malformed", f"{found.bad_lines} lines are no row, the first of them: {found.bad[0]!r}", found.bad_lines
        )
    for words in _ERRORS:
        if any(words in line for line in chain(found.bad, found.remarks)):
            log.find("tool_error", f"the tool wrote an error into it: {words}")
    if found.nul_bytes:
        log.find(
            "nul_run", f"{found.nul_bytes} zero bytes stand where something was written: it is lost", found.nul_bytes
        )
    if found.cut_tail:
        log.find("cut_tail", "its last line has no end and is left out: its last number may be half of one", 1)
    if found.headers > 1:
        log.find("headers", f"it has {found.headers} headers: its logger was started again", found.headers)
    if unplaced:
        log.find("no_date", f"{unplaced} rows tell no date and are left out: say the first day with --day", unplaced)
    if not found.parts and found.lines > found.blank:
        log.find("no_header", "it has no header that is known: name its columns with --columns")


def _finish(log: Log, zone: tzinfo | None) -> None:
    """What only all rows together say."""
    if not log.utc_ms:
        return
    log.interval_ms = interval_of(log.utc_ms)
    if not log.zone_known:
        log.find("no_zone", "its stamps name no time zone; they are taken for UTC")
    steps, most_ms = backward(log.utc_ms)
    if steps:
        log.find("backward", f"{steps} stamps lie before the one ahead of them, by up to {most_ms} ms", steps)
        if zone is None and not log.zone_known and abs(most_ms - _HOUR_MS) < 300_000:
            log.find(
                "no_zone_hour", "its clock steps back by about an hour, as at the end of summer time: name its zone"
            )
    if log.device is None:
        _without_devices(log)
    else:
        _by_device(log)


def _without_devices(log: Log) -> None:
    log.find("no_device", "it names no GPU: all rows are taken for one, whose identity is not known")
    if has_bursts(log.utc_ms):
        seen = bursts(log.utc_ms)
        if seen.gpus > 1:
            log.device = [str(place) for place in range(seen.gpus)] * seen.ticks
            log.find(
                "burst",
                f"each tick has {seen.gpus} rows and no GPU is named: they are taken for {seen.gpus} GPUs in the order "
                "of their rows; which GPU each is cannot be known",
                seen.gpus,
            )
            return
    many = doubled(log.utc_ms, log.interval_ms)
    if many:
        log.find("second_logger", _TWO.format(many, "a second logger of one GPU, or more GPUs than are named"), many)


_TWO = "{} rows come within half an interval of the row ahead: {}"


def _by_device(log: Log) -> None:
    assert log.device is not None  # noqa: S101  the caller asked
    unknown = log.device.count("")
    if unknown:
        log.find("no_device", f"{unknown} rows name no GPU", unknown)
    stamps: dict[str, list[int]] = {}
    for device, stamp in zip(log.device, log.utc_ms, strict=True):
        stamps.setdefault(device, []).append(stamp)
    log.interval_ms = interval_of(max(stamps.values(), key=len))
    many = sum(doubled(some, interval_of(some)) for some in stamps.values())
    if many:
        log.find("second_logger", _TWO.format(many, "a second logger of the same GPU"), many)
