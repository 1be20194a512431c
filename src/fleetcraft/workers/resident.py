"""The worker's side of a resident: a child that loaded a function once and takes chunks of calls.

Nothing here waits. What is known about the call in flight comes from a page of memory that both share, so it is
known also when the resident crashed or does not answer.
"""

from __future__ import annotations

import functools
import json
import mmap
import os
import pkgutil
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, NamedTuple

from fleetcraft.workers import resident_main as far
from fleetcraft.workers.child import Child, Launch, Supervisor

# As many calls as one chunk may have: what the shared page has room for.
MOST_CALLS = 1 << 16
_PAGE_BYTES = far.HEADER_BYTES + 4 * MOST_CALLS
_READ_BYTES = 1 << 18


class ResidentState(StrEnum):
    """What a resident can be asked to do now."""

    LOADING = "loading"
    READY = "ready"  # takes a chunk
    BUSY = "busy"
    ENDED = "ended"  # answers nothing any more; its process ends or has ended


class Block(NamedTuple):
    """The answer to consecutive calls of a chunk: successes that said nothing special, or one call by itself."""

    first: int  # index in the chunk
    walls_us: list[int]
    ok: bool
    value: list[Any] | None  # one per call; None when all of them are null
    error: dict[str, Any] | None  # type, message, kind ("exception" or "memory"), traceback, exit
    cpu_s: float | None
    output: tuple[int, int] | None  # where its output stands in the log; None when it wrote nothing
    last: bool  # the chunk is finished

    @property
    def calls(self) -> int:
        """How many it answers."""
        return len(self.walls_us)


class InFlight(NamedTuple):
    """The call that runs, or was running when the process ended."""

    position: int  # in the chunk
    since_mono_s: float


@functools.cache
def _program() -> str:
    source = pkgutil.get_data(__package__ or "", "resident_main.py")
    if source is None:
        raise FileNotFoundError("resident_main.py is not part of this installation of Fleetcraft")
    return source.decode()


class Resident:
    """One resident. `send` when READY, `receive` when `reply_fd` is readable, `flush` while `wants_write`.

    ENDED says that no answer will come; a `fault` means that its process must be ended by force.
    """

    def __init__(self, child: Child, request_fd: int, reply_fd: int, page: mmap.mmap) -> None:
        self.child = child
        self.request_fd = request_fd
        self.reply_fd = reply_fd
        self.state = ResidentState.LOADING
        self.setup_error: dict[str, Any] | None = None
        self.load_s: float | None = None
        self.python: str | None = None  # its version
        self.fault: str | None = None  # why it ended, when it broke the protocol
        self._page = page
        self._unsent = memoryview(b"")
        self._unread = bytearray()
        self._chunk = 0
        self._sent = 0
        self._received = 0

    @classmethod
    def start(
        cls,
        supervisor: Supervisor,
        *,
        python: str,
        call: str,
        setup: str | None,
        setup_args: Mapping[str, Any] | None,
        cwd: str,
        env: Mapping[bytes, bytes],
        output: int,
        mark: str,
    ) -> Resident:
        """Start one. Raises OSError as exec gave it."""
        ours: list[int] = []
        theirs: list[int] = []
        try:
            theirs_request, ours_request = os.pipe2(os.O_CLOEXEC)
            theirs.append(theirs_request)
            ours.append(ours_request)
            ours_reply, theirs_reply = os.pipe2(os.O_CLOEXEC)
            theirs.append(theirs_reply)
            ours.append(ours_reply)
            shared = os.memfd_create("progress", os.MFD_CLOEXEC)
            theirs.append(shared)
            os.truncate(shared, _PAGE_BYTES)
            page = mmap.mmap(shared, _PAGE_BYTES)
            launch = Launch(
                argv=[python, "-c", _program()],
                cwd=cwd,
                env=env,
                output=output,
                mark=mark,
                pass_fds=((theirs_request, far.REQUESTS), (theirs_reply, far.REPLIES), (shared, far.PROGRESS)),
            )
            child = supervisor.spawn(launch)
        except BaseException:
            for descriptor in ours:
                os.close(descriptor)
            raise
        finally:
            for descriptor in theirs:
                os.close(descriptor)
        for descriptor in ours:
            os.set_blocking(descriptor, False)
        resident = cls(child, ours_request, ours_reply, page)
        what = {"call": call, "setup": setup, "setup_args": dict(setup_args or {})}
        resident._unsent = memoryview(json.dumps(what).encode() + b"\n")
        resident.flush()
        return resident

    @property
    def wants_write(self) -> bool:
        """True while part of a request waits for the pipe."""
        return bool(self._unsent)

    def send(self, calls: Sequence[bytes]) -> None:
        """Give it a chunk: for each call the JSON text of its arguments, an object on one line.

        Raises ValueError when it takes none now.
        """
        if self.state is not ResidentState.READY or not 0 < len(calls) <= MOST_CALLS:
            raise ValueError(f"a resident that is {self.state} was given {len(calls)} calls")
        self.state = ResidentState.BUSY
        self._chunk += 1
        self._sent, self._received = len(calls), 0
        self._unsent = memoryview(b"[" + b",".join(calls) + b"]\n")
        self.flush()

    def flush(self) -> None:
        """Write as much of the request as the pipe takes."""
        try:
            while self._unsent:
                self._unsent = self._unsent[os.write(self.request_fd, self._unsent) :]
        except BlockingIOError:
            pass
        except OSError:
            # It ended; what it answered before is still in the other pipe.
            self._unsent = memoryview(b"")

    def receive(self) -> list[Block]:
        """What it answered since. State, `load_s` and `setup_error` follow."""
        blocks: list[Block] = []
        while self.state is not ResidentState.ENDED:
            try:
                part = os.read(self.reply_fd, _READ_BYTES)
            except BlockingIOError:
                break
            if not part:
                self.state = ResidentState.ENDED
                break
            self._unread += part
            if b"\n" in part:
                self._take_lines(blocks)
        return blocks

    def _take_lines(self, blocks: list[Block]) -> None:
        *lines, rest = self._unread.split(b"\n")
        self._unread = rest
        for line in lines:
            try:
                self._take(json.loads(line), blocks)
            except (ValueError, KeyError, TypeError) as error:
                said = bytes(line[:80])
                self.fault = f"the resident's answer {said!r} cannot be read: {type(error).__name__}: {error}"
                self.state = ResidentState.ENDED
                return

    def _take(self, reply: dict[str, Any], blocks: list[Block]) -> None:
        if "ready" in reply:
            self.state, self.load_s, self.python = ResidentState.READY, reply["load_s"], reply["python"]
            return
        if "setup_error" in reply:
            self.state, self.setup_error = ResidentState.ENDED, reply["setup_error"]
            return
        error, output = reply.get("error"), reply["output"]
        block = Block(
            first=reply["first"],
            walls_us=reply["walls"],
            ok=error is None,
            value=reply["values"],
            error=error,
            cpu_s=reply["cpu_s"],
            output=(output[0], output[1]) if output else None,
            last=reply["last"],
        )
        if block.first != self._received or self._received + block.calls > self._sent:
            raise ValueError(f"calls from {block.first} on were answered when {self._received} was next")
        self._received += block.calls
        if block.last:
            self.state = ResidentState.READY
        blocks.append(block)

    def in_flight(self) -> InFlight | None:
        """The call that it works on, or was working on when it ended; None between chunks and while loading."""
        chunk, index, since_ns = self._words(far.CHUNK, far.IN_FLIGHT, far.SINCE_NS)
        if not self._sent or chunk != self._chunk or index >= self._sent or self._received >= self._sent:
            return None
        return InFlight(index, since_ns / 1e9)

    def _words(self, *names: int) -> list[int]:
        return [int.from_bytes(self._page[8 * name : 8 * name + 8], "little") for name in names]

    def salvage(self) -> Block | None:
        """Successes that a resident had no time to tell before it crashed. Call it when `receive` gives no more."""
        chunk, plain = self._words(far.CHUNK, far.PLAIN)
        first = self._received
        if not self._sent or chunk != self._chunk or plain <= first:
            return None
        start = far.HEADER_BYTES + 4 * first
        walls_us = memoryview(self._page[start : start + 4 * (plain - first)]).cast("I").tolist()
        self._received = plain
        return Block(
            first=first,
            walls_us=walls_us,
            ok=True,
            value=None,
            error=None,
            cpu_s=None,
            output=None,
            last=plain == self._sent,
        )

    def close(self) -> None:
        """Let go of it. A living one ends by itself when it finds its request pipe at an end."""
        self.state = ResidentState.ENDED
        for descriptor in (self.request_fd, self.reply_fd):
            if descriptor >= 0:
                os.close(descriptor)
        self.request_fd = self.reply_fd = -1
        self._page.close()
