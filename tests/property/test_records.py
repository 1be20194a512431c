"""The journal line: exact both ways for every JSON value, and total over every kind of damage."""

from __future__ import annotations

import json
import math
from decimal import Decimal
from zlib import crc32

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fleetcraft.core.records import decode_line, dump, encode_line, spawned_body, started_body, success_body

# Text with what other tools cut lines at: U+2028, U+2029, NEL, a lone carriage return, a zero byte, a lone surrogate.
_TEXT = st.text(max_size=12) | st.sampled_from(["a\u2028b", "\u2029", "\x85", "\r", "\0", "\ud800", "caf\u00e9", "}{"])
_SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | _TEXT
_VALUES = st.recursive(
    _SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_TEXT, inner, max_size=4), max_leaves=12
)
RECORDS = st.dictionaries(_TEXT, _VALUES, max_size=5)
_FOREIGN = st.floats() | st.sampled_from([np.float16, np.float32, np.float64, np.int8, np.int64]).flatmap(
    lambda kind: st.integers(-100, 100).map(kind)
)


def strict(text):
    """Parse as a strict reader does: a constant that is not JSON is an error."""
    return json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))


@given(RECORDS)
@example({"n": 2**53 + 1, "big": 10**200, "zero": -0.0})
def test_a_record_is_read_back(record):
    line = encode_line(dump(record))
    assert line.count(b"\n") == 1
    assert line.endswith(b"\n")
    assert decode_line(line) == record
    assert decode_line(line[:-1]) == record
    assert strict(dump(record)) == record


@given(RECORDS, st.data())
def test_a_torn_line_is_damaged(record, data):
    line = encode_line(dump(record))
    cut = data.draw(st.integers(0, len(line) - 2))
    assert decode_line(line[:cut]) is None


@given(RECORDS, st.data())
def test_a_changed_byte_never_gives_another_record(record, data):
    line = bytearray(encode_line(dump(record)))
    place = data.draw(st.integers(0, len(line) - 2))
    line[place] ^= data.draw(st.integers(1, 255))
    assert decode_line(bytes(line)) in (None, record)


@given(RECORDS, RECORDS)
def test_two_glued_lines_are_damaged(first, second):
    whole = encode_line(dump(first))
    assert decode_line(whole[:-1] + encode_line(dump(second))) is None
    assert decode_line(dump(first).encode() + encode_line(dump(second))) in (None, second if not first else None)


@given(RECORDS, st.integers(1, 50))
def test_zero_bytes_and_a_byte_order_mark_before_a_line_do_not_hide_it(record, count):
    line = encode_line(dump(record))
    assert decode_line(b"\0" * count + line) == record
    assert decode_line(b"\xef\xbb\xbf" + line) == record


@given(st.binary(max_size=80))
@example(b"")
@example(b"\n")
@example(b'{"m":"caf\xc3')
@example(b"[" * 100_000 + b" 00000000")
def test_any_bytes_are_a_record_or_damage(line):
    found = decode_line(line)
    assert found is None or isinstance(found, dict)


@pytest.mark.parametrize(
    "raw", (b"[1]", b"1", b"", b"{} ", b" {}", b'{"a":1}{"b":2}', b'{"a":\xff}', b'{"a":"\xc3"}', b"{" * 50_000)
)
def test_a_valid_checksum_does_not_make_a_record(raw):
    assert decode_line(b"%b %08x\n" % (raw, crc32(raw))) is None


@given(st.dictionaries(st.text(max_size=5), _FOREIGN | st.lists(_FOREIGN, max_size=3), max_size=4))
def test_numbers_of_every_type_become_strict_json(record):
    assert set(strict(dump(record))) == set(record)
    assert decode_line(encode_line(dump(record))) == strict(dump(record))


@pytest.mark.parametrize("kind", (float, np.float16, np.float32, np.float64, Decimal))
@pytest.mark.parametrize(("text", "name"), (("nan", "NaN"), ("inf", "Infinity"), ("-inf", "-Infinity")))
def test_what_is_not_finite_is_written_the_same_for_every_type(kind, text, name):
    record = {"loss": kind(text), "series": [kind("1"), kind(text)], "step": 3}
    assert strict(dump(record)) == {"loss": name, "series": [1, name], "step": 3}


class _TorchScalar:
    """Behaves as a zero-dimensional tensor does: a shape without entries, and `item`."""

    shape = ()

    def item(self):
        return math.nan


@pytest.mark.parametrize(
    ("value", "expected"),
    (
        (np.int64(2**53 + 1), 2**53 + 1),
        (2**53 + 1, 2**53 + 1),
        (np.bool_(True), True),
        (np.array(1.5), 1.5),
        (np.float32(0.5), 0.5),
        (float("1e400"), "Infinity"),
        (Decimal("1e2"), 100),
        (Decimal("0.5"), 0.5),
        (Decimal("1e100000"), "Infinity"),
        (_TorchScalar(), "NaN"),
        ((1, 2), [1, 2]),
    ),
)
def test_foreign_scalars_become_plain_ones(value, expected):
    found = strict(dump({"value": value}))["value"]
    assert found == expected
    assert type(found) is type(expected)


def test_negative_zero_survives():
    assert math.copysign(1, strict(dump({"x": -0.0, "y": np.float32(-0.0)}))["y"]) == -1
    assert math.copysign(1, strict(dump({"x": -0.0}))["x"]) == -1


@pytest.mark.parametrize("key", (1, True, None, 1.5, math.nan))
def test_keys_are_written_alike_on_both_paths(key):
    plain = dump({key: 1}) if key == key else None  # noqa: PLR0124  only a NaN differs from itself
    careful = dump({key: 1, "x": math.inf})
    assert "Infinity" in careful
    if plain:
        assert list(strict(plain)) == list(strict(careful))[:1]


@pytest.mark.parametrize("value", (object(), {1, 2}, b"bytes", np.array([1.0, 2.0])))
def test_what_has_no_json_form_is_refused(value):
    with pytest.raises((TypeError, ValueError)):
        dump({"value": value})


_WHOLE = st.integers(0, 10**9)
_TIMES = st.floats(0, 4e9)


@given(_WHOLE, _WHOLE, _WHOLE, _WHOLE, _WHOLE, _TIMES)
def test_records_formatted_by_hand_say_what_the_codec_would(number, batch, index, gen, slot, at):
    started = decode_line(encode_line(started_body(number, batch, index, gen, 1, slot, at)))
    assert started == {
        "n": number, "t": "started", "b": batch, "i": index, "g": gen, "a": 1, "s": slot,
        "at": pytest.approx(at, abs=1e-3),
    }  # fmt: skip
    spawned = decode_line(encode_line(spawned_body(number, batch, index, 1, slot, at)))
    assert spawned == {
        "n": number, "t": "spawned", "b": batch, "i": index, "a": 1, "pid": slot, "boot": pytest.approx(at, abs=1e-2),
    }  # fmt: skip
    receipt = decode_line(
        encode_line(success_body(number, batch, index, gen, 1, slot, at, at, 0.5, 0.25, 7, (0, 3, 9)))
    )
    assert receipt is not None
    assert (receipt["n"], receipt["b"], receipt["i"], receipt["g"], receipt["a"], receipt["s"]) == (
        number, batch, index, gen, 1, slot,
    )  # fmt: skip
    assert (receipt["o"], receipt["final"], receipt["log"]) == ("succeeded", "succeeded", [0, 3, 9])
    assert (receipt["wall"], receipt["cpu"], receipt["rss_kib"]) == (0.5, 0.25, 7)
