"""Workers, publishers and reapers are killed at random moments; the accounts stay exact."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

import pytest

from fleetcraft.actions.requests import cancel, retry
from fleetcraft.actions.selection import Selection
from fleetcraft.core.errors import FleetcraftError
from tests.support.lab import Lab, Process
from tests.support.seeds import say, seeded
from tests.support.storm import Storm, StormPlan

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


def test_nothing_is_lost_or_counted_twice_whoever_is_killed_whenever(lab: Lab):
    storm = Storm(lab, seeded(), StormPlan(commands=10_000, calls=10_000, deadline_s=200.0))
    storm.run()
    say(f"kills: {dict(storm.kills)}")
    storm.check()
    assert storm.kills["worker"] > 10


def test_batches_of_one_task_are_folded_while_everyone_is_killed(lab: Lab):
    plan = StormPlan(commands=800, calls=400, per_batch=100, per_enqueue=1, publishers=4, kills=50, deadline_s=200.0)
    storm = Storm(lab, seeded(), plan)
    storm.run()
    say(f"kills: {dict(storm.kills)}")
    storm.check()
    lab.spool.refresh()
    assert any(batch.folds for batch in lab.spool.batches()), "nothing was folded, so nothing was tried"
    assert len(lab.spool.batches()) < 400


def kill_workers(
    lab: Lab, dice: random.Random, kills: int, is_over: Callable[[], bool], step: Callable[[], None]
) -> None:
    """Keep three workers at work until it is over, and kill one of them at random moments."""
    workers: list[Process] = []
    until_s = time.monotonic() + 150.0
    while kills > 0 or not is_over():
        assert time.monotonic() < until_s, f"it did not end: {lab.picture()}"
        workers = [worker for worker in workers if worker.alive]
        while len(workers) < 3:
            workers.append(lab.worker(cpus=2, crash_limit=100, idle_exit_s=None))
        step()
        time.sleep(dice.expovariate(1 / 0.3))  # the next crash comes at a moment that nobody knows
        if kills > 0:
            dice.choice(workers).kill()
            kills -= 1
    for worker in workers:
        worker.kill()
    lab.drain()


def test_what_waits_for_others_never_runs_before_them_and_is_never_forgotten(lab: Lab):
    dice = seeded()
    layers = [[f"l{layer}t{number}" for number in range(12)] for layer in range(8)]
    tasks = []
    for layer, names in enumerate(layers):
        for name in names:
            after = dice.sample(layers[layer - 1], 3) if layer else []
            ready = " && ".join(["true", *(f"test -e done-{other}" for other in after)])
            script = f"{ready} && touch done-{name}"
            tasks.append({"name": name, "command": ["sh", "-c", script], **({"after": after} if after else {})})
    lab.enqueue(tasks)
    kill_workers(lab, dice, 20, lambda: sum(lab.counts().values()) == len(tasks), lambda: None)
    assert lab.counts() == {"succeeded": len(tasks)}
    assert lab.tokens() == []


def test_cancels_and_retries_mean_the_same_whoever_is_killed(lab: Lab):
    dice = seeded()
    names = [f"t{number}" for number in range(300)]
    script = 'sleep 0.15; echo "$FLEETCRAFT_TASK" >> ran'
    lab.enqueue([{"name": name, "command": ["sh", "-c", script]} for name in names])
    last: dict[str, str] = {}

    def ask() -> None:
        for what, act in (("cancelled", cancel), ("retried", retry)):
            chosen = dice.sample(names, 8)
            for name in chosen:
                try:
                    result = act(lab.spool, Selection(names=(name,)))
                except FleetcraftError:
                    continue  # refused: it runs, or has ended, or has not
                if getattr(result, what):
                    last[name] = what

    def is_over() -> bool:
        return sum(lab.counts().values()) == len(names)

    asked = 0

    def step() -> None:
        nonlocal asked
        if asked < 15:
            asked += 1
            ask()

    kill_workers(lab, dice, 15, is_over, step)
    assert sum(lab.counts().values()) == len(names)
    assert set(lab.counts()) == {"succeeded", "cancelled"}
    assert lab.tokens() == []
    for name in names:
        state = lab.state(name)
        if last.get(name) != "cancelled":
            assert state == "succeeded", (
                f"{name} was {last.get(name, 'left alone')} and is {state}: {lab.verdict(name)}"
            )
    for name in (name for name in names if lab.state(name) == "succeeded"):
        assert name in (lab.folder / "ran").read_text().split()
