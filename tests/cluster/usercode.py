"""This project as the ordinary user can run it, also where the checkout lies in a folder that only root may enter."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from dataclasses import dataclass, field
from pathlib import Path

from tests.cluster.login import Login

_SOURCE = Path(__file__).parents[2] / "src"


@dataclass(frozen=True, slots=True, kw_only=True)
class UserPython:
    """An interpreter, and the variables with which it finds the project."""

    path: str
    env: dict[str, str] = field(default_factory=dict)

    def argv(self, *words: str) -> list[str]:
        """The command line of `fleetcraft WORDS`; the variables come on top."""
        return [self.path, "-m", "fleetcraft", *words]


def python_for_user(cluster: Login) -> UserPython:
    """This environment where the user may read it, else a copy of it."""
    here = UserPython(path=sys.executable)
    return here if _works(cluster, here) else copy_for_user(cluster)


def copy_for_user(cluster: Login) -> UserPython:
    """A copy of the project and its packages (by hard links, where that works), in the folder of the cluster."""
    code = cluster.root / "code"
    if not code.exists():
        code.mkdir()
        _copy(_SOURCE, code / "src")
        _copy(Path(sysconfig.get_path("purelib")), code / "packages")
    python = UserPython(path="/usr/bin/python3", env={"PYTHONPATH": f"{code}/src:{code}/packages"})
    if not _works(cluster, python):
        raise RuntimeError(f"{cluster.user.pw_name} cannot run this project: neither by {sys.executable} nor in {code}")
    return python


def _works(cluster: Login, python: UserPython) -> bool:
    probe = [python.path, "-c", "import fleetcraft.cli.main"]
    return cluster.run(probe, env=python.env, check=False).returncode == 0


def _copy(folder: Path, target: Path) -> None:
    linked = subprocess.run(["cp", "-rl", folder, target], capture_output=True, check=False)
    if linked.returncode != 0:  # another file system
        subprocess.run(["rm", "-rf", target], check=True)
        subprocess.run(["cp", "-r", folder, target], check=True)
