"""Durations and sizes: every text gives a number or a sentence, never another error."""

from __future__ import annotations

import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fleetcraft.core.errors import UsageError
from fleetcraft.core.quantities import format_bytes, format_duration, parse_duration_s, parse_size_bytes

_TEXT = st.text(max_size=20) | st.from_regex(r"[0-9.:smhdwkKMGTPiB -]{0,14}", fullmatch=True)


@given(_TEXT | st.floats() | st.integers() | st.booleans() | st.none())
@example("1e309")
@example("9" * 400)
@example("9" * 400 + "d")
@example("٣")
@example("1-1:1")
def test_a_duration_is_finite_or_refused(value):
    try:
        seconds = parse_duration_s(value)
    except UsageError:
        return
    assert math.isfinite(seconds)
    assert seconds >= 0


@given(_TEXT | st.integers() | st.booleans() | st.none())
@example("9" * 400)
@example("9" * 400 + ".5T")
@example("9" * 5000)
@example("²G")
def test_a_size_is_a_whole_number_or_refused(value):
    try:
        size = parse_size_bytes(value)
    except UsageError:
        return
    assert isinstance(size, int)
    assert size >= 0


@given(st.integers(0, 60), st.integers(0, 23), st.integers(0, 59), st.integers(0, 59))
def test_days_hours_minutes_and_seconds_add_up(days, hours, minutes, seconds):
    total = ((days * 24 + hours) * 60 + minutes) * 60 + seconds
    assert parse_duration_s(f"{days}-{hours}:{minutes:02d}:{seconds:02d}") == total
    assert parse_duration_s(f"{days}d{hours}h{minutes}m{seconds}s") == total
    assert parse_duration_s(f"{total}") == total
    assert parse_duration_s(total) == total


@pytest.mark.parametrize(
    ("text", "seconds"),
    (
        ("20:00", 1200),
        ("1:00:00", 3600),
        ("2-03", None),
        ("2-03:30", 2 * 86400 + 12600),
        ("1.5h", 5400),
        ("250ms", 0.25),
    ),
)
def test_forms_as_slurm_writes_them(text, seconds):
    if seconds is None:
        with pytest.raises(UsageError, match="not a time"):
            parse_duration_s(text)
    else:
        assert parse_duration_s(text) == seconds


@given(st.integers(0, 10**6), st.sampled_from(["", "K", "M", "G", "T", "P"]), st.sampled_from(["", "B", "iB"]))
def test_units_are_powers_of_1024(number, unit, tail):
    expected = number * 1024 ** ["", "K", "M", "G", "T", "P"].index(unit)
    assert parse_size_bytes(f"{number}{unit}{tail}") == expected
    assert parse_size_bytes(f" {number} {unit.lower()}{tail} ") == expected


@given(st.integers(0, 10**12))
def test_a_plain_size_is_kept_exactly(size):
    assert parse_size_bytes(size) == size
    assert parse_size_bytes(str(size)) == size


@given(st.floats(0, 1e9))
def test_readings_are_short(number):
    assert len(format_duration(number)) <= 10
    assert len(format_bytes(number)) <= 12
