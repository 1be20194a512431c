"""Whether this machine and this spool can do what is needed: one finding each, with what to do about it.

The only look that writes: a folder of its own inside the spool, with a name that no reader takes for anything,
removed again at once.
"""

from __future__ import annotations

import ctypes
import os
import resource
import secrets
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from fleetcraft.core.errors import FleetcraftError, SpoolError
from fleetcraft.core.quantities import format_bytes
from fleetcraft.spool import host
from fleetcraft.spool.spool import Spool
from fleetcraft.store.files import Files

_LOW_BYTES, _BAD_BYTES = 1 << 30, 100 << 20
_LOW_FILES, _BAD_FILES = 10_000, 1_000
_SLOW_RENAME_S = 0.005
_SKEW_S = 2.0
_OPEN_FILES = 1024
_GET_CHILD_SUBREAPER = 37
_IN_CLOEXEC = 0o2000000
# File systems on which another machine's changes may be seen late, or a lock may not hold.
_NETWORK = (
    "nfs",
    "nfs4",
    "lustre",
    "gpfs",
    "beegfs",
    "ceph",
    "cifs",
    "smb3",
    "fuse.sshfs",
    "fuse.glusterfs",
    "afs",
    "9p",
)


class Level(StrEnum):
    """How a finding stands."""

    OK = "ok"
    WARN = "warn"
    BAD = "bad"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that was looked at."""

    what: str
    level: Level
    found: str
    advice: str = ""

    def as_json(self) -> dict[str, Any]:
        """For the JSON document."""
        return {name: getattr(self, name) for name in self.__slots__}


def examine(spool_root: str) -> Iterator[Finding]:
    """Look at this machine, then at the spool, or at the place where it would be made."""
    for look in (_python, _processes, _subreaper, _inotify, _limits, _logind, _clock, _identity, _gpus):
        yield look()
    yield from _spool(spool_root)


def _finding(what: str, level: Level, found: str, advice: str = "") -> Finding:
    return Finding(what=what, level=level, found=found, advice="" if level is Level.OK else advice)


def _python() -> Finding:
    version = ".".join(map(str, sys.version_info[:3]))
    fine = sys.version_info >= (3, 11) and hasattr(os, "posix_spawn")
    cpus = len(os.sched_getaffinity(0))
    return _finding(
        "python", Level.OK if fine else Level.BAD, f"Python {version} at {sys.executable}, {cpus} CPUs usable",
        "Use Python 3.11 or newer.",
    )  # fmt: skip


def _processes() -> Finding:
    if not host.can_see_processes():
        return _finding(
            "/proc",
            Level.BAD,
            "/proc does not show our own process",
            "Mount /proc; without it no death is ever proven.",
        )
    if os.getpid() == 1 or host.process(1) is None:
        return _finding(
            "/proc", Level.WARN, "other users' processes are hidden", "Nothing to do; only own processes are needed."
        )
    return _finding("/proc", Level.OK, "processes are visible")


def _subreaper() -> Finding:
    try:
        value = ctypes.c_int()
        answer = ctypes.CDLL(None, use_errno=True).prctl(_GET_CHILD_SUBREAPER, ctypes.byref(value), 0, 0, 0)
    except (OSError, AttributeError) as error:
        return _finding(
            "subreaper",
            Level.WARN,
            f"cannot be asked ({error})",
            "Orphans of tasks are found by walking /proc instead.",
        )
    if answer != 0:
        return _finding(
            "subreaper", Level.WARN, "the kernel refuses", "Orphans of tasks are found by walking /proc instead."
        )
    return _finding("subreaper", Level.OK, "orphans of tasks come home to their worker")


def _inotify() -> Finding:
    advice = "New work is found by looking every few seconds. Raise fs.inotify.max_user_instances."
    try:
        descriptor = ctypes.CDLL(None, use_errno=True).inotify_init1(_IN_CLOEXEC)
    except (OSError, AttributeError) as error:
        return _finding("inotify", Level.WARN, f"not there ({error})", advice)
    if descriptor < 0:
        return _finding("inotify", Level.WARN, os.strerror(ctypes.get_errno()), advice)
    os.close(descriptor)
    return _finding("inotify", Level.OK, "an idle worker is woken by the kernel on local disks")


def _limits() -> Finding:
    most_arguments = os.sysconf("SC_ARG_MAX")
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    found = f"{format_bytes(most_arguments)} of arguments, {'unlimited' if files < 0 else files} open files"
    if 0 <= files < _OPEN_FILES or most_arguments < 1 << 20:
        return _finding("limits", Level.WARN, found, f"Raise them: `ulimit -n {_OPEN_FILES * 4}`, `ulimit -s 8192`.")
    return _finding("limits", Level.OK, found)


def _logind() -> Finding:
    if "SLURM_JOB_ID" in os.environ:
        return _finding("logout", Level.OK, "inside a job: a logout does not matter")
    if not os.path.isdir("/run/systemd/users"):
        return _finding("logout", Level.OK, "no systemd-logind here that ends processes at logout")
    user = _user()
    lingers = os.path.exists(f"/var/lib/systemd/linger/{user}")
    if _kills_at_logout() and not lingers:
        return _finding(
            "logout",
            Level.WARN,
            "this machine ends your processes when you log out",
            "Run `loginctl enable-linger`, or work inside a job.",
        )
    return _finding("logout", Level.OK, "a worker outlives your login" + (" (lingering is on)" if lingers else ""))


def _user() -> str:
    import pwd

    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


def _kills_at_logout() -> bool:
    folders = ("/usr/lib/systemd", "/etc/systemd")
    paths = [f"{folder}/logind.conf" for folder in folders]
    for folder in folders:
        drop_ins = f"{folder}/logind.conf.d"
        if os.path.isdir(drop_ins):
            paths += [os.path.join(drop_ins, name) for name in sorted(os.listdir(drop_ins)) if name.endswith(".conf")]
    answer = False
    for path in paths:
        try:
            with open(path, encoding="utf-8", errors="replace") as source:
                for line in source:
                    key, _, value = line.strip().partition("=")
                    if key.strip() == "KillUserProcesses":
                        answer = value.strip().lower() in ("yes", "true", "1", "on")
        except OSError:
            continue
    return answer


def _clock() -> Finding:
    first_s, boot_s = time.time(), time.clock_gettime(time.CLOCK_BOOTTIME)
    if first_s < 1.7e9:
        return _finding(
            "clock",
            Level.WARN,
            f"the clock says {time.strftime('%Y-%m-%d', time.gmtime(first_s))}",
            "Set the clock; times in records will be wrong.",
        )
    return _finding(
        "clock", Level.OK, f"{time.strftime('%Y-%m-%d %H:%M:%S', time.gmtime(first_s))} UTC, up {boot_s / 3600:.1f} h"
    )


def _identity() -> Finding:
    missing = [
        name for name, value in (("machine id", host.machine_id()), ("boot id", host.boot_id())) if value is None
    ]
    if missing:
        return _finding(
            "identity",
            Level.WARN,
            f"no {' and no '.join(missing)}",
            "The death of a worker can then be proven only on its own machine.",
        )
    return _finding("identity", Level.OK, f"host {host.host_name()}")


def _gpus() -> Finding:
    from fleetcraft.telemetry.nvml import NvmlSensor

    sensor = NvmlSensor()
    devices = sensor.devices()
    if devices:
        names = ", ".join(sorted({device.name for device in devices}))
        return _finding("gpus", Level.OK, f"{len(devices)} usable ({names})")
    if os.path.exists("/dev/nvidiactl"):
        reason = sensor.reason or "the driver shows none to this process"
        return _finding(
            "gpus",
            Level.WARN,
            f"there is a GPU, and it cannot be used: {reason}",
            "Install the extra: `pip install 'fleetcraft[nvml]'`; look at `nvidia-smi` and CUDA_VISIBLE_DEVICES.",
        )
    return _finding("gpus", Level.OK, "none on this machine (`worker run --gpus simulated:4` tries things out)")


def _spool(root: str) -> Iterator[Finding]:
    root = os.path.abspath(root)
    try:
        spool = Spool.open(root)
    except SpoolError as error:
        if os.path.exists(os.path.join(root, "spool.json")):
            yield _finding("spool", Level.BAD, error.message, error.hint)
            return
        place = root
        while not os.path.isdir(place):
            place = os.path.dirname(place)
        yield _finding("spool", Level.OK, f"none at {root} yet; what follows is about {place}")
        yield from _place(place)
        return
    except FleetcraftError as error:
        yield _finding("spool", Level.BAD, error.message, error.hint)
        return
    yield _finding("spool", Level.OK, f"{root} can be read")
    devices = {os.stat(folder).st_dev for folder in (root, *spool.layout.folders()) if os.path.isdir(folder)}
    if len(devices) > 1:
        yield _finding(
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
        yield _finding(
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
    return _finding("space", level, found, "Free space or inodes; a full spool stops taking work and loses none.")


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
            return _finding(
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
            return _finding(
                "file system",
                Level.BAD,
                f"{kind}: a second {what} says {error.strerror}",
                "Keep the spool on another file system.",
            )
        return _finding(
            "file system",
            Level.BAD,
            f"{kind}: a second {what} of one name succeeds",
            "Names are not exclusive here; keep the spool elsewhere.",
        )
    took_s = _rename_s(files, second, first)
    found = f"{kind}: create, rename, link and sync work; a rename takes {1000 * took_s:.2f} ms"
    if took_s > _SLOW_RENAME_S:
        return _finding("file system", Level.WARN, found, "Slow for many very short tasks; longer ones do not notice.")
    if kind in _NETWORK:
        found += "; other machines may see changes some seconds late"
    return _finding("file system", Level.OK, found)


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
        return _finding(
            "file clock",
            Level.WARN,
            f"the file server's clock is {skew_s:+.1f} s away from ours",
            "Ages of heartbeats are shown wrong; nothing is decided by them.",
        )
    return _finding("file clock", Level.OK, "file times agree with our clock")
