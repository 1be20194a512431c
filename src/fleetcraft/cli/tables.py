"""Small tables and bars for people: aligned on a terminal, cut to its width there, whole in a pipe."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from fleetcraft.cli.output import Output, printable

STATE_STYLES = {
    "succeeded": ("green",),
    "up": ("green",),
    "ok": ("green",),
    "running": ("cyan",),
    "claimed": ("cyan",),
    "starting": ("cyan",),
    "waiting": (),
    "held": ("dim",),
    "stopped": ("dim",),
    "failed": ("red",),
    "bad": ("red", "bold"),
    "lost": ("red",),
    "quarantined": ("red",),
    "blocked": ("yellow",),
    "warn": ("yellow",),
    "stale": ("yellow",),
    "draining": ("yellow",),
    "storage_full": ("yellow",),
    "cancelled": ("dim",),
    "working": ("green",),
    "reserved-idle": ("yellow",),
    "free-idle": ("red",),
    "unknown": ("magenta",),
    "unreachable": ("red", "bold"),
    "telemetry-broken": ("red",),
    "hung": ("red", "bold"),
}


def width_of(text: str) -> int:
    """How many columns a text takes on a terminal."""
    if text.isascii():
        return len(text)
    import unicodedata

    wide = sum(unicodedata.east_asian_width(character) in "WF" for character in text)
    return len(text) + wide - sum(unicodedata.combining(character) > 0 for character in text)


def cut(text: str, width: int) -> str:
    """The text, or its begin with a mark, so that it takes at most `width` columns."""
    if width_of(text) <= width:
        return text
    while text and width_of(text) > width - 1:
        text = text[:-1]
    return text + "…"


def terminal_width(output: Output) -> int | None:
    """Columns of the terminal; None in a pipe, where nothing is cut."""
    if not output.is_terminal:
        return None
    try:
        return os.get_terminal_size(output.stdout.fileno()).columns or None
    except (OSError, ValueError):
        return None


def table(
    output: Output, heads: Sequence[str], rows: Sequence[Sequence[str]], styled: int | None = None
) -> Iterator[str]:
    """Lines of a table. The first column gives way when a terminal is too narrow; `styled` is colored by its word."""
    cells = [[printable(cell) for cell in row] for row in rows]
    widths = [max([width_of(head), *(width_of(row[place]) for row in cells)]) for place, head in enumerate(heads)]
    columns = terminal_width(output)
    if columns is not None:
        over = sum(widths) + 2 * (len(widths) - 1) - columns
        if over > 0:
            widths[0] = max(12, widths[0] - over)
    yield "  ".join(output.paint(_pad(head, widths[place]), "bold") for place, head in enumerate(heads)).rstrip()
    for row in cells:
        parts = []
        for place, cell in enumerate(row):
            text = _pad(cut(cell, widths[place]) if place == 0 else cell, widths[place])
            parts.append(output.paint(text, *STATE_STYLES.get(cell, ())) if place == styled else text)
        line = "  ".join(parts).rstrip()
        yield line if columns is None or output.color else cut(line, columns)


def _pad(text: str, width: int) -> str:
    return text + " " * max(0, width - width_of(text))


def bar(output: Output, parts: Sequence[tuple[str, int]], total: int, width: int = 40) -> str:
    """A bar of `width` columns, one stretch per state; something that exists is never shown as nothing."""
    marks = {"succeeded": "█", "failed": "▓", "quarantined": "▓", "cancelled": "▓", "running": "▒"}
    cells = []
    for state, number in parts:
        share = number * width / total if total else 0
        size = max(1, int(share)) if number else 0
        cells.append((state, marks.get(state, "░"), size))
    left = width - sum(size for _, _, size in cells)
    text = "".join(output.paint(mark * size, *STATE_STYLES.get(state, ())) for state, mark, size in cells if size)
    return text + output.paint("░" * max(0, left), "dim")
