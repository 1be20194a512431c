"""The PSI/J adapter on recorded text of PBS, LSF and Slurm: what each word is worth, and what is never concluded."""

from __future__ import annotations

import json
import os
import signal
import sys
import types
from typing import Any

import pytest

from fleetcraft.core.errors import UsageError
from fleetcraft.core.states import JobState
from fleetcraft.schedulers.api import JobRef, JobRequest, Retry, SubmitOutcome
from fleetcraft.schedulers.open import open_scheduler
from fleetcraft.schedulers.psij import PsijScheduler, available
from fleetcraft.transports.api import Answer
from tests.support.waiting import wait_for

TOKEN = "fcabc2defgh3"


class Played:
    """Answers by program; what is not named here was never found."""

    name = "played"

    def __init__(self, **answers):
        self.answers = answers
        self.calls = []

    def run(self, argv, **_rest):
        self.calls.append(list(argv))
        out, err, code, problem = self.answers.get(argv[0], ("", "", None, f"not found: {argv[0]} is not on the PATH"))
        return Answer(argv=tuple(argv), code=code, out=out, err=err, took_s=0.0, problem=problem)


def says(out, code=0, err=""):
    return (out, err, code, "")


LOST = ("", "", None, "timed out after 60 s")


def request(**wishes):
    return JobRequest(token=TOKEN, name="x", script="#!/bin/sh\ntrue\n", **wishes)


def pbs(state, **more):
    return json.dumps({"Jobs": {"17.server": {"job_state": state, "Job_Name": "x", **more}}})


def lsf(state, **more):
    row = {"JOBID": "17", "STAT": state, "EXIT_REASON": "", "KILL_REASON": "", "SUSPEND_REASON": "", **more}
    return json.dumps({"COMMAND": "bjobs", "JOBS": 1, "RECORDS": [row]})


_SUBMITTED = {
    "pbs": ("qsub", "17.server\n", "17.server"),
    "pbs_classic": ("qsub", "17.server\n", "17.server"),
    "lsf": ("bsub", "Job <17> is submitted to default queue <normal>.\n", "17"),
    "slurm": ("sbatch", "Submitted batch job 17\n", "17"),
}
_STATUS = {"pbs": "qstat", "pbs_classic": "qstat", "lsf": "bjobs", "slurm": "squeue"}


def submitted(tmp_path, executor, **answers):
    program, said, native_id = _SUBMITTED[executor]
    login = Played(**{program: says(said), **answers})
    scheduler = PsijScheduler(executor, str(tmp_path), transport=login)
    reply = scheduler.submit(request())
    assert (reply.outcome, reply.ref) == (SubmitOutcome.SUBMITTED, JobRef(id=native_id))
    return scheduler, login, reply.ref


@pytest.mark.parametrize("executor", tuple(_SUBMITTED))
def test_a_submission_gives_the_id_and_is_found_by_its_token(tmp_path, executor):
    scheduler, login, ref = submitted(tmp_path, executor)
    again = PsijScheduler(executor, str(tmp_path), transport=login).submit(request())
    assert (again.outcome, again.ref) == (SubmitOutcome.FOUND, ref)
    assert sum(call[0] == _SUBMITTED[executor][0] for call in login.calls) == 1
    assert scheduler.find("fcaaaaaaaaaa").answered


def test_a_job_tells_what_account_it_was_submitted_with(tmp_path):
    login = Played(squeue=says("JOBID ST REASON\n17 R None\n"), sbatch=says("Submitted batch job 17\n"))
    scheduler = PsijScheduler("slurm", str(tmp_path), transport=login)
    ref = scheduler.submit(request(account="lab")).ref
    assert ref is not None
    view = PsijScheduler("slurm", str(tmp_path), transport=login).observe([ref]).jobs[str(ref)]
    assert (view.account, view.qos) == ("lab", "")


@pytest.mark.parametrize(
    ("executor", "text", "state"),
    (
        ("pbs", pbs("Q"), JobState.PENDING),
        ("pbs", pbs("H"), JobState.PENDING),
        ("pbs", pbs("R"), JobState.RUNNING),
        ("pbs", pbs("E"), JobState.RUNNING),
        ("pbs", pbs("F", Exit_status=265), JobState.CANCELLED),
        # Ended, and the script left no exit code: time limit, lost node or failure, PSI/J does not tell.
        ("pbs", pbs("F", Exit_status=0), JobState.LOST),
        ("pbs", pbs("F", Exit_status=-29), JobState.LOST),
        ("lsf", lsf("PEND"), JobState.PENDING),
        ("lsf", lsf("RUN"), JobState.RUNNING),
        ("lsf", lsf("USUSP", SUSPEND_REASON="by its user"), JobState.RUNNING),
        ("lsf", lsf("DONE"), JobState.LOST),
        ("lsf", lsf("EXIT", EXIT_REASON="TERM_RUNLIMIT: job killed after reaching LSF run time limit"), JobState.LOST),
        ("lsf", json.dumps({"RECORDS": [{"JOBID": "17", "ERROR": "Job <17> is not found"}]}), JobState.UNKNOWN),
        ("slurm", "JOBID ST REASON\n17 R None\n", JobState.RUNNING),
        ("slurm", "JOBID ST REASON\n17 PD Priority\n", JobState.PENDING),
        ("slurm", "JOBID ST REASON\n17 NF NodeDown\n", JobState.LOST),
        ("slurm", "JOBID ST REASON\n", JobState.UNKNOWN),
    ),
)
def test_words_of_the_back_end_without_an_exit_code(tmp_path, executor, text, state):
    scheduler, _, ref = submitted(tmp_path, executor, **{_STATUS[executor]: says(text)})
    seen = scheduler.observe([ref])
    assert seen.answered
    view = seen.jobs[str(ref)]
    assert (view.state, view.exit_code, view.token) == (state, None, TOKEN)
    assert view.notes or state in (JobState.PENDING, JobState.RUNNING, JobState.CANCELLED)


@pytest.mark.parametrize(
    ("executor", "text"),
    (("pbs", pbs("F", Exit_status=0)), ("lsf", lsf("DONE")), ("slurm", "JOBID ST REASON\n"), ("slurm", "garbage")),
)
@pytest.mark.parametrize(("code", "state"), ((0, JobState.DONE), (3, JobState.FAILED)))
def test_the_script_s_own_exit_code_decides(tmp_path, executor, text, code, state):
    scheduler, _, ref = submitted(tmp_path, executor, **{_STATUS[executor]: says(text)})
    (tmp_path / f"{TOKEN}.began").write_text(f"{ref.id} 1700000000\n")
    (tmp_path / f"{TOKEN}.ended").write_text(f"{code} 1700000060\n")
    view = scheduler.observe([ref]).jobs[str(ref)]
    assert (view.state, view.exit_code, view.source) == (state, code, "exit_record")
    assert (view.start_utc, view.end_utc) == (1_700_000_000.0, 1_700_000_060.0)


@pytest.mark.parametrize(
    ("executor", "said"),
    (
        ("pbs", LOST),
        ("pbs", says("", 1, "qstat: cannot connect to server")),
        ("pbs", says("not json")),
        ("pbs", says(pbs("Z"))),
        ("lsf", LOST),
        ("lsf", says("LSF is down. Please wait ...", 255)),
        ("lsf", says(lsf("NEW WORD"))),
        ("slurm", LOST),
        ("slurm", says("slurm_load_jobs error: Unable to contact slurm controller", 1)),
        ("slurm", says("JOBID ST REASON\n17 R a reason of many words\n")),
        ("slurm", says("JOBID ST REASON\n17 XX None\n")),
    ),
)
def test_an_answer_that_cannot_be_read_changes_nothing(tmp_path, executor, said):
    runs = {"pbs": pbs("R"), "lsf": lsf("RUN"), "slurm": "JOBID ST REASON\n17 R None\n"}[executor]
    scheduler, login, ref = submitted(tmp_path, executor, **{_STATUS[executor]: says(runs)})
    assert scheduler.observe([ref]).jobs[str(ref)].state is JobState.RUNNING
    login.answers[_STATUS[executor]] = said
    seen = scheduler.observe([ref])
    assert not seen.answered
    assert seen.problems
    assert (seen.jobs[str(ref)].state, seen.jobs[str(ref)].stale) == (JobState.RUNNING, True)


@pytest.mark.parametrize("said", (LOST, says("", 1, "sbatch: error: Socket timed out on send/recv operation")))
def test_after_a_lost_reply_nothing_is_sent_until_the_job_tells_its_id(tmp_path, said):
    login = Played(sbatch=said)
    scheduler = PsijScheduler("slurm", str(tmp_path), transport=login)
    for _ in range(3):
        reply = scheduler.submit(request())
        assert (reply.outcome, reply.retry) == (SubmitOutcome.AMBIGUOUS, Retry.LOOK_UP)
    assert len(login.calls) == 1
    assert not scheduler.find(TOKEN).answered
    (tmp_path / f"{TOKEN}.began").write_text("17 1700000000\n")
    assert scheduler.submit(request()).ref == JobRef(id="17")
    assert len(login.calls) == 1


def test_a_refusal_leaves_the_token_free(tmp_path):
    login = Played(qsub=says("", 1, "qsub: Unknown queue"))
    scheduler = PsijScheduler("pbs", str(tmp_path), transport=login)
    assert scheduler.submit(request(partition="nope")).outcome is SubmitOutcome.REJECTED
    login.answers["qsub"] = says("17.server\n")
    assert scheduler.submit(request()).outcome is SubmitOutcome.SUBMITTED


def test_without_the_command_nothing_was_sent(tmp_path):
    reply = PsijScheduler("lsf", str(tmp_path), transport=Played()).submit(request())
    assert reply.outcome is SubmitOutcome.NOT_SUBMITTED
    assert "bsub is not on the PATH" in reply.text


@pytest.mark.parametrize(
    "wish", ({"array": (1,)}, {"hold": True}, {"begin_utc": 1.0}, {"extra": ("--x",)}, {"qos": "q"})
)
def test_what_psij_cannot_say_is_refused_and_not_left_out(tmp_path, wish):
    login = Played(qsub=says("17.server\n"))
    reply = PsijScheduler("pbs", str(tmp_path), transport=login).submit(request(**wish))
    assert (reply.outcome, reply.code) == (SubmitOutcome.REJECTED, "unsupported")
    assert next(iter(wish)) in reply.text
    assert login.calls == []


def test_no_text_gets_into_a_directive_that_could_leave_it(tmp_path):
    scheduler = PsijScheduler("pbs", str(tmp_path), transport=Played())
    for value in ('a"b', "a\n#PBS -l x", "$(id)", "a b"):
        with pytest.raises(UsageError):
            scheduler.submit(request(partition=value))


def test_the_directives_say_what_was_asked_for(tmp_path):
    login = Played(qsub=says("17.server\n"), bsub=says("Job <17> is submitted\n"))
    wishes = {"nodes": 2, "cpus_per_node": 8, "time_limit_s": 5400.0, "partition": "gpu", "account": "acct"}
    PsijScheduler("pbs", str(tmp_path), transport=login).submit(request(**wishes))
    text = (tmp_path / "pbs" / f"{TOKEN}.job").read_text()
    for line in ("#PBS -l walltime=1:30:0", "#PBS -q gpu", "#PBS -A acct"):
        assert line in text
    assert "select=2" in text


def test_a_job_that_is_not_of_this_folder_is_absent_and_cannot_be_cancelled(tmp_path):
    scheduler = PsijScheduler("lsf", str(tmp_path), transport=Played())
    other = JobRef(id="99")
    assert scheduler.observe([other]).absent == (other,)
    assert not scheduler.cancel([other])[0].asked


def test_what_psij_does_not_tell_is_said_to_be_unknown(tmp_path):
    scheduler = PsijScheduler("pbs", str(tmp_path), transport=Played())
    assert (scheduler.limits().answered, scheduler.version()) == (False, None)
    assert scheduler.test_only(request()).possible is None
    assert not scheduler.hold([JobRef(id="1")])[0].asked
    assert not scheduler.cancel([JobRef(id="1")], signal="USR1")[0].asked


def test_loading_it_leaves_the_handling_of_ended_children_alone(tmp_path):
    before = signal.getsignal(signal.SIGCHLD)
    PsijScheduler("local", str(tmp_path))
    assert signal.getsignal(signal.SIGCHLD) is before


class PlayedFuture:
    """What the bindings of Flux give for a submission."""

    def __init__(self):
        self.started, self.done = [], []

    def jobid(self):
        return 1234

    def add_jobid_callback(self, tell):
        tell(self)

    def add_event_callback(self, _event, tell):
        self.started.append(tell)

    def add_done_callback(self, tell):
        self.done.append(tell)

    def result(self):
        raise RuntimeError("exception type=timeout severity=0 resource allocation expired")


def played_flux(futures, specs):
    class Executor:
        def submit(self, spec):
            specs.append(spec)
            futures.append(PlayedFuture())
            return futures[-1]

    def from_command(argv, **shape):
        return types.SimpleNamespace(argv=argv, **shape)

    job: Any = types.ModuleType("flux.job")
    job.FluxExecutor, job.FluxExecutorFuture = Executor, PlayedFuture
    job.JobspecV1 = types.SimpleNamespace(from_command=from_command)
    flux: Any = types.ModuleType("flux")
    flux.job, flux.Flux = job, lambda: None
    return {"flux": flux, "flux.job": job}


def test_flux_by_way_of_its_bindings_as_they_are_documented(tmp_path, monkeypatch):
    """Flux was never run: its bindings are played, as PSI/J calls them."""
    futures: list[Any] = []
    specs: list[Any] = []
    for name, module in played_flux(futures, specs).items():
        monkeypatch.setitem(sys.modules, name, module)
    from psij.executors.flux import FluxJobExecutor

    monkeypatch.setattr("psij.JobExecutor.get_instance", lambda *_name, config: FluxJobExecutor(config=config))
    scheduler = PsijScheduler("flux", str(tmp_path))
    ref = scheduler.submit(request(nodes=2, time_limit_s=600.0)).ref
    assert ref == JobRef(id="1234")
    assert (specs[0].num_nodes, specs[0].num_tasks, specs[0].duration) == (2, 2, 600.0)
    assert scheduler.observe([ref]).jobs["1234"].state is JobState.PENDING
    for tell in futures[0].started:
        tell(futures[0], types.SimpleNamespace(name="start", context={}))
    assert scheduler.observe([ref]).jobs["1234"].state is JobState.RUNNING
    for tell in futures[0].done:
        tell(futures[0])
    view = scheduler.observe([ref]).jobs["1234"]
    assert view.state is JobState.LOST
    assert "allocation expired" in view.reason


def test_flux_without_its_own_bindings_says_so(tmp_path):
    assert "flux" in available()
    with pytest.raises(UsageError, match="back end flux"):
        PsijScheduler("flux", str(tmp_path))


def test_without_the_package_the_error_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "psij", None)
    with pytest.raises(UsageError, match=r"pip install 'fleetcraft\[psij\]'"):
        open_scheduler("psij", executor="pbs", folder=str(tmp_path))
    with pytest.raises(UsageError, match="back end"):
        open_scheduler("psij", executor="slrum", folder=str(tmp_path))
    with pytest.raises(UsageError, match="needs the name"):
        open_scheduler("psij")


def test_its_local_jobs_leave_no_pipe_open(tmp_path):
    scheduler = PsijScheduler("local", str(tmp_path))
    before = set(os.listdir("/proc/self/fd"))
    refs = []
    for number in range(5):
        reply = scheduler.submit(JobRequest(token=f"fcjob{number}", name="x", script="#!/bin/sh\ntrue\n"))
        assert reply.ref is not None
        refs.append(reply.ref)
    wait_for(lambda: all(view.state.ended for view in scheduler.observe(refs).jobs.values()), "all have ended")
    wait_for(
        lambda: set(os.listdir("/proc/self/fd")) <= before,
        "all pipes are closed",
        seen=lambda: set(os.listdir("/proc/self/fd")) - before,
    )
