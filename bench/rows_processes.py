"""Rows about starting processes: the rate beside the floor and the peers, and what a task costs above its child."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Sequence

from context import Bench
from measure import Run
from ours import TRUE_COMMAND
from peers import run_c_floor, run_disbatch, run_floor, run_hyperqueue, run_parallel
from tables import Row, at_least, at_most, describe, info, median_rate, trusted, unmeasured

SLOTS = 2
PAIRS_PER_ROUND = 2  # The floor and ours are short; the tightest ratio gets the most repetitions.
REACH_FLOOR, REACH_HYPERQUEUE, REACH_PARALLEL, REACH_OWN_CPU_MS = 0.85, 8.0, 9.0, 0.2

Runs = dict[str, list[Run]]


def processes(bench: Bench) -> list[Row]:
    """No-op processes on two slots, all systems interleaved."""
    tasks = bench.size(10_000, 3_000)
    runs: Runs = defaultdict(list)
    for _ in range(bench.rounds):
        for _ in range(PAIRS_PER_ROUND):
            _run_ours_and_floors(bench, runs, tasks)
        _run_peers(bench, runs)
    return [*_judge(bench, runs, tasks), *_rates(runs)]


def _run_ours_and_floors(bench: Bench, runs: Runs, tasks: int) -> None:
    runs["floor"].append(bench.record(run_floor(bench.fresh("floor"), tasks, SLOTS, TRUE_COMMAND)))
    for workers, system in ((1, "fleetcraft"), (SLOTS, "fleetcraft, 2 workers")):
        if bench.installed is None:
            break
        drained, whole = bench.ours.enqueue_and_drain(
            bench.fresh("ours"),
            tasks=tasks,
            command=TRUE_COMMAND,
            cpus=SLOTS // workers,
            workers=workers,
            system=system,
        )
        runs[system].append(bench.record(drained))
        runs[whole.system].append(bench.record(whole))
    if bench.peers.c_floor:
        run = run_c_floor(bench.peers.c_floor, bench.fresh("floor-c"), tasks, SLOTS, TRUE_COMMAND)
        runs["floor in C"].append(bench.record(run))


def _run_peers(bench: Bench, runs: Runs) -> None:
    peers, tasks = bench.peers, bench.size(10_000, 1_000)
    if peers.hyperqueue_python:
        for output in (False, True):
            directory = bench.fresh("hyperqueue")
            run = run_hyperqueue(peers.hyperqueue_python, directory, tasks, SLOTS, TRUE_COMMAND, output=output)
            runs[run.system].append(bench.record(run))
    if peers.parallel:
        run = run_parallel(peers.parallel, bench.fresh("parallel"), tasks, SLOTS, TRUE_COMMAND)
        runs[run.system].append(bench.record(run))
    if peers.disbatch:
        # It looks for ended tasks once a second, so more tasks would only take longer.
        run = run_disbatch(peers.disbatch, bench.fresh("disbatch"), bench.size(100, 20), SLOTS, TRUE_COMMAND)
        runs[run.system].append(bench.record(run))


def _judge(bench: Bench, runs: Runs, tasks: int) -> list[Row]:
    what = f"{tasks:,} no-op processes, 2 slots"
    if bench.installed is None:
        return [unmeasured(what, f"at least {REACH_FLOOR}", "fleetcraft is not installed")]
    ratio, mark = _paired_ratio(runs["fleetcraft"], runs["floor"])
    rows = [
        at_least(f"{what}: ours ÷ two posix_spawn loops", ratio, REACH_FLOOR, note=mark),
        _against(what, runs, "HyperQueue", REACH_HYPERQUEUE),
        _against(what, runs, "GNU parallel", REACH_PARALLEL),
    ]
    ours_ms, floor_ms = _cpu_ms(runs["fleetcraft"]), _cpu_ms(runs["floor"])
    note = f"whole process tree: ours {ours_ms:.3f} ms a task, floor {floor_ms:.3f} ms"
    rows.append(
        at_most("own CPU above the child's", ours_ms - floor_ms, REACH_OWN_CPU_MS, unit=" ms", note=note, digits=3)
    )
    with_enqueue, _ = _paired_ratio(runs["fleetcraft with enqueue"], runs["floor"])
    rows.append(info("the same with the enqueue inside the time ÷ floor", f"{with_enqueue:.2f}", with_enqueue))
    two_workers, _ = _paired_ratio(runs["fleetcraft, 2 workers"], runs["floor"])
    rows.append(info("the same by two workers of one slot ÷ floor", f"{two_workers:.2f}", two_workers))
    return rows


def _against(what: str, runs: Runs, peer: str, limit: float) -> Row:
    """Ours with its enqueue against a peer end to end; beside it, how far even the bare floor is from the peer."""
    title = f"{what}, end to end: ours ÷ {peer}"
    if not runs[peer]:
        return unmeasured(title, f"at least {limit:g}", f"{peer} could not be installed")
    peer_rate = median_rate(runs[peer])
    floor = median_rate(runs["floor"]) / peer_rate
    note = f"the bare floor itself is {floor:.1f} times {peer} on this machine"
    return at_least(title, median_rate(runs["fleetcraft with enqueue"]) / peer_rate, limit, note=note)


def _rates(runs: Runs) -> list[Row]:
    return [
        info(f"rate of {system}, no-op processes", describe(measured), median_rate(measured), _cost(measured))
        for system, measured in runs.items()
    ]


def _cost(measured: Sequence[Run]) -> str:
    peak_mib = max(run.peak_rss_kib for run in measured) / 1024
    return f"{_cpu_ms(measured):.2f} ms of CPU a task, peak memory of the started process {peak_mib:.0f} MiB"


def _cpu_ms(measured: Sequence[Run]) -> float:
    chosen, _ = trusted(measured)
    return statistics.median(run.cpu_ms_per_task for run in chosen)


def _paired_ratio(ours: Sequence[Run], floor: Sequence[Run]) -> tuple[float, str]:
    """Median of the ratios of neighbors in time, over the clean pairs where there are any."""
    pairs = list(zip(ours, floor, strict=True))
    clean = [pair for pair in pairs if pair[0].is_clean and pair[1].is_clean]
    ratio = statistics.median(one.rate / other.rate for one, other in clean or pairs)
    return ratio, f"median of {len(clean or pairs)} pairs, {len(clean)} of {len(pairs)} clean"
