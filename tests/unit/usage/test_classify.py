"""One GPU, one class: the first rule that holds, and nothing idle that was not seen."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetcraft.core.errors import UsageError
from fleetcraft.usage.classify import BLIND, IDLE, Cause, Class, Evidence, classify
from fleetcraft.usage.thresholds import DEFAULTS, Thresholds

LIMITS = Thresholds()
MIB = 1 << 20
IDLE_NOW = Evidence(age_s=5.0, coverage=1.0, job_age_s=9e4, ever_active=True, active_fraction=0.0, held_bytes=0.0)
_maybe = st.none() | st.floats(0, 1e6)
_share = st.none() | st.floats(0, 1)
EVIDENCE = st.builds(
    Evidence,
    expected=st.booleans(), age_s=_maybe, interval_s=st.floats(1, 60), silence=st.sampled_from(Cause),
    state=st.sampled_from(["ok", "lost", "hung", "broken", "reset_required", "telemetry_broken", "odd"]),
    coverage=_share, job_age_s=_maybe, ever_active=st.none() | st.booleans(), active_fraction=_share,
    sm_active_pct=st.none() | st.floats(0, 100), util_pct=st.none() | st.floats(0, 100),
    own_pids=st.none() | st.booleans(), held_bytes=st.none() | st.floats(0, 1e12), unified=st.booleans(),
    queue=st.sampled_from(Cause), heartbeat_age_s=_maybe,
)  # fmt: skip


def kind(evidence: Evidence) -> Class:
    return classify(evidence, LIMITS).kind


@pytest.mark.parametrize(
    ("changes", "expected", "rule"),
    (
        ({"age_s": 400.0}, Class.UNREACHABLE, 1),
        ({"age_s": None}, Class.UNREACHABLE, 1),
        ({"age_s": None, "expected": False}, Class.UNKNOWN, 1),
        ({"state": "lost"}, Class.LOST, 2),
        ({"state": "hung"}, Class.HUNG, 2),
        ({"state": "broken"}, Class.BROKEN, 2),
        ({"state": "reset_required"}, Class.BROKEN, 2),
        ({"coverage": 0.49}, Class.UNKNOWN, 3),
        ({"coverage": None}, Class.UNKNOWN, 3),
        ({"job_age_s": 30.0, "ever_active": False}, Class.STARTING, 4),
        ({"job_age_s": 30.0, "ever_active": True}, Class.FREE_IDLE, 7),
        ({"active_fraction": 0.01}, Class.WORKING, 5),
        ({"active_fraction": None}, Class.UNKNOWN, 5),
        ({"held_bytes": 500.0 * MIB}, Class.RESERVED_IDLE, 6),
        ({"held_bytes": 499.0 * MIB}, Class.FREE_IDLE, 7),
        ({"held_bytes": None, "own_pids": True}, Class.RESERVED_IDLE, 6),
        ({"held_bytes": None}, Class.UNKNOWN, 6),
        ({"queue": Cause.TASK}, Class.WAITING, 6),
        ({"queue": Cause.PERMITS}, Class.WAITING, 7),
        ({"queue": Cause.NOTHING_QUEUED}, Class.FREE_IDLE, 7),
        ({"queue": Cause.WORK_WAITS}, Class.FREE_IDLE, 7),
    ),
)
def test_the_first_rule_that_holds_decides(changes, expected, rule):
    verdict = classify(replace(IDLE_NOW, **changes), LIMITS)
    assert (verdict.kind, verdict.rule) == (expected, rule)


def test_unified_memory_reserves_nothing_without_a_process():
    much = replace(IDLE_NOW, unified=True, held_bytes=9e10)
    assert kind(replace(much, own_pids=True)) is Class.RESERVED_IDLE
    assert kind(replace(much, own_pids=False)) is Class.FREE_IDLE
    assert kind(much) is Class.UNKNOWN
    assert kind(replace(much, held_bytes=0.0)) is Class.FREE_IDLE


def test_a_working_gpu_that_hardly_works_is_labelled_by_its_multiprocessors_first():
    busy = replace(IDLE_NOW, active_fraction=1.0, util_pct=100.0)
    assert classify(busy, LIMITS).label == ""
    assert classify(replace(busy, sm_active_pct=3.0), LIMITS).label == "low"
    assert classify(replace(busy, util_pct=19.0), LIMITS).label == "low"


def test_a_fresh_sign_of_life_forbids_more_than_a_nudge():
    fresh = classify(replace(IDLE_NOW, heartbeat_age_s=20.0), LIMITS)
    assert (fresh.kind, fresh.cause, fresh.is_nudged_only) == (Class.FREE_IDLE, Cause.APPLICATION, True)
    stale = classify(replace(IDLE_NOW, heartbeat_age_s=121.0), LIMITS)
    assert (stale.kind, stale.is_nudged_only) == (Class.FREE_IDLE, False)


def test_a_slow_sampler_is_not_silent_before_three_of_its_intervals():
    slow = replace(IDLE_NOW, interval_s=60.0, age_s=179.0)
    assert kind(slow) is Class.FREE_IDLE
    assert kind(replace(slow, age_s=181.0)) is Class.UNREACHABLE


@given(EVIDENCE)
def test_every_evidence_has_one_class_and_a_reason(evidence):
    verdict = classify(evidence, LIMITS)
    assert verdict.kind in Class
    assert 1 <= verdict.rule <= 7
    assert verdict.text or verdict.kind is Class.WAITING


@given(EVIDENCE)
def test_nothing_is_idle_of_which_activity_or_coverage_is_unknown(evidence):
    for blind in (
        replace(evidence, active_fraction=None),
        replace(evidence, coverage=None),
        replace(evidence, age_s=None),
    ):
        assert kind(blind) not in (*IDLE, Class.WORKING)


@given(EVIDENCE, st.floats(0, 1e6))
def test_more_silence_only_leads_to_silence(evidence, more_s):
    before = classify(evidence, LIMITS)
    after = classify(replace(evidence, age_s=None if evidence.age_s is None else evidence.age_s + more_s), LIMITS)
    assert after.kind is before.kind or after.rule == 1
    if before.rule == 1:
        assert after.kind is before.kind


@given(EVIDENCE, st.floats(0, 1))
def test_more_coverage_never_hides_what_was_known(evidence, more):
    before = kind(evidence)
    coverage = None if evidence.coverage is None else min(1.0, evidence.coverage + more)
    after = kind(replace(evidence, coverage=coverage))
    assert after is before or before is Class.UNKNOWN


@given(EVIDENCE, st.floats(0, 1))
def test_more_activity_never_makes_a_gpu_idle(evidence, more):
    active = None if evidence.active_fraction is None else min(1.0, evidence.active_fraction + more)
    before, after = kind(evidence), kind(replace(evidence, active_fraction=active))
    assert after is before or after is Class.WORKING
    if before not in IDLE:
        assert after not in IDLE


@given(EVIDENCE, st.floats(0, 1e12))
def test_more_memory_never_makes_a_gpu_free(evidence, more):
    held = None if evidence.held_bytes is None else evidence.held_bytes + more
    before, after = kind(evidence), kind(replace(evidence, held_bytes=held))
    assert not (after is Class.FREE_IDLE and before is not Class.FREE_IDLE)


@given(EVIDENCE)
def test_only_a_free_gpu_is_ever_more_than_nudged(evidence):
    verdict = classify(evidence, LIMITS)
    if not verdict.is_nudged_only:
        assert verdict.kind is Class.FREE_IDLE
    if verdict.kind in BLIND:
        assert verdict.is_nudged_only


def test_thresholds_are_set_by_name_and_checked():
    changed = LIMITS.replaced(["window-s=600", "min_coverage=0.9"])
    assert (changed.window_s, changed.min_coverage) == (600.0, 0.9)
    assert changed.as_json() == {**DEFAULTS, "window_s": 600.0, "min_coverage": 0.9}


@pytest.mark.parametrize(
    "word", ("nothing=1", "window_s", "window_s=x", "window_s=0", "min_coverage=2", "grace_s=-1", "grace_s=nan")
)
def test_a_threshold_that_cannot_be_is_refused(word):
    with pytest.raises(UsageError, match=word.partition("=")[0]):
        LIMITS.replaced([word])
