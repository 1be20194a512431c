"""`worker run`: one worker on this machine, until there is nothing to do or it is told to stop."""

from __future__ import annotations

import argparse
import os
import time

from fleetcraft.cli.command import Command, Example
from fleetcraft.cli.output import Output
from fleetcraft.cli.parser import duration, number, spool_root
from fleetcraft.workers.options import (
    DEFAULT_DRAIN_BEFORE_S,
    WATCHES,
    WorkerOptions,
    deadline_from_environment,
    job_grace_from_environment,
    parse_deadline_utc,
    parse_idle_exit_s,
    parse_telemetry_s,
)


def _arguments(parser: argparse.ArgumentParser) -> None:
    have = parser.add_argument_group("what it may use")
    have.add_argument(
        "--cpus", type=number, metavar="N", help="how many CPUs to give out (default: all that this process may use)"
    )
    have.add_argument(
        "--gpus", metavar="WHICH", default="auto",
        help="auto: all that the driver shows (default); a number; none; or simulated:N, for trying things out",
    )  # fmt: skip
    have.add_argument(
        "--pass-env", action="append", default=[], metavar="NAME", help="hand this variable of the worker on to tasks"
    )
    stop = parser.add_argument_group("when it stops")
    stop.add_argument(
        "--idle-exit", default="10m", metavar="TIME",
        help="leave after being idle so long (default: 10m); 0s: as soon as nothing can ever run here; or never",
    )  # fmt: skip
    stop.add_argument(
        "--deadline", metavar="WHEN",
        help="when this machine is taken away: a time from now (2h) or an ISO time "
        "(default: $FLEETCRAFT_DEADLINE, else $SLURM_JOB_END_TIME)",
    )  # fmt: skip
    stop.add_argument(
        "--drain-before", type=duration("--drain-before"), default=DEFAULT_DRAIN_BEFORE_S, metavar="TIME",
        help="how long before the deadline tasks are asked to save their state (default: 2m)",
    )  # fmt: skip
    stop.add_argument("--max-tasks", type=number, metavar="N", help="start at most so many tasks, then drain")
    fine = parser.add_argument_group("fine points")
    fine.add_argument(
        "--watch",
        choices=WATCHES,
        default="auto",
        help="notice new work by the kernel where it can (auto), or by looking",
    )
    fine.add_argument(
        "--lease", type=duration("--lease"), metavar="TIME",
        help="take a worker of another host for dead when its heartbeat stood still so long (default: never)",
    )  # fmt: skip
    fine.add_argument(
        "--telemetry", default="on", metavar="HOW",
        help="measure the GPUs into the spool: on, every 10 s (default), off, or how often, from 1s to 60s",
    )  # fmt: skip
    fine.add_argument("--job-id", metavar="ID", help="the scheduler's id of the job that this worker runs in")
    fine.add_argument("--quiet", action="store_true", help="say nothing on stderr")


def options_from(arguments: argparse.Namespace, environment: dict[str, str], now_utc: float) -> WorkerOptions:
    """The worker's options from the command line and its surroundings. Raises UsageError."""
    deadline = deadline_from_environment(environment, now_utc)
    if arguments.deadline is not None:
        deadline = parse_deadline_utc(arguments.deadline, now_utc)
    return WorkerOptions(
        spool=spool_root(arguments),
        cpus=arguments.cpus,
        gpus=arguments.gpus,
        idle_exit_s=parse_idle_exit_s(arguments.idle_exit),
        deadline_utc=deadline,
        drain_before_s=arguments.drain_before,
        max_tasks=arguments.max_tasks,
        watch=arguments.watch,
        lease_s=arguments.lease,
        job_id=arguments.job_id or environment.get("SLURM_JOB_ID"),
        job_grace_s=job_grace_from_environment(environment),
        pass_env=tuple(arguments.pass_env),
        telemetry_s=parse_telemetry_s(arguments.telemetry),
        quiet=arguments.quiet,
    )


def _run(arguments: argparse.Namespace, output: Output) -> int:
    options = options_from(arguments, dict(os.environ), time.time())
    from fleetcraft.workers.setup import setup_of
    from fleetcraft.workers.worker import run_worker

    setup_of(os.environ)  # a worker that cannot know the setup of its job must not begin
    code = run_worker(options)
    if output.json:
        output.document(RUN.schema, {"spool": os.path.abspath(options.spool), "exit": code})
    return code


RUN = Command(
    path=("worker", "run"),
    summary="run tasks on this machine until there is nothing left to do",
    description="Run one worker: it claims tasks and runs them on the CPUs and GPUs of this machine.\n"
    "It ends with 0 also when tasks failed; `fleetcraft spool status --exit-code` tells whether they did.\n"
    "SIGTERM or Ctrl-C drains it: running tasks are asked to save their state, and go back unfinished.",
    arguments=_arguments,
    run=_run,
    examples=(
        Example(line="fleetcraft worker run --idle-exit 0s", what="Run everything that can run here, then leave."),
        Example(
            line="fleetcraft worker run --cpus 8 --gpus 2 --deadline 4h",
            what="Eight CPUs and two GPUs, for four hours.",
        ),
        Example(
            line="fleetcraft worker run --gpus simulated:4", what="Try out a GPU workload on a machine without one."
        ),
    ),
    exits={
        1: "the worker had to give up; what it held goes back to others",
        75: "the storage is full or did not answer; run the same command again",
    },
)
