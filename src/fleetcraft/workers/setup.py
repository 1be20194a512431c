"""What the setup of a job changed in its environment, for the tasks: modules that were loaded, variables that were set.

The script of the job writes its environment down before and after the setup. A list of folders gets what was added
in front of the task's own list; every other variable gets the value of the setup. A task's own `env` still wins.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from fleetcraft.core.errors import OutOfReach

SETUP_VARIABLE = "FLEETCRAFT_SETUP"  # the path of the two files, without their endings
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_LISTS = ("PATH", "XDG_DATA_DIRS")
# Of the shell and of the job, never of the setup.
_OURS = ("SLURM_", "SRUN_", "FLEETCRAFT_")
_SHELL = frozenset({"_", "PWD", "OLDPWD", "SHLVL", "CUDA_VISIBLE_DEVICES"})


@dataclass(frozen=True, slots=True, kw_only=True)
class SetupChange:
    """The difference that a setup made."""

    values: Mapping[str, str] = field(default_factory=dict)
    added: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # to lists of folders, in front
    removed: Mapping[str, frozenset[str]] = field(default_factory=dict)  # from lists of folders
    unset: frozenset[str] = frozenset()

    def applied(self, env: Mapping[str, str]) -> dict[str, str]:
        """The environment with this difference."""
        made = {name: value for name, value in env.items() if name not in self.unset} | dict(self.values)
        for name in {*self.added, *self.removed}:
            added, removed = self.added.get(name, ()), self.removed.get(name, frozenset())
            gone = {"", *added, *removed}
            made[name] = ":".join((*added, *(part for part in made.get(name, "").split(":") if part not in gone)))
        return made


NOTHING = SetupChange()


def compare(before: Mapping[str, str], after: Mapping[str, str]) -> SetupChange:
    """What changed between two environments, less what every shell and every job changes."""
    values: dict[str, str] = {}
    added: dict[str, tuple[str, ...]] = {}
    removed: dict[str, frozenset[str]] = {}
    for name, value in after.items():
        if not _counts(name) or before.get(name) == value:
            continue
        if not name.endswith(_LISTS):
            values[name] = value
            continue
        old, new = before.get(name, "").split(":"), value.split(":")
        added[name] = tuple(dict.fromkeys(part for part in new if part and part not in old))
        removed[name] = frozenset(part for part in old if part and part not in new)
    unset = frozenset(name for name in before if _counts(name) and name not in after)
    return SetupChange(values=values, added=added, removed=removed, unset=unset)


def _counts(name: str) -> bool:
    return bool(_NAME.fullmatch(name)) and name not in _SHELL and not name.startswith(_OURS)


def setup_of(environ: Mapping[str, str]) -> SetupChange:
    """The change of this worker's job; nothing outside such a job. Raises OutOfReach when it cannot be read."""
    path = environ.get(SETUP_VARIABLE, "")
    return _read(path) if path else NOTHING


@functools.lru_cache(maxsize=8)
def _read(path: str) -> SetupChange:
    return compare(_environment(f"{path}.before"), _environment(f"{path}.after"))


def _environment(path: str) -> dict[str, str]:
    try:
        with open(path, "rb") as source:
            content = source.read()
    except OSError as error:
        raise OutOfReach(f"The environment of this job cannot be read: {path}: {error.strerror}.") from error
    pairs = (os.fsdecode(entry).partition("=") for entry in content.split(b"\0") if entry)
    return {name: value for name, sign, value in pairs if sign}
