"""The steps by which an attempt is ended: ask, wait, kill, wait, and declare what even that did not end."""

from __future__ import annotations

import math
import os
import signal
from collections.abc import Collection
from dataclasses import dataclass, field
from enum import IntEnum
from resource import struct_rusage
from typing import NamedTuple

from fleetcraft.workers.kin import Kin
from fleetcraft.workers.process_table import ProcessTable, Seen

# What is still there is looked at this often: it may start new processes faster than they are ended.
_LOOK_AGAIN_S = 0.1


class Stage(IntEnum):
    """How far an attempt's end has come."""

    CALM = 0  # nobody asked it to end
    SETTLING = 1  # the leader ended; what it left may be about to end by itself, like the tee of a pipeline
    ASKED = 2
    KILLED = 3


@dataclass(slots=True, eq=False)
class End:
    """What is known and planned once an attempt has begun to end otherwise than by ending cleanly."""

    stage: Stage = Stage.CALM
    is_swept: bool = False  # what the leader left was asked to end
    kill_at_s: float = math.inf
    declare_at_s: float = math.inf
    due_s: float = math.inf  # when the next step must be taken although nothing happened
    background: set[int] = field(default_factory=set)
    unkillable: tuple[tuple[int, str], ...] = ()


class Child:
    """A started process and everything that came from it; `pid` leads its own session and group."""

    __slots__ = (
        "end", "ended_mono_s", "epoch", "is_stopped", "leader_lives", "mark", "pid", "started_boot_s",
        "started_mono_s", "status", "stop_reason", "usage",
    )  # fmt: skip

    def __init__(self, pid: int, mark: str, started_boot_s: float, started_mono_s: float, epoch: int) -> None:
        self.pid = pid
        self.mark = mark
        self.started_boot_s = started_boot_s
        self.started_mono_s = started_mono_s
        self.epoch = epoch
        self.stop_reason: str | None = None
        self.is_stopped = False  # by a signal, state T
        self.leader_lives = True
        self.status = 0
        self.usage: struct_rusage | None = None
        self.ended_mono_s = 0.0
        self.end: End | None = None

    def __repr__(self) -> str:
        return f"Child(pid={self.pid}, mark={self.mark!r})"


class Ended(NamedTuple):
    """An attempt of which nothing is left, except what `unkillable` names with its state and waiting channel.

    `left_background` are the processes that were still there after a leader had ended without being asked to.
    `exit_code` and `signal` are both None only when the leader itself is unkillable. `rss_kib` is None when it
    cannot be told: the kernel credits a child with at least the peak of the worker that started it.
    """

    child: Child
    exit_code: int | None
    signal: int | None
    cpu_s: float
    rss_kib: int | None
    wall_s: float
    left_background: tuple[int, ...]
    unkillable: tuple[tuple[int, str], ...]
    stop_reason: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Graces:
    """How long each step waits."""

    settle_s: float = 0.1
    sweep_s: float = 2.0
    # Freeing hundreds of gigabytes or a GPU context takes the kernel a while.
    declare_s: float = 10.0


class Ladder:
    """Takes the steps. Signals reach the group while its leader is ours to collect, and single processes after that."""

    def __init__(self, kin: Kin, table: ProcessTable, graces: Graces) -> None:
        self._kin = kin
        self._table = table
        self._graces = graces

    def ask(self, child: Child, end: End, number: int, grace_s: float, now_s: float) -> None:
        """Begin: signal the group of a living leader."""
        end.stage = Stage.ASKED
        end.kill_at_s = end.due_s = now_s + grace_s
        _signal_group(child.pid, number)
        if child.is_stopped:
            # A stopped process takes a signal only when it goes on.
            _signal_group(child.pid, signal.SIGCONT)

    def kill(self, child: Child, end: End, now_s: float) -> None:
        """End without asking: the group at once, and soon whatever escaped from it."""
        end.stage = Stage.KILLED
        end.declare_at_s = now_s + self._graces.declare_s
        end.due_s = now_s
        if child.leader_lives:
            # The number cannot have been given to another process while its exit status waits for us.
            _signal_group(child.pid, signal.SIGKILL)
            end.due_s = now_s + _LOOK_AGAIN_S

    def step(self, child: Child, end: End, open_marks: Collection[str], now_s: float) -> bool:
        """Do what is due. True when the attempt is over: nothing is left, or nothing more can be done.

        What a leader leaves has the rest of its grace: a wrapping shell ends at once while the program inside is
        still writing its checkpoint.
        """
        if not child.leader_lives and not self._kin.has_left(child, open_marks):
            return True
        if end.stage is Stage.CALM:
            end.stage = Stage.SETTLING
            end.kill_at_s = end.due_s = now_s + self._graces.settle_s
        elif end.stage is Stage.SETTLING and now_s >= end.kill_at_s:
            left = self._left(child, open_marks)
            end.background.update(left)
            end.kill_at_s = now_s + self._graces.sweep_s
            self._ask_each(end, left)
        elif end.stage is Stage.ASKED and now_s >= end.kill_at_s:
            self.kill(child, end, now_s)
        elif end.stage is Stage.ASKED and not child.leader_lives and not end.is_swept:
            # The group was asked together with its leader, and asking twice could cut a checkpoint short.
            left = self._left(child, open_marks)
            self._ask_each(end, {pid: seen for pid, seen in left.items() if seen.group != child.pid})
        if end.stage is Stage.ASKED:
            # The death of an orphan wakes us only where orphans come home.
            polled = not child.leader_lives and not self._kin.is_subreaper
            end.due_s = min(end.kill_at_s, now_s + _LOOK_AGAIN_S) if polled else end.kill_at_s
        return end.stage is Stage.KILLED and now_s >= end.due_s and self._insist(child, end, open_marks, now_s)

    def _ask_each(self, end: End, left: dict[int, Seen]) -> None:
        end.stage = Stage.ASKED
        end.is_swept = True
        for seen in left.values():
            self._kin.signal(seen, signal.SIGTERM)
            self._kin.signal(seen, signal.SIGCONT)

    def _left(self, child: Child, open_marks: Collection[str]) -> dict[int, Seen]:
        orphans = {} if child.leader_lives else {o.seen.pid: o.seen for o in self._kin.orphans_of(child, open_marks)}
        return orphans | self._kin.members(child, orphans, leader_lives=child.leader_lives)

    def _insist(self, child: Child, end: End, open_marks: Collection[str], now_s: float) -> bool:
        left = self._left(child, open_marks)
        if child.stop_reason is None:
            end.background.update(left)
        for seen in left.values():
            self._kin.signal(seen, signal.SIGKILL)
        end.due_s = now_s + _LOOK_AGAIN_S
        if now_s < end.declare_at_s:
            return False
        living = [pid for pid, seen in left.items() if self._kin.is_alive(seen)]
        if child.leader_lives:
            living.append(child.pid)
        end.unkillable = tuple((pid, self._table.where(pid)) for pid in sorted(living))
        return True


def _signal_group(leader: int, number: int) -> None:
    try:
        os.killpg(leader, number)
    except OSError:
        pass  # all of them are gone, or none is ours to signal: what lives on is declared in the end
