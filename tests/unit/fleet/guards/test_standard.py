from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from fleetcraft.config.site import BalanceRules, LoginRules, Partition, ResolvedSite, SchedulerRules, SiteLimits
from fleetcraft.core.states import JobState
from fleetcraft.fleet import records as kinds
from fleetcraft.fleet.gate import Proposal
from fleetcraft.fleet.guards.login import LoginEvidence
from fleetcraft.fleet.guards.poll import PollEvidence
from fleetcraft.fleet.guards.standard import run_guards, standard_guards
from fleetcraft.fleet.records import Record
from fleetcraft.fleet.spec import spec_for
from fleetcraft.fleet.state import FleetState, fold
from fleetcraft.schedulers.api import JobRef, JobRequest, JobView, Limits, Observation, PartitionLimits
from fleetcraft.testing.clock import ManualClock
from fleetcraft.transports.api import Answer

NOW = 10_000.0
PARTITION = Partition(name="gh", gpus_per_node=4, max_time_s=7200.0, su_rate=2.0)
SITE = ResolvedSite(
    profile="here",
    source="test",
    partition=PARTITION,
    scheduler=SchedulerRules(gpus="node"),
    limits=SiteLimits(max_gpus=32),
    login=LoginRules(hosts=("login*",), stop_processes=40),
    balance=BalanceRules(provider="command", command=("tell",), floor=10.0),
)
LIMITS = Limits(at_utc=NOW, partitions=(PartitionLimits(name="gh", gpus_per_node=4, nodes=16),))
NEVER_ASKED = PollEvidence()
QUIET = LoginEvidence(host="login1", processes=3, threads=3, ssh=0, memory_bytes=1, ours=0)


CLOCK = ManualClock(utc_s=NOW)


class Host:
    name = "test"

    def __init__(self, out="1000"):
        self.out = out

    def run(self, argv, **settings):
        return Answer(argv=tuple(argv), code=0, out=self.out, err="", took_s=0.0)


def proposal(*, site=SITE, state=None, nodes=2, **changes):
    spec = spec_for("f", site, nodes=nodes, time_limit_s=3600.0, gpu_hour_cap=100.0)
    request = JobRequest(token="fcaaaaaaaaaa", name="f", script="", nodes=nodes, time_limit_s=3600.0, partition="gh")
    values: dict[str, Any] = {"limits": LIMITS, "mine": Observation(at_utc=NOW, jobs={})} | changes
    return Proposal(spec=spec, request=request, state=state or FleetState(), now_utc=NOW, **values)


def decide(proposed, *, out="1000", login=QUIET, poll=NEVER_ASKED):
    guards = standard_guards(Host(out), CLOCK, read_login=lambda: login, read_poll=lambda: poll)
    return dict(run_guards(guards, proposed))


def refused(decisions):
    return [name for name, decision in decisions.items() if not decision.allowed]


def test_every_guard_is_asked_in_a_fixed_order_and_all_may_allow():
    decisions = decide(proposal())
    assert list(decisions) == ["once", "poll", "login", "shape", "limits", "cap", "balance"]
    assert refused(decisions) == []
    assert decisions["balance"].evidence["cost"] == 4.0


def test_one_refusal_stops_none_of_the_others():
    decisions = decide(proposal(nodes=17), out="no idea", login=LoginEvidence(host="login1", problem="no /proc"))
    assert refused(decisions) == ["login", "shape", "limits", "balance"]


def test_unanswered_questions_refuse_everywhere_where_they_matter():
    silent = Observation(at_utc=NOW, jobs={}, answered=False)
    assert refused(decide(proposal(limits=None, mine=silent))) == ["shape", "limits", "balance"]
    assert refused(decide(proposal(mine=None))) == ["limits", "balance"]


def test_the_profiles_limits_stand_beside_the_schedulers():
    decisions = decide(proposal(nodes=9))
    assert refused(decisions) == ["limits"]
    assert "GPUs at once of profile here is 32" in decisions["limits"].reason


def test_a_shorter_time_in_the_profile_counts():
    site = replace(SITE, partition=replace(PARTITION, max_time_s=60.0))
    assert refused(decide(proposal(site=site))) == ["shape", "limits"]


def test_what_other_jobs_promise_is_taken_off_the_balance():
    job = JobView(
        ref=JobRef(id="1"), state=JobState.PENDING, raw_state="PD", partition="gh", node_count=10, time_limit_s=3600.0
    )
    decisions = decide(proposal(mine=Observation(at_utc=NOW, jobs={"1": job})), out="33.9")
    assert refused(decisions) == ["balance"]
    assert decisions["balance"].evidence["reserved"] == 20.0


def test_a_site_without_a_balance_is_not_asked_for_one():
    assert decide(proposal(site=replace(SITE, balance=BalanceRules())), out="nonsense")["balance"].allowed


def intent(number, at_utc):
    body = {"token": f"fcaaaaaaaaa{number}", "nodes": 2, "gpus_per_node": 4, "time_limit_s": 3600.0}
    return Record(number=number, kind=kinds.INTENT, at_utc=at_utc, body=body)


def test_an_intent_of_which_nobody_knows_the_end_stops_a_second_submission():
    decisions = decide(proposal(state=fold([intent(2, NOW - 500.0)])))
    assert refused(decisions) == ["once"]
    assert "fcaaaaaaaaa2" in decisions["once"].reason


def test_the_pause_between_submissions_counts_those_of_the_users_other_fleets():
    job = JobView(
        ref=JobRef(id="1"), state=JobState.PENDING, raw_state="PD", token="fcbbbbbbbbbb", submit_utc=NOW - 3.0,
        partition="gh", node_count=1, time_limit_s=60.0,
    )  # fmt: skip
    assert refused(decide(proposal(mine=Observation(at_utc=NOW, jobs={"1": job})))) == ["once"]


def test_the_cap_counts_what_live_jobs_may_still_use():
    rejected = Record(number=3, kind=kinds.REJECTED, at_utc=NOW, body={"token": "fcaaaaaaaaa2", "code": "qos"})
    taken = Record(
        number=3, kind=kinds.SUBMITTED, at_utc=NOW - 500.0, body={"token": "fcaaaaaaaaa2", "ref": {"id": "1"}}
    )
    old = intent(2, NOW - 500.0)
    assert refused(decide(proposal(state=fold([old, rejected])))) == []
    big = replace(old, body={**old.body, "nodes": 24})
    decisions = decide(proposal(state=fold([big, taken])))
    assert refused(decisions) == ["cap"]
    assert "of the cap of 100.0" in decisions["cap"].reason


def test_a_guard_that_breaks_has_refused():
    def broken():
        raise RuntimeError("no luck")

    guards = standard_guards(Host(), CLOCK, read_login=broken)
    decisions = dict(run_guards(guards, proposal()))
    assert refused(decisions) == ["login"]
    assert "no luck" in decisions["login"].reason


@pytest.mark.parametrize("name", ("once", "login", "shape", "limits", "cap", "balance"))
def test_every_decision_can_be_written_into_a_record(name):
    decision = decide(proposal())[name]
    assert json.loads(json.dumps(decision.as_json()))["allowed"] is True


class Silent:
    """A scheduler that counts the questions."""

    def __init__(self):
        self.questions = []

    def limits(self):
        self.questions.append("limits")
        return LIMITS

    def mine(self):
        self.questions.append("mine")
        return Observation(at_utc=NOW, jobs={})


def test_what_the_proposal_does_not_bring_is_asked_for_once_for_all_guards():
    scheduler: Any = Silent()
    guards = standard_guards(Host(), CLOCK, scheduler, read_login=lambda: QUIET)
    assert refused(dict(run_guards(guards, proposal(limits=None, mine=None)))) == []
    assert sorted(scheduler.questions) == ["limits", "mine"]
    run_guards(guards, proposal(limits=None, mine=None))
    assert sorted(scheduler.questions) == ["limits", "limits", "mine", "mine"]


def test_where_the_scheduler_has_no_way_to_tell_limits_the_profile_stands_in_and_only_there():
    mute = Limits(at_utc=NOW, answered=False, problems=("PSI/J does not tell a site's limits",))
    site = replace(SITE, scheduler=SchedulerRules(kind="psij", executor="pbs", gpus="node"))
    assert refused(decide(proposal(site=site, limits=mute))) == []
    assert refused(decide(proposal(site=site, limits=mute, nodes=9))) == ["limits"]
    short = replace(site, partition=replace(PARTITION, max_time_s=60.0))
    assert refused(decide(proposal(site=short, limits=mute))) == ["shape", "limits"]
    assert refused(decide(proposal(limits=mute))) == ["shape", "limits"]
