"""The hold rule, second loggers, and the interval that a log seems to have."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fleetcraft.usage.holding import extras, held, interval_vote, is_ordered, most_common

STAMPS = st.lists(st.integers(0, 10**7), min_size=1, max_size=60).map(sorted)


def test_a_sample_holds_until_the_next_one():
    assert held([0, 30_000, 61_000], 30_000) == [30_000, 31_000, 30_000]


def test_a_late_sample_holds_up_to_one_and_a_half_intervals_and_a_gap_counts_one():
    assert held([0, 45_000, 90_001], 30_000) == [45_000, 30_000, 30_000]


def test_a_sample_of_the_same_stamp_weighs_nothing():
    assert held([0, 0, 30_000], 30_000) == [0, 30_000, 30_000]


def test_the_next_file_ends_the_last_sample():
    assert held([0, 30_000], 30_000, next_ms=33_000) == [30_000, 3_000]


def test_no_samples_hold_nothing():
    assert held([], 30_000) == []


@given(STAMPS, st.integers(1, 60))
def test_what_is_held_never_overlaps_and_never_exceeds_the_span(stamps, interval_s):
    interval_ms = interval_s * 1000
    holds = held(stamps, interval_ms)
    assert all(0 <= hold <= interval_ms * 1.5 for hold in holds)
    for at in range(len(stamps) - 1):
        assert stamps[at] + holds[at] <= max(stamps[at + 1], stamps[at])
    assert sum(holds) <= stamps[-1] - stamps[0] + interval_ms


@given(STAMPS)
def test_a_second_logger_adds_no_time_and_is_counted(stamps):
    single = [at * 30_000 for at in range(len(stamps))]
    both = sorted([*single, *(stamp + 400 for stamp in single)])
    assert sum(held(both, 30_000)) == sum(held(single, 30_000)) + 400
    assert extras(both, 30_000) == len(single)
    assert extras(single, 30_000) == 0


def test_the_interval_is_the_most_frequent_distance_of_a_second_or_more():
    doubled = sorted([*(at * 30_019 for at in range(9)), *(at * 30_019 + 300 for at in range(9))])
    assert interval_vote(doubled) == 30_000
    assert interval_vote([5]) is None
    assert interval_vote([5, 5]) is None


def test_a_log_that_is_too_short_follows_the_others():
    assert most_common([10_000, None, 10_000, 30_000], 1) == 10_000
    assert most_common([None], 30_000) == 30_000


def test_order_is_told():
    assert is_ordered([1, 1, 2])
    assert not is_ordered([2, 1])
