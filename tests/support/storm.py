"""Many tasks, several workers, publishers and reapers, and a hand that kills them at random moments.

The same storm serves the test run (tens of thousands of tasks) and the soak (a million). What it promises is
checked against the lines that the tasks wrote themselves, not only against what the journals say.
"""

from __future__ import annotations

import random
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from fleetcraft.core.names import DRAFT
from fleetcraft.core.outcome import Fold
from fleetcraft.spool.reading import SpoolFold
from tests.support.counting import Execution, counter_command, executions
from tests.support.lab import Lab, Process
from tests.support.waiting import wait_for


@dataclass(frozen=True, slots=True, kw_only=True)
class StormPlan:
    """How much of everything."""

    commands: int
    calls: int = 0
    per_batch: int = 1_000  # of one publisher
    per_enqueue: int = 1_000
    workers: int = 8
    cpus: int = 1
    publishers: int = 2
    reapers: int = 2
    kill_every_s: float = 0.25  # mean; the moments are random
    # So many and no more: on a machine that has no time, a life would else be shorter than its start.
    kills: int = 80
    deadline_s: float = 100.0
    say: bool = False  # a line every now and then, for who watches a long one


@dataclass(slots=True)
class Storm:
    """One storm in one lab."""

    lab: Lab
    dice: random.Random
    plan: StormPlan
    kills: Counter[str] = field(default_factory=Counter)
    _running: dict[str, Process] = field(default_factory=dict)
    _to_publish: dict[str, list[str]] = field(default_factory=dict)
    _reader: SpoolFold | None = None
    _batches: int = 0

    def run(self) -> None:
        """Publish, work and kill until everything ended; then let one worker clear up."""
        self._prepare()
        until_s = time.monotonic() + self.plan.deadline_s
        said_s = time.monotonic()
        while not self._is_over():
            if self.plan.say and time.monotonic() - said_s > 30.0:
                said_s = time.monotonic()
                print(
                    f"{dict(self.kills)} kills, {len(self._to_publish)} batches to come",
                    file=sys.__stderr__,
                    flush=True,
                )
            assert time.monotonic() < until_s, f"the storm did not end: {self.lab.picture()}"
            self._keep_alive()
            # Not a wait for anything: the next crash comes at a moment that nobody knows.
            time.sleep(min(2.0, self.dice.expovariate(1 / self.plan.kill_every_s)))
            self._strike()
        for process in self._running.values():
            process.kill()
        self.lab.drain(deadline_s=max(30.0, until_s - time.monotonic()), cpus=2)

    @property
    def total(self) -> int:
        return self.plan.commands + self.plan.calls

    @property
    def commands_file(self) -> Path:
        return self.lab.folder / "executed"

    @property
    def calls_file(self) -> Path:
        return self.lab.folder / "called"

    def _prepare(self) -> None:
        argv = counter_command(self.lab.folder)
        made: dict[str, list[str]] = {}
        for kind, count, path in (
            ("command", self.plan.commands, self.commands_file), ("call", self.plan.calls, self.calls_file),
        ):  # fmt: skip
            for number, first in enumerate(range(0, count, self.plan.per_batch)):
                size = min(self.plan.per_batch, count - first)
                name = f"{kind}{number}"
                made[name] = [
                    sys.executable, "-m", "tests.support.publisher_program", str(self.lab.root), name, str(size),
                    str(self.plan.per_enqueue), kind,
                    str(path), *(argv if kind == "command" else []),
                ]  # fmt: skip
        self._batches = len(made)
        # Commands and calls by turns.
        self._to_publish = {name: made[name] for name in sorted(made, key=lambda name: int(name.lstrip("comandl")))}

    def _is_over(self) -> bool:
        if self._to_publish or self.kills.total() < self.plan.kills:
            return False
        lives = set(self.lab.lives())
        # A publisher that was killed before its commit leaves a draft that means nothing; see `check`.
        if any(token.form != DRAFT or token.life in lives for token in self.lab.tokens()):
            return False
        if self._reader is None:
            self._reader = SpoolFold(self.lab.spool)
        self.lab.spool.refresh()
        self._reader.refresh()
        return sum(self._reader.fold.counts().values()) >= self.total

    def _keep_alive(self) -> None:
        """Start again what was killed or has ended."""
        for name, process in list(self._running.items()):
            if process.alive:
                continue
            if name in self._to_publish and process.popen.returncode == 0:
                del self._to_publish[name]  # killed after its commit it publishes again, and adds nothing
            del self._running[name]
        for number in range(self.plan.workers):
            if f"worker {number}" not in self._running:
                self._running[f"worker {number}"] = self.lab.worker(
                    cpus=self.plan.cpus, crash_limit=20, idle_exit_s=None
                )
        for number in range(self.plan.reapers):
            if f"reaper {number}" not in self._running:
                argv = [sys.executable, "-m", "tests.support.reaper_program", str(self.lab.root), "5"]
                self._running[f"reaper {number}"] = self.lab.start(argv)
        # Work comes with the kills, so that there is some until the last of them.
        share = 1.0 if not self.plan.kills else (self.kills.total() + 1) / self.plan.kills
        still = self._batches - int(share * self._batches)
        due = list(self._to_publish)[: max(0, len(self._to_publish) - still)]
        waiting = [name for name in due if name not in self._running]
        busy = len(due) - len(waiting)
        for name in self.dice.sample(waiting, min(len(waiting), max(0, self.plan.publishers - busy))):
            self._running[name] = self.lab.start(self._to_publish[name])

    def _strike(self) -> None:
        if self.kills.total() >= self.plan.kills:
            return
        name = self.dice.choice(sorted(self._running))
        process = self._running[name]
        if process.alive:
            process.kill()
            self.kills[name.rstrip("0123456789 ")] += 1

    # What must hold afterwards

    def check(self) -> None:
        """Nothing lost, nothing counted twice, every execution explained, nothing left behind."""
        lab, fold = self.lab, self.lab.fold()
        mended = lab.start([sys.executable, "-m", "fleetcraft", "spool", "check", "--repair", "--spool", str(lab.root)])
        assert mended.wait() == 0, mended.said()
        assert lab.counts() == {"succeeded": self.total}
        assert lab.total() == self.total
        assert lab.tokens() == []
        # One that was killed before it was born has no state, and wrote nothing.
        unfinished = {life: lab.life_state(life) for life in lab.lives() if lab.life_state(life) != "dead"}
        assert {state for life, state in unfinished.items() if state is not None or lab.records(life)} == set()
        assert fold.open == {}, "an attempt was begun and never explained"
        wait_for(lambda: not lab.strays(), "no process of a life is left", 10.0, lab.strays)
        self._check_counted_once(fold)
        self._check_commands()
        self._check_calls()

    def _check_counted_once(self, fold: Fold) -> None:
        twice = [key for key in fold.irregular() if fold.verdict(*key).duplicates]
        assert twice == [], f"succeeded more than once: {twice[:5]}"
        successes: Counter[tuple[int, int]] = Counter()
        for record in self.lab.records():
            if record["t"] == "receipt" and record["o"] == "succeeded":
                successes.update((record["b"], record["i"] + offset) for offset in range(record.get("k", 1)))
        assert len(successes) == self.total
        assert max(successes.values()) == 1, f"two receipts: {[task for task, n in successes.items() if n > 1][:5]}"

    def _check_commands(self) -> None:
        """Each line of a task belongs to an attempt that its life began, and that ended in one way."""
        done = executions(self.commands_file)
        begun: set[Execution] = set()
        ended: dict[Execution, set[str]] = {}
        for record in self.lab.records():
            if record["t"] not in {"started", "receipt", "lost"}:
                continue
            for index in range(record["i"], record["i"] + record.get("k", 1)):
                key = Execution(f"{record['b']}.{index}", record["a"], record.get("life", record["by"]))
                if record["t"] == "started":
                    begun.add(key)
                else:
                    ended.setdefault(key, set()).add(record.get("o", "lost"))
        assert not (again := [key for key, count in Counter(done).items() if count > 1]), (
            f"one attempt ran twice: {again[:5]}"
        )
        owners = Counter((key.task, key.attempt) for key in done)
        assert max(owners.values()) == 1, "two lives ran one attempt"
        assert not (unknown := set(done) - begun), f"ran without a record of its start: {list(unknown)[:5]}"
        assert not (open_end := [key for key in done if key not in ended]), f"unexplained: {open_end[:5]}"
        succeeded = {key for key, outcomes in ended.items() if "succeeded" in outcomes}
        ran, tasks = set(done), {key.task for key in done}
        commands = {key for key in succeeded if key.task in tasks}
        assert commands <= ran, f"a success without an execution: {list(commands - ran)[:5]}"
        assert len(tasks) == self.plan.commands

    def _check_calls(self) -> None:
        """A call runs at least once, and again only with an attempt that was lost before."""
        if not self.plan.calls:
            return
        ran = Counter(self.calls_file.read_text().split())
        assert len(ran) == self.plan.calls
        again = {name: count for name, count in ran.items() if count > 1}
        for name, count in again.items():
            assert count <= self.lab.verdict(name).attempt, f"{name} ran {count} times: {self.lab.verdict(name)}"
