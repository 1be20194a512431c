"""Declared FLOPs and precision: kept as given, refused before anything is enqueued."""

from __future__ import annotations

import json

import pytest

from fleetcraft.core.errors import TaskInvalid
from tests.support.enqueuing import batches, find, leftovers, make_spool, options, stream

FORMULA = {"formula": "video_forward", "parameters": 1e9, "layers": 4, "width": 64, "tokens": 100, "calls": 8}


@pytest.fixture
def spool(tmp_path):
    return make_spool(tmp_path)


def line(**more: object) -> str:
    return json.dumps({"name": "a", "command": ["true"], **more}) + "\n"


def test_both_are_kept_as_given(spool):
    stream(spool, line(flops=FORMULA, precision="fp8") + line(name="b", flops=3.2e18))
    assert (find(spool, "a")["flops"], find(spool, "a")["precision"]) == (FORMULA, "fp8")
    assert find(spool, "b")["flops"] == 3.2e18
    assert "precision" not in find(spool, "b")


def test_an_option_holds_for_every_line_that_says_nothing_else(spool):
    stream(spool, line() + line(name="b", flops=2), options(flops=1e15, precision="fp16"))
    assert (find(spool, "a")["flops"], find(spool, "b")["flops"]) == (1e15, 2)
    assert find(spool, "b")["precision"] == "fp16"


@pytest.mark.parametrize(
    ("more", "said"),
    (
        ({"flops": 0}, "above 0"), ({"flops": -1.0}, "above 0"), ({"flops": True}, "true or false"),
        ({"flops": "1e15"}, "number"), ({"flops": [1]}, "number"), ({"flops": {}}, "unknown formula"),
        ({"flops": {"formula": "no"}}, "transformer_train"), ({"flops": {**FORMULA, "heads": 3}}, "it takes"),
        ({"flops": {**FORMULA, "calls": 0}}, "calls"), ({"flops": float("nan")}, "above 0"),
        ({"precision": "fp4"}, "Known: bf16"), ({"precision": 3}, "Known: bf16"),
        ({"precision": ["bf16"]}, "Known: bf16"),
    ),
)  # fmt: skip
def test_what_no_one_could_count_with_is_refused_with_its_line(spool, more, said):
    with pytest.raises(TaskInvalid) as error:
        stream(spool, line() + line(**{"name": "b", **more}))
    assert ":2: " in str(error.value)
    assert said in str(error.value)
    assert batches(spool) == []
    assert leftovers(spool) == []


def test_a_wrong_option_is_refused(spool):
    with pytest.raises(TaskInvalid, match="options: FLOPs"):
        stream(spool, line(), options(flops=-1))
