"""The words that pick GPUs; what is not known is not picked."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetcraft.core.errors import UsageError
from fleetcraft.readmodel.gpu_filter import SORTS, kept, parse_filter, sorted_by
from tests.support.gpu_pictures import BUSY, FREE, HELD, picture, segment, served


@pytest.fixture
def seen(tmp_path):
    segment(tmp_path, "n1", BUSY, HELD)
    segment(tmp_path, "n2", FREE, job="8")
    lives = [
        served("n1", ["GPU-n1-0", "GPU-n1-1"], running=[{"task": "3.14", "gpus": ["GPU-n1-0"]}]),
        served("n3", ["GPU-n3-0"]),
    ]
    return picture(tmp_path, served=lives)


@pytest.mark.parametrize(
    ("text", "expected"),
    (
        ("", ["n1/0", "n1/1", "n2/0", "n3/0"]),
        ("class=free-idle", ["n2/0"]),
        ("class=free-idle,reserved-idle", ["n1/1", "n2/0"]),
        ("class!=working", ["n1/1", "n2/0", "n3/0"]),
        ("class=*idle", ["n1/1", "n2/0"]),
        ("host=n1 util<5", ["n1/1"]),
        ("util>=95%", ["n1/0"]),
        ("util<200", ["n1/0", "n1/1", "n2/0"]),  # nothing is known of n3
        ("util!=1", ["n1/0", "n1/1", "n2/0"]),
        ("!util<5", ["n1/0"]),
        ("mem>=40G", ["n1/0", "n1/1"]),
        ("mempct<10", ["n2/0"]),
        ("idle>15m", ["n1/1", "n2/0"]),
        ("age<90", ["n1/0", "n1/1", "n2/0"]),
        ("task=3.*", ["n1/0"]),
        ("task~3", ["n1/0"]),
        ("job=8", ["n2/0"]),
        ("N2", ["n2/0"]),
        ("cause=no_sampler", ["n3/0"]),
        ("host=n9", []),
    ),
)
def test_all_terms_must_hold(seen, text, expected):
    wanted = parse_filter(text)
    assert [f"{gpu.host}/{gpu.index}" for gpu in seen.gpus if wanted.holds(gpu)] == expected
    assert len(kept(seen, wanted).gpus) == len(expected)


@pytest.mark.parametrize("text", ("colour=red", "util=much", "util~5", "class<working", "idle>soon", "mem>1X"))
def test_what_makes_no_sense_is_refused_by_name(text):
    with pytest.raises(UsageError):
        parse_filter(text)


@given(st.text(max_size=30))
def test_any_text_is_a_filter_or_a_sentence(text):
    hint = ""
    try:
        parse_filter(text)
    except UsageError as error:
        hint = error.hint
    else:
        hint = "none needed"
    assert hint


@pytest.mark.parametrize("key", list(SORTS))
def test_what_is_not_known_comes_last_either_way(seen, key):
    for descending in (False, True):
        order = sorted_by(list(seen.gpus), key, descending=descending)
        unknown = [SORTS[key](gpu) is None for gpu in order]
        assert unknown == sorted(unknown)
        assert len(order) == 4
