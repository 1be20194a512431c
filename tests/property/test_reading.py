"""Reading a spool bit by bit, through summaries and caches, gives what one plain reading at the end gives."""

from __future__ import annotations

import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleetcraft.core.records import dump
from fleetcraft.spool.life import SUMMARY, Life
from fleetcraft.spool.reading import LifeReading, SpoolFold
from fleetcraft.spool.spool import Spool
from fleetcraft.store.files import Files, publish_file
from fleetcraft.testing.clock import ManualClock
from tests.property.spool_play import QuickFiles, publish
from tests.property.test_fold import RECORDS, TASKS, answers
from tests.support.descriptors import closing_leftovers


@pytest.fixture(autouse=True)
def descriptors():
    with closing_leftovers():
        yield


_STEPS = st.lists(st.sampled_from(["write", "write", "write", "read", "summary", "sync", "torn", "die"]), max_size=25)


def _summarize(spool, life):
    """A life writes the fold of its own journal, as far as it has come."""
    one = SpoolFold(spool, shortcuts=False)
    reading = LifeReading(life.id)
    one._read(reading)
    body = dump({"version": 1, "covers": reading.offset, "fold": one.fold.as_json()})
    publish_file(Files(), os.path.join(life.folder, SUMMARY), body.encode(), durable=False)


@settings(max_examples=40)
@given(records=RECORDS, steps=_STEPS, turns=st.lists(st.integers(0, 2), max_size=25))
def test_bit_by_bit_is_the_same_as_at_once(tmp_path_factory, records, steps, turns):
    spool = Spool.open(str(tmp_path_factory.mktemp("read") / "s"), create=True, files=QuickFiles(), clock=ManualClock())
    for batch in (1, 2):
        publish(spool, [f"{batch}-{number}" for number in range(TASKS)])
    spool.refresh()
    lives = {name: Life.begin(spool) for name in ("la", "lb", "lc")}
    dead: set[str] = set()
    incremental = SpoolFold(spool)
    todo = iter(records)
    for place, step in enumerate(steps):
        name = ("la", "lb", "lc")[turns[place] if place < len(turns) else 0]
        if step == "read":
            incremental.refresh()
        elif name in dead:
            continue
        elif step == "write":
            writer, record = next(todo, (name, {"t": "note"}))
            if writer not in dead:
                lives[writer].record(_translated(record, lives))
        elif step == "summary":
            _summarize(spool, lives[name])
        elif step == "sync":
            lives[name].journal.sync()
        elif step == "torn":
            with open(lives[name].journal.path, "ab") as target:
                target.write(b'{"t":"recei')
            lives[name].journal._torn = True
        else:
            dead.add(name)
            lives[name].close()
    incremental.refresh()
    plain = SpoolFold(spool, shortcuts=False)
    plain.refresh()
    fresh = SpoolFold(spool)
    fresh.refresh()
    assert answers(incremental.fold) == answers(plain.fold)
    assert answers(fresh.fold) == answers(plain.fold)


def _translated(record, lives):
    """The record with the ids of the lives that play the parts."""
    if record["t"] in ("lost", "adopted"):
        return record | {"life": lives[record["life"]].id}
    return record


def test_the_cache_of_dead_lives_changes_no_answer_and_may_be_damaged(tmp_path):
    spool = Spool.open(str(tmp_path / "s"), create=True, files=QuickFiles(), clock=ManualClock())
    publish(spool, [f"t{number}" for number in range(80)])
    spool.refresh()
    for number in range(40):
        life = Life.begin(spool)
        body = {"b": 1, "i": number, "g": 0, "a": 1}
        life.record({"t": "started", **body})
        outcome = "failed" if number % 7 == 0 else "succeeded"
        life.record({"t": "receipt", **body, "o": outcome, "final": outcome})
        life.close()
    first = SpoolFold(spool)
    first.refresh()
    counts = first.fold.counts()
    assert first.write_cache()
    assert not first.write_cache()
    path = os.path.join(spool.layout.segments, "dead.json")
    cached = SpoolFold(spool)
    cached.refresh()
    assert cached.fold.counts() == counts
    assert all(reading.cached for reading in cached.lives.values())
    for damage in (b"", b"\0" * 100, b'{"version":1,"fold":{},"lives":[]}', b'{"version":99}'):
        with open(path, "wb") as target:
            target.write(damage)
        again = SpoolFold(spool)
        again.refresh()
        assert again.fold.counts() == counts
