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
        (
            site(AccountLimits(where="QOS normal", qos="normal", max_wall_s=60.0)),
            {},
            [],
            "time limit of QOS normal is 1m00s",
        ),
        (
            site(AccountLimits(where="association lab/me", account="lab", max_nodes_per_job=3)),
            {},
            [],
            "nodes per job of association",
        ),
        (
            site(AccountLimits(where="QOS normal", qos="normal", max_submit=2)),
            {},
            [job(1), job(2, JobState.PENDING)],
            "submitted",
        ),
        (
            site(AccountLimits(where="QOS normal", qos="normal", max_nodes=3)),
            {},
            [],
            "nodes at once of QOS normal is 3",
        ),
        (site(AccountLimits(where="QOS normal", qos="normal", max_gpus=7)), {}, [], "GPUs at once of QOS normal is 7"),
        (site(AccountLimits(where="association lab/me", account="lab", gpu_minutes_left=479.0)), {}, [], "GPU minutes"),
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
        (site(AccountLimits(where="QOS normal", qos="normal", max_submit=2)), {}, [job(1), job(2, JobState.DONE)]),
        (site(AccountLimits(where="association lab/me", account="lab", gpu_minutes_left=480.0)), {}, []),
        (site(AccountLimits(where="QOS debug", qos="debug", max_wall_s=60.0)), {}, []),
        (site(AccountLimits(where="association other/me", account="other", max_submit=0)), {}, []),
        (site(AccountLimits(where="association lab/me in low", account="lab", partition="low", max_submit=0)), {}, []),
        (site(max_array_size=11, max_array_tasks=2), {"array": (0, 10)}, []),
    ),
)
def test_exactly_at_the_limit_and_under_another_ones_limit_it_is_allowed(limits, changes, mine):
    assert decide_limits(replace(REQUEST, **changes), limits, mine).allowed


@pytest.mark.parametrize(
    "account",
    (
        AccountLimits(where="QOS normal", qos="normal", max_jobs=1),
        AccountLimits(where="QOS normal", qos="normal", max_nodes=7),
        AccountLimits(where="QOS normal", qos="normal", max_gpus=15),
    ),
)
def test_a_limit_on_what_runs_at_once_only_makes_it_wait_and_says_so(account):
    decision = decide_limits(REQUEST, site(account), [job(1)])
    assert decision.allowed
    assert decision.evidence["waits"] is True
    assert "it will wait" in decision.reason


def test_gpus_that_come_with_the_nodes_count_although_none_are_asked_for():
    account = AccountLimits(where="QOS normal", qos="normal", max_gpus=7)
    assert decide_limits(replace(REQUEST, gpus_per_node=0), site(account), []).allowed
    assert not decide_limits(replace(REQUEST, gpus_per_node=0), site(account), [], gpus=8).allowed


def test_without_a_qos_named_the_limits_of_any_may_hold():
    account = AccountLimits(where="QOS debug", qos="debug", max_wall_s=60.0)
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


QOS = AccountLimits(where="QOS normal", qos="normal", max_submit=1, max_jobs=1, max_nodes=7, max_gpus=15)
ASSOCIATION = AccountLimits(where="association lab/me", account="lab", max_submit=1, max_jobs=1, max_nodes=7)
IN_GPU = AccountLimits(where="association lab/me in gpu", account="lab", partition="gpu", max_submit=1, max_nodes=7)


@pytest.mark.parametrize(
    ("account", "changes", "counts"),
    (
        (QOS, {"qos": "normal"}, True),
        (QOS, {"qos": "Normal"}, True),
        (QOS, {}, True),  # not told
        (QOS, {"qos": "debug"}, False),
        (QOS, {"qos": "debug", "account": "lab", "partition": "gpu"}, False),
        (ASSOCIATION, {"account": "lab", "qos": "debug"}, True),
        (ASSOCIATION, {}, True),
        (ASSOCIATION, {"account": "other", "qos": "normal"}, False),
        (IN_GPU, {"account": "lab", "partition": "gpu"}, True),
        (IN_GPU, {"account": "lab", "partition": "low,gpu"}, True),
        (IN_GPU, {"account": "lab"}, True),
        (IN_GPU, {"partition": "gpu"}, True),
        (IN_GPU, {"account": "lab", "partition": "low"}, False),
        (IN_GPU, {"account": "other", "partition": "gpu"}, False),
    ),
)
def test_only_jobs_of_a_qos_or_association_count_against_it_and_those_that_may_be(account, changes, counts):
    decision = decide_limits(REQUEST, site(account), [job(1, **changes)])
    assert decision.allowed is not counts
    used = {entry["limit"]: entry["used"] for entry in decision.evidence["limits"] if entry["where"] == account.where}
    known = {"submitted jobs": 1, "running jobs": 1, "nodes at once": 4, "GPUs at once": 8}
    assert {name: used[name] for name in known if name in used} == {
        name: number if counts else 0 for name, number in known.items() if name in used
    }


def test_the_qos_of_a_partition_counts_every_job_in_it():
    limits = replace(site(QOS), partitions=(replace(PARTITION, qos="normal"), PartitionLimits(name="low")))
    assert not decide_limits(REQUEST, limits, [job(1, qos="debug", partition="gpu")]).allowed
    assert not decide_limits(REQUEST, limits, [job(1, qos="debug")]).allowed
    assert decide_limits(REQUEST, limits, [job(1, qos="debug", partition="low")]).allowed


@pytest.mark.parametrize("raw", ("COMPLETING", "NODE_FAIL", "STAGE_OUT"))
def test_a_job_that_is_ending_holds_nothing_of_any_limit(raw):
    decision = decide_limits(REQUEST, site(QOS), [replace(job(1, JobState.ENDING, qos="normal"), raw_state=raw)])
    assert decision.allowed
    assert decision.evidence["waits"] is False


@pytest.mark.parametrize(
    "state", (JobState.PENDING, JobState.HELD, JobState.BLOCKED, JobState.RUNNING, JobState.UNKNOWN)
)
def test_a_job_that_waits_runs_or_is_unknown_counts_as_submitted(state):
    account = AccountLimits(where="QOS normal", qos="normal", max_submit=1)
    assert not decide_limits(REQUEST, site(account), [job(1, state, qos="normal")]).allowed
