"""Starts processes that outlive their starter or are minded by it, and tells for ever which process is which.

A process is named by its pid, its start time and the boot it belongs to; before a signal all of them are compared.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

# Exec resets handlers, not what is ignored: by Python, or by who started us (nohup, a shell's background).
_RESET = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGPIPE, signal.SIGTERM, signal.SIGXFSZ)
# A session may start new processes while it is being ended; each pass finds those of the pass before.
_PASSES = 8


@dataclass(frozen=True, slots=True)
class Process:
    """A process as /proc shows it."""

    pid: int
    state: str
    session: int
    start_ticks: int

    @property
    def is_gone(self) -> bool:
        """True for a zombie: it runs nothing any more and only waits to be collected."""
        return self.state in ("Z", "X", "x")


def process(pid: int) -> Process | None:
    """The process with that pid, or None when there is none."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as source:
            raw = source.read()
        # The command's name stands in parentheses and may itself hold spaces and parentheses.
        fields = raw[raw.rindex(b")") + 2 :].split()
        return Process(pid, fields[0].decode("ascii", "replace"), int(fields[3]), int(fields[19]))
    except (OSError, ValueError, IndexError):
        return None


def lives(pid: int, start_ticks: int) -> bool:
    """Whether that very process is still there and runs."""
    seen = process(pid)
    return seen is not None and seen.start_ticks == start_ticks and not seen.is_gone


def boot_id() -> str | None:
    """Id of this boot of this kernel."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as source:
            return source.readline().strip() or None
    except (OSError, ValueError):
        return None


def all_processes() -> list[Process]:
    """Every process that /proc shows."""
    try:
        names = [name for name in os.listdir("/proc") if name.isdigit()]
    except OSError:
        return []
    return [seen for seen in (process(int(name)) for name in names) if seen is not None]


def marked(variable: str, value: str) -> list[Process]:
    """Our living processes that were started with that variable, whatever their parent, group or session is."""
    mark = f"{variable}={value}".encode()
    found: list[Process] = []
    for seen in all_processes():
        if seen.is_gone:
            continue
        try:
            with open(f"/proc/{seen.pid}/environ", "rb") as source:
                if mark in source.read().split(b"\0"):
                    found.append(seen)
        except OSError:
            continue  # not ours to look at, or gone
    return found


def signal_exactly(seen: Process, number: int) -> bool:
    """Signal that very process, and not another one that got its pid since."""
    if not lives(seen.pid, seen.start_ticks):
        return False
    try:
        os.kill(seen.pid, number)
    except OSError:
        return False
    return True


def kill_session(leader: int) -> None:
    """End a session whose leader is our child and was not waited for, so that its number cannot mean another one."""
    try:
        os.killpg(leader, signal.SIGKILL)
    except OSError:
        pass
    for _ in range(_PASSES):
        left = [seen for seen in all_processes() if seen.session == leader and not seen.is_gone]
        if not left:
            return
        for seen in left:
            signal_exactly(seen, signal.SIGKILL)


def spawn(argv: Sequence[str], *, env: Mapping[str, str], cwd: str | None = None, output: int | None = None) -> int:
    """Start a process in a session of its own, saying what it says into `output`; raises OSError as exec gave it.

    The caller waits for it, or exits first.
    """
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    before: int | None = None
    try:
        said = null if output is None else output
        actions = [(os.POSIX_SPAWN_DUP2, source, target) for source, target in ((null, 0), (said, 1), (said, 2))]
        if cwd is not None:
            # posix_spawn has no portable way to name a folder.
            before = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            os.chdir(cwd)
        return os.posix_spawnp(
            argv[0], list(argv), dict(env), file_actions=actions, setsid=True, setsigmask=(), setsigdef=_RESET
        )
    finally:
        if before is not None:
            os.fchdir(before)
            os.close(before)
        os.close(null)


def wait_any() -> tuple[int, int] | None:
    """One child that has ended: its pid and its exit code, or the negative signal; None when none has."""
    try:
        pid, status = os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return None
    return (pid, os.waitstatus_to_exitcode(status)) if pid else None


def gone(pids: Iterable[Process]) -> bool:
    """Whether all of these have ended."""
    return not any(lives(seen.pid, seen.start_ticks) for seen in pids)
