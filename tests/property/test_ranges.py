"""RangeSet against the plain set of numbers that it stands for."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetcraft.core.ranges import RangeSet

_SMALL = st.integers(-3, 40)
_CHANGES = st.lists(st.tuples(st.booleans(), _SMALL, _SMALL), max_size=30)


def _build(changes):
    ranges: RangeSet = RangeSet()
    model: set[int] = set()
    for adding, start, stop in changes:
        if adding:
            ranges.add(start, stop)
            model.update(range(start, stop))
        else:
            ranges.remove(start, stop)
            model.difference_update(range(start, stop))
    return ranges, model


@given(_CHANGES)
def test_it_holds_the_numbers_that_a_set_would(changes):
    ranges, model = _build(changes)
    assert set(ranges.numbers()) == model
    assert len(ranges) == len(model)
    assert bool(ranges) == bool(model)
    assert [number in ranges for number in range(-5, 45)] == [number in model for number in range(-5, 45)]


@given(_CHANGES)
def test_it_is_canonical(changes):
    ranges, model = _build(changes)
    pairs = list(ranges)
    assert all(start < stop for start, stop in pairs)
    assert all(left[1] < right[0] for left, right in pairwise(pairs))
    again = RangeSet((number, number + 1) for number in sorted(model, reverse=True))
    assert ranges == again
    assert repr(ranges) == repr(again)


@given(_CHANGES, _SMALL, _SMALL)
def test_within_and_missing_share_a_stretch_between_them(changes, start, stop):
    ranges, model = _build(changes)
    inside = set(RangeSet(ranges.within(start, stop)).numbers())
    outside = set(RangeSet(ranges.missing(start, stop)).numbers())
    stretch = set(range(start, stop))
    assert inside == model & stretch
    assert outside == stretch - model
    assert set(ranges.numbers()) == model


def test_it_is_not_hashable_and_equals_only_its_kind():
    with pytest.raises(TypeError, match="unhashable"):
        hash(RangeSet())
    assert RangeSet() != []
