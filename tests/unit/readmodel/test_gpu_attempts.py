"""Attempts from journals: which slot and GPU, from when to when, and what each was good for."""

from __future__ import annotations

import pytest

from fleetcraft.core.resources import Request
from fleetcraft.readmodel.gpu_attempts import Journals, read_journals
from fleetcraft.spool.life import Life
from fleetcraft.spool.reading import SpoolFold
from fleetcraft.usage.ledger_api import Class
from tests.unit.readmodel.building import make_spool, publish, receipt, started

NOW_MS = 2_000_000


@pytest.fixture
def spool(tmp_path):
    return make_spool(tmp_path)


@pytest.fixture
def batch(spool) -> int:
    return publish(spool, ["a", "b", "c", "d"], request=Request(gpus=1.0))


def read(spool) -> Journals:
    reader = SpoolFold(spool)
    reader.refresh()
    return read_journals(spool, reader, NOW_MS)


def parts(found: Journals) -> list[tuple]:
    listed = [(one.task, one.attempt, one.start_ms, one.end_ms, one.kind) for one in found.attempts]
    return sorted(listed, key=lambda part: part[:3])


def test_a_receipt_has_the_gpus_of_its_start_and_the_name_of_its_task(spool, batch):
    life = Life.begin(spool)
    started(life, batch, 1, gpus=["GPU-1", "GPU-2"])
    receipt(life, batch, 1)
    (one,) = read(spool).attempts
    assert (one.gpus, one.name, one.start_ms, one.end_ms) == (("GPU-1", "GPU-2"), "b", 1_000_000, 1_002_500)
    assert (one.kind, one.request.gpus) == (Class.USEFUL, 1.0)


@pytest.mark.parametrize(
    ("outcome", "kind"),
    (
        ("succeeded", Class.USEFUL), ("failed", Class.FAILED), ("timeout", Class.FAILED),
        ("out_of_memory", Class.FAILED), ("output_invalid", Class.FAILED), ("lost", Class.LOST),
        ("abandoned", Class.LOST), ("cancelled", Class.DISCARDED), ("duplicate", Class.DISCARDED),
    ),
)  # fmt: skip
def test_an_outcome_has_its_class(spool, batch, outcome, kind):
    life = Life.begin(spool)
    started(life, batch, 0)
    receipt(life, batch, 0, outcome)
    assert [one.kind for one in read(spool).attempts] == [kind]


def test_receipts_of_one_stretch_of_calls_follow_one_another(spool, batch):
    life = Life.begin(spool)
    started(life, batch, 0, k=4, how="g", gpus=["GPU-1"])
    receipt(life, batch, 0, end=1001.0, k=2)
    receipt(life, batch, 2, "failed", end=1003.0)
    assert parts(read(spool)) == [
        (f"{batch}.0+1", 1, 1_000_000, 1_001_000, Class.USEFUL),
        (f"{batch}.2", 1, 1_001_000, 1_003_000, Class.FAILED),
        (f"{batch}.3", 1, 1_003_000, None, Class.OPEN),
    ]


def test_the_second_success_of_a_task_is_the_one_that_counts(spool, batch):
    one, two = Life.begin(spool), Life.begin(spool)
    for attempt, life in ((1, one), (2, two)):
        started(life, batch, 0, attempt=attempt)
        receipt(life, batch, 0, attempt=attempt)
    assert [part[-1] for part in parts(read(spool))] == [Class.DISCARDED, Class.USEFUL]


def test_a_success_that_a_person_opened_again_is_superseded(spool, batch):
    life = Life.begin(spool)
    started(life, batch, 0)
    receipt(life, batch, 0)
    started(life, batch, 0, gen=1)
    receipt(life, batch, 0, gen=1)
    assert sorted(one.kind for one in read(spool).attempts) == sorted([Class.DISCARDED, Class.USEFUL])


def test_a_reaped_attempt_ends_with_the_last_sign_of_its_life(spool, batch):
    dead, reaper = Life.begin(spool), Life.begin(spool)
    dead.beat({"state": "up"})
    started(dead, batch, 0, gpus=["GPU-1"])
    started(dead, batch, 1, slot=1, gpus=["GPU-2"])
    receipt(dead, batch, 1, slot=1, end=5_000_000_000.0, gpus=["GPU-2"])
    reaper.record({"t": "lost", "b": batch, "i": 0, "g": 0, "a": 1, "life": dead.id, "cause": "worker_gone"})
    lost = next(one for one in read(spool).attempts if one.index == 0)
    assert (lost.kind, lost.cause, lost.gpus) == (Class.LOST, "worker_gone", ("GPU-1",))
    assert lost.end_ms is not None


def test_an_attempt_that_saved_its_state_shares_the_fate_of_the_next(spool, batch):
    life = Life.begin(spool)
    for index, last in ((0, "succeeded"), (1, "failed"), (2, None)):
        started(life, batch, index)
        receipt(life, batch, index, "lost", final="", cause="checkpointed")
        if last:
            started(life, batch, index, attempt=2)
            receipt(life, batch, index, last, attempt=2)
    firsts = [part[-1] for part in parts(read(spool)) if part[1] == 1]
    assert firsts == [Class.USEFUL, Class.FAILED, Class.OPEN]


def test_a_record_that_stands_twice_counts_once(spool, batch):
    life, adopter = Life.begin(spool), Life.begin(spool)
    started(life, batch, 0)
    receipt(life, batch, 0)
    copy = {
        "n": 2, "t": "receipt", "b": batch, "i": 0, "g": 0, "a": 1, "s": 0, "o": "succeeded", "final": "succeeded",
        "at": 1000.0, "end": 1002.5,
    }  # fmt: skip
    adopter.record({"t": "adopted", "life": life.id, "rec": copy})
    assert len(parts(read(spool))) == 1


def test_a_resident_that_loaded_is_known_by_its_note(spool, batch):
    life = Life.begin(spool)
    life.record({"t": "note", "what": "loaded", "s": 0, "at": 999.0, "load_s": 4.5})
    started(life, batch, 0)
    receipt(life, batch, 0)
    (facts,) = read(spool).lives.values()
    assert facts.loads == [(0, (994_500, 999_000))]
