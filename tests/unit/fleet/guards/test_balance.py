from __future__ import annotations

from typing import Any

import pytest

from fleetcraft.core.states import JobState
from fleetcraft.fleet.guards.balance import Balance, Charges, Promises, decide_balance, price, promises
from fleetcraft.fleet.guards.burn import decide_burn
from fleetcraft.schedulers.api import JobRef, JobRequest, JobView, Limits, PartitionLimits

CHARGES = Charges(rate=4.0, rates={"gh": 4.0, "dev": 1.0}, floor=100.0, burn_stop=20.0)
REQUEST = JobRequest(token="fcaaaaaaaaaa", name="f", script="", nodes=8, time_limit_s=12 * 3600, partition="gh")


def job(number, **changes):
    values: dict[str, Any] = {
        "state": JobState.PENDING,
        "raw_state": "PD",
        "partition": "gh",
        "node_count": 2,
        "time_limit_s": 3600.0,
    }
    return JobView(ref=JobRef(id=str(number)), **(values | changes))


def balance(total, **changes):
    return Balance(total=total, **changes)


def test_a_request_costs_nodes_times_hours_times_rate():
    assert price(REQUEST, CHARGES) == 8 * 12 * 4


def test_it_is_allowed_as_long_as_the_floor_is_kept_to_the_last_unit():
    assert decide_balance(REQUEST, CHARGES, balance(484.0), Promises()).allowed
    refused = decide_balance(REQUEST, CHARGES, balance(483.9), Promises())
    assert not refused.allowed
    assert "below the floor of 100.0" in refused.reason
    assert refused.evidence["left"] == pytest.approx(99.9)


def test_what_waits_and_what_runs_is_taken_off_with_all_of_its_time():
    running = job(2, state=JobState.RUNNING, node_count=1, time_limit_s=7200.0, start_utc=0.0, end_utc=7200.0)
    promised = promises([job(1), running, job(3, state=JobState.DONE)], REQUEST, CHARGES, None)
    assert [(item.job, item.units, item.running) for item in promised.items] == [("1", 8.0, False), ("2", 8.0, True)]
    decision = decide_balance(REQUEST, CHARGES, balance(499.0), promised)
    assert not decision.allowed
    assert decision.evidence["reserved"] == 16.0
    assert decide_balance(REQUEST, CHARGES, balance(500.0), promised).allowed


def test_a_balance_that_has_running_jobs_taken_off_counts_only_waiting_ones():
    promised = promises([job(1), job(2, state=JobState.RUNNING)], REQUEST, CHARGES, None)
    assert decide_balance(REQUEST, CHARGES, balance(492.0, includes_running=True), promised).allowed
    assert not decide_balance(REQUEST, CHARGES, balance(492.0), promised).allowed


def test_a_waiting_job_with_an_estimated_start_is_not_running():
    assert not promises([job(1, start_utc=5.0)], REQUEST, CHARGES, None).items[0].running


def test_new_work_stops_at_the_burn_stop():
    decision = decide_balance(REQUEST, CHARGES, balance(20.0), Promises())
    assert not decision.allowed
    assert "new work stops at 20.0" in decision.reason


@pytest.mark.parametrize(
    ("told", "promised", "word"),
    (
        (Balance(total=None, problem="`sbalance` timed out"), Promises(), "timed out"),
        (Balance(total=9e9, unit="GPUh"), Promises(), "the balance is in GPUh, the rate in SU"),
        (Balance(total=9e9), Promises(problem="the time limit of job 7 is not known"), "job 7"),
    ),
)
def test_every_missing_number_refuses_with_its_reason(told, promised, word):
    decision = decide_balance(REQUEST, CHARGES, told, promised)
    assert not decision.allowed
    assert word in decision.reason


def test_without_a_rate_or_a_time_limit_nothing_is_submitted():
    assert "su_rate" in decide_balance(REQUEST, Charges(), balance(9e9), Promises()).reason
    endless = JobRequest(token="fcaaaaaaaaaa", name="f", script="", partition="gh")
    assert not decide_balance(endless, CHARGES, balance(9e9), Promises()).allowed


@pytest.mark.parametrize("changes", ({"time_limit_s": None}, {"node_count": None}, {"partition": "foreign"}))
def test_a_job_whose_promise_cannot_be_computed_is_named(changes):
    promised = promises([job(7, **changes)], REQUEST, CHARGES, None)
    assert "job 7" in promised.problem


def test_the_partitions_limit_stands_in_for_a_job_without_one():
    limits = Limits(at_utc=0.0, partitions=(PartitionLimits(name="gh", time_limit_s=7200.0),))
    assert promises([job(7, time_limit_s=None)], REQUEST, CHARGES, limits).items[0].units == 16.0


def test_a_running_fleet_is_let_go_at_the_burn_stop_and_only_by_a_balance_that_was_read():
    assert not decide_burn(CHARGES, balance(20.0)).allowed
    assert decide_burn(CHARGES, balance(20.1)).allowed
    assert decide_burn(CHARGES, Balance(total=None, problem="timed out")).allowed
    assert decide_burn(CHARGES, balance(1.0, unit="other")).allowed
    assert decide_burn(Charges(rate=1.0), balance(0.0)).allowed
