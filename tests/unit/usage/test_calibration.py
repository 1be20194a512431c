"""The table of calibrations: the pick, and that no edit passes."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleetcraft.core.errors import Refused, UsageError
from fleetcraft.usage import calibration as c

GIB = 1024**3


def trial(batch, wall=1.0, peak=1, per_gpu=1, state=c.STABLE):
    return c.Trial(
        batch=batch,
        per_gpu=per_gpu,
        cycles=2,
        state=state,
        wall_s=wall,
        gpu_bytes=None if peak is None else {"whole": peak * GIB},
        gpu_reason="no sample fell into it" if peak is None else None,
    )


def row(family="f", device="A", at=1.0):
    key = {"family": family, "device": device, "driver": "1", "code": "x", "parameters": {"size": "5"}}
    return c.make_row(
        key,
        command=["t", "{batch}"],
        code_paths=["b", "a"],
        device_bytes=80 * GIB,
        headroom_pct=10,
        trials=[trial(2), trial(1)],
        at_utc=at,
    )


def table():
    return c.add(c.add([], row(), replaces=False, place="t"), row(device="B"), replaces=False, place="t")


def test_headroom_beats_speed_and_ties_go_to_the_smaller_batch():
    assert c.pick([trial(1), trial(2), trial(4, peak=79)], 80 * GIB, 10).batch == 2
    assert c.pick([trial(1, wall=1), trial(2, wall=2)], 80 * GIB, 10).batch == 1
    assert c.pick([trial(1, peak=79)], 80 * GIB, 10).batch is None
    assert c.pick([trial(8, state=c.OUT_OF_MEMORY)], 80 * GIB, 10).batch is None


def test_unknown_memory_is_said_and_never_beats_known_memory():
    alone = c.pick([trial(2, peak=None)], 80 * GIB, 10)
    assert (alone.batch, alone.free_pct) == (2, None)
    assert "was not shown" in alone.reason
    assert c.pick([trial(1), trial(8, peak=None)], 80 * GIB, 10).batch == 1
    assert "size of the device" in c.pick([trial(1)], None, 10).reason


points = st.builds(
    trial,
    st.integers(1, 16),
    st.sampled_from([0.5, 1.0, 2.0]),
    st.one_of(st.none(), st.integers(1, 80)),
    st.integers(1, 3),
    st.sampled_from([c.STABLE, c.FAILED]),
)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(points, max_size=6, unique_by=lambda one: (one.batch, one.per_gpu)).flatmap(
        lambda some: st.tuples(st.just(some), st.permutations(some))
    )
)
def test_the_pick_does_not_depend_on_the_order(pair):
    assert c.pick(pair[0], 80 * GIB, 10) == c.pick(pair[1], 80 * GIB, 10)


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_any_edit_of_a_character_is_refused(data):
    text = c.encode(table())
    at = data.draw(st.integers(0, len(text) - 1))
    other = data.draw(st.characters(codec="ascii").filter(lambda one: one != text[at]))
    with pytest.raises(UsageError, match=r"t\.json"):
        c.decode(text[:at] + other + text[at + 1 :], "t.json")


def test_a_table_comes_back_and_a_cut_one_does_not():
    text = c.encode(table())
    assert c.decode(text, "t") == table()
    with pytest.raises(UsageError):
        c.decode(text[:-20], "t")


def test_a_taken_key_needs_replace_and_keeps_the_former_digest():
    rows = table()
    with pytest.raises(Refused):
        c.add(rows, row(at=2.0), replaces=False, place="t")
    after = c.add(rows, row(at=2.0), replaces=True, place="t")
    assert len(after) == 2
    assert c.choose(after, "f", "A", "t")["replaces"] == c.choose(rows, "f", "A", "t")["sha256"]


def test_choosing_a_row():
    for family, device in (("g", None), ("f", None), ("f", "C")):
        with pytest.raises(UsageError):
            c.choose(table(), family, device, "t")
    assert c.choose(table(), "f", "B", "t")["key"]["device"] == "B"


def test_code_digest_sees_words_paths_and_contents_in_any_order():
    files = [("a", b"1"), ("b", b"2")]
    base = c.code_digest(["x"], files)
    assert base == c.code_digest(["x"], files[::-1])
    assert (
        len(
            {
                base,
                c.code_digest(["y"], files),
                c.code_digest(["x"], [("a", b"2"), ("b", b"2")]),
                c.code_digest(["x"], [("c", b"1"), ("b", b"2")]),
            }
        )
        == 4
    )
