from __future__ import annotations

import pytest

from fleetcraft.fleet.guards.cap import Spending, decide_cap
from fleetcraft.fleet.guards.once import OnceEvidence, decide_once
from fleetcraft.fleet.guards.poll import PollEvidence, decide_poll, tell_poll


def test_the_first_submission_of_a_pass_is_allowed():
    assert decide_once(OnceEvidence(last_submitted_utc=90.0), 100.0, 10.0).allowed


@pytest.mark.parametrize(
    ("evidence", "word"),
    (
        (OnceEvidence(submitted_this_pass=1), "this pass"),
        (OnceEvidence(unresolved=("fcaaaaaaaaaa",)), "fcaaaaaaaaaa"),
        (OnceEvidence(last_submitted_utc=90.1), "9.9 s ago, and 10 s are kept between two; submit again in 1 s"),
        (OnceEvidence(problem="record 7 is damaged"), "record 7"),
    ),
)
def test_a_second_one_or_one_beside_an_open_one_is_refused(evidence, word):
    decision = decide_once(evidence, 100.0, 10.0)
    assert not decision.allowed
    assert word in decision.reason


def test_a_pause_that_is_almost_over_is_never_told_as_over():
    decision = decide_once(OnceEvidence(last_submitted_utc=98.99), 99.98, 1.0)
    assert "0.9 s ago, and 1 s are kept" in decision.reason
    assert decision.evidence["wait_s"] == pytest.approx(0.01)


def test_a_stamp_from_the_future_of_another_clock_blocks_nothing():
    assert decide_once(OnceEvidence(last_submitted_utc=5000.0), 100.0, 10.0).allowed


@pytest.mark.parametrize(
    ("last", "took", "floor", "now", "allowed"),
    (
        (None, 0.0, 10.0, 0.0, True),
        (100.0, 0.0, 1.0, 109.9, False),
        (100.0, 0.0, 1.0, 110.0, True),
        (100.0, 0.0, 30.0, 129.0, False),
        (100.0, 8.0, 10.0, 139.0, False),
        (100.0, 8.0, 10.0, 140.0, True),
        (500.0, 0.0, 10.0, 100.0, True),
    ),
)
def test_questions_keep_the_floor_of_ten_seconds_the_sites_and_five_times_the_last_answer(
    last, took, floor, now, allowed
):
    decision = decide_poll(PollEvidence(last_asked_utc=last, last_took_s=took), now, floor)
    assert decision.allowed is allowed


def test_a_refused_question_says_when_the_next_is_due():
    assert decide_poll(PollEvidence(last_asked_utc=100.0), 103.0).evidence["next_utc"] == 110.0


def test_a_submission_is_not_held_up_by_the_pace_only_by_a_record_that_cannot_be_kept():
    assert tell_poll(PollEvidence(last_asked_utc=100.0), 101.0).allowed
    assert not tell_poll(PollEvidence(problem="read-only"), 101.0).allowed


def test_a_fleet_without_caps_and_one_exactly_at_its_cap_are_allowed():
    assert decide_cap((Spending(what="GPU-hours", cap=None, spent=1e9, wanted=1e9),)).allowed
    assert decide_cap((Spending(what="GPU-hours", cap=100.0, spent=50.0, promised=30.0, wanted=20.0),)).allowed


@pytest.mark.parametrize(
    "spending",
    (
        Spending(what="GPU-hours", cap=100.0, spent=50.0, promised=30.0, wanted=20.1),
        Spending(what="GPU-hours", cap=100.0, spent=None, wanted=0.0),
        Spending(what="GPU-hours", cap=100.0, promised=None, wanted=0.0),
        Spending(what="GPU-hours", cap=100.0, wanted=None),
    ),
)
def test_above_the_cap_or_with_a_number_missing_it_is_refused(spending):
    decision = decide_cap((Spending(what="node-hours", cap=None), spending))
    assert not decision.allowed
    assert "GPU-hours" in decision.reason
