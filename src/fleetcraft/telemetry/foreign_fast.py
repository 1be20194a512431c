"""The fast path for a clean log: it proves on the way that the log is clean, and gives up at the first doubt.

Stamps are stamps, numbers are numbers within their bounds, and every line has as many cells as the header. A cell
that ended up in a neighbour's place would be a stamp among numbers, or a number among stamps.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from typing import TYPE_CHECKING

from fleetcraft.telemetry.foreign_columns import INDEX, NAME, STAMP, UUID, Column, columns_of, is_header
from fleetcraft.telemetry.foreign_log import LABELS, Log, careful_column, device_of, say_clock, take_cell
from fleetcraft.telemetry.foreign_time import Clock, Minutes, local_to_utc
from fleetcraft.telemetry.nvml_errors import is_blank

if TYPE_CHECKING:
    from datetime import tzinfo

_KNOWN = Minutes()
_MANY_MINUTES = 500_000


def read_clean(text: str, zone: tzinfo | None) -> Log | None:
    """A clean log; None where anything needs a closer look."""
    end = text.find("\n")
    if end < 0 or not text.isascii() or text[-1] != "\n" or any(mark in text for mark in '"\0\r;#'):
        return None
    header = text[:end].split(",")
    kinds = columns_of(header)
    if sum(column.kind == STAMP for column in kinds) != 1 or not is_header(header) or "_" in text[end:]:
        return None
    width, body = len(header), text[end + 1 : -1]
    if not body:
        return _empty(Log(is_fast=True), kinds)
    flat = body.replace("\n", ",").split(",")
    if len(flat) != width * (body.count("\n") + 1):
        return None
    log = Log(is_fast=True)
    try:
        for place, column in enumerate(kinds):
            if column.kind == STAMP:
                log.utc_ms = _fast_stamps(flat[place::width])
        if zone is not None:
            log.utc_ms = _in_zone(log, zone)
        log.zone_known = zone is not None
        for place, column in enumerate(kinds):
            if column.kind not in LABELS:
                _fast_column(log, column, flat[place::width])
    except (ValueError, IndexError):
        return None
    _fast_device(log, kinds, flat, width)
    return log


def _minutes() -> Minutes:
    """Minutes that were worked out already: logs of one fleet are about the same ones."""
    if len(_KNOWN) > _MANY_MINUTES:
        _KNOWN.clear()
    return _KNOWN


def _fast_stamps(cells: list[str]) -> list[int]:
    """Raises ValueError where one of them is not as `nvidia-smi` writes them."""
    if cells[0][:1] == " ":
        cells = [cell.strip() for cell in cells]
    if set(map(len, cells)) != {23}:
        raise ValueError("stamps of other lengths")
    parts = [cell[17:19] + cell[20:] for cell in cells]
    if not "".join(parts).isdigit() or "".join(cells)[19::23].count(".") != len(cells):
        raise ValueError("no seconds")
    seconds = list(map(int, parts))
    if max(seconds) >= 60_000:
        raise ValueError("no seconds")
    minute = _minutes()
    return [minute[cell[:17]] + second for cell, second in zip(cells, seconds, strict=True)]


def _fast_column(log: Log, column: Column, cells: list[str]) -> None:
    """Numbers as they stand, where all of them are; else each text is looked at once."""
    if cells.count(cells[0]) == len(cells):
        told = take_cell(log, column, cells[0], ",", len(cells))
        log.columns[column.kind] = [told.value] * len(cells)
        if told.reason is not None:
            log.absent[column.kind] = dict.fromkeys(range(len(cells)), told.reason)
        return
    try:
        numbers = list(map(float, cells))
        bound = column.top or 9e15
        largest = max(numbers)
        if min(numbers) < 0 or largest > bound or not isfinite(sum(numbers)):
            raise ValueError("out of bounds")
        # The smallest sentinel is just below the largest number of 32 bits.
        if not column.top and largest > 2e9 and any(map(is_blank, numbers)):
            raise ValueError("a sentinel")
    except ValueError:
        careful_column(log, column, cells, ",")
        return
    scale = column.scale
    log.columns[column.kind] = list(numbers) if scale == 1.0 else [number * scale for number in numbers]


def _fast_device(log: Log, kinds: Sequence[Column], flat: list[str], width: int) -> None:
    place = {column.kind: at for at, column in enumerate(kinds)}
    label = place.get(UUID, place.get(INDEX))
    if label is None:
        return
    log.device = [device_of(cell) for cell in flat[label::width]]
    if NAME in place:
        log.names = {device: name.strip() for device, name in zip(log.device, flat[place[NAME] :: width], strict=True)}


def _in_zone(log: Log, zone: tzinfo) -> list[int]:
    clock = Clock(zone)
    placed = local_to_utc(log.utc_ms, clock, zone)
    say_clock(log, clock)
    return placed


def _empty(log: Log, kinds: Sequence[Column]) -> Log:
    log.columns = {column.kind: [] for column in kinds if column.kind not in LABELS}
    log.zone_known = True
    return log
