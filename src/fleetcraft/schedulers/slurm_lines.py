"""Rows out of a text whose last column may hold whatever a person wrote, line breaks included."""

from __future__ import annotations

_NOTHING = frozenset({"", "(null)", "N/A", "n/a", "Unknown"})


def told(cell: str) -> str:
    """A column that holds a name; empty when Slurm has none to tell."""
    cell = cell.strip()
    return "" if cell in _NOTHING else cell


def whole_lines(out: str, separator: str, *, names_last: bool) -> tuple[list[str], str]:
    """The rows, and what follows the last line end: a row that was cut off, empty when the text is whole.

    Where a name comes last, a line without any separator is the rest of the name before it. Only newlines end a row:
    names may hold other characters that Python takes for line ends.
    """
    *lines, torn = out.split("\n")
    if not names_last:
        return lines, torn
    whole: list[str] = []
    for line in lines:
        goes_on = separator not in line and not line.startswith("CLUSTER:")
        if whole and goes_on and separator in whole[-1] and whole[-1][:1].isdigit():
            whole[-1] = f"{whole[-1]}\n{line}"
        else:
            whole.append(line)
    return whole, torn
