"""`idle exit 0s`: a worker leaves with 0 as soon as nothing runs and nothing waits that it could ever run."""

from __future__ import annotations

import signal
import time

from tests.support.lab import Lab
from tests.support.waiting import wait_for


def test_an_empty_spool_needs_no_worker(lab: Lab):
    begun_s = time.monotonic()
    lab.drain()
    assert time.monotonic() - begun_s < 20.0


def test_failures_are_no_reason_to_end_with_an_error(lab: Lab):
    lab.enqueue([{"name": "bad", "command": ["false"]}, {"name": "good", "command": ["true"]}])
    lab.drain()
    assert lab.counts() == {"succeeded": 1, "failed": 1}


def test_work_for_gpus_holds_no_worker_without_one(lab: Lab):
    lab.enqueue([{"name": "gpu", "command": ["true"], "gpus": 1}, {"name": "many", "command": ["true"], "cpus": 64}])
    lab.enqueue([{"name": "cpu", "command": ["true"]}])
    lab.drain(cpus=2)
    assert lab.counts() == {"succeeded": 1}
    assert len(lab.tokens()) == 2
    lab.drain(cpus=64, gpus="simulated:1")
    assert lab.counts() == {"succeeded": 3}


def test_a_task_in_its_backoff_is_waited_for(lab: Lab):
    lab.enqueue(
        [
            {
                "name": "later",
                "command": ["sh", "-c", "test -e tried || { touch tried; exit 1; }"],
                "retries": 1,
                "backoff": "1.5s",
            }
        ]
    )
    lab.drain()
    assert lab.outcomes("later") == ["failed", "succeeded"]


def test_what_dead_workers_of_this_host_left_is_taken_over_first(lab: Lab):
    lab.enqueue([{"name": f"t{number}", "command": ["sleep", "0.05"]} for number in range(60)])
    dead = [lab.worker(cpus=2) for _ in range(3)]
    lab.wait_until_ended(6)
    for worker in dead:
        worker.kill()
    lab.drain()
    assert lab.counts() == {"succeeded": 60}
    assert lab.tokens() == []
    # One that was killed while it was being born has no state, and owned nothing.
    assert {lab.life_state(life) for life in lab.lives()} <= {"dead", None}


def test_work_that_another_worker_runs_is_not_waited_for(lab: Lab):
    lab.enqueue([{"name": "long", "command": ["sh", "-c", "while [ ! -e go ]; do sleep 0.02; done"]}])
    busy = lab.worker()
    lab.wait_running("long")
    lab.drain()
    assert busy.alive
    (lab.folder / "go").touch()
    assert busy.wait() == 0


def test_an_idle_worker_waits_as_long_as_it_was_told_and_takes_new_work(lab: Lab):
    worker = lab.worker(idle_exit_s=2.0)
    life = lab.life_of(worker)
    wait_for(lambda: lab.heartbeat(life).get("state") == "up", "the worker is up")
    asked_s = time.monotonic()
    lab.enqueue([{"name": "new", "command": ["true"]}])
    lab.wait_until_ended(1)
    assert worker.wait() == 0
    assert time.monotonic() - asked_s >= 2.0


def test_a_worker_that_only_polls_finds_new_work_too(lab: Lab):
    worker = lab.worker(idle_exit_s=None, watch="poll")
    life = lab.life_of(worker)
    wait_for(lambda: lab.heartbeat(life).get("state") == "up", "the worker is up")
    asked_s = time.monotonic()
    lab.enqueue([{"name": "new", "command": ["true"]}])
    lab.wait_until_ended(1)
    assert time.monotonic() - asked_s < 15.0
    worker.send(signal.SIGTERM)
    assert worker.wait() == 0


def test_a_worker_for_one_task_takes_one(lab: Lab):
    lab.enqueue([{"name": f"t{number}", "command": ["true"]} for number in range(5)])
    for done in (2, 4, 5):
        lab.drain(max_tasks=2)
        assert lab.counts() == {"succeeded": done}
    assert lab.tokens() == []


def test_an_idle_worker_uses_next_to_no_cpu(lab: Lab):
    worker = lab.worker(idle_exit_s=None, heartbeat_s=5.0)
    life = lab.life_of(worker)
    wait_for(lambda: lab.heartbeat(life).get("state") == "up", "the worker is up")
    begun_s, before_s = time.monotonic(), _cpu_s(worker.pid)
    wait_for(lambda: time.monotonic() - begun_s > 3.0, "three seconds of nothing")
    used_s = _cpu_s(worker.pid) - before_s
    worker.send(signal.SIGTERM)
    assert worker.wait() == 0
    assert used_s < 0.15, f"{used_s:.2f} s of CPU in 3 s"


def _cpu_s(pid: int) -> float:
    with open(f"/proc/{pid}/stat", encoding="ascii") as source:
        fields = source.read().rsplit(") ", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / 100
