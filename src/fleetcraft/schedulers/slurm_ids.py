"""Slurm's job ids: `17`, `17_3`, `17_[1-9:2%4]`, `32+1.batch`, and cut ones that say so.

Total: a text that is no id gives None. A cut list of array elements is never completed by guessing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

# The largest MaxArraySize that Slurm accepts; no honest list is longer.
MAX_ELEMENTS = 4_000_001
_FEDERATED_SHIFT = 26
_NUMBER = r"[0-9]{1,18}"
_ID = re.compile(
    rf"(?P<base>{_NUMBER})"
    rf"(?:_(?:(?P<task>{_NUMBER})|\[(?P<list>[^\]]*)(?P<close>\])?)|\+(?P<het>[0-9]{{1,9}}))?"
    r"(?:\.(?P<step>[A-Za-z0-9_+]{1,32}))?"
    r"(?:;(?P<cluster>[A-Za-z0-9_.-]{1,64}))?",
    re.ASCII,
)
_SPAN = re.compile(rf"({_NUMBER})(?:-({_NUMBER}))?(?::({_NUMBER}))?")
_THROTTLE = re.compile(rf"(.*)%({_NUMBER})", re.DOTALL)
_STEPS = ("batch", "extern", "interactive", "TBD")

Span = tuple[int, int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobId:
    """One id as a command printed it. `spans` are (first, last, step); None where there is no list or it was cut."""

    base: str
    task: int | None = None
    spans: tuple[Span, ...] | None = None
    throttle: int | None = None
    het_offset: int | None = None
    step: str | None = None
    truncated: bool = False
    known: tuple[Span, ...] = ()  # what stands for sure in a cut list
    cluster: str | None = None

    @property
    def key(self) -> str:
        """What identifies the job or the array element: `17`, `17_3`, `32+1`."""
        if self.task is not None:
            return f"{self.base}_{self.task}"
        if self.het_offset:
            return f"{self.base}+{self.het_offset}"
        return self.base

    @property
    def is_list(self) -> bool:
        """True when one row stands for several array elements."""
        return self.spans is not None or (self.truncated and self.step is None)

    @property
    def count(self) -> int | None:
        """How many elements it stands for; None when the list was cut."""
        if self.spans is None:
            return None if self.is_list else 1
        return sum((last - first) // step + 1 for first, last, step in self.spans)

    def tasks(self, limit: int = MAX_ELEMENTS) -> tuple[int, ...] | None:
        """The array elements; None without any, when the list was cut, and beyond `limit`."""
        if self.task is not None:
            return (self.task,)
        count = self.count
        if self.spans is None or count is None or count > limit:
            return None
        return tuple(_numbers(self.spans))

    def known_prefix(self) -> tuple[int, ...]:
        """The elements that stand in full in a cut list."""
        return tuple(_numbers(self.known))

    def covers(self, task: int) -> bool:
        """True when the element is one of those, as far as they are known."""
        if self.task is not None:
            return self.task == task
        spans = self.spans if self.spans is not None else self.known
        return any(first <= task <= last and (task - first) % step == 0 for first, last, step in spans)


def _numbers(spans: Iterable[Span]) -> Iterator[int]:
    for first, last, step in spans:
        yield from range(first, last + 1, step)


def parse_job_id(text: str) -> JobId | None:
    """The id, or None."""
    text = text.strip()
    if text.isascii() and text.isdigit() and len(text) <= 18:
        return JobId(base=text)
    match = _ID.fullmatch(text)
    if not match:
        return None
    base, listed, step = match["base"], match["list"], match["step"]
    cut = False
    if step is not None and step.endswith("+"):
        # The default columns of sacct are narrow: `.bat+`.
        cut = True
        full = [name for name in _STEPS if name.startswith(step[:-1])]
        step = full[0] if len(full) == 1 else step
    if listed is not None:
        return _with_list(base, listed, closed=match["close"] is not None, cluster=match["cluster"])
    return JobId(
        base=base,
        task=None if match["task"] is None else int(match["task"]),
        het_offset=None if match["het"] is None else int(match["het"]),
        step=step,
        truncated=cut,
        cluster=match["cluster"],
    )


def _with_list(base: str, listed: str, *, closed: bool, cluster: str | None) -> JobId | None:
    throttle = None
    with_throttle = _THROTTLE.fullmatch(listed)
    if with_throttle:
        listed, throttle = with_throttle.group(1), int(with_throttle.group(2))
        if not closed:
            # `%2` may be a cut `%20`.
            throttle = None
    cut = not closed or listed.endswith("...")
    pieces = listed.split(",")
    if cut:
        # The last piece may be a cut number: `20...` was 208.
        pieces = pieces[:-1]
    spans = _spans(pieces)
    if spans is None or (not spans and not cut):
        return None
    return JobId(
        base=base,
        spans=None if cut else spans,
        throttle=throttle,
        truncated=cut,
        known=spans if cut else (),
        cluster=cluster,
    )


def _spans(pieces: Iterable[str]) -> tuple[Span, ...] | None:
    spans: list[Span] = []
    total = 0
    for piece in pieces:
        match = _SPAN.fullmatch(piece.strip())
        if not match:
            return None
        first = int(match[1])
        last = first if match[2] is None else int(match[2])
        step = 1 if match[3] is None else int(match[3])
        if last < first or step < 1:
            return None
        total += (last - first) // step + 1
        if total > MAX_ELEMENTS:
            return None
        spans.append((first, last, step))
    return tuple(spans)


def parse_array_spec(text: str) -> JobId | None:
    """What stands behind `--array=`: `1-9:2%4`."""
    return None if "]" in text else _with_list("0", text.strip(), closed=True, cluster=None)


def array_text(indexes: Iterable[int], limit: int | None = None) -> str:
    """The shortest plain list: `0-3,7%2`."""
    parts: list[str] = []
    first = last = -2
    for index in [*sorted(set(indexes)), None]:
        if index is not None and index == last + 1:
            last = index
            continue
        if first >= 0:
            parts.append(str(first) if first == last else f"{first}-{last}")
        if index is not None:
            first = last = index
    return ",".join(parts) + (f"%{limit}" if limit is not None else "")


def federation_origin(base: str) -> tuple[int, int] | None:
    """The number of the cluster that gave a federated id, and the id there; None for an ordinary id."""
    if not (base.isascii() and base.isdigit()) or len(base) > 18:
        return None
    number = int(base)
    origin = number >> _FEDERATED_SHIFT
    return (origin, number & ((1 << _FEDERATED_SHIFT) - 1)) if origin else None
