"""What every measurement is given: where to work, how much to run, whom to run, and where runs are kept."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar, cast

from measure import BenchError, Run
from ours import Fleetcraft
from peers import Peers
from tables import CurveLine

T = TypeVar("T")


@dataclass(slots=True, kw_only=True)
class Bench:
    """One run of the benchmark.

    Directories are numbered and nothing is deleted before the end: on ext4 a mass deletion slows the creation of
    files for about 40 s, so a tidy benchmark would measure its own tidying.
    """

    root: Path
    is_quick: bool
    rounds: int
    installed: Fleetcraft | None
    peers: Peers
    runs: list[Run] = field(default_factory=list)
    curve: list[CurveLine] = field(default_factory=list)
    _numbers: Iterator[int] = field(default_factory=itertools.count)
    _memory: dict[str, object] = field(default_factory=dict)

    @property
    def ours(self) -> Fleetcraft:
        if self.installed is None:
            raise BenchError("no .venv/bin/fleetcraft; run `make demo`, or name it in FLEETCRAFT_BENCH_COMMAND")
        return self.installed

    def size(self, full: int, quick: int) -> int:
        return quick if self.is_quick else full

    def fresh(self, name: str) -> Path:
        """A new empty directory."""
        path = self.root / f"{next(self._numbers):03d}-{name}"
        path.mkdir()
        return path

    def record(self, run: Run) -> Run:
        """Keep a run for the JSON, and show that something happens."""
        self.runs.append(run)
        mark = "" if run.is_clean else f"  (unclean: {run.foreign_share:.0%} of the machine was taken by others)"
        print(f"  {run.system}: {run.tasks:,} tasks in {run.wall_s:.2f} s, {run.rate:,.1f}/s{mark}", flush=True)
        return run

    def once(self, key: str, make: Callable[[], T]) -> T:
        """What two measurements share is made by the first that needs it."""
        if key not in self._memory:
            self._memory[key] = make()
        return cast("T", self._memory[key])
