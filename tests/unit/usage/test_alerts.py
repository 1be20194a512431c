"""An alert is told once, and its end once, however its value swings."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from fleetcraft.usage.alerts import AlertBook, Finding

CLEAR_S = 60.0


def finding(
    key: str = "silent:n1", *, hold_s: float = 0.0, since_utc: float | None = None, subject: str = "n1"
) -> Finding:
    return Finding(key=key, kind="silent", subject=subject, text="n1 is silent", hold_s=hold_s, since_utc=since_utc)


def look(book: AlertBook, now: float, *findings: Finding, blind: tuple[str, ...] = ()) -> list[str]:
    return [event.what for event in book.look(findings, now, clear_s=CLEAR_S, blind=blind)]


def test_it_is_told_once_and_its_end_once():
    book = AlertBook()
    assert look(book, 0, finding()) == ["begin"]
    assert look(book, 10, finding()) == []
    assert look(book, 20) == []  # gone, and not long enough
    assert look(book, 69) == []
    assert look(book, 70) == ["end"]
    assert look(book, 200) == []
    assert look(book, 300, finding()) == ["begin"]


def test_it_must_hold_for_its_time_before_it_is_told():
    book = AlertBook()
    assert look(book, 0, finding(hold_s=120)) == []
    assert look(book, 119, finding(hold_s=120)) == []
    assert look(book, 120, finding(hold_s=120)) == ["begin"]


def test_what_began_before_the_first_look_counts_from_then():
    assert look(AlertBook(), 1000, finding(hold_s=120, since_utc=800)) == ["begin"]
    # A clock ahead of ours must not keep it from being told later.
    book = AlertBook()
    assert look(book, 1000, finding(hold_s=120, since_utc=9000)) == []
    assert look(book, 1120, finding(hold_s=120, since_utc=9000)) == ["begin"]


def test_a_blip_is_never_told_and_has_no_end():
    book = AlertBook()
    assert look(book, 0, finding(hold_s=120)) == []
    assert look(book, 100) == []
    assert not book.entries


def test_a_silent_host_ends_no_alert_about_what_it_can_no_longer_say():
    book = AlertBook()
    assert look(book, 0, finding("hot:n1")) == ["begin"]
    assert look(book, 500, blind=("n1",)) == []
    assert look(book, 561) == ["end"]


def test_the_book_survives_its_file_and_damage_to_it():
    book = AlertBook()
    look(book, 0, finding())
    book.growth("n1/0", {"xid_events": 3.0})
    book.warnings["job"] = [5.0]
    again = AlertBook.from_json(json.loads(json.dumps(book.as_json())))
    assert look(again, 10, finding()) == []
    assert again.growth("n1/0", {"xid_events": 5.0}) == {"xid_events": 2.0}
    assert again.warnings == {"job": [5.0]}
    assert AlertBook.from_json({"schema": "fleetcraft.gpu.alerts/1", "entries": {"a": 3}, "counters": 7}).entries == {}
    assert AlertBook.from_json([]).entries == {}


def test_a_counter_tells_only_growth_between_looks():
    book = AlertBook()
    assert book.growth("g", {"xid_events": 4.0, "ecc_uncorrected": None}) == {}
    assert book.growth("g", {"xid_events": 4.0, "ecc_uncorrected": 1.0}) == {}
    assert book.growth("g", {"xid_events": 6.0, "ecc_uncorrected": 1.0}) == {"xid_events": 2.0}
    assert book.growth("g", {"xid_events": 0.0}) == {}  # a new sampler counts from 0
    assert book.growth("g", {"xid_events": 1.0}) == {"xid_events": 1.0}


@given(st.lists(st.tuples(st.floats(0, 100), st.booleans()), max_size=40))
def test_begins_and_ends_alternate(looks):
    book, now, told = AlertBook(), 0.0, []
    for passed, holds in looks:
        now += passed
        told += look(book, now, *([finding(hold_s=30)] if holds else []))
    assert told[::2] == ["begin"] * len(told[::2])
    assert told[1::2] == ["end"] * len(told[1::2])
