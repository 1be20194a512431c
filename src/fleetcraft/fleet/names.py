"""Names of fleets and tokens of jobs, and every path of a fleet below its spool, once.

A token is unique for ever: it stands in the job's name and comment, and in every record that speaks of the job.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Callable
from dataclasses import dataclass

from fleetcraft.core.errors import UsageError

FLEETS = "fleets"
_FLEET = re.compile(r"[a-z0-9][a-z0-9-]{0,30}")
_TOKEN = re.compile(r"fc[a-z2-7]{10}")
_RECORD = re.compile(r"([1-9][0-9]{0,17})\.json")
_ALPHABET = "abcdefghijklmnopqrstuvwxyz234567"

MakeToken = Callable[[], str]


def check_fleet_name(name: str) -> str:
    """The name itself. Raises UsageError when it is no name of a fleet."""
    if not _FLEET.fullmatch(name):
        raise UsageError(
            f"{name!r} is no name for a fleet.",
            hint="Use up to 31 lower-case letters, digits and dashes, beginning with a letter or digit.",
        )
    return name


def is_fleet_name(name: str) -> bool:
    """True when a folder of that name may be a fleet."""
    return _FLEET.fullmatch(name) is not None


def make_token() -> str:
    """A token that nobody ever had."""
    return "fc" + "".join(secrets.choice(_ALPHABET) for _ in range(10))


def is_token(text: str) -> bool:
    """True when `text` may be a token."""
    return _TOKEN.fullmatch(text) is not None


def record_number(name: str) -> int | None:
    """The number of a record's file name, or None."""
    match = _RECORD.fullmatch(name)
    return int(match[1]) if match else None


@dataclass(frozen=True, slots=True)
class FleetFolder:
    """Paths of one fleet."""

    spool: str
    name: str

    @property
    def root(self) -> str:
        """The folder of the fleet."""
        return os.path.join(self.spool, FLEETS, self.name)

    @property
    def records(self) -> str:
        """Numbered, immutable records."""
        return os.path.join(self.root, "records")

    @property
    def jobs(self) -> str:
        """One folder per token, written by the job itself."""
        return os.path.join(self.root, "jobs")

    @property
    def programs(self) -> str:
        """Worker programs as single files, named by their digest."""
        return os.path.join(self.root, "programs")

    def record(self, number: int) -> str:
        """One record."""
        return os.path.join(self.records, f"{number}.json")

    def job(self, token: str) -> JobFolder:
        """The folder of one job."""
        return JobFolder(os.path.join(self.jobs, token))


@dataclass(frozen=True, slots=True)
class JobFolder:
    """What one job leaves behind."""

    root: str

    @property
    def output(self) -> str:
        """What the job and its workers said."""
        return os.path.join(self.root, "output.log")

    @property
    def started(self) -> str:
        """Written when the job's script begins."""
        return os.path.join(self.root, "start.json")

    @property
    def ended(self) -> str:
        """Written when the job's script ends, whatever ended it short of a kill."""
        return os.path.join(self.root, "exit.json")

    @property
    def withdrawn(self) -> str:
        """A job that finds this file runs nothing: its submission was given up for lost."""
        return os.path.join(self.root, "withdrawn")

    @property
    def stop(self) -> str:
        """Made to tell the job's workers to save their state and leave."""
        return os.path.join(self.root, "stop")

    @property
    def ready(self) -> str:
        """Written by a held node when a person may attach."""
        return os.path.join(self.root, "ready.json")

    @property
    def beat(self) -> str:
        """Replaced regularly by a held node."""
        return os.path.join(self.root, "beat.json")

    @property
    def smoke(self) -> str:
        """One file of output and one exit code per check."""
        return os.path.join(self.root, "smoke")
