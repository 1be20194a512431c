"""Nobody's job is ended on a doubt."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetcraft.usage.classify import Cause, Class
from fleetcraft.usage.release import GpuOfJob, JobIdle, Step, rule
from fleetcraft.usage.thresholds import Thresholds

LIMITS = Thresholds()
FREE = GpuOfJob(kind=Class.FREE_IDLE, cause=Cause.NOTHING_QUEUED, free_s=3600.0, coverage=1.0)
JOB = JobIdle(
    job="7", gpus=(FREE, FREE), expected_gpus=2, is_ours=True, running_tasks=0, heartbeat_age_s=None,
    scheduler_answered=True, warned_utc=(),
)  # fmt: skip
NOW = 100_000.0


def test_two_warnings_and_time_between_them_come_first():
    assert rule(JOB, NOW, LIMITS).step is Step.WARN
    assert rule(replace(JOB, warned_utc=(NOW - 10,)), NOW, LIMITS).step is Step.NONE
    assert rule(replace(JOB, warned_utc=(NOW - 300,)), NOW, LIMITS).step is Step.WARN
    assert rule(replace(JOB, warned_utc=(NOW - 600, NOW - 299)), NOW, LIMITS).step is Step.NONE
    assert rule(replace(JOB, warned_utc=(NOW - 600, NOW - 300)), NOW, LIMITS).step is Step.RELEASE


OF_ONE_GPU: list[dict[str, Any]] = [
    *({"kind": kind} for kind in Class if kind is not Class.FREE_IDLE),
    {"cause": Cause.APPLICATION}, {"cause": Cause.WORK_WAITS}, {"free_s": 3599.0}, {"free_s": None},
    {"coverage": 0.89}, {"coverage": None},
]  # fmt: skip
DOUBTS: list[dict[str, Any]] = [
    {"is_ours": False},
    {"scheduler_answered": False},
    {"expected_gpus": None},
    {"expected_gpus": 3},
    {"gpus": (), "expected_gpus": 0},
    {"running_tasks": 1},
    {"heartbeat_age_s": 5.0},
    *({"gpus": (FREE, replace(FREE, **changes))} for changes in OF_ONE_GPU),
]


@pytest.mark.parametrize("changes", DOUBTS, ids=str)
def test_every_doubt_says_no(changes):
    warned = replace(JOB, warned_utc=(NOW - 900, NOW - 400))
    assert rule(warned, NOW, LIMITS).step is Step.RELEASE
    ruling = rule(replace(warned, **changes), NOW, LIMITS)
    assert ruling.step is Step.NONE
    assert ruling.why


@given(
    st.lists(
        st.builds(
            GpuOfJob,
            kind=st.sampled_from(Class),
            cause=st.sampled_from(Cause),
            free_s=st.none() | st.floats(0, 1e5),
            coverage=st.none() | st.floats(0, 1),
        ),
        max_size=4,
    )
)
def test_a_release_means_that_every_gpu_was_free_for_the_whole_limit(gpus):
    ruling = rule(replace(JOB, gpus=gpus, warned_utc=(NOW - 900, NOW - 400)), NOW, LIMITS)
    if ruling.step is Step.RELEASE:
        assert len(gpus) >= 2
        assert all(gpu.kind is Class.FREE_IDLE and (gpu.free_s or 0) >= LIMITS.release_s for gpu in gpus)
        assert all((gpu.coverage or 0) >= 0.9 for gpu in gpus)
