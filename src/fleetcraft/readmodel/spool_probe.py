"""Whether a spool, or the place where one would be made, can do what the protocol rests on.

The only look that writes: a folder of its own, with a name that no reader takes for anything, removed again at once.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Iterator

from fleetcraft.core.errors import FleetcraftError, SpoolError
from fleetcraft.core.quantities import format_bytes
from fleetcraft.readmodel.finding import Finding, Level, finding
from fleetcraft.spool.spool import Spool
from fleetcraft.store.files import Files

_LOW_BYTES, _BAD_BYTES = 1 << 30, 100 << 20
_LOW_FILES, _BAD_FILES = 10_000, 1_000
_SLOW_RENAME_S = 0.005
_SKEW_S = 2.0
# File systems on which another machine's changes may be seen late, or a lock may not hold.
_NETWORK = frozenset(
    ["nfs", "nfs4", "lustre", "gpfs", "beegfs", "ceph", "cifs", "smb3", "fuse.sshfs", "fuse.glusterfs", "afs", "9p"]
)


def examine_spool(root: str) -> Iterator[Finding]:
    """The spool at `root`, or the nearest folder above it that is there."""
    root = os.path.abspath(root)
    try:
        spool = Spool.open(root)
    except SpoolError as error:
        if os.path.exists(os.path.join(root, "spool.json")):
            yield finding("spool", Level.BAD, error.message, error.hint)
            return
        place = root
        while not os.path.isdir(place):
            place = os.path.dirname(place)
        yield finding("spool", Level.OK, f"none at {root} yet; what follows is about {place}")
        yield from _place(place)
        return
    except FleetcraftError as error:
        yield finding("spool", Level.BAD, error.message, error.hint)
        return
    yield finding("spool", Level.OK, f"{root} can be read")
    devices = {os.stat(folder).st_dev for folder in (root, *spool.layout.folders()) if os.path.isdir(folder)}
    if len(devices) > 1:
        yield finding(
            "spool parts",
            Level.BAD,
            "its folders are on different file systems",
            "Renames between them fail; keep the spool on one.",
        )
    yield from _place(root)


def _place(folder: str) -> Iterator[Finding]:
    yield _space(folder)
    kind = _file_system(folder)
    probe = os.path.join(folder, f".doctor-{secrets.token_hex(4)}")
    try:
        os.mkdir(probe, 0o700)
    except OSError as error:
        yield finding(
            "file system",
            Level.BAD,
            f"{folder} cannot be written ({error.strerror})",
            "Name another place with --spool.",
        )
        return
    try:
        yield _operations(probe, kind)
        yield _skew(probe)
    finally:
        for name in os.listdir(probe):
            os.unlink(os.path.join(probe, name))
        os.rmdir(probe)


def _space(folder: str) -> Finding:
    seen = os.statvfs(folder)
    free_bytes = seen.f_bavail * seen.f_frsize
    # Some file systems make inodes as they go, and say 0 of 0.
    free_files = seen.f_favail if seen.f_files else None
    found = f"{format_bytes(free_bytes)} free" + ("" if free_files is None else f", {free_files:,} files can be made")
    level = Level.OK
    if free_bytes < _LOW_BYTES or (free_files is not None and free_files < _LOW_FILES):
        level = Level.WARN
    if free_bytes < _BAD_BYTES or (free_files is not None and free_files < _BAD_FILES):
        level = Level.BAD
    return finding("space", level, found, "Free space or inodes; a full spool stops taking work and loses none.")


def _file_system(folder: str) -> str:
    """The type of the file system, from the longest mount point that holds the folder."""
    best, kind = "", "unknown"
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as source:
            for line in source:
                fields = line.split()
                point = fields[4].replace("\\040", " ")
                inside = folder == point or folder.startswith(point.rstrip("/") + "/")
                if inside and len(point) >= len(best):
                    best, kind = point, fields[fields.index("-") + 1]
    except (OSError, ValueError, IndexError):
        return "unknown"
    return kind


def _operations(probe: str, kind: str) -> Finding:
    """The four operations that the protocol rests on, and how long a rename takes."""
    files = Files()
    first, second, third = (os.path.join(probe, name) for name in ("first", "second", "third"))
    steps: list[tuple[str, Callable[[], object]]] = [
        ("create a file exclusively", lambda: files.create(first)),
        ("rename", lambda: files.rename(first, second)),
        ("link", lambda: files.link(second, third)),
        ("sync a folder", lambda: files.sync_folder(probe)),
    ]
    for what, step in steps:
        try:
            step()
        except OSError as error:
            return finding(
                "file system",
                Level.BAD,
                f"{kind}: cannot {what} ({error.strerror})",
                "Keep the spool on another file system.",
            )
    for what, step in (("create", lambda: files.create(second)), ("link", lambda: files.link(second, third))):
        try:
            step()
        except FileExistsError:
            continue
        except OSError as error:
            return finding(
                "file system",
                Level.BAD,
                f"{kind}: a second {what} says {error.strerror}",
                "Keep the spool on another file system.",
            )
        return finding(
            "file system",
            Level.BAD,
            f"{kind}: a second {what} of one name succeeds",
            "Names are not exclusive here; keep the spool elsewhere.",
        )
    took_s = _rename_s(files, second, first)
    found = f"{kind}: create, rename, link and sync work; a rename takes {1000 * took_s:.2f} ms"
    if took_s > _SLOW_RENAME_S:
        return finding("file system", Level.WARN, found, "Slow for many very short tasks; longer ones do not notice.")
    if kind in _NETWORK:
        found += "; other machines may see changes some seconds late"
    return finding("file system", Level.OK, found)


def _rename_s(files: Files, one: str, other: str) -> float:
    times = []
    for _ in range(10):
        begin_s = time.monotonic()
        files.rename(one, other)
        times.append(time.monotonic() - begin_s)
        one, other = other, one
    return sorted(times)[len(times) // 2]


def _skew(probe: str) -> Finding:
    path = os.path.join(probe, "clock")
    before_s = time.time()
    Files().create(path)
    skew_s = os.stat(path).st_mtime - before_s
    if abs(skew_s) > _SKEW_S:
        return finding(
            "file clock",
            Level.WARN,
            f"the file server's clock is {skew_s:+.1f} s away from ours",
            "Ages of heartbeats are shown wrong; nothing is decided by them.",
        )
    return finding("file clock", Level.OK, "file times agree with our clock")
