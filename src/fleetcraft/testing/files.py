"""File systems that misbehave in one named way each; with the fault switched off, each is the real one.

They stack: `LostReplyFiles(StaleFiles(Files(), clock, 5.0), lose)` has both faults. The suite in
`tests/conformance/test_files.py` holds every one of them to the contract of `store.files.Files`.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Container
from typing import NamedTuple, TypeVar
from zlib import crc32

from fleetcraft.core.clock import Clock
from fleetcraft.store.files import Files

T = TypeVar("T")

# What a remote file system answers over the network, one round trip each.
METADATA = frozenset(
    {
        "names", "folders", "rename", "link", "unlink", "create", "exists", "identity", "modified_ns", "size",
        "make_folder", "remove_folder", "read", "read_small", "open_read", "open_new", "open_append",
        "sync_folder",
    }
)  # fmt: skip
# What needs space, quota or inodes, and where a full disk may say so only later.
GROWING = frozenset({"rename", "link", "create", "make_folder", "open_new", "write", "sync", "sync_folder", "close"})
# What a server that executed a request answers to its retransmission after the first reply was lost.
RETRANSMITTED = {
    "rename": errno.ENOENT,
    "unlink": errno.ENOENT,
    "remove_folder": errno.ENOENT,
    "link": errno.EEXIST,
    "create": errno.EEXIST,
    "make_folder": errno.EEXIST,
}


class Operation(NamedTuple):
    """One call of the seam; for a descriptor, `path` is the name it was opened by."""

    kind: str
    path: str
    target: str = ""

    def __str__(self) -> str:
        names = [os.path.basename(name) for name in (self.path, self.target) if name]
        return f"{self.kind} {' -> '.join(names)}"


def nth(number: int, kinds: Container[str] | None = None) -> Callable[[Operation], bool]:
    """True for operation `number` (the first is 0) of these kinds, once."""
    seen = -1

    def matches(operation: Operation) -> bool:
        nonlocal seen
        if kinds is not None and operation.kind not in kinds:
            return False
        seen += 1
        return seen == number

    return matches


def failing(error: int, when: Callable[[Operation], bool]) -> Callable[[Operation], int | None]:
    """A fault for `FaultyFiles`: this errno wherever `when` says so."""
    return lambda operation: error if when(operation) else None


class Crash(BaseException):
    """The process died here. Not an Exception: a dead process handles nothing and cleans up nothing."""


class WrappedFiles(Files):
    """Passes every operation to `inner` through `_around`, which a fake replaces."""

    def __init__(self, inner: Files | None = None) -> None:
        self.inner = inner or Files()
        self._opened: dict[int, str] = {}

    @property
    def shared(self) -> bool:
        """See `Files.shared`."""
        return self.inner.shared

    @shared.setter
    def shared(self, value: bool) -> None:
        self.inner.shared = value

    def _around(self, operation: Operation, do: Callable[[], T]) -> T:  # noqa: ARG002  for those that replace it
        """Do the operation, or what the fake does instead."""
        return do()

    def _descriptor(self, kind: str, descriptor: int) -> Operation:
        return Operation(kind, self._opened.get(descriptor, f"descriptor {descriptor}"))

    def names(self, folder: str) -> tuple[list[str], int]:
        return self._around(Operation("names", folder), lambda: self.inner.names(folder))

    def folders(self, folder: str) -> list[str]:
        return self._around(Operation("folders", folder), lambda: self.inner.folders(folder))

    def rename(self, source: str, target: str) -> None:
        self._around(Operation("rename", source, target), lambda: self.inner.rename(source, target))

    def link(self, source: str, target: str) -> None:
        self._around(Operation("link", source, target), lambda: self.inner.link(source, target))

    def unlink(self, path: str) -> None:
        self._around(Operation("unlink", path), lambda: self.inner.unlink(path))

    def create(self, path: str) -> None:
        self._around(Operation("create", path), lambda: self.inner.create(path))

    def exists(self, path: str) -> bool:
        return self._around(Operation("exists", path), lambda: self.inner.exists(path))

    def identity(self, path: str) -> tuple[int, int] | None:
        return self._around(Operation("identity", path), lambda: self.inner.identity(path))

    def modified_ns(self, path: str) -> int:
        return self._around(Operation("modified_ns", path), lambda: self.inner.modified_ns(path))

    def size(self, path: str) -> int:
        return self._around(Operation("size", path), lambda: self.inner.size(path))

    def make_folder(self, path: str) -> None:
        self._around(Operation("make_folder", path), lambda: self.inner.make_folder(path))

    def remove_folder(self, path: str) -> None:
        self._around(Operation("remove_folder", path), lambda: self.inner.remove_folder(path))

    def read(self, path: str) -> bytes:
        return self._around(Operation("read", path), lambda: self.inner.read(path))

    def read_small(self, path: str, most_bytes: int) -> bytes:
        return self._around(Operation("read_small", path), lambda: self.inner.read_small(path, most_bytes))

    def open_read(self, path: str) -> int:
        return self._open(Operation("open_read", path), lambda: self.inner.open_read(path))

    def open_new(self, path: str, *, append: bool = False) -> int:
        return self._open(Operation("open_new", path), lambda: self.inner.open_new(path, append=append))

    def open_append(self, path: str) -> int:
        return self._open(Operation("open_append", path), lambda: self.inner.open_append(path))

    def _open(self, operation: Operation, do: Callable[[], int]) -> int:
        descriptor = self._around(operation, do)
        self._opened[descriptor] = operation.path
        return descriptor

    def write(self, descriptor: int, data: bytes) -> int:
        return self._around(self._descriptor("write", descriptor), lambda: self.inner.write(descriptor, data))

    def sync(self, descriptor: int) -> None:
        self._around(self._descriptor("sync", descriptor), lambda: self.inner.sync(descriptor))

    def close(self, descriptor: int) -> None:
        operation = self._descriptor("close", descriptor)
        self._opened.pop(descriptor, None)
        self._around(operation, lambda: self.inner.close(descriptor))

    def sync_folder(self, folder: str) -> None:
        self._around(Operation("sync_folder", folder), lambda: self.inner.sync_folder(folder))


class RecordingFiles(WrappedFiles):
    """Keeps the list of what was done, for tests of the order of operations."""

    def __init__(self, inner: Files | None = None) -> None:
        super().__init__(inner)
        self.operations: list[Operation] = []

    def _around(self, operation: Operation, do: Callable[[], T]) -> T:
        self.operations.append(operation)
        return do()


class FaultyFiles(WrappedFiles):
    """Fails before doing anything, wherever `fault` returns an errno."""

    def __init__(self, inner: Files | None = None, fault: Callable[[Operation], int | None] | None = None) -> None:
        super().__init__(inner)
        self.fault = fault
        self.failed: list[Operation] = []

    def _around(self, operation: Operation, do: Callable[[], T]) -> T:
        number = self.fault(operation) if self.fault else None
        if number is None:
            return do()
        self.failed.append(operation)
        if operation.kind == "close":
            do()  # the kernel frees the descriptor also when it reports an error
        raise OSError(number, os.strerror(number), operation.path)


class LostReplyFiles(WrappedFiles):
    """Does the operation and then reports an error, wherever `lose` says so.

    With `retransmitted` the error is the one that a server gives to its client's second try.
    """

    def __init__(
        self,
        inner: Files | None = None,
        lose: Callable[[Operation], bool] | None = None,
        *,
        error: int = errno.EIO,
        retransmitted: bool = False,
    ) -> None:
        super().__init__(inner)
        self.lose = lose
        self.error = error
        self.retransmitted = retransmitted
        self.lost: list[Operation] = []

    def _around(self, operation: Operation, do: Callable[[], T]) -> T:
        result = do()
        if self.lose is None or not self.lose(operation):
            return result
        self.lost.append(operation)
        if operation.kind in ("open_read", "open_new") and isinstance(result, int):
            os.close(result)
        number = RETRANSMITTED.get(operation.kind, self.error) if self.retransmitted else self.error
        raise OSError(number, os.strerror(number), operation.path)


class DelayedFiles(WrappedFiles):
    """Adds a delay to every metadata operation: the stand-in for a shared file system."""

    def __init__(
        self, inner: Files | None = None, delay_s: float = 0.0, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        super().__init__(inner)
        self.delay_s = delay_s
        self.sleep = sleep

    def _around(self, operation: Operation, do: Callable[[], T]) -> T:
        if self.delay_s and operation.kind in METADATA:
            self.sleep(self.delay_s)
        return do()


class FullFiles(WrappedFiles):
    """While `full`, fails operations that need space, after letting `spare` of them pass.

    With `short_writes` a failing write first stores half of its bytes, as a disk that fills up does.
    """

    def __init__(
        self,
        inner: Files | None = None,
        *,
        error: int = errno.ENOSPC,
        kinds: frozenset[str] = GROWING,
        spare: int = 0,
        full: bool = True,
        short_writes: bool = False,
    ) -> None:
        super().__init__(inner)
        self.error = error
        self.kinds = kinds
        self.spare = spare
        self.full = full
        self.short_writes = short_writes
        self.failed: list[Operation] = []

    def _fails(self, operation: Operation) -> bool:
        if not self.full or operation.kind not in self.kinds:
            return False
        if self.spare > 0:
            self.spare -= 1
            return False
        self.failed.append(operation)
        return True

    def _around(self, operation: Operation, do: Callable[[], T]) -> T:
        if not self._fails(operation):
            return do()
        if operation.kind == "close":
            do()
        raise OSError(self.error, os.strerror(self.error), operation.path)

    def write(self, descriptor: int, data: bytes) -> int:
        if not self.short_writes:
            return super().write(descriptor, data)
        if self._fails(self._descriptor("write", descriptor)):
            if len(data) < 2:
                raise OSError(self.error, os.strerror(self.error))
            return self.inner.write(descriptor, data[: len(data) // 2])
        return self.inner.write(descriptor, data)


class CrashingFiles(WrappedFiles):
    """Dies at operation number `at` (the first is 0), before it or after it; nothing works from then on."""

    def __init__(self, inner: Files | None = None, at: int | None = None, *, after: bool = False) -> None:
        super().__init__(inner)
        self.at = at
        self.after = after
        self.count = 0
        self.crashed: Operation | None = None

    def _around(self, operation: Operation, do: Callable[[], T]) -> T:
        if self.crashed is not None:
            raise Crash(f"already dead since {self.crashed}")
        number, self.count = self.count, self.count + 1
        if number != self.at:
            return do()
        if self.after:
            try:
                do()
            except OSError:
                pass  # nobody is left to be told
        self.crashed = operation
        raise Crash(f"died {'after' if self.after else 'before'} {operation}")


class StaleFiles(WrappedFiles):
    """One client of a network file system: listings and look-ups come from a cache up to `limit_s` old.

    The cache knows what this client did itself. A file that is gone but still in the cache gives ESTALE.
    `stale` may narrow which operations are answered from the cache.
    """

    def __init__(
        self, inner: Files | None, clock: Clock, limit_s: float, stale: Callable[[Operation], bool] | None = None
    ) -> None:
        super().__init__(inner)
        self.clock = clock
        self.limit_s = limit_s
        self.stale = stale or (lambda _operation: True)
        self._listings: dict[str, tuple[float, set[str], int]] = {}
        self._seen: dict[str, tuple[float, bool]] = {}
        self.stale_answers = 0

    def _fresh(self, since_s: float) -> bool:
        return self.clock.mono() - since_s < self.limit_s

    def names(self, folder: str) -> tuple[list[str], int]:
        cached = self._listings.get(folder)
        if cached and self._fresh(cached[0]) and self.stale(Operation("names", folder)):
            self.stale_answers += 1
            return sorted(cached[1]), cached[2]
        names, foreign = self.inner.names(folder)
        self._listings[folder] = (self.clock.mono(), set(names), foreign)
        return names, foreign

    def _look(self, kind: str, path: str) -> bool:
        cached = self._seen.get(path)
        if cached and self._fresh(cached[0]) and self.stale(Operation(kind, path)):
            self.stale_answers += 1
            return cached[1]
        found = self.inner.exists(path)
        self._seen[path] = (self.clock.mono(), found)
        return found

    def exists(self, path: str) -> bool:
        return self._look("exists", path)

    def identity(self, path: str) -> tuple[int, int] | None:
        return self.inner.identity(path) if self._look("identity", path) else None

    def read(self, path: str) -> bytes:
        return self._reach("read", path, lambda: self.inner.read(path))

    def read_small(self, path: str, most_bytes: int) -> bytes:
        return self._reach("read_small", path, lambda: self.inner.read_small(path, most_bytes))

    def open_read(self, path: str) -> int:
        return self._reach("open_read", path, lambda: self.inner.open_read(path))

    def _reach(self, kind: str, path: str, do: Callable[[], T]) -> T:
        if not self._look(kind, path):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        try:
            return do()
        except FileNotFoundError:
            self._seen.pop(path, None)  # the server corrected the cache
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), path) from None

    def _know(self, path: str, *, there: bool) -> None:
        """This client changed the name itself, so its cache is right about it."""
        self._seen[path] = (self.clock.mono(), there)
        cached = self._listings.get(os.path.dirname(path))
        if cached:
            (cached[1].add if there else cached[1].discard)(os.path.basename(path))

    def rename(self, source: str, target: str) -> None:
        try:
            self.inner.rename(source, target)
        except FileNotFoundError:
            self._know(source, there=False)
            raise
        self._know(source, there=False)
        self._know(target, there=True)

    def link(self, source: str, target: str) -> None:
        self._make(target, lambda: self.inner.link(source, target))

    def unlink(self, path: str) -> None:
        try:
            self.inner.unlink(path)
        except FileNotFoundError:
            self._know(path, there=False)
            raise
        self._know(path, there=False)

    def create(self, path: str) -> None:
        self._make(path, lambda: self.inner.create(path))

    def make_folder(self, path: str) -> None:
        self._make(path, lambda: self.inner.make_folder(path))

    def open_new(self, path: str, *, append: bool = False) -> int:
        return self._make(path, lambda: self.inner.open_new(path, append=append))

    def _make(self, path: str, do: Callable[[], T]) -> T:
        try:
            result = do()
        except FileExistsError:
            self._seen.pop(path, None)  # the server's answer drops what the client believed
            raise
        self._know(path, there=True)
        return result


class TornListingFiles(WrappedFiles):
    """A listing is no snapshot: each half of the names is read at its own time.

    A file that is renamed between the two may show under both names or under neither.
    """

    def names(self, folder: str) -> tuple[list[str], int]:
        early, foreign = self.inner.names(folder)
        late, _ = self.inner.names(folder)
        return [name for name in early if _half(name)] + [name for name in late if not _half(name)], foreign


def _half(name: str) -> bool:
    return bool(crc32(os.fsencode(name)) & 1)


class PwriteNfsFiles(WrappedFiles):
    """Appends as a network client does: at the end of the file that this client last saw, not at the real one."""

    def __init__(self, inner: Files | None = None) -> None:
        super().__init__(inner)
        self._ends: dict[int, int] = {}

    def open_new(self, path: str, *, append: bool = False) -> int:
        descriptor = super().open_new(path)  # without O_APPEND: the client keeps the position itself
        if append:
            self._ends[descriptor] = 0
        return descriptor

    def open_append(self, path: str) -> int:
        return self.open_shared(path)

    def open_shared(self, path: str) -> int:
        """Open an existing file for append. Two writers of one file lose lines by it, so every file has one writer."""
        descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        self._ends[descriptor] = os.fstat(descriptor).st_size
        return descriptor

    def write(self, descriptor: int, data: bytes) -> int:
        end = self._ends.get(descriptor)
        if end is None:
            return super().write(descriptor, data)
        written = os.pwrite(descriptor, data, end)
        self._ends[descriptor] = end + written
        return written

    def close(self, descriptor: int) -> None:
        self._ends.pop(descriptor, None)
        super().close(descriptor)
