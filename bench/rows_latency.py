"""Rows about waiting: from enqueue to start on an idle worker, and how long the short commands take."""

from __future__ import annotations

import random
import statistics
import subprocess
import sys
import time
from pathlib import Path

from context import Bench
from measure import BenchError, end_process, wall_of
from ours import environment
from tables import Row, at_most, info, percentile

REACH_MEDIAN_MS, REACH_P99_MS, REACH_POLLING_S = 50.0, 500.0, 2.0
REACH_VERSION_S, REACH_ENQUEUE_ONE_S = 0.12, 0.2
START_DEADLINE_S = 30.0
LOOK_PERIOD_S = 0.01


def latency(bench: Bench) -> list[Row]:
    """An idle worker that is told of new work by the local file system."""
    waits_s = _trials(bench, watch="auto", count=bench.size(50, 10))
    title = f"enqueue to start, idle worker, {len(waits_s)} trials"
    median_ms, p99_ms = 1000 * statistics.median(waits_s), 1000 * percentile(waits_s, 0.99)
    return [
        at_most(f"{title}, median", median_ms, REACH_MEDIAN_MS, unit=" ms", digits=1),
        at_most(f"{title}, p99", p99_ms, REACH_P99_MS, unit=" ms", digits=1),
    ]


def polling(bench: Bench) -> list[Row]:
    """The same with nothing but directory reads, as on a shared file system."""
    waits_s = _trials(bench, watch="poll", count=bench.size(50, 5))
    note = f"median {statistics.median(waits_s):.2f} s"
    title = f"enqueue to start by polling alone, {len(waits_s)} trials, longest"
    return [at_most(title, max(waits_s), REACH_POLLING_S, unit=" s", note=note)]


def commands(bench: Bench) -> list[Row]:
    """Wall time of the commands that people and scripts call most."""
    count, directory = bench.size(20, 10), bench.fresh("commands")
    command, spool, env = str(bench.ours.command), str(directory / "spool"), environment()
    version_s, enqueue_s, python_s = [], [], []
    for index in range(count):
        words = [command, "task", "enqueue", "--spool", spool, "--name", f"single-{index}", "--", "/bin/true"]
        python_s.append(wall_of([sys.executable, "-c", "pass"], directory=directory, env=env))
        version_s.append(wall_of([command, "--version"], directory=directory, env=env))
        enqueue_s.append(wall_of(words, directory=directory, env=env))
    return [
        at_most("`fleetcraft --version`", statistics.median(version_s), REACH_VERSION_S, unit=" s", digits=3),
        at_most("`task enqueue` of one task", statistics.median(enqueue_s), REACH_ENQUEUE_ONE_S, unit=" s", digits=3),
        info("Python alone, for comparison", f"{statistics.median(python_s):.3f} s"),
    ]


def _trials(bench: Bench, *, watch: str, count: int) -> list[float]:
    """Seconds from publication to start, each measured by the file system's own clock.

    Publication is the change time of the ledger (its last link operation), start is the file that the task makes.
    """
    directory = bench.fresh(f"latency-{watch}")
    spool, ours = directory / "spool", bench.ours
    _enqueue_touch(bench, spool, directory / "warm-up")
    worker = subprocess.Popen(
        ours.worker_command(spool, 1, "--watch", watch, idle_exit="10m"),
        cwd=directory,
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        _await_start(directory / "warm-up", worker)
        waits_s = []
        for index in range(count):
            # Any phase of a poll must be met equally often. The seed only makes runs alike.
            time.sleep(random.Random(index).uniform(0.3, 1.3))
            marker = directory / f"start-{index}"
            published_ns = _enqueue_touch(bench, spool, marker)
            waits_s.append((_await_start(marker, worker) - published_ns) / 1e9)
        return waits_s
    finally:
        end_process(worker)


def _enqueue_touch(bench: Bench, spool: Path, marker: Path) -> int:
    """Enqueue a task that makes `marker`; return when its ledger was published, in nanoseconds."""
    words = ["task", "enqueue", "--spool", str(spool), "--name", marker.name, "--", "/usr/bin/touch", str(marker)]
    wall_of([str(bench.ours.command), *words], directory=spool.parent, env=environment())
    return max(ledger.stat().st_ctime_ns for ledger in (spool / "batches").glob("*.jsonl"))


def _await_start(marker: Path, worker: subprocess.Popen[bytes]) -> int:
    deadline_s = time.monotonic() + START_DEADLINE_S
    while time.monotonic() < deadline_s:
        if marker.exists():
            return marker.stat().st_mtime_ns
        if worker.poll() is not None:
            raise BenchError(f"the idle worker ended with {worker.returncode} before it started {marker.name}")
        time.sleep(LOOK_PERIOD_S)
    raise BenchError(f"{marker.name} did not start within {START_DEADLINE_S:g} s; the worker is still alive")
