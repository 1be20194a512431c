"""Every noun and verb, and where its module is; a verb's module is imported when that verb is typed."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence

from fleetcraft.cli.command import Command
from fleetcraft.cli.output import Output
from fleetcraft.core.errors import EXIT_DONE, UsageError

# One line for each noun, and for each verb the place of its Command. A noun with the verb "" stands alone.
NOUNS = {
    "task": "one unit of work, from the day it is enqueued",
    "spool": "the directory that holds the tasks",
    "worker": "the one process per machine that runs tasks",
    "fleet": "nodes of a cluster that work on a spool",
    "guard": "what is asked before a fleet grows",
    "gpu": "what the GPUs did, and what became of every GPU-hour",
    "cluster": "a place where jobs run, as its site profile describes it",
    "config": "what you configure",
    "why": "why something is as it is",
    "doctor": "whether this machine can do what is needed",
    "bundle": "the worker side in one file",
    "completion": "completion of words by your shell",
}
VERBS: dict[str, dict[str, str]] = {
    "task": {
        "enqueue": "task_enqueue:ENQUEUE",
        "list": "task_list:LIST",
        "show": "task_show:SHOW",
        "logs": "task_logs:LOGS",
        "cancel": "task_requests:CANCEL",
        "retry": "task_requests:RETRY",
        "verify": "task_verify:VERIFY",
        "calibrate": "task_calibrate:CALIBRATE",
    },
    "spool": {
        "status": "spool_status:STATUS",
        "check": "spool_care:CHECK",
        "reap": "spool_care:REAP",
        "compact": "spool_care:COMPACT",
        "stop": "spool_requests:STOP",
        "resume": "spool_requests:RESUME",
        "limit": "spool_requests:LIMIT",
    },
    "worker": {
        "run": "worker_run:RUN",
        "drain": "worker_control:DRAIN",
        "list": "worker_control:LIST",
    },
    "fleet": {
        "submit": "fleet_submit:SUBMIT",
        "status": "fleet_status:STATUS",
        "list": "fleet_status:LIST",
        "snapshot": "fleet_snapshot:SNAPSHOT",
        "renew": "fleet_pass:RENEW",
        "ensure": "fleet_pass:ENSURE",
        "drain": "fleet_end:DRAIN",
        "cancel": "fleet_end:CANCEL",
        "shell": "fleet_end:SHELL",
        "devnode": "fleet_hold:DEVNODE",
        "smoke": "fleet_hold:SMOKE",
    },
    "guard": {
        "login": "guard_login:LOGIN",
        "all": "guard_all:ALL",
    },
    "gpu": {
        "sample": "gpu_sample:SAMPLE",
        "summary": "gpu_summary:SUMMARY",
        "classify": "gpu_classify:CLASSIFY",
        "top": "gpu_top:TOP",
        "watch": "gpu_watch:WATCH",
        "export": "gpu_export:EXPORT",
        "ledger": "gpu_ledger:LEDGER",
        "mfu": "gpu_mfu:MFU",
        "report": "gpu_report:REPORT",
        "import": "gpu_import:IMPORT",
        "seal": "gpu_seal:SEAL",
    },
    "cluster": {
        "list": "cluster_profiles:LIST",
        "show": "cluster_profiles:SHOW",
        "probe": "cluster_profiles:PROBE",
    },
    "config": {
        "check": "config_profiles:CHECK",
        "show": "config_profiles:SHOW",
    },
    "why": {"task": "why:TASK", "fleet": "fleet_why:FLEET", "job": "fleet_why:JOB"},
    "doctor": {"": "doctor:DOCTOR"},
    "bundle": {"": "bundle:BUNDLE"},
    "completion": {"": "completion:COMPLETION"},
}
_HELP = ("-h", "--help", "help")


def load(noun: str, verb: str) -> Command:
    """The Command of one verb."""
    module, _, name = VERBS[noun][verb].partition(":")
    command = getattr(importlib.import_module(f"fleetcraft.cli.{module}"), name)
    assert isinstance(command, Command)  # noqa: S101  the table above is held by a test
    return command


def all_commands() -> Iterator[Command]:
    """Every verb, in the order of the table."""
    for noun, verbs in VERBS.items():
        for verb in verbs:
            yield load(noun, verb)


def dispatch(argv: Sequence[str], output: Output) -> int:
    """Find the verb, parse its arguments, do it. Raises FleetcraftError."""
    if not argv or argv[0] in _HELP:
        return _show_overview(output, list(argv[1:2]) if argv else [])
    noun, rest = argv[0], argv[1:]
    verbs = VERBS.get(noun)
    if verbs is None:
        raise UsageError(f"There is no command {noun!r}.{_nearest(noun, NOUNS)}", hint="See `fleetcraft --help`.")
    if "" in verbs:
        return _do(load(noun, ""), rest, output)
    if not rest:
        raise UsageError(
            f"`fleetcraft {noun}` needs a verb: {', '.join(verbs)}.", hint=f"See `fleetcraft {noun} --help`."
        )
    if rest[0] in _HELP:
        return _show_overview(output, [noun])
    if rest[0] not in verbs:
        raise UsageError(
            f"There is no verb {rest[0]!r} for {noun}.{_nearest(rest[0], verbs)}", hint=f"It has: {', '.join(verbs)}."
        )
    return _do(load(noun, rest[0]), rest[1:], output)


def _do(command: Command, words: Sequence[str], output: Output) -> int:
    from fleetcraft.cli.parser import build_parser

    parser = build_parser(command)
    tail: list[str] | None = None
    if command.takes_command and "--" in words:
        # By hand: argparse takes only the first `--` away, and would look for options of ours behind it.
        at = list(words).index("--")
        words, tail = words[:at], list(words[at + 1 :])
    try:
        arguments = parser.parse(words)
    except SystemExit:
        return EXIT_DONE  # --help was printed
    arguments.tail = tail
    return command.run(arguments, output)


def _show_overview(output: Output, nouns: Sequence[str]) -> int:
    chosen = [noun for noun in NOUNS if not nouns or noun in nouns]
    if not chosen:
        raise UsageError(
            f"There is no command {nouns[0]!r}.{_nearest(nouns[0], NOUNS)}", hint="See `fleetcraft --help`."
        )
    output.line(f"usage: {output.paint('fleetcraft', 'bold')} {' '.join(nouns) or 'NOUN'} [VERB] [OPTIONS]")
    if not nouns:
        output.lines(["", "Enqueue tasks into a spool, run workers that drain it, and see what became of every task."])
    # A noun with one verb needs no heading of its own.
    headed = [noun for noun in chosen if len(VERBS[noun]) > 1]
    for noun in headed:
        output.lines(["", f"{output.paint(noun, 'bold')}: {NOUNS[noun]}"])
        output.lines(_verb_line(noun, verb, output) for verb in VERBS[noun])
    if headed != chosen:
        output.lines(
            ["", *(_verb_line(noun, next(iter(VERBS[noun])), output) for noun in chosen if noun not in headed)]
        )
    first = f"{chosen[0]} {next(iter(VERBS[chosen[0]]))}".strip()
    output.lines(["", f"Each has its own help, with examples: fleetcraft {first} --help"])
    if not nouns:
        output.line(
            "A first job:  fleetcraft task enqueue --name hello -- echo hello  &&  fleetcraft worker run --idle-exit 0s"
        )
    return EXIT_DONE


def _verb_line(noun: str, verb: str, output: Output) -> str:
    words = f"{noun} {verb}".strip()
    return f"  {output.paint(f'{words:<16}', 'cyan')} {load(noun, verb).summary}"


def _nearest(word: str, known: Sequence[str] | dict[str, str]) -> str:
    import difflib

    close = difflib.get_close_matches(word, list(known), n=1)
    return f" Did you mean {close[0]!r}?" if close else ""
