"""`task cancel` and `task retry`: what a person wishes for tasks that are already in the spool."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from fleetcraft.cli.command import Command, Example
from fleetcraft.cli.output import Output, count, printable
from fleetcraft.cli.parser import number, spool_root
from fleetcraft.core.errors import EXIT_DONE, EXIT_REFUSED
from fleetcraft.core.states import TaskState
from fleetcraft.spool.spool import Spool

if TYPE_CHECKING:
    from fleetcraft.actions.requests import Refusals
    from fleetcraft.actions.selection import Selection

_SHOWN = 5


def _selection_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("which tasks")
    group.add_argument("names", metavar="NAME", nargs="*", help="names, or ids such as 3.17")
    group.add_argument(
        "--batch", type=number, action="append", default=[], metavar="N", help="all tasks that batch N published"
    )
    group.add_argument(
        "--state", action="append", default=[], choices=[state.value for state in TaskState], metavar="STATE",
        help="only those in this state; alone: all of them",
    )  # fmt: skip
    group.add_argument("--tag", action="append", default=[], help="only those with this tag; alone: all of them")
    group.add_argument("--match", metavar="PATTERN", help="only names like this; * and ? stand for any characters")
    group.add_argument("--all", action="store_true", help="every task of the spool")


def _selection(arguments: argparse.Namespace) -> Selection:
    from fleetcraft.actions.selection import Selection

    return Selection(
        names=tuple(arguments.names),
        batches=tuple(arguments.batch),
        states=frozenset(TaskState(state) for state in arguments.state),
        tags=frozenset(arguments.tag),
        pattern=arguments.match,
        everything=arguments.all,
    )


def _cancel_arguments(parser: argparse.ArgumentParser) -> None:
    _selection_arguments(parser)
    parser.add_argument_group("what to note").add_argument(
        "--reason", default="", metavar="TEXT", help="kept with the request"
    )


def _cancel(arguments: argparse.Namespace, output: Output) -> int:
    from fleetcraft.actions.requests import cancel

    spool = Spool.open(spool_root(arguments))
    result = cancel(spool, _selection(arguments), reason=arguments.reason)
    if output.json:
        body = {"request": result.request, "cancelled": result.cancelled, "names": result.names}
        output.document(CANCEL.schema, {**body, "refused": _refused_json(result.refused)})
    else:
        if result.cancelled:
            output.line(f"cancelled {count(result.cancelled, 'task')}{_names(result.names)}")
            output.line("what had not started is cancelled now; what runs is ended by its worker")
        else:
            output.line("no task was cancelled")
        _say_refused(result.refused, "left as they are", output)
    return _code(result.cancelled, result.refused)


def _retry_arguments(parser: argparse.ArgumentParser) -> None:
    _selection_arguments(parser)
    group = parser.add_argument_group("what to run again")
    group.add_argument("--succeeded", action="store_true", help="tasks that succeeded, too")
    group.add_argument("--skip-unfinished", action="store_true", help="leave out what has not ended, without a word")


def _retry(arguments: argparse.Namespace, output: Output) -> int:
    from fleetcraft.actions.requests import retry

    spool = Spool.open(spool_root(arguments))
    result = retry(
        spool,
        _selection(arguments),
        running="skip" if arguments.skip_unfinished else "refuse",
        succeeded=arguments.succeeded,
    )
    if output.json:
        body = {"requests": result.requests, "retried": result.retried, "names": result.names}
        output.document(RETRY.schema, {**body, "refused": _refused_json(result.refused)})
    else:
        if result.retried:
            output.line(
                f"{count(result.retried, 'task runs', 'tasks run')} again, with full budgets{_names(result.names)}"
            )
        else:
            output.line("no task runs again")
        _say_refused(result.refused, "not run again", output)
    return _code(result.retried, result.refused)


def _code(done: int, refused: Refusals) -> int:
    """A selection that caught some of each is no refusal; one that caught only what may not be touched is."""
    return EXIT_REFUSED if refused.count and not done else EXIT_DONE


def _names(names: list[str]) -> str:
    if not names:
        return ""
    more = ", ..." if len(names) > _SHOWN else ""
    return ": " + ", ".join(printable(name) for name in names[:_SHOWN]) + more


def _refused_json(refused: Refusals) -> dict[str, object]:
    return {
        "count": refused.count,
        "by_state": {state.value: number for state, number in refused.by_state.items()},
        "shown": [
            {"id": str(one.task), "name": one.name, "state": one.state.value, "reason": one.reason}
            for one in refused.shown
        ],
    }


def _say_refused(refused: Refusals, what: str, output: Output) -> None:
    if not refused.count:
        return
    parts = ", ".join(f"{number:,} {state.value}" for state, number in refused.by_state.items())
    output.note(f"{count(refused.count, 'task was', 'tasks were')} {what} ({parts})")
    for one in refused.shown[:_SHOWN]:
        output.note(f"  {one.name}: {one.reason}")


CANCEL = Command(
    path=("task", "cancel"),
    summary="do not run these tasks, and end those that run",
    description="Cancel tasks. A cancel means the present generation: a later `task retry` is not met by it.",
    arguments=_cancel_arguments,
    run=_cancel,
    examples=(
        Example(line="fleetcraft task cancel train-0 train-1", what="Two tasks by name."),
        Example(
            line="fleetcraft task cancel --tag sweep --state waiting", what="What carries the tag and still waits."
        ),
        Example(line="fleetcraft task cancel --all --reason 'wrong seed'", what="Everything that has not ended."),
    ),
    exits={4: "nothing was cancelled: all of them had ended"},
)
RETRY = Command(
    path=("task", "retry"),
    summary="run tasks again that ended, with full budgets",
    description="Open a new generation of tasks that failed, were set aside or cancelled. Their history is kept.",
    arguments=_retry_arguments,
    run=_retry,
    examples=(
        Example(line="fleetcraft task retry train-0", what="One task by name."),
        Example(line="fleetcraft task retry --state failed", what="Everything that failed."),
        Example(
            line="fleetcraft task retry --batch 3 --succeeded --skip-unfinished",
            what="All of batch 3 that has ended, once more.",
        ),
    ),
    exits={4: "nothing was retried: these tasks run, wait, or succeeded"},
)
