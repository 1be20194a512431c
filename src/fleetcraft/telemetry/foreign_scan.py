"""The lines of a log that is not ours as rows: every line is a row, a header, a remark, or counted as damage."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from fleetcraft.telemetry.foreign_columns import NAME, bare_name, columns_of, is_header

_DELIMITERS = (",", ";", "\t")
# Words that no other log has.
_OF_DMON = frozenset({"pwr", "gtemp", "mtemp", "sm", "fb", "mclk", "pclk"})


@dataclass(slots=True)
class Part:
    """Rows below one header; a header in the middle begins a new part, maybe with other columns."""

    header: tuple[str, ...]
    delimiter: str
    is_dmon: bool = False
    rows: list[list[str]] = field(default_factory=list)


@dataclass(slots=True)
class Scan:
    """A log in lines: each counts in exactly one of `blank`, `zero_lines`, `headers`, `said`, `bad_lines` and `rows`.

    `bad` are the first few lines that are no row, for a person to look at.
    """

    parts: list[Part] = field(default_factory=list)
    headers: int = 0
    lines: int = 0
    blank: int = 0
    zero_lines: int = 0
    said: int = 0  # units and remarks
    bad_lines: int = 0
    bad: list[str] = field(default_factory=list)
    nul_bytes: int = 0
    cut_tail: bool = False
    remarks: list[str] = field(default_factory=list)

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return sum(len(part.rows) for part in self.parts)

    def damage(self, line: str) -> None:
        """Count a line that is no row."""
        self.bad_lines += 1
        if len(self.bad) < 3:
            self.bad.append(line[:120])


def scan(text: str, header: Sequence[str] | None = None) -> Scan:
    """Take a text apart. `header` are the names of the columns of a log that has none.

    A last line without an end is no row: the number that it ends with may be half of one.
    """
    found = Scan()
    whole, newline, tail = text.replace("\r\n", "\n").replace("\r", "\n").rpartition("\n")
    found.cut_tail = bool(tail.strip("\0 "))
    found.nul_bytes += tail.count("\0")
    part = None
    if header is not None:
        is_dmon = not _OF_DMON.isdisjoint(name.strip().lower() for name in header)
        part = Part(tuple(header), delimiter_of(whole.split("\n", 1)[0], len(header)), is_dmon=is_dmon)
        found.parts.append(part)
    for line in whole.split("\n") if newline else ():
        part = _take(line, part, found)
    return found


def _take(line: str, part: Part | None, found: Scan) -> Part | None:
    found.lines += 1
    if "\0" in line:
        # Zeros stand where something else stood; what is left of the line may be the end of another one.
        found.nul_bytes += line.count("\0")
        if line.strip("\0 "):
            found.damage(line.replace("\0", " ").strip())
        else:
            found.zero_lines += 1
        return part
    if not line.strip():
        found.blank += 1
        return part
    if line.lstrip().startswith("#"):
        return _take_remark(line.strip(), part, found)
    delimiter = part.delimiter if part is not None else delimiter_of(line)
    cells = cells_of(line, delimiter, None if part is None else part.header)
    if (part is None or not part.is_dmon) and is_header(cells):
        found.headers += 1
        part = Part(tuple(cell.strip() for cell in cells), delimiter)
        found.parts.append(part)
    elif part is None or len(cells) != len(part.header):
        found.damage(line)
    else:
        part.rows.append(cells)
    return part


def _take_remark(line: str, part: Part | None, found: Scan) -> Part | None:
    """Lines of `dmon` that begin with # are its header and its units, again and again."""
    delimiter = "," if "," in line else " "
    names = [cell.strip() for cell in cells_of(line[1:].strip(), delimiter, None)]
    lowered = [name.lower() for name in names]
    if "gpu" in lowered and len(names) > 1:
        found.headers += 1
        if part is None or part.header != tuple(names) or not part.is_dmon:
            part = Part(tuple(names), delimiter, is_dmon=True)
            found.parts.append(part)
    else:
        found.said += 1
        if not ("idx" in lowered or "hh:mm:ss" in lowered):
            found.remarks.append(line[:120])
    return part


def delimiter_of(line: str, width: int = 0) -> str:
    """What divides the cells of a line; blanks where nothing else does."""
    if width:
        fitting = [mark for mark in _DELIMITERS if len(cells_of(line, mark, None)) == width]
        if fitting:
            return fitting[0]
    counts = {mark: line.count(mark) for mark in _DELIMITERS}
    best = max(_DELIMITERS, key=lambda mark: counts[mark])
    if ";" in line and counts[";"] >= counts[","] / 2:
        return ";"  # commas beside semicolons are those of decimals
    return best if counts[best] else " "


def cells_of(line: str, delimiter: str, header: Sequence[str] | None) -> list[str]:
    """The cells of a line; a free text that holds the delimiter is put together again where the header has only one."""
    if delimiter == " ":
        return line.split()
    cells = list(_quoted(line, delimiter)) if '"' in line else line.split(delimiter)
    surplus = 0 if header is None else len(cells) - len(header)
    if surplus > 0 and header is not None:
        texts = [place for place, name in enumerate(header) if bare_name(name) in _TEXTS]
        if len(texts) == 1:
            at = texts[0]
            cells[at : at + surplus + 1] = [delimiter.join(cells[at : at + surplus + 1]).strip()]
    return cells


_TEXTS = frozenset(name for name in ("name", "gpu_name", "product_name") if columns_of([name])[0].kind == NAME)


def _quoted(line: str, delimiter: str) -> Iterator[str]:
    """Cells with quotes around some of them; a quote that is never closed ends with its line."""
    cell: list[str] = []
    inside = False
    for letter in line:
        if letter == '"':
            inside = not inside
        elif letter == delimiter and not inside:
            yield "".join(cell)
            cell = []
        else:
            cell.append(letter)
    yield "".join(cell)
