"""Whose job a row speaks of, on the real cluster: refused submissions, elements without a record, ids given twice."""

from __future__ import annotations

import shutil

import pytest

from fleetcraft.core.states import JobState
from fleetcraft.schedulers.api import JobRef, JobRequest, SubmitOutcome
from fleetcraft.schedulers.slurm import SlurmScheduler
from fleetcraft.schedulers.slurm_verdict import Policy
from tests.cluster.policy import ClusterPolicy
from tests.cluster.slurm_cluster import SlurmCluster
from tests.conformance.schedulers.conftest import POLICY
from tests.conformance.schedulers.sites import LoginTransport, Meddling, new_token
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.needs_slurm, pytest.mark.slow, pytest.mark.timeout(120)]


@pytest.fixture
def cluster(slurm_cluster):
    yield slurm_cluster
    slurm_cluster.cancel_all()
    slurm_cluster.restore(deadline_s=60.0)


def opened(cluster, transport=None):
    return SlurmScheduler(transport or LoginTransport(cluster), policy=POLICY, settle_s=0.0)


def request(token, script="#!/bin/sh\nsleep 300\n", **wishes):
    return JobRequest(token=token, name="ids", script=script, **{"time_limit_s": 600.0, **wishes})


def rows_with(cluster, token):
    rows = cluster.run(["squeue", "-h", "-t", "all", "-o", "%i %T %j"], user="root").stdout.splitlines()
    return [tuple(row.split()[:2]) for row in rows if row.endswith(f".{token}")]


def test_after_a_refusal_the_corrected_request_is_submitted_exactly_once(cluster):
    transport = Meddling(LoginTransport(cluster))
    slurm, token = opened(cluster, transport), new_token()
    refused = slurm.submit(request(token, partition="gpu", gpus_per_node=99))
    assert refused.outcome is SubmitOutcome.REJECTED, refused
    trace = wait_for(lambda: rows_with(cluster, token), "the refused submission leaves a row", every_s=0.2)
    assert [state for _, state in trace] == ["FAILED"]
    wait_for(
        lambda: token in cluster.run(["sacct", "-X", "-n", "-P", "-o", "JobName,State"]).stdout,
        "and one in accounting",
        every_s=0.2,
    )
    for somebody in (slurm, opened(cluster)):
        seen = somebody.find(token)
        assert (seen.answered, dict(seen.jobs)) == (True, {})
    good = slurm.submit(request(token, partition="gpu", gpus_per_node=1, hold=True))
    assert good.outcome is SubmitOutcome.SUBMITTED, good
    again = opened(cluster, transport).submit(request(token, partition="gpu", gpus_per_node=1, hold=True))
    assert (again.outcome, again.ref) == (SubmitOutcome.FOUND, good.ref)
    assert transport.counts["sbatch"] == 2
    assert [job for job, state in rows_with(cluster, token) if state != "FAILED"] == [good.ref.id]


def test_elements_that_were_cancelled_while_they_waited_end_as_cancelled(cluster):
    slurm, late = opened(cluster), opened(cluster)
    ref = slurm.submit(request(new_token(), "#!/bin/sh\nsleep 300\n", array=tuple(range(6)), array_limit=1)).ref
    assert ref is not None
    elements = [JobRef(id=f"{ref.id}_{task}") for task in range(6)]
    first, others = elements[0], elements[1:]

    def states(refs, by=slurm):
        seen = by.observe(refs).jobs
        return {seen[str(one)].state if str(one) in seen else None for one in refs}

    wait_for(lambda: states([first]) == {JobState.RUNNING}, "the first element runs", every_s=0.2)
    assert states(others) == {JobState.PENDING}
    slurm.cancel(others[:2])
    slurm.cancel([ref])
    met = set()

    def ended():
        found = states(elements)
        met.update(found)
        return found == {JobState.CANCELLED}

    wait_for(ended, "all are cancelled", 60.0, lambda: states(elements), every_s=0.5)
    assert JobState.LOST not in met
    # Somebody who knew nothing of the array comes to the same end.
    wait_for(
        lambda: states(elements, late) == {JobState.CANCELLED},
        "they are cancelled for others too",
        seen=lambda: states(elements, late),
        every_s=0.5,
    )


def test_a_job_that_may_not_be_requeued_is_over_as_soon_as_its_node_is(cluster):
    patient = Policy(grace_s=8.0, min_polls=3, requeue_s=3600.0)
    slurm = SlurmScheduler(LoginTransport(cluster), policy=patient)
    ref = slurm.submit(request(new_token(), requeue=False)).ref
    assert ref is not None
    view = wait_for(
        lambda: next((seen for seen in slurm.observe([ref]).jobs.values() if seen.state is JobState.RUNNING), None),
        "it runs",
        every_s=0.2,
    )
    told, untold = (SlurmScheduler(LoginTransport(cluster), policy=patient) for _ in range(2))
    told.remember([view], may_requeue={str(ref): False})
    cluster.kill_node(view.nodes[0])
    wait_for(lambda: slurm.observe([ref]).jobs[str(ref)].state is JobState.LOST, "it is over", 60.0, every_s=0.5)
    assert told.observe([ref]).jobs[str(ref)].state is JobState.LOST
    # Nobody told this one, so that it waits for the job to come back.
    assert untold.observe([ref]).jobs[str(ref)].state is JobState.ENDING


def test_a_job_whose_id_was_given_to_another_is_never_shown_as_that_one():
    """A controller that comes back without its last state: what a kill within seconds of a submission leaves."""
    with SlurmCluster.start(ClusterPolicy()) as cluster:
        slurm, ours, other = opened(cluster), new_token(), new_token()
        saved = cluster.root / "state.saved"
        cluster.stop_controller()
        shutil.copytree(cluster.root / "state", saved)
        cluster.start_controller()
        ref = slurm.submit(request(ours, hold=True)).ref
        assert slurm.observe([ref]).jobs[str(ref)].token == ours
        cluster.kill_controller()
        shutil.rmtree(cluster.root / "state")
        shutil.copytree(saved, cluster.root / "state", copy_function=shutil.copy2)
        cluster.start_controller()
        stranger = opened(cluster)
        wait_for(lambda: stranger.mine().answered, "the controller is back", every_s=0.2)
        newer = stranger.submit(request(other)).ref
        assert newer == ref, "the controller was to give the id again"
        wait_for(lambda: stranger.observe([ref]).jobs[str(ref)].state is JobState.RUNNING, "the other job runs")
        met = []

        def is_lost():
            view = slurm.observe([ref]).jobs[str(ref)]
            met.append((view.token, view.state))
            return view.state is JobState.LOST

        wait_for(is_lost, "ours is missed and then lost", 60.0, lambda: met[-1:], every_s=0.5)
        assert {token for token, _ in met} == {ours}
        assert JobState.RUNNING not in {state for _, state in met}
        refusals = slurm.cancel([ref])
        assert [(change.asked, "another job" in change.text) for change in refusals] == [(False, True)]
        assert cluster.job_state(ref.id) == "RUNNING"
        assert stranger.observe([ref]).jobs[str(ref)].token == other
        assert [view.token for view in opened(cluster).find(other).jobs.values()] == [other]
