"""That somebody takes a cluster down, also when its test process was killed.

The process that made a cluster holds a lock on one file of it, and the kernel frees the lock when that process
ends, however it ended. A keeper process waits for the lock, and takes down what is still there when it gets it.
"""

from __future__ import annotations

import fcntl
import os
import sys
from pathlib import Path

_LOCK = "owner.lock"
_PROJECT = Path(__file__).parents[2]


class Lock:
    """The owner's lock on a cluster, taken at once."""

    def __init__(self, root: Path) -> None:
        self._descriptor: int | None = os.open(root / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(self._descriptor, fcntl.LOCK_EX)

    @property
    def is_held(self) -> bool:
        return self._descriptor is not None

    def release(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def start_keeper(root: Path) -> int:
    """Start the keeper of a cluster, in a session of its own: it survives what ends the tests."""
    output = os.open(root / "log" / "keeper.out", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        return os.posix_spawn(
            sys.executable,
            [sys.executable, "-m", "tests.cluster.keeping", str(root)],
            {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(_PROJECT)},
            setsid=True,
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
                (os.POSIX_SPAWN_DUP2, output, 1),
                (os.POSIX_SPAWN_DUP2, output, 2),
            ],
        )
    finally:
        os.close(output)


def keep(root: Path) -> None:
    """Wait until the owner is gone, then take down what is left."""
    from tests.cluster.slurm_cluster import take_down

    try:
        descriptor = os.open(root / _LOCK, os.O_RDWR)
    except FileNotFoundError:
        return
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    if root.is_dir():
        take_down(root)


if __name__ == "__main__":
    keep(Path(sys.argv[1]))
