"""What one verb of the command line is: its words, its help, its arguments, and the function that does it."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from fleetcraft.cli.output import Output

# What an exit code means everywhere; a verb names the ones that it can give.
EXITS = {
    0: "done",
    1: "work failed, or something is wrong with what was looked at",
    2: "wrong usage, an invalid file, or nothing of that name",
    3: "still going",
    4: "refused by a rule; the reason is on stderr",
    70: "a fault of ours",
    75: "the storage is full or did not answer; run the same command again",
    130: "interrupted",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """One command line that works as written, and what it does."""

    line: str
    what: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One verb."""

    path: tuple[str, ...]
    summary: str
    run: Callable[[argparse.Namespace, Output], int]
    examples: tuple[Example, ...]
    arguments: Callable[[argparse.ArgumentParser], None] | None = None
    description: str = ""
    exits: Mapping[int, str] = field(default_factory=dict)
    uses_spool: bool = True
    takes_command: bool = False  # everything after the first bare `--` is a command line of the person

    @property
    def name(self) -> str:
        """The words as typed."""
        return "fleetcraft " + " ".join(self.path)

    @property
    def schema(self) -> str:
        """The name of the JSON document that the verb prints."""
        return f"fleetcraft.{'.'.join(self.path)}/1"

    @property
    def exit_codes(self) -> dict[int, str]:
        """Every exit code that the verb gives, with its meaning."""
        common = {0: EXITS[0], 2: EXITS[2], 75: EXITS[75]} if self.uses_spool else {0: EXITS[0], 2: EXITS[2]}
        return dict(sorted({**common, **self.exits}.items()))
