"""The seam to the file system: every operation the protocol counts on, one method each.

The protocol's correctness rests on rename, link and exclusive create alone; no lock of any kind is used.
Tests replace this class by one that loses replies, runs full, is slow, or shows stale listings.
"""

from __future__ import annotations

import errno
import os
import stat

from fleetcraft.core.errors import NotAllowed, OutOfReach, StorageFull

# The name is not there. ESTALE is how a network client says that another client removed it.
GONE = frozenset({errno.ENOENT, errno.ESTALE})
# No space, no quota, no inodes, read-only: nothing can be written now.
FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS})
_FORBIDDEN_HINTS = {
    errno.EACCES: "Look at the owner and the permissions of that path and of the folders above it.",
    errno.EPERM: "Look at the owner and the permissions of that path and of the folders above it.",
    errno.ENOTDIR: "A part of that path is a file and no folder; name another place, for a spool with --spool.",
}
# The storage answered, and the same command would get the same answer.
FORBIDDEN = frozenset(_FORBIDDEN_HINTS)
# The operation may or may not have happened.
UNKNOWN = frozenset({errno.EIO, errno.ETIMEDOUT, errno.ESTALE})


class Files:
    """The real file system. Every method raises OSError as the kernel gave it."""

    shared = False  # True in a spool made with --group: what is made is for its members too

    def names(self, folder: str) -> tuple[list[str], int]:
        """Names of regular files in `folder`, and the number of other entries, which are never opened."""
        regular: list[str] = []
        foreign = 0
        with os.scandir(folder) as entries:
            for entry in entries:
                if _is_regular(entry):
                    regular.append(entry.name)
                else:
                    foreign += 1
        return regular, foreign

    def folders(self, folder: str) -> list[str]:
        """Names of the folders in `folder`."""
        with os.scandir(folder) as entries:
            return [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]

    def rename(self, source: str, target: str) -> None:
        """Move one name; both are in one directory tree."""
        os.rename(source, target)

    def link(self, source: str, target: str) -> None:
        """Give a second name; fails when it exists: the exclusive commit."""
        os.link(source, target)

    def unlink(self, path: str) -> None:
        """Remove a name."""
        os.unlink(path)

    def create(self, path: str) -> None:
        """Make an empty file; fails when the name exists."""
        os.close(self._open_created(path, os.O_WRONLY))

    def _open_created(self, path: str, flags: int) -> int:
        descriptor = os.open(path, flags | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        if self.shared:
            os.fchmod(descriptor, 0o660)  # whatever the umask says: the group was asked for
        return descriptor

    def exists(self, path: str) -> bool:
        """True when the name is there now; an error other than absence is raised, never read as absence."""
        try:
            os.lstat(path)
        except OSError as error:
            if error.errno in GONE:
                return False
            raise
        return True

    def identity(self, path: str) -> tuple[int, int] | None:
        """Device and inode, or None when the name is not there."""
        try:
            found = os.lstat(path)
        except OSError as error:
            if error.errno in GONE:
                return None
            raise
        return found.st_dev, found.st_ino

    def modified_ns(self, path: str) -> int:
        """Modification time; compared only with itself, never with a clock."""
        return os.stat(path).st_mtime_ns

    def size(self, path: str) -> int:
        """Size in bytes."""
        return os.stat(path).st_size

    def make_folder(self, path: str) -> None:
        """Make a folder, private unless the spool is shared."""
        os.mkdir(path, 0o700)
        if self.shared:
            os.chmod(path, 0o2770)  # noqa: S103  asked for with --group; new files take the folder's group

    def remove_folder(self, path: str) -> None:
        """Remove an empty folder."""
        os.rmdir(path)

    def read(self, path: str) -> bytes:
        """The whole content."""
        with open(path, "rb") as source:
            return source.read()

    def read_small(self, path: str, most_bytes: int) -> bytes:
        """The beginning of a file that a stranger may have put there: no link is followed, no pipe waited for."""
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            return os.read(descriptor, most_bytes)
        finally:
            os.close(descriptor)

    def open_read(self, path: str) -> int:
        """A descriptor for reading."""
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def open_new(self, path: str, *, append: bool = False) -> int:
        """A descriptor for writing a file that did not exist."""
        return self._open_created(path, os.O_WRONLY | (os.O_APPEND if append else 0))

    def open_append(self, path: str) -> int:
        """A descriptor for adding to a file that is there."""
        return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)

    def write(self, descriptor: int, data: bytes) -> int:
        """Write once; may be short."""
        return os.write(descriptor, data)

    def sync(self, descriptor: int) -> None:
        """Make the content durable."""
        os.fsync(descriptor)

    def close(self, descriptor: int) -> None:
        """Close; quota and network errors of earlier writes may be told only now, so an error is a failed write."""
        os.close(descriptor)

    def sync_folder(self, folder: str) -> None:
        """Make the names of a folder durable."""
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            self.sync(descriptor)
        finally:
            os.close(descriptor)


def _is_regular(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_file(follow_symlinks=False)
    except OSError:
        return False  # vanished between the listing and the look; not an entry any more


def write_all(files: Files, descriptor: int, data: bytes) -> None:
    """Write every byte or raise."""
    view = memoryview(data)
    while view:
        view = view[files.write(descriptor, bytes(view) if len(view) != len(data) else data) :]


def publish_file(files: Files, path: str, data: bytes, *, durable: bool = True) -> None:
    """Make `path` appear whole or not at all, replacing what was there.

    The order is fixed: write aside, sync the file, rename, sync the folder. A failure leaves the old content
    byte for byte as it was, and no temporary file.
    """
    folder, name = os.path.split(path)
    # Random, not the pid: two hosts (or two containers) that share the folder may well have equal pids.
    aside = os.path.join(folder, f".{name}.{os.urandom(8).hex()}.tmp")
    try:
        descriptor = files.open_new(aside)
        try:
            write_all(files, descriptor, data)
            if durable:
                files.sync(descriptor)
        finally:
            files.close(descriptor)
        files.rename(aside, path)
    except OSError:
        _forget(files, aside)
        raise
    if durable:
        files.sync_folder(folder)


def _forget(files: Files, path: str) -> None:
    try:
        files.unlink(path)
    except OSError:
        return  # it was never made, or cannot be removed now; a stray temporary name is foreign to every reader


def ensure_folder(files: Files, path: str) -> None:
    """Make a folder that many processes may make at once; a stale negative look-up is not a failure."""
    try:
        files.make_folder(path)
    except FileExistsError:
        return
    except OSError as error:
        if error.errno in FULL:
            raise StorageFull(
                f"Cannot create {path}: {os.strerror(error.errno or 0)}.", hint="Free space, then retry."
            ) from error
        raise


def is_private(path: str) -> bool:
    """True when neither group nor others may write to `path`."""
    return not os.stat(path).st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def explain(error: OSError, doing: str) -> OutOfReach:
    """The error to show when the storage did not do what was asked."""
    reason = os.strerror(error.errno) if error.errno else str(error)
    name = errno.errorcode.get(error.errno or 0, "unknown error")
    if error.errno == errno.EROFS:
        return StorageFull(
            f"{doing}: {reason} ({name}).", hint="Run the same command again once it is mounted for writing."
        )
    if error.errno in FULL:
        return StorageFull(
            f"{doing}: {reason} ({name}).", hint="Free space or inodes, then run the same command again."
        )
    if error.errno is not None and error.errno in FORBIDDEN:
        return NotAllowed(f"{doing}: {reason} ({name}).", hint=_FORBIDDEN_HINTS[error.errno])
    return OutOfReach(f"{doing}: {reason} ({name}).", hint="Nothing was changed; run the same command again.")
