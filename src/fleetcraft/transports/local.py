"""Runs commands on this machine: each in a session of its own, with a deadline and a bound on what it may say.

Whatever happens, the command is waited for before the answer is given: no zombie is left, and no pid is signalled
that the kernel could have given to somebody else meanwhile.
"""

from __future__ import annotations

import errno
import os
import selectors
import shutil
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from typing import Self

from fleetcraft.core.clock import Clock, SystemClock
from fleetcraft.transports.api import Answer, Surroundings
from fleetcraft.transports.processes import kill_session
from fleetcraft.transports.running import RUNNING

MOST_BYTES = 64 << 20
# How long what was left behind may keep a pipe open after the command itself has ended.
_LEFTOVER_GRACE_S = 0.5
_UNKILLABLE_S = 5.0
_LOOK_S = 0.05  # only for kernels without process descriptors
_BLOCK = 1 << 16


def surround(base: Mapping[str, str], surroundings: Surroundings) -> dict[str, str]:
    """The environment of a command: `base` less what would reshape its answer, plus what was asked for."""
    kept = {
        name: value
        for name, value in base.items()
        if name in surroundings.keep or not name.startswith(surroundings.drop_prefixes)
    }
    return {**kept, **surroundings.add}


class LocalTransport:
    """This machine. `base` replaces the environment of this process, for tests."""

    name = "local"

    def __init__(
        self, *, clock: Clock | None = None, base: Mapping[str, str] | None = None, most_bytes: int = MOST_BYTES
    ) -> None:
        self._clock = clock or SystemClock()
        self._base = base
        self._most_bytes = most_bytes

    def run(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        timeout_s: float = 60.0,
        surroundings: Surroundings = Surroundings(),  # noqa: B008  an immutable value, and the seam's own signature
        cwd: str | None = None,
    ) -> Answer:
        """See `Transport.run`."""
        started_s = self._clock.mono()
        env = surround(os.environ if self._base is None else self._base, surroundings)
        words = tuple(argv)
        collected_by_others = _may_be_collected_by_others()
        relay = _Relay.of(words, env) if collected_by_others else None
        if collected_by_others and relay is None and words:
            # The child that cannot start it would be collected by others too, and nobody would know why it ended.
            missing = FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
            return self._answer(words, started_s, problem=_why_not_started(words, cwd, missing))
        try:
            with RUNNING.starting():
                process = subprocess.Popen(
                    words if relay is None else relay.argv,
                    stdin=subprocess.PIPE if stdin else subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    env=env,
                    cwd=cwd,
                    start_new_session=True,
                    pass_fds=() if relay is None else (relay.write_end,),
                )
                RUNNING.began(process.pid)
        except (OSError, ValueError, IndexError) as error:
            if relay is not None:
                relay.close()
            return self._answer(words, started_s, problem=_why_not_started(words, cwd, error))
        talk = _Talk(process, stdin, self._most_bytes, self._clock, started_s + timeout_s)
        try:
            problem = talk.until_the_end()
        except BaseException:
            # Interrupted by a person, mostly. The command must not stay behind as nobody's.
            talk.kill()
            talk.collect()
            if relay is not None:
                relay.close()
            raise
        if problem:
            talk.kill()
        code = talk.collect()
        if relay is not None:
            code = relay.close()
        if talk.is_stuck:
            problem += "; it is stuck in the kernel and could not be ended"
        if problem.startswith(_TOO_SLOW):
            problem = problem.replace(
                _TOO_SLOW, f"timed out after {timeout_s:g} s and was ended with all it had started"
            )
        elif not problem and code is None:
            problem = "ended by a signal" if relay else "its exit status was taken by another part of this process"
        elif not problem and code is not None and code < 0:
            problem = f"ended by the signal {_signal_name(-code)}"
        return self._answer(
            words, started_s, code=None if problem else code, out=talk.said(0), err=talk.said(1), problem=problem
        )

    def _answer(
        self,
        argv: tuple[str, ...],
        started_s: float,
        *,
        code: int | None = None,
        out: str = "",
        err: str = "",
        problem: str = "",
    ) -> Answer:
        took_s = max(self._clock.mono() - started_s, 0.0)
        return Answer(argv=argv, code=code, out=out, err=err, took_s=took_s, problem=problem)


_TOO_SLOW = "timed out"
# Behind /proc, because a plain shell cannot name a descriptor of two digits.
_TELL = '"$@"; echo $? >/proc/self/fd/{descriptor}'


def _may_be_collected_by_others() -> bool:
    """Whether this process handles ended children itself, as a worker does: it may collect ours before we can."""
    return signal.getsignal(signal.SIGCHLD) not in (signal.SIG_DFL, None)


class _Relay:
    """A shell around the command that tells its exit code through a pipe, so that nobody can take it away."""

    def __init__(self, program: str, words: tuple[str, ...]) -> None:
        self._read_end, self.write_end = os.pipe()
        os.set_blocking(self._read_end, False)
        self.argv = ("/bin/sh", "-c", _TELL.format(descriptor=self.write_end), "sh", program, *words[1:])

    @classmethod
    def of(cls, words: tuple[str, ...], env: Mapping[str, str]) -> Self | None:
        """None for what cannot be started: without the shell, the reason is told."""
        program = shutil.which(words[0], path=env.get("PATH", os.defpath)) if words else None
        return cls(program, words) if program is not None else None

    def close(self) -> int | None:
        """The exit code, None when the shell was ended before it could tell."""
        os.close(self.write_end)
        try:
            told = os.read(self._read_end, 16).strip()
        except BlockingIOError:
            told = b""
        finally:
            os.close(self._read_end)
        return int(told) if told.isdigit() else None


class _Talk:
    """One running command and what passes through its pipes."""

    def __init__(
        self, process: subprocess.Popen[bytes], stdin: bytes, most_bytes: int, clock: Clock, deadline_s: float
    ) -> None:
        self._process = process
        self._left = memoryview(stdin)
        self._most_bytes = most_bytes
        self._clock = clock
        self._deadline_s = deadline_s
        self._heard = [bytearray(), bytearray()]
        self._ended_s: float | None = None
        self.is_stuck = False

    def until_the_end(self) -> str:
        """Feed and drain until the command has ended; returns what went wrong."""
        process = self._process
        with selectors.DefaultSelector() as selector:
            for number, pipe in enumerate((process.stdout, process.stderr)):
                if pipe is not None:
                    os.set_blocking(pipe.fileno(), False)
                    selector.register(pipe, selectors.EVENT_READ, number)
            if process.stdin is not None:
                os.set_blocking(process.stdin.fileno(), False)
                selector.register(process.stdin, selectors.EVENT_WRITE)
            descriptor = _process_descriptor(process.pid)
            try:
                if descriptor is not None:
                    selector.register(descriptor, selectors.EVENT_READ)
                return self._exchange(selector, descriptor)
            finally:
                if descriptor is not None:
                    os.close(descriptor)

    def _exchange(self, selector: selectors.BaseSelector, descriptor: int | None) -> str:
        while True:
            now_s = self._clock.mono()
            pipes = any(key.fileobj is not descriptor for key in selector.get_map().values())
            if self._ended_s is None and self._has_ended():
                self._ended_s = now_s
                if descriptor is not None:
                    selector.unregister(descriptor)  # it stays readable, and would turn the wait into a spin
            if self._ended_s is not None and (not pipes or now_s - self._ended_s >= _LEFTOVER_GRACE_S):
                return ""
            if self._ended_s is None and now_s >= self._deadline_s:
                return _TOO_SLOW
            until_s = self._deadline_s if self._ended_s is None else self._ended_s + _LEFTOVER_GRACE_S
            wait_s = until_s - now_s
            if descriptor is None and self._ended_s is None:
                wait_s = min(wait_s, _LOOK_S)
            for key, _ in selector.select(max(wait_s, 0.0)):
                if key.fileobj is self._process.stdin:
                    self._feed(selector)
                elif key.fileobj is not descriptor and not self._hear(selector, key):
                    return f"said more than {self._most_bytes >> 20} MiB and was ended"

    def _feed(self, selector: selectors.BaseSelector) -> None:
        pipe = self._process.stdin
        if pipe is None:
            return
        try:
            self._left = self._left[os.write(pipe.fileno(), self._left[:_BLOCK]) :]
        except BlockingIOError:
            return
        except OSError:
            self._left = self._left[:0]  # it does not want the rest; its exit code tells what that means
        if not self._left:
            selector.unregister(pipe)
            pipe.close()

    def _hear(self, selector: selectors.BaseSelector, key: selectors.SelectorKey) -> bool:
        try:
            block = os.read(key.fd, _BLOCK)
        except BlockingIOError:
            return True
        if not block:
            selector.unregister(key.fileobj)
            return True
        self._heard[key.data] += block
        return len(self._heard[0]) + len(self._heard[1]) <= self._most_bytes

    def _has_ended(self) -> bool:
        try:
            # Not collected yet: as a zombie it keeps its pid, which is also its session's and its group's.
            return os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        except ChildProcessError:
            return True

    def kill(self) -> None:
        """End the command and everything that it started in its session."""
        kill_session(self._process.pid)

    def collect(self) -> int | None:
        """Wait for the command and close its pipes: its exit code, the negative signal, or None when it was taken."""
        process = self._process
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe is not None:
                try:
                    pipe.close()
                except OSError:
                    pass
        if not self._is_collectable():
            # Waiting on would hang us too: a dead file server is the usual reason.
            self.is_stuck = True
            process.returncode = -signal.SIGKILL
            return None
        RUNNING.ended(process.pid)
        try:
            _, status = os.waitpid(process.pid, 0)
        except ChildProcessError:
            # subprocess itself would call this exit code 0.
            process.returncode = 0
            return None
        process.returncode = os.waitstatus_to_exitcode(status)
        return process.returncode

    def _is_collectable(self) -> bool:
        give_up_s = self._clock.mono() + _UNKILLABLE_S
        pause = threading.Event()
        while not self._has_ended():
            if self._clock.mono() >= give_up_s:
                return False
            pause.wait(_LOOK_S / 10)
        return True

    def said(self, number: int) -> str:
        """What came through one pipe."""
        return self._heard[number].decode("utf-8", "replace")


def _process_descriptor(pid: int) -> int | None:
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        return None


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return str(number)


def _why_not_started(argv: tuple[str, ...], cwd: str | None, error: Exception) -> str:
    program = argv[0] if argv else ""
    if not isinstance(error, OSError):
        return f"not a command that can be started: {error}"
    if cwd is not None and not os.path.isdir(cwd):
        return f"not started: the folder {cwd} is not there"
    if isinstance(error, FileNotFoundError):
        where = "is not there" if "/" in program else "is not on the PATH"
        return f"not found: {program} {where}"
    return f"not started: {program}: {error.strerror or error}"
