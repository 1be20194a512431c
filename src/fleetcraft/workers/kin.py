"""Which living processes came from which attempt, told without a look at /proc for every task.

The worker is a child subreaper: what outlives its parent becomes a child of ours. So after a leader has ended,
something of its attempt is left exactly when we have a child that we did not start. That is one read of a
descriptor that stays open; /proc is walked only when there is something to find.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from fleetcraft.core.clock import Clock
from fleetcraft.spool import host
from fleetcraft.transports.running import RUNNING
from fleetcraft.workers.process_table import ProcessTable, Seen

_PR_SET_CHILD_SUBREAPER = 36
# Where the kernel does not list our children, the pids given out since the leader's are tried one by one, as long
# as they are few and the attempt was too short for the numbers to have come round.
_MOST_TRIED = 256
_SHORT_S = 1.0
# Walking all of /proc may take this share of our time, and no more.
_WALK_SHARE = 0.05
_COLLECT_SOON_S = 0.005


class Kindred(Protocol):
    """What has to be known of an attempt to find its processes."""

    pid: int
    mark: str
    started_mono_s: float
    epoch: int


@dataclass(slots=True)
class Orphan:
    """A child of ours that we did not start. Without a mark, any attempt that was open then may be its origin."""

    seen: Seen
    mark: str | None
    possible: frozenset[str]


@dataclass(slots=True)
class Census:
    """One walk through /proc: what belongs together."""

    seen: dict[int, Seen] = field(default_factory=dict)
    marks: dict[int, str] = field(default_factory=dict)
    children: dict[int, list[int]] = field(default_factory=dict)


class Kin:
    """Knows our children that we did not start, and finds all descendants of an attempt when asked to."""

    def __init__(self, clock: Clock, table: ProcessTable) -> None:
        self._clock = clock
        self._table = table
        self._me = os.getpid()
        self.is_subreaper = _set_subreaper(on=True)
        self._list = _open_or_none(f"/proc/self/task/{self._me}/children")
        self._cursor = _open_or_none("/proc/loadavg")
        self._off_limits = self._ancestors()
        # Kernel threads have session 0. So has a process whose session was made outside of our container.
        self._kernel_session = 0 if os.getsid(0) else -1
        # Pids are given out in order. An epoch ends when they start again from the lowest.
        self.epoch = 0
        self._newest = 0
        self.walk_again_s = 0.0
        self._census: Census | None = None
        self.orphans: dict[int, Orphan] = {}
        # Children of ours that are nobody's: they were here before us, or were given up.
        self.nobodys: set[int] = self._here_before()
        # With children from elsewhere, a process without a mark may be theirs.
        self._may_guess = not self.nobodys

    def _ancestors(self) -> frozenset[int]:
        found, pid = {1, self._me}, self._me
        while (process := host.process(pid)) is not None and process.parent > 0 and process.parent not in found:
            pid = process.parent
            found.add(pid)
        return frozenset(found)

    def _here_before(self) -> set[int]:
        try:
            os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return set()
        return {pid for pid in self._table.pids() if (seen := host.process(pid)) and seen.parent == self._me}

    def on_pid(self, pid: int) -> int:
        """Take note of a pid that was given out just now; the epoch it belongs to."""
        if pid < self._newest:
            self.epoch += 1
        self._newest = pid
        return self.epoch

    def on_reaped(self, pid: int) -> None:
        """A child of ours that is no leader is gone."""
        self.orphans.pop(pid, None)
        self.nobodys.discard(pid)

    def is_quiet(self, leaders: Collection[int], ended: Sequence[Kindred], now_s: float) -> bool:
        """True when surely nothing is left of those that just ended: the answer for nearly every task."""
        return not self.orphans and self.is_subreaper and self._strangers(leaders, ended, now_s) == []

    def refresh(
        self, leaders: Collection[int], open_marks: Collection[str], ended: Sequence[Kindred], now_s: float
    ) -> bool:
        """Bring `orphans` up to date; False when that is not possible before `walk_again_s`.

        `leaders` are the started children that live; `ended` those that ended since (empty: look at everything).
        """
        found = self._strangers(leaders, ended, now_s) if self.is_subreaper else []
        if found is None:
            return False
        dying = False
        for pid in found:
            seen = self._table.look(pid)
            if seen is not None and seen.is_gone:
                # What it had started came home to us this moment and was not listed: look again without it.
                dying = True
                self.walk_again_s = max(self.walk_again_s, now_s + _COLLECT_SOON_S)
            elif seen is not None:
                self.orphans[pid] = Orphan(seen, self._table.mark(pid), frozenset(open_marks))
        return not dying

    def begin_step(self) -> None:
        """Forget the last walk: it serves the decisions of one step only."""
        self._census = None

    def _strangers(self, leaders: Collection[int], ended: Sequence[Kindred], now_s: float) -> list[int] | None:
        """Our children that are not known yet; None when finding out is not possible or would cost too much now."""
        found = self._tried(leaders, ended, now_s) if self._list is None else self._listed(self._list, leaders)
        if not found:
            return found
        # Asked first: a command counts as known before its start counts as over.
        is_unsure = RUNNING.is_starting()
        found = [pid for pid in found if not _is_command(pid)]
        if not found or not is_unsure:
            return found
        self.walk_again_s = max(self.walk_again_s, now_s + _COLLECT_SOON_S)
        return None

    def _listed(self, descriptor: int, leaders: Collection[int]) -> list[int]:
        raw = chunk = os.pread(descriptor, 4096, 0)
        while len(chunk) >= 4000:  # the kernel hands out a page at a time
            chunk = os.pread(descriptor, 4096, len(raw))
            raw += chunk
        # Only we can take a child off this list, so it is complete, and its length alone answers nearly always.
        if raw.count(b" ") == len(leaders) + len(self.orphans) + len(self.nobodys):
            return []
        return [pid for pid in map(int, raw.split()) if not self._is_known(pid, leaders)]

    def _is_known(self, pid: int, leaders: Collection[int]) -> bool:
        return pid in leaders or pid in self.orphans or pid in self.nobodys

    def _tried(self, leaders: Collection[int], ended: Sequence[Kindred], now_s: float) -> list[int] | None:
        candidates: Sequence[int] | None = self._recent(ended, now_s)
        if candidates is None:
            if now_s < self.walk_again_s:
                return None
            candidates = self._table.pids()
        found = [pid for pid in candidates if not self._is_known(pid, leaders) and self._is_adopted(pid, leaders)]
        if not isinstance(candidates, range):
            after_s = self._clock.mono()
            self.walk_again_s = after_s + (after_s - now_s) / _WALK_SHARE
        return found

    def _recent(self, ended: Sequence[Kindred], now_s: float) -> range | None:
        """The pids given out since the first of the ended leaders, when they are few and certain."""
        if self._cursor is None or not ended:
            return None
        newest = int(os.pread(self._cursor, 128, 0).rsplit(b" ", 1)[1])
        epoch = self.on_pid(newest)
        first = newest
        for kindred in ended:
            if kindred.epoch != epoch or now_s - kindred.started_mono_s > _SHORT_S:
                return None
            first = min(first, kindred.pid)
        return range(first + 1, newest + 1) if newest - first <= _MOST_TRIED else None

    def _is_adopted(self, pid: int, leaders: Collection[int]) -> bool:
        try:
            session = os.getsid(pid)
        except OSError:
            return False
        # In the session of a leader that lives: its business.
        if session in leaders or session == self._kernel_session:
            return False
        seen = self._table.look(pid)
        return seen is not None and seen.parent == self._me and not self._table.is_thread(pid)

    def orphans_of(self, kindred: Kindred, open_marks: Collection[str]) -> list[Orphan]:
        """What came home to us from that attempt, whose leader has ended."""
        return [orphan for orphan in self.orphans.values() if self._belongs(orphan, kindred, open_marks)]

    def _belongs(self, orphan: Orphan, kindred: Kindred, open_marks: Collection[str]) -> bool:
        if kindred.pid in (orphan.seen.session, orphan.seen.group):
            return True
        if orphan.mark is None:
            # It may have been between fork and exec when it was first seen.
            orphan.mark = self._table.mark(orphan.seen.pid)
        if orphan.mark in open_marks:
            return orphan.mark == kindred.mark
        # No mark, or one that a worker inside of the attempt gave: it goes with the last that may be its origin.
        others = any(mark in orphan.possible and mark != kindred.mark for mark in open_marks)
        return self._may_guess and kindred.mark in orphan.possible and not others

    def has_left(self, kindred: Kindred, open_marks: Collection[str]) -> bool:
        """True when something of that attempt, whose leader has ended, lives on."""
        if self.is_subreaper:
            return bool(self.orphans) and bool(self.orphans_of(kindred, open_marks))
        return bool(self.members(kindred, (), leader_lives=False))

    def strays(self, open_marks: Collection[str]) -> list[Orphan]:
        """Orphans whose attempt has ended already: born while it was looked through."""
        if not self._may_guess:
            return []
        return [
            orphan
            for orphan in self.orphans.values()
            if orphan.mark not in open_marks and orphan.possible.isdisjoint(open_marks)
        ]

    def members(self, kindred: Kindred, roots: Iterable[int], *, leader_lives: bool) -> dict[int, Seen]:
        """Every living process of an attempt, the leader left out: by mark, session, group and descent."""
        census = self._take_census()
        # A new process with the leader's number means that the old session is empty.
        by_session = leader_lives or kindred.pid not in census.seen
        waiting = [pid for pid in roots if pid in census.seen]
        waiting += [pid for pid, mark in census.marks.items() if mark == kindred.mark]
        if by_session:
            waiting += [pid for pid, seen in census.seen.items() if kindred.pid in (seen.session, seen.group)]
        if leader_lives:
            waiting.append(kindred.pid)
        found: dict[int, Seen] = {}
        visited: set[int] = set()
        while waiting:
            pid = waiting.pop()
            if pid in visited or pid in self._off_limits:
                continue
            visited.add(pid)
            if pid in census.seen and pid != kindred.pid:
                found[pid] = census.seen[pid]
            waiting += census.children.get(pid, ())
        return found

    def _take_census(self) -> Census:
        """One walk serves everything that is decided in the same step."""
        if self._census is not None:
            return self._census
        census = self._census = Census()
        for pid in self._table.pids():
            seen = self._table.look(pid)
            if seen is None or seen.is_gone or pid in self._off_limits or seen.session == self._kernel_session:
                continue
            census.seen[pid] = seen
            census.children.setdefault(seen.parent, []).append(pid)
            mark = self._table.mark(pid)
            if mark is not None:
                census.marks[pid] = mark
        return census

    def signal(self, seen: Seen, number: int) -> None:
        """Signal that very process, and never another one that got its number."""
        if seen.pid in self._off_limits:
            return
        now = self._table.look(seen.pid)
        if now is None or now.is_gone or now.start_ticks != seen.start_ticks:
            return
        try:
            self._table.send(seen.pid, number)
        except OSError:
            pass  # gone meanwhile, or not ours to signal: what lives on is declared in the end

    def is_alive(self, seen: Seen) -> bool:
        """True while that very process lives."""
        now = self._table.look(seen.pid)
        return now is not None and not now.is_gone and now.start_ticks == seen.start_ticks

    def close(self) -> None:
        """Give the descriptors back, and be an ordinary parent again."""
        for descriptor in (self._list, self._cursor):
            if descriptor is not None:
                os.close(descriptor)
        if self.is_subreaper:
            _set_subreaper(on=False)


def _is_command(pid: int) -> bool:
    """True for what another thread of ours runs, a question to the scheduler mostly: no task has started it."""
    try:
        return RUNNING.is_command(os.getsid(pid))
    except OSError:
        return False


def _open_or_none(path: str) -> int | None:
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None


def _set_subreaper(*, on: bool) -> bool:
    try:
        return int(ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, int(on), 0, 0, 0)) == 0
    except (OSError, AttributeError):
        return False
