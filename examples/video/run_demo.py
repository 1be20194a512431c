"""Runs the toy video study from end to end on this machine, and writes one HTML report.

Kill it at any point and run it again: it finishes the rest and repeats nothing, because all it knows is in the spool.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from toyvideo.files import write_text
from toyvideo.metrics import METRICS
from toyvideo.report import Study, build_report
from toyvideo.tasks import Plan, kind_of, study_tasks
from toyvideo.timeline import TimelineEntry

PROJECT = Path(__file__).resolve().parents[2]
FLEETCRAFT = Path(sys.executable).with_name("fleetcraft")
FINAL_STATES = ("succeeded", "failed", "quarantined", "cancelled", "blocked")
WORKER = ("--cpus", "2", "--gpus", "simulated:2", "--idle-exit", "0s", "--telemetry", "1s")
FRUITLESS_DEATHS = 3
# How long to wait for a worker of an earlier, killed demo that still runs tasks but finishes none.
PATIENCE_S = 120.0


def main(argv: list[str] | None = None) -> int:
    """Enqueue what is not there yet, run what is not done yet, and show the result."""
    arguments = parse_arguments(argv)
    out = arguments.out.resolve()
    spool = (arguments.spool or out / "spool").resolve()
    if arguments.fresh and out.exists():
        aside = out.with_name(f"{out.name}.{datetime.now(UTC):%Y%m%dT%H%M%S}")
        out.rename(aside)
        print(f"the earlier demo lies in {aside}")
    plan = Plan(folder=out / "results", arms=dict(arguments.arms), seeds=arguments.seeds)
    began_s = time.monotonic()
    enqueue(spool, plan, out / "tasks.jsonl")
    run_workers(spool)
    tasks = read_tasks(spool)
    states = count_states(tasks)
    print(
        f"\n{', '.join(f'{count} {state}' for state, count in states.items())} after {time.monotonic() - began_s:.0f} s"
    )
    if states.get("succeeded", 0) < len(tasks):
        return report_trouble(spool, tasks)
    summary = write_report(out / "report.html", plan, spool, tasks)
    print(f"\n{score_table(summary)}\n\nreport: {out / 'report.html'}")
    return 0


def parse_arguments(argv: list[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="run_demo.py",
        description="Train, generate, score and report a toy video study. Run it again after a kill: it goes on.",
    )
    parser.add_argument("--out", type=Path, default=PROJECT / "demo-output", help="folder for all results")
    parser.add_argument("--spool", type=Path, help="spool to use (default: OUT/spool)")
    parser.add_argument("--fresh", action="store_true", help="move an earlier demo aside and start anew")
    parser.add_argument(
        "--arms",
        type=parse_arm,
        nargs="+",
        metavar="NAME:ITERATIONS",
        default=list(Plan(folder=Path()).arms.items()),
        help="arms to compare (default: short:150 medium:600 long:1500)",
    )
    parser.add_argument("--seeds", type=int, default=2, help="clips for each prompt and arm (default 2)")
    return parser.parse_args(argv)


def parse_arm(text: str) -> tuple[str, int]:
    """Return an arm's name and iterations."""
    name, _, iterations = text.partition(":")
    if not name.isalnum() or not iterations.isdecimal() or not int(iterations):
        raise argparse.ArgumentTypeError(f"{text!r} must look like short:150, a plain name and a number of iterations")
    return name, int(iterations)


def fleetcraft(*arguments: str | Path) -> str:
    """Run one command of the tool and return what it printed; its own error goes to the terminal."""
    try:
        done = subprocess.run([FLEETCRAFT, *arguments], check=True, stdout=subprocess.PIPE, text=True)
    except FileNotFoundError:
        raise SystemExit(f"{FLEETCRAFT} is not there; run `make demo`, which makes the environment first") from None
    except subprocess.CalledProcessError as error:
        raise SystemExit(f"`fleetcraft {' '.join(map(str, arguments))}` ended with {error.returncode}") from None
    return done.stdout


def enqueue(spool: Path, plan: Plan, listing: Path) -> None:
    """Write the tasks as JSONL and enqueue them; those that the spool knows already stay as they are."""
    plan.folder.mkdir(parents=True, exist_ok=True)
    lines = (json.dumps(task, sort_keys=True) for task in study_tasks(plan))
    write_text(listing, "\n".join(lines) + "\n")
    print(fleetcraft("task", "enqueue", "--spool", spool, "--from", listing), end="")


def run_workers(spool: Path) -> None:
    """Run one worker after another until nothing is left to do; each takes over what a dead one left."""
    deaths = 0
    last_seen: Mapping[str, int] = {}
    last_change_s = time.monotonic()
    while True:
        code = run_worker(spool)
        counts = count_states(read_tasks(spool))
        unfinished = sum(count for state, count in counts.items() if state not in FINAL_STATES)
        if not unfinished:
            return
        if counts != last_seen:
            last_seen, last_change_s, deaths = counts, time.monotonic(), 0
        deaths += code != 0
        if deaths >= FRUITLESS_DEATHS or time.monotonic() - last_change_s > PATIENCE_S:
            raise SystemExit(f"unfinished tasks: {unfinished}; see `fleetcraft spool status --spool {spool}`")
        if code != 0:
            print(f"the worker ended with {code}; another one goes on with the {unfinished} unfinished tasks")
        else:
            # What is left is in the hands of another live worker, perhaps that of a killed demo.
            time.sleep(1.0)


def run_worker(spool: Path) -> int:
    """Run one worker to its end and return its exit code; on Ctrl-C it drains, and the demo ends."""
    process = subprocess.Popen([FLEETCRAFT, "worker", "run", "--spool", spool, *WORKER])
    try:
        return process.wait()
    except KeyboardInterrupt:
        process.wait()
        raise SystemExit("stopped; run the same command again to finish the rest") from None


def read_tasks(spool: Path) -> list[dict[str, Any]]:
    """Return what the spool says about each task."""
    tasks: list[dict[str, Any]] = json.loads(fleetcraft("task", "list", "--spool", spool, "--json"))["tasks"]
    return tasks


def count_states(tasks: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Count tasks by state."""
    states = [str(task["state"]) for task in tasks]
    return {state: states.count(state) for state in dict.fromkeys(states)}


def read_attempts(spool: Path, tasks: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return every ended attempt of every task, with its task's name."""
    attempts: list[dict[str, Any]] = []
    for task in tasks:
        # The list carries the last attempt; the earlier ones of the few tasks that had several are asked for.
        shown = [task]
        if task["attempts"] > 1:
            shown = json.loads(fleetcraft("task", "show", "--spool", spool, task["name"], "--json"))["attempts"]
        attempts += [{**attempt, "name": task["name"]} for attempt in shown if attempt["outcome"] is not None]
    return attempts


def timeline_of(attempts: Sequence[Mapping[str, Any]]) -> list[TimelineEntry]:
    """Return one entry for each attempt, on the lane of its GPU or else of its slot."""
    entries = []
    cursors: dict[tuple[str, int, float], float] = {}
    for attempt in attempts:
        # Short calls are given to a resident several at a time and share one begin and one end; they ran in order.
        key = (attempt["worker"], attempt["slot"], attempt["started_utc"])
        begin = cursors.get(key, attempt["started_utc"])
        end = attempt["ended_utc"] if attempt["wall_s"] is None else begin + attempt["wall_s"]
        cursors[key] = end or begin
        entries.append(
            TimelineEntry(
                task=attempt["name"],
                slot=" ".join(map(name_gpu, attempt["gpus"])) or f"slot {attempt['slot']}",
                worker=attempt["worker"],
                start_utc=stamp_of(begin),
                end_utc=None if end is None else stamp_of(end),
                outcome=attempt["outcome"],
                kind=kind_of(attempt["name"]),
            )
        )
    return entries


def name_gpu(uuid: str) -> str:
    """Return a short name of a GPU, which says so when the GPU is simulated."""
    return f"{'simulated ' if uuid.startswith('SIM-') else ''}GPU {uuid.rsplit('-', 1)[-1]}"


def stamp_of(at_utc: float) -> str:
    """Return a time in seconds since 1970 as text in UTC."""
    return datetime.fromtimestamp(at_utc, UTC).isoformat(timespec="milliseconds")


def count_loads(attempts: Sequence[Mapping[str, Any]]) -> int:
    """Count the resident processes that generated clips: each loaded one checkpoint once."""
    made = [attempt for attempt in attempts if attempt["value"]]
    return len({(attempt["worker"], attempt["value"]["resident"]["pid"]) for attempt in made})


def score_table(summary: Mapping[str, Any]) -> str:
    """Return the scores by arm as text."""
    rows = [["arm", "iterations", *(metric.label for metric in METRICS)]]
    for arm in summary["arms"]:
        figures = [metric.format(arm["metrics"][metric.key]["value"]) for metric in METRICS]
        rows.append([arm["arm"], str(arm["iterations"] or "(drawn)"), *figures])
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)


def write_report(path: Path, plan: Plan, spool: Path, tasks: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Write the report and return the summary; it is made last, so that its timeline has every task."""
    summary: dict[str, Any] = json.loads((plan.folder / "summary" / "summary.json").read_text(encoding="utf-8"))
    attempts = read_attempts(spool, tasks)
    gpu_page = path.with_name("gpu-report.html")
    figures = path.with_name("gpu-figures")
    print(fleetcraft("gpu", "report", "--spool", spool, "--no-ask", "--output", gpu_page, "--figures", figures), end="")
    study = Study(
        summary=summary,
        clips=plan.folder / "clips",
        plots=plan.folder / "plots",
        contact_sheet=plan.folder / "summary" / "contact-sheet.png",
        timeline=timeline_of(attempts),
        states=count_states(tasks),
        facts=[("checkpoint loads", str(count_loads(attempts)))],
        ledgers=sorted(figures.glob("ledger-*.svg")),
        gpu_page=gpu_page.name,
        made_utc=f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC",
    )
    write_text(path, build_report(study))
    # What killed attempts had half written; every task has ended, so nobody writes here any more.
    for part in plan.folder.rglob(".*.part"):
        part.unlink(missing_ok=True)
    return summary


def report_trouble(spool: Path, tasks: Sequence[Mapping[str, Any]]) -> int:
    """Name what did not succeed and the command that explains it."""
    bad = [task for task in tasks if task["state"] != "succeeded"]
    for task in bad[:5]:
        print(
            f"{task['name']} is {task['state']}: see `fleetcraft why task --spool {spool} {task['name']}`",
            file=sys.stderr,
        )
    return 1


if __name__ == "__main__":
    raise SystemExit(main())
