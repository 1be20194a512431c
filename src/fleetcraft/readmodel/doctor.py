"""Whether this machine and this spool can do what is needed: one finding each, with what to do about it."""

from __future__ import annotations

import ctypes
import os
import resource
import sys
import time
from collections.abc import Iterator

from fleetcraft.core.quantities import format_bytes
from fleetcraft.readmodel.finding import Finding, Level, finding
from fleetcraft.readmodel.spool_probe import examine_spool
from fleetcraft.spool import host

_OPEN_FILES = 1024
_GET_CHILD_SUBREAPER = 37
_IN_CLOEXEC = 0o2000000


def examine(spool_root: str) -> Iterator[Finding]:
    """Look at this machine, then at the spool, or at the place where it would be made."""
    for look in (_python, _processes, _subreaper, _inotify, _limits, _logind, _clock, _identity, _gpus):
        yield look()
    yield from examine_spool(spool_root)


def _python() -> Finding:
    version = ".".join(map(str, sys.version_info[:3]))
    fine = sys.version_info >= (3, 11) and hasattr(os, "posix_spawn")
    cpus = len(os.sched_getaffinity(0))
    return finding(
        "python", Level.OK if fine else Level.BAD, f"Python {version} at {sys.executable}, {cpus} CPUs usable",
        "Use Python 3.11 or newer.",
    )  # fmt: skip


def _processes() -> Finding:
    if not host.can_see_processes():
        return finding(
            "/proc",
            Level.BAD,
            "/proc does not show our own process",
            "Mount /proc; without it no death is ever proven.",
        )
    if os.getpid() == 1 or host.process(1) is None:
        return finding(
            "/proc", Level.WARN, "other users' processes are hidden", "Nothing to do; only own processes are needed."
        )
    return finding("/proc", Level.OK, "processes are visible")


def _subreaper() -> Finding:
    try:
        value = ctypes.c_int()
        answer = ctypes.CDLL(None, use_errno=True).prctl(_GET_CHILD_SUBREAPER, ctypes.byref(value), 0, 0, 0)
    except (OSError, AttributeError) as error:
        return finding(
            "subreaper",
            Level.WARN,
            f"cannot be asked ({error})",
            "Orphans of tasks are found by walking /proc instead.",
        )
    if answer != 0:
        return finding(
            "subreaper", Level.WARN, "the kernel refuses", "Orphans of tasks are found by walking /proc instead."
        )
    return finding("subreaper", Level.OK, "orphans of tasks come home to their worker")


def _inotify() -> Finding:
    advice = "New work is found by looking every few seconds. Raise fs.inotify.max_user_instances."
    try:
        descriptor = ctypes.CDLL(None, use_errno=True).inotify_init1(_IN_CLOEXEC)
    except (OSError, AttributeError) as error:
        return finding("inotify", Level.WARN, f"not there ({error})", advice)
    if descriptor < 0:
        return finding("inotify", Level.WARN, os.strerror(ctypes.get_errno()), advice)
    os.close(descriptor)
    return finding("inotify", Level.OK, "an idle worker is woken by the kernel on local disks")


def _limits() -> Finding:
    most_arguments = os.sysconf("SC_ARG_MAX")
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    found = f"{format_bytes(most_arguments)} of arguments, {'unlimited' if files < 0 else files} open files"
    if 0 <= files < _OPEN_FILES or most_arguments < 1 << 20:
        return finding("limits", Level.WARN, found, f"Raise them: `ulimit -n {_OPEN_FILES * 4}`, `ulimit -s 8192`.")
    return finding("limits", Level.OK, found)


def _logind() -> Finding:
    if "SLURM_JOB_ID" in os.environ:
        return finding("logout", Level.OK, "inside a job: a logout does not matter")
    if not os.path.isdir("/run/systemd/users"):
        return finding("logout", Level.OK, "no systemd-logind here that ends processes at logout")
    user = _user()
    lingers = os.path.exists(f"/var/lib/systemd/linger/{user}")
    if _kills_at_logout() and not lingers:
        return finding(
            "logout",
            Level.WARN,
            "this machine ends your processes when you log out",
            "Run `loginctl enable-linger`, or work inside a job.",
        )
    return finding("logout", Level.OK, "a worker outlives your login" + (" (lingering is on)" if lingers else ""))


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
        return finding(
            "clock",
            Level.WARN,
            f"the clock says {time.strftime('%Y-%m-%d', time.gmtime(first_s))}",
            "Set the clock; times in records will be wrong.",
        )
    return finding(
        "clock", Level.OK, f"{time.strftime('%Y-%m-%d %H:%M:%S', time.gmtime(first_s))} UTC, up {boot_s / 3600:.1f} h"
    )


def _identity() -> Finding:
    missing = [
        name for name, value in (("machine id", host.machine_id()), ("boot id", host.boot_id())) if value is None
    ]
    if missing:
        return finding(
            "identity",
            Level.WARN,
            f"no {' and no '.join(missing)}",
            "The death of a worker can then be proven only on its own machine.",
        )
    return finding("identity", Level.OK, f"host {host.host_name()}")


def _gpus() -> Finding:
    from fleetcraft.telemetry.nvml import NvmlSensor

    sensor = NvmlSensor()
    devices = sensor.devices()
    if devices:
        names = ", ".join(sorted({device.name for device in devices}))
        return finding("gpus", Level.OK, f"{len(devices)} usable ({names})")
    if os.path.exists("/dev/nvidiactl"):
        reason = sensor.reason or "the driver shows none to this process"
        return finding(
            "gpus",
            Level.WARN,
            f"there is a GPU, and it cannot be used: {reason}",
            "Install the extra: `pip install 'fleetcraft[nvml]'`; look at `nvidia-smi` and CUDA_VISIBLE_DEVICES.",
        )
    return finding("gpus", Level.OK, "none on this machine (`worker run --gpus simulated:4` tries things out)")
