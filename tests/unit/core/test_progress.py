"""The form of a progress file: what is kept, what is refused, and that any bytes are survived."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetcraft.core.progress import MAX_FILE_BYTES, MAX_NUMBERS, MAX_TEXT, SCHEMA, decode, encode, number

SAID = {"done": 3, "total": 10, "unit": "steps", "phase": "train", "flops": 3.2e18, "numbers": {"loss": 0.25}}


def file_of(**body: object) -> bytes:
    return json.dumps({"schema": SCHEMA, **body}).encode()


def test_what_is_written_is_read_again():
    data = encode(SAID, task="1.0", attempt="2", at_utc=5.0)
    assert json.loads(data)["task"] == "1.0"
    assert decode(data, task="1.0", attempt=2) == {**SAID, "at_utc": 5.0}


@pytest.mark.parametrize(("task", "attempt"), (("1.1", 2), ("1.0", 3)))
def test_another_attempts_word_is_nobodys(task, attempt):
    assert decode(encode(SAID, task="1.0", attempt="2", at_utc=5.0), task=task, attempt=attempt) is None


def test_where_another_may_have_left_it_only_a_named_word_counts():
    named = encode({"done": 1}, task="1.0", attempt="1", at_utc=1.0)
    assert decode(named, task="1.0", attempt=1, named=True) == {"done": 1, "at_utc": 1.0}
    assert decode(file_of(done=1), task="1.0", attempt=1, named=True) is None
    assert decode(file_of(done=1, task="1.0"), task="1.0", attempt=1, named=True) is None


def test_a_program_need_not_say_which_attempt_it_is():
    assert decode(file_of(done=1), task="1.0", attempt=1) == {"done": 1}
    assert decode(file_of(done=1, attempt=None), task="1.0", attempt=1) == {"done": 1}


@pytest.mark.parametrize(
    "data",
    (b"", b"\0\0", b"[1]", b"{}", b'{"done": 1}', b'{"schema": "other/1", "done": 1}', b"[" * 4000, b"\xff{",
     file_of(done=1)[:-1], file_of(done=1, more="x" * MAX_FILE_BYTES), file_of()),
)  # fmt: skip
def test_what_is_no_progress_says_nothing(data):
    assert decode(data, task="1.0", attempt=1) is None


def test_values_that_do_not_fit_are_left_out():
    data = file_of(
        done=-1, total="10", flops=True, unit=3, phase="p" * 200, at_utc="now",
        numbers={**{f"n{place}": place for place in range(40)}, "": 1},
    )  # fmt: skip
    found = decode(data, task="1.0", attempt=1)
    assert found == {"phase": "p" * MAX_TEXT, "numbers": {f"n{place}": place for place in range(MAX_NUMBERS)}}
    assert decode(b'{"schema":"fleetcraft.progress/1","done":NaN,"flops":1e999}', task="1.0", attempt=1) is None


def test_numbers_of_other_types_are_asked_for_their_value():
    class Scalar:
        def __float__(self) -> float:
            return 2.5

    assert number(Scalar()) == 2.5
    assert number(10**400) is None
    assert number(10**30) == 1e30
    assert number(object()) is None


def test_the_largest_that_can_be_said_is_read_again():
    most = {
        "done": 1e300, "total": 1e300, "flops": 1e300, "unit": "\x01" * MAX_TEXT, "phase": "\x01" * MAX_TEXT,
        "numbers": {f"{place:064d}": 1.2345678901234567e-300 for place in range(MAX_NUMBERS)},
    }  # fmt: skip
    data = encode(most, task="16777216.16777216", attempt="1000000", at_utc=2e9)
    assert len(data) <= MAX_FILE_BYTES
    assert decode(data, task="16777216.16777216", attempt=1_000_000) == {**most, "at_utc": 2e9}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


@given(st.dictionaries(st.sampled_from(["done", "total", "flops", "unit", "phase", "numbers", "at_utc"]), JSON))
def test_any_object_gives_strict_json_or_nothing(body):
    found = decode(file_of(**body), task="1.0", attempt=1)
    if found is not None:
        assert found
        json.dumps(found, allow_nan=False)


@given(st.binary(max_size=200))
def test_any_bytes_are_survived(data):
    assert decode(data, task="1.0", attempt=1) is None
