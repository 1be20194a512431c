"""The Slurm adapter against a login node that is played: what is asked, in which order, and what is believed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fleetcraft.core.errors import UsageError
from fleetcraft.core.states import JobState
from fleetcraft.schedulers.api import JobRef, JobRequest, Retry, SubmitOutcome
from fleetcraft.schedulers.open import open_scheduler
from fleetcraft.schedulers.slurm import SlurmScheduler
from fleetcraft.schedulers.slurm_verdict import ExitRecord, Policy
from fleetcraft.testing.clock import ManualClock
from fleetcraft.transports.api import Answer, Surroundings

TOKEN = "fcabc2defgh3"
US = "\x1f"


class Login:
    """Answers of the commands, in the order in which they are given; the last one stays."""

    name = "played"

    def __init__(self, **answers):
        self.answers = {program: list(said) if isinstance(said, list) else [said] for program, said in answers.items()}
        self.calls = []

    def run(self, argv, *, stdin=b"", timeout_s=60.0, surroundings=Surroundings(), cwd=None):  # noqa: B008
        self.calls.append(list(argv))
        said = self.answers.get(argv[0], [""])
        answer = said.pop(0) if len(said) > 1 else said[0]
        out, err, code, problem = answer if isinstance(answer, tuple) else (answer, "", 0, "")
        return Answer(argv=tuple(argv), code=code, out=out, err=err, took_s=0.1, problem=problem)

    def asked(self, program):
        return [argv for argv in self.calls if argv[0] == program]


NO_ANSWER = ("", "", None, "timed out after 60 s")
REFUSED = (
    "",
    "sbatch: error: Batch job submission failed: Unable to contact slurm controller (connect failure)",
    1,
    "",
)


def _cells(job, state, reason, nodes="n1"):
    return [str(job), state, "1700000000", "1700000010", "1700002000", "10:00", "gpu", "1", nodes, reason]


def _names(token):
    """Account and QOS, the comment, the name."""
    return ["lab", "normal", *((f"fleetcraft:{token}", f"x.{token}") if token else ("(null)", "x"))]


def queue_row(job, state="RUNNING", reason="None", token=""):
    nodes = "" if state == "PENDING" else "n1"
    return US.join((*_cells(job, state, reason, nodes), *_names(token))) + "\n"


def wide_row(job, token, state="PENDING", nodes="n1"):
    return US.join((*_cells(job, state, "None", nodes), "gpu:4", "", *_names(token))) + "\n"


def account_row(job, state="COMPLETED", code="0:0", submit=1700000000, token="", nodes="n1"):
    name = f"x.{token}" if token else "x"
    cells = (
        str(job),
        str(job),
        state,
        code,
        "0:0",
        str(submit),
        "1700000010",
        "1700000100",
        nodes,
        "lab",
        "normal",
        name,
    )
    return US.join(cells) + "\n"


@pytest.fixture
def clock():
    return ManualClock(utc_s=1_700_000_000.0)


def adapter(login, clock, **rest):
    return SlurmScheduler(login, clock=clock, pause=clock.advance, **rest)


def request(**wishes):
    return JobRequest(token=TOKEN, name="x", script="#!/bin/sh\ntrue\n", **wishes)


def test_a_controller_that_could_not_be_reached_is_asked_three_times_and_no_more(clock):
    login = Login(sbatch=REFUSED)
    reply = adapter(login, clock).submit(request())
    assert (reply.outcome, reply.retry) == (SubmitOutcome.NOT_SUBMITTED, Retry.TRANSIENT)
    assert len(login.asked("sbatch")) == 3
    login = Login(sbatch=[REFUSED, "17\n"])
    assert adapter(login, clock).submit(request()).ref == JobRef(id="17")
    assert len(login.asked("sbatch")) == 2


def test_a_lost_reply_is_looked_up_and_the_job_is_found(clock):
    login = Login(squeue=["", wide_row(17, TOKEN)], sbatch=NO_ANSWER)
    reply = adapter(login, clock).submit(request())
    assert (reply.outcome, reply.ref) == (SubmitOutcome.SUBMITTED, JobRef(id="17"))
    assert [argv[0] for argv in login.calls] == ["squeue", "sbatch", "squeue"]


def test_a_lost_reply_is_sent_again_only_after_its_time_to_arrive(clock):
    login = Login(id="u\n", sbatch=[NO_ANSWER, "18\n"])
    slurm = adapter(login, clock, settle_s=30.0)
    first = slurm.submit(request())
    assert (first.outcome, first.retry) == (SubmitOutcome.AMBIGUOUS, Retry.LOOK_UP)
    clock.advance(29.0)
    second = slurm.submit(request())
    assert (second.outcome, second.code) == (SubmitOutcome.AMBIGUOUS, "settling")
    assert len(login.asked("sbatch")) == 1
    clock.advance(1.0)
    assert slurm.submit(request()).ref == JobRef(id="18")


def test_a_lost_reply_stays_open_while_accounting_is_silent(clock):
    """The job may have run and left the queue already: only accounting knows."""
    login = Login(id="u\n", sbatch=NO_ANSWER, sacct=("", "sacct: error: slurmdbd down", 1, ""))
    slurm = adapter(login, clock, settle_s=0.0)
    slurm.submit(request())
    clock.advance(3600.0)
    reply = slurm.submit(request())
    assert (reply.outcome, reply.retry) == (SubmitOutcome.AMBIGUOUS, Retry.LOOK_UP)
    assert len(login.asked("sbatch")) == 1
    login.answers["sacct"] = [account_row(17, token=TOKEN)]
    assert slurm.submit(request()).ref == JobRef(id="17")
    assert len(login.asked("sbatch")) == 1


def test_nothing_is_sent_while_the_queue_does_not_answer(clock):
    login = Login(squeue=NO_ANSWER, sbatch="17\n")
    reply = adapter(login, clock).submit(request())
    assert (reply.outcome, reply.retry) == (SubmitOutcome.NOT_SUBMITTED, Retry.TRANSIENT)
    assert not login.asked("sbatch")


def test_the_output_folder_is_made_first_and_a_failure_sends_nothing(clock):
    login = Login(sbatch="17\n")
    adapter(login, clock).submit(request(output="/logs/%x/job-%j.log"))
    adapter(login, clock).submit(request(output="/logs/fleet/job-%j.log"))
    assert [argv[-1] for argv in login.asked("mkdir")] == ["/logs", "/logs/fleet"]
    login = Login(sbatch="17\n", mkdir=("", "mkdir: cannot create directory: Permission denied", 1, ""))
    reply = adapter(login, clock).submit(request(output="/logs/a/b.log"))
    assert (reply.outcome, reply.code) == (SubmitOutcome.NOT_SUBMITTED, "output_folder")
    assert "Permission denied" in reply.text
    assert not login.asked("sbatch")


def test_a_thousand_live_jobs_are_one_question(clock):
    refs = [JobRef(id=str(number)) for number in range(1, 1001)]
    login = Login(squeue="".join(queue_row(ref.id) for ref in refs))
    seen = adapter(login, clock).observe(refs)
    assert len(seen.jobs) == 1000
    assert all(view.state is JobState.RUNNING for view in seen.jobs.values())
    assert [argv[0] for argv in login.calls] == ["squeue"]


def test_what_left_the_queue_is_asked_for_once_per_200_and_never_again_after_its_end(clock):
    refs = [JobRef(id=str(number)) for number in range(1, 402)]
    login = Login(
        sacct=[
            "".join(account_row(number) for number in piece)
            for piece in (range(1, 201), range(201, 401), range(401, 402))
        ]
    )
    slurm = adapter(login, clock)
    seen = slurm.observe(refs)
    assert all(view.state is JobState.DONE for view in seen.jobs.values())
    assert len(login.asked("sacct")) == 3
    assert len(slurm.observe(refs).jobs) == 401
    assert (len(login.asked("squeue")), len(login.asked("sacct"))) == (2, 3)


def test_a_column_that_this_sacct_does_not_have_is_left_out(clock):
    refusal = ("", 'sacct: fatal: Invalid field requested: "DerivedExitCode"', 1, "")
    row = US.join(("7", "7", "FAILED", "3:0", "1700000000", "1700000010", "1700000100", "n1")) + "\n"
    names = "JobID JobIDRaw State ExitCode Submit Start End NodeList"
    login = Login(sacct=[refusal, names, row])
    view = adapter(login, clock).observe([JobRef(id="7")]).jobs["7"]
    assert (view.state, view.exit_code) == (JobState.FAILED, 3)
    assert login.asked("sacct")[1] == ["sacct", "--helpformat"]


def test_an_id_that_is_used_again_is_not_our_job(clock):
    login = Login(sbatch="17\n", sacct=account_row(17, submit=1700000000))
    clock.advance(86_400.0)
    slurm = adapter(login, clock)
    ref = slurm.submit(request()).ref
    clock.advance(5.0)
    view = slurm.observe([ref]).jobs["17"]
    assert not view.state.ended


def test_a_job_that_no_source_knows_is_lost_only_after_its_grace_and_some_looks(clock):
    login = Login(sbatch="17\n", squeue=["", queue_row(17), ""])
    slurm = adapter(login, clock, policy=Policy(grace_s=120.0, min_polls=3))
    ref = slurm.submit(request()).ref
    assert slurm.observe([ref]).jobs["17"].state is JobState.RUNNING
    states = []
    for _ in range(5):
        clock.advance(50.0)
        states.append(slurm.observe([ref]).jobs["17"].state)
    assert states[0] is JobState.UNKNOWN
    assert JobState.LOST not in states[:2]
    assert states[-1] is JobState.LOST


def test_what_another_process_knew_and_what_the_job_wrote_are_taken_over(clock):
    login = Login(squeue=queue_row(17), sacct="")
    view = adapter(login, clock).observe([JobRef(id="17")]).jobs["17"]
    login.answers["squeue"] = [NO_ANSWER]
    other = adapter(login, clock)
    assert dict(other.observe([view.ref]).jobs) == {}
    other.remember([view])
    seen = other.observe([view.ref])
    assert (seen.answered, seen.jobs["17"].state, seen.jobs["17"].stale) == (False, JobState.RUNNING, True)
    login.answers["squeue"] = [""]
    clock.advance(8.0)
    other.remember(exit_records={"17": ExitRecord(code=5)})
    ended = other.observe([view.ref]).jobs["17"]
    assert (ended.state, ended.exit_code, ended.source) == (JobState.FAILED, 5, "exit_record")


def test_a_site_without_accounting_still_answers(clock):
    disabled = ("", "Slurm accounting storage is disabled\n", 1, "")
    login = Login(squeue=[queue_row(17, "COMPLETED"), ""], sacct=disabled)
    slurm = adapter(login, clock)
    assert slurm.observe([JobRef(id="17")]).jobs["17"].state is JobState.DONE
    assert slurm.observe([JobRef(id="17")]).jobs["17"].state is JobState.DONE


def test_each_refused_change_is_told_apart_from_the_done_ones(clock):
    login = Login(
        scancel=("", "scancel: error: Kill job error on job id 9: Invalid job id specified\n", 1, ""),
        scontrol=NO_ANSWER,
    )
    changes = adapter(login, clock).cancel([JobRef(id="17"), JobRef(id="9")])
    assert [(change.ref.id, change.asked) for change in changes] == [("17", True), ("9", False)]
    assert "Invalid job id" in changes[1].text
    held = adapter(login, clock).hold([JobRef(id="17")])
    assert (held[0].asked, held[0].text) == (False, "timed out after 60 s")


def test_no_change_and_no_question_without_jobs(clock):
    login = Login()
    slurm = adapter(login, clock)
    assert slurm.observe([]).answered
    assert slurm.cancel([]) == []
    assert login.calls == []
    with pytest.raises(UsageError):
        slurm.observe([JobRef(id="not a job")])


def test_site_facts_are_asked_once_in_five_minutes_and_again_when_they_failed(clock):
    login = Login(scontrol=NO_ANSWER, sbatch="slurm-wlm 22.05.8\n")
    slurm = adapter(login, clock)
    first = slurm.limits()
    assert (first.answered, first.partitions, first.max_array_size) == (False, (), None)
    assert slurm.version() == (22, 5, 8)
    assert slurm.version() == (22, 5, 8)
    assert len(login.asked("sbatch")) == 1
    asked = len(login.asked("scontrol"))
    login.answers["scontrol"] = ["MaxArraySize = 1001\nMinJobAge = 300 sec\n"]
    clock.advance(8.0)
    assert slurm.limits().max_array_size == 1001
    assert len(login.asked("scontrol")) > asked


def test_an_estimate_is_read_in_the_zone_of_its_host(clock):
    said = "sbatch: Job 7 to start at 2026-01-01T02:00:00 using 2 processors on nodes n[1-2] in partition gpu\n"
    login = Login(sbatch=("", said, 0, ""), date="+0200\n")
    estimate = adapter(login, clock).test_only(request())
    assert (estimate.possible, estimate.start_utc) == (True, 1767225600.0)


def test_an_old_squeue_is_asked_by_the_name_of_the_user(clock):
    login = Login(squeue=[("", "squeue: unrecognized option '--me'\n", 1, ""), queue_row(17)], id="u\n")
    slurm = adapter(login, clock)
    assert slurm.observe([JobRef(id="17")]).jobs["17"].state is JobState.RUNNING
    assert slurm.observe([JobRef(id="17")]).answered
    assert ["--user=u" in argv for argv in login.asked("squeue")] == [False, True, True]


def test_an_array_is_found_as_the_whole_that_was_submitted(clock):
    rows = wide_row("17_[2-9]", TOKEN) + wide_row("17_1", TOKEN, "RUNNING")
    reply = adapter(Login(squeue=rows), clock).submit(request(array=tuple(range(1, 10))))
    assert (reply.outcome, reply.ref) == (SubmitOutcome.FOUND, JobRef(id="17"))


def test_the_waiting_rest_of_an_array_speaks_for_its_elements(clock):
    rows = queue_row("17_[2-9]", "PENDING", "Priority") + queue_row("17_1")
    login = Login(squeue=rows, sacct="")
    seen = adapter(login, clock).observe([JobRef(id="17_1"), JobRef(id="17_5"), JobRef(id="17")])
    assert [seen.jobs[key].state for key in ("17_1", "17_5")] == [JobState.RUNNING, JobState.PENDING]
    assert not seen.jobs["17"].state.ended
    assert not login.asked("sacct")


def test_observations_are_shared_and_submissions_are_not(clock, tmp_path):
    login = Login(squeue=[queue_row(17)], id="u\n")
    env = {"FLEETCRAFT_POLLS": str(tmp_path), "SLURM_CONF": "/etc/slurm.conf"}
    first, second = (open_scheduler("slurm", transport=login, clock=clock, environ=env) for _ in range(2))
    assert not first.observe([JobRef(id="17")]).from_cache
    assert second.observe([JobRef(id="17")]).jobs["17"].state is JobState.RUNNING
    assert len(login.asked("squeue")) == 1
    second.find(TOKEN)
    first.find(TOKEN)
    assert len(login.asked("squeue")) == 3
    other = open_scheduler("slurm", transport=login, clock=clock, environ=env | {"SLURM_CONF": "/other"})
    assert not other.observe([JobRef(id="17")]).from_cache


def test_only_known_schedulers_are_opened(tmp_path):
    assert open_scheduler("local", folder=str(tmp_path)).kind == "local"
    with pytest.raises(UsageError, match="There is no scheduler 'pbs'"):
        open_scheduler("pbs")


OTHER = "fcotherother"
REJECTED = (
    "",
    "sbatch: error: Batch job submission failed: Requested node configuration is not available",
    1,
    "",
)


def test_the_trace_of_a_refused_submission_is_no_job(clock):
    """Slurm gives it an id, and shows it as failed with our token in both of its books."""
    trace = wide_row(17, TOKEN, "FAILED", nodes="")
    record = account_row(17, "FAILED", token=TOKEN, nodes="None assigned")
    login = Login(squeue=["", trace], sacct=record, sbatch=[REJECTED, "18\n"], id="u\n")
    slurm = adapter(login, clock)
    assert slurm.submit(request(gpus_per_node=99)).outcome is SubmitOutcome.REJECTED
    assert dict(slurm.find(TOKEN).jobs) == {}
    reply = slurm.submit(request(gpus_per_node=1))
    assert (reply.outcome, reply.ref) == (SubmitOutcome.SUBMITTED, JobRef(id="18"))
    login.answers["squeue"] = [trace + wide_row(18, TOKEN)]
    assert list(slurm.find(TOKEN).jobs) == ["18"]
    assert slurm.submit(request()).ref == JobRef(id="18")
    assert len(login.asked("sbatch")) == 2


def test_a_job_that_failed_on_its_node_is_a_job(clock):
    login = Login(squeue=wide_row(17, TOKEN, "FAILED"))
    assert adapter(login, clock).submit(request()).outcome is SubmitOutcome.FOUND


@pytest.mark.parametrize("raw", ("NODE_FAIL", "PREEMPTED"))
def test_a_job_that_may_not_be_requeued_ends_at_once(clock, raw):
    login = Login(sbatch="17\n", squeue=["", queue_row(17, raw)], sacct=account_row(17, raw))
    slurm = adapter(login, clock)
    ref = slurm.submit(request(requeue=False)).ref
    assert slurm.observe([ref]).jobs["17"].state is JobState.LOST


@pytest.mark.parametrize(("told", "state"), ((None, JobState.ENDING), (True, JobState.ENDING), (False, JobState.LOST)))
def test_another_process_is_told_whether_it_may_be_requeued(clock, told, state):
    login = Login(squeue=queue_row(17, "NODE_FAIL"), sacct=account_row(17, "NODE_FAIL"))
    slurm = adapter(login, clock)
    if told is not None:
        slurm.remember(may_requeue={"17": told})
    assert slurm.observe([JobRef(id="17")]).jobs["17"].state is state


def test_a_job_that_was_submitted_to_be_requeued_is_waited_for(clock):
    login = Login(sbatch="17\n", squeue=["", queue_row(17, "NODE_FAIL")], sacct=account_row(17, "NODE_FAIL"))
    slurm = adapter(login, clock)
    ref = slurm.submit(request(requeue=True)).ref
    assert slurm.observe([ref]).jobs["17"].state is JobState.ENDING


def _states(slurm, clock, key, looks=6, every_s=50.0):
    states = []
    for _ in range(looks):
        states.append(slurm.observe([JobRef(id=key)]).jobs[key].state)
        clock.advance(every_s)
    return states


def test_an_element_without_a_record_is_cancelled_once_its_array_is_gone(clock):
    waits = queue_row("17_[2-9]", "PENDING") + queue_row("17_1")
    login = Login(squeue=[waits, queue_row("17_1"), queue_row("17_1"), ""], sacct=account_row("17_1"))
    slurm = adapter(login, clock)
    states = _states(slurm, clock, "17_5", looks=8)
    assert states[0] is JobState.PENDING
    assert states[1:3] == [JobState.UNKNOWN] * 2
    assert states[-1] is JobState.CANCELLED
    assert JobState.LOST not in states
    assert "no record" in slurm.observe([JobRef(id="17_5")]).jobs["17_5"].notes[0]


def test_an_element_stays_unknown_while_others_of_its_array_are_queued(clock):
    login = Login(squeue=queue_row("17_1"), sacct=account_row("17_1", "RUNNING"))
    assert _states(adapter(login, clock), clock, "17_5") == [JobState.UNKNOWN] * 6


def test_an_element_that_ran_is_not_called_cancelled(clock):
    login = Login(squeue=[queue_row("17_5"), ""], sacct=account_row("17_1"))
    assert _states(adapter(login, clock), clock, "17_5", looks=8)[-1] is JobState.LOST


def test_an_element_of_an_array_that_nobody_ever_saw_is_absent_and_nothing_more(clock):
    seen = adapter(Login(), clock).observe([JobRef(id="17_5")])
    assert (dict(seen.jobs), seen.absent) == ({}, (JobRef(id="17_5"),))


def test_one_row_of_accounting_speaks_for_all_that_were_cancelled_together(clock):
    login = Login(sacct=account_row("17_[2-9]", "CANCELLED by 1000", nodes="None assigned") + account_row("17_1"))
    seen = adapter(login, clock).observe([JobRef(id="17_5"), JobRef(id="17_1")]).jobs
    assert (seen["17_5"].state, seen["17_1"].state) == (JobState.CANCELLED, JobState.DONE)


def test_the_row_of_another_job_under_our_id_is_not_ours(clock):
    """A controller that crashed forgot our job, and the next submission of anybody's got its id."""
    login = Login(sbatch="17\n", squeue=["", queue_row(17, token=OTHER)], sacct="")
    login.answers["sacct"] = [account_row(17, "PENDING", token=TOKEN) + account_row(17, submit=1700000009, token=OTHER)]
    slurm = adapter(login, clock)
    ref = slurm.submit(request()).ref
    states = _states(slurm, clock, "17", looks=12)
    assert not {JobState.RUNNING, JobState.DONE} & set(states)
    assert states[0] is JobState.PENDING
    assert states[-1] is JobState.LOST
    assert slurm.observe([ref]).jobs["17"].token == TOKEN
    # Nor is that job touched in the name of ours.
    changes = slurm.cancel([JobRef(id="18"), ref])
    assert {change.ref.id: change.asked for change in changes} == {"17": False, "18": True}
    assert login.asked("scancel") == [["scancel", "18"]]


def test_the_newer_job_of_an_id_keeps_it(clock):
    login = Login(sbatch="17\n", squeue=[""], sacct="")
    slurm = adapter(login, clock)
    slurm.submit(request())
    clock.advance(5.0)
    newer = JobRequest(token=OTHER, name="x", script="#!/bin/sh\n")
    login.answers["squeue"] = ["", queue_row(17, token=OTHER)]
    ref = slurm.submit(newer).ref
    view = slurm.observe([ref]).jobs["17"]
    assert (view.token, view.state) == (OTHER, JobState.RUNNING)
    # What the records know of the older one does not take the id back.
    slurm.remember([replace(view, token=TOKEN, submit_utc=1699999000.0, state=JobState.PENDING)])
    assert slurm.observe([ref]).jobs["17"].token == OTHER
    login.answers["squeue"] = [""]
    both = account_row(17, "PENDING", token=TOKEN) + account_row(17, submit=1700000009, token=OTHER)
    login.answers["sacct"] = [both]
    ended = slurm.observe([ref]).jobs["17"]
    assert (ended.state, ended.restarts, ended.token) == (JobState.DONE, 0, OTHER)


def test_both_jobs_of_an_id_are_found_by_their_tokens(clock):
    rows = account_row(17, "PENDING", token=TOKEN) + account_row(17, submit=1700000009, token=OTHER)
    login = Login(sacct=rows, id="u\n")
    slurm = adapter(login, clock)
    assert slurm.find(OTHER).jobs["17"].state is JobState.DONE
    assert not slurm.find(TOKEN).jobs["17"].state.ended
    assert slurm.observe([JobRef(id="17")]).jobs["17"].token == OTHER


def test_a_listing_takes_nothing_over_from_the_job_that_had_the_id(clock):
    login = Login(squeue=[queue_row(17, "NODE_FAIL", token=TOKEN), wide_row(17, OTHER, "RUNNING")], sacct="")
    slurm = adapter(login, clock)
    slurm.observe([JobRef(id="17")])
    seen = slurm.mine().jobs["17"]
    assert (seen.token, seen.state, seen.restarts) == (OTHER, JobState.RUNNING, None)


def test_every_source_tells_the_account_and_the_qos_and_what_was_told_stays(clock):
    login = Login(sbatch="17\n", squeue=["", wide_row(17, TOKEN, "RUNNING"), queue_row(17, token=TOKEN), ""])
    login.answers["sacct"] = [account_row(17, token=TOKEN)]
    slurm = adapter(login, clock)
    ref = slurm.submit(request()).ref
    looks = [slurm.mine().jobs["17"], slurm.observe([ref]).jobs["17"], slurm.observe([ref]).jobs["17"]]
    assert [view.state for view in looks] == [JobState.RUNNING, JobState.RUNNING, JobState.DONE]
    assert {(view.account, view.qos) for view in looks} == {("lab", "normal")}
    # Another process that meets it only in accounting.
    late = adapter(Login(squeue="", sacct=account_row(17, token=TOKEN)), clock).observe([ref]).jobs["17"]
    assert (late.account, late.qos) == ("lab", "normal")
    # A site without accounts has nothing to tell.
    row = wide_row(18, OTHER).replace(f"{US}lab{US}normal{US}", f"{US}(null){US}(null){US}")
    view = adapter(Login(squeue=row), clock).mine().jobs["18"]
    assert (view.account, view.qos) == ("", "")


def test_a_row_whose_name_and_comment_the_site_rewrote_may_be_ours(clock):
    login = Login(sbatch="17\n", squeue=["", queue_row(17)])
    slurm = adapter(login, clock)
    ref = slurm.submit(request()).ref
    assert slurm.observe([ref]).jobs["17"].state is JobState.RUNNING
    # The same, but of a job that is far older than our submission.
    clock.advance(86_400.0)
    again = adapter(Login(sbatch="17\n", squeue=["", queue_row(17)], sacct=""), clock)
    ref = again.submit(request()).ref
    assert again.observe([ref]).jobs["17"].state is JobState.UNKNOWN


SILENT = ("", "squeue: error: Unable to contact slurm controller (connect failure)", 1, "")


@pytest.mark.parametrize("silent", (NO_ANSWER, SILENT), ids=("no answer", "no controller"))
def test_after_one_question_without_an_answer_the_next_ones_get_none_at_once(clock, silent):
    login = Login(squeue=silent, scontrol=silent, sbatch=silent, id="u\n")
    slurm = adapter(login, clock)
    assert not slurm.mine().answered
    limits = slurm.limits()
    assert not limits.answered
    assert limits.problems[0].startswith("the scheduler gave no answer (squeue: ")
    assert slurm.test_only(request()).possible is None
    assert slurm.submit(request()).code == "no_answer"
    assert [argv[0] for argv in login.calls] == ["squeue"]
    clock.advance(8.0)
    assert not slurm.limits().answered
    assert [argv[0] for argv in login.calls] == ["squeue", "scontrol"]


def test_a_command_that_was_slow_to_fail_counts_as_no_answer(clock):
    login = Login(squeue=("", "squeue: error: s_p_parse_file: cannot stat file /nowhere", 1, ""))
    slurm = adapter(login, clock)
    assert not slurm.mine().answered
    assert "cannot stat file /nowhere" in slurm.mine().problems[0]
    assert len(login.calls) == 1


def test_a_refusal_is_an_answer_and_a_cancel_is_always_sent(clock):
    login = Login(squeue=[("", "slurm_load_jobs error: Access denied", 1, ""), NO_ANSWER], scancel="")
    slurm = adapter(login, clock)
    slurm.mine()
    slurm.mine()
    assert len(login.calls) == 2
    assert slurm.cancel([JobRef(id="17")])[0].asked
    login.answers["scancel"] = [NO_ANSWER]
    many = [JobRef(id=str(number)) for number in range(1, 500)]
    assert not any(change.asked for change in slurm.cancel(many))
    assert len(login.asked("scancel")) == 2


def test_what_the_site_is_is_asked_for_with_less_patience(clock):
    class Timed(Login):
        def run(self, argv, **named):
            self.waits = {**getattr(self, "waits", {}), argv[0]: named["timeout_s"]}
            return super().run(argv, **named)

    login = Timed(squeue="", scontrol=("", "", None, "timed out"))
    slurm = adapter(login, clock)
    slurm.mine()
    slurm.limits()
    assert login.waits == {"squeue": 60.0, "scontrol": 20.0}


_UP, _DOWN = "NodeName=n1 State=MIXED Reason=\n", "NodeName=n2 State=DOWN* Reason=Not responding\n"


@pytest.mark.parametrize(
    ("said", "down"),
    (
        (_UP + _DOWN, {"n2": "down and not_responding: Not responding"}),
        ((_UP + _DOWN, "scontrol: Node laptop not found", 1, ""), {"n2": "down and not_responding: Not responding"}),
        (_UP, {}),
        (("", "slurm_load_node error: Unable to contact slurm controller", 1, ""), None),
        (NO_ANSWER, None),
    ),
)
def test_nodes_that_are_down_are_told_and_no_answer_is_none(clock, said, down):
    login = Login(scontrol=said)
    assert adapter(login, clock).nodes_down(["laptop", "n1", "n2"]) == down
    assert login.calls == [["scontrol", "--oneliner", "show", "node", "laptop,n1,n2"]]
