"""The Slurm adapter while parts of the real cluster hang or are gone: no double submission and no false end."""

from __future__ import annotations

import time

import pytest

from fleetcraft.core.states import JobState
from fleetcraft.schedulers.api import JobRequest, Retry, SubmitOutcome
from fleetcraft.schedulers.slurm import SlurmScheduler
from tests.conformance.schedulers.conftest import POLICY
from tests.conformance.schedulers.sites import LoginTransport, Meddling, new_token
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.needs_slurm, pytest.mark.slow, pytest.mark.timeout(240)]


@pytest.fixture
def cluster(slurm_cluster):
    yield slurm_cluster
    slurm_cluster.restore(deadline_s=60.0)


class HungAtSubmission:
    """The controller stops answering at the very moment of the submission."""

    name = "hung"

    def __init__(self, cluster):
        self._cluster, self._inner = cluster, LoginTransport(cluster)

    def run(self, argv, **rest):
        if argv[0] != "sbatch":
            return self._inner.run(argv, **rest)
        self._cluster.pause_controller()
        try:
            return self._inner.run(argv, **rest)
        finally:
            self._cluster.resume_controller()


def jobs_with(cluster, token):
    rows = cluster.run(["squeue", "-h", "-t", "all", "-o", "%i %j"], user="root").stdout.splitlines()
    return [row.split()[0] for row in rows if row.endswith(f".{token}")]


def test_a_submission_to_a_controller_that_hangs_is_found_again_and_not_repeated(cluster):
    request = JobRequest(token=new_token(), name="hung", script="#!/bin/sh\ntrue\n", hold=True, time_limit_s=60.0)
    slurm = SlurmScheduler(HungAtSubmission(cluster), policy=POLICY, settle_s=15.0)
    reply = slurm.submit(request)
    assert reply.outcome in (SubmitOutcome.AMBIGUOUS, SubmitOutcome.SUBMITTED), reply
    deadline = time.monotonic() + 60.0
    while reply.ref is None:
        assert reply.retry is Retry.LOOK_UP, reply
        assert time.monotonic() < deadline, reply
        reply = slurm.submit(request)
    assert jobs_with(cluster, request.token) == [reply.ref.id]


def test_while_the_controller_hangs_nothing_ends_and_nothing_is_sent(cluster):
    transport = Meddling(LoginTransport(cluster))
    slurm = SlurmScheduler(transport, policy=POLICY)
    running = slurm.submit(
        JobRequest(token=new_token(), name="on", script="#!/bin/sh\nsleep 300\n", time_limit_s=600.0)
    )
    ref = running.ref
    assert ref is not None
    wait_for(lambda: slurm.observe([ref]).jobs[str(ref)].state is JobState.RUNNING, "it runs", every_s=0.2)
    cluster.pause_controller()
    try:
        seen = slurm.observe([ref])
        reply = slurm.submit(JobRequest(token=new_token(), name="no", script="#!/bin/sh\ntrue\n"))
    finally:
        cluster.resume_controller()
    assert (seen.answered, seen.absent) == (False, ())
    assert (seen.jobs[str(ref)].state, seen.jobs[str(ref)].stale) == (JobState.RUNNING, True)
    assert (reply.outcome, reply.retry) == (SubmitOutcome.NOT_SUBMITTED, Retry.TRANSIENT)
    assert transport.counts["sbatch"] == 1


def test_without_the_database_a_job_goes_through_and_its_end_is_not_invented(cluster):
    cluster.stop_database()
    slurm = SlurmScheduler(LoginTransport(cluster), policy=POLICY)
    reply = slurm.submit(JobRequest(token=new_token(), name="db", script="#!/bin/sh\nexit 3\n", time_limit_s=60.0))
    ref = reply.ref
    assert ref is not None, reply

    def look():
        seen = slurm.observe([ref]).jobs[str(ref)]
        return seen if seen.state.ended else None

    view = wait_for(look, "the queue tells its end", every_s=0.2)
    assert view.state is JobState.FAILED
    cluster.start_database()
    assert slurm.observe([ref]).answered
