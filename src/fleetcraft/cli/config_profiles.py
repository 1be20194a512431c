"""`config check` and `config show`: whether a site profile is sound, and what it says in the end."""

from __future__ import annotations

import argparse
import json

from fleetcraft.cli.command import Command, Example
from fleetcraft.cli.output import Output, count, printable
from fleetcraft.cli.profiles import profiles
from fleetcraft.cli.tables import STATE_STYLES
from fleetcraft.core.errors import EXIT_DONE, EXIT_USAGE, UsageError

_STYLES = {"error": STATE_STYLES["bad"], "warning": STATE_STYLES["warn"]}


def _check_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("which profiles")
    group.add_argument("profile", metavar="PROFILE", nargs="*", help="names or files (default: all of your own)")
    group.add_argument("--strict", action="store_true", help="a warning is as bad as an error")


def _check(arguments: argparse.Namespace, output: Output) -> int:
    room = profiles()
    checked = list(room.check_profiles(arguments.profile))
    everything = [problem for _, problems in checked for problem in problems]
    errors = sum(problem.weight.value == "error" for problem in everything)
    bad = errors > 0 or (arguments.strict and bool(everything))
    if output.json:
        files = [
            {"file": file, "sound": not room.has_errors(found), "problems": [problem.as_json() for problem in found]}
            for file, found in checked
        ]
        output.document(CHECK.schema, {"errors": errors, "warnings": len(everything) - errors, "files": files})
        return EXIT_USAGE if bad else EXIT_DONE
    for file, found in checked:
        for problem in found:
            word = output.paint(f"{problem.weight.value:<8}", *_STYLES[problem.weight.value])
            output.line(f"{word} {printable(problem.sentence)}")
        if not room.has_errors(found):
            output.line(f"{output.paint('ok', 'green'):<8} {printable(file)}")
    if everything:
        output.line(f"{count(errors, 'error')}, {count(len(everything) - errors, 'warning')}")
    return EXIT_USAGE if bad else EXIT_DONE


def _show_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("what to show")
    group.add_argument(
        "profile", metavar="PROFILE", nargs="?", help="a name or a file (default: the only one of yours)"
    )
    group.add_argument("--partition", metavar="NAME", help="the partition (default: the profile's)")
    group.add_argument("--toml", action="store_true", help="the file as it is, to be copied")


def _show(arguments: argparse.Namespace, output: Output) -> int:
    room = profiles()
    if arguments.toml:
        if arguments.partition:
            raise UsageError("--toml shows the whole file; --partition has no meaning there.", hint="Give one of them.")
        source, text = room.profile_text(arguments.profile)
        if output.json:
            output.document(SHOW.schema, {"source": source, "toml": text})
        else:
            output.stdout.write(text if text.endswith("\n") else text + "\n")
        return EXIT_DONE
    site = room.show_site(arguments.profile, arguments.partition)
    if output.json:
        output.document(SHOW.schema, {"source": site.source, "digest": site.digest, "site": site.as_json()})
        return EXIT_DONE
    for key, value in room.flat(site.as_json()):
        if value not in (None, [], {}, ""):
            output.line(f"{output.paint(key, 'cyan')} = {json.dumps(value, ensure_ascii=False)}")
    output.line(f"{output.paint('digest', 'cyan')} = {json.dumps(site.digest)}")
    return EXIT_DONE


CHECK = Command(
    path=("config", "check"),
    summary="whether site profiles are sound",
    description="Read site profiles and tell everything that is wrong with them, each at its line, with what to write\n"
    "instead. A profile with an error is never used; a warning does not hinder.",
    arguments=_check_arguments,
    run=_check,
    uses_spool=False,
    examples=(
        Example(line="fleetcraft config check", what="Every profile of your own."),
        Example(line="fleetcraft config check ./mine.toml --strict", what="One file; a warning counts, too."),
    ),
    exits={2: "a profile cannot be used (with --strict: or has a warning), wrong usage, or nothing of that name"},
)
SHOW = Command(
    path=("config", "show"),
    summary="what a site profile says in the end, defaults included",
    description="Show the values that a submission to one partition would be made with: what the profile says, else\n"
    "the default. Times are in seconds, sizes in bytes.",
    arguments=_show_arguments,
    run=_show,
    uses_spool=False,
    examples=(
        Example(line="fleetcraft config show generic-slurm --partition gpu", what="All values, one a line."),
        Example(line="fleetcraft config show tacc-like --toml > mine.toml", what="Start a profile from an example."),
    ),
)
