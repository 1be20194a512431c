"""`task enqueue`: one command, one call, or a file of many tasks."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, BinaryIO

from fleetcraft.cli.command import Command, Example
from fleetcraft.cli.output import Output, count, printable
from fleetcraft.cli.parser import duration, number, spool_root
from fleetcraft.core.errors import EXIT_DONE, UsageError

_FORMS = ("auto", "lines", "jsonl")
# What says what a task does; with --from it fills in what the lines leave out.
_PAYLOAD = ("call", "args", "setup", "setup_args", "python")


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "fleetcraft task enqueue [OPTIONS] -- COMMAND [ARGUMENT ...]\n" + " " * 7 + (
        "fleetcraft task enqueue [OPTIONS] --from FILE|-\n" + " " * 7
        + "fleetcraft task enqueue [OPTIONS] --call MODULE:FUNCTION"
    )  # fmt: skip
    _what_arguments(parser)
    _resource_arguments(parser)
    _order_arguments(parser)
    _failure_arguments(parser)
    _surrounding_arguments(parser)


def _what_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("what to run")
    group.add_argument(
        "--from",
        dest="source",
        metavar="FILE",
        help="a file of plain lines (for /bin/sh) or JSON lines; - is standard input",
    )
    group.add_argument(
        "--form",
        choices=_FORMS,
        default="auto",
        help="what the lines of --from are (default: JSON where a line begins with {)",
    )
    group.add_argument("--name", help="the task's name, unique in its spool (default: a digest of what it does)")
    group.add_argument(
        "--call", metavar="MODULE:FUNCTION", help="call a Python function in a resident worker instead of a command"
    )
    group.add_argument(
        "--args", type=_json("--args"), metavar="JSON", help="keyword arguments of the call, as a JSON object"
    )
    group.add_argument(
        "--setup", metavar="MODULE:FUNCTION", help="called once per resident; its result is handed to every call"
    )
    group.add_argument(
        "--setup-args", type=_json("--setup-args"), metavar="JSON", help="keyword arguments of the setup"
    )
    group.add_argument("--python", metavar="PATH", help="the Python that runs the calls (default: the worker's own)")
    group.add_argument(
        "--tag",
        dest="tags",
        action="append",
        metavar="TAG",
        help="a word to find the tasks by; may be given several times",
    )


def _resource_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("what each task needs")
    group.add_argument("--gpus", metavar="N", help="whole GPUs, or a share of one such as 0.25")
    group.add_argument("--cpus", type=number, metavar="N", help="CPUs (default: 1)")
    group.add_argument("--vram", metavar="SIZE", help="GPU memory to reserve on each of its GPUs, such as 20G")
    group.add_argument("--node", action="store_true", default=None, help="the whole machine")
    group.add_argument(
        "--timed", action="store_true", default=None, help="the whole machine, alone, because the task measures time"
    )
    group.add_argument(
        "--needs", type=duration("--needs"), metavar="TIME", help="do not start it with less time left on the machine"
    )
    group.add_argument(
        "--uses", action="append", metavar="NAME[:N]", help="permits of a limited resource (see `spool limit`)"
    )
    group.add_argument(
        "--family", metavar="NAME", help="tasks of one kind, which may share a machine only up to a limit"
    )


def _order_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("when it runs")
    group.add_argument("--priority", type=number, metavar="N", help="0 to 999, higher first (default: 500)")
    group.add_argument(
        "--after", action="append", metavar="NAME", help="not before this task succeeded; batch:N is a whole batch"
    )


def _failure_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("how it ends")
    group.add_argument(
        "--output",
        dest="outputs",
        action="append",
        metavar="PATH",
        help="a file that it must leave; its size and digest are kept",
    )
    group.add_argument(
        "--validate", metavar="CMD", help="a shell line that must succeed, too, before the task counts as done"
    )
    group.add_argument("--timeout", type=duration("--timeout"), metavar="TIME", help="end an attempt that takes longer")
    group.add_argument(
        "--retries", type=number, metavar="N", help="how often it is tried again after a failure (default: 0)"
    )
    group.add_argument(
        "--backoff",
        type=duration("--backoff"),
        metavar="TIME",
        help="wait before the first retry; doubles (default: 0.5s)",
    )
    group.add_argument(
        "--checkpoint-signal", metavar="SIGNAL", help="sent when the machine goes away, such as USR1 (default: TERM)"
    )
    group.add_argument(
        "--checkpoint-grace",
        type=duration("--checkpoint-grace"),
        metavar="TIME",
        help="how long it may then save its state",
    )
    group.add_argument(
        "--resume-exit", type=number, metavar="N", help="the exit code that means: run me again (default: 75)"
    )
    group.add_argument("--notify", metavar="CMD", help="a shell line run when the task has ended for good")


def _surrounding_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("its surroundings")
    group.add_argument("--cwd", metavar="DIR", help="where it runs (default: the current directory)")
    group.add_argument(
        "--env",
        action="append",
        default=[],
        metavar="NAME[=VALUE]",
        help="a variable; without =VALUE it is taken from here",
    )
    group.add_argument(
        "--env-file", action="append", default=[], metavar="FILE", help="variables from lines of NAME=VALUE"
    )
    group.add_argument(
        "--snapshot",
        action="append",
        default=[],
        metavar="PATH",
        help="freeze this script, so that an edit cannot change queued work",
    )
    group.add_argument(
        "--group",
        action="store_true",
        help="make a new spool writable by your group: its members can then run code as you",
    )


_SHARED = (
    "gpus", "cpus", "vram", "node", "timed", "needs", "uses", "family", "priority", "after", "outputs", "validate",
    "timeout", "retries", "backoff", "checkpoint_signal", "checkpoint_grace", "resume_exit", "notify", "tags",
)  # fmt: skip


def _json(option: str) -> Any:
    def convert(text: str) -> Any:
        try:
            value = json.loads(text)
        except ValueError as error:
            raise UsageError(f"{option} is not valid JSON: {error}.", hint="""Write it like '{"seed": 1}'.""") from None
        if not isinstance(value, dict):
            raise UsageError(f"{option} must be a JSON object of keyword arguments, such as '{{\"seed\": 1}}'.")
        return value

    return convert


def variables(arguments: argparse.Namespace, environment: Mapping[str, str]) -> dict[str, str]:
    """What --env-file and --env say; the later one wins, --env last. Raises UsageError."""
    found: dict[str, str] = {}
    for path in arguments.env_file:
        from fleetcraft.actions.environment import parse_env_file

        try:
            with open(path, encoding="utf-8", errors="surrogateescape", newline="") as source:
                found.update(parse_env_file(source.read(), path))
        except OSError as error:
            raise UsageError(f"Cannot read --env-file {path}: {error.strerror}.") from error
    for item in arguments.env:
        name, equals, value = item.partition("=")
        if not equals:
            if name not in environment:
                raise UsageError(f"--env {name}: there is no such variable here.", hint=f"Write --env {name}=VALUE.")
            value = environment[name]
        found[name] = value
    return found


def _defaults(arguments: argparse.Namespace) -> dict[str, Any]:
    defaults = {key: getattr(arguments, key) for key in _SHARED if getattr(arguments, key) is not None}
    if arguments.cwd is not None:
        defaults["cwd"] = os.path.abspath(arguments.cwd)
    env = variables(arguments, os.environ)
    if env:
        defaults["env"] = env
    return defaults


def _payload(arguments: argparse.Namespace) -> dict[str, Any]:
    given = {key: getattr(arguments, key) for key in _PAYLOAD if getattr(arguments, key) is not None}
    if "python" in given and not os.path.isabs(given["python"]):
        raise UsageError(f"--python {given['python']!r} must be an absolute path.")
    return given


def _check_kind(arguments: argparse.Namespace) -> None:
    """Exactly one way of saying what to run."""
    if arguments.source is not None:
        if arguments.tail is not None:
            raise UsageError("Give a command after --, or --from, not both.")
        if arguments.name is not None:
            raise UsageError("--name names one task; in a file, each line names its own.")
        return
    if arguments.tail is not None and arguments.call is not None:
        raise UsageError("Give a command after --, or --call, not both.")
    if arguments.tail == []:
        raise UsageError("There is no command after --.", hint="Write: fleetcraft task enqueue -- python train.py")
    if arguments.tail is None and arguments.call is None:
        raise UsageError(
            "There is nothing to enqueue: give a command after --, --from FILE, or --call.",
            hint="Write: fleetcraft task enqueue -- python train.py",
        )


def _run(arguments: argparse.Namespace, output: Output) -> int:
    _check_kind(arguments)
    from fleetcraft.actions.enqueue import EnqueueOptions, enqueue_stream, enqueue_tasks
    from fleetcraft.actions.environment import record_environment
    from fleetcraft.spool.spool import Spool

    payload, defaults = _payload(arguments), _defaults(arguments)
    options = EnqueueOptions(
        defaults={**defaults, **payload} if arguments.source is not None else defaults,
        base_env=record_environment(os.environ),
        snapshot=tuple(arguments.snapshot),
        form=arguments.form,
    )
    if arguments.source is None:
        task = {**payload, **({"command": arguments.tail} if arguments.tail is not None else {})}
        if arguments.name is not None:
            task["name"] = arguments.name
        spool = Spool.open(spool_root(arguments), create=True, group=arguments.group)
        result = enqueue_tasks(spool, [task], options)
    else:
        from fleetcraft.cli.progress import Progress

        with _open(arguments.source) as (source, label), Progress(output, "read") as progress:
            spool = Spool.open(spool_root(arguments), create=True, group=arguments.group)
            result = enqueue_stream(spool, source, label, options, progress=progress)
    _tell(result, spool.layout.root, output)
    return EXIT_DONE


@contextmanager
def _open(path: str) -> Iterator[tuple[BinaryIO, str]]:
    if path == "-":
        yield sys.stdin.buffer, "standard input"
        return
    try:
        source = open(path, "rb")  # noqa: SIM115  closed below; only the opening is the person's mistake
    except OSError as error:
        raise UsageError(f"Cannot read --from {path}: {error.strerror}.") from error
    with source:
        yield source, path


def _tell(result: Any, root: str, output: Output) -> None:
    if output.json:
        body = {
            "spool": root, "added": result.added, "existing": result.existing, "batches": result.batches,
            "names": result.names, "notes": result.notes, "seconds": round(result.seconds, 4),
        }  # fmt: skip
        output.document(ENQUEUE.schema, body)
        return
    for note in result.notes:
        output.note(note)
    if not result.added and not result.existing:
        output.line("nothing to enqueue: no task was found")
        return
    parts = []
    if result.added:
        parts.append(f"enqueued {count(result.added, 'task')}")
    if result.existing:
        parts.append(f"{count(result.existing, 'task was', 'tasks were')} there already")
    names = ", ".join(printable(name) for name in result.names[:3])
    if len(result.names) > 3 or result.added + result.existing > 3:
        names += ", ..."
    output.line(f"{', '.join(parts)}: {names}" if names else ", ".join(parts))


ENQUEUE = Command(
    path=("task", "enqueue"),
    summary="put tasks into a spool: one command, one call, or a file of many",
    description="Put tasks into a spool, which is made when it is not there. Enqueuing a task again adds nothing.\n"
    "Options before -- are values for every task; JSON lines may say otherwise, with keys named like the options.",
    arguments=_arguments,
    run=_run,
    takes_command=True,
    examples=(
        Example(
            line="fleetcraft task enqueue --name train-0 --gpus 1 -- python train.py --seed 0",
            what="One command on one GPU.",
        ),
        Example(
            line="fleetcraft task enqueue --from commands.txt --retries 2", what="Each line is a command for /bin/sh."
        ),
        Example(
            line="""echo '{"name": "a", "command": ["python", "a.py"]}' | fleetcraft task enqueue --from -""",
            what="JSON lines from standard input, with argv that no shell touches.",
        ),
        Example(
            line="fleetcraft task enqueue --name report --after 'batch:1' -- python report.py",
            what="Runs when all of batch 1 succeeded.",
        ),
        Example(
            line="""fleetcraft task enqueue --call mymodel:score --setup mymodel:load --args '{"clip": "a.mp4"}'""",
            what="A call in a process that loads the model once.",
        ),
    ),
    exits={
        0: "all tasks are in the spool, newly or from before",
        2: "wrong usage, an invalid task, or a name that exists with other content; nothing was enqueued",
    },
)
