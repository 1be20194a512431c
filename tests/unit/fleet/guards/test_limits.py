from __future__ import annotations

from dataclasses import replace

import pytest

from fleetcraft.core.states import JobState
from fleetcraft.fleet.guards.limits import decide_limits
from fleetcraft.schedulers.api import AccountLimits, JobRef, JobRequest, JobView, Limits, PartitionLimits

REQUEST = JobRequest(
    token="fcaaaaaaaaaa", name="f", script="", nodes=4, gpus_per_node=2, time_limit_s=3600.0, partition="gpu",
    account="lab", qos="normal",
)  # fmt: skip
PARTITION = PartitionLimits(name="gpu", time_limit_s=7200.0, max_nodes=8)


def site(*accounts, **changes):
    return Limits(at_utc=0.0, partitions=(PARTITION,), accounts=accounts, **changes)


def job(number, state=JobState.RUNNING, **changes):
    return JobView(ref=JobRef(id=str(number)), state=state, raw_state="", **({"node_count": 4, "gpus": 8} | changes))


@pytest.mark.parametrize(
    ("limits", "changes", "mine", "word"),
    (
        (site(), {"nodes": 9}, [], "nodes per job of partition gpu is 8, 9 wanted"),
        (site(), {"time_limit_s": 7201.0}, [], "time limit of partition gpu is 2h00m, 2h00m wanted"),
        (site(AccountLimits(where="QOS normal", max_wall_s=60.0)), {}, [], "time limit of QOS normal is 1m00s"),
        (site(AccountLimits(where="association lab/me", max_nodes_per_job=3)), {}, [], "nodes per job of association"),
        (site(AccountLimits(where="QOS normal", max_submit=2)), {}, [job(1), job(2, JobState.PENDING)], "submitted"),
        (site(AccountLimits(where="QOS normal", max_nodes=3)), {}, [], "nodes at once of QOS normal is 3"),
        (site(AccountLimits(where="QOS normal", max_gpus=7)), {}, [], "GPUs at once of QOS normal is 7"),
        (site(AccountLimits(where="association lab/me", gpu_minutes_left=479.0)), {}, [], "GPU minutes"),
        (site(max_array_size=11), {"array": (0, 11)}, [], "array index of the cluster is 10"),
        (site(max_array_tasks=2), {"array": (0, 1, 2)}, [], "tasks of one array"),
    ),
)
def test_each_limit_refuses_with_its_name_value_and_what_is_left(limits, changes, mine, word):
    decision = decide_limits(replace(REQUEST, **changes), limits, mine)
    assert not decision.allowed
    assert word in decision.reason
    assert any(entry["wanted"] > entry["left"] for entry in decision.evidence["limits"])


@pytest.mark.parametrize(
    ("limits", "changes", "mine"),
    (
        (site(), {"nodes": 8, "time_limit_s": 7200.0}, []),
        (site(AccountLimits(where="QOS normal", max_submit=2)), {}, [job(1), job(2, JobState.DONE)]),
        (site(AccountLimits(where="association lab/me", gpu_minutes_left=480.0)), {}, []),
        (site(AccountLimits(where="QOS debug", max_wall_s=60.0)), {}, []),
        (site(AccountLimits(where="association other/me", max_submit=0)), {}, []),
        (site(max_array_size=11, max_array_tasks=2), {"array": (0, 10)}, []),
    ),
)
def test_exactly_at_the_limit_and_under_another_ones_limit_it_is_allowed(limits, changes, mine):
    assert decide_limits(replace(REQUEST, **changes), limits, mine).allowed


@pytest.mark.parametrize(
    "account",
    (
        AccountLimits(where="QOS normal", max_jobs=1),
        AccountLimits(where="QOS normal", max_nodes=7),
        AccountLimits(where="QOS normal", max_gpus=15),
    ),
)
def test_a_limit_on_what_runs_at_once_only_makes_it_wait_and_says_so(account):
    decision = decide_limits(REQUEST, site(account), [job(1)])
    assert decision.allowed
    assert decision.evidence["waits"] is True
    assert "it will wait" in decision.reason


def test_gpus_that_come_with_the_nodes_count_although_none_are_asked_for():
    account = AccountLimits(where="QOS normal", max_gpus=7)
    assert decide_limits(replace(REQUEST, gpus_per_node=0), site(account), []).allowed
    assert not decide_limits(replace(REQUEST, gpus_per_node=0), site(account), [], gpus=8).allowed


def test_without_a_qos_named_the_limits_of_any_may_hold():
    account = AccountLimits(where="QOS debug", max_wall_s=60.0)
    assert not decide_limits(replace(REQUEST, qos=None), site(account), []).allowed


def test_no_answer_refuses_and_unknown_jobs_refuse():
    silent = Limits(at_utc=0.0, answered=False, problems=("scontrol timed out",))
    assert "scontrol timed out" in decide_limits(REQUEST, silent, []).reason
    assert "own jobs" in decide_limits(REQUEST, site(), None).reason


def test_a_question_about_limits_that_has_no_answer_refuses_although_others_have():
    decision = decide_limits(REQUEST, site(problems=("the accounts were not told",)), [])
    assert not decision.allowed
    assert "the accounts were not told" in decision.reason


def test_a_site_without_accounting_has_no_such_limits_and_is_no_problem():
    assert decide_limits(REQUEST, site(has_accounting=False), []).allowed
