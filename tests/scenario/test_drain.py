"""Leaving: by signal, by deadline, by request; what runs may save its state, what does not goes back uncharged."""

from __future__ import annotations

import signal
import time
from typing import Any

import pytest

from fleetcraft.spool.requests import DRAIN, STOP, ask
from tests.support.lab import Lab
from tests.support.waiting import wait_for

# Saves what it has on USR1 and asks to be resumed; the second time it goes on from there.
CHECKPOINT = """
if [ -e saved ]; then echo resumed >> trace; exit 0; fi
trap 'echo $FLEETCRAFT_ATTEMPT > saved; exit 75' USR1
echo ready >> trace
while :; do sleep 0.02; done
"""
# Takes its time after TERM, then is done.
SLOW_TO_END = "trap 'sleep 1.2; echo saved > saved; exit 0' TERM; echo ready > trace; while :; do sleep 0.02; done"


def ready(lab: Lab) -> None:
    wait_for((lab.folder / "trace").exists, "the task is ready", seen=lab.picture)


def test_a_drained_task_saves_its_state_and_resumes_elsewhere_uncharged(lab: Lab):
    lab.enqueue(
        [{"name": "long", "command": ["sh", "-c", CHECKPOINT], "checkpoint_signal": "USR1", "checkpoint_grace": "20s"}]
    )
    first = lab.worker()
    ready(lab)
    first.send(signal.SIGTERM)
    assert first.wait() == 0, first.said()
    assert (lab.folder / "saved").read_text() == "1\n"
    lost = lab.receipts("long")[0]
    assert (lost["o"], lost["cause"], lost["exit"]) == ("lost", "checkpointed", 75)
    assert [(token.form, token.attempt) for token in lab.tokens()] == [("", 2)]
    lab.drain()
    verdict = lab.verdict("long")
    assert (verdict.state, verdict.attempt, verdict.failures, verdict.losses) == ("succeeded", 2, 0, 0)
    assert (lab.folder / "trace").read_text() == "ready\nresumed\n"


@pytest.mark.parametrize(("more", "cause"), (({}, "drained"), ({"SLURM_JOB_ID": "77"}, "preempted")))
def test_a_task_without_a_checkpoint_goes_back_as_lost_not_failed(lab: Lab, more: dict[str, str], cause: str):
    lab.enqueue([{"name": "long", "command": ["sh", "-c", "echo ready > trace; exec sleep 300"]}])
    worker = lab.worker(env=more)
    ready(lab)
    worker.send(signal.SIGTERM)
    assert worker.wait() == 0, worker.said()
    receipt = lab.receipts("long")[0]
    assert (receipt["o"], receipt["cause"], receipt["signal"]) == ("lost", cause, signal.SIGTERM)
    assert "final" not in receipt
    assert [(token.form, token.attempt) for token in lab.tokens()] == [("", 2)]


def test_the_grace_is_the_tasks_own_and_a_second_signal_does_not_shorten_it(lab: Lab):
    lab.enqueue([{"name": "slow", "command": ["sh", "-c", SLOW_TO_END], "checkpoint_grace": "20s"}])
    worker = lab.worker(kill_grace_s=0.2)
    life = lab.life_of(worker)
    ready(lab)
    worker.send(signal.SIGTERM)
    wait_for(lambda: lab.heartbeat(life)["state"] == "draining", "the drain begins")
    worker.send(signal.SIGTERM)
    assert worker.wait() == 0, worker.said()
    assert (lab.folder / "saved").exists()
    assert lab.counts() == {"succeeded": 1}
    assert [record["name"] for record in lab.records(life) if record.get("what") == "signal"] == ["SIGTERM"] * 2


def test_a_third_signal_ends_the_grace(lab: Lab):
    stubborn = "trap '' TERM; echo ready > trace; while :; do sleep 0.02; done"
    lab.enqueue([{"name": "stubborn", "command": ["sh", "-c", stubborn], "checkpoint_grace": "5m"}])
    worker = lab.worker()
    life = lab.life_of(worker)
    ready(lab)
    worker.send(signal.SIGTERM)
    wait_for(lambda: _heard(lab, life) == 1, "the first signal was heard")
    worker.send(signal.SIGTERM)
    wait_for(lambda: _heard(lab, life) == 2, "the second signal was heard")
    assert worker.alive
    worker.send(signal.SIGTERM)
    assert worker.wait(20) == 0, worker.said()
    assert lab.receipts("stubborn")[0]["signal"] == signal.SIGKILL
    assert lab.outcomes("stubborn") == ["lost"]


def _heard(lab: Lab, life: str) -> int:
    return sum(record.get("what") == "signal" for record in lab.records(life))


def test_a_deadline_drains_in_time_and_says_so_to_the_task(lab: Lab):
    shell = (
        "echo $FLEETCRAFT_DEADLINE > deadline; trap 'exit 75' USR1; echo ready > trace; while :; do sleep 0.02; done"
    )
    lab.enqueue([{"name": "long", "command": ["sh", "-c", shell], "checkpoint_signal": "USR1"}])
    deadline_utc = time.time() + 12.0
    worker = lab.worker(deadline_utc=deadline_utc, drain_before_s=7.0)
    ready(lab)
    assert worker.wait(30) == 0
    assert time.time() < deadline_utc
    assert float((lab.folder / "deadline").read_text()) == round(deadline_utc)
    receipt = lab.receipts("long")[0]
    assert (receipt["o"], receipt["cause"]) == ("lost", "checkpointed")


def test_a_task_that_needs_more_time_than_is_left_is_not_started(lab: Lab):
    lab.enqueue(
        [{"name": "short", "command": ["true"], "needs": "1s"}, {"name": "long", "command": ["true"], "needs": "1h"}]
    )
    lab.drain(deadline_utc=time.time() + 600.0, drain_before_s=120.0)
    assert lab.counts() == {"succeeded": 1}
    assert lab.state("short") == "succeeded"
    assert lab.receipts("long") == []
    lab.drain()
    assert lab.counts() == {"succeeded": 2}


def test_a_drain_asked_for_lets_running_tasks_finish_and_returns_the_rest(lab: Lab):
    lab.enqueue(
        [{"name": "one", "command": ["sh", "-c", "echo ready > trace; while [ ! -e go ]; do sleep 0.02; done"]}]
    )
    lab.enqueue([{"name": f"later{number}", "command": ["true"]} for number in range(5)], priority=1)
    worker = lab.worker(cpus=1)
    life = lab.life_of(worker)
    ready(lab)
    ask(lab.spool, DRAIN, lives=[life])
    wait_for(
        lambda: lab.heartbeat(life).get("state") == "draining", "the drain begins", seen=lambda: lab.heartbeat(life)
    )
    (lab.folder / "go").touch()
    assert worker.wait() == 0
    assert lab.counts() == {"succeeded": 1}
    assert sum(token.count for token in lab.tokens() if token.form == "") == 5


@pytest.mark.parametrize("how", ("signal", "deadline"))
def test_a_drain_that_waits_for_tasks_still_hears_that_the_node_goes(lab: Lab, how: str):
    shell = "trap 'exit 75' USR1; echo ready > trace; while :; do sleep 0.02; done"
    lab.enqueue([{"name": "long", "command": ["sh", "-c", shell], "checkpoint_signal": "USR1"}])
    options: dict[str, Any] = {"deadline_utc": time.time() + 8.0, "drain_before_s": 3.0} if how == "deadline" else {}
    worker = lab.worker(**options)
    life = lab.life_of(worker)
    ready(lab)
    ask(lab.spool, DRAIN, lives=[life])
    wait_for(
        lambda: lab.heartbeat(life).get("state") == "draining", "the drain begins", seen=lambda: lab.heartbeat(life)
    )
    if how == "signal":
        worker.send(signal.SIGTERM)
    assert worker.wait(30) == 0
    receipt = lab.receipts("long")[0]
    assert (receipt["o"], receipt["cause"]) == ("lost", "checkpointed")


def test_a_stopped_spool_starts_nothing(lab: Lab):
    lab.enqueue([{"name": "one", "command": ["true"]}])
    ask(lab.spool, STOP, reason="maintenance")
    worker = lab.drain(idle_exit_s=None)
    assert "maintenance" in worker.said()
    assert lab.counts() == {}


@pytest.mark.slow
def test_term_under_heavy_load_gives_everything_back_and_leaves_nothing(lab: Lab):
    tasks = [
        {"name": f"t{number}", "command": ["sh", "-c", "sleep 0.01 & sleep 0.02; exit 0"]} for number in range(3000)
    ]
    lab.enqueue(tasks)
    workers = [lab.worker(cpus=4) for _ in range(3)]
    lab.wait_until_ended(150)
    for worker in workers:
        worker.send(signal.SIGTERM)
    assert [worker.wait(30) for worker in workers] == [0, 0, 0]
    assert lab.strays() == []
    ended = sum(lab.counts().values())
    tokens = lab.tokens()
    assert {token.form for token in tokens} == {""}
    assert sum(token.count for token in tokens) == 3000 - ended
    assert lab.counts() == {"succeeded": ended}
    assert {lab.life_state(life) for life in lab.lives()} == {"dead"}
