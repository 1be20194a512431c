"""Fleets on a cluster where something always breaks: what breaks, and the passes that keep the work going.

The order of faults comes from a seed. After the last fault the cluster is mended, and everything must come to its end.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests.cluster.daemons import signal_process
from tests.cluster.fleet_lab import FleetLab

# A pass may be refused or get no answer: then the next one goes on. Anything else is an error of ours.
_EXPECTED = (0, 4, 75)


@dataclass(frozen=True, slots=True, kw_only=True)
class SoakPlan:
    """How much, from the environment."""

    fleets: int = 20
    tasks: int = 20_000
    faults: int = 200
    seed: int = 1

    @classmethod
    def from_environment(cls) -> SoakPlan:
        """SOAK_FLEETS, SOAK_TASKS, SOAK_FAULTS and SOAK_SEED."""
        given = {name: os.environ.get(f"SOAK_{name.upper()}") for name in ("fleets", "tasks", "faults", "seed")}
        return cls(**{name: int(value) for name, value in given.items() if value})


@dataclass
class Soak:
    """One run."""

    lab: FleetLab
    plan: SoakPlan
    done: Counter[str] = field(default_factory=Counter)
    answers: Counter[int] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.rng = random.Random(self.plan.seed)
        self.cluster = self.lab.cluster
        self.fleets = [f"f{number}" for number in range(self.plan.fleets)]
        self.names = [f"t{number}" for number in range(self.plan.tasks)]

    def begin(self) -> None:
        """Enqueue everything and make every fleet."""
        third = len(self.names) // 3
        self.lab.enqueue(self.names[:third], 0.2, "--retries", "3", save=True)
        self.lab.enqueue(self.names[third:], 0.1, "--retries", "3")
        for number, fleet in enumerate(self.fleets):
            where = ["--preemptible"] if number % 3 == 0 else []
            self.lab.submit(
                fleet, "--nodes", str(1 + number % 2), "--max-nodes", "3", "--time", "5m", "--cpus-per-node", "2",
                "--gpus-per-node", "1", "--memory", "500M", "--idle-exit", "15s", *where,
            )  # fmt: skip

    def storm(self) -> None:
        """One fault after the other, with passes between them."""
        faults: list[Callable[[], str]] = [
            self._cancel_a_job, self._requeue_a_job, self._kill_a_worker, self._kill_a_task, self._power_cut,
            self._hang_the_controller, self._restart_the_controller, self._hang_the_database, self._kill_a_pass,
            self._preempt,
        ]  # fmt: skip
        while sum(self.done.values()) < self.plan.faults:
            fault = self.rng.choice(faults)
            said = fault()
            if said:
                self.done[said] += 1
            self.ensure(self.rng.choice(self.fleets))

    def ensure(self, fleet: str) -> None:
        """One pass of one fleet."""
        answer = self.lab.call("fleet", "ensure", fleet)
        self.answers[answer.returncode] += 1
        assert answer.returncode in _EXPECTED, (fleet, answer.stdout, answer.stderr)

    def calm(self, deadline_s: float) -> dict[str, int]:
        """Passes over a cluster that works, until every task succeeded."""
        self.cluster.run(["scancel", "-p", "high"], user="root", check=False)
        for fleet in self.fleets:
            # A job that was cancelled by hand is replaced only after somebody says so, or half an hour.
            self.lab.call("fleet", "drain", fleet, "--resume")
        until_s = time.monotonic() + deadline_s
        turn = 0
        while True:
            counts = self.lab.counts()
            if counts["succeeded"] == counts["total"]:
                return counts
            assert time.monotonic() < until_s, (counts, self.lab.said()[-4000:])
            self.ensure(self.fleets[turn % len(self.fleets)])
            turn += 1

    # What breaks

    def _jobs(self) -> list[str]:
        words = ["squeue", "-h", "--me", "-t", "R", "-o", "%A"]
        return sorted(self.cluster.run(words, check=False).stdout.split())

    def _cancel_a_job(self) -> str:
        jobs = self._jobs()
        if not jobs:
            return ""
        self.cluster.run(["scancel", self.rng.choice(jobs)], check=False)
        return "scancel"

    def _requeue_a_job(self) -> str:
        jobs = self._jobs()
        if not jobs:
            return ""
        self.cluster.run(["scontrol", "requeue", self.rng.choice(jobs)], check=False)
        return "requeue"

    def _kill_one_like(self, mark: bytes) -> bool:
        pids = [
            pid
            for name in self.cluster.node_names
            for pid in self.cluster.node_processes(name)
            if mark in _command_line(pid) and b"srun" not in _command_line(pid)
        ]
        if not pids:
            return False
        signal_process(self.rng.choice(sorted(pids)), signal.SIGKILL)
        return True

    def _kill_a_worker(self) -> str:
        return "worker killed" if self._kill_one_like(b"worker\0run") else ""

    def _kill_a_task(self) -> str:
        # Killed from outside: a failure of the task, and one more try is in its budget.
        return "task killed" if self._kill_one_like(bytes(self.lab.script)) else ""

    def _power_cut(self) -> str:
        name = self.rng.choice(self.cluster.node_names)
        self.cluster.kill_node(name)
        self.ensure(self.rng.choice(self.fleets))
        self.cluster.start_node(name)
        return "power cut"

    def _hang_the_controller(self) -> str:
        self.cluster.pause_controller()
        try:
            self.ensure(self.rng.choice(self.fleets))
        finally:
            self.cluster.resume_controller()
        return "controller hung"

    def _restart_the_controller(self) -> str:
        self.cluster.stop_controller()
        try:
            self.ensure(self.rng.choice(self.fleets))
        finally:
            self.cluster.start_controller()
        return "controller stopped"

    def _hang_the_database(self) -> str:
        self.cluster.pause_database()
        try:
            self.ensure(self.rng.choice(self.fleets))
        finally:
            self.cluster.resume_database()
        return "database hung"

    def _kill_a_pass(self) -> str:
        running = self.lab.popen("fleet", "ensure", self.rng.choice(self.fleets))
        with suppress(subprocess.TimeoutExpired):
            running.wait(self.rng.uniform(0.2, 1.2))
        running.kill()
        running.communicate()
        return "pass killed"

    def _preempt(self) -> str:
        width = self.rng.randint(1, len(self.cluster.node_names))
        words = ["sbatch", "-p", "high", f"-N{width}", "-c8", "--time=1"]
        answer = self.cluster.run(words, stdin="#!/bin/bash\nsleep 2\n", user="root", check=False)
        return "preempted" if answer.returncode == 0 else ""


def _command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""
