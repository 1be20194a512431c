"""The hold rule: a sample counts until the next one of its GPU, and never much longer than one interval.

Two loggers of one GPU share the time between them, so a doubled row weighs next to nothing, and one of the same
stamp nothing. A gap counts one interval: what was not observed is not invented.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from operator import lt, sub

ACTIVE_PCT = 5.0
RESERVED_BYTES = 500 << 20
LOW_SM_PCT = 20.0
WINDOW_MS = 300_000
# A sample that comes late is still the next one; half an interval later it is a gap.
CAP = 1.5
_SECOND_MS = 1000
_VOTES = 400


def held(utc_ms: Sequence[int], interval_ms: int, next_ms: int | None = None) -> list[int]:
    """How long each sample of one GPU counts, in milliseconds. The stamps must be in order.

    `next_ms` is the first stamp of what follows in another file.
    """
    if not utc_ms:
        return []
    following = list(utc_ms[1:])
    following.append(utc_ms[-1] + interval_ms if next_ms is None else max(next_ms, utc_ms[-1]))
    cap_ms = int(interval_ms * CAP)
    deltas = list(map(sub, following, utc_ms))
    if max(deltas) <= cap_ms:
        return deltas
    return [delta if delta <= cap_ms else interval_ms for delta in deltas]


def is_ordered(utc_ms: Sequence[int]) -> bool:
    """True where no stamp is before the one ahead of it."""
    return not any(map(lt, utc_ms[1:], utc_ms))


def extras(utc_ms: Sequence[int], interval_ms: int) -> int:
    """How many samples come within half an interval of the tick before them, as those of a second logger do."""
    half_ms = interval_ms // 2
    if min(map(sub, utc_ms[1:], utc_ms), default=half_ms) >= half_ms:
        return 0
    count, tick_ms = 0, None
    for stamp in utc_ms:
        if tick_ms is not None and stamp - tick_ms < half_ms:
            count += 1
        else:
            tick_ms = stamp
    return count


def interval_vote(utc_ms: Sequence[int]) -> int | None:
    """The interval that a log seems to have, in whole seconds as milliseconds; None where it has too few stamps.

    Distances under a second come from a second logger and do not vote.
    """
    some = utc_ms[:_VOTES]
    rounded = [(later - earlier + 500) // _SECOND_MS for earlier, later in pairwise(some)]
    votes = [seconds for seconds in rounded if seconds >= 1]
    return max(set(votes), key=votes.count) * _SECOND_MS if votes else None


def most_common(votes: Iterable[int | None], default: int) -> int:
    """The interval that most logs have, for those that are too short to tell their own."""
    known = [vote for vote in votes if vote is not None]
    return max(sorted(set(known)), key=known.count) if known else default
