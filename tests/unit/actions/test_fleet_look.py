"""A look at several fleets: one question for those of one site, and no fleet is left out of the answer."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest

from fleetcraft.actions import fleet_open
from fleetcraft.actions.fleet_look import look_at
from fleetcraft.cli.main import main
from fleetcraft.core.clock import SystemClock
from fleetcraft.core.errors import OutOfReach
from fleetcraft.schedulers.api import JobRef, Observation
from fleetcraft.spool.spool import Spool
from fleetcraft.testing.scheduler_memory import MemoryScheduler
from tests.unit.readmodel.building import make_spool, publish

PROFILE = """
format = 1
[scheduler]
kind = "slurm"
submit_gap = "0s"
[defaults]
partition = "memory"
time = "10m"
[partitions.memory]
nodes = 4
gpus_per_node = 2
cpus_per_node = 2
max_time = "1d"
"""


class Spared(MemoryScheduler):
    """Answers one question for the jobs that it names, and none soon after, as the pause between questions makes it."""

    asked: list[list[str]]
    fails = False

    def observe(self, refs: Sequence[JobRef]) -> Observation:
        if self.fails:
            raise OutOfReach("the storage does not answer")
        self.asked.append([ref.id for ref in refs])
        if len(self.asked) > 1:
            return Observation(at_utc=0.0, jobs={}, answered=False, problems=("asked a moment ago",))
        return super().observe(refs)


@pytest.fixture
def scheduler(tmp_path, monkeypatch, capsys) -> Spared:
    """Two fleets of one site, each with a job."""
    folder = tmp_path / "config" / "clusters"
    folder.mkdir(parents=True)
    (folder / "here.toml").write_text(PROFILE)
    monkeypatch.setenv("FLEETCRAFT_CONFIG_DIR", str(tmp_path / "config"))
    monkeypatch.setenv("FLEETCRAFT_SPOOL", str(tmp_path / "spool"))
    monkeypatch.chdir(tmp_path)
    memory = Spared(SystemClock(), nodes=4)
    memory.asked = []
    monkeypatch.setattr(fleet_open, "open_scheduler", lambda *_, **__: memory)
    publish(make_spool(tmp_path), ["a"])
    for name in ("blue", "red"):
        assert main(["fleet", "submit", name, "--nodes", "1"]) == 0
    capsys.readouterr()
    memory.asked.clear()
    return memory


def test_the_status_of_two_fleets_of_one_site_is_one_question(scheduler, capsys):
    assert main(["fleet", "status", "--json"]) == 0
    fleets = json.loads(capsys.readouterr().out)["fleets"]
    assert {fleet["name"]: [job["state"] for job in fleet["jobs"]] for fleet in fleets} == {
        "blue": ["running"], "red": ["running"],
    }  # fmt: skip
    assert [sorted(ids) for ids in scheduler.asked] == [["1", "2"]]


def test_one_fleet_asks_for_its_own_jobs_only(scheduler, tmp_path):
    (looked,) = look_at(Spool.open(str(tmp_path / "spool")), ["red"])
    assert scheduler.asked == [["2"]]
    assert looked.look is not None
    assert looked.look.queries == 1


def test_nobody_is_asked_where_that_was_said(scheduler, tmp_path):
    looked = look_at(Spool.open(str(tmp_path / "spool")), [], ask=False)
    assert [(one.fleet.name, one.look) for one in looked] == [("blue", None), ("red", None)]
    assert scheduler.asked == []


def test_a_look_that_fails_is_no_empty_answer(scheduler, tmp_path):
    scheduler.fails = True
    with pytest.raises(OutOfReach, match="storage"):
        look_at(Spool.open(str(tmp_path / "spool")), [])
