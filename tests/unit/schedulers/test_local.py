"""Local jobs: what happens when their supervisor, their submitter or their machine goes away, and who gets a node."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import threading

import pytest

from fleetcraft.core.states import JobState
from fleetcraft.schedulers.api import JobRef, JobRequest, SubmitOutcome
from fleetcraft.schedulers.local import LocalScheduler
from fleetcraft.schedulers.local_files import MARK, JobFolder
from fleetcraft.transports.api import Answer
from fleetcraft.transports.processes import marked
from tests.support.waiting import wait_for


@pytest.fixture
def root(tmp_path):
    return str(tmp_path / "root")


@pytest.fixture
def local(root):
    scheduler = LocalScheduler(root, slots=4, gpus_per_node=2, kill_wait_s=0.5)
    yield scheduler
    scheduler.cancel([view.ref for view in scheduler.mine().jobs.values() if not view.state.ended])
    wait_for(lambda: all(view.state.ended for view in scheduler.mine().jobs.values()), "nothing of it runs")


def request(token, *lines, **wishes):
    return JobRequest(token=token, name="x", script="\n".join(["#!/bin/bash", *lines, ""]), **wishes)


def see(local, token):
    return local.observe([JobRef(id=token)]).jobs[token]


def wait(local, token, state):
    return wait_for(
        lambda: (view := see(local, token)).state is state and view,
        f"{token} is {state}",
        seen=lambda: see(local, token),
    )


def minder_of(root, token):
    minder, why = JobFolder(os.path.join(root, "jobs", token)).supervisor()
    assert minder is not None, why
    return minder


def test_a_job_whose_supervisor_was_killed_is_lost_and_nothing_of_it_runs_on(local, root, tmp_path):
    runs = tmp_path / "runs"
    local.submit(request("fcone", f"echo x >>{runs}; setsid sleep 300 & sleep 300"))
    wait(local, "fcone", JobState.RUNNING)
    wait_for(lambda: len(marked(MARK, f"{root}/jobs/fcone")) >= 3, "all of it runs")
    os.kill(minder_of(root, "fcone").pid, signal.SIGKILL)
    view = wait(local, "fcone", JobState.LOST)
    assert "supervisor" in view.reason_text
    assert marked(MARK, f"{root}/jobs/fcone") == []
    assert runs.read_text() == "x\n"


def test_a_waiting_job_whose_supervisor_was_killed_waits_on_under_a_new_one(local, root):
    local.submit(request("fcone", "true", hold=True))
    first = wait_for(lambda: JobFolder(f"{root}/jobs/fcone").supervisor()[0], "it is minded")
    os.kill(first.pid, signal.SIGKILL)
    wait_for(
        lambda: (
            see(local, "fcone").state is JobState.HELD
            and (now := JobFolder(f"{root}/jobs/fcone").supervisor()[0])
            and now.pid != first.pid
        ),
        "a new one minds it",
    )
    local.release([JobRef(id="fcone")])
    wait(local, "fcone", JobState.DONE)


def test_a_submission_that_died_before_its_supervisor_started_is_taken_up_by_whoever_looks(root, local):
    class Dead:
        name = "dead"

        def run(self, argv, **_rest):
            return Answer(argv=tuple(argv), code=None, out="", err="", took_s=0.0, problem="killed")

    LocalScheduler(root, transport=Dead()).submit(request("fcone", "exit 4"))
    assert wait(local, "fcone", JobState.FAILED).exit_code == 4


def test_the_job_outlives_the_process_that_submitted_it(local, root, tmp_path):
    gate, said = tmp_path / "gate", tmp_path / "said"
    code = (
        "import sys; from fleetcraft.schedulers.local import LocalScheduler; "
        "from fleetcraft.schedulers.api import JobRequest; "
        "LocalScheduler(sys.argv[1]).submit(JobRequest(token='fcone', name='x', script=sys.argv[2]))"
    )
    script = f"#!/bin/bash\nwhile [ ! -e {gate} ]; do sleep 0.05; done; echo on >{said}\n"
    process = subprocess.Popen([sys.executable, "-c", code, root, script], start_new_session=True)
    assert process.wait(30) == 0
    wait(local, "fcone", JobState.RUNNING)
    gate.touch()
    wait(local, "fcone", JobState.DONE)
    assert said.read_text() == "on\n"


def test_many_at_once_with_one_token_make_one_job(root, local, tmp_path):
    runs = tmp_path / "runs"
    outcomes = []

    def submit():
        outcomes.append(LocalScheduler(root).submit(request("fcone", f"echo x >>{runs}")).outcome)

    threads = [threading.Thread(target=submit) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outcomes.count(SubmitOutcome.SUBMITTED) == 1
    assert outcomes.count(SubmitOutcome.FOUND) == 11
    wait(local, "fcone", JobState.DONE)
    assert runs.read_text() == "x\n"


def test_jobs_share_the_nodes_and_wait_for_enough_of_them(local):
    local.submit(request("fcthree", "sleep 300", nodes=3))
    wait(local, "fcthree", JobState.RUNNING)
    local.submit(request("fctwo", "sleep 300", nodes=2))
    local.submit(request("fcone", "sleep 300"))
    wait(local, "fcone", JobState.RUNNING)
    wait_for(lambda: see(local, "fctwo").reason == "Resources", "it waits for nodes", seen=lambda: see(local, "fctwo"))
    assert local.limits().partitions[0].idle_nodes == 0
    assert local.test_only(request("fcnew", "true")).start_utc is None
    local.cancel([JobRef(id="fcthree")])
    wait(local, "fctwo", JobState.RUNNING)


def test_a_job_tells_the_qos_and_the_account_that_were_asked_for(local):
    local.submit(request("fcone", "sleep 300", qos="normal", account="lab"))
    local.submit(request("fctwo", "sleep 300"))
    told = {view.token: (view.qos, view.account) for view in local.mine().jobs.values()}
    assert told == {"fcone": ("normal", "lab"), "fctwo": ("", "")}


def test_what_ignores_the_polite_signal_is_killed(local, root):
    local.submit(request("fcone", "trap '' TERM; (trap '' TERM; setsid sleep 300) & while true; do sleep 0.1; done"))
    wait(local, "fcone", JobState.RUNNING)
    wait_for(lambda: len(marked(MARK, f"{root}/jobs/fcone")) >= 3, "all of it runs")
    local.cancel([JobRef(id="fcone")])
    wait(local, "fcone", JobState.CANCELLED)
    assert marked(MARK, f"{root}/jobs/fcone") == []


def test_what_a_script_leaves_behind_ends_with_it(local, root):
    local.submit(request("fcone", "setsid sleep 300 & exit 0"))
    wait(local, "fcone", JobState.DONE)
    assert marked(MARK, f"{root}/jobs/fcone") == []


def test_a_job_of_another_host_is_unknown_here_and_left_alone(local, root):
    local.submit(request("fcone", "sleep 300"))
    wait(local, "fcone", JobState.RUNNING)
    folder = JobFolder(f"{root}/jobs/fcone")
    mine = folder.read("supervisor.json") or {}
    folder.write("supervisor.json", {**mine, "host": "elsewhere"})
    view = see(local, "fcone")
    assert (view.state, view.stale) == (JobState.UNKNOWN, True)
    assert "elsewhere" in view.notes[0]
    folder.write("supervisor.json", mine)
    assert see(local, "fcone").state is JobState.RUNNING


@pytest.mark.parametrize(
    ("wishes", "code"),
    (
        ({"nodes": 5}, "nodes"),
        ({"gpus_per_node": 3}, "gpus"),
        ({"partition": "gpu"}, "partition"),
        ({"array": (1, 2)}, "array"),
        ({"after_any": (JobRef(id="fcnone"),)}, "dependency"),
    ),
)
def test_what_can_never_start_is_refused_with_its_reason(local, wishes, code):
    reply = local.submit(request("fcone", "true", **wishes))
    assert (reply.outcome, reply.code) == (SubmitOutcome.REJECTED, code)
    assert reply.text
    assert local.test_only(request("fcone", "true", **wishes)).possible is False
    assert local.mine().jobs == {}


def test_a_missing_folder_fails_the_job_and_names_it(local):
    local.submit(request("fcone", "true", cwd="/no/such/folder"))
    assert "/no/such/folder" in wait(local, "fcone", JobState.FAILED).reason


def test_variables_of_the_submitter_s_own_job_do_not_reach_the_new_one(local, root, tmp_path, monkeypatch):
    monkeypatch.setenv(MARK, "fcouter")
    monkeypatch.setenv("FLEETCRAFT_JOB_ID", "fcouter")
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    said = tmp_path / "said"
    local.submit(request("fcone", f"env >{said}", env={"ASKED": "yes"}))
    wait(local, "fcone", JobState.DONE)
    lines = said.read_text().splitlines()
    assert {f"{MARK}={root}/jobs/fcone", "FLEETCRAFT_JOB_ID=fcone", "ASKED=yes"} <= set(lines)
    assert not any(line.startswith("SLURM_") for line in lines)


def test_a_signal_to_the_step_reaches_every_node_and_the_highest_code_counts(local, root, tmp_path):
    body = (
        f"trap 'touch {tmp_path}/told.$FLEETCRAFT_NODE; exit $((3 + FLEETCRAFT_NODE_RANK))' USR1; "
        f"touch {tmp_path}/ready.$FLEETCRAFT_NODE; for i in {{1..600}}; do sleep 0.05; done"
    )
    step = shlex.join(local.command(["bash", "-c", body]))
    local.submit(request("fcone", f"{step} & step=$!; trap 'kill -USR1 $step' TERM; wait; wait $step", nodes=3))
    wait_for(lambda: len(list(tmp_path.glob("ready.*"))) == 3, "three nodes are ready")
    os.kill((JobFolder(f"{root}/jobs/fcone").read("started.json") or {})["pid"], signal.SIGTERM)
    assert wait(local, "fcone", JobState.FAILED).exit_code == 5
    assert sorted(path.name for path in tmp_path.glob("told.*")) == ["told.local0", "told.local1", "told.local2"]
