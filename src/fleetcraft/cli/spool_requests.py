"""`spool stop`, `spool resume`, `spool limit`: what a person wishes for a whole spool."""

from __future__ import annotations

import argparse

from fleetcraft.cli.command import Command, Example
from fleetcraft.cli.output import Output
from fleetcraft.cli.parser import spool_root
from fleetcraft.cli.tables import table
from fleetcraft.core.errors import EXIT_DONE, UsageError
from fleetcraft.spool.permits import list_permits
from fleetcraft.spool.requests import RequestLog
from fleetcraft.spool.spool import Spool


def _stop_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument_group("what to note").add_argument(
        "--reason", default="", metavar="TEXT", help="shown by `spool status` and `why`"
    )


def _stop(arguments: argparse.Namespace, output: Output) -> int:
    from fleetcraft.actions.requests import stop

    request = stop(Spool.open(spool_root(arguments)), reason=arguments.reason)
    if output.json:
        output.document(STOP.schema, {"request": request})
    else:
        output.line("workers start nothing more in this spool; `fleetcraft spool resume` goes on")
    return EXIT_DONE


def _resume(arguments: argparse.Namespace, output: Output) -> int:
    from fleetcraft.actions.requests import resume

    request = resume(Spool.open(spool_root(arguments)))
    if output.json:
        output.document(RESUME.schema, {"request": request})
    else:
        output.line("workers start tasks of this spool again")
    return EXIT_DONE


def _limit_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "limits", metavar="NAME=N", nargs="*", help="at most N at once; without any, the limits are listed"
    )


def _limit(arguments: argparse.Namespace, output: Output) -> int:
    wanted = [_parse(text) for text in arguments.limits]
    spool = Spool.open(spool_root(arguments))
    if wanted:
        from fleetcraft.actions.requests import limit

        for name, ceiling in wanted:
            limit(spool, name, ceiling)
    log = RequestLog(spool)
    log.refresh()
    held: dict[str, int] = {}
    for name, _, owner in list_permits(spool):
        if owner:
            held[name] = held.get(name, 0) + 1
    if output.json:
        limits = {name: {"ceiling": ceiling, "held": held.get(name, 0)} for name, ceiling in sorted(log.limits.items())}
        output.document(LIMIT.schema, {"limits": limits})
    elif not log.limits:
        output.line("no limits are set")
    else:
        rows = [(name, str(ceiling), str(held.get(name, 0))) for name, ceiling in sorted(log.limits.items())]
        output.lines(table(output, ("NAME", "AT ONCE", "HELD NOW"), rows))
    return EXIT_DONE


def _parse(text: str) -> tuple[str, int]:
    name, equals, ceiling = text.rpartition("=")
    if not equals or not name or not (ceiling.isascii() and ceiling.isdigit()):
        raise UsageError(f"{text!r} must look like scratch_io=5.")
    return name, int(ceiling)


STOP = Command(
    path=("spool", "stop"),
    summary="start nothing more until `resume`",
    description="Ask all workers, also those that come later, to start nothing more in this spool.\n"
    "What runs is not touched.",
    arguments=_stop_arguments,
    run=_stop,
    examples=(
        Example(line="fleetcraft spool stop --reason 'checking a result'", what="Start nothing more, and say why."),
    ),
)
RESUME = Command(
    path=("spool", "resume"),
    summary="take back `stop`",
    description="Let workers start tasks of this spool again.",
    run=_resume,
    examples=(Example(line="fleetcraft spool resume", what="Go on."),),
)
LIMIT = Command(
    path=("spool", "limit"),
    summary="how many tasks may use a named resource at once",
    description="Set or list limits of what tasks ask for with `--uses NAME:N`. family:NAME limits how many tasks of\n"
    "a family share a GPU, or a machine where they use none.",
    arguments=_limit_arguments,
    run=_limit,
    examples=(
        Example(line="fleetcraft spool limit scratch_io=5", what="At most five permits of scratch_io are out at once."),
        Example(line="fleetcraft spool limit", what="List the limits, and how much of each is held now."),
    ),
)
