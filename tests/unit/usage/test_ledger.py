"""Every rule of the ledger by itself: one line, the evidence for one class, and the seconds that come out."""

from __future__ import annotations

from typing import Any

import pytest

from fleetcraft.usage.api import Gpu, Stretch
from fleetcraft.usage.ledger import GRACE_MS, NO_WORKER, NOT_OURS, UNNAMED, WORKER_GONE, Evidence
from fleetcraft.usage.ledger_api import Class, Hold, Ledger, Line, Presence, share
from fleetcraft.usage.ledger_profile import Profile
from fleetcraft.usage.ledger_sum import NO_TASK, add_up

GPU = Gpu(host="n1", uuid="GPU-1")
GIB = float(1 << 30)
S = 1000


def line(start_s: int = 0, end_s: int = 1000, **more) -> Line:
    return Line(gpu=more.pop("gpu", GPU), spans=((start_s * S, end_s * S),), **more)


def worker(start_s: int = 0, end_s: int = 1000, up_s: int | None = None, **more) -> Presence:
    up_ms = (start_s if up_s is None else up_s) * S
    return Presence(start_ms=start_s * S, up_ms=up_ms, end_ms=end_s * S, **more)


def hold(start_s: int, end_s: int, kind: Class = Class.USEFUL, task: str = "1.0", **more) -> Hold:
    return Hold(start_ms=start_s * S, end_ms=end_s * S, kind=kind, task=task, **more)


def samples(*parts: tuple[int, int, float, float], every_s: int = 10, **more) -> Profile:
    """(from, to, utilization, GiB) of which every part is sampled every 10 s."""
    return Profile.of(
        Stretch(
            gpu=GPU, start_ms=at * S, end_ms=(at + every_s) * S, util_pct=util, memory_used_bytes=gib * GIB,
            power_w=100.0, **more,
        )
        for start_s, end_s, util, gib in parts
        for at in range(start_s, end_s, every_s)
    )  # fmt: skip


def seconds(ledger: Ledger) -> dict[str, float]:
    assert ledger.adds_up, ledger.check_line()
    return {kind.value: amount / S for kind, amount in ledger.total.amounts.items()}


def account(*, line: Line | None = None, **evidence: Any) -> Ledger:
    return add_up([Evidence(line=line or Line(gpu=GPU, spans=((0, 1000 * S),)), **evidence)], by="gpu")


@pytest.mark.parametrize("kind", (Class.USEFUL, Class.FAILED, Class.LOST, Class.DISCARDED, Class.OPEN))
def test_an_attempt_decides_before_everything_else(kind):
    found = account(
        presences=[worker(drain_ms=0)], holds=[hold(100, 300, kind)], kept=[(0, 1000 * S)], waiting=[(0, 1000 * S)]
    )
    assert seconds(found) == {kind.value: 200, "held_timed": 800}


def test_a_node_starts_until_its_worker_is_up():
    found = account(presences=[worker(30, 1000, up_s=45)])
    assert seconds(found) == {"starting": 45, "free_idle": 955}


def test_a_job_without_any_worker_is_unknown_and_a_young_one_that_runs_is_starting():
    found = account()
    assert seconds(found) == {"unknown": 1000}
    assert found.unknown == {NO_WORKER: 1000 * S}
    running = account(line=line(is_open=True))
    assert seconds(running) == {"starting": GRACE_MS / S, "unknown": 1000 - GRACE_MS / S}


def test_what_follows_the_worker_is_the_tail_only_if_it_ended_in_order():
    assert seconds(account(presences=[worker(0, 600)])) == {"free_idle": 600, "drained_tail": 400}
    gone = account(presences=[worker(0, 600, orderly=False)])
    assert seconds(gone) == {"free_idle": 600, "unknown": 400}
    assert gone.unknown == {WORKER_GONE: 400 * S}


def test_between_two_lives_a_node_starts_again_or_nobody_knows():
    both = [worker(0, 300), worker(400, 1000, up_s=410)]
    assert seconds(account(presences=both)) == {"free_idle": 890, "starting": 110}
    both[0] = worker(0, 300, orderly=False)
    assert seconds(account(presences=both)) == {"free_idle": 890, "starting": 10, "unknown": 100}


def test_free_time_is_told_apart_by_work_that_waited():
    found = account(presences=[worker()], waiting=[(100 * S, 250 * S)])
    assert seconds(found) == {"free_idle": 850, "free_waiting": 150}


def test_a_drained_worker_is_a_tail_after_its_last_attempt():
    found = account(presences=[worker(drain_ms=200 * S)], holds=[hold(100, 300)], waiting=[(0, 1000 * S)])
    assert seconds(found) == {"free_waiting": 100, "useful": 200, "drained_tail": 700}


def test_memory_without_activity_is_reserved_and_activity_of_nobody_is_unknown():
    profile = samples((0, 200, 0, 0.1), (200, 500, 0, 20), (500, 700, 60, 20))
    found = account(presences=[worker()], profile=profile)
    assert seconds(found) == {"free_idle": 500, "reserved_idle": 300, "unknown": 200}
    assert found.unknown == {NOT_OURS: 200 * S}
    assert found.total.observed_ms == 700 * S
    assert found.total.active_ms == 200 * S


def test_the_baseline_of_a_device_is_not_held_by_anybody():
    stretch = Stretch(gpu=GPU, start_ms=0, end_ms=1000 * S, util_pct=0, memory_used_bytes=0.8 * GIB)
    assert seconds(account(presences=[worker()], profile=Profile.of([stretch]))) == {"reserved_idle": 1000}
    above = Profile.of([stretch], baseline_bytes=0.6 * GIB)
    assert seconds(account(presences=[worker()], profile=above)) == {"free_idle": 1000}


def test_a_device_that_does_not_answer_is_unknown_and_a_receipt_still_stands():
    profile = samples((0, 1000, 0, 0), state="hung")
    found = account(presences=[worker()], holds=[hold(0, 300)], profile=profile)
    # A sample at once behind an attempt may still show what it did; one without an answer shows nothing of it.
    assert seconds(found) == {"useful": 300, "unknown": 700}
    assert found.total.observed_ms == 0


def test_a_sample_that_still_shows_the_attempt_says_nothing_about_the_time_after_it():
    found = account(presences=[worker()], holds=[hold(0, 95)], profile=samples((0, 100, 90, 40), (100, 1000, 0, 0)))
    assert seconds(found) == {"useful": 95, "free_idle": 905}


def test_loading_ends_with_the_first_active_sample_of_an_attempt_that_counts():
    profile = samples((0, 60, 0, 10), (60, 500, 90, 10))
    found = account(presences=[worker()], holds=[hold(0, 500)], profile=profile)
    assert seconds(found) == {"loading": 60, "useful": 440, "free_idle": 500}
    for kind in (Class.FAILED, Class.LOST, Class.DISCARDED, Class.OPEN):
        found = account(presences=[worker()], holds=[hold(0, 500, kind)], profile=profile)
        assert seconds(found) == {kind.value: 500, "free_idle": 500}


def test_loading_needs_a_sample_that_saw_the_device_idle():
    # The first sample in the attempt comes late and sees it active: since when is not known.
    found = account(presences=[worker()], holds=[hold(5, 500)], profile=samples((0, 10, 0, 0), (60, 500, 90, 10)))
    assert seconds(found) == {"useful": 495, "free_idle": 505}


def test_a_long_pause_of_a_done_attempt_is_reserved_and_a_short_one_is_not():
    profile = samples((0, 100, 90, 10), (100, 390, 0, 10), (390, 400, 90, 10), (400, 710, 0, 10), (710, 800, 90, 10))
    found = account(presences=[worker(0, 800)], line=line(0, 800), holds=[hold(0, 800)], profile=profile)
    assert seconds(found) == {"useful": 490, "reserved_idle": 310}


def test_an_attempt_that_never_used_its_gpu_is_reserved_when_it_was_long_and_seen():
    idle = samples((0, 1000, 0, 10))
    assert seconds(account(holds=[hold(0, 1000)], profile=idle)) == {"reserved_idle": 1000}
    assert seconds(account(line=line(0, 100), holds=[hold(0, 100)], profile=idle)) == {"useful": 100}
    assert seconds(account(holds=[hold(0, 1000)])) == {"useful": 1000}


def test_tasks_share_the_seconds_of_their_gpu_by_what_they_asked_for():
    holds = [
        hold(0, 100, task="1.0", weight=750), hold(0, 100, Class.FAILED, task="2.0", weight=250),
        hold(100, 200, task="3.0", weight=250),
    ]  # fmt: skip
    found = account(line=line(0, 200), presences=[worker(0, 200)], holds=holds)
    assert seconds(found) == {"useful": 175, "failed": 25}
    by_task = {use.task: use.held_ms / S for use in found.tasks}
    assert by_task == {"1.0": 75, "2.0": 25, "3.0": 100}
    assert {use.task: use.shared for use in found.tasks} == {"1.0": True, "2.0": True, "3.0": False}


def test_slots_leave_idle_what_nobody_holds():
    slots = line(0, 100, units=4, is_gpu=False)
    found = account(
        line=slots, presences=[worker(0, 100)], holds=[hold(0, 50, weight=3), hold(20, 60, weight=1, task="2.0")]
    )
    assert seconds(found) == {"useful": 190, "free_idle": 210}
    timed = account(line=slots, presences=[worker(0, 100)], holds=[hold(0, 50, weight=1)], kept=[(0, 50 * S)])
    assert seconds(timed) == {"useful": 50, "held_timed": 150, "free_idle": 200}


def test_slots_that_are_given_out_twice_still_add_up():
    crowd = [hold(0, 100, weight=3, task=f"1.{number}") for number in range(3)]
    found = account(line=line(0, 100, units=4, is_gpu=False), presences=[worker(0, 100)], holds=crowd)
    assert seconds(found) == {"useful": 400}


def test_a_gpu_that_no_worker_listed_is_unknown_though_its_node_has_one():
    found = account(line=line(named=False), presences=[worker(10, 1000)])
    assert seconds(found) == {"starting": 10, "unknown": 990}
    assert found.unknown == {UNNAMED: 990 * S}


def test_a_task_knows_its_share_of_energy_activity_and_memory():
    steps = [
        Stretch(gpu=GPU, start_ms=at * S, end_ms=(at + 10) * S, util_pct=90, memory_used_bytes=at * GIB, power_w=200.0,
                energy_mj=at * 300_000.0)
        for at in range(0, 100, 10)
    ]  # fmt: skip
    holds = [hold(0, 40, task="1.0"), hold(20, 40, task="2.0")]
    found = account(line=line(0, 100), presences=[worker(0, 100)], holds=holds, profile=Profile.of(steps))
    one, two = sorted(found.tasks, key=lambda use: use.task)
    assert (one.held_ms, one.active_ms, two.held_ms) == (30 * S, 30 * S, 10 * S)
    assert one.joules_held == pytest.approx(200 * 30)
    assert one.joules_counter == pytest.approx(300 * 30)
    assert two.joules_counter == pytest.approx(300 * 10)
    assert (one.memory_peak_bytes, one.shared, one.gpus) == (30 * GIB, True, ("GPU-1",))


def test_a_counter_that_starts_again_adds_nothing_negative():
    steps = [
        Stretch(gpu=GPU, start_ms=at * S, end_ms=(at + 10) * S, util_pct=90, energy_mj=energy)
        for at, energy in ((0, 5e6), (10, 6e6), (20, 0.0), (30, 1e6))
    ]
    found = account(line=line(0, 40), holds=[hold(0, 40)], profile=Profile.of(steps))
    assert found.tasks[0].joules_counter == pytest.approx(2000)


def test_a_task_on_several_gpus_counts_its_time_on_each_and_its_wall_once():
    lines = [line(0, 100, gpu=Gpu(host="n1", uuid=f"GPU-{number}")) for number in range(4)]
    found = add_up([Evidence(line=one, holds=[hold(10, 60)], presences=[worker(0, 100)]) for one in lines], by="task")
    (use,) = found.tasks
    assert (use.held_ms, use.wall_ms, use.attempts, len(use.gpus)) == (200 * S, 50 * S, 1, 4)
    assert {row.key: row.total / S for row in found.rows} == {"1.0": 200, NO_TASK: 200}
    assert found.adds_up


def test_the_largest_wastes_come_first_and_name_what_helps():
    found = account(
        presences=[worker()], holds=[hold(0, 300, Class.FAILED, name="train")], waiting=[(300 * S, 400 * S)]
    )
    assert [waste.kind for waste in found.wastes] == [Class.FREE, Class.FAILED, Class.FREE_WAITING]
    assert "fleetcraft task logs train" in found.wastes[1].remedy
    assert found.wastes[0].share == pytest.approx(0.6)
    assert add_up([Evidence(line=line(), holds=[hold(0, 1000)])]).wastes == ()


def test_a_timeline_covers_the_allocation_without_overlap():
    found = account(presences=[worker(20, 900)], holds=[hold(100, 300), hold(300, 400, Class.FAILED, task="2.0")])
    spans = [(span.start_ms // S, span.end_ms // S, span.kind.value, span.task) for span in found.spans]
    assert spans == [
        (0, 20, "starting", ""), (20, 100, "free_idle", ""), (100, 300, "useful", "1.0"), (300, 400, "failed", "2.0"),
        (400, 900, "free_idle", ""), (900, 1000, "drained_tail", ""),
    ]  # fmt: skip


def test_a_period_is_decided_by_what_was_before_it_too():
    evidence = Evidence(
        line=line(), presences=[worker(0, 400)], holds=[hold(0, 300)], profile=samples((0, 50, 0, 9), (50, 300, 90, 9))
    )
    cut = add_up([evidence], by="task", period=(100 * S, 500 * S))
    assert seconds(cut) == {"useful": 200, "free_idle": 100, "drained_tail": 100}
    (use,) = cut.tasks
    assert (use.wall_ms, use.active_ms) == (200 * S, 200 * S)
    assert cut.total.observed_ms == 200 * S
    assert add_up([evidence], period=(2000 * S, 3000 * S)).allocated_ms == 0
    parts = [add_up([evidence], period=(low * S, low * S + 125 * S)) for low in range(0, 1000, 125)]
    whole = add_up([evidence])
    assert {kind: sum(part.total.amounts.get(kind, 0) for part in parts) for kind in whole.total.amounts} == (
        whole.total.amounts
    )


@pytest.mark.parametrize(
    ("amount", "weights", "parts"),
    ((10, [1, 1, 1], [4, 3, 3]), (7, [3, 1], [5, 2]), (5, [0, 0], [3, 2]), (0, [1, 2], [0, 0]), (3, [1], [3])),
)
def test_shares_are_whole_and_add_up(amount, weights, parts):
    assert share(amount, weights) == parts


def test_a_task_says_for_how_much_of_it_the_counter_tells():
    steps = [
        Stretch(gpu=GPU, start_ms=at * S, end_ms=(at + 10) * S, util_pct=90, power_w=200.0, energy_mj=energy)
        for at, energy in ((0, 5e6), (10, 6e6), (20, 0.0), (30, 1e6))
    ]
    (use,) = account(line=line(0, 40), holds=[hold(0, 40)], profile=Profile.of(steps)).tasks
    assert (use.counter_ms, use.observed_ms, use.held_ms) == (20 * S, 40 * S, 40 * S)
    assert use.as_json()["counter_ms"] == 20 * S


def test_a_gpu_that_was_allocated_twice_is_one_gpu():
    other = Gpu(host="n1", uuid="GPU-2")
    lines = [line(0, 100), line(200, 300, job="8"), line(0, 300, gpu=other), line(0, 10, gpu=Gpu(host="n1", uuid=""))]
    found = add_up([Evidence(line=one) for one in lines], by="host")
    assert (found.total.lines, found.rows[0].lines) == (3, 3)
    assert found.allocated_ms == 510 * S
    assert add_up([Evidence(line=one) for one in lines], by="job").total.lines == 3
