"""Fleets on the local scheduler: real jobs, real workers, from enqueue to released nodes."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fleetcraft.core.states import JobState
from fleetcraft.fleet.devnode import Held, held, hold, submit_hold
from fleetcraft.fleet.drain import cancel, cancel_step, drain
from fleetcraft.fleet.handle import Fleet, FleetPolicy
from fleetcraft.fleet.launch import launch
from fleetcraft.fleet.shell import shell_target
from fleetcraft.fleet.smoke import CHECKS, read_smoke, submit_smoke
from fleetcraft.fleet.tail import summary
from fleetcraft.schedulers.local import LocalScheduler
from fleetcraft.spool.spool import Spool
from tests.support.children import until
from tests.support.enqueuing import options, stream
from tests.support.fleets import one_pass
from tests.support.fleets import spec as base_spec


def spec(**changes):
    partition = {"name": "local", "gpus_per_node": 0, "cpus_per_node": 2, **changes.pop("partition", {})}
    site = {"partition": partition, **changes.pop("site", {})}
    program = (sys.executable, "-m", "fleetcraft")
    source = str(Path(__file__).resolve().parents[2] / "src")
    values = {"idle_exit_s": 0.0, "nodes": 1, "time_limit_s": 300.0, "program": program, "env": {"PYTHONPATH": source}}
    return base_spec(site=site, **{**values, **changes})


@pytest.fixture
def fleet(tmp_path) -> Iterator[Fleet]:
    spool = Spool.open(str(tmp_path / "a spool"), create=True)
    scheduler = LocalScheduler(str(tmp_path / "jobs"), slots=2, gpus_per_node=0, kill_wait_s=2.0)
    made = Fleet(spool, "blue", scheduler, policy=FleetPolicy(settle_s=5.0))
    made.log.create()
    yield made
    refs = [job.ref for job in made.state().jobs.values() if job.ref is not None]
    scheduler.cancel(refs)
    until(lambda: all(view.state.ended for view in scheduler.observe(refs).jobs.values()), "the jobs did not end")


def enqueue(fleet: Fleet, lines: list[str], **more) -> None:
    stream(fleet.spool, [{"shell": line} for line in lines], options("jsonl", **more))


def ended(fleet: Fleet, token: str):
    def look():
        one_pass(fleet)
        job = fleet.state().jobs[token]
        return job if job.state is not None and job.state.ended else None

    return until(look, f"job {token} did not end; its output: {_output(fleet, token)}", 60)


def _output(fleet: Fleet, token: str) -> str:
    path = Path(fleet.folder.job(token).output)
    return path.read_text(encoding="utf-8") if path.exists() else ""


def test_a_fleet_runs_its_backlog_and_lets_go_of_its_nodes(fleet, tmp_path):
    enqueue(fleet, [f"echo {number} >> {tmp_path}/out" for number in range(20)])
    launched = launch(fleet, spec(nodes=2), wait=lambda _s: None)
    job = ended(fleet, launched.submitted[0].token)
    assert job.state is JobState.DONE, _output(fleet, job.token)
    assert len((tmp_path / "out").read_text().split()) == 20
    assert len(job.runs) == 1
    assert len(job.node_names) == 2
    report = one_pass(fleet)
    assert report.standing.word == "done"
    assert report.backlog.unfinished == 0
    tail = fleet.state().jobs[job.token].idle
    assert tail["lives"] == 2
    assert 0 <= tail["since_last_task_s"] < 30
    assert summary(fleet.state())["measured"] == 1


def test_the_next_pass_grows_from_the_backlog_with_measured_times(fleet, tmp_path):
    enqueue(fleet, ["true"])
    launched = launch(fleet, spec(), wait=lambda _s: None)
    ended(fleet, launched.submitted[0].token)
    enqueue(fleet, [f"echo {number}" for number in range(50)])
    report = one_pass(fleet)
    assert report.action == "submit"
    assert report.plan.assumed == ()
    assert report.backlog.lanes["c1"].mean_s < 60
    assert ended(fleet, report.submitted.token).state is JobState.DONE


def _running(fleet: Fleet, count: int = 1):
    def look():
        one_pass(fleet)
        return sum(view.running for view in one_pass(fleet).backlog.lives) >= count

    until(look, "no task runs", 60)


def test_a_cancel_gives_the_work_back_before_the_job_goes(fleet, tmp_path):
    enqueue(fleet, ["sleep 300", "sleep 301"])
    launched = launch(fleet, spec(), wait=lambda _s: None)
    token = launched.submitted[0].token
    _running(fleet)
    target = shell_target([fleet], "1.0")
    assert target.job == token
    assert target.argv[0] == "env"
    report = cancel(fleet, [token], why="enough", save_s=30)
    assert report.signalled == [token]
    assert report.left == []
    assert report.cancelled == [token]
    assert ended(fleet, token).state.ended
    found = fleet.spool.tokens().tokens
    assert sum(one.count for one in found) == 2
    assert not any(one.life for one in found)


def test_signalling_the_step_leaves_the_job_to_its_workers(fleet):
    enqueue(fleet, ["sleep 300"])
    token = launch(fleet, spec(), wait=lambda _s: None).submitted[0].token
    _running(fleet)
    assert cancel_step(fleet, [token]).signalled == [token]
    assert ended(fleet, token).cancel_utc is None


def test_a_drain_lets_running_tasks_end_and_takes_nothing_new(fleet, tmp_path):
    fifo = tmp_path / "gate"
    os.mkfifo(fifo)
    enqueue(fleet, [f"cat {fifo}", f"cat {fifo} >> {tmp_path}/never"], cpus=2)
    token = launch(fleet, spec(), wait=lambda _s: None).submitted[0].token
    _running(fleet)
    assert len(drain(fleet, "for the night").drained) == 1
    until(lambda: any(view.state == "draining" for view in one_pass(fleet).backlog.lives), "no worker drains")
    with open(fifo, "w", encoding="utf-8") as gate:
        gate.write("go\n")
    assert ended(fleet, token).state is JobState.DONE
    report = one_pass(fleet)
    assert report.standing.word == "drained"
    assert report.reason == "the fleet drains: for the night"
    assert report.backlog.waiting == 1


def test_a_smoke_job_proves_the_site(fleet):
    token = submit_smoke(fleet, spec()).token
    ended(fleet, token)
    result = read_smoke(fleet, token)
    verdicts = {check.name: check.verdict for check in result.checks}
    assert list(verdicts) == list(CHECKS)
    assert verdicts == {
        "environment": "passed", "gpus": "skipped", "spool": "passed", "nvml": "skipped", "task": "passed",
    }, result.as_json()  # fmt: skip
    assert result.ok
    assert not fleet.state().work_shapes()


def test_a_held_node_beats_until_it_is_let_go(fleet):
    token = submit_hold(fleet, spec()).token
    ready = until(lambda: (now := held(fleet, token)).is_ready and now.beat and now, "the node is not ready", 60)
    assert ready.beat["sequence"] == 1
    seen: list[Held] = []

    def stop(_s: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        hold(fleet, token, on_change=seen.append, wait=stop)
    assert seen[0].is_ready
    assert ended(fleet, token).state is JobState.CANCELLED
