"""Whatever the evidence: the classes add up to the allocation exactly, none is negative, and no order matters."""

from __future__ import annotations

import itertools
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from fleetcraft.usage.api import Gpu, Stretch
from fleetcraft.usage.ledger import Evidence, divide
from fleetcraft.usage.ledger_api import Class, Hold, Line, Presence
from fleetcraft.usage.ledger_profile import Profile, union
from fleetcraft.usage.ledger_sum import GROUPINGS, add_up

MOMENTS = st.integers(0, 2_000_000)
KINDS = st.sampled_from([Class.USEFUL, Class.OPEN, Class.FAILED, Class.LOST, Class.DISCARDED, Class.LOADING])
MAYBE = st.none() | MOMENTS


@st.composite
def intervals(draw, most: int = 4):
    pairs = draw(st.lists(st.tuples(MOMENTS, MOMENTS), max_size=most))
    return [(min(pair), max(pair)) for pair in pairs]


@st.composite
def presences(draw):
    start_ms, end_ms = sorted((draw(MOMENTS), draw(MOMENTS)))
    return Presence(
        start_ms=start_ms, up_ms=draw(MAYBE), end_ms=end_ms, orderly=draw(st.booleans()), drain_ms=draw(MAYBE)
    )


@st.composite
def holds(draw):
    start_ms, end_ms = sorted((draw(MOMENTS), draw(MOMENTS)))
    number = draw(st.integers(0, 3))
    return Hold(
        start_ms=start_ms, end_ms=end_ms, kind=draw(KINDS), task=f"1.{number}" if number else "",
        attempt=draw(st.integers(1, 2)), weight=draw(st.integers(0, 1000)),
    )  # fmt: skip


@st.composite
def profiles(draw):
    gpu, at_ms, stretches = Gpu(host="n", uuid="u"), 0, []
    optional = st.none() | st.floats(0, 100)
    for step_ms, held_ms in draw(st.lists(st.tuples(st.integers(1, 400_000), st.integers(0, 400_000)), max_size=12)):
        stretches.append(
            Stretch(
                gpu=gpu, start_ms=at_ms, end_ms=at_ms + held_ms, util_pct=draw(optional), power_w=draw(optional),
                memory_used_bytes=draw(st.none() | st.floats(0, 1e10)), energy_mj=draw(st.none() | st.floats(0, 1e9)),
                state=draw(st.sampled_from(["ok", "ok", "ok", "hung"])),
            )
        )  # fmt: skip
        at_ms += step_ms
    return Profile.of(stretches)


@st.composite
def evidences(draw, number: int = 0):
    is_gpu = draw(st.booleans())
    line = Line(
        gpu=Gpu(host=f"n{number % 2}", uuid=f"u{number}"), spans=tuple(union(draw(intervals()))), is_gpu=is_gpu,
        units=1 if is_gpu else draw(st.integers(1, 64)), is_open=draw(st.booleans()), named=draw(st.booleans()),
        job=draw(st.sampled_from(["", "7", "8"])), fleet=draw(st.sampled_from(["", "f"])),
    )  # fmt: skip
    return Evidence(
        line=line, presences=draw(st.lists(presences(), max_size=3)), holds=draw(st.lists(holds(), max_size=6)),
        kept=draw(intervals()), waiting=draw(intervals()), profile=draw(st.none() | profiles()),
    )  # fmt: skip


@st.composite
def many(draw):
    return [draw(evidences(number)) for number in range(draw(st.integers(0, 4)))]


def allocated(some) -> int:
    return sum(one.line.units * sum(end - start for start, end in one.line.spans) for one in some)


@given(many(), st.sampled_from(GROUPINGS))
def test_the_classes_add_up_to_the_allocation(some, by):
    ledger = add_up(some, by=by)
    assert ledger.total.total == ledger.allocated_ms == allocated(some)
    assert ledger.adds_up
    assert sum(row.total for row in ledger.rows) == ledger.allocated_ms
    for row in (*ledger.rows, ledger.total):
        assert all(amount >= 0 for amount in row.amounts.values())
        assert row.observed_ms >= 0
    assert sum(ledger.unknown.values()) == ledger.total.amounts.get(Class.UNKNOWN, 0)
    for use in ledger.tasks:
        assert 0 <= use.active_ms <= use.observed_ms + len(ledger.spans)  # each part is rounded by itself


@given(many(), st.sampled_from(GROUPINGS), st.randoms(use_true_random=False))
def test_no_order_of_the_evidence_matters(some, by, dice):
    def shuffled(items):
        listed = list(items)
        dice.shuffle(listed)
        return listed

    other = [
        Evidence(
            line=one.line, presences=shuffled(one.presences), holds=shuffled(one.holds), kept=shuffled(one.kept),
            waiting=shuffled(one.waiting), profile=one.profile,
        )
        for one in shuffled(some)
    ]  # fmt: skip
    first, second = add_up(some, by=by), add_up(other, by=by)
    assert [row.as_json() for row in first.rows] == [row.as_json() for row in second.rows]
    assert first.total.amounts == second.total.amounts
    assert [use.amounts for use in first.tasks] == [use.amounts for use in second.tasks]
    assert first.spans == second.spans


@given(evidences())
def test_the_parts_of_a_line_are_its_spans_without_overlap(one):
    parts = divide(one)
    assert union((part.start_ms, part.end_ms) for part in parts) == union(one.line.spans)
    assert all(before.end_ms <= after.start_ms for before, after in itertools.pairwise(parts))
    spans = add_up([one]).spans
    assert sum(span.end_ms - span.start_ms for span in spans) == sum(end - start for start, end in one.line.spans)


@given(many(), st.lists(MOMENTS, max_size=4))
def test_periods_that_follow_one_another_add_up_to_the_whole(some, cuts):
    edges = sorted({-1, 3_000_000, *cuts})
    whole = add_up(some)
    parts = [add_up(some, period=pair) for pair in pairwise(edges)]
    assert all(part.adds_up for part in parts)
    assert sum(part.allocated_ms for part in parts) == whole.allocated_ms
    for kind in Class:
        # What is shared is rounded in each part by itself: by less than one millisecond for each who shares.
        loose = 8 * len(cuts) * len(some)
        total = sum(part.total.amounts.get(kind, 0) for part in parts)
        assert abs(total - whole.total.amounts.get(kind, 0)) <= loose


@given(evidences())
def test_time_without_any_evidence_is_unknown(one):
    bare = Evidence(line=one.line)
    ledger = add_up([bare])
    young = ledger.total.amounts.get(Class.STARTING, 0)
    assert ledger.total.amounts.get(Class.UNKNOWN, 0) + young == allocated([one])
    assert young == 0 or one.line.is_open
