"""Rows about a million tasks: enqueue, rate with many queued, resident calls, files left, status, worker memory."""

from __future__ import annotations

import os
import statistics
from dataclasses import dataclass
from pathlib import Path

from context import Bench
from measure import BenchError, Run, wall_of
from ours import count_entries, environment, write_calls, write_commands
from tables import Row, at_least, at_most, describe, info, median_rate, trusted

MILLION, QUICK_MILLION = 1_000_000, 200_000
REACH_QUEUED_RATIO, REACH_CALLS_PER_S, REACH_ENQUEUE_S = 0.95, 50_000, 6.0
REACH_MEMORY_GROWTH, REACH_FILES, REACH_STATUS_S, REACH_WORKER_MIB = 1.1, 1_000, 0.5, 40.0
DROP_CACHES = Path("/proc/sys/vm/drop_caches")


@dataclass(frozen=True, slots=True, kw_only=True)
class Million:
    """A spool of a million calls, from enqueue to empty."""

    enqueue: Run
    drain: Run
    entries_queued: tuple[int, int]
    entries_drained: tuple[int, int]


def enqueue(bench: Bench) -> list[Row]:
    """Enqueue from JSONL, and whether its memory grows with the number of tasks."""
    count, small = bench.size(MILLION, QUICK_MILLION), bench.size(100_000, 20_000)
    runs: dict[int, list[Run]] = {count: [], small: []}
    for _ in range(bench.rounds):
        for tasks, kept in runs.items():
            directory = bench.fresh("enqueue")
            lines = write_commands(directory / "tasks.jsonl", tasks)
            kept.append(bench.record(bench.ours.enqueue(directory / "spool", lines, tasks)))
    chosen, mark = trusted(runs[count])
    wall_s = statistics.median(run.wall_s for run in chosen)
    small_kib, large_kib = (max(run.peak_rss_kib for run in runs[tasks]) for tasks in (small, count))
    if small_kib == 0:
        raise BenchError(f"the enqueue of {small:,} tasks ended before its memory could be read")
    note = f"peak {small_kib / 1024:.0f} MiB at {small:,} tasks, {large_kib / 1024:.0f} MiB at {count:,}"
    return [
        at_most(f"enqueue {count:,} tasks from JSONL{mark}", wall_s, REACH_ENQUEUE_S * count / MILLION, unit=" s"),
        at_most("memory of that enqueue ÷ of a tenth of it", large_kib / small_kib, REACH_MEMORY_GROWTH, note=note),
    ]


def queued(bench: Bench) -> list[Row]:
    """The same number of tasks run with a million queued and with few queued, in turn."""
    tasks = bench.size(20_000, 2_000)
    crowd = _filled(bench, bench.size(MILLION, QUICK_MILLION))
    few, many = [], []
    for _ in range(bench.rounds):
        few.append(bench.record(_drain_some(bench, _filled(bench, tasks), tasks)))
        many.append(bench.record(_drain_some(bench, crowd, tasks)))
    ratio = median_rate(many) / median_rate(few)
    title = f"rate with {bench.size(MILLION, QUICK_MILLION):,} queued ÷"
    note = f"many queued: {describe(many)}; few queued: {describe(few)}"
    rows = [at_least(f"{title} with {tasks:,} queued, {tasks:,} run", ratio, REACH_QUEUED_RATIO, note=note)]
    return [*rows, _queued_thousand(bench, crowd, title), _worker_memory([*few, *many])]


def _queued_thousand(bench: Bench, crowd: Path, title: str) -> Row:
    """With 1,000 tasks a run is half start-up, so the start-up of a worker with nothing to do is taken off both."""
    tasks, few, many, empty_s = 1_000, [], [], []
    for _ in range(bench.size(7, 2)):
        spool = _filled(bench, tasks)
        few.append(bench.record(_drain_some(bench, spool, tasks)))
        many.append(bench.record(_drain_some(bench, crowd, tasks)))
        empty_s.append(wall_of(bench.ours.worker_command(spool, 2), directory=spool.parent, env=environment()))
    start_s = statistics.median(empty_s)
    few_s, many_s = (statistics.median(run.wall_s for run in trusted(runs)[0]) - start_s for runs in (few, many))
    note = f"{few_s:.3f} s and {many_s:.3f} s after {start_s:.3f} s of start-up were taken off both"
    return at_least(f"{title} with 1,000 queued, 1,000 run", few_s / many_s, REACH_QUEUED_RATIO, note=note)


def resident(bench: Bench) -> list[Row]:
    """No-op calls of a resident function by two workers, worker start included."""
    million = _drained_million(bench)
    again = range(bench.size(bench.rounds - 1, 0))
    runs = [million.drain, *(bench.record(_drain_calls(bench, _filled_with_calls(bench)[0])) for _ in again)]
    title = f"{million.drain.tasks:,} resident no-op calls, 2 workers"
    return [
        at_least(title, median_rate(runs), REACH_CALLS_PER_S, unit="/s", digits=0, note=describe(runs)),
        _worker_memory(runs),
    ]


def files(bench: Bench) -> list[Row]:
    """Files and directories of a spool with everything queued, and with everything done."""
    million = _drained_million(bench)
    rows = []
    for when, (count, directories) in (
        ("queued", million.entries_queued),
        ("after completion", million.entries_drained),
    ):
        title = f"files and directories, {million.enqueue.tasks:,} tasks {when}"
        note = f"{count} files, {directories} directories"
        rows.append(at_most(title, count + directories, REACH_FILES, digits=0, note=note))
    return rows


def status(bench: Bench) -> list[Row]:
    """`spool status` of a half-done spool, its files not in the page cache."""
    spool, enqueued = _filled_with_calls(bench)
    share = enqueued.tasks // 4
    run = bench.ours.drain(
        spool, tasks=2 * share, cpus=1, workers=2, options=("--max-tasks", str(share)), system="fleetcraft, half"
    )
    bench.record(run)
    command, tiny = bench.ours.status_command(spool), _filled(bench, 10)
    cold_s, all_cold_s, method = [], [], ""
    for _ in range(bench.size(5, 3)):
        method = _evict(spool)
        all_cold_s.append(wall_of(command, directory=bench.root, env=environment()))
        _evict(spool)
        # Reading a tiny spool brings the program back into memory, so that only the big spool is cold.
        wall_of(bench.ours.status_command(tiny), directory=bench.root, env=environment())
        cold_s.append(wall_of(command, directory=bench.root, env=environment()))
    warm_s = [wall_of(command, directory=bench.root, env=environment()) for _ in range(5)]
    title = f"`spool status`, {enqueued.tasks:,} tasks, {run.tasks:,} done"
    return [
        at_most(f"{title}, spool cold", statistics.median(cold_s), REACH_STATUS_S, unit=" s", note=method),
        info(f"{title}, program and Python cold too", f"{statistics.median(all_cold_s):.2f} s"),
        info(f"{title}, warm", f"{statistics.median(warm_s):.2f} s"),
        _worker_memory([run]),
    ]


def _worker_memory(runs: list[Run]) -> Row:
    peak_mib = max(run.peak_rss_kib for run in runs) / 1024
    tasks = max(run.tasks for run in runs)
    return at_most(
        f"peak memory of a worker ({runs[0].system}, {tasks:,} tasks)",
        peak_mib,
        REACH_WORKER_MIB,
        unit=" MiB",
        digits=1,
    )


def _drained_million(bench: Bench) -> Million:
    return bench.once("million", lambda: _make_million(bench))


def _make_million(bench: Bench) -> Million:
    spool, enqueued = _filled_with_calls(bench)
    entries_queued = count_entries(spool)
    drain = bench.record(_drain_calls(bench, spool))
    return Million(enqueue=enqueued, drain=drain, entries_queued=entries_queued, entries_drained=count_entries(spool))


def _drain_calls(bench: Bench, spool: Path) -> Run:
    tasks = bench.size(MILLION, QUICK_MILLION)
    return bench.ours.drain(spool, tasks=tasks, cpus=1, workers=2, system="fleetcraft, resident calls")


def _drain_some(bench: Bench, spool: Path, tasks: int) -> Run:
    return bench.ours.drain(spool, tasks=tasks, options=("--max-tasks", str(tasks)))


def _filled(bench: Bench, tasks: int) -> Path:
    directory = bench.fresh("filled")
    bench.ours.enqueue(directory / "spool", write_commands(directory / "tasks.jsonl", tasks), tasks)
    return directory / "spool"


def _filled_with_calls(bench: Bench) -> tuple[Path, Run]:
    directory, tasks = bench.fresh("calls"), bench.size(MILLION, QUICK_MILLION)
    run = bench.ours.enqueue(directory / "spool", write_calls(directory / "tasks.jsonl", tasks), tasks)
    return directory / "spool", bench.record(run)


def _evict(spool: Path) -> str:
    """Make the spool cold: all caches of the machine where we may, else only its own pages."""
    os.sync()
    try:
        DROP_CACHES.write_text("3\n")
    except OSError:
        for path in (path for path in spool.rglob("*") if path.is_file()):
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)
        return "cold by posix_fadvise on each file of the spool (inodes and directories stay cached)"
    return f"cold by writing 3 to {DROP_CACHES} (pages, inodes and directories)"
