"""`task list`: tasks in the order of their ids, chosen by state, tag, batch and name."""

from __future__ import annotations

import argparse
from itertools import islice

from fleetcraft.cli.command import Command, Example
from fleetcraft.cli.output import Output
from fleetcraft.cli.parser import number, spool_root
from fleetcraft.cli.tables import table
from fleetcraft.core.errors import EXIT_DONE
from fleetcraft.core.quantities import format_bytes
from fleetcraft.core.states import TaskState
from fleetcraft.readmodel.tasks import TaskView, list_tasks
from fleetcraft.readmodel.words import took
from fleetcraft.spool.spool import Spool

_DEFAULT_LIMIT = 100


def _arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("which tasks")
    group.add_argument(
        "pattern", metavar="NAME", nargs="?", help="only names like this; * and ? stand for any characters"
    )
    group.add_argument(
        "--state", action="append", default=[], choices=[state.value for state in TaskState], metavar="STATE",
        help=f"only this state; may be given several times ({', '.join(state.value for state in TaskState)})",
    )  # fmt: skip
    group.add_argument("--tag", action="append", default=[], help="only tasks with this tag; several: with all of them")
    group.add_argument("--batch", type=number, metavar="N", help="only tasks that batch N published")
    group.add_argument(
        "--limit", type=number, metavar="N",
        help=f"at most N tasks; 0 for all (default: {_DEFAULT_LIMIT} for people, all with --json)",
    )  # fmt: skip
    parser.add_argument_group("what to show").add_argument(
        "--brief", action="store_true", help="leave out the last attempt: faster with very many tasks"
    )


def _run(arguments: argparse.Namespace, output: Output) -> int:
    spool = Spool.open(spool_root(arguments))
    limit = arguments.limit
    if limit is None:
        limit = 0 if output.json else _DEFAULT_LIMIT
    tasks = list_tasks(
        spool,
        states=[TaskState(state) for state in arguments.state],
        tags=arguments.tag,
        batch=arguments.batch,
        pattern=arguments.pattern,
        limit=limit + (not output.json) if limit else None,
        details=not arguments.brief,
    )
    if output.json:
        brief = arguments.brief
        output.stream(LIST.schema, "tasks", (task.as_brief_json() if brief else task.as_json() for task in tasks))
        return EXIT_DONE
    shown = list(islice(tasks, limit or None))
    if not shown:
        output.line("no such tasks")
        return EXIT_DONE
    heads = ("NAME", "ID", "STATE", "ATTEMPTS", *(() if arguments.brief else ("TOOK", "MEMORY", "WHERE", "END")))
    output.lines(table(output, heads, [_row(task, brief=arguments.brief) for task in shown], styled=2))
    if next(tasks, None) is not None:
        output.line(f"... and more; --limit 0 shows all (this is the first {limit:,})")
    return EXIT_DONE


def _row(task: TaskView, *, brief: bool) -> tuple[str, ...]:
    row = (task.name, str(task.id), task.state.value, str(task.attempts))
    if brief:
        return row
    where = "" if task.host is None else f"{task.host}:{task.slot}" if task.slot is not None else task.host
    return (
        *row,
        "" if task.wall_s is None else took(task.wall_s),
        "" if task.max_rss_bytes is None else format_bytes(task.max_rss_bytes),
        where,
        how_it_ended(task),
    )


def how_it_ended(task: TaskView) -> str:
    """One or two words on the last attempt."""
    if task.outcome in (None, "succeeded"):
        return ""
    if task.cause:
        return f"{task.outcome} ({task.cause})"
    if task.signal:
        return f"{task.outcome} (signal {task.signal})"
    if task.exit:
        return f"{task.outcome} (exit {task.exit})"
    return str(task.outcome)


LIST = Command(
    path=("task", "list"),
    summary="tasks, chosen by state, tag, batch and name",
    description="List tasks in the order of their ids, each with its last attempt.",
    arguments=_arguments,
    run=_run,
    examples=(
        Example(line="fleetcraft task list --state failed", what="What failed, and how."),
        Example(
            line="fleetcraft task list 'clip-*' --tag eval --limit 0",
            what="All tasks named clip-... that carry the tag eval.",
        ),
        Example(
            line="fleetcraft task list --json --brief", what="All tasks as one JSON object, written as it is read."
        ),
    ),
)
