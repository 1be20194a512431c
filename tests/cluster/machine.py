"""What the machine under a test cluster has and allows: programs, root, ports, cgroups, an ordinary user."""

from __future__ import annotations

import fcntl
import os
import pwd
import random
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

USER = "fcuser"
# Daemons live in sbin, which an ordinary PATH leaves out.
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_PROGRAMS = {
    "slurmctld": "slurm-wlm",
    "slurmd": "slurm-wlm",
    "sbatch": "slurm-wlm",
    "slurmdbd": "slurmdbd",
    "mariadbd": "mariadb-server",
    "mariadb-install-db": "mariadb-server",
    "munged": "munge",
    "unshare": "util-linux",
    "setpriv": "util-linux",
    "useradd": "passwd",
}
# Below the range from which the kernel takes ports for outgoing connections: a node that comes back after a
# power cut must find its port free.
_PORT_BLOCKS = range(20_000, 32_000, 64)
_CGROUPS = Path("/sys/fs/cgroup")
# Slurm's version 1 plug-in wants these for counting memory and for finding every process of a step.
CONTROLLERS = ("memory", "freezer")


def program(name: str) -> str:
    found = shutil.which(name, path=PATH)
    if found is None:
        raise FileNotFoundError(f"{name} is not here (apt-get install {_PROGRAMS.get(name, name)})")
    return found


def why_not() -> str | None:
    """The reason why no cluster can run here, or None."""
    missing = sorted({package for name, package in _PROGRAMS.items() if shutil.which(name, path=PATH) is None})
    if missing:
        return f"a Slurm cluster needs: apt-get install {' '.join(missing)}"
    if os.geteuid() != 0:
        return "a Slurm cluster needs root, to run jobs as their users"
    probe = subprocess.run(
        [program("unshare"), "--uts", "sh", "-c", "echo probe > /proc/sys/kernel/hostname"],
        capture_output=True,
        text=True,
        check=False,
    )
    if probe.returncode != 0:
        return f"a Slurm cluster needs host names of its own: {probe.stderr.strip()}"
    return None


@contextmanager
def only_one_starts() -> Iterator[None]:
    """Held while a cluster chooses its ports and opens them, so that two never choose the same."""
    path = Path(tempfile.gettempdir()) / "fleetcraft-cluster-start.lock"
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def free_ports(count: int) -> int:
    """The first of so many free ports in a row. A block in which any port is taken belongs to somebody."""
    for first in random.sample(_PORT_BLOCKS, len(_PORT_BLOCKS)):
        if all(_is_free(port) for port in range(first, first + count)):
            return first
    raise RuntimeError(f"no {count} free ports in a row between {_PORT_BLOCKS.start} and {_PORT_BLOCKS.stop}")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("0.0.0.0", port))
        except OSError:
            return False
    return True


def is_open(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def ensure_user() -> pwd.struct_passwd:
    """The ordinary user that submits. It stays: without password, shell and home it is no way in."""
    try:
        return pwd.getpwnam(USER)
    except KeyError:
        pass
    argv = [program("useradd"), "--system", "--no-create-home", "--home-dir", "/nonexistent", "--user-group"]
    made = subprocess.run([*argv, "--shell", "/usr/sbin/nologin", USER], capture_output=True, text=True, check=False)
    try:
        return pwd.getpwnam(USER)
    except KeyError:
        raise RuntimeError(f"useradd could not make {USER}: {made.stderr.strip()}") from None


def why_no_cgroups() -> str | None:
    """The reason why memory cannot be kept in bounds by the kernel here, or None."""
    for controller in CONTROLLERS:
        folder = _CGROUPS / controller
        if not (folder / "cgroup.procs").exists():
            return f"{folder} is not mounted (cgroup version 1)"
        probe = folder / f"fleetcraft-probe-{os.getpid()}"
        try:
            probe.mkdir()
            if controller == "memory":
                (probe / "memory.limit_in_bytes").write_text(str(64 << 20))
            probe.rmdir()
        except OSError as error:
            return f"{folder} cannot be used: {error.strerror}"
    return None


def make_cgroups(root: Path) -> None:
    """Groups for this cluster alone: two clusters whose nodes share names must not meet in one tree."""
    (root / "cgroup").mkdir()
    for controller in CONTROLLERS:
        group = _CGROUPS / controller / root.name
        group.mkdir()
        (root / "cgroup" / controller).symlink_to(group)


def thaw(root: Path, below: str = "") -> None:
    """Suspended jobs are frozen, and what is frozen does not even die."""
    for path in (_CGROUPS / "freezer" / root.name / below).rglob("freezer.state"):
        try:
            path.write_text("THAWED")
        except OSError:
            continue  # the group went away, or it is the topmost one


def remove_cgroups(root: Path, below: str = "") -> list[str]:
    """Remove the groups, deepest first; the names of those that are still in use."""
    left = []
    for controller in CONTROLLERS:
        for folder, _folders, _files in os.walk(_CGROUPS / controller / root.name / below, topdown=False):
            try:
                os.rmdir(folder)
            except OSError as error:
                left.append(f"{folder}: {error.strerror}")
    return left
