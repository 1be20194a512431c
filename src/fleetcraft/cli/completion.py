"""Completion: prints the script for a shell, and answers the shell's questions."""

from __future__ import annotations

import argparse

from fleetcraft.cli.command import Command, Example
from fleetcraft.cli.output import Output
from fleetcraft.core.errors import EXIT_DONE, UsageError

SHELLS = ("bash", "zsh", "fish")


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=SHELLS, help="the shell that shall complete")


def _run(arguments: argparse.Namespace, output: Output) -> int:
    try:
        from argcomplete.shell_integration import shellcode
    except ImportError:
        raise UsageError(
            "Completion needs the package argcomplete.", hint="Install it: pip install argcomplete."
        ) from None
    script = shellcode(["fleetcraft"], shell=arguments.shell)
    if output.json:
        output.document(COMPLETION.schema, {"shell": arguments.shell, "script": script})
    else:
        output.line(script.rstrip("\n"))
    return EXIT_DONE


def complete() -> None:
    """Answer the shell that asks through the environment, and end the process."""
    try:
        import argcomplete
    except ImportError:
        return
    argcomplete.autocomplete(full_parser(), default_completer=argcomplete.completers.FilesCompleter())


def full_parser() -> argparse.ArgumentParser:
    """One parser for everything, as completion needs it; a command line is parsed by the parser of its verb alone."""
    from fleetcraft.cli.commands import NOUNS, VERBS, load
    from fleetcraft.cli.parser import Parser, build_parser

    root = Parser("fleetcraft")
    root.add_argument("--version", action="store_true", help="show the version and exit")
    nouns = root.add_subparsers(dest="noun", parser_class=Parser)
    for noun, summary in NOUNS.items():
        parser = nouns.add_parser(noun, help=summary)
        if "" in VERBS[noun]:
            build_parser(load(noun, ""), parser)
            continue
        verbs = parser.add_subparsers(dest="verb", parser_class=Parser)
        for verb in VERBS[noun]:
            command = load(noun, verb)
            build_parser(command, verbs.add_parser(verb, help=command.summary))
    return root


COMPLETION = Command(
    path=("completion",),
    summary="print the script that lets your shell complete commands",
    description="Print a script that lets your shell complete nouns, verbs and options.",
    arguments=_arguments,
    run=_run,
    uses_spool=False,
    examples=(
        Example(
            line='eval "$(fleetcraft completion bash)"',
            what="Complete in this bash; put the line into ~/.bashrc to keep it.",
        ),
        Example(
            line="fleetcraft completion fish > ~/.config/fish/completions/fleetcraft.fish",
            what="Complete in every fish from now on.",
        ),
    ),
)
