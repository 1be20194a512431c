"""Allocations: stays of jobs on nodes as the records have them, and the lives that no job of a fleet holds."""

from __future__ import annotations

import pytest

from fleetcraft.fleet.state import FleetState, Job, Phase, Run
from fleetcraft.readmodel.gpu_allocations import Stay, lines_of, read_allocations
from fleetcraft.readmodel.gpu_attempts import LifeFacts
from fleetcraft.schedulers.api import JobRef

NOW_MS = 100_000_000
GPUS = (("GPU-1", 80 << 30), ("GPU-2", 80 << 30))


def job(number: str = "17", *, runs: list[Run], names: tuple[str, ...] = (), gpus: int = 2, nodes: int = 1) -> Job:
    return Job(
        f"t{number}", phase=Phase.SUBMITTED, nodes=nodes, gpus_per_node=gpus, ref=JobRef(id=number), runs=runs,
        node_names=names, intent_utc=900.0,
    )  # fmt: skip


def life(host: str, start_s: float, end_s: float, *, job: str = "17", devices=GPUS, **more) -> LifeFacts:
    return LifeFacts(
        life=f"{host}-{start_s}", host=host, job=job, start_ms=round(start_s * 1000), end_ms=round(end_s * 1000),
        devices=devices, cpus=8, **more,
    )  # fmt: skip


def state(*jobs: Job) -> dict[str, FleetState]:
    return {"blue": FleetState(jobs={one.token: one for one in jobs})}


def seconds(stays: list[Stay]) -> int:
    return sum((stay.span[1] - stay.span[0]) * len(lines_of(stay, [])) for stay in stays)


def test_a_job_is_its_nodes_times_its_time_whoever_reported():
    one = job(runs=[Run(1000.0, 1060.0, 3)], names=("n1", "n2", "n3"), nodes=3)
    found = read_allocations(state(one), [life("n1.site", 1002.0, 1050.0)], NOW_MS)
    assert [stay.host for stay in found.stays] == ["n1.site", "n2", "n3"]
    assert seconds(found.stays) == 60_000 * 3 * 2
    named = [line.named for stay in found.stays for line in lines_of(stay, [])]
    assert named == [True, True, False, False, False, False]
    assert found.problems == []


def test_nodes_that_nobody_names_are_counted_all_the_same():
    one = job(runs=[Run(1000.0, 1060.0, 2)], nodes=2)
    found = read_allocations(state(one), [life("n9", 1002.0, 1050.0)], NOW_MS)
    assert [stay.host for stay in found.stays] == ["n9", "(node 2)"]
    assert seconds(found.stays) == 60_000 * 2 * 2


def test_a_requeued_job_has_a_stay_for_each_run_and_lives_go_where_they_were_born():
    one = job(runs=[Run(1000.0, 1060.0, 1), Run(1100.0, 1200.0, 1)], names=("n2",))
    lives = [life("n1", 1003.0, 1055.0), life("n2", 1103.0, 1190.0)]
    found = read_allocations(state(one), lives, NOW_MS)
    assert [(stay.host, stay.span, len(stay.lives)) for stay in found.stays] == [
        ("n1", (1_000_000, 1_060_000), 1), ("n2", (1_100_000, 1_200_000), 1),
    ]  # fmt: skip


def test_a_running_job_counts_up_to_now():
    one = job(runs=[Run(1000.0, None, 1)], names=("n1",))
    (stay,) = read_allocations(state(one), [], NOW_MS).stays
    assert (stay.span, stay.is_open) == ((1_000_000, NOW_MS), True)


def test_gpus_beyond_the_allocation_are_told_and_left_out():
    problems: list[str] = []
    stay = Stay(host="n1", span=(0, 1000), gpus=1, job="17", lives=[life("n1", 0, 1)])
    assert [line.gpu.uuid for line in lines_of(stay, problems)] == ["GPU-1"]
    assert "listed 2 GPUs" in problems[0]


def test_without_gpus_the_slots_are_what_is_allocated():
    one = job(runs=[Run(1000.0, 1060.0, 1)], names=("n1",), gpus=0)
    (stay,) = read_allocations(state(one), [life("n1", 1001.0, 1059.0, devices=())], NOW_MS).stays
    (line,) = lines_of(stay, [])
    assert (line.is_gpu, line.units) == (False, 8)


def test_lives_of_no_fleet_are_allocations_of_their_own():
    lives = [life("n1", 1000.0, 1010.0, job=""), life("n1", 1005.0, 1020.0, job=""), life("n1", 1050.0, 1060.0, job="")]
    found = read_allocations({}, lives, NOW_MS)
    assert [stay.span for stay in found.stays] == [(1_000_000, 1_020_000), (1_050_000, 1_060_000)]
    assert seconds(found.stays) == 30_000 * 2


def test_a_job_id_that_is_used_again_takes_no_older_life():
    one = job(runs=[Run(1000.0, 1060.0, 1)], names=("n1",))
    old = life("n1", 500.0, 600.0)
    found = read_allocations(state(one), [old], NOW_MS)
    assert [(stay.fleet, len(stay.lives)) for stay in found.stays] == [("blue", 0), ("", 1)]


@pytest.mark.parametrize(("wanted", "stays"), (({"job": "17"}, 1), ({"job": "18"}, 1), ({"fleet": "blue"}, 1), ({}, 2)))
def test_one_job_or_one_fleet_can_be_asked_for(wanted, stays):
    one = job(runs=[Run(1000.0, 1060.0, 1)], names=("n1",))
    other = life("n5", 1000.0, 1010.0, job="18")
    assert len(read_allocations(state(one), [other], NOW_MS, **wanted).stays) == stays
