"""The numbered records: one order for everybody, no decision on old knowledge, and damage that is named."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from fleetcraft.fleet.records import NOTE, SPEC, Overtaken, list_fleets
from fleetcraft.store.files import Files
from tests.support.fleets import another_process, make_fleet


def test_records_are_numbered_and_read_by_others(tmp_path):
    fleet = make_fleet(tmp_path)
    fleet.log.state_fact(NOTE, what="one")
    assert fleet.log.decide(SPEC, spec={}).number == 2
    other = another_process(fleet)
    assert other.log.refresh() == 2
    assert [(record.number, record.kind) for record in other.log.records] == [(1, NOTE), (2, SPEC)]
    assert sorted(os.listdir(fleet.folder.records)) == ["1.json", "2.json"]


def test_a_decision_on_old_knowledge_is_refused(tmp_path):
    fleet = make_fleet(tmp_path)
    other = another_process(fleet)
    other.log.refresh()
    fleet.log.decide(NOTE, what="first")
    with pytest.raises(Overtaken):
        other.log.decide(NOTE, what="second")
    other.log.refresh()
    assert other.log.decide(NOTE, what="second").number == 2


def test_a_fact_takes_the_next_free_number(tmp_path):
    fleet = make_fleet(tmp_path)
    other = another_process(fleet)
    fleet.log.state_fact(NOTE, what="first")
    assert other.log.state_fact(NOTE, what="second").number == 2
    assert other.log.last == 2


def test_damage_is_named_and_the_rest_is_read(tmp_path):
    fleet = make_fleet(tmp_path)
    for number in range(4):
        fleet.log.state_fact(NOTE, what=str(number))
    Path(fleet.folder.record(2)).write_bytes(b'{"kind": "no')
    os.unlink(fleet.folder.record(3))
    other = another_process(fleet)
    state = other.state()
    assert [record.number for record in other.log.records] == [1, 4]
    assert len(state.problems) == 2
    assert "record 2 cannot be read" in state.problems[0]
    assert "record 3 is missing" in state.problems[1]
    assert other.log.decide(NOTE, what="on").number == 5


class LostReply(Files):
    """The link is made, and the answer says that it was not."""

    def link(self, source, target):
        super().link(source, target)
        raise OSError(errno.EIO, "lost")


def test_a_lost_reply_of_the_link_is_no_second_record(tmp_path):
    fleet = make_fleet(tmp_path)
    fleet.log.files = LostReply()
    assert fleet.log.decide(NOTE, what="once").number == 1
    assert another_process(fleet).log.refresh() == 1


def test_fleets_are_listed_by_name(tmp_path):
    fleet = make_fleet(tmp_path, "red")
    os.mkdir(os.path.join(fleet.spool.layout.root, "fleets", "No"))
    assert list_fleets(fleet.spool.files, fleet.spool.layout.root) == ["red"]
    assert list_fleets(fleet.spool.files, str(tmp_path / "none")) == []
