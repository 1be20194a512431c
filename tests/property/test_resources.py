"""What a task asks for: lanes are equal exactly when requests are; a description is taken or refused in words."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fleetcraft.core.errors import UsageError
from fleetcraft.core.names import Token, parse_token
from fleetcraft.core.resources import Request, request_from_task
from fleetcraft.core.task import TASK_KEYS, canonical, draft_task, is_plain

_WORDS = st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,5}", fullmatch=True)
ASKED = st.fixed_dictionaries(
    {},
    optional={
        "gpus": st.sampled_from([0, 1, 2, 8, 0.25, 0.5, "0.125", 1.0, 1024]),
        "cpus": st.integers(0, 4),
        "node": st.booleans(),
        "timed": st.booleans(),
        "vram": st.sampled_from([None, 0, "20G", 5, "5"]),
        "uses": st.none() | st.dictionaries(_WORDS, st.integers(1, 3), max_size=2) | st.just("scratch_io:1"),
        "family": st.none() | _WORDS,
        "needs": st.sampled_from([None, 0, 60, "1m", "20m"]),
    },
)


@given(ASKED, ASKED)
def test_lanes_are_equal_exactly_when_requests_are(one, other):
    first, second = request_from_task(one, "here"), request_from_task(other, "here")
    assert (first.lane == second.lane) == (first == second)


@given(ASKED)
def test_a_request_survives_the_header_and_its_lane_fits_a_token(asked):
    request = request_from_task(asked, "here")
    assert Request.from_json(request.as_json()) == request
    assert re.fullmatch(r"[a-z0-9-]{1,60}", request.lane)
    token = Token(lane=request.lane, priority=1, batch=1, start=0, stop=1)
    assert parse_token(token.name) == token
    assert canonical(request.as_json()) == canonical(Request.from_json(request.as_json()).as_json())


@pytest.mark.parametrize(
    ("asked", "lane"),
    (
        ({}, "c1"),
        ({"cpus": 4}, "c4"),
        ({"cpus": 0}, "c0"),
        ({"gpus": 1}, "g1"),
        ({"gpus": 4, "cpus": 16}, "g4c16"),
        ({"gpus": 0.25}, "g0-25"),
        ({"node": True}, "node"),
        ({"timed": True, "gpus": 8}, "g8timed"),
    ),
)
def test_plain_lanes_read_as_what_they_ask_for(asked, lane):
    assert request_from_task(asked, "here").lane == lane


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
_ODD = st.dictionaries(st.sampled_from(sorted(TASK_KEYS)), _JSON, max_size=5)


@given(_ODD | _JSON)
@example({"uses": ["a:²"]})
@example({"uses": ["a:" + "9" * 5000]})
@example({"shell": "x", "uses": {"a": 1, "b": 2}, "name": "\udc80"})
@example({"shell": "x", "checkpoint_signal": "²"})
@example({"shell": "x", "retries": 10**30, "timeout": "9" * 500})
@example({"call": "a:b", "args": {"x": float("nan")}})
@example({"shell": "x", "gpus": 0.0004})
def test_any_description_is_taken_or_refused_in_words(task):
    found = _draft_or_sentence(task)
    if isinstance(found, str):
        assert "tasks.jsonl:3" in found
    else:
        assert found.request.lane


def _draft_or_sentence(task):
    try:
        return draft_task(task, "tasks.jsonl:3")
    except UsageError as error:
        return str(error)


_PLAIN = st.fixed_dictionaries({"name": st.text(max_size=4), "command": st.lists(st.text(max_size=4), max_size=3)})


@given(_PLAIN | _ODD)
@example({"name": "a", "command": ["x", "\0"]})
@example({"name": "a", "command": [""]})
@example({"name": "a", "command": ["x"] * 3})
def test_the_fast_path_takes_only_what_the_checks_would_take_as_it_is(task):
    if is_plain(task):
        draft = draft_task(task, "here")
        assert draft.line == task
        assert draft.name == task["name"]
        assert draft.request == Request()
