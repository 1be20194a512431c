"""What every scheduler promises behind the seam, shown on each that can be run here."""

from __future__ import annotations

import random
import shlex
import time

import pytest

from fleetcraft.core.errors import UsageError
from fleetcraft.core.states import JobState
from fleetcraft.schedulers.api import JobRef, Retry, SubmitOutcome
from tests.conformance.schedulers.sites import Meddling, no_answer, refused
from tests.support.waiting import wait_for

_LIVE = (JobState.PENDING, JobState.RUNNING, JobState.ENDING, JobState.UNKNOWN)


def needs(what):
    return pytest.mark.needs(what)


@needs("runs")
def test_a_job_runs_from_submission_to_its_end(site):
    said = site.file("said")
    request = site.request(
        f"echo $FLEETCRAFT_TEST_WORD; echo began >{said}",
        env={"FLEETCRAFT_TEST_WORD": "a, b'c"},
        output=str(site.folder / "new" / "folder" / "out.log"),
    )
    before = time.time()
    reply = site.scheduler.submit(request)
    assert reply.outcome is SubmitOutcome.SUBMITTED
    view = site.wait(reply.ref, lambda seen: seen.state.ended and seen.exit_code is not None, "the job has ended")
    assert (view.state, view.exit_code) == (JobState.DONE, 0)
    assert view.token in (request.token, "")
    assert view.start_utc is not None
    assert before - 2 <= view.start_utc <= view.end_utc <= time.time() + 2
    assert said.read_text() == "began\n"
    assert (site.folder / "new" / "folder" / "out.log").read_text() == "a, b'c\n"


@needs("runs")
def test_a_failing_script_is_failed_with_its_code(site):
    ref = site.submit("exit 7")
    view = site.wait(ref, lambda seen: seen.state.ended and seen.exit_code is not None, "the job has ended")
    assert (view.state, view.exit_code) == (JobState.FAILED, 7)


@needs("runs")
def test_running_is_seen_while_it_runs_and_cancel_ends_it(site):
    began = site.file("began")
    ref = site.submit(f"echo x >{began}; sleep 300")
    site.wait(ref, lambda seen: seen.state is JobState.RUNNING and began.exists(), "it runs")
    changes = site.scheduler.cancel([ref])
    assert [(change.ref, change.asked) for change in changes] == [(ref, True)]
    view = site.wait(ref, lambda seen: seen.state.ended, "it was cancelled")
    assert view.state is JobState.CANCELLED


@needs("runs")
def test_a_token_is_submitted_once_by_whoever_asks(site):
    runs = site.file("runs")
    request = site.request(f"echo ran >>{runs}")
    first = site.scheduler.submit(request)
    again = site.again(None).submit(request)
    assert (first.outcome, again.outcome) == (SubmitOutcome.SUBMITTED, SubmitOutcome.FOUND)
    assert again.ref == first.ref
    site.wait(first.ref, lambda seen: seen.state.ended, "the job has ended")
    assert site.scheduler.submit(request).outcome is SubmitOutcome.FOUND
    assert runs.read_text() == "ran\n"


@needs("lookup")
def test_find_tells_the_job_of_a_token_and_nothing_for_another(site):
    request = site.request("true")
    ref = site.scheduler.submit(request).ref
    found = site.scheduler.find(request.token)
    assert found.answered
    assert list(found.jobs) == [str(ref)]
    nothing = site.scheduler.find("fcaaaaaaaaaa")
    assert (nothing.answered, dict(nothing.jobs)) == (True, {})


def test_an_unknown_id_is_absent_and_ends_nothing(site):
    ref = site.submit("sleep 60")
    unknown = JobRef(id=site.unknown_id)
    seen = site.scheduler.observe([unknown, ref])
    assert seen.answered
    assert unknown in seen.absent
    assert str(unknown) not in seen.jobs
    assert not seen.jobs[str(ref)].state.ended
    assert all(change.ref == unknown for change in site.scheduler.cancel([unknown]))
    assert not site.view(ref).state.ended
    site.scheduler.cancel([ref])


@needs("runs")
def test_a_wrong_token_or_script_is_refused_before_anything_is_sent(site):
    with pytest.raises(UsageError):
        site.scheduler.submit(site.request("true", token="Not A Token"))
    with pytest.raises(UsageError):
        site.scheduler.find("../../etc")


def test_words_for_a_step_hold_the_command_word_by_word(site):
    assert site.scheduler.command(["prog", "a b", "$HOME"])[-3:] == ["prog", "a b", "$HOME"]


@needs("begin")
def test_a_waiting_job_is_pending_with_its_reason_and_can_be_cancelled(site):
    ran = site.file("ran")
    ref = site.submit(f"echo x >{ran}", begin_utc=time.time() + 3600)
    view = site.wait(ref, lambda seen: seen.reason == "BeginTime", "it waits")
    assert view.state is JobState.PENDING
    assert view.reason_text or "books" in site.can  # the fake gives reasons, and no sentences
    site.scheduler.cancel([ref])
    assert site.wait(ref, lambda seen: seen.state.ended, "it was cancelled").state is JobState.CANCELLED
    assert not ran.exists()


@needs("hold")
def test_a_held_job_waits_for_its_release(site):
    ref = site.submit("true", hold=True)
    site.wait(ref, lambda seen: seen.state is JobState.HELD, "it is held")
    assert site.scheduler.release([ref])[0].asked
    assert site.wait(ref, lambda seen: seen.state.ended, "it ran").state is JobState.DONE


@needs("hold")
def test_a_waiting_job_can_be_held(site):
    ref = site.submit("true", begin_utc=time.time() + 3600)
    assert site.scheduler.hold([ref])[0].asked
    site.wait(ref, lambda seen: seen.state is JobState.HELD, "it is held")


@needs("depends")
def test_a_successor_starts_when_the_other_has_ended_however(site):
    gate, order = site.file("gate"), site.file("order")
    first = site.submit(f"while [ ! -e {gate} ]; do sleep 0.1; done; echo first >>{order}; exit 1")
    second = site.submit(f"echo second >>{order}", after_any=(first,))
    site.wait(second, lambda seen: seen.reason == "Dependency", "the second waits")
    gate.touch()
    site.wait(second, lambda seen: seen.state.ended, "the second has ended")
    assert order.read_text() == "first\nsecond\n"


@needs("signal")
def test_a_signal_reaches_the_script_and_its_processes_and_ends_nothing(site):
    ready, got, child = site.file("ready"), site.file("got"), site.file("child")
    ref = site.submit(
        f"trap 'echo script >{got}' USR1",
        f"bash -c \"trap 'echo child >{child}' USR1; touch {ready}; for i in {{1..600}}; do sleep 0.1; done\" &",
        "for i in {1..600}; do sleep 0.1; [ -s " + str(got) + " ] && [ -s " + str(child) + " ] && exit 0; done",
    )
    wait_for(ready.exists, "the job is ready", seen=lambda: site.view(ref))
    # The trap of the script stands before the file does.
    assert site.scheduler.cancel([ref], signal="USR1")[0].asked
    view = site.wait(ref, lambda seen: seen.state.ended, "the job has ended")
    assert view.state is JobState.DONE
    assert (got.read_text(), child.read_text()) == ("script\n", "child\n")


@pytest.mark.slow
@pytest.mark.timeout(300)
@needs("time_limit")
def test_the_time_limit_ends_a_job_and_its_signal_comes_before(site):
    got = site.file("got")
    wishes = {"time_limit_s": site.shortest_limit_s}
    if "early_signal" in site.can:
        wishes |= {"signal": "USR1", "signal_before_s": site.shortest_limit_s / 2}
    ref = site.submit(f"trap 'echo told >{got}' USR1", "while true; do sleep 0.2; done", **wishes)
    view = site.wait(ref, lambda seen: seen.state.ended, "the time limit has ended it", 200.0)
    # PSI/J has one word for every bad end.
    assert view.state in ((JobState.TIMEOUT,) if "early_signal" in site.can else (JobState.TIMEOUT, JobState.LOST))
    assert "early_signal" not in site.can or got.read_text() == "told\n"


@needs("nodes")
def test_a_step_runs_once_on_every_node(site):
    folder = site.file("nodes")
    folder.mkdir(mode=0o777)
    folder.chmod(0o777)
    words = site.scheduler.command(["sh", "-c", f'touch {folder}/"${{FLEETCRAFT_NODE:-$SLURMD_NODENAME}}"; exit 3'])
    ref = site.submit(shlex.join(words), nodes=2)
    view = site.wait(ref, lambda seen: seen.state.ended and seen.exit_code is not None, "the job has ended")
    assert (view.state, view.exit_code, view.node_count) == (JobState.FAILED, 3, 2)
    assert len(list(folder.iterdir())) == 2


@needs("mine")
def test_mine_shows_our_jobs_with_their_tokens(site):
    request = site.request("sleep 60")
    ref = site.scheduler.submit(request).ref
    view = site.scheduler.mine().jobs[str(ref)]
    assert (view.token, view.name) == (request.token, f"conf.{request.token}")
    site.scheduler.cancel([ref])


@needs("account")
def test_a_job_tells_its_account_and_qos(site):
    ref = site.submit("sleep 60", account=site.account, qos=site.qos)
    for view in (site.scheduler.mine().jobs[str(ref)], site.view(ref)):
        assert (view.account, view.qos) == (site.account, site.qos)
    site.scheduler.cancel([ref])
    # Also for who meets it only when it has ended.
    again = site.again(None)
    ended = wait_for(
        lambda: (view := again.observe([ref]).jobs.get(str(ref))) and view.state.ended and view, "it has ended"
    )
    assert (ended.account, ended.qos) == (site.account, site.qos)


@needs("attach")
def test_another_process_sees_the_job_through_and_can_end_it(site):
    ref = site.submit("sleep 300")
    other = site.again(None)
    site.wait(ref, lambda seen: seen.state is JobState.RUNNING, "it runs")
    wait_for(
        lambda: (view := other.observe([ref]).jobs.get(str(ref))) and view.state is JobState.RUNNING,
        "another process sees it run",
    )
    assert other.cancel([ref])[0].asked
    assert site.wait(ref, lambda seen: seen.state.ended, "it has ended").state is JobState.CANCELLED


_SAID = (
    no_answer(["squeue"]),
    refused("slurm_load_jobs error: Unable to contact slurm controller (connect failure)"),
    refused("slurm_load_jobs error: Socket timed out on send/recv operation"),
    refused("squeue: command not found", 127),
)


@needs("command")
def test_a_question_that_failed_changes_nothing(site):
    ref = site.submit("sleep 300")
    site.wait(ref, lambda seen: seen.state is JobState.RUNNING, "it runs")
    meddling = Meddling(site.transport)
    other = site.again(meddling)
    assert other.observe([ref]).jobs[str(ref)].state is JobState.RUNNING
    for said in _SAID:
        meddling.fail = {site.question: said}
        seen = other.observe([ref])
        assert not seen.answered
        assert seen.problems
        assert seen.absent == ()
        assert seen.jobs[str(ref)].state is JobState.RUNNING
        assert seen.jobs[str(ref)].stale
        # One who never knew the job knows nothing now, and does not make it up.
        assert site.again(meddling).observe([ref]).jobs.get(str(ref), None) is None or "psij" in site.name
    meddling.fail = {}
    back = other.observe([ref])
    assert back.answered
    assert not back.jobs[str(ref)].stale
    site.scheduler.cancel([ref])


@needs("sacct")
def test_a_job_that_left_the_queue_keeps_its_state_while_accounting_is_silent(site):
    ref = site.submit("sleep 300")
    site.wait(ref, lambda seen: seen.state is JobState.RUNNING, "it runs")
    meddling = Meddling(site.transport)
    other = site.again(meddling)
    other.observe([ref])
    empty = refused("", 0)
    for silent in (no_answer(["sacct"]), refused("sacct: error: slurmdbd: Connection refused")):
        meddling.fail = {"squeue": empty, "sacct": silent}
        seen = other.observe([ref])
        assert seen.answered  # the queue did
        assert seen.problems
        assert ref not in seen.absent
        assert not seen.jobs[str(ref)].state.ended
    site.scheduler.cancel([ref])


@needs("sacct")
def test_one_question_for_the_queue_and_one_per_200_that_left_it(site):
    ref = site.submit("sleep 300")
    meddling = Meddling(site.transport)
    other = site.again(meddling)
    gone = [JobRef(id=str(9_000_000 + number)) for number in range(401)]
    seen = other.observe([ref, *gone])
    assert dict(meddling.counts) == {"squeue": 1, "sacct": 3}
    assert seen.queries == 4
    assert set(seen.absent) == set(gone)
    site.scheduler.cancel([ref])


@pytest.mark.slow
@pytest.mark.timeout(400)
@needs("lost_reply")
def test_a_hundred_lost_replies_submit_nothing_twice(site):
    """Each token is asked for until it stands, by a process that may forget everything in between."""
    meddling = Meddling(site.transport, seed=3, loss=0.3, never=0.15)
    scheduler = site.again(meddling)
    chance = random.Random(4)
    tokens: dict[str, JobRef] = {}
    while meddling.faults < 100:
        request = site.request("true", hold=True)
        for _ in range(60):
            if chance.random() < 0.3:
                # A new process: it only knows that the token was asked for, and looks it up before anything else.
                scheduler = site.again(meddling)
                found = scheduler.find(request.token)
                if found.jobs or not found.answered:
                    continue
            reply = scheduler.submit(request)
            if reply.ref is not None:
                tokens[request.token] = reply.ref
                break
            assert reply.retry in (Retry.LOOK_UP, Retry.TRANSIENT), reply
        else:
            pytest.fail(f"{request.token} was never submitted")
    seen = site.scheduler.mine()
    assert seen.answered
    by_token = [view.token for view in seen.jobs.values() if view.token in tokens]
    assert sorted(by_token) == sorted(tokens)
    assert {view.ref for view in seen.jobs.values() if view.token in tokens} == set(tokens.values())
