"""The state words, decisions and clocks: few, fixed, and told apart."""

from __future__ import annotations

import time

import pytest

from fleetcraft.core.clock import SystemClock, stamp_utc
from fleetcraft.core.decision import Decision
from fleetcraft.core.states import LossCause, Outcome, TaskState, WorkerState
from fleetcraft.testing.clock import ManualClock


def test_state_words_are_those_of_the_table():
    assert [state.value for state in TaskState] == [
        "held", "blocked", "waiting", "claimed", "running", "succeeded", "failed", "quarantined", "cancelled",
    ]  # fmt: skip
    assert [outcome.value for outcome in Outcome] == [
        "succeeded", "failed", "timeout", "out_of_memory", "output_invalid", "lost", "abandoned", "cancelled",
        "duplicate",
    ]  # fmt: skip
    assert [cause.value for cause in LossCause] == [
        "worker_gone", "node_gone", "walltime", "preempted", "drained", "checkpointed", "black_hole",
    ]  # fmt: skip
    assert {state.value for state in WorkerState} == {
        "starting", "up", "draining", "storage_full", "stopped", "stale", "lost",
    }  # fmt: skip


def test_what_is_ended_needs_a_person_to_go_on():
    assert {state for state in TaskState if state.ended} == {
        TaskState.SUCCEEDED, TaskState.FAILED, TaskState.QUARANTINED, TaskState.CANCELLED,
    }  # fmt: skip


@pytest.mark.parametrize("cause", LossCause)
def test_only_a_vanished_worker_says_something_about_the_task(cause):
    assert cause.explained == (cause not in (LossCause.WORKER_GONE, LossCause.NODE_GONE))


def test_a_decision_carries_its_reason_and_evidence():
    refused = Decision.refuse("the login node is busy", load=31.5)
    assert (refused.allowed, refused.reason, refused.evidence) == (False, "the login node is busy", {"load": 31.5})
    assert Decision.allow().as_json() == {"allowed": True, "reason": "", "evidence": {}}
    assert refused.as_json()["evidence"] == {"load": 31.5}


def test_the_manual_clock_moves_only_by_hand_and_tells_sleep_from_jumps():
    clock = ManualClock()
    before = (clock.utc(), clock.mono(), clock.boot())
    assert (clock.utc(), clock.mono(), clock.boot()) == before
    clock.advance(5)
    clock.jump_utc(-3600)
    clock.suspend(100)
    assert (clock.utc() - before[0], clock.mono() - before[1], clock.boot() - before[2]) == (-3495, 5, 105)


def test_the_system_clock_reads_three_clocks():
    clock = SystemClock()
    assert abs(clock.utc() - time.time()) < 60
    first, second = clock.mono(), clock.mono()
    assert first <= second
    assert clock.boot() >= clock.mono() - 1
    assert stamp_utc(1.23456) == 1.235
