"""Asks a scheduler what it is and keeps the answer as a draft of a profile.

A file of a person is never replaced unasked.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass

from fleetcraft.config.check import check_text
from fleetcraft.config.loading import is_profile_name, profile_folder
from fleetcraft.config.problems import Problem
from fleetcraft.config.site import SchedulerRules
from fleetcraft.core.errors import NameTaken, OutOfReach, UsageError
from fleetcraft.fleet.opening import open_scheduler
from fleetcraft.fleet.probe import Surroundings, draft_profile
from fleetcraft.schedulers.api import Scheduler
from fleetcraft.store.files import Files, ensure_folder, explain, publish_file

_SCRATCH = "SCRATCH"  # the usual name; where it is not set, the draft leaves the place open
_TOOLS = ("sbalance", "sshare")
_ZONE = re.compile(r".*/zoneinfo/(?:posix/|right/)?([A-Za-z_+-]+(?:/[A-Za-z0-9_+-]+)*)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A drafted profile; `path` is where it was written, or would be."""

    name: str
    path: str
    text: str
    problems: tuple[Problem, ...]  # what is still wrong or missing in the draft
    not_told: tuple[str, ...]  # what the scheduler did not answer
    written: bool = False


def probe_cluster(
    name: str,
    *,
    kind: str = "slurm",
    write: bool = False,
    replace: bool = False,
    env: Mapping[str, str] = os.environ,
    scheduler: Scheduler | None = None,
    files: Files | None = None,
) -> Draft:
    """Ask, draft, and write when asked to. Raises UsageError, NameTaken, OutOfReach."""
    if not is_profile_name(name):
        raise UsageError(f"{name!r} is no name for a profile.", hint="Use lower-case letters, digits, dots and dashes.")
    folder = profile_folder(env)
    path = os.path.join(folder, f"{name}.toml")
    if write and not replace and os.path.lexists(path):
        raise NameTaken(
            f"{path} is there already.", hint="See the draft without --write, or add --force to replace it."
        )
    base, _, executor = kind.partition(":")
    asked = scheduler or open_scheduler(SchedulerRules(kind=base, executor=executor or None), env=env)
    limits = asked.limits()
    if not limits.answered:
        said = "; ".join(limits.problems) or "no answer"
        raise OutOfReach(
            f"The scheduler ({asked.kind}) did not tell its limits: {said}.",
            hint="Begin with an example: `fleetcraft config show generic-slurm --toml`."
            if base == "psij"
            else "Try again on a login node of the cluster.",
        )
    version = asked.version()
    text = draft_profile(limits, _around(name, asked.kind, version, env))
    draft = Draft(name=name, path=path, text=text, problems=tuple(check_text(text, path)), not_told=limits.problems)
    if not write:
        return draft
    _write(files or Files(), folder, path, text)
    return Draft(name=name, path=path, text=text, problems=draft.problems, not_told=draft.not_told, written=True)


def _write(files: Files, folder: str, path: str, text: str) -> None:
    try:
        os.makedirs(os.path.dirname(folder), mode=0o700, exist_ok=True)
        ensure_folder(files, folder)
        publish_file(files, path, text.encode())
    except OSError as error:
        raise explain(error, f"Cannot write {path}") from error


def _around(name: str, kind: str, version: tuple[int, ...] | None, env: Mapping[str, str]) -> Surroundings:
    said = kind if version is None else f"{kind} {'.'.join(map(str, version))}"
    return Surroundings(
        name=name,
        kind=kind,
        host=socket.gethostname(),
        at=time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        version=said,
        in_job="SLURM_JOB_ID" in env,
        scratch=_SCRATCH if env.get(_SCRATCH, "").startswith("/") else None,
        time_zone=_time_zone(),
        tools=frozenset(tool for tool in _TOOLS if shutil.which(tool, path=env.get("PATH"))),
    )


def _time_zone() -> str | None:
    try:
        match = _ZONE.fullmatch(os.path.realpath("/etc/localtime"))
    except OSError:
        return None
    return match[1] if match else None
