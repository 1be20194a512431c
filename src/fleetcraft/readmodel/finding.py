"""One finding of the doctor: what was looked at, how it stands, and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any


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


def finding(what: str, level: Level, found: str, advice: str = "") -> Finding:
    """A finding; advice is kept only where something is wrong."""
    return Finding(what=what, level=level, found=found, advice="" if level is Level.OK else advice)
