"""The fold of records: the same answer in any order, twice, late and through summaries, as the rules say."""

from __future__ import annotations

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from fleetcraft.core.outcome import Event, Fold, Start
from fleetcraft.core.ranges import RangeSet
from fleetcraft.core.states import LossCause, Outcome, TaskState

BATCHES, TASKS, LIVES = (1, 2), 6, ("la", "lb", "lc")
_ENDS: dict[Outcome, list] = {
    Outcome.SUCCEEDED: [TaskState.SUCCEEDED],
    Outcome.FAILED: ["", TaskState.FAILED],
    Outcome.TIMEOUT: ["", TaskState.FAILED],
    Outcome.OUT_OF_MEMORY: ["", TaskState.FAILED],
    Outcome.OUTPUT_INVALID: ["", TaskState.FAILED],
    Outcome.LOST: ["", TaskState.QUARANTINED],
    Outcome.ABANDONED: [""],
    Outcome.CANCELLED: [TaskState.CANCELLED],
}


@st.composite
def _attempts(draw):
    """Who ran what. A first attempt of generation 0 has one life only, as the protocol has it."""
    batch = draw(st.sampled_from(BATCHES))
    first = draw(st.integers(0, TASKS - 1))
    gen, attempt = draw(st.integers(0, 2)), draw(st.integers(1, 3))
    life = LIVES[batch % 2] if (gen, attempt) == (0, 1) else draw(st.sampled_from(LIVES))
    count = draw(st.integers(1, TASKS - first))
    return life, {"b": batch, "i": first, "g": gen, "a": attempt, "k": count}


@st.composite
def _records(draw):
    life, body = draw(_attempts())
    kind = draw(st.sampled_from(["started", "receipt", "lost", "adopted", "note"]))
    if kind == "started":
        return life, body | {"t": kind, "how": draw(st.sampled_from([*Start])).value, "n": 1}
    if kind == "note":
        return life, {"t": "note", "what": "reap"}
    if kind == "lost":
        cause = draw(st.sampled_from([*LossCause]))
        return draw(st.sampled_from(LIVES)), body | {
            "t": kind, "life": life, "cause": cause.value, "counted": draw(st.booleans()), "alone": draw(st.booleans()),
        }  # fmt: skip
    outcome = draw(st.sampled_from([*_ENDS]))
    receipt = body | {"t": "receipt", "o": outcome.value, "final": str(draw(st.sampled_from(_ENDS[outcome])))}
    if outcome is Outcome.LOST:
        receipt["cause"] = draw(st.sampled_from([*LossCause])).value
    if kind == "adopted":
        return draw(st.sampled_from(LIVES)), {"t": "adopted", "life": life, "rec": receipt}
    return life, receipt


RECORDS = st.lists(_records(), max_size=14)
_RETRIES = st.lists(st.tuples(st.sampled_from(BATCHES), st.integers(0, TASKS - 1), st.integers(1, 3)), max_size=3)


def fold_of(records, into=None):
    fold = into or Fold()
    for life, record in records:
        fold.add(life, record)
    return fold


def answers(fold):
    """Everything that others ask of a fold."""
    return {
        "counts": fold.counts(),
        "ended": {batch: fold.ended(batch, TASKS) for batch in BATCHES},
        "verdicts": {(batch, index): fold.verdict(batch, index) for batch in BATCHES for index in range(TASKS)},
        "open": {key: list(ranges) for key, ranges in fold.open.items()},
        "irregular": set(fold.irregular()),
    }


@settings(max_examples=150)
@given(RECORDS, st.randoms(use_true_random=False), _RETRIES)
def test_order_and_repetition_change_nothing(records, random, retries):
    shuffled = records + random.sample(records, len(records) // 2)
    random.shuffle(shuffled)
    one, other = fold_of(records), fold_of(shuffled)
    for batch, index, gen in retries:
        one.retried(batch, RangeSet([(index, index + 1)]), gen)
    for batch, index, gen in reversed(retries):
        other.retried(batch, RangeSet([(index, index + 1)]), gen)
    assert answers(one) == answers(other)


@settings(max_examples=150)
@given(RECORDS, st.lists(st.integers(0, 3), max_size=14), st.permutations(range(4)))
def test_summaries_of_any_parts_give_the_whole(records, parts, order):
    shares = [
        [record for place, record in enumerate(records) if place < len(parts) and parts[place] == part]
        for part in range(4)
    ]
    rest = records[len(parts) :]
    merged = Fold()
    for part in order[:2]:  # some parts come as summaries, some as records, in any order
        merged.merge_json(json.loads(json.dumps(fold_of(shares[part]).as_json())))
        merged.merge_json(json.loads(json.dumps(fold_of(shares[part]).as_json())))
    for part in order[2:]:
        fold_of(shares[part], merged)
    fold_of(rest, merged)
    assert answers(merged) == answers(fold_of(records))
    again = Fold()
    again.merge_json(json.loads(json.dumps(merged.as_json())))
    assert answers(again) == answers(merged)


_RANKS = {"lost": 0, "taken back": 2}


def _naive(records, retries):
    """The rules of the outcome, read off one by one, task by task."""
    found: dict[tuple[int, int], set[str]] = {}
    for batch in BATCHES:
        for index in range(TASKS):
            events: dict[tuple, list] = {}
            for life, record in records:
                rec, owner = (record["rec"], record["life"]) if record["t"] == "adopted" else (record, life)
                if rec["t"] not in ("receipt", "lost") or rec["b"] != batch or not 0 <= index - rec["i"] < rec["k"]:
                    continue
                owner = rec["life"] if rec["t"] == "lost" else owner
                outcome = "lost" if rec["t"] == "lost" else rec["o"]
                if rec.get("cause") == "black_hole":
                    outcome = "taken back"
                events.setdefault((rec["g"], rec["a"], owner), []).append((outcome, rec.get("final", "")))
            gen = max(
                [key[0] for key in events] + [number for b, i, number in retries if (b, i) == (batch, index)] + [0]
            )
            newest = {key: ends for key, ends in events.items() if key[0] == gen}
            ends = [end for several in newest.values() for end in several]
            if any(outcome == "succeeded" for outcome, _ in ends):
                found[batch, index] = {TaskState.SUCCEEDED}
                continue
            highest = max((key[1] for key in newest), default=0)
            finals = {
                final
                for key, several in newest.items()
                if key[1] == highest
                for outcome, final in several
                # The life's own receipt beats a loss written down by another; a failure of its node is taken back.
                if _RANKS.get(outcome, 1) == max(_RANKS.get(end[0], 1) for end in several)
            }
            found[batch, index] = finals or {""}
    return found


@settings(max_examples=150)
@given(RECORDS, _RETRIES)
def test_the_verdict_follows_the_rules(records, retries):
    fold = fold_of(records)
    for batch, index, gen in retries:
        fold.retried(batch, RangeSet([(index, index + 1)]), gen)
    counted = dict.fromkeys((state for state in TaskState if state.ended), 0)
    for (batch, index), expected in _naive(records, retries).items():
        verdict = fold.verdict(batch, index)
        if expected == {TaskState.SUCCEEDED}:
            assert verdict.state is TaskState.SUCCEEDED
        else:
            # Several lives may have ended the highest attempt; one of them decides, always the same.
            assert (verdict.state or "") in expected
        if verdict.state is not None:
            counted[verdict.state] += 1
    assert fold.counts() == counted
    by_state = {state: sum(len(fold.ended(batch, TASKS)[state]) for batch in BATCHES) for state in counted}
    assert by_state == counted


@settings(max_examples=100)
@given(RECORDS)
def test_an_attempt_is_open_until_its_end_is_known(records):
    fold = fold_of(records)
    ended: set[tuple] = set()
    for life, record in records:
        rec, owner = (record["rec"], record["life"]) if record["t"] == "adopted" else (record, life)
        if rec["t"] in ("receipt", "lost"):
            owner = rec["life"] if rec["t"] == "lost" else owner
            ended.update((owner, rec["b"], rec["i"] + step, rec["g"], rec["a"]) for step in range(rec["k"]))
    started = {
        (life, rec["b"], rec["i"] + step, rec["g"], rec["a"])
        for life, rec in records
        if rec["t"] == "started"
        for step in range(rec["k"])
    }
    running = {
        (life, batch, index, gen, attempt)
        for (life, batch, gen, attempt, _), ranges in fold.open.items()
        for index in ranges.numbers()
    }
    assert running == started - ended


def _receipt(life, attempt, outcome, final, gen=0, index=0):
    return life, {"t": "receipt", "b": 1, "i": index, "g": gen, "a": attempt, "o": outcome, "final": final}


def _lost(life, attempt, *, counted=True, alone=False, cause="worker_gone"):
    return "reaper", {
        "t": "lost", "b": 1, "i": 0, "g": 0, "a": attempt, "life": life,
        "cause": cause, "counted": counted, "alone": alone,
    }  # fmt: skip


def test_the_lifes_own_late_receipt_beats_the_reapers_word():
    records = [_lost("la", 2), _receipt("la", 2, "failed", "failed")]
    for order in (records, records[::-1]):
        verdict = fold_of(order).verdict(1, 0)
        assert (verdict.state, verdict.losses, verdict.failures) == (TaskState.FAILED, 0, 1)


def test_a_success_wins_over_a_higher_attempt_and_a_second_one_is_a_duplicate():
    fold = fold_of([_receipt("la", 1, "succeeded", "succeeded"), _receipt("lb", 2, "failed", "failed")])
    assert fold.verdict(1, 0).state is TaskState.SUCCEEDED
    fold_of([_receipt("lb", 3, "succeeded", "succeeded")], fold)
    verdict = fold.verdict(1, 0)
    assert (verdict.state, verdict.duplicates, verdict.event and verdict.event.attempt) == (TaskState.SUCCEEDED, 1, 3)
    assert fold.counts()[TaskState.SUCCEEDED] == 1


def test_losses_are_a_set_of_attempts():
    fold = fold_of(
        [_lost("la", 1), _lost("la", 1), _lost("lb", 2, counted=False, cause="walltime"), _lost("lc", 3, alone=True)]
    )
    verdict = fold.verdict(1, 0)
    assert (verdict.losses, verdict.resumed, verdict.lost_alone, verdict.attempt) == (2, 1, True, 3)
    assert verdict.state is None


def test_a_new_generation_forgets_the_old_one_and_its_cancel():
    fold = fold_of([_receipt("la", 3, "cancelled", "cancelled")])
    fold.cancel(1, 0, RangeSet([(0, 3)]))
    assert (fold.verdict(1, 0).state, fold.is_cancelled(1, 0, 0)) == (TaskState.CANCELLED, True)
    fold.retried(1, RangeSet([(0, 1)]), 1)
    assert (fold.verdict(1, 0).state, fold.verdict(1, 0).attempt, fold.is_cancelled(1, 0, 1)) == (None, 0, False)
    fold_of([_receipt("lb", 1, "succeeded", "succeeded", gen=1)], fold)
    assert fold.verdict(1, 0).state is TaskState.SUCCEEDED


def test_a_started_record_read_after_its_end_leaves_nothing_open():
    started = ("la", {"t": "started", "b": 1, "i": 0, "k": 4, "g": 0, "a": 1, "how": "g"})
    ends = [_receipt("la", 1, "succeeded", "succeeded"), _receipt("la", 1, "failed", "", index=2)]
    fold = fold_of([*ends, started])
    assert {index for ranges in fold.open.values() for index in ranges.numbers()} == {1, 3}
    summary = Fold()
    summary.merge_json(fold_of(ends).as_json())
    fold_of([started], summary)
    assert summary.open == fold.open


def test_the_irregular_tasks_of_a_stretch_are_found_either_way():
    fold = fold_of([_receipt("la", 2, "failed", "failed", index=index) for index in (0, 3, 7)])
    fold.retried(1, RangeSet([(5, 6)]), 1)
    assert sorted(fold.irregular_within(1, 2, 6)) == [(1, 3), (1, 5)]
    assert sorted(fold.irregular_within(1, 0, 10_000)) == [(1, 0), (1, 3), (1, 5), (1, 7)]
    assert list(fold.irregular_within(2, 0, 10_000)) == []


def test_an_event_says_its_rank():
    lost = Event(0, 2, "lb", Outcome.LOST, "", "worker_gone", True, False)
    failed = Event(0, 2, "la", Outcome.FAILED, "failed", "", False, False)
    succeeded = Event(0, 1, "la", Outcome.SUCCEEDED, "succeeded", "", False, False)
    assert sorted([succeeded, failed, lost], key=lambda event: event.rank) == [lost, failed, succeeded]
