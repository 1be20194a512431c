"""Writes docs/reference/cli.md from the parsers: `python -m fleetcraft.cli.reference > docs/reference/cli.md`.

A test compares the page with what this prints, so the page cannot lie.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator

from fleetcraft.cli.command import Command
from fleetcraft.cli.commands import NOUNS, VERBS, load
from fleetcraft.cli.parser import DEFAULT_SPOOL, SPOOL_VARIABLE, build_parser

_SHARED = frozenset({"--spool", "--json", "--help"})


def render() -> str:
    """The whole page."""
    return "\n".join(_page()) + "\n"


def _page() -> Iterator[str]:
    yield from (
        "# Command line",
        "",
        "This page is written by `python -m fleetcraft.cli.reference` from the parsers of the program.",
        "",
        "Every command is `fleetcraft NOUN VERB`, and every one takes these:",
        "",
        f"* `--spool DIR`: the spool directory. Default: `${SPOOL_VARIABLE}`, else `{DEFAULT_SPOOL}` in the current",
        "  directory. (`bundle` and `completion` need none.)",
        "* `--json`: answer with one JSON object. It begins with `schema`, a name with a version; they stand below.",
        "  An error is an object too, of schema `fleetcraft.error/1`, on standard output.",
        "* `-h`, `--help`: help with examples.",
        "",
        "Everything after the first bare `--` of `task enqueue` is the command, whatever it looks like. For other",
        "verbs `--` says that names follow, also such that begin with a dash.",
        "",
        "`FLEETCRAFT_DEBUG=1` prints the traceback of a fault of ours. `NO_COLOR` and `FORCE_COLOR` are respected.",
        "See [exit codes](exit-codes.md).",
    )
    for noun, summary in NOUNS.items():
        yield from ("", f"## {noun}", "", f"{summary[0].upper()}{summary[1:]}.")
        for verb in VERBS[noun]:
            yield from _section(load(noun, verb))


def _section(command: Command) -> Iterator[str]:
    parser = build_parser(command)
    words = " ".join(command.path)
    if len(command.path) > 1:
        yield from ("", f"### {words}")
    yield from ("", *(command.description or command.summary).splitlines())
    yield from ("", f"JSON schema: `{command.schema}`.")
    for group in parser._action_groups:  # noqa: SLF001  argparse shows its groups nowhere else
        actions = [action for action in group._group_actions if not _SHARED & set(action.option_strings)]  # noqa: SLF001
        if actions:
            yield from ("", f"| {group.title or 'arguments'} | |", "|---|---|")
            for action in actions:
                yield f"| {_spelling(action)} | {_cell(action)} |"
    yield from ("", "```console")
    for example in command.examples:
        yield from (f"$ {example.line}", f"#   {example.what}")
    yield "```"
    codes = "; ".join(f"`{code}` {meaning}" for code, meaning in command.exit_codes.items())
    yield from ("", f"Exit codes: {codes}.")


def _spelling(action: argparse.Action) -> str:
    value = "" if action.nargs == 0 else _metavar(action)
    if not action.option_strings:
        return f"`{value}`"
    return ", ".join(f"`{option} {value}`".replace(" `", "`") for option in action.option_strings)


def _metavar(action: argparse.Action) -> str:
    if action.metavar is not None:
        name = str(action.metavar)
    elif action.choices is not None:
        name = "{" + ",".join(map(str, action.choices)) + "}"
    else:
        name = action.dest.upper()
    return f"[{name} ...]" if action.nargs == "*" else f"[{name}]" if action.nargs == "?" else name


def _cell(action: argparse.Action) -> str:
    return (action.help or "").replace("%%", "%").replace("|", "\\|")


if __name__ == "__main__":
    sys.stdout.write(render())
