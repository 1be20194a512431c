from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetcraft.fleet.guards.shape import decide_shape
from fleetcraft.schedulers.api import JobRequest, Limits, PartitionLimits

GPU = PartitionLimits(
    name="gpu", state="UP", is_default=True, nodes=4, time_limit_s=86400.0, cpus_per_node=8,
    memory_per_node_bytes=6 << 30, gpus_per_node=4, gpu_types=("a100",),
)  # fmt: skip
CPU = PartitionLimits(name="cpu", state="UP", nodes=100, cpus_per_node=64, gpus_per_node=0)
DOWN = replace(GPU, name="down", state="DOWN", is_default=False, gpus_per_node=16)
SITE = Limits(at_utc=0.0, partitions=(GPU, CPU, DOWN))
REQUEST = JobRequest(
    token="fcaaaaaaaaaa", name="f", script="", nodes=4, gpus_per_node=4, gpu_type="A100", cpus_per_node=8,
    memory_bytes=6 << 30, time_limit_s=86400.0, partition="gpu",
)  # fmt: skip


def test_the_largest_shape_that_fits_is_allowed_named_or_by_default():
    assert decide_shape(REQUEST, SITE).allowed
    assert decide_shape(replace(REQUEST, partition=None), SITE).allowed


@pytest.mark.parametrize(
    ("key", "value", "word"),
    (
        ("gpus_per_node", 5, "5 GPUs per node, its nodes have 4"),
        ("cpus_per_node", 9, "9 CPUs per node, its nodes have 8"),
        ("memory_bytes", (6 << 30) + 1, "its nodes have 6.0 GiB"),
        ("nodes", 5, "5 nodes, a job there gets at most 4"),
        ("time_limit_s", 86401.0, "it allows 1d00h"),
        ("gpu_type", "h100", "GPUs of type h100, its nodes have a100"),
    ),
)
def test_one_thing_too_much_is_refused_with_the_reason_and_the_nearest_shape(key, value, word):
    decision = decide_shape(replace(REQUEST, **{key: value}), SITE)
    assert not decision.allowed
    assert word in decision.reason
    nearest = decision.evidence["nearest"]
    assert nearest["partition"] == "gpu"
    fitting = {name: item for name, item in nearest.items() if name != "partition"}
    assert decide_shape(replace(REQUEST, **fitting), SITE).allowed


def test_every_misfit_is_told_at_once():
    decision = decide_shape(replace(REQUEST, nodes=9, gpus_per_node=8), SITE)
    assert "8 GPUs" in decision.reason
    assert "9 nodes" in decision.reason


def test_an_unknown_partition_names_those_that_are_there():
    decision = decide_shape(replace(REQUEST, partition="gqu"), SITE)
    assert "no partition gqu" in decision.reason
    assert decision.evidence["known"] == ["gpu", "cpu", "down"]
    assert decision.evidence["nearest"]["partition"] == "gpu"


def test_a_partition_that_is_down_could_never_start_it_and_is_no_nearest_shape():
    decision = decide_shape(replace(REQUEST, partition="down", gpus_per_node=16), SITE)
    assert not decision.allowed
    assert decision.evidence["nearest"]["partition"] == "gpu"
    assert decision.evidence["nearest"]["gpus_per_node"] == 4


def test_gpus_on_a_partition_without_any_are_refused():
    decision = decide_shape(replace(REQUEST, partition="cpu", gpu_type=None), SITE)
    assert "its nodes have none" in decision.reason


def test_what_the_site_does_not_tell_stands_against_nothing():
    bare = Limits(at_utc=0.0, partitions=(PartitionLimits(name="gpu"),))
    assert decide_shape(replace(REQUEST, nodes=1000), bare).allowed


def test_no_answer_and_no_partition_at_all_are_refused():
    assert not decide_shape(REQUEST, Limits(at_utc=0.0, answered=False, problems=("timed out",))).allowed
    assert not decide_shape(replace(REQUEST, partition=None), Limits(at_utc=0.0, partitions=(CPU,))).allowed


small = st.none() | st.integers(0, 4)
partitions = st.builds(
    PartitionLimits, name=st.sampled_from(["a", "b", "c"]), state=st.sampled_from(["UP", "DOWN", ""]),
    is_default=st.booleans(), nodes=small, max_nodes=small, time_limit_s=st.none() | st.floats(1, 4),
    cpus_per_node=small, memory_per_node_bytes=small, gpus_per_node=small,
    gpu_types=st.sampled_from([(), ("x",), ("x", "y")]),
)  # fmt: skip
requests = st.builds(
    JobRequest, token=st.just("fcaaaaaaaaaa"), name=st.just("f"), script=st.just(""),
    partition=st.sampled_from([None, "a", "b", "d"]), nodes=st.integers(1, 6), gpus_per_node=st.integers(0, 6),
    gpu_type=st.sampled_from([None, "x", "z"]), cpus_per_node=st.none() | st.integers(1, 6),
    memory_bytes=st.none() | st.integers(0, 6), time_limit_s=st.none() | st.floats(0.5, 6),
)  # fmt: skip


@given(requests, st.lists(partitions, max_size=3, unique_by=lambda part: part.name))
def test_the_nearest_shape_can_always_start(request, parts):
    site = Limits(at_utc=0.0, partitions=tuple(parts))
    decision = decide_shape(request, site)
    nearest = decision.evidence.get("nearest")
    if decision.allowed or nearest is None:
        return
    assert decide_shape(replace(request, **nearest), site).allowed
    assert nearest["nodes"] > 0
    assert bool(nearest["gpus_per_node"]) is bool(request.gpus_per_node)
