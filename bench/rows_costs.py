"""Rows about the load on a file system: metadata calls per task, and the rate when each of them takes 1 ms longer."""

from __future__ import annotations

import re
import shutil
import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from context import Bench
from measure import BenchError, Run, check_complete, run_measured
from ours import BENCH, environment, write_commands
from tables import Row, at_least, at_most, info, unmeasured

REACH_CALLS_PER_TASK, REACH_SLOW_RATE = 0.05, 1_000
DELAY_US = 1_000
FEW_TASKS = 10
# All calls that take a path, and the ones on descriptors that a metadata server would see.
METADATA_CALLS = "%file,getdents64,ftruncate,fchmod,fchown,flock,fallocate"
SYNC_CALLS = ("fsync", "fdatasync", "sync_file_range", "syncfs")
LOCAL_TREES = ("/proc", "/sys", "/dev")

_LINE = re.compile(r"^(?P<pid>\d+) +(?P<call>[a-z0-9_]+)\((?P<rest>.*)$")
_PATH = re.compile(r'"((?:[^"\\]|\\.)*)"')
_BASE = re.compile(r"^(?:AT_FDCWD|\d+)<([^>]*)>")


@dataclass(frozen=True, slots=True, kw_only=True)
class Calls:
    """Calls that a worker made by itself, its children before their exec included, their programs not."""

    metadata: Counter[str]
    local: int  # On /proc, /sys and /dev: never sent to a server.
    syncs: int


def metadata(bench: Bench) -> list[Row]:
    """Metadata system calls per short task: the growth from few tasks to many, so that start-up does not count."""
    if shutil.which("strace") is None:
        return [unmeasured("metadata calls per short task", f"at most {REACH_CALLS_PER_TASK}", "strace is missing")]
    tasks = bench.size(10_000, 2_000)
    few, many = (_traced(bench, count) for count in (FEW_TASKS, tasks))
    grown = many.metadata - few.metadata
    start = few.metadata.total()
    per_task = (many.metadata.total() - start) / (tasks - FEW_TASKS)
    most = ", ".join(f"{name} {count}" for name, count in grown.most_common(5))
    note = (
        f"{start} more at start-up; grown by {most}; beside them {many.syncs} syncs "
        f"and {many.local} calls on {', '.join(LOCAL_TREES)}"
    )
    title = f"metadata system calls per short task ({tasks:,} tasks, strace)"
    return [
        at_most(title, per_task, REACH_CALLS_PER_TASK, note=note, digits=4),
        info("the same with start-up counted", f"{many.metadata.total() / tasks:.4f}"),
    ]


def parse_trace(lines: Iterable[str]) -> Calls:
    """Count the worker's own calls in the output of `strace -f -y`."""
    counted: Counter[str] = Counter()
    local = syncs = 0
    worker: str | None = None
    executed: set[str] = set()
    for line in lines:
        found = _LINE.match(line)
        if not found:
            continue  # Signals, exits, and the second halves of interrupted lines.
        pid, call = found["pid"], found["call"]
        worker = worker or pid
        if pid in executed:
            continue
        if call == "execve":
            # From here on it is the task's program. A failed try of a path has counted enough already.
            if pid != worker and "ENOENT" not in line:
                executed.add(pid)
        elif call in SYNC_CALLS:
            syncs += 1
        elif _path(found["rest"]).startswith(LOCAL_TREES):
            local += 1
        else:
            counted[call] += 1
    return Calls(metadata=counted, local=local, syncs=syncs)


def _path(arguments: str) -> str:
    name, base = _PATH.search(arguments), _BASE.match(arguments)
    if name and (name[1].startswith("/") or not base):
        return name[1]
    return base[1] if base else ""


def _traced(bench: Bench, tasks: int) -> Calls:
    spool = _filled(bench, tasks)
    log = spool.parent / "trace"
    # The filter in the kernel leaves all other calls at full speed; it needs -f.
    words = [
        "strace",
        "-f",
        "-y",
        "--seccomp-bpf",
        "-o",
        str(log),
        "-e",
        f"trace={METADATA_CALLS},{','.join(SYNC_CALLS)}",
    ]
    _run_worker(bench, spool, tasks, words, "fleetcraft under strace")
    with log.open(errors="replace") as lines:
        return parse_trace(lines)


def delay(bench: Bench) -> list[Row]:
    """Processes a second when each metadata operation of our file layer takes 1 ms longer."""
    tasks = bench.size(5_000, 2_000)
    spool = _filled(bench, tasks)
    python = bench.ours.command.parent / "python"
    program = [str(python if python.exists() else sys.executable), str(BENCH / "slow_worker.py"), str(DELAY_US)]
    worker = bench.ours.worker_command(spool, 2)[1:]
    run = run_measured(
        "fleetcraft, 1 ms slower files", [[*program, *worker]], tasks=tasks, directory=spool.parent, env=environment()
    )
    check_complete(run.system, bench.ours.count(spool, "succeeded"), tasks)
    bench.record(run)
    title = f"{tasks:,} no-op processes with 1 ms added to each metadata operation"
    return [at_least(title, run.rate, REACH_SLOW_RATE, unit="/s", digits=0)]


def delay_kernel(bench: Bench) -> list[Row]:
    """The same by the kernel: strace delays each metadata call of the worker's main thread, and knows no layers."""
    title = "the same delay put on the worker's system calls by strace"
    if shutil.which("strace") is None:
        return [info(title, "-", note="strace is missing")]
    tasks = bench.size(5_000, 1_000)
    spool = _filled(bench, tasks)
    inject = f"inject={METADATA_CALLS}:delay_enter={DELAY_US}"
    words = ["strace", "-qq", "-o", "/dev/null", "-e", f"trace={METADATA_CALLS}", "-e", inject]
    try:
        run = _run_worker(bench, spool, tasks, words, "fleetcraft, 1 ms slower system calls")
    except BenchError as error:
        return [info(title, "-", note=str(error))]
    note = "start-up of Python included, each of its calls delayed too; strace itself costs time on every call"
    return [info(title, f"{run.rate:,.0f}/s", run.rate, note)]


def _run_worker(bench: Bench, spool: Path, tasks: int, prefix: list[str], system: str) -> Run:
    """Drain a spool by a worker behind `prefix`, and see that all is done."""
    worker = bench.ours.worker_command(spool, 2)
    run = run_measured(system, [[*prefix, *worker]], tasks=tasks, directory=spool.parent, env=environment())
    check_complete(system, bench.ours.count(spool, "succeeded"), tasks)
    return bench.record(run)


def _filled(bench: Bench, tasks: int) -> Path:
    directory = bench.fresh("filled")
    bench.ours.enqueue(directory / "spool", write_commands(directory / "tasks.jsonl", tasks), tasks)
    return directory / "spool"
