"""The script of a held node measures its GPUs as a worker would, and stands without the program too."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from fleetcraft.fleet.devnode import hold_draft
from fleetcraft.fleet.spec import WorkerChoices
from fleetcraft.telemetry.segment_read import Reader
from tests.support.fleets import make_fleet, spec
from tests.support.waiting import wait_for

_PROGRAM = (sys.executable, "-m", "fleetcraft")


def _script(fleet, **changes):
    return hold_draft(fleet, spec(**{"nodes": 1, **changes})).request.script


@pytest.mark.parametrize(
    "changes",
    (
        {"worker": WorkerChoices(gpus="none")},
        {"worker": WorkerChoices(telemetry="off"), "nodes": 2},
        {"site": {"partition": {"gpus_per_node": 0}}},
    ),
    ids=("none wanted", "not to be measured", "none there"),
)
def test_a_node_without_gpus_starts_no_sampler(tmp_path, changes):
    assert "gpu sample" not in _script(make_fleet(tmp_path), **changes)


def test_of_several_nodes_each_is_measured_by_a_step_that_nothing_waits_for(tmp_path):
    script = _script(make_fleet(tmp_path), nodes=3, worker=WorkerChoices(telemetry="2s"))
    (line,) = (line for line in script.split("\n") if "--minded" in line)
    # The scheduler in memory starts steps with env.
    assert line.startswith("env SLURM_OVERLAP=1 env /bin/bash -c ")
    assert "--interval 2s" in script


@pytest.mark.parametrize(
    ("program", "nodes"),
    ((_PROGRAM, 1), (_PROGRAM, 2), (("/no/such/program",), 1), (("/no/such/program",), 2)),
    ids=("with it", "with it, in a step", "without it", "without it, in a step"),
)
def test_a_held_node_is_measured_until_it_goes_back(tmp_path, program, nodes):
    fleet = make_fleet(tmp_path)
    script = tmp_path / "job.sh"
    worker = WorkerChoices(gpus="simulated:2", telemetry="1s")
    script.write_text(_script(fleet, program=program, nodes=nodes, worker=worker))
    env = {**os.environ, "FLEETCRAFT_JOB_ID": "4711"}
    jobs = os.path.join(fleet.spool.layout.root, "fleets", "blue")

    def segments():
        root = os.path.join(fleet.spool.layout.root, "telemetry")
        return [
            os.path.join(at, name) for at, _, names in os.walk(root) for name in names if name.endswith("-4711.csv")
        ]

    def is_ready():
        return any("ready.json" in names for _, _, names in os.walk(jobs))

    with subprocess.Popen(["bash", str(script)], env=env, start_new_session=True) as job:
        try:
            wait_for(is_ready, "the node may be used", seen=lambda: [*os.walk(jobs)])
            if program == _PROGRAM:
                wait_for(segments, "it is measured", seen=lambda: [*os.walk(jobs)])
            job.send_signal(signal.SIGTERM)
            assert job.wait(60) == 0
        finally:
            if job.poll() is None:
                os.killpg(job.pid, signal.SIGKILL)
    if program != _PROGRAM:
        assert segments() == []
        return
    (path,) = segments()
    reader = Reader(path)
    wait_for(lambda: any(told.kind == "end" for told in Reader(path).read().statements), "the sampler has ended")
    reader.read()
    assert reader.header is not None
    assert (reader.header.job, reader.header.fleet) == ("4711", "blue")
