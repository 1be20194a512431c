"""`task enqueue`: one command, one call, or a file of many tasks."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, BinaryIO

from fleetcraft.cli.command import Command, Example
from fleetcraft.cli.enqueue_options import add_arguments
from fleetcraft.cli.fleet_door import whole_program
from fleetcraft.cli.output import Output, count, printable
from fleetcraft.cli.parser import spool_root
from fleetcraft.core.errors import EXIT_DONE, UsageError

# What says what a task does; with --from it fills in what the lines leave out.
_PAYLOAD = ("call", "args", "setup", "setup_args", "python")


_SHARED = (
    "gpus", "cpus", "vram", "node", "timed", "needs", "uses", "family", "priority", "after", "outputs", "validate",
    "timeout", "retries", "backoff", "checkpoint_signal", "checkpoint_grace", "resume_exit", "notify", "tags",
    "flops", "precision",
)  # fmt: skip


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


def _take_calibrated(arguments: argparse.Namespace) -> None:
    """Fill in what a frozen row says, before anything else looks at the options. Raises UsageError."""
    if arguments.calibrated is None:
        if arguments.device is not None:
            raise UsageError("--device chooses a row of a table.", hint="Give --calibrated FILE.")
        return
    if arguments.source is not None or arguments.call is not None:
        raise UsageError("--calibrated is for a command, not for --from or --call.")
    if arguments.family is None:
        raise UsageError("--calibrated needs the row's family.", hint="Give --family NAME.")
    if arguments.gpus is not None or arguments.vram is not None:
        raise UsageError("--gpus and --vram come from the row of --calibrated.", hint="Leave them away.")
    with whole_program("GPUs"):
        from fleetcraft.actions.calibrated import use

    found = use(arguments.calibrated, arguments.family, arguments.device, arguments.tail)
    arguments.tail, arguments.gpus, arguments.vram = found.command, found.gpus, found.vram_bytes


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
    _take_calibrated(arguments)
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
    arguments=add_arguments,
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
