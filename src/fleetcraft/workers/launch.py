"""What is started, and the descriptors that starting it takes: folders, programs, the script of a long line.

Descriptors and paths are remembered for a moment, so that a short task costs no look-up of a file name.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass

from fleetcraft.core.task import native_bytes

_DEFAULT_PATH = b"/usr/local/bin:/usr/bin:/bin"
_FOLDERS_KEPT = 16
_PROGRAMS_KEPT = 64
# How long a name is taken to mean the same thing. A folder may be removed and made anew between two tasks.
_LOOK_EVERY_S = 0.25
_FOLDER_KEPT_S = 1.0
_PROGRAM_KEPT_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """One process to start. `env` is complete and in bytes, as the kernel takes it."""

    argv: list[str]
    cwd: str
    env: Mapping[bytes, bytes]
    output: int  # descriptor, opened with O_APPEND, of stdout and stderr
    mark: str  # unique for ever; every descendant is known by it
    script: bytes | None = None  # a shell line too long for one argument; its path becomes the last of argv
    pass_fds: tuple[tuple[int, int], ...] = ()  # (ours, theirs)


class Folders:
    """Working directories as descriptors, a bounded number of them."""

    def __init__(self) -> None:
        self._home = os.open(".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        self._kept: dict[str, tuple[int, float]] = {}
        self._looked_s: dict[str, float] = {}

    def enter(self, path: str, now_s: float) -> None:
        """Make `path` the working directory. Raises OSError that names it."""
        kept = self._kept.pop(path, None)
        if kept is not None:
            descriptor, opened_s = kept
            try:
                # A removed folder can still be entered; its link count tells. Asked for every task of a millisecond, a
                # shared file system's metadata server would answer thousands of times a second.
                is_fresh = now_s - self._looked_s.get(path, -1.0) < _LOOK_EVERY_S
                if now_s - opened_s < _FOLDER_KEPT_S and (is_fresh or os.fstat(descriptor).st_nlink):
                    if not is_fresh:
                        self._looked_s[path] = now_s
                    os.fchdir(descriptor)
                    self._kept[path] = kept
                    return
            except OSError:
                pass  # stale on a network file system: opened anew below, which gives the true error
            os.close(descriptor)
        descriptor = os.open(native_bytes(path), os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fchdir(descriptor)
        except OSError as error:
            os.close(descriptor)
            raise OSError(error.errno, error.strerror, path) from None
        self._kept[path] = (descriptor, now_s)
        if len(self._kept) > _FOLDERS_KEPT:
            oldest = next(iter(self._kept))
            os.close(self._kept.pop(oldest)[0])
            self._looked_s.pop(oldest, None)

    def leave(self) -> None:
        """Go back to where the worker was started."""
        os.fchdir(self._home)

    def close(self) -> None:
        """Give every descriptor back."""
        for descriptor, _ in self._kept.values():
            os.close(descriptor)
        self._kept.clear()
        os.close(self._home)


class Programs:
    """Where the programs are, as a shell with the task's own PATH would find them."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, bytes], tuple[str, float]] = {}

    def find(self, name: str, env: Mapping[bytes, bytes], now_s: float) -> str:
        """The file to execute. Raises FileNotFoundError or PermissionError that names the program."""
        if "/" in name:
            return name
        path = env.get(b"PATH", _DEFAULT_PATH)
        kept = self._kept.get((name, path))
        if kept is not None and now_s - kept[1] < _PROGRAM_KEPT_S:
            return kept[0]
        found = _search(name, path)
        # What was found by way of a relative folder depends on the working directory.
        if found.startswith("/"):
            if len(self._kept) >= _PROGRAMS_KEPT:
                self._kept.clear()
            self._kept[name, path] = (found, now_s)
        return found

    def forget(self) -> None:
        """Search anew next time: something was not where it had been."""
        self._kept.clear()


def _search(name: str, path: bytes) -> str:
    refused = False
    for raw in path.split(b":") if name else ():
        candidate = os.path.join(os.fsdecode(raw or b"."), name)
        try:
            is_file = stat.S_ISREG(os.stat(native_bytes(candidate)).st_mode)
        except (OSError, ValueError):
            continue
        if is_file and os.access(native_bytes(candidate), os.X_OK):
            return candidate
        refused = refused or is_file
    number = errno.EACCES if refused else errno.ENOENT
    raise OSError(number, os.strerror(number), name)


class Wiring:
    """The descriptors of one launch: what to copy where, and what to close when it was started.

    One that is not `is_own` fits every launch with the same output.
    """

    __slots__ = ("_extra", "actions", "argv", "is_own")

    def __init__(self, launch: Launch, null: int) -> None:
        self._extra: list[int] = []
        self.argv: list[str] | None = None  # the launch's own, unless a script was added
        self.is_own = launch.script is not None or bool(launch.pass_fds) or launch.output < 3
        moves = [(null, 0), (launch.output, 1), (launch.output, 2)]
        try:
            if self.is_own:
                moves = self._more(launch, moves)
        except BaseException:
            self.close()
            raise
        self.actions = [(os.POSIX_SPAWN_DUP2, ours, theirs) for ours, theirs in moves]

    def _more(self, launch: Launch, moves: list[tuple[int, int]]) -> list[tuple[int, int]]:
        moves = [*moves, *launch.pass_fds]
        if launch.script is not None:
            theirs = min(set(range(3, 10)) - {theirs for _, theirs in moves})
            moves.append((self._script(launch.script, theirs), theirs))
            self.argv = [*launch.argv, f"/proc/self/fd/{theirs}"]
        # The copies are made one after the other, so a source that is also a target moves out of the way first.
        # A copy onto itself would also stay close-on-exec with an old C library.
        taken = {theirs for _, theirs in moves}
        return [(self._aside(ours, max(taken) + 1) if ours in taken else ours, theirs) for ours, theirs in moves]

    def _script(self, script: bytes, theirs: int) -> int:
        descriptor = os.memfd_create("script", os.MFD_CLOEXEC)
        self._extra.append(descriptor)
        # The shell reads through a descriptor of its own; the one that was handed over is nobody's business.
        rest = memoryview(b"exec %d<&-; %b" % (theirs, script))
        while rest:
            rest = rest[os.write(descriptor, rest) :]
        return descriptor

    def _aside(self, descriptor: int, lowest: int) -> int:
        copy = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, lowest)
        self._extra.append(copy)
        return copy

    def close(self) -> None:
        """Close our side of what was made for this launch alone."""
        for descriptor in self._extra:
            os.close(descriptor)
        self._extra.clear()


def seal_descriptors() -> None:
    """Keep from children what this process inherited, or what a library opened without a thought of them."""
    try:
        names = os.listdir("/proc/self/fd")
    except OSError:
        return
    for name in names:
        try:
            if int(name) > 2:
                os.set_inheritable(int(name), False)  # noqa: FBT003  the standard library gave it no name
        except OSError:
            continue  # the descriptor of the listing itself


def open_high(path: str) -> int:
    """Open for reading, above the three that a worker started without them would otherwise get."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 3)
    finally:
        os.close(descriptor)
