"""The fold of a fleet's records: the order of reading does not matter, and reading twice changes nothing."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from fleetcraft.core.states import JobState
from fleetcraft.fleet import records as kinds
from fleetcraft.fleet.records import Record
from fleetcraft.fleet.state import FleetState, fold
from tests.support.fleets import spec

_TOKENS = ["fcaaaaaaaaaa", "fcbbbbbbbbbb"]
_tokens = st.sampled_from(_TOKENS)
_times = st.one_of(st.none(), st.floats(0, 1e6))
_bodies = st.one_of(
    st.fixed_dictionaries({"kind": st.just(kinds.INTENT), "token": _tokens, "nodes": st.integers(1, 4),
                           "gpus_per_node": st.integers(0, 4), "time_limit_s": st.just(100.0)}),
    st.fixed_dictionaries({"kind": st.just(kinds.SUBMITTED), "token": _tokens,
                           "ref": st.fixed_dictionaries({"id": st.sampled_from(["1", "2"])})}),
    st.fixed_dictionaries({"kind": st.just(kinds.REJECTED), "token": _tokens,
                           "code": st.sampled_from(["qos", "withdrawn"])}),
    st.fixed_dictionaries({"kind": st.just(kinds.SEEN), "token": _tokens,
                           "state": st.sampled_from([state.value for state in JobState]),
                           "start_utc": _times, "end_utc": _times, "absent": st.booleans()}),
    st.fixed_dictionaries({"kind": st.just(kinds.CANCEL), "tokens": st.lists(_tokens)}),
    st.fixed_dictionaries({"kind": st.sampled_from([kinds.DRAIN, kinds.RESUME, "of_a_later_version"])}),
    st.fixed_dictionaries({"kind": st.just(kinds.SEEN), "token": _tokens}),  # makes no sense
)  # fmt: skip


def _records(bodies: list[dict[str, Any]]) -> list[Record]:
    return [
        Record(number=number, kind=body["kind"], at_utc=number * 10.0, body=body)
        for number, body in enumerate(bodies, 1)
    ]


def _plain(state: FleetState) -> Any:
    return repr(state)


@given(st.lists(_bodies, max_size=25), st.randoms(use_true_random=False))
def test_any_order_and_any_repetition_give_one_state(bodies, dice):
    records = _records(bodies)
    again = records + dice.sample(records, len(records) // 2)
    dice.shuffle(again)
    assert _plain(fold(again)) == _plain(fold(records))


@given(st.lists(_bodies, max_size=25))
def test_what_was_spent_is_never_negative_and_never_shrinks(bodies):
    state = fold(_records(bodies))
    at = [state.node_seconds(now) for now in (0.0, 1e3, 1e6, 1e7)]
    assert at[0] >= 0
    assert at == sorted(at)
    assert state.reserved_node_seconds(1e6) >= 0


@given(st.lists(_bodies, max_size=25))
def test_a_job_is_open_rejected_or_submitted_and_nothing_is_live_for_nothing(bodies):
    state = fold(_records(bodies))
    for job in state.live():
        assert not job.withdrawn
        assert not (job.state is not None and job.state.ended) or job.is_open


def test_two_runs_of_one_job_are_both_paid():
    def seen(number: int, at: float, **body: Any) -> Record:
        full = {"kind": kinds.SEEN, "token": _TOKENS[0], **body}
        return Record(number=number, kind=kinds.SEEN, at_utc=at, body=full)

    records = [
        Record(number=1, kind=kinds.SPEC, at_utc=0, body={"spec": spec().as_json()}),
        Record(
            number=2, kind=kinds.INTENT, at_utc=0,
            body={"token": _TOKENS[0], "nodes": 2, "gpus_per_node": 4, "spec": 1},
        ),
        Record(number=3, kind=kinds.SUBMITTED, at_utc=0, body={"token": _TOKENS[0], "ref": {"id": "5"}}),
        seen(4, 10, state="running", start_utc=10.0, nodes=["a", "b"]),
        seen(5, 100, state="pending", raw_state="PENDING"),
        seen(6, 300, state="running", start_utc=250.0, nodes=["a", "c"]),
        seen(7, 400, state="unknown", absent=True),
        seen(8, 500, state="done", start_utc=250.0, end_utc=450.0, nodes=["a", "c"]),
    ]  # fmt: skip
    state = fold(records)
    assert not state.problems
    assert state.node_seconds(1e9) == 2 * 90 + 2 * 200
    assert state.gpu_seconds(1e9) == 4 * (2 * 90 + 2 * 200)
    assert state.jobs[_TOKENS[0]].absent_since_utc is None
    assert state.spec_of(state.jobs[_TOKENS[0]]) == spec()
