"""What waits for what: unknown upstream and circles are errors before anything is published."""

from __future__ import annotations

import pytest

from fleetcraft.actions import edges
from fleetcraft.core.errors import TaskInvalid
from fleetcraft.spool.held import BATCH_PREFIX
from tests.support.enqueuing import batches, find, make_spool, options, stream, tokens


@pytest.fixture
def spool(tmp_path):
    return make_spool(tmp_path)


def task(name, *after, **more):
    return {"name": name, "command": ["true"], **({"after": list(after)} if after else {}), **more}


def refused(spool, listed, opts=None):
    before = [batch.number for batch in batches(spool)]
    with pytest.raises(TaskInvalid) as error:
        stream(spool, listed, opts or options())
    assert [batch.number for batch in batches(spool)] == before
    return str(error.value)


def test_waiting_tasks_are_a_held_batch_published_last(spool):
    result = stream(spool, [task("late", "early"), task("early")])
    assert result.batches == [1, 2]
    assert [(batch.held, batch.count) for batch in batches(spool)] == [(False, 1), (True, 1)]
    assert [token.form for token in tokens(spool)] == ["", ".held"]
    assert find(spool, "late")["after"] == ["early"]


def test_upstream_in_the_spool_counts(spool):
    stream(spool, [task("early")])
    stream(spool, [task("late", "early"), task("later", "late", "batch:1")])
    assert find(spool, "later")["after"] == ["late", "batch:1"]


def test_upstream_that_all_share_stands_in_every_line(spool):
    stream(spool, [task("early")])
    stream(
        spool,
        [task("a"), task("b", "a"), {"name": "c", "call": "m:f", "args": {}}, task("d", after=[])],
        options(after="early"),
    )
    stream(spool, "echo hi\n", options(after=["early"]))
    assert {name: find(spool, name).get("after") for name in "abcd"} == {
        "a": ["early"],
        "b": ["a"],
        "c": ["early"],
        "d": None,
    }
    assert all(b'"after":' in line for batch in batches(spool) if batch.held for line in batch.lines(0, batch.count))
    assert stream(spool, [task("a")], options(after="early")).existing == 1


def test_an_unknown_name_is_refused_with_its_line_and_the_nearest(spool):
    stream(spool, [task("train-0"), task("train-1")])
    said = refused(spool, [task("x"), task("y", "x"), task("z", "trian-1")])
    assert said.startswith("list:3: after names 'trian-1', which is no task of this input or of the spool.")
    assert "Did you mean 'train-1'?" in said
    assert "Did you mean 'eval-9'?" in refused(spool, [task("eval-9"), task("y", "eval-8")])


def test_an_unknown_name_in_the_options_is_refused(spool):
    assert refused(spool, [task("x")], options(after="nowhere")).startswith("--after: after names 'nowhere'")


@pytest.mark.parametrize("name", ("batch:2", "batch:0", "batch:99"))
def test_an_unknown_batch_is_refused(spool, name):
    stream(spool, [task("a")])
    assert f"after names {name!r}, and there is no batch" in refused(spool, [task("x", name)])


def test_a_name_whose_hash_agrees_is_not_taken_for_the_task(spool, monkeypatch):
    """Names are looked up by 40 bits of hash; the line decides."""
    monkeypatch.setattr(edges, "name_hash", lambda _name: 7)
    monkeypatch.setattr("fleetcraft.spool.publish.name_hash", lambda _name: 7)
    assert "after names 'b'" in refused(spool, [task("a"), task("x", "b")])


@pytest.mark.parametrize(
    ("listed", "circle"),
    (
        ([task("a", "a")], "'a' after 'a'"),
        ([task("a", "b"), task("b", "a")], "'a' after 'b' after 'a'"),
        ([task("s"), task("a", "s", "c"), task("b", "a"), task("c", "b")], "'c' after 'b' after 'a' after 'c'"),
    ),
)
def test_a_circle_is_refused_and_shown(spool, listed, circle):
    said = refused(spool, listed)
    assert said.startswith("list:")
    names = circle.replace("'", "").split(" after ")
    turned = [
        " after ".join(f"'{name}'" for name in (*names[k:-1], *names[:k], names[k])) for k in range(len(names) - 1)
    ]
    assert any(f"wait for one another: {text}" in said for text in turned)


def test_a_circle_through_the_options_is_refused(spool):
    assert "'b' after 'b'" in refused(spool, [task("a"), task("b")], options(after="b"))
    said = refused(spool, [task("a", "c"), task("c")], options(after="a"))
    assert "wait for one another" in said


def test_a_task_that_waits_for_none_takes_no_part_in_a_circle(spool):
    assert stream(spool, [task("a", after=[]), task("b"), task("c", "b")], options(after="a")).added == 3


def test_long_chains_and_wide_joins_are_no_circles(spool):
    chain = [task("t0"), *(task(f"t{n}", f"t{n - 1}") for n in range(1, 3000))]
    wide = [task("end", *(f"t{n}" for n in range(0, 3000, 10)))]
    assert stream(spool, chain + wide).added == 3001


def test_the_word_for_batches_is_the_one_that_workers_know():
    assert edges._BATCH_PREFIX == BATCH_PREFIX
