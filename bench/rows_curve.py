"""The efficiency curve: how much of the ideal each system keeps, for short and for long tasks, few and many slots."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from context import Bench
from measure import BenchError, Run
from ours import TRUE_COMMAND
from peers import run_disbatch, run_floor, run_hyperqueue, run_parallel
from tables import CurveLine, Row


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One cell of the curve: `tasks` sleeps of `sleep_s` on `slots` slots."""

    slots: int
    sleep_s: float
    tasks: int
    slow_tasks: int  # For disBatch, which looks once a second.
    is_quick: bool = False

    @property
    def command(self) -> tuple[str, ...]:
        return ("/bin/sleep", f"{self.sleep_s:g}") if self.sleep_s else TRUE_COMMAND

    def efficiency(self, run: Run, floor_rate: float) -> float:
        """Ideal time over real time; for tasks that take no time the ideal is the floor."""
        if self.sleep_s == 0:
            return run.rate / floor_rate
        return run.tasks * self.sleep_s / self.slots / run.wall_s


# Ideal times of about 4 s, so that start-up weighs the same everywhere; of 20 s for the long tasks.
POINTS = (
    Point(slots=2, sleep_s=0.0, tasks=4_000, slow_tasks=40),
    Point(slots=2, sleep_s=0.01, tasks=800, slow_tasks=40, is_quick=True),
    Point(slots=2, sleep_s=0.1, tasks=80, slow_tasks=40),
    Point(slots=2, sleep_s=1.0, tasks=10, slow_tasks=10),
    Point(slots=2, sleep_s=10.0, tasks=4, slow_tasks=4),
    Point(slots=16, sleep_s=0.0, tasks=4_000, slow_tasks=320),
    Point(slots=16, sleep_s=0.01, tasks=3_200, slow_tasks=320),
    Point(slots=16, sleep_s=0.1, tasks=640, slow_tasks=320, is_quick=True),
    Point(slots=16, sleep_s=1.0, tasks=64, slow_tasks=64),
    Point(slots=16, sleep_s=10.0, tasks=32, slow_tasks=32),
)

System = Callable[[Path, Point], Run]


def curve(bench: Bench) -> list[Row]:
    systems = _systems(bench)
    for point in POINTS:
        if bench.is_quick and not point.is_quick:
            continue
        runs = {name: _attempt(bench, name, run, point) for name, run in systems.items()}
        bench.curve.append(_line(point, runs))
    # It has a table of its own; nothing in it is to be reached.
    return []


def _systems(bench: Bench) -> dict[str, System]:
    """Every system that is there, each called in the same way."""
    peers = bench.peers
    found: dict[str, System] = {"floor": lambda path, at: run_floor(path, at.tasks, at.slots, at.command)}
    if bench.installed:
        found["fleetcraft"] = lambda path, at: _ours(bench, path, at, workers=1)
        found["fleetcraft, worker per slot"] = lambda path, at: _ours(bench, path, at, workers=at.slots)
    if python := peers.hyperqueue_python:
        found["HyperQueue"] = lambda path, at: run_hyperqueue(python, path, at.tasks, at.slots, at.command)
    if parallel := peers.parallel:
        found["GNU parallel"] = lambda path, at: run_parallel(parallel, path, at.tasks, at.slots, at.command)
    # In the quick run it would take longer than all others together.
    if (disbatch := peers.disbatch) and not bench.is_quick:
        found["disBatch"] = lambda path, at: run_disbatch(disbatch, path, at.slow_tasks, at.slots, at.command)
    return found


def _ours(bench: Bench, path: Path, point: Point, *, workers: int) -> Run:
    """End to end, with the enqueue, as the peers are measured."""
    _, whole = bench.ours.enqueue_and_drain(
        path,
        tasks=point.tasks,
        command=point.command,
        cpus=point.slots // workers,
        workers=workers,
        system="fleetcraft" if workers == 1 else f"fleetcraft, {workers} workers",
    )
    return whole


def _attempt(bench: Bench, name: str, run: System, point: Point) -> Run | None:
    """One failing system leaves a hole in the curve, not the whole curve."""
    try:
        return bench.record(run(bench.fresh("curve"), point))
    except BenchError as error:
        print(f"  {name}: {error}", flush=True)
        return None


def _line(point: Point, runs: dict[str, Run | None]) -> CurveLine:
    floor = runs["floor"]
    cells: dict[str, tuple[float, bool] | None] = {}
    for name, run in runs.items():
        cells[name] = (point.efficiency(run, floor.rate), run.is_clean) if run and floor else None
    return CurveLine(slots=point.slots, sleep_s=point.sleep_s, cells=cells)
