"""What stamps alone say: the interval, several GPUs in one tick, a second logger, and clocks that step back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import lt, sub

# Rows of one tick come from one run of the tool, a few milliseconds for each GPU.
TICK_MS = 250
_VOTES = 400
_MOST_GPUS = 64
_MOST_BETWEEN = 8
_PLAIN, _MARGIN = 0.8, 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Bursts:
    """`gpus` is more than one only where every tick has that many rows."""

    ticks: int
    gpus: int


def interval_of(utc_ms: Sequence[int]) -> int | None:
    """The distance between ticks, to a tenth of a second; None where there are too few.

    Where rows of several loggers or GPUs lie between each other, it is the distance that repeats at every second row,
    or every third.
    """
    some = sorted(utc_ms[:_VOTES])
    best: tuple[float, int] | None = None
    for apart in range(1, min(_MOST_BETWEEN, len(some) - 1) + 1):
        found: list[int] = [round(delta / 100) for delta in map(sub, some[apart:], some)]
        votes = [delta for delta in found if delta * 100 > TICK_MS]
        if not votes:
            continue
        common, _many = max(Counter(votes).items(), key=lambda one: (one[1], -one[0]))
        near = sum(abs(delta - common) <= 1 + common // 50 for delta in votes) / len(found)
        if near >= _PLAIN:
            return common * 100
        if best is None or near > best[0] + _MARGIN:
            best = near, common * 100
    return None if best is None else best[1]


def bursts(utc_ms: Sequence[int]) -> Bursts:
    """How many ticks these rows are, where the log names no GPU, and how many GPUs each of them speaks of."""
    if not utc_ms:
        return Bursts(ticks=0, gpus=1)
    sizes, begin = [1], utc_ms[0]
    for before, stamp in pairwise(utc_ms):
        if before <= stamp <= begin + TICK_MS:
            sizes[-1] += 1
        else:
            sizes.append(1)
            begin = stamp
    # Two loggers drift against each other, and one of them begins first: then some tick has another size.
    same = len(set(sizes)) == 1 and sizes[0] <= _MOST_GPUS
    return Bursts(ticks=len(sizes), gpus=sizes[0] if same else 1)


def has_bursts(utc_ms: Sequence[int]) -> bool:
    """False where every tick plainly is one row; a look at the first two is enough for that."""
    return len(utc_ms) > 1 and 0 <= utc_ms[1] - utc_ms[0] <= TICK_MS


def doubled(utc_ms: Sequence[int], interval_ms: int | None) -> int:
    """How many samples of one GPU come within half an interval of the one ahead, as those of a second logger do."""
    half_ms = (interval_ms or 0) // 2
    if min(map(sub, utc_ms[1:], utc_ms), default=half_ms) >= half_ms:
        return 0
    return sum(delta < half_ms for delta in map(sub, utc_ms[1:], utc_ms) if delta >= 0)


def backward(utc_ms: Sequence[int]) -> tuple[int, int]:
    """How many stamps lie before the one ahead of them, and by how much at most."""
    if not any(map(lt, utc_ms[1:], utc_ms)):
        return 0, 0
    steps = [-delta for delta in map(sub, utc_ms[1:], utc_ms) if delta < 0]
    return len(steps), max(steps)
