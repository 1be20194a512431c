"""Verdicts: what may be concluded, and what a view keeps of the things that nobody told again."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetcraft.core.states import JobState
from fleetcraft.schedulers.api import JobRef
from fleetcraft.schedulers.slurm_accounting import read_sacct
from fleetcraft.schedulers.slurm_rows import QUEUE_WIDE, read_squeue
from fleetcraft.schedulers.slurm_states import BASE_STATES, FLAG_STATES
from fleetcraft.schedulers.slurm_verdict import Evidence, ExitRecord, Policy, reconcile, view

_STATES = st.sampled_from((*BASE_STATES, *FLAG_STATES, "CANCELLED by 7", "WHO_KNOWS", "PENDING/JobHeldUser"))
_EVIDENCE = st.builds(
    Evidence,
    last=st.none() | _STATES | st.sampled_from(("LOST", "UNKNOWN")),
    queue=st.none() | _STATES,
    queue_answered=st.booleans(),
    account=st.none() | _STATES,
    account_answered=st.booleans(),
    has_accounting=st.booleans(),
    exit_record=st.none() | st.builds(ExitRecord, code=st.integers(0, 255)),
    age_s=st.none() | st.floats(0, 10_000),
    absent_s=st.none() | st.floats(0, 10_000),
    may_requeue=st.booleans(),
    polls_missing=st.integers(0, 9),
    restarts=st.none() | st.integers(0, 3),
)


@given(_EVIDENCE)
def test_a_verdict_is_never_an_end_by_silence(evidence):
    verdict = reconcile(evidence)
    assert reconcile(evidence) == verdict
    if verdict.terminal:
        assert verdict.job_state.ended
        assert verdict.state not in ("LOST", "UNKNOWN")
        assert verdict.outcome is not None
    elif verdict.job_state.ended:
        assert verdict.state == "LOST" or verdict.stale, "an end that is not certain is either lost or remembered"
    silent = not evidence.queue_answered and (evidence.account is None or not evidence.account_answered)
    if silent and evidence.last is None and evidence.account is None:
        assert not verdict.terminal
        assert verdict.stale


@given(_EVIDENCE)
def test_a_living_row_of_the_queue_outweighs_everything_else(evidence):
    verdict = reconcile(replace(evidence, queue="RUNNING", queue_answered=True))
    assert verdict.state == "RUNNING"
    assert verdict.job_state is JobState.RUNNING
    assert not verdict.terminal


@given(_EVIDENCE, st.sampled_from(("NODE_FAIL", "PREEMPTED", "BOOT_FAIL")), st.floats(0, 299))
def test_what_may_come_back_is_waited_for(evidence, state, absent_s):
    gone = replace(evidence, queue=None, queue_answered=True, account=state, absent_s=absent_s, may_requeue=True)
    assert not reconcile(gone).terminal
    assert reconcile(replace(gone, may_requeue=False)).terminal
    assert reconcile(replace(gone, absent_s=300.0)).terminal
    slow = Policy(requeue_delay_s=600.0)
    assert not reconcile(replace(gone, absent_s=500.0), slow).terminal


@pytest.mark.parametrize(
    ("record", "scheduler", "state", "job_state"),
    (
        (0, "OUT_OF_MEMORY", "COMPLETED", JobState.DONE),
        (0, "COMPLETED", "COMPLETED", JobState.DONE),
        (1, "COMPLETED", "FAILED", JobState.FAILED),
        (9, "OUT_OF_MEMORY", "OUT_OF_MEMORY", JobState.OUT_OF_MEMORY),
        (0, "TIMEOUT", "TIMEOUT", JobState.TIMEOUT),
        (143, "CANCELLED by 7", "CANCELLED", JobState.CANCELLED),
        (1, "DEADLINE", "DEADLINE", JobState.FAILED),
    ),
)
def test_the_own_record_beside_the_word_of_the_scheduler(record, scheduler, state, job_state):
    verdict = reconcile(Evidence(account=scheduler, exit_record=ExitRecord(code=record)))
    assert (verdict.state, verdict.job_state, verdict.exit_code) == (state, job_state, record)
    assert verdict.terminal


def test_a_lost_job_is_never_an_end_and_comes_back_when_it_is_seen():
    gone = Evidence(last="RUNNING", age_s=900, absent_s=900, polls_missing=5)
    lost = reconcile(gone)
    assert (lost.state, lost.job_state, lost.terminal) == ("LOST", JobState.LOST, False)
    assert reconcile(replace(gone, last="LOST")).state == "LOST"
    assert reconcile(replace(gone, last="LOST", queue="RUNNING")).state == "RUNNING"
    assert reconcile(replace(gone, last="LOST", queue_answered=False)).state == "LOST"
    assert reconcile(replace(gone, account_answered=False)).state == "UNKNOWN"
    assert reconcile(replace(gone, account_answered=False, has_accounting=False)).state == "LOST"


def test_reasons_make_a_waiting_job_held_or_blocked():
    assert reconcile(Evidence(queue="PENDING/JobHeldUser")).job_state is JobState.HELD
    assert reconcile(Evidence(queue="PENDING/PartitionTimeLimit")).job_state is JobState.BLOCKED
    assert reconcile(Evidence(queue="PENDING/DependencyNeverSatisfied")).job_state is JobState.BLOCKED
    assert reconcile(Evidence(queue="PENDING/Priority")).job_state is JobState.PENDING
    assert reconcile(Evidence(queue="REQUEUE_HOLD")).next == "scontrol release"


_RUNNING = (
    "75\x1fRUNNING\x1f1796080807\x1f1796080809\x1f1796081407\x1f10:00\x1fgpu\x1f2\x1fn[1-2]\x1fNone\x1fgres:gpu:2"
    "\x1f(null)\x1flab\x1fdebug\x1ffleetcraft:fcaaaaaaaaab\x1freal.fcaaaaaaaaab\n"
)
_ENDED = "75\x1f75\x1fFAILED\x1f9:0\x1f0:0\x1f1796080807\x1f1796080809\x1f1796081000\x1fn[1-2]\n"
_CANCELLED = "75\x1f75\x1fCANCELLED by 7\x1f0:0\x1f0:0\x1f1796080807\x1f1796080810\x1f1796080810\x1fNone assigned\n"


def test_a_view_keeps_what_was_known():
    ref = JobRef(id="75")
    row = read_squeue(_RUNNING, "", 0, fields=QUEUE_WIDE).of("75")
    assert row is not None
    first = view(ref, reconcile(Evidence(queue=row)), queue=row)
    assert (first.token, first.gpus, first.node_count, first.nodes) == ("fcaaaaaaaaab", 4, 2, ("n1", "n2"))
    assert (first.start_utc, first.end_utc, first.time_limit_s) == (1796080809.0, 1796081407.0, 600)
    assert (first.account, first.qos) == ("lab", "debug")
    account = read_sacct(_ENDED, "", 0).of("75")
    after = view(ref, reconcile(Evidence(last="RUNNING", account=account)), account=account, last=first)
    assert (after.state, after.exit_code, after.end_utc) == (JobState.FAILED, 9, 1796081000.0)
    assert (after.token, after.gpus, after.partition, after.nodes) == ("fcaaaaaaaaab", 4, "gpu", ("n1", "n2"))
    assert (after.account, after.qos) == ("lab", "debug")
    purged = view(ref, reconcile(Evidence(last=after.raw_state, age_s=1e6, polls_missing=9)), last=after)
    assert (purged.state, purged.exit_code, purged.source) == (JobState.FAILED, 9, "memory")
    stale = view(ref, reconcile(Evidence(last="RUNNING", queue_answered=False)), last=first)
    assert stale.stale
    assert stale.state is JobState.RUNNING


def test_a_job_that_never_had_a_node_has_no_start():
    account = read_sacct(_CANCELLED, "", 0).of("75")
    seen = view(JobRef(id="75"), reconcile(Evidence(account=account)), account=account)
    assert seen.state is JobState.CANCELLED
    assert seen.start_utc is None
    assert seen.end_utc == 1796080810.0


def test_restarts_are_counted_although_accounting_is_late():
    requeued = "75\x1f75\x1fREQUEUED\x1f0:0\x1f0:0\x1f1796080807\x1f1796080809\x1f1796081000\x1fn1\n"
    again = "75\x1f75\x1fPENDING\x1f0:0\x1f0:0\x1f1796081000\x1fUnknown\x1fUnknown\x1fNone assigned\n"
    late, known = read_sacct(requeued, "", 0).of("75"), read_sacct(again + requeued, "", 0).of("75")
    assert known is not None
    assert known.latest.state.state == "PENDING"
    for account in (late, known):
        seen = reconcile(Evidence(last="RUNNING", queue="PENDING/BeginTime", account=account))
        assert (seen.state, seen.restarts) == ("PENDING", 1)
        # Counted once, however often it is looked at.
        assert reconcile(Evidence(last="PENDING", queue="RUNNING", account=account, restarts=1)).restarts == 1
    assert reconcile(Evidence(last="RUNNING", queue="RUNNING")).restarts is None


@pytest.mark.parametrize(
    ("account", "said"),
    (
        ("CANCELLED by 0", "by an administrator"),
        ("CANCELLED by 1001", "with the id 1001"),
        ("CANCELLED", "without a user's name"),
    ),
)
def test_who_cancelled_it_is_told(account, said):
    for queue in (None, "CANCELLED"):
        assert said in reconcile(Evidence(queue=queue, account=account)).notes[-1]


def test_numbers_in_the_place_of_a_signal_are_none():
    for column, signal in (("0:11", 11), ("0:125", None), ("0:53", None), ("3:0", None)):
        row = _ENDED.replace("9:0", column)
        assert reconcile(Evidence(account=read_sacct(row, "", 0).of("75"))).signal == signal


def test_a_failure_without_code_or_signal_is_one_whose_code_was_not_told_yet():
    for column, code in (("0:0", None), ("7:0", 7)):
        verdict = reconcile(Evidence(queue="FAILED", account=read_sacct(_ENDED.replace("9:0", column), "", 0).of("75")))
        assert (verdict.job_state, verdict.exit_code) == (JobState.FAILED, code)
