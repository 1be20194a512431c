"""What is wrong with a profile, as values, and the errors that are raised for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from fleetcraft.core.errors import UsageError


class Weight(StrEnum):
    """Whether a profile can be used in spite of it."""

    ERROR = "error"
    WARNING = "warning"


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One thing: at which key, on which line of which file, what is wrong, and what to write instead."""

    weight: Weight
    key: str  # empty: the file as a whole
    message: str
    hint: str = ""
    file: str
    line: int | None = None

    @property
    def place(self) -> str:
        """`FILE:LINE`, or the file where no line is known."""
        return f"{self.file}:{self.line}" if self.line else self.file

    @property
    def sentence(self) -> str:
        """Place, thing and remedy in one line."""
        return f"{self.place}: {self.message}{f' {self.hint}' if self.hint else ''}"

    def as_json(self) -> dict[str, Any]:
        """For the JSON document."""
        return {name: getattr(self, name) for name in self.__slots__}


class ProfileUnknown(UsageError):
    """There is no profile of that name, or none was named and more than one could be meant."""

    code = "profile_unknown"


class ProfileInvalid(UsageError):
    """A profile says something that cannot be used; the place says which file, line and key."""

    code = "profile_invalid"

    @classmethod
    def of(cls, problems: Sequence[Problem]) -> ProfileInvalid:
        """The error for a file with these problems, of which at least one is an error."""
        errors = [problem for problem in problems if problem.weight is Weight.ERROR]
        more = f" ({len(errors) - 1} more)" if len(errors) > 1 else ""
        return cls(f"{errors[0].sentence}{more}", hint=f"See them all: `fleetcraft config check {errors[0].file}`.")
