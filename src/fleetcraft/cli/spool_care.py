"""`spool check`, `spool reap`, `spool compact`: looking after a spool. None of them is needed in ordinary days."""

from __future__ import annotations

import argparse
import time
from typing import Any

from fleetcraft.cli.command import Command, Example
from fleetcraft.cli.output import Output, count, printable
from fleetcraft.cli.parser import duration, spool_root
from fleetcraft.cli.tables import table
from fleetcraft.core.errors import EXIT_DONE, EXIT_GOING
from fleetcraft.core.quantities import format_duration
from fleetcraft.spool.spool import Spool

_AGAIN_S = 0.1
_ASK_AGAIN_S = 5.0
_LONG_S = 5.0


def _check_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument_group("what to do").add_argument(
        "--repair", action="store_true", help="put right what can be put right; nothing that ran is lost or run again"
    )


def _check(arguments: argparse.Namespace, output: Output) -> int:
    from fleetcraft.spool.check import check

    report = check(None, Spool.open(spool_root(arguments)), repair=arguments.repair)
    if output.json:
        output.document(CHECK.schema, report.as_json())
        return report.exit_code
    parts = (
        count(report.batches, "batch", "batches"),
        f"{count(report.tasks, 'task')} ({report.unfinished:,} unfinished)",
        count(report.tokens, "token"),
        count(report.lives, "worker life", "worker lives"),
    )
    output.line(", ".join(parts))
    for finding in report.findings:
        word, style = (
            ("mended", "green") if finding.repaired else ("bad", "red") if finding.serious else ("note", "dim")
        )
        about = printable(f"{finding.kind}: {finding.place}: {finding.detail}")
        output.line(f"{output.paint(f'{word:<7}', style)} {about}")
    if not report.problems:
        output.line("every unfinished task is offered exactly once")
    elif not arguments.repair:
        output.line(
            f"{count(len(report.problems), 'problem')}; `fleetcraft spool check --repair` puts right what can be"
        )
    else:
        output.line(f"{count(len(report.problems), 'problem')} could not be put right")
    return report.exit_code


def _reap_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("what counts as proof")
    group.add_argument(
        "--lease", type=duration("--lease"), metavar="TIME",
        help="also take a worker of another host for dead when its heartbeat stands still so long, watched from here",
    )  # fmt: skip


def _reap(arguments: argparse.Namespace, output: Output) -> int:
    from fleetcraft.spool.evidence import ReapPolicy
    from fleetcraft.spool.life import Life
    from fleetcraft.spool.reading import SpoolFold
    from fleetcraft.spool.reap import Reaper
    from fleetcraft.workers.jobs import open_job_word

    spool = Spool.open(spool_root(arguments))
    spool.refresh()
    life = Life.begin(spool, kind="maintenance")
    reports: dict[str, Any] = {}
    try:
        reader = SpoolFold(spool, durable=True)
        reader.refresh()
        job_word = open_job_word(spool.clock, in_background=False)
        policy = ReapPolicy(lease_s=arguments.lease, job_word=job_word, job_ask_after_s=0.0)
        reaper = Reaper(life, reader, policy)
        until_s = spool.clock.mono() + (arguments.lease or 0.0) + _AGAIN_S
        asked = False
        while True:
            reports.update({report.life: report for report in reaper.step()})
            open_ = any(report.state != "dead" and report.evidence is not None for report in reports.values())
            # Children of a dead worker are being ended, or a silent one is watched until its lease is over.
            waiting = reaper.busy or (arguments.lease and open_ and spool.clock.mono() < until_s)
            if job_word is not None and (reaper.awaits_word or not asked):
                # What this pass wanted to know of jobs; when they ended, the scheduler must say so twice.
                time.sleep(_ASK_AGAIN_S if asked else 0.0)
                asked = job_word.ask() is not None
                waiting = waiting or asked
            if not waiting:
                break
            time.sleep(_AGAIN_S)
    finally:
        life.close()
    rows = [_reap_row(report) for report in reports.values()]
    if output.json:
        output.document(REAP.schema, {"lives": rows})
    elif not rows:
        output.line("no worker has anything to be taken over")
    else:
        cells = [[str(row[key]) for key in ("life", "state", "returned", "lost", "reason")] for row in rows]
        output.lines(table(output, ("WORKER", "STATE", "TOKENS BACK", "ATTEMPTS LOST", "EVIDENCE"), cells))
    return EXIT_GOING if any(row["state"] in ("reaping", "fenced") for row in rows) else EXIT_DONE


def _reap_row(report: Any) -> dict[str, Any]:
    evidence = report.evidence
    return {
        "life": report.life,
        "state": report.state,
        "liveness": evidence.liveness.value if evidence else None,
        "reason": evidence.reason if evidence else "begun by an earlier reaper",
        "returned": report.returned,
        "lost": report.lost,
        "ended_children": list(report.ended_children),
    }


def _compact_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("how careful")
    group.add_argument(
        "--grace", type=duration("--grace"), metavar="TIME", default=600.0,
        help="how long merged folders stay for readers that look at them now (default: 10m)",
    )  # fmt: skip


def _compact(arguments: argparse.Namespace, output: Output) -> int:
    from fleetcraft.spool.compact import compact  # one of three verbs in this file

    spool = Spool.open(spool_root(arguments))
    if arguments.grace >= _LONG_S and output.stderr.isatty():
        output.note(f"merged folders stay for {format_duration(arguments.grace)}; Ctrl-C is safe, the next run goes on")
    report = compact(spool, grace_s=arguments.grace)
    if output.json:
        output.document(COMPACT.schema, report.as_json())
    elif report.busy:
        output.line("another compaction is under way")
    else:
        fold = report.fold
        if fold.folded:
            output.line(f"{count(fold.folded, 'small batch', 'small batches')} became {len(fold.into):,}")
        packed = f"{count(report.packed, 'ended worker')} packed ({count(report.records, 'record')})"
        output.line(f"{packed}, {count(report.removed, 'folder')} removed")
        if report.kept:
            life, why = next(iter(report.kept.items()))
            about = printable(f"{life}: {why}")
            output.line(f"{count(len(report.kept), 'ended worker')} left as before, such as {about}")
    return EXIT_GOING if report.busy else EXIT_DONE


CHECK = Command(
    path=("spool", "check"),
    summary="is every unfinished task offered exactly once?",
    description="Compare ledgers, receipts and tokens. Ledgers and receipts are the truth; tokens are only scheduling.",
    arguments=_check_arguments,
    run=_check,
    examples=(
        Example(line="fleetcraft spool check", what="Look, and change nothing."),
        Example(
            line="fleetcraft spool check --repair",
            what="Offer again what no token offers, and finish what was left half done.",
        ),
    ),
    exits={1: "something serious was found and is still there"},
)
REAP = Command(
    path=("spool", "reap"),
    summary="take over what dead workers left",
    description="Prove the death of workers, end their processes on this host, write down what was lost,\n"
    "and offer it again. Workers do this themselves every few seconds; it is needed only where none is up.",
    arguments=_reap_arguments,
    run=_reap,
    examples=(
        Example(line="fleetcraft spool reap", what="Take over from workers of this host that are gone."),
        Example(line="fleetcraft spool reap --lease 10m", what="Watch workers of other hosts for ten minutes, too."),
    ),
    exits={3: "begun and not finished; run it again"},
)
COMPACT = Command(
    path=("spool", "compact"),
    summary="merge small batches and the journals of workers that ended",
    description="Keep the number of files small: many small batches become one, and ended workers' journals become\n"
    "segments. No task changes its id, and no record is lost.",
    arguments=_compact_arguments,
    run=_compact,
    examples=(
        Example(line="fleetcraft spool compact", what="Merge what can be merged now."),
        Example(
            line="fleetcraft spool compact --grace 0s", what="The same when certainly nobody else reads this spool."
        ),
    ),
)
