"""Slurm's host lists: `n[001-003,007]-ib[1-2],login1` to names and back.

Total: a text that is no host list gives None, and a list may not grow beyond its bound.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import groupby, product

LIMIT = 65_536
# What the commands print where a job has no nodes.
_NOTHING = frozenset({"", "(null)", "None assigned", "N/A", "None", "Unknown"})
_WORD = re.compile(r"[A-Za-z0-9._:+@-]+")
_RANGE = re.compile(r"([0-9]{1,18})(?:-([0-9]{1,18}))?")
_TAIL_NUMBER = re.compile(r"(.*?)([0-9]{1,18})")


def expand(text: str, *, limit: int = LIMIT) -> tuple[str, ...] | None:
    """The names in the order of the text; None for nonsense and for more than `limit` names."""
    text = text.strip()
    if text in _NOTHING:
        return ()
    parts = _split(text)
    if parts is None:
        return None
    names: list[str] = []
    for part in parts:
        found = _expand_one(part, limit - len(names))
        if found is None:
            return None
        names += found
    return tuple(names)


def _split(text: str) -> list[str] | None:
    """Cut at the commas outside of brackets. Empty pieces are left out, as Slurm leaves them out."""
    parts: list[str] = []
    depth = start = 0
    for position, char in enumerate(text):
        if char == "[":
            depth += 1
        elif char == "]":
            depth -= 1
        elif char == "," and depth == 0:
            parts.append(text[start:position])
            start = position + 1
        if depth not in (0, 1):
            return None
    if depth:
        return None
    parts.append(text[start:])
    return [part.strip() for part in parts if part.strip()]


def _expand_one(part: str, room: int) -> list[str] | None:
    """One piece: words and bracket groups in turn; the last group varies fastest."""
    pieces: list[list[str]] = []
    total = 1
    position = 0
    while position < len(part):
        if part[position] == "[":
            end = part.index("]", position)
            numbers = _numbers(part[position + 1 : end], room)
            if numbers is None:
                return None
            pieces.append(numbers)
            total *= len(numbers)
            position = end + 1
        else:
            word = _WORD.match(part, position)
            if not word:
                return None
            pieces.append([word.group()])
            position = word.end()
        if total > room:
            return None
    return ["".join(choice) for choice in product(*pieces)]


def _numbers(text: str, room: int) -> list[str] | None:
    numbers: list[str] = []
    for piece in text.split(","):
        match = _RANGE.fullmatch(piece.strip())
        if not match:
            return None
        low, high = match.group(1), match.group(2) or match.group(1)
        first, last = int(low), int(high)
        if last < first or len(numbers) + last - first + 1 > room:
            return None
        # The first number says how wide the others are padded.
        numbers += [f"{number:0{len(low)}d}" for number in range(first, last + 1)]
    return numbers


def compress(names: Iterable[str]) -> str:
    """The shortest list of this form that expands to the same set of names, sorted."""
    plain: list[str] = []
    numbered: dict[tuple[str, int], set[int]] = {}
    for name in sorted(set(names)):
        match = _TAIL_NUMBER.fullmatch(name)
        if not match:
            plain.append(name)
            continue
        prefix, digits = match.groups()
        # `n9` and `n10` share a range; `n09` belongs to those padded to two.
        width = len(digits) if digits.startswith("0") and len(digits) > 1 else 0
        numbered.setdefault((prefix, width), set()).add(int(digits))
    _adopt_padded(numbered)
    groups = [_group(prefix, width, sorted(numbers)) for (prefix, width), numbers in numbered.items()]
    return ",".join(sorted(plain + groups))


def _adopt_padded(numbered: dict[tuple[str, int], set[int]]) -> None:
    """Numbers without a leading zero that have the width of a padded group join it: 08, 09, 10 are one range."""
    for prefix, width in [key for key in numbered if key[1]]:
        loose = numbered.get((prefix, 0))
        if not loose:
            continue
        fitting = {number for number in loose if len(str(number)) == width}
        numbered[prefix, width] |= fitting
        loose -= fitting
        if not loose:
            del numbered[prefix, 0]


def _group(prefix: str, width: int, numbers: list[int]) -> str:
    ranges = []
    for _, run in groupby(enumerate(numbers), key=lambda pair: pair[1] - pair[0]):
        values = [number for _, number in run]
        first, last = f"{values[0]:0{width}d}", f"{values[-1]:0{width}d}"
        ranges.append(first if len(values) == 1 else f"{first}-{last}")
    if len(numbers) == 1:
        return prefix + ranges[0]
    return f"{prefix}[{','.join(ranges)}]"
