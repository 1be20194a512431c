from __future__ import annotations

import os
import shutil
import tempfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleetcraft.core.names import CLAIM, HELD, WAITING, Token
from fleetcraft.core.outcome import Fold
from fleetcraft.core.resources import Request
from fleetcraft.core.states import TaskState, WorkerState
from fleetcraft.readmodel.status import read_status
from fleetcraft.spool.life import Life
from fleetcraft.spool.reading import SpoolFold
from fleetcraft.spool.requests import CANCEL, RETRY, STOP, ask, commit
from fleetcraft.spool.spool import Spool
from tests.unit.readmodel.building import make_spool, only_token, publish, receipt, replace_tokens, started

HEARTBEAT = {
    "state": "up",
    "reason": "",
    "capacity": {"cpus": 4, "gpus": []},
    "running": [],
    "counts": {},
    "rate_per_s": 2.0,
}


def counts_of(spool: Spool) -> dict[str, int]:
    return {state.value: number for state, number in read_status(spool).counts.items() if number}


def test_an_empty_spool_has_nothing_in_the_way(tmp_path):
    view = read_status(make_spool(tmp_path))
    assert view.total == 0
    assert view.eta_s == 0.0
    assert view.in_the_way == ()


def test_every_state_is_counted_once(tmp_path):
    spool = make_spool(tmp_path)
    batch = publish(spool, [f"t{number}" for number in range(100)])
    life = Life.begin(spool)
    token = only_token(spool, batch)
    replace_tokens(spool, batch, [token.part(0, 50).owned(CLAIM, life.id), token.part(50, 100)])
    for index in range(10):
        started(life, batch, index)
        receipt(life, batch, index)
    receipt(life, batch, 10, "failed")
    receipt(life, batch, 11, "lost", final="quarantined")
    started(life, batch, 12)
    ask(spool, CANCEL, items=[[batch, 0, [[60, 65]]]])
    view = read_status(spool)
    found = {state.value: number for state, number in view.counts.items() if number}
    assert found == {
        "succeeded": 10, "failed": 1, "quarantined": 1, "running": 1, "cancelled": 5, "claimed": 37, "waiting": 45,
    }  # fmt: skip
    assert sum(found.values()) == view.total == 100
    assert view.as_json()["running"] == 1


def test_a_failed_attempt_with_budget_left_is_claimed_and_not_failed(tmp_path):
    spool = make_spool(tmp_path)
    batch = publish(spool, ["a"])
    life = Life.begin(spool)
    replace_tokens(spool, batch, [only_token(spool, batch).owned(CLAIM, life.id)])
    started(life, batch, 0)
    receipt(life, batch, 0, "failed", final="")
    assert counts_of(spool) == {"claimed": 1}


def test_a_cancel_of_a_running_task_waits_for_its_worker(tmp_path):
    spool = make_spool(tmp_path)
    batch = publish(spool, ["a", "b"])
    life = Life.begin(spool)
    started(life, batch, 0)
    ask(spool, CANCEL, items=[[batch, 0, [[0, 2]]]])
    assert counts_of(spool) == {"running": 1, "cancelled": 1}
    receipt(life, batch, 0, "cancelled")
    assert counts_of(spool) == {"cancelled": 2}


def test_a_retried_task_waits_again_and_its_old_cancel_does_not_meet_it(tmp_path):
    spool = make_spool(tmp_path)
    batch = publish(spool, ["a", "b"])
    ask(spool, CANCEL, items=[[batch, 0, [[0, 2]]]])
    items = [[batch, 1, [[0, 1]]]]
    commit(spool, {"kind": RETRY, "items": items, "owner": "q1"}, lambda number: f"b{batch}.{number}.json", 1)
    old = only_token(spool, batch)
    replace_tokens(spool, batch, [old.part(1, 2), Token(lane="c1", priority=500, batch=batch, start=0, stop=1, gen=1)])
    view = read_status(spool)
    assert (view.counts[TaskState.WAITING], view.counts[TaskState.CANCELLED], view.uncovered) == (1, 1, 0)


def test_a_group_of_short_calls_counts_one_running_for_each_slot(tmp_path):
    spool = make_spool(tmp_path)
    batch = publish(spool, [f"t{number}" for number in range(70)])
    life = Life.begin(spool)
    life.beat(HEARTBEAT)
    replace_tokens(spool, batch, [only_token(spool, batch).owned(CLAIM, life.id)])
    started(life, batch, 0, k=60, how="g")
    assert counts_of(spool) == {"running": 4, "claimed": 66}


def test_tasks_under_a_dead_worker_of_this_host_do_not_run(tmp_path):
    spool = make_spool(tmp_path)
    batch = publish(spool, ["a"])
    life = Life.begin(spool)
    replace_tokens(spool, batch, [only_token(spool, batch).owned(CLAIM, life.id)])
    started(life, batch, 0)
    assert counts_of(spool) == {"running": 1}
    identity = os.path.join(life.folder, "identity.json")
    with open(identity, encoding="utf-8") as source:
        text = source.read()
    with open(identity, "w", encoding="utf-8") as target:
        # A pid that cannot be: above the largest that the kernel gives out.
        target.write(text.replace(f'"pid":{os.getpid()}', '"pid":4194305'))
    view = read_status(spool)
    assert view.counts[TaskState.CLAIMED] == 1
    assert view.workers[0].state is WorkerState.LOST
    assert any("is lost" in sentence for sentence in view.in_the_way)


def test_held_tasks_are_blocked_through_any_number_of_steps(tmp_path):
    spool = make_spool(tmp_path)
    first = publish(spool, ["a", "b"])
    publish(spool, ["c", "d", "e", "f"], after={"c": ["a"], "d": ["c"], "e": ["b"], "f": ["batch:1"]})
    assert counts_of(spool) == {"waiting": 2, "held": 4}
    receipt(Life.begin(spool), first, 0, "failed")
    view = read_status(spool)
    assert view.counts[TaskState.BLOCKED] == 3
    assert view.counts[TaskState.HELD] == 1
    assert any("blocked" in sentence for sentence in view.in_the_way)


def test_what_waits_for_a_name_in_a_ring_does_not_hang_the_reading(tmp_path):
    spool = make_spool(tmp_path)
    first = publish(spool, ["x"])
    publish(spool, ["a", "b", "c"], after={"a": ["b"], "b": ["a"], "c": ["x"]})
    receipt(Life.begin(spool), first, 0, "failed")
    assert counts_of(spool) == {"failed": 1, "blocked": 1, "held": 2}


def test_a_waiting_task_without_a_token_is_said_to_be_uncovered(tmp_path):
    spool = make_spool(tmp_path)
    batch = publish(spool, ["a", "b", "c"])
    replace_tokens(spool, batch, [only_token(spool, batch).part(0, 1)])
    view = read_status(spool)
    assert view.uncovered == 2
    assert view.counts[TaskState.WAITING] == 3
    assert any("spool check --repair" in sentence for sentence in view.in_the_way)


def test_gpus_that_no_worker_has_stand_in_the_way(tmp_path):
    spool = make_spool(tmp_path)
    publish(spool, ["a"], request=Request(gpus=1.0))
    life = Life.begin(spool)
    life.beat(HEARTBEAT)
    view = read_status(spool)
    assert view.workers[0].state is WorkerState.UP
    assert [sentence for sentence in view.in_the_way if "no worker has any" in sentence]
    assert view.rate_per_s == 2.0
    assert view.eta_s == 0.5


def test_a_stopped_spool_is_said_first(tmp_path):
    spool = make_spool(tmp_path)
    publish(spool, ["a"])
    ask(spool, STOP, reason="maintenance")
    assert "maintenance" in read_status(spool).in_the_way[0]


def test_foreign_names_and_damaged_records_are_counted(tmp_path):
    spool = make_spool(tmp_path)
    batch = publish(spool, ["a", "b"])
    life = Life.begin(spool)
    receipt(life, batch, 0)
    with open(os.path.join(life.folder, "journal.jsonl"), "ab") as journal:
        journal.write(b"\0\0\0 torn\n")
    with open(os.path.join(spool.layout.tokens, "somebody's notes"), "wb"):
        pass
    view = read_status(spool)
    assert view.foreign == 1
    assert view.damaged >= 1
    assert view.counts[TaskState.SUCCEEDED] == 1


@pytest.mark.parametrize("age_s", (0.0, 1000.0))
def test_a_silent_worker_of_another_host_is_stale_and_never_lost(tmp_path, age_s):
    spool = make_spool(tmp_path)
    publish(spool, ["a"])
    life = Life.begin(spool)
    life.beat(HEARTBEAT)
    for name, key in (("identity.json", '"boot_id":"'), ("heartbeat.json", '"at_utc":')):
        path = os.path.join(life.folder, name)
        with open(path, encoding="utf-8") as source:
            text = source.read()
        if name == "identity.json":
            text = text.replace(key, key + "other-")
        else:
            at_utc = text.split(key)[1].split(",")[0]
            text = text.replace(at_utc, str(float(at_utc) - age_s))
        with open(path, "w", encoding="utf-8") as target:
            target.write(text)
    expected = WorkerState.STALE if age_s else WorkerState.UP
    assert read_status(spool).workers[0].state is expected


# The property: whatever stands in journals, requests and tokens, each task is in one state, by the stated order.

_OUTCOMES = st.sampled_from(
    (
        ("succeeded", "succeeded"),
        ("failed", "failed"),
        ("failed", ""),
        ("lost", ""),
        ("lost", "quarantined"),
        ("cancelled", "cancelled"),
    )
)
_INDEX = st.integers(0, 79)
_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("started"), _INDEX, st.integers(1, 3), st.integers(0, 1)),
        st.tuples(st.just("receipt"), _INDEX, st.integers(1, 3), st.integers(0, 1), _OUTCOMES),
        st.tuples(st.just("many"), _INDEX, st.integers(1, 40)),
        st.tuples(st.just("cancel"), _INDEX, st.integers(1, 30), st.integers(0, 1)),
        st.tuples(st.just("retry"), _INDEX, st.integers(1, 10)),
    ),
    max_size=25,
)
_FORMS = st.lists(
    st.tuples(st.integers(1, 30), st.sampled_from((WAITING, CLAIM, HELD, "none")), st.integers(0, 1)),
    min_size=1,
    max_size=8,
)


@settings(max_examples=60)
@given(size=st.integers(1, 80), steps=_STEPS, forms=_FORMS)
def test_each_task_is_in_exactly_the_state_that_the_records_say(size, steps, forms):
    root = tempfile.mkdtemp(prefix="fleetcraft-status-")
    try:
        _check_states(root, size, steps, forms)
    finally:
        shutil.rmtree(root)


def _check_states(root, size, steps, forms):
    spool = make_spool(root)
    batch = publish(spool, [f"t{number}" for number in range(size)])
    life = Life.begin(spool)
    tokens = _tokens(spool, batch, size, forms, life)
    replace_tokens(spool, batch, tokens)
    retries = 0
    for step in steps:
        index = step[1] % size
        if step[0] == "started":
            started(life, batch, index, attempt=step[2], gen=step[3])
        elif step[0] == "receipt":
            receipt(life, batch, index, step[4][0], final=step[4][1], attempt=step[2], gen=step[3])
        elif step[0] == "many":
            life.record(
                {
                    "t": "receipt",
                    "b": batch,
                    "i": index,
                    "g": 0,
                    "a": 1,
                    "k": min(step[2], size - index),
                    "o": "succeeded",
                    "final": "succeeded",
                }
            )
        elif step[0] == "cancel":
            ask(spool, CANCEL, items=[[batch, step[3], [[index, min(size, index + step[2])]]]])
        else:
            retries += 1
            items = [[batch, 1, [[index, min(size, index + step[2])]]]]
            body = {"kind": RETRY, "items": items, "owner": f"q{retries}"}
            commit(spool, body, f"b{batch}.{retries}.json".format, 1)
    view = read_status(spool)
    reader = SpoolFold(spool, shortcuts=False)
    reader.refresh()
    expected = [_state(reader.fold, batch, index, tokens) for index in range(size)]
    assert view.counts == {state: expected.count(state) for state in TaskState}
    assert sum(view.counts.values()) == view.total == size
    ended = reader.fold.counts()
    for state in (TaskState.SUCCEEDED, TaskState.FAILED, TaskState.QUARANTINED):
        assert view.counts[state] == ended[state]


def _tokens(spool, batch, size, forms, life):
    whole, tokens, at = only_token(spool, batch), [], 0
    for width, form, gen in forms:
        stop = min(size, at + width)
        if at >= size:
            break
        if form != "none":
            token = Token(lane=whole.lane, priority=whole.priority, batch=batch, start=at, stop=stop, gen=gen)
            tokens.append(token.owned(CLAIM, life.id) if form == CLAIM else token.held() if form == HELD else token)
        at = stop
    return tokens


def _state(fold: Fold, batch: int, index: int, tokens: list[Token]) -> TaskState:
    """The stated order, one task at a time."""
    verdict = fold.verdict(batch, index)
    if verdict.state is not None:
        return verdict.state
    opened = [key for key, ranges in fold.open.items() if key[1] == batch and index in ranges]
    if any(gen == verdict.gen for _, _, gen, _, _ in opened):
        return TaskState.RUNNING
    if fold.is_cancelled(batch, index, verdict.gen):
        return TaskState.CANCELLED
    for token in tokens:
        if token.start <= index < token.stop and token.gen == verdict.gen:
            if token.form == CLAIM:
                return TaskState.CLAIMED
            if token.form == HELD:
                return TaskState.HELD
    return TaskState.WAITING
