"""Joining: which evidence belongs to which line, and what a ledger says where a part of the evidence is missing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fleetcraft.core.errors import UsageError
from fleetcraft.core.resources import Request
from fleetcraft.fleet.state import FleetState, Job, Phase, Run
from fleetcraft.readmodel.gpu_ledger import Asked, open_ledgers, read_ledgers
from fleetcraft.schedulers.api import JobRef
from fleetcraft.spool.life import Life
from fleetcraft.spool.spool import Spool
from fleetcraft.usage.ledger_api import Class, Ledger
from tests.support.telemetry_files import ARCHIVE, write_segment
from tests.unit.readmodel.building import make_spool, publish, receipt

S = 1000
BASE_S = 1_800_000_000  # later than any enqueue of a test, so what was enqueued waits from the begin on


@pytest.fixture
def spool(tmp_path: Path) -> Spool:
    return make_spool(tmp_path)


def worker(
    spool: Spool, *, at_s: float = 0, gpus: int = 2, cpus: int = 4, job: str | None = None, host: str = "n1"
) -> Life:
    """A life that was born at a second of the test, up one second later."""
    life = Life.begin(spool, job_id=job)
    path = Path(life.folder, "identity.json")
    path.write_text(json.dumps({**json.loads(path.read_text()), "created_utc": BASE_S + at_s, "host": host}))
    listed = [{"uuid": f"GPU-{host}-{number}", "memory_bytes": 80 << 30} for number in range(gpus)]
    capacity = {"cpus": cpus, "gpus": listed}
    life.record({"t": "note", "what": "up", "at": BASE_S + at_s + 1, "capacity": capacity})
    return life


def ends(life: Life, at_s: float) -> None:
    """It ended in order."""
    life.beat({"state": "stopped"})
    path = Path(life.folder, "heartbeat.json")
    path.write_text(json.dumps({**json.loads(path.read_text()), "at_utc": BASE_S + at_s}))
    assert life.close()


def ran(life: Life, batch: int, index: int, start_s: float, end_s: float, outcome: str = "succeeded", **more) -> None:
    where = {"s": more.pop("slot", 0), "gpus": list(more.pop("gpus", ()))}
    life.record({"t": "started", "b": batch, "i": index, "g": 0, "a": 1, "at": BASE_S + start_s, **where})
    receipt(life, batch, index, outcome, at=BASE_S + start_s, end=BASE_S + end_s, **where, **more)


def blue(*runs: Run, names: tuple[str, ...] = ("n1",), gpus: int = 2) -> dict[str, FleetState]:
    job = Job(
        "t", phase=Phase.SUBMITTED, nodes=len(names), gpus_per_node=gpus, ref=JobRef(id="7"), runs=list(runs),
        node_names=names, intent_utc=BASE_S - 100.0,
    )  # fmt: skip
    return {"blue": FleetState(jobs={"t": job})}


def read(spool: Spool, states: dict[str, FleetState] | None = None, **asked) -> Ledger:
    asked = {"now_ms": (BASE_S + 10_000) * S, **asked}
    found = read_ledgers(spool, states or {}, Asked(**asked)).gpu
    assert found is not None
    assert found.adds_up, found.check_line()
    return found


def seconds(ledger: Ledger) -> dict[str, float]:
    return {kind.value: amount / S for kind, amount in ledger.total.amounts.items()}


def test_a_life_without_a_scheduler_is_its_own_allocation(spool):
    batch = publish(spool, ["a"], request=Request(gpus=1.0))
    life = worker(spool)
    ran(life, batch, 0, 10, 40, gpus=["GPU-n1-0"])
    ends(life, 100)
    found = read(spool)
    assert found.allocated_ms == 200 * S
    assert seconds(found) == {"starting": 2, "free_waiting": 18, "useful": 30, "free_idle": 150}


def test_a_job_explains_the_time_around_its_worker(spool):
    batch = publish(spool, ["a"], request=Request(gpus=2.0))
    life = worker(spool, at_s=20, job="7")
    ran(life, batch, 0, 30, 50, "failed", gpus=["GPU-n1-0", "GPU-n1-1"])
    ends(life, 80)
    found = read(spool, blue(Run(BASE_S, BASE_S + 100.0, 1)))
    assert seconds(found) == {"starting": 42, "free_waiting": 18, "failed": 40, "free_idle": 60, "drained_tail": 40}
    assert [row.label for row in found.rows] == ["blue"]


def test_a_node_of_a_job_that_never_told_anything_is_unknown(spool):
    life = worker(spool, at_s=1, job="7")
    ends(life, 100)
    found = read(spool, blue(Run(BASE_S, BASE_S + 100.0, 2), names=("n1", "n2")), by="host")
    rows = {row.key: {kind.value: amount / S for kind, amount in row.amounts.items()} for row in found.rows}
    assert rows == {"n1": {"starting": 4, "free_idle": 196}, "n2": {"unknown": 200}}


def test_a_timed_task_holds_the_other_gpus_of_its_node(spool):
    batch = publish(spool, ["a"], request=Request(gpus=1.0, timed=True))
    life = worker(spool)
    ran(life, batch, 0, 10, 40, gpus=["GPU-n1-1"])
    ends(life, 50)
    told = seconds(read(spool))
    assert told == {"starting": 2, "free_waiting": 18, "useful": 30, "held_timed": 30, "free_idle": 20}


def test_a_drain_and_a_stop_begin_the_tail(spool):
    life = worker(spool)
    life.record({"t": "note", "what": "drain", "cause": "walltime", "reason": "the end is near", "at": BASE_S + 60})
    ends(life, 100)
    assert seconds(read(spool)) == {"starting": 2, "free_idle": 118, "drained_tail": 80}


def test_an_attempt_that_nobody_took_over_is_lost_when_its_job_is_over(spool):
    batch = publish(spool, ["a"], request=Request(gpus=2.0))
    life = worker(spool, at_s=1, job="7", host="n1")
    uuids = ["GPU-n1-0", "GPU-n1-1"]
    life.record({"t": "started", "b": batch, "i": 0, "g": 0, "a": 1, "s": 0, "at": BASE_S + 5, "gpus": uuids})
    life.beat({"state": "up"})
    path = Path(life.folder, "heartbeat.json")
    path.write_text(json.dumps({**json.loads(path.read_text()), "at_utc": BASE_S + 50}))
    identity = Path(life.folder, "identity.json")
    # Of another boot: from here nobody can tell whether it lives.
    identity.write_text(json.dumps({**json.loads(identity.read_text()), "boot_id": "another"}))
    ended = read(spool, blue(Run(BASE_S, BASE_S + 100.0, 1)))
    assert seconds(ended) == {"starting": 4, "free_waiting": 6, "lost": 90, "unknown": 100}
    running = read(spool, blue(Run(BASE_S, None, 1)), now_ms=(BASE_S + 100) * S)
    assert seconds(running) == {"starting": 4, "free_waiting": 6, "open": 90, "unknown": 100}


def test_a_gpu_of_two_lives_one_after_the_other_is_one_gpu(spool):
    for at_s in (0, 200):
        ends(worker(spool, at_s=at_s, gpus=1), at_s + 100)
    sampled(spool, (10, 50, 1))
    found = read(spool)
    assert (found.total.lines, found.allocated_ms) == (1, 200 * S)
    assert "telemetry: samples of 1 of 1 allocated GPUs" in found.sources


def test_a_life_lasts_at_least_until_it_began_its_last_attempt(spool):
    batch = publish(spool, ["a"], request=Request(gpus=1.0))
    life = worker(spool, at_s=0, gpus=1)
    life.beat({"state": "up"})
    path = Path(life.folder, "heartbeat.json")
    path.write_text(json.dumps({**json.loads(path.read_text()), "at_utc": BASE_S + 2}))
    life.record({"t": "started", "b": batch, "i": 0, "g": 0, "a": 1, "s": 0, "at": BASE_S + 5, "gpus": ["GPU-n1-0"]})
    identity = Path(life.folder, "identity.json")
    identity.write_text(json.dumps({**json.loads(identity.read_text()), "boot_id": "another"}))
    assert read(spool).allocated_ms == 5 * S


def test_what_of_the_samples_cannot_be_read_is_said(spool):
    life = worker(spool, gpus=1)
    ends(life, 100)
    sampled(spool, (10, 50, 1))
    broken = Path(spool.layout.root, "telemetry", "n1", f"{BASE_S * S + 5}-abcdef12-none.csv")
    broken.write_text("nothing\nof ours\n")
    (problem,) = read(spool).problems
    assert problem == f"n1: {broken} cannot be read: its first line is not that of a telemetry segment"
    alone = open_ledgers(None, telemetry=[str(broken.parents[1])]).gpu
    assert alone is not None
    assert alone.problems[0] == problem


def sampled(spool: Spool, *rows: tuple[int, float, float]) -> None:
    """(second, utilization, GiB) of the first GPU of n1, held for 10 s each, since second 0."""
    values = [
        (at, 0, {"util_pct": util, "memory_used_bytes": gib * (1 << 30), "power_w": 300.0}) for at, util, gib in rows
    ]
    write_segment(Path(spool.layout.root, "telemetry"), "n1", values)


def test_samples_tell_loading_activity_and_energy_of_a_task(spool):
    batch = publish(spool, ["a"], request=Request(gpus=1.0))
    life = worker(spool, gpus=1)
    ran(life, batch, 0, 10, 60, gpus=["GPU-n1-0"])
    ends(life, 100)
    steps = [(at, 90.0 if 30 <= at < 60 else 0.0, 40.0 if 10 <= at < 80 else 0.0) for at in range(0, 100, 10)]
    sampled(spool, *steps)
    found = read(spool)
    # The sample at second 60 comes with the end of the attempt and still may show it; the next one counts.
    told = {"starting": 1, "free_waiting": 9, "loading": 20, "useful": 30, "reserved_idle": 10, "free_idle": 30}
    assert seconds(found) == told
    (use,) = found.tasks
    assert (use.name, use.active_ms, use.memory_peak_bytes) == ("a", 30 * S, 40 * (1 << 30))
    assert use.joules_held == pytest.approx(300 * 50)
    assert found.total.observed_ms == 100 * S


def test_a_node_that_is_held_without_a_worker_is_told_by_its_sampler(spool):
    sampled(spool, *[(at, 0.0 if at < 50 else 80.0, 30.0 if at < 50 else 0.0) for at in range(0, 100, 10)])
    found = read(spool, blue(Run(BASE_S, BASE_S + 120.0, 1), gpus=1))
    assert seconds(found) == {"reserved_idle": 50, "unknown": 50, "drained_tail": 20}


def test_a_gpu_that_two_allocations_hold_is_told(spool):
    for job in ("8", "9"):
        life = worker(spool, job=job)
        ends(life, 50)
    found = read(spool)
    assert found.allocated_ms == 200 * S
    assert any("two allocations" in problem for problem in found.problems)


def test_a_period_and_a_job_narrow_it(spool):
    first, second = worker(spool, job="8"), worker(spool, job="9", at_s=200, host="n2")
    ends(first, 100)
    ends(second, 300)
    assert read(spool, job="9").allocated_ms == 200 * S
    cut = read(spool, since_ms=(BASE_S + 50) * S, until_ms=(BASE_S + 250) * S)
    assert cut.allocated_ms == 200 * S
    assert (cut.since_ms, cut.until_ms) == ((BASE_S + 50) * S, (BASE_S + 250) * S)
    with pytest.raises(UsageError, match="No job '10'"):
        read(spool, job="10")


def test_what_cannot_be_asked_is_refused_with_a_reason(spool):
    with pytest.raises(UsageError, match="Nothing was allocated"):
        open_ledgers(spool.layout.root)
    with pytest.raises(UsageError, match="needs a spool or telemetry"):
        open_ledgers(None)
    with pytest.raises(UsageError, match="--by 'colour'"):
        open_ledgers(spool.layout.root, by="colour")
    with pytest.raises(UsageError, match="--until lies before"):
        open_ledgers(spool.layout.root, since_ms=2, until_ms=1)


@pytest.mark.skipif(not ARCHIVE.is_dir(), reason="the telemetry archive does not stand beside the checkout")
def test_the_archive_alone_has_its_known_hours():
    found = open_ledgers(None, telemetry=[str(ARCHIVE)], by="host").gpu
    assert found is not None
    assert found.adds_up
    hours = {kind: round(amount / 3.6e6, 3) for kind, amount in found.total.amounts.items()}
    assert hours == {Class.RESERVED: 298.812, Class.FREE: 249.142, Class.UNKNOWN: 859.476}
    assert found.allocated_ms / 3.6e6 == pytest.approx(1407.430, abs=5e-4)
    assert found.total.active_ms == found.total.amounts[Class.UNKNOWN]
