"""What was read from a log that is not ours: columns, why cells are empty, and what the log cannot tell."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from fleetcraft.telemetry.api import Reason
from fleetcraft.telemetry.foreign_columns import DATE, INDEX, NAME, OTHER, STAMP, TIME, UUID, Column
from fleetcraft.telemetry.foreign_time import Clock
from fleetcraft.telemetry.values import CLAMPED, Cell, field_of

LABELS = frozenset({STAMP, DATE, TIME, UUID, INDEX, NAME, OTHER})
# Said by readers in words of their own, or true of nearly every log: no trouble of this one.
_QUIET = frozenset({"no_zone", "no_device", "second_logger", "backward", "malformed"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Something that the log cannot tell, or that is wrong with it."""

    kind: str
    text: str
    count: int = 0


@dataclass(slots=True, kw_only=True)
class Log:
    """Rows in the order of the file; a value that is None has a reason, counted in `reasons`."""

    utc_ms: list[int] = field(default_factory=list)
    device: list[str] | None = None  # UUID, or index as text; None: the log names none
    columns: dict[str, list[float | None]] = field(default_factory=dict)
    reasons: dict[str, dict[Reason, int]] = field(default_factory=dict)
    absent: dict[str, dict[int, Reason]] = field(default_factory=dict)  # the same for each row, for who writes it on
    names: dict[str, str] = field(default_factory=dict)
    malformed: int = 0
    cut_tail: bool = False
    zone_known: bool = True
    findings: list[Finding] = field(default_factory=list)
    interval_ms: int | None = None
    is_fast: bool = False

    def find(self, kind: str, text: str, number: int = 0) -> None:
        """Write a finding down."""
        self.findings.append(Finding(kind=kind, text=text, count=number))

    @property
    def problems(self) -> tuple[str, ...]:
        """What is wrong with this log in particular."""
        return tuple(one.text for one in self.findings if one.kind not in _QUIET)


def careful_column(log: Log, column: Column, cells: list[str], delimiter: str) -> None:
    """Add the cells of a column, each text of them looked at once."""
    counted = Counter(cells)
    known = {text: take_cell(log, column, text, delimiter, many) for text, many in counted.items()}
    values = log.columns.setdefault(column.kind, [])
    lacking = {text: cell.reason for text, cell in known.items() if cell.reason is not None}
    if lacking:
        begin = len(values)
        rows = log.absent.setdefault(column.kind, {})
        rows.update((begin + place, lacking[text]) for place, text in enumerate(cells) if text in lacking)
    values.extend([known[text].value for text in cells])


def take_cell(log: Log, column: Column, text: str, delimiter: str, many: int) -> Cell:
    """What a text is that stands there so many times; why it has none, and what was changed, is counted."""
    cell: Cell = field_of(column.kind, text, scale=column.scale, delimiter=delimiter)
    if cell.reason is not None:
        reasons = log.reasons.setdefault(column.kind, {})
        reasons[cell.reason] = reasons.get(cell.reason, 0) + many
    if cell.flag:
        what = f"{column.kind}: a value above 100 % was taken for 100 %" if cell.flag == CLAMPED else (
            f"{column.kind}: a number has a separator of thousands or a decimal comma"
        )  # fmt: skip
        _count(log, cell.flag, what, many)
    return cell


def _count(log: Log, kind: str, text: str, many: int) -> None:
    for place, one in enumerate(log.findings):
        if (one.kind, one.text) == (kind, text):
            log.findings[place] = Finding(kind=kind, text=text, count=one.count + many)
            return
    log.find(kind, text, many)


def device_of(cell: str) -> str:
    text = cell.strip()
    return str(int(text)) if text.isascii() and text.isdigit() and len(text) < 10 else text


def say_clock(log: Log, clock: Clock) -> None:
    if clock.ambiguous:
        log.find(
            "ambiguous",
            f"{clock.ambiguous} stamps lie in an hour that came twice; the first is assumed",
            clock.ambiguous,
        )
    if clock.missing:
        log.find(
            "missing_hour",
            f"{clock.missing} stamps lie in an hour that its zone left out: is it the right one?",
            clock.missing,
        )
