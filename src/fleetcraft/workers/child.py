"""Starts the processes of attempts and collects their ends: the one place of the worker that starts processes.

An attempt is delivered as ended only when no process that came from it is left, so that its slot can be given
to the next; what not even KILL ends is named with its state and waiting channel. One thread, no pidfd: the kernel's
SIGCHLD makes `wake_fd` readable, and `collect` does the rest.
"""

from __future__ import annotations

import math
import os
import resource
import select
import signal
import time
from collections.abc import Mapping
from types import FrameType
from typing import Any

from fleetcraft.core.clock import Clock
from fleetcraft.core.task import native_bytes
from fleetcraft.spool.host import LIFE_VARIABLE, MARK_VARIABLE
from fleetcraft.workers.kin import Kin
from fleetcraft.workers.ladder import Child, End, Ended, Graces, Ladder, Stage
from fleetcraft.workers.launch import Folders, Launch, Programs, Wiring, open_high, seal_descriptors
from fleetcraft.workers.process_table import ProcessTable

__all__ = ["Child", "Ended", "Graces", "Launch", "Supervisor", "seal_descriptors"]

_WAIT_FLAGS = os.WNOHANG | os.WUNTRACED | os.WCONTINUED
_LONGEST_POLL_S = 0.2
_HELPER_POLL_S = 0.01
# Exec resets what we handle, not what is ignored: by Python, by us, or by who started us (nohup, a shell's background).
_RESET = (signal.SIGHUP, signal.SIGPIPE, signal.SIGXFSZ)
_MARK_KEY = MARK_VARIABLE.encode()
_LIFE_KEY = LIFE_VARIABLE.encode()


class Supervisor:
    """All child processes of one worker life. It must live in the main thread, and alone collects children."""

    def __init__(
        self,
        clock: Clock,
        life_id: str,
        *,
        sweep_grace_s: float = 2.0,
        graces: Graces | None = None,
        table: ProcessTable | None = None,
    ) -> None:
        self._clock = clock
        self._life = life_id.encode()
        self._table = table or ProcessTable()
        # Read and written by the kernel's signal handler too, so neither end may ever block.
        self.wake_fd, self._wake_in = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._null = open_high("/dev/null")
        self._folders = Folders()
        self._programs = Programs()
        self._wirings: dict[int, Wiring] = {}
        self._kin = Kin(clock, self._table)
        self._ladder = Ladder(self._kin, self._table, graces or Graces(sweep_s=sweep_grace_s))
        self._leaders: dict[int, Child] = {}
        self._open: dict[str, Child] = {}
        self._ending: dict[str, End] = {}
        self._unkillable: set[int] = set()
        self._helpers: dict[int, int | None] = {}  # pid: how it ended
        self._own_peak_kib = 0
        self._walk_wanted = False
        self._reset = sorted({*_RESET, *(n for n in signal.valid_signals() if signal.getsignal(n) is signal.SIG_IGN)})
        self._session: dict[str, Any] = {"setsid": True}
        self.notes: list[str] = []
        if not self._kin.is_subreaper:
            self.notes.append("this kernel has no child subreaper: what leaves its parent is found by its mark only")
        seal_descriptors()
        self._handler_before = signal.signal(signal.SIGCHLD, _on_child)
        # The handler alone would lose the race between the last look and the poll.
        self._wake_before = signal.set_wakeup_fd(self._wake_in, warn_on_full_buffer=False)

    def __len__(self) -> int:
        return len(self._open)

    def running(self) -> list[Child]:
        """All that were started and not delivered as ended."""
        return list(self._open.values())

    def stopped(self) -> list[Child]:
        """Those whose leader stands still by a signal (state T), like one that asked a terminal for input."""
        return [child for child in self._leaders.values() if child.is_stopped]

    def unkillable(self) -> frozenset[int]:
        """Declared so, and still there: what they hold is not free."""
        return frozenset(self._unkillable)

    def spawn(self, launch: Launch) -> Child:
        """Start a process in a session of its own. Raises OSError as exec gave it, naming the program or the folder."""
        env = {**launch.env, _MARK_KEY: launch.mark.encode(), _LIFE_KEY: self._life}
        now_s = self._clock.mono()
        # Most launches differ in nothing but argv; only the others need descriptors of their own.
        wiring = self._wirings.get(launch.output) if launch.script is None and not launch.pass_fds else None
        wiring = wiring or Wiring(launch, self._null)
        try:
            self._folders.enter(launch.cwd, now_s)
            try:
                pid = self._spawn_in_place(wiring.argv or launch.argv, wiring, env, now_s)
            finally:
                self._folders.leave()
        except OSError as error:
            if isinstance(error.filename, bytes):
                error.filename = error.filename.decode("utf-8", "surrogateescape")
            raise
        finally:
            if wiring.is_own:
                wiring.close()
            else:
                self._wirings[launch.output] = wiring
        child = Child(pid, launch.mark, self._clock.boot(), now_s, self._kin.on_pid(pid))
        self._leaders[pid] = self._open[launch.mark] = child
        return child

    def start_helper(self, argv: list[str], env: Mapping[str, str], stdin: int, output: int) -> int:
        """Start a process of the worker's own, which is no attempt: nothing waits for it. Raises OSError.

        What it says goes to `output`. It must start nothing itself.
        """
        actions = [(os.POSIX_SPAWN_DUP2, ours, theirs) for ours, theirs in ((stdin, 0), (self._null, 1), (output, 2))]
        settings: dict[str, Any] = {"file_actions": actions, "setsigmask": (), "setsigdef": self._reset}
        try:
            pid = os.posix_spawn(argv[0], argv, dict(env), **settings, **self._session)
        except NotImplementedError:  # see `_exec`
            pid = os.posix_spawn(argv[0], argv, dict(env), **settings, setpgroup=0)
        self._helpers[pid] = None
        self._kin.nobodys.add(pid)
        return pid

    def helper_status(self, pid: int) -> int | None:
        """How a helper ended, as the kernel tells it, once; None while it lives."""
        status = self._helpers.get(pid)
        if status is not None:
            del self._helpers[pid]  # its pid may be given to an attempt now
        return status

    def end_helper(self, pid: int, grace_s: float) -> bool:
        """Wait a moment for a helper that was told to end, then kill it; False when not even that ended it.

        To be called after `close`: it collects children by itself.
        """
        for number in (0, signal.SIGKILL):
            due_s = time.monotonic() + grace_s
            while self._helpers.get(pid) is None:
                try:
                    if number:
                        os.kill(pid, number)
                    ended, status = os.waitpid(pid, os.WNOHANG)
                except OSError:
                    return True
                if ended:
                    self._helpers[pid] = status
                elif time.monotonic() >= due_s:
                    break
                else:
                    time.sleep(_HELPER_POLL_S)
        return self._helpers.get(pid) is not None

    def _spawn_in_place(self, argv: list[str], wiring: Wiring, env: dict[bytes, bytes], now_s: float) -> int:
        name = argv[0]
        program = self._programs.find(name, env, now_s)
        try:
            return self._exec(program, argv, wiring, env)
        except FileNotFoundError:
            if program == name:
                raise
            # It was moved since it was looked up.
            self._programs.forget()
            return self._exec(self._programs.find(name, env, now_s), argv, wiring, env)

    def _exec(self, program: str, argv: list[str], wiring: Wiring, env: dict[bytes, bytes]) -> int:
        try:
            return os.posix_spawn(
                native_bytes(program),
                argv if all(map(str.isascii, argv)) else [native_bytes(argument) for argument in argv],
                env,
                file_actions=wiring.actions,
                setsigmask=(),
                setsigdef=self._reset,
                **self._session,
            )
        except NotImplementedError:
            if "setpgroup" in self._session:
                raise
            # A Python that was built for an old C library. A group is enough for the signals.
            self._session = {"setpgroup": 0}
            self.notes.append("this Python cannot start sessions: children get a process group of their own instead")
            return self._exec(program, argv, wiring, env)

    def stop(self, child: Child, reason: str, *, first: int = signal.SIGTERM, grace_s: float) -> None:
        """Ask an attempt to end, and kill it when it has not after the grace. Asking again changes nothing."""
        if not child.leader_lives or child.mark not in self._open:
            return
        child.stop_reason = child.stop_reason or reason
        end = self._ending_of(child)
        if end.stage is Stage.CALM:
            self._ladder.ask(child, end, first, grace_s, self._clock.mono())

    def force(self, child: Child, reason: str = "killed") -> None:
        """Kill an attempt at once."""
        if child.mark not in self._open:
            return
        if child.leader_lives:
            child.stop_reason = child.stop_reason or reason
        end = self._ending_of(child)
        if end.stage is not Stage.KILLED:
            self._ladder.kill(child, end, self._clock.mono())

    def _ending_of(self, child: Child) -> End:
        if child.end is None:
            child.end = self._ending[child.mark] = End()
        return child.end

    def next_deadline_s(self) -> float | None:
        """When (monotonic) `collect` must run although nobody died; None when only a death matters."""
        if not self._ending and not self._walk_wanted:
            return None
        due_s = min((end.due_s for end in self._ending.values()), default=math.inf)
        return min(due_s, self._kin.walk_again_s) if self._walk_wanted else due_s

    def collect(self) -> list[Ended]:
        """All attempts that ended since; never waits."""
        try:
            os.read(self.wake_fd, 256)
        except BlockingIOError:
            pass
        now_s = self._clock.mono()
        gone = self._reap(now_s)
        if not self._ending and not self._walk_wanted:
            if not gone:
                return []
            if self._kin.is_quiet(self._leaders, gone, now_s):
                return [self._deliver(child) for child in gone]
        elif not gone and now_s < (self.next_deadline_s() or 0.0):
            return []
        return self._settle(gone, now_s)

    def _settle(self, gone: list[Child], now_s: float) -> list[Ended]:
        """The thorough way: something may be left of an attempt, or is being ended."""
        kin = self._kin
        kin.begin_step()
        unknown = [mark for mark in self._ending if not self._open[mark].leader_lives]
        for child in gone:
            self._ending_of(child).due_s = now_s
        if unknown or self._walk_wanted:
            self._walk_wanted = not kin.refresh(self._leaders, self._open, (), now_s)
        if gone and (self._walk_wanted or not unknown) and not kin.refresh(self._leaders, self._open, gone, now_s):
            unknown += [child.mark for child in gone]
            self._walk_wanted = True
        if not self._walk_wanted:
            unknown = []
        over: list[Child] = []
        for mark, end in self._ending.items():
            if mark in unknown:
                end.due_s = max(end.due_s, self._kin.walk_again_s)
            elif self._ladder.step(self._open[mark], end, self._open, now_s):
                over.append(self._open[mark])
        ended = [self._deliver(child) for child in over]
        for orphan in self._kin.strays(self._open):
            self._kin.signal(orphan.seen, signal.SIGKILL)
        return ended

    def _reap(self, now_s: float) -> list[Child]:
        gone: list[Child] = []
        while True:
            try:
                pid, status, usage = os.wait4(-1, _WAIT_FLAGS)
            except ChildProcessError:
                break
            if not pid:
                break
            child = self._leaders.get(pid)
            if child is None and pid in self._helpers:
                if status & 0xFF != 0x7F and status != 0xFFFF:
                    self._helpers[pid] = status
                    self._kin.on_reaped(pid)
                continue
            if status & 0xFF == 0x7F or status == 0xFFFF:  # stopped, continued
                if child is not None:
                    child.is_stopped = status != 0xFFFF
                continue
            if child is None:
                # What it had started may have come to us.
                self._walk_wanted = True
                self._kin.on_reaped(pid)
                self._unkillable.discard(pid)
                continue
            del self._leaders[pid]
            child.status, child.usage, child.ended_mono_s = status, usage, now_s
            child.leader_lives = False
            gone.append(child)
        return gone

    def _deliver(self, child: Child) -> Ended:
        del self._open[child.mark]
        end = child.end
        if end is not None:
            del self._ending[child.mark]
            self._give_up(child, end)
        status, usage = child.status, child.usage
        if usage is None:
            wall_s = self._clock.mono() - child.started_mono_s
            return Ended(child, None, None, 0.0, None, wall_s, (), end.unkillable if end else (), child.stop_reason)
        by_signal = status & 0x7F
        return Ended(
            child,
            None if by_signal else status >> 8,
            by_signal or None,
            usage.ru_utime + usage.ru_stime,
            usage.ru_maxrss if usage.ru_maxrss > self._own_peak_kib and self._is_above_own(usage.ru_maxrss) else None,
            child.ended_mono_s - child.started_mono_s,
            tuple(sorted(end.background)) if end else (),
            end.unkillable if end else (),
            child.stop_reason,
        )

    def _is_above_own(self, peak_kib: int) -> bool:
        # Until it calls exec, a spawned child runs in our memory, and the kernel keeps that peak as its own.
        self._own_peak_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak_kib > self._own_peak_kib

    def _give_up(self, child: Child, end: End) -> None:
        """What was declared unkillable is nobody's from now on, and watched until it is gone."""
        if child.leader_lives:
            del self._leaders[child.pid]
            self._kin.nobodys.add(child.pid)
        for pid, _ in end.unkillable:
            self._unkillable.add(pid)
            if self._kin.orphans.pop(pid, None) is not None:
                self._kin.nobodys.add(pid)

    def close(self, grace_s: float) -> list[tuple[int, str]]:
        """End everything that is still there, and give back what was taken; returns what could not be ended."""
        left: list[tuple[int, str]] = []
        for child in self.running():
            self.stop(child, "the worker ends", grace_s=grace_s)
        poll = select.poll()
        poll.register(self.wake_fd, select.POLLIN)
        while self._open:
            due_s = self.next_deadline_s()
            wait_s = _LONGEST_POLL_S if due_s is None else min(max(due_s - self._clock.mono(), 0.0), _LONGEST_POLL_S)
            poll.poll(math.ceil(wait_s * 1000))
            for ended in self.collect():
                left += ended.unkillable
        signal.set_wakeup_fd(self._wake_before)
        signal.signal(signal.SIGCHLD, self._handler_before or signal.SIG_DFL)
        self._kin.close()
        self._folders.close()
        for descriptor in (self.wake_fd, self._wake_in, self._null):
            os.close(descriptor)
        return left


def _on_child(_number: int, _frame: FrameType | None) -> None:
    """Needed only so that the kernel's signal reaches the wake-up descriptor."""
