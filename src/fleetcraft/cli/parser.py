"""Argument parsers that fail with one sentence, and help that is grouped, colored on a terminal, with examples.

argparse does the parsing. rich is imported only when help is printed to a terminal; without it help is plain.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from fleetcraft.cli.command import Command
from fleetcraft.core.errors import UsageError
from fleetcraft.core.quantities import parse_duration_s

SPOOL_VARIABLE = "FLEETCRAFT_SPOOL"
DEFAULT_SPOOL = ".fleetcraft"
_WIDTH = 100


class _Plain(argparse.RawDescriptionHelpFormatter):
    """Fixed width: asking for the terminal's size would import shutil on every start."""

    def __init__(self, prog: str, indent_increment: int = 2, max_help_position: int = 30, width: int = _WIDTH) -> None:
        super().__init__(prog, indent_increment, max_help_position, width)


class Parser(argparse.ArgumentParser):
    """Wrong usage is an error like all others, so that `--json` covers it too."""

    def __init__(self, prog: str, **settings: Any) -> None:
        settings.setdefault("formatter_class", _Plain)
        super().__init__(prog=prog, allow_abbrev=False, add_help=False, **settings)
        self._positionals.title = "arguments"
        self._optionals.title = "general"
        self.takes_command = False

    def error(self, message: str) -> NoReturn:
        """See argparse; raises instead of ending the process."""
        raise UsageError(f"{self.verb}: {message}.", hint=f"See `{self.prog} --help`.")

    @property
    def verb(self) -> str:
        """The words behind `fleetcraft`."""
        return self.prog.removeprefix("fleetcraft ")

    def format_help(self) -> str:
        """See argparse."""
        self.formatter_class = _help_formatter()
        return super().format_help()

    def parse(self, words: Sequence[str]) -> argparse.Namespace:
        """Parse, and say what an unknown option may have been meant to be. Raises UsageError."""
        found, unknown = self.parse_known_args(list(words))
        if unknown:
            hint = f"See `{self.prog} --help`."
            if self.takes_command and not unknown[0].startswith("-"):
                hint = f"Put -- before the command: `{self.prog} -- {' '.join(unknown)}`."
            raise UsageError(f"{self.verb}: unknown argument {unknown[0]!r}.{self._nearest(unknown[0])}", hint=hint)
        return found

    def _nearest(self, word: str) -> str:
        import difflib

        options = [option for action in self._actions for option in action.option_strings]
        close = difflib.get_close_matches(word.split("=", maxsplit=1)[0], options, n=1)
        return f" Did you mean {close[0]}?" if close else ""


def build_parser(command: Command, parser: Parser | None = None) -> Parser:
    """The parser of one verb."""
    parser = parser or Parser(command.name)
    parser.description = command.description or command.summary
    parser.epilog = epilog(command)
    parser.takes_command = command.takes_command
    if command.arguments is not None:
        command.arguments(parser)
    general = parser._optionals  # noqa: SLF001  argparse has no other way to fill its own group
    if command.uses_spool:
        general.add_argument(
            "--spool", metavar="DIR", default=None,
            help=f"the spool directory (default: ${SPOOL_VARIABLE}, else {DEFAULT_SPOOL} in the current directory)",
        )  # fmt: skip
    general.add_argument(
        "--json", action="store_true", help=f"answer with one JSON object ({command.schema}), errors too"
    )
    general.add_argument("-h", "--help", action="help", help="show this help and exit")
    # What a verb is about comes first; what all of them share comes last.
    parser._action_groups.remove(general)  # noqa: SLF001  as above
    parser._action_groups.append(general)  # noqa: SLF001  as above
    return parser


def epilog(command: Command) -> str:
    """Examples and exit codes, the same in help and in the documentation."""
    lines = ["examples:"]
    for example in command.examples:
        lines += [f"  {example.line}", f"      {example.what}"]
    lines += ["", "exit codes:"]
    lines += [f"  {code:<4}{meaning}" for code, meaning in command.exit_codes.items()]
    return "\n".join(lines)


def spool_root(arguments: argparse.Namespace) -> str:
    """The spool that was named, or the default one."""
    return arguments.spool or os.environ.get(SPOOL_VARIABLE) or DEFAULT_SPOOL


def is_spool_named(arguments: argparse.Namespace) -> bool:
    """True when a person named the spool, by the option or by the variable."""
    return bool(arguments.spool or os.environ.get(SPOOL_VARIABLE))


def duration(option: str) -> Any:
    """An argparse type for a time span in seconds; raises UsageError with the option's name."""

    def convert(text: str) -> float:
        return parse_duration_s(text, option)

    return convert


def number(text: str) -> int:
    """An argparse type for a whole number of zero or more."""
    if not text.isascii() or not text.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of zero or more")
    return int(text)


def _help_formatter() -> Any:
    """Rich where a terminal shows it and it is installed; else plain."""
    if not sys.stdout.isatty() or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return _Plain
    try:
        from rich_argparse import RawDescriptionRichHelpFormatter
    except ImportError:
        return _Plain

    class Colored(RawDescriptionRichHelpFormatter):
        """Names of options may look like markup, so no text is taken for it."""

        text_markup = False
        help_markup = False
        group_name_formatter = str
        styles = RawDescriptionRichHelpFormatter.styles | {
            "argparse.groups": "bold",
            "argparse.args": "cyan",
            "argparse.metavar": "green",
            "argparse.prog": "bold",
        }

        def __init__(self, prog: str, **settings: Any) -> None:
            super().__init__(prog, max_help_position=30, **settings)

    return Colored
