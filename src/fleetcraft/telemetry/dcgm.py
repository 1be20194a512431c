"""Values as DCGM hands them out: which of them are none, and Xid as changes; there is no connection to it here."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from fleetcraft.telemetry.api import Reason

# The same four meanings stand at the end of each kind of number.
_BLANKS = (0x7FFFFFFFFFFFFFF0, 0x7FFFFFF0)
_BLANK_FLOAT = float(2**47)
_MEANINGS = (Reason.BLANK, Reason.NOT_FOUND, Reason.UNSUPPORTED, Reason.NO_PERMISSION)
_SPAN = 16
_ROUNDED_FROM = 9.2e18


@dataclass(frozen=True, slots=True, kw_only=True)
class XidEvent:
    """An Xid and how often it was seen to come."""

    xid: int
    count: int


def value_of(raw: float) -> float | Reason:
    """A number, or why there is none. A blank that was rounded on its way through text is one all the same."""
    if isinstance(raw, int):
        for first in _BLANKS:
            if first <= raw < first + _SPAN:
                place = raw - first
                return _MEANINGS[place] if place < len(_MEANINGS) else Reason.BLANK
        return Reason.BLANK if raw >= _ROUNDED_FROM else raw
    if raw != raw:  # noqa: PLR0124  the one value that is not equal to itself
        return Reason.NAN
    if _BLANK_FLOAT <= raw < _BLANK_FLOAT + _SPAN:
        place = int(raw - _BLANK_FLOAT)
        return _MEANINGS[place] if place < len(_MEANINGS) else Reason.BLANK
    return Reason.BLANK if abs(raw) >= _ROUNDED_FROM else raw


def xid_events(gauge: Iterable[float | None]) -> list[XidEvent]:
    """What happened, out of a gauge that keeps the last Xid for ever: an event is a change of it.

    The same Xid twice in a row cannot be seen here, and the value that stood there first is not known to be new.
    """
    counts: dict[int, int] = {}
    before: float | None = None
    for value in gauge:
        if value is None:
            continue
        if before is not None and value != before and value > 0:
            counts[int(value)] = counts.get(int(value), 0) + 1
        before = value
    return [XidEvent(xid=xid, count=count) for xid, count in counts.items()]
