"""A wall clock that jumps, forward or back, changes what records say about time, and nothing else."""

from __future__ import annotations

import signal
from functools import partial

import pytest

from tests.support.clocks import set_jump
from tests.support.lab import Lab
from tests.support.waiting import wait_for

YEAR_S = 365 * 86_400.0
UNTIL_GO = ["sh", "-c", "while [ ! -e go ]; do sleep 0.02; done"]


@pytest.mark.parametrize("jump_s", (YEAR_S, -YEAR_S))
def test_nobody_is_taken_for_dead_by_a_clock(lab: Lab, jump_s: float):
    clock = str(lab.folder / "clock")
    set_jump(clock, 0.0)
    lab.enqueue(
        [
            {"name": "slow", "command": UNTIL_GO},
            *({"name": f"t{number}", "command": ["sleep", "0.05"]} for number in range(20)),
        ]
    )
    far = lab.worker(node="far", clock_file=clock, lease_s=3.0, idle_exit_s=None)
    near = lab.worker(lease_s=3.0, idle_exit_s=None)
    lab.wait_running("slow")
    lives = [lab.life_of(far), lab.life_of(near)]
    sequences = [lab.heartbeat(life).get("sequence", 0) for life in lives]
    set_jump(clock, jump_s)
    # Long enough for both to beat, to look after the other, and for a wrong lease to have run out.
    for life, before in zip(lives, sequences, strict=True):
        wait_for(partial(has_beaten, lab, life, before + 35), "both go on", seen=partial(lab.heartbeat, life))
    assert [lab.life_state(life) for life in lives] == ["live", "live"]
    (lab.folder / "go").touch()
    lab.wait_until_ended(21)
    for worker in (far, near):
        worker.send(signal.SIGTERM)
        assert worker.wait() == 0, worker.said()
    assert lab.counts() == {"succeeded": 21}
    assert not [record for record in lab.records() if record["t"] == "lost"]


def has_beaten(lab: Lab, life: str, sequence: int) -> bool:
    return bool(lab.heartbeat(life)["sequence"] > sequence)


def test_timeouts_backoffs_and_durations_do_not_follow_the_wall_clock(lab: Lab):
    clock = str(lab.folder / "clock")
    set_jump(clock, 0.0)
    script = "test -e tried || { touch tried; exit 1; }"
    lab.enqueue(
        [
            {"name": "slow", "command": UNTIL_GO, "timeout": "1h"},
            {"name": "retried", "command": ["sh", "-c", script], "retries": 1, "backoff": "4s"},
        ]
    )
    worker = lab.worker(clock_file=clock)
    wait_for(lambda: lab.outcomes("retried") == ["failed"], "the first attempt has failed")
    set_jump(clock, YEAR_S)
    wait_for(lambda: lab.outcomes("retried") == ["failed", "succeeded"], "the second attempt")
    set_jump(clock, -YEAR_S)
    (lab.folder / "go").touch()
    assert worker.wait() == 0
    assert lab.counts() == {"succeeded": 2}
    assert 0 < lab.receipts("slow")[0]["wall"] < 60
    assert lab.verdict("slow").timeouts == 0


def test_a_deadline_is_a_distance_once_the_worker_has_begun(lab: Lab):
    clock = str(lab.folder / "clock")
    set_jump(clock, 0.0)
    lab.enqueue([{"name": "slow", "command": UNTIL_GO}])
    worker = lab.worker(clock_file=clock, deadline_utc=lab.spool.clock.utc() + 3600.0, drain_before_s=60.0)
    life = lab.life_of(worker)
    lab.wait_running("slow")
    set_jump(clock, YEAR_S)
    sequence = lab.heartbeat(life)["sequence"]
    wait_for(lambda: lab.heartbeat(life)["sequence"] > sequence + 3, "it goes on")
    assert lab.heartbeat(life)["state"] == "up"
    (lab.folder / "go").touch()
    assert worker.wait() == 0
    assert lab.counts() == {"succeeded": 1}
