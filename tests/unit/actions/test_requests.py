"""Cancel and retry: what they name, what they refuse and why, and what they leave on disk."""

from __future__ import annotations

import json
import os
from contextlib import suppress

import pytest

from fleetcraft.actions.requests import cancel, drain, limit, resume, retry, stop
from fleetcraft.actions.selection import Selection
from fleetcraft.core.errors import OutOfReach, UsageError
from fleetcraft.core.names import TaskId
from fleetcraft.core.states import TaskState
from fleetcraft.spool.life import Life
from fleetcraft.spool.permits import list_permits
from fleetcraft.spool.reading import SpoolFold
from fleetcraft.spool.requests import RequestLog
from fleetcraft.spool.retry import open_generation
from fleetcraft.spool.spool import Spool
from fleetcraft.testing.files import Crash, CrashingFiles, FaultyFiles, LostReplyFiles
from tests.support.enqueuing import make_spool, options, stream, tokens
from tests.unit.actions.handwork import claim_all, end, fail, start, succeed, work

ALL = Selection(everything=True)
FAILED = Selection(states=frozenset({TaskState.FAILED}))


@pytest.fixture
def spool(tmp_path):
    return make_spool(tmp_path)


@pytest.fixture
def life(spool):
    return Life.begin(spool)


def put(spool, count=5, **more):
    stream(spool, [{"name": f"t{n}", "command": ["true"], **more} for n in range(count)])


def named(*names):
    return Selection(names=names)


def token_names(spool):
    return [token.name for token in tokens(spool)]


def states(spool):
    reader = SpoolFold(spool)
    reader.requests.refresh(force=True)
    reader.refresh()
    return [reader.fold.verdict(1, index).state for index in range(5)]


def test_a_retry_opens_the_next_generation_of_what_failed(spool, life):
    put(spool)
    work(spool, life, lambda _, index: ("failed", "failed") if index in (1, 2, 4) else succeed(0, 0))
    result = retry(spool, FAILED)
    assert (result.retried, result.names, result.requests) == (3, ["t1", "t2", "t4"], ["b1.1.json"])
    assert token_names(spool) == ["c1.500.1.1-3.g1.a1", "c1.500.1.4-5.g1.a1"]
    with open(os.path.join(spool.layout.requests, "b1.1.json"), encoding="utf-8") as source:
        body = json.load(source)
    assert body["kind"] == "retry"
    assert body["items"] == [[1, 1, [[1, 3], [4, 5]]]]
    assert work(spool, life, succeed) == 3
    assert states(spool) == [TaskState.SUCCEEDED] * 5
    assert retry(spool, FAILED).retried == 0


def test_a_second_retry_is_refused_with_what_happened(spool, life):
    put(spool, 1)
    work(spool, life)
    assert retry(spool, named("t0")).retried == 1
    again = retry(spool, named("t0"))
    assert (again.retried, again.refused.count) == (0, 1)
    assert again.refused.shown[0].reason == "it was retried already (generation 1) and waits for a worker"
    assert token_names(spool) == ["c1.500.1.0-1.g1.a1"]
    work(spool, life)
    third = retry(spool, named("t0"))
    assert third.requests == ["b1.2.json"]
    assert token_names(spool) == ["c1.500.1.0-1.g2.a1"]


def test_what_has_not_ended_is_refused_with_its_reason(spool, life):
    put(spool)
    stream(spool, [{"name": "late", "command": ["true"], "after": ["t0"]}])
    waiting = retry(spool, ALL)
    assert waiting.refused.by_state == {TaskState.WAITING: 5, TaskState.HELD: 1}
    claim = claim_all(life)[0]
    start(life, 1, 2, claim)
    result = retry(spool, ALL)
    assert result.retried == 0
    assert result.refused.by_state == {TaskState.RUNNING: 1, TaskState.CLAIMED: 4, TaskState.HELD: 1}
    reasons = {refusal.name: refusal.reason for refusal in result.refused.shown}
    assert reasons["t2"] == f"attempt 1 runs on {life.id}; cancel it first"
    assert reasons["t1"] == f"{life.id} has claimed it"
    assert reasons["late"] == "it waits for other tasks"
    assert retry(spool, ALL, running="skip").refused.count == 0


def test_successes_are_run_again_only_when_asked_for(spool, life):
    put(spool, 3)
    work(spool, life, succeed)
    result = retry(spool, ALL)
    assert (result.retried, result.refused.by_state) == (0, {TaskState.SUCCEEDED: 3})
    assert retry(spool, named("t1"), succeeded=True).retried == 1
    assert token_names(spool) == ["c1.500.1.1-2.g1.a1"]
    work(spool, life, fail)
    assert states(spool)[:3] == [TaskState.SUCCEEDED, TaskState.FAILED, TaskState.SUCCEEDED]
    work(spool, life)
    assert retry(spool, FAILED).names == ["t1"]


def test_a_cancelled_task_is_retried_once_its_end_is_written_down(spool, life):
    put(spool, 2)
    assert cancel(spool, named("t1"), reason="wrong seed").names == ["t1"]
    early = retry(spool, named("t1"))
    assert early.refused.shown[0].reason == "it was cancelled, and no worker has written that down yet"
    work(spool, life, succeed)
    assert states(spool)[:2] == [TaskState.SUCCEEDED, TaskState.CANCELLED]
    assert retry(spool, named("t1")).retried == 1
    assert work(spool, life, succeed) == 1
    assert states(spool)[:2] == [TaskState.SUCCEEDED] * 2


def test_a_running_cancelled_task_is_refused_until_its_attempt_ended(spool, life):
    put(spool, 1)
    claim = claim_all(life)[0]
    start(life, 1, 0, claim)
    cancel(spool, ALL)
    assert "attempt 1 on" in retry(spool, ALL).refused.shown[0].reason
    end(life, 1, 0, claim, "cancelled", "cancelled")
    assert retry(spool, ALL).retried == 1


def test_a_cancel_never_meets_a_later_retry(spool, life):
    put(spool, 1)
    work(spool, life)
    assert cancel(spool, ALL).refused.by_state == {TaskState.FAILED: 1}
    assert cancel(spool, ALL).request is None
    retry(spool, ALL)
    assert cancel(spool, ALL).cancelled == 1
    log = RequestLog(spool)
    log.refresh()
    assert [(batch, gen, list(ranges)) for batch, gen, ranges in log.cancels] == [(1, 1, [(0, 1)])]
    work(spool, life)
    assert retry(spool, ALL).retried == 1
    assert work(spool, life, succeed) == 1


def test_a_cancel_says_what_it_left_alone(spool, life):
    put(spool, 30)
    work(spool, life, lambda _, index: succeed(0, 0) if index < 25 else fail(0, 0))
    stream(spool, [{"name": "more", "command": ["true"]}])
    result = cancel(spool, ALL)
    assert (result.cancelled, result.names) == (1, ["more"])
    assert result.refused.by_state == {TaskState.SUCCEEDED: 25, TaskState.FAILED: 5}
    assert len(result.refused.shown) == 20
    again = cancel(spool, named("more"))
    assert again.refused.shown[0].reason == "it was cancelled already"
    assert again.request is None


def test_held_tasks_that_are_retried_wait_on(spool, life):
    """Cancelled before it was due, a task must not run before what it waits for."""
    put(spool, 1)
    stream(spool, [{"name": "late", "command": ["true"], "after": ["t0"]}])
    cancel(spool, named("late"))
    held = next(token for token in tokens(spool) if token.form == ".held")
    os.rename(spool.layout.token(held.name), spool.layout.token(held.waiting().name))  # as a worker releases it
    work(spool, life, lambda batch, _: fail(0, 0) if batch == 1 else succeed(0, 0))
    assert retry(spool, named("late")).retried == 1
    assert "c1.500.2.0-1.g1.a1.held" in token_names(spool)
    retry(spool, named("t0"))
    work(spool, life, succeed)
    cancel(spool, named("late"))
    assert "c1.500.2.0-1.g1.a1.held" in token_names(spool)


def test_held_tasks_that_ran_are_retried_at_once(spool, life):
    put(spool, 1)
    stream(spool, [{"name": "late", "command": ["true"], "after": ["t0"]}])
    work(spool, life, succeed)
    held = next(token for token in tokens(spool) if token.form == ".held")
    os.rename(spool.layout.token(held.name), spool.layout.token(held.waiting().name))
    work(spool, life, fail)
    retry(spool, named("late"))
    assert token_names(spool) == ["c1.500.2.0-1.g1.a1"]


def test_tasks_of_a_folded_batch_are_retried_where_they_stand_now(spool, life):
    from fleetcraft.spool.folding import fold_small

    for number in range(70):
        stream(spool, [{"name": f"f{number}", "command": ["true"]}])
    fold_small(spool)
    assert spool.is_folded(10)
    assert spool.is_folded(11)
    work(spool, life, lambda batch, _: fail(0, 0) if batch in (10, 11) else succeed(0, 0))
    result = retry(spool, FAILED)
    assert (result.names, result.requests) == (["f9", "f10"], ["b10.1.json", "b11.1.json"])
    cover = spool.locate(TaskId(10, 0))
    assert cover is not None
    number, position = cover[0].number, cover[1]
    assert set(token_names(spool)) == {
        f"c1.500.{number}.{position + step}-{position + step + 1}.g1.a1" for step in (0, 1)
    }  # fmt: skip
    assert work(spool, life, succeed) == 2
    assert retry(spool, named("f9")).refused.by_state == {TaskState.SUCCEEDED: 1}


@pytest.mark.parametrize("steps_done", range(40))
def test_two_retries_that_meet_open_one_generation(tmp_path, steps_done):
    """The other retry happens just before operation `steps_done` of ours."""
    spool = make_spool(tmp_path)
    put(spool, 3)
    work(spool, Life.begin(spool))
    others: list[int] = []
    left = [steps_done]

    def other(operation):
        del operation
        left[0] -= 1
        if left[0] == -1:
            others.append(retry(Spool.open(spool.layout.root), named("t0", "t1")).retried)

    files = FaultyFiles(fault=other)
    mine = retry(Spool.open(spool.layout.root, files=files), named("t1", "t2"))
    assert mine.retried + sum(others) == (3 if others else 2)
    if others:
        offered = sorted(index for token in tokens(spool) for index in range(token.start, token.stop))
        assert offered == [0, 1, 2]
    assert {(token.form, token.gen) for token in tokens(spool)} == {("", 1)}


def _retry_operations(folder):
    spool = make_spool(folder)
    put(spool, 3)
    work(spool, Life.begin(spool))
    files = CrashingFiles()
    retry(Spool.open(spool.layout.root, files=files), ALL)
    return files.count


@pytest.mark.parametrize("after", (False, True), ids=("before", "after"))
def test_a_retry_that_dies_at_any_step_is_finished_or_never_was(tmp_path, after):
    for at in range(_retry_operations(tmp_path / "count")):
        spool = make_spool(tmp_path / str(at))
        put(spool, 3)
        life = Life.begin(spool)
        work(spool, life)
        dying = CrashingFiles(at=at, after=after)
        with suppress(Crash):  # a look that finds nothing has no time after it to die in
            retry(Spool.open(spool.layout.root, files=dying), ALL)
        assert dying.crashed or after
        retry(spool, ALL)
        assert work(spool, life, succeed) == 3, f"step {at}"
        assert states(spool)[:3] == [TaskState.SUCCEEDED] * 3
        assert {token.gen for token in tokens(spool)} <= {1}


def test_an_error_at_any_step_of_a_retry_leaves_no_task_without_cover(tmp_path):
    for at in range(_retry_operations(tmp_path / "count")):
        spool = make_spool(tmp_path / str(at))
        put(spool, 3)
        life = Life.begin(spool)
        work(spool, life)
        left = [at]

        def fail_once(operation, left=left):
            del operation
            left[0] -= 1
            return 5 if left[0] == -1 else None

        try:
            retry(Spool.open(spool.layout.root, files=FaultyFiles(fault=fail_once)), ALL)
        except OSError as error:
            assert error.errno == 5  # noqa: PT017  success is as good an answer
        except OutOfReach as error:
            assert error.hint  # noqa: PT017  as above
        retry(spool, ALL)
        assert work(spool, life, succeed) == 3, f"step {at}"


def test_a_lost_reply_to_the_commit_of_a_retry_is_taken_for_what_it_was(spool, life):
    put(spool, 2)
    work(spool, life)
    files = LostReplyFiles(lose=lambda operation: operation.kind == "link", retransmitted=True)
    assert retry(Spool.open(spool.layout.root, files=files), ALL).retried == 2
    assert files.lost
    assert token_names(spool) == ["c1.500.1.0-2.g1.a1"]


def test_a_retry_gives_up_when_it_always_loses(spool, life):
    put(spool, 1)
    work(spool, life)

    def taken(operation):
        if operation.kind == "link":
            number = len(os.listdir(spool.layout.requests))
            with open(os.path.join(spool.layout.requests, f"b1.{number}.json"), "x", encoding="utf-8") as target:
                target.write('{"kind": "retry", "owner": "q0", "items": [[1, 0, []]]}')

    reader = SpoolFold(Spool.open(spool.layout.root, files=FaultyFiles(fault=taken)), durable=True)
    with pytest.raises(OutOfReach, match="came first"):
        open_generation(reader.spool, reader, 1, lambda _: {1: _range(0, 1)})
    assert tokens(spool) == []


def _range(start, stop):
    from fleetcraft.core.ranges import RangeSet

    return RangeSet([(start, stop)])


def test_stop_and_resume_are_requests_with_numbers(spool):
    assert [stop(spool, reason="disk"), resume(spool), stop(spool)] == [1, 2, 3]
    log = RequestLog(spool)
    log.refresh()
    assert log.stopped


def test_drain_names_workers_that_have_not_ended(spool):
    first, second = Life.begin(spool), Life.begin(spool)
    ended = Life.begin(spool)
    ended.close()
    assert drain(spool, [first.id]) == [first.id]
    assert drain(spool, [second.id[:-2]]) == [second.id]
    assert set(drain(spool)) == {first.id, second.id}
    log = RequestLog(spool)
    log.refresh()
    assert log.drained == {first.id, second.id}
    with pytest.raises(UsageError, match="has ended"):
        drain(spool, [ended.id])
    with pytest.raises(UsageError, match="begins the ids of 2 workers"):
        drain(spool, [first.id[: first.id.index("-") + 1]])
    with pytest.raises(UsageError, match="There is no worker 'nobody'"):
        drain(spool, ["nobody"])


def test_drain_without_workers_asks_nobody(spool):
    assert drain(spool) == []
    assert os.listdir(spool.layout.requests) == []


def test_limits_make_permits(spool):
    limit(spool, "scratch_io", 3)
    assert len(list_permits(spool)) == 3
    limit(spool, "family:train", 2)
    for name, ceiling in (("a b", 1), ("_folding", 1), ("x", -1), ("x", 10**6)):
        with pytest.raises(UsageError):
            limit(spool, name, ceiling)


def test_nothing_named_is_refused(spool):
    put(spool, 1)
    for action in (cancel, retry):
        with pytest.raises(UsageError, match="No task was named"):
            action(spool, Selection())


def test_shared_options_do_not_matter_to_a_retry(spool, life):
    stream(spool, "false\n", options(retries=3, priority=700))
    work(spool, life)
    assert retry(spool, ALL).retried == 1
    assert token_names(spool) == ["c1.700.1.0-1.g1.a1"]
