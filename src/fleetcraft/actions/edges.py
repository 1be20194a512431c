"""What waits for what inside one enqueue: every upstream must exist, and nobody may wait for himself.

Both are errors now, while the person is there; later they would be tasks that never start.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain

from fleetcraft.core.errors import TaskInvalid
from fleetcraft.spool.ledger import MAX_BATCH_TASKS, POSITION_BITS, name_hash
from fleetcraft.spool.publish import LedgerWriter
from fleetcraft.spool.spool import Spool

_BATCH_PREFIX = "batch:"  # as in spool.held, whose import would cost every enqueue its start
_OPTION = 0  # stands for a line number: the upstream came from the options, not from a line


class Edges:
    """The `after` of every task, kept only where it differs from the one that all share."""

    __slots__ = ("_default", "_own", "_place", "_wanted")

    def __init__(self, default: tuple[str, ...], place: Callable[[int], str]) -> None:
        self._default = default
        self._place = place
        self._own: dict[str, tuple[tuple[str, ...], int]] = {}
        self._wanted: dict[str, int] = dict.fromkeys(default, _OPTION)

    def note(self, name: str, after: tuple[str, ...], number: int) -> None:
        """Remember what a task waits for, and on which line that stands."""
        if after == self._default:
            return
        self._own[name] = (after, number)
        for upstream in after:
            self._wanted.setdefault(upstream, number)

    def check(self, spool: Spool, writers: Sequence[LedgerWriter]) -> None:
        """Raise TaskInvalid for an upstream that is nowhere, and for a circle."""
        if not self._wanted:
            return
        from fleetcraft.actions.lookup import find_names  # most enqueues wait for nothing

        names = set(self._wanted)
        numbers = {name for name in names if _batch_number(name) is not None}
        for name in sorted(numbers, key=self._wanted.__getitem__):
            if _batch_number(name) not in spool.places():
                newest = spool.highest()
                raise TaskInvalid(
                    f"{self._where(name)}: after names {name!r}, and there is no batch {_batch_number(name)}.",
                    hint=f"The newest is {_BATCH_PREFIX}{newest}." if newest else "The spool is empty.",
                )
        inside = _names_inside(writers, names - numbers)
        outside = names - numbers - inside
        missing = outside - find_names(spool, outside).keys()
        if missing:
            self._refuse(min(missing, key=lambda name: (self._wanted[name], name)), spool, writers)
        self._refuse_circles(inside)

    def _where(self, name: str) -> str:
        number = self._wanted[name]
        return "--after" if number == _OPTION else self._place(number)

    def _refuse(self, name: str, spool: Spool, writers: Sequence[LedgerWriter]) -> None:
        from fleetcraft.actions.lookup import nearest, recent_names  # only when an error is being written

        candidates = chain(_some_names(writers), recent_names(spool))
        raise TaskInvalid(
            f"{self._where(name)}: after names {name!r}, which is no task of this input or of the spool."
            f"{nearest(name, candidates)}",
            hint="Enqueue it first or together with this one.",
        )

    def _upstream(self, name: str, inside: set[str]) -> tuple[str, ...]:
        own = self._own.get(name)
        if own is not None:
            return own[0]
        return self._default if name in inside else ()

    def _refuse_circles(self, inside: set[str]) -> None:
        """Walk upstream from every task that somebody waits for, without recursion: chains may be long."""
        done: set[str] = set()
        for start in sorted(inside, key=lambda name: (self._wanted[name], name)):
            path: list[str] = []
            on_path: set[str] = set()
            stack: list[tuple[str, Iterator[str]]] = []
            self._enter(start, inside, stack, path, on_path)
            while stack:
                name, rest = stack[-1]
                upstream = next(rest, None)
                if upstream is None:
                    stack.pop()
                    on_path.discard(path.pop())
                    done.add(name)
                elif upstream in on_path:
                    circle = [*path[path.index(upstream) :], upstream]
                    raise TaskInvalid(
                        f"{self._line_of(upstream)}: these tasks wait for one another: {_arrows(circle)}.",
                        hint="Take one of these `after` away.",
                    )
                elif upstream in inside and upstream not in done:
                    self._enter(upstream, inside, stack, path, on_path)

    def _enter(
        self, name: str, inside: set[str], stack: list[tuple[str, Iterator[str]]], path: list[str], on_path: set[str]
    ) -> None:
        path.append(name)
        on_path.add(name)
        stack.append((name, iter(self._upstream(name, inside))))

    def _line_of(self, name: str) -> str:
        own = self._own.get(name)
        return self._place(own[1]) if own else self._where(name)


def _arrows(circle: Sequence[str]) -> str:
    shown = circle if len(circle) <= 12 else [*circle[:6], "...", *circle[-5:]]
    return " after ".join(repr(name) if name != "..." else name for name in shown)


def _batch_number(name: str) -> int | None:
    text = name.removeprefix(_BATCH_PREFIX)
    return int(text) if text != name and text.isascii() and text.isdigit() else None


def _names_inside(writers: Iterable[LedgerWriter], names: set[str]) -> set[str]:
    """Those of `names` that tasks on their way have; hashes first, then the lines."""
    hashes = {name_hash(name) for name in names}
    found: set[str] = set()
    for writer in writers if hashes else ():
        positions = sorted(
            entry & (MAX_BATCH_TASKS - 1) for run in writer.runs for entry in run if entry >> POSITION_BITS in hashes
        )
        found.update(name for raw in writer.lines_at(positions) if (name := json.loads(raw)["name"]) in names)
    return found


def _some_names(writers: Iterable[LedgerWriter]) -> Iterator[str]:
    for writer in writers:
        for raw in writer.lines_at(range(min(writer.count, 5_000))):
            yield json.loads(raw)["name"]
