"""Which hosts should show GPUs: by records of fleets and by workers, within a time, and never twice under two names."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fleetcraft.core.errors import UsageError
from fleetcraft.fleet import records as kinds
from fleetcraft.fleet.handle import Fleet
from fleetcraft.fleet.launch import launch
from fleetcraft.fleet.look import look
from fleetcraft.readmodel.gpu_expected import Wanted, expected_hosts
from fleetcraft.readmodel.gpu_sources import choose
from fleetcraft.spool.life import Life
from fleetcraft.spool.spool import Spool
from fleetcraft.usage.reading import Options
from fleetcraft.usage.summary import summarize, tally
from tests.support.fleets import clock_of, make_fleet, scheduler_of, spec
from tests.support.telemetry_files import steady, write_segment


@pytest.fixture
def fleet(tmp_path):
    """Two nodes of four GPUs each, n1 and n2, held by the job of a fleet that runs since a moment."""
    fleet = make_fleet(tmp_path)
    launch(fleet, spec(), wait=lambda _s: None)
    clock_of(fleet).advance(5.0)
    scheduler_of(fleet).advance()
    look(fleet, fleet.state())
    return fleet


def root_of(fleet) -> str:
    return str(fleet.spool.layout.root)


def nodes_of(fleet: Fleet) -> tuple[str, ...]:
    (job,) = fleet.state().jobs.values()
    return job.node_names


def worker(fleet, host: str, gpus: list[str], *, job: str, at_utc: float | None = None) -> None:
    """A life that told of its GPUs in a heartbeat."""
    life = Life.begin(fleet.spool, job_id=job)
    path = Path(life.folder, "identity.json")
    path.write_text(json.dumps({**json.loads(path.read_text()), "host": host}))
    life.beat({"state": "up", "capacity": {"gpus": [{"uuid": uuid} for uuid in gpus]}})
    if at_utc is not None:
        path = Path(life.folder, "heartbeat.json")
        path.write_text(json.dumps({**json.loads(path.read_text()), "at_utc": at_utc}))


def test_nodes_of_a_job_are_expected_although_nothing_ever_came_from_there(fleet):
    one, other = nodes_of(fleet)
    assert expected_hosts(root_of(fleet)) == {one: 4, other: 4}
    assert expected_hosts(root_of(fleet), Wanted(fleet="blue")) == {one: 4, other: 4}
    assert expected_hosts(root_of(fleet), Wanted(fleet="red")) == {}


def test_a_job_is_found_by_its_id_and_another_one_has_no_hosts(fleet):
    (job,) = fleet.state().jobs.values()
    assert set(expected_hosts(root_of(fleet), Wanted(job=str(job.ref)))) == set(nodes_of(fleet))
    assert expected_hosts(root_of(fleet), Wanted(job="4711")) == {}


def test_only_hosts_of_the_time_that_was_asked_for(fleet):
    now_ms = round(fleet.now() * 1000)
    assert len(expected_hosts(root_of(fleet), Wanted(since_ms=now_ms + 3_600_000))) == 2, "it runs on"
    assert expected_hosts(root_of(fleet), Wanted(until_ms=now_ms - 3_600_000)) == {}
    (job,) = fleet.state().jobs.values()
    scheduler_of(fleet).cancel([job.ref])
    clock_of(fleet).advance(60.0)
    look(fleet, fleet.state())
    assert fleet.state().jobs[job.token].runs[-1].end_utc is not None
    assert expected_hosts(root_of(fleet), Wanted(since_ms=now_ms + 3_600_000)) == {}
    assert len(expected_hosts(root_of(fleet), Wanted(since_ms=now_ms - 3_600_000))) == 2


def test_a_host_with_a_domain_is_one_host_and_keeps_the_name_of_its_worker(fleet):
    one, other = nodes_of(fleet)
    (job,) = fleet.state().jobs.values()
    worker(fleet, f"{one}.site.example", ["GPU-a", "GPU-b"], job=job.ref.id)
    assert expected_hosts(root_of(fleet), Wanted(fleet="blue")) == {f"{one}.site.example": 4, other: 4}


def test_workers_without_a_fleet_count_once_for_each_gpu(tmp_path):
    fleet = make_fleet(tmp_path)
    worker(fleet, "x1", ["GPU-a", "GPU-b"], job="7")
    worker(fleet, "x1", ["GPU-b", "GPU-c"], job="8")
    assert expected_hosts(root_of(fleet)) == {"x1": 3}
    assert expected_hosts(root_of(fleet), Wanted(job="8")) == {"x1": 2}
    assert expected_hosts(root_of(fleet), Wanted(fleet="blue")) == {}


def test_the_summary_of_a_fleet_counts_a_node_without_a_segment(fleet):
    one, other = nodes_of(fleet)
    (job,) = fleet.state().jobs.values()
    rows = [row for number in range(4) for row in steady(range(0, 60, 10), {"util_pct": 50}, number)]
    write_segment(Path(root_of(fleet), "telemetry"), one, rows, gpus=4, fleet="blue", job=job.ref.id)
    for choice in ({"fleet": "blue"}, {"job": job.ref.id}, {}):
        chosen = choose(spool_root=root_of(fleet), **choice)
        found = summarize(tally(chosen.sources, Options(**choice), chosen.expected))
        assert (found.coverage.hosts, found.coverage.hosts_with_data) == (2, 1)
        assert (found.coverage.gpus, found.coverage.gpus_with_data) == (8, 4)
        assert [problem.host for problem in found.problems if problem.kind == "no_data"] == [other]


def test_a_spool_without_telemetry_and_without_anybody_is_refused(tmp_path):
    spool = Spool.open(str(tmp_path / "spool"), create=True)
    with pytest.raises(UsageError, match="no telemetry"):
        choose(spool_root=spool.layout.root)


def test_a_job_that_never_had_nodes_is_not_expected(tmp_path):
    fleet = make_fleet(tmp_path)
    launch(fleet, spec(), wait=lambda _s: None)
    assert [record.kind for record in fleet.log.records][-1] == kinds.SUBMITTED
    assert expected_hosts(root_of(fleet)) == {}
