"""Which tasks a person means."""

from __future__ import annotations

import pytest

from fleetcraft.actions import lookup
from fleetcraft.actions.lookup import find_names
from fleetcraft.actions.selection import Selection, resolve
from fleetcraft.core.errors import UsageError
from fleetcraft.core.names import TaskId
from fleetcraft.core.states import TaskState
from fleetcraft.spool.ledger import name_hash
from fleetcraft.spool.life import Life
from fleetcraft.spool.reading import SpoolFold
from tests.support.enqueuing import find_id, make_spool, options, stream
from tests.unit.actions.handwork import claim_all, start, work

S = TaskState


@pytest.fixture
def spool(tmp_path):
    """Batch 1: a0 to a4, of which a1 failed and the rest succeeded. Batch 2: b0 to b2. Batch 3: waits for a1 and b0."""
    spool = make_spool(tmp_path)
    stream(spool, [{"name": f"a{n}", "command": ["x"], "tags": ["even"] if n % 2 == 0 else []} for n in range(5)])
    life = Life.begin(spool)
    work(spool, life, lambda _, index: ("failed", "failed") if index == 1 else ("succeeded", "succeeded"))
    stream(spool, [{"name": f"b{n}", "command": ["x"]} for n in range(3)], options(tags=["even", "late"]))
    stream(spool, [{"name": f"c{n}", "command": ["x"], "after": [up]} for n, up in enumerate(["a1", "b0", "a0"])])
    return spool


@pytest.fixture
def life(spool):
    return Life.begin(spool)


def chosen(spool, **selection):
    found = resolve(spool, Selection(**selection), SpoolFold(spool))
    return {f"{batch}.{index}" for batch, ranges in found.items() for index in ranges.numbers()}


def ids(batch, *indexes):
    return {f"{batch}.{index}" for index in indexes}


@pytest.mark.parametrize(
    ("selection", "expected"),
    (
        ({"names": ("a1", "b2")}, ids(1, 1) | ids(2, 2)),
        ({"names": ("2.1",)}, ids(2, 1)),
        ({"ids": (TaskId(3, 0),)}, ids(3, 0)),
        ({"batches": (2, 3)}, ids(2, 0, 1, 2) | ids(3, 0, 1, 2)),
        ({"names": ("a0",), "batches": (2,)}, ids(1, 0) | ids(2, 0, 1, 2)),
        ({"everything": True}, ids(1, *range(5)) | ids(2, *range(3)) | ids(3, *range(3))),
        ({"states": frozenset({S.FAILED})}, ids(1, 1)),
        ({"states": frozenset({S.SUCCEEDED, S.FAILED})}, ids(1, *range(5))),
        ({"states": frozenset({S.WAITING})}, ids(2, 0, 1, 2)),
        ({"states": frozenset({S.BLOCKED})}, ids(3, 0)),
        ({"states": frozenset({S.HELD})}, ids(3, 1, 2)),
        ({"states": frozenset({S.RUNNING, S.CLAIMED, S.QUARANTINED, S.CANCELLED})}, set()),
        ({"tags": frozenset({"even"})}, ids(1, 0, 2, 4) | ids(2, 0, 1, 2)),
        ({"tags": frozenset({"even", "late"})}, ids(2, 0, 1, 2)),
        ({"pattern": "[ab]1"}, ids(1, 1) | ids(2, 1)),
        ({"pattern": "A*"}, set()),
        ({"pattern": "a*", "tags": frozenset({"even"}), "states": frozenset({S.SUCCEEDED})}, ids(1, 0, 2, 4)),
        ({"batches": (1,), "states": frozenset({S.WAITING})}, set()),
    ),
)
def test_tasks_are_chosen(spool, selection, expected):
    assert chosen(spool, **selection) == expected


def test_claimed_and_running_are_told_apart(spool, life):
    claim = next(claim for claim in claim_all(life) if claim.batch == 2)
    start(life, 2, 1, claim)
    assert chosen(spool, states=frozenset({S.RUNNING})) == ids(2, 1)
    assert chosen(spool, states=frozenset({S.CLAIMED})) == ids(2, 0, 2)
    assert chosen(spool, states=frozenset({S.WAITING})) == set()


@pytest.mark.parametrize(
    ("selection", "said"),
    (
        ({}, "No task was named"),
        ({"names": ("a9",)}, "There is no task 'a9'"),
        ({"names": ("1.9",)}, "There is no task '1.9'"),
        ({"ids": (TaskId(9, 0),)}, "There is no task 9.0"),
        ({"batches": (9,)}, "There is no batch 9"),
    ),
)
def test_what_is_not_there_is_said(spool, selection, said):
    with pytest.raises(UsageError, match=said):
        chosen(spool, **selection)


def test_the_nearest_name_is_offered(spool):
    stream(spool, [{"name": "train-final", "command": ["x"]}])
    with pytest.raises(UsageError, match=r"Did you mean 'train-final'\?"):
        chosen(spool, names=("trian-final",))


def test_many_names_are_found_like_few(spool, monkeypatch):
    stream(spool, [{"name": f"m{n}", "command": ["x"]} for n in range(500)])
    spool.refresh()
    wanted = {*(f"m{n}" for n in range(0, 500, 3)), "a2", "b1", "nobody", "1.0"}
    many = find_names(spool, wanted)
    monkeypatch.setattr(lookup, "_FEW", 10_000)
    assert many == find_names(spool, wanted)
    assert many["m3"] == find_id(spool, "m3")
    assert "nobody" not in many


def test_equal_hashes_do_not_mix_up_names(spool, monkeypatch):
    stream(spool, [{"name": f"m{n}", "command": ["x"]} for n in range(100)])
    spool.refresh()
    monkeypatch.setattr(lookup, "_FEW", 0)
    monkeypatch.setattr(lookup, "name_hash", lambda name: name_hash("m5" if name == "x" else name))
    assert find_names(spool, {"m5", "x"}).keys() == {"m5"}
