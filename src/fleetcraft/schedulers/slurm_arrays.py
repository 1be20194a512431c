"""How many array elements fit into one submission, and what has to wait.

MaxArraySize caps the index, not the count: a site with 1001 takes the indexes 0 to 1000.
"""

from __future__ import annotations

from dataclasses import dataclass

from fleetcraft.schedulers.slurm_ids import parse_array_spec

Chunk = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrayPlan:
    """Pieces of (offset, count). Each is submitted with the indexes 0 to count - 1; the script adds the offset."""

    now: tuple[Chunk, ...]
    later: tuple[Chunk, ...] = ()  # when jobs of ours have left the queue
    single_jobs: bool = False  # the site has no arrays: each piece is one ordinary job


def plan_array(
    n: int,
    *,
    max_array_size: int | None,
    max_array_tasks: int | None = None,
    max_submit: int | None = None,
    queued: int = 0,
) -> ArrayPlan:
    """Cut n elements into arrays that the site takes. Every element counts as one job against the submit limit.

    An array over the submit limit is refused as a whole, so what does not fit now becomes a piece of its own.
    """
    n = max(n, 0)
    single = max_array_size is not None and max_array_size <= 1
    largest = 1 if single else max(n, 1)
    for limit in (max_array_size, max_array_tasks):
        if limit is not None and not single:
            largest = min(largest, max(limit, 1))
    room = n if max_submit is None else max(0, min(n, max_submit - max(queued, 0)))
    return ArrayPlan(now=_cut(0, room, largest), later=_cut(room, n, largest), single_jobs=single)


def _cut(start: int, stop: int, largest: int) -> tuple[Chunk, ...]:
    return tuple((offset, min(largest, stop - offset)) for offset in range(start, stop, largest))


def spec_valid(text: str, max_array_size: int) -> bool:
    """True when `--array=text` is well-formed and no index is at or over the limit."""
    spec = parse_array_spec(text)
    return bool(spec and spec.spans and all(last < max_array_size for _, last, _ in spec.spans))
