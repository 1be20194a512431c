"""A fleet on the real cluster, from the first task to released nodes, and everything a person does with it."""

from __future__ import annotations

import json

import pytest

from tests.cluster.fleet_lab import FleetLab

pytestmark = [pytest.mark.needs_slurm, pytest.mark.slow]
IDLE_EXIT_S = 3


@pytest.fixture
def lab(cluster) -> FleetLab:
    return FleetLab(cluster)


def test_a_fleet_works_on_several_nodes_and_lets_go_of_them(lab, cluster):
    names = lab.enqueue([f"t{n}" for n in range(60)], 0.5)
    job = lab.submit_one("main", "--nodes", "4", "--idle-exit", f"{IDLE_EXIT_S}s")
    lab.wait_done()
    cluster.wait_job(job, "COMPLETED")
    runs = lab.check_work(names)
    assert {run.node for run in runs} == set(cluster.node_names)
    start, end = lab.times(job)
    # Both bounds are generous here, for a machine with other work, and below the pause between two polls, which neither
    # may wait for; what was measured is in the bench.
    assert min(run.begin_utc for run in runs) - start < 10.0
    last = max(run.end_utc for run in runs)
    assert end - last < IDLE_EXIT_S + 10.0
    status = lab.status()
    assert (status["standing"], status["unfinished"]) == ("done", 0)
    assert lab.check_single_submissions() == 1


def test_nodes_of_different_shapes_each_take_what_fits(lab, cluster):
    small = lab.enqueue([f"small{n}" for n in range(6)], 0.2)
    large = lab.enqueue([f"large{n}" for n in range(2)], 0.5, "--cpus", "4")
    lab.submit_one("narrow", "--nodes", "1", "--idle-exit", "3s", "--worker-cpus", "2")
    lab.submit_one("wide", "--nodes", "1", "--idle-exit", "3s", "--worker-cpus", "4")
    lab.wait_done(60.0)
    runs = lab.check_work([*small, *large])
    width = {host: cpus for host, cpus in lab.cpus_by_host().items() if host in cluster.node_names}
    assert sorted(width.values()) == [2, 4]
    assert {width[run.node] for run in runs if run.task in large} == {4}


def test_a_shell_opens_on_the_node_where_a_task_runs(lab, cluster):
    lab.enqueue(["here"], 300)
    job = lab.submit_one("main", "--nodes", "3", "--idle-exit", "60s")
    (run,) = lab.wait_ran(1)
    shown = lab.cluster.wait_for(lambda: _shell(lab, "here"), "the heartbeat tells where it runs")
    assert (shown["job"], shown["node"]) == (str(job), run.node)
    words = lab.call("fleet", "shell", "here", "--shell", "hostname", "--print").stdout.split()
    # Without a terminal of its own: nobody types here.
    said = cluster.run([word for word in words if word != "--pty"], env=lab.env()).stdout
    assert said.split() == [run.node]
    lab.ask("fleet", "status", "main")  # the shell reads the nodes of a job from the fleet's records
    other = next(name for name in cluster.node_names[:3] if name != run.node)
    words = lab.call("fleet", "shell", str(job), "--node", other, "--shell", "hostname", "--print").stdout.split()
    said = cluster.run([word for word in words if word != "--pty"], env=lab.env()).stdout
    assert said.split() == [other]


def _shell(lab: FleetLab, target: str) -> dict | None:
    answer = lab.call("fleet", "shell", target, "--print", "--json")
    return json.loads(answer.stdout) if answer.returncode == 0 else None


def test_a_node_is_held_for_a_person_and_given_back(lab, cluster):
    said = lab.ask("fleet", "devnode", "--detach", "--time", "10m")
    cluster.wait_job(int(said["job"]), "RUNNING")
    folder = lab.spool / "fleets" / "devnode" / "jobs" / said["token"]
    beat = cluster.wait_for(lambda: _content(folder / "beat.json"), "it beats")
    assert beat["sequence"] >= 1
    assert "gpus" in beat
    ready = json.loads((folder / "ready.json").read_text())
    assert ready["host"] in cluster.node_names
    lab.ask("fleet", "cancel", "devnode")
    cluster.wait_job(int(said["job"]), "CANCELLED", "COMPLETED")
    cluster.wait_for(cluster.all_idle, "the node is idle again", seen=cluster.node_states)


def test_each_of_several_held_nodes_is_measured(lab, cluster):
    wanted = ("--nodes", "2", "--worker-gpus", "simulated:2", "--telemetry", "1s")
    said = lab.ask("fleet", "devnode", "--detach", "--time", "10m", *wanted)
    cluster.wait_job(int(said["job"]), "RUNNING")

    def measured() -> list[str]:
        return sorted(path.parent.name for path in lab.spool.glob(f"telemetry/*/*-{said['job']}.csv"))

    folder = lab.spool / "fleets" / "devnode" / "jobs" / said["token"]
    cluster.wait_for(lambda: len(measured()) == 2, "both nodes are measured", seen=lambda: [*folder.iterdir()])
    assert set(measured()) <= set(cluster.node_names)
    assert len(set(measured())) == 2
    lab.ask("fleet", "cancel", "devnode")
    cluster.wait_job(int(said["job"]), "CANCELLED", "COMPLETED")
    cluster.wait_for(cluster.all_idle, "the nodes are idle again", seen=cluster.node_states)


def test_a_held_node_goes_back_when_the_command_that_holds_it_is_killed(lab, cluster):
    holder = lab.popen("fleet", "devnode", "--time", "10m")
    try:
        cluster.wait_for(lambda: lab.tokens("devnode"), "it asked for a node")
        job = cluster.wait_for(lambda: lab.job_of(lab.tokens("devnode")[0]), "a job stands for it")
        cluster.wait_job(job, "RUNNING")
        holder.terminate()
        holder.communicate(timeout=60)
        cluster.wait_job(job, "CANCELLED", "COMPLETED")
    finally:
        holder.kill()
        holder.communicate()


def test_a_smoke_job_gives_a_verdict_for_each_check(lab, cluster):
    said = lab.ask("fleet", "smoke", "--no-wait", "--gpus-per-node", "0")
    cluster.wait_job(int(said["job"]), "COMPLETED")
    read = lab.ask("fleet", "smoke", "--read", said["token"])
    verdicts = {check["name"]: check["verdict"] for check in read["checks"]}
    assert verdicts == {
        "environment": "passed", "gpus": "skipped", "spool": "passed", "nvml": "skipped", "task": "passed",
    }, read  # fmt: skip
    assert read["ok"]
    # GPUs that are counted but not there are found out.
    said = lab.ask("fleet", "smoke", "--no-wait")
    cluster.wait_job(int(said["job"]), "FAILED")
    read = lab.ask("fleet", "smoke", "--read", said["token"], code=1)
    verdicts = {check["name"]: check["verdict"] for check in read["checks"]}
    assert (verdicts["gpus"], verdicts["nvml"], verdicts["task"]) == ("failed", "failed", "passed")


def test_a_drained_fleet_ends_what_runs_and_takes_nothing_new(lab, cluster):
    # More than can be begun before the word arrives, however slow this machine is.
    names = lab.enqueue([f"t{n}" for n in range(80)], 2.0)
    job = lab.submit_one("main", "--nodes", "2", "--idle-exit", "60s")
    lab.wait_ran(4)
    begun = len(lab.runs())
    lab.ask("fleet", "drain", "main")
    cluster.wait_job(job, "COMPLETED")
    runs = lab.runs()
    assert all(run.end_utc is not None for run in runs)
    assert begun <= len(runs) < len(names)
    assert lab.ensure()["action"] == "nothing"
    assert lab.status()["standing"] == "drained"
    counts = lab.counts()
    assert counts["waiting"] == len(names) - len(runs)
    assert lab.check_single_submissions() == 1


def test_a_cancelled_fleet_gives_its_work_back_first(lab, cluster):
    names = lab.enqueue([f"t{n}" for n in range(4)], 300, save=True)
    job = lab.submit_one("main", "--nodes", "2", "--idle-exit", "60s")
    lab.wait_ran(4)
    report = lab.ask("fleet", "cancel", "main", "--save", "20s")
    assert report["left"] == []
    assert report["waited_s"] < 20  # not until the time to save is over
    assert lab.counts()["waiting"] == len(names)
    assert sorted(run.task for run in lab.runs() if run.saved) == names
    # The workers left by themselves; whether the job ended by that or by the cancel is a matter of moments.
    cluster.wait_job(job, "COMPLETED", "CANCELLED")
    assert {attempt["cause"] for name in names for attempt in lab.attempts(name)} == {"checkpointed"}
    assert lab.ensure()["action"] == "nothing"
    lab.submit_one("main", "--nodes", "2", "--idle-exit", "3s")
    lab.wait_done()
    lab.check_work(names)


def test_a_signal_to_the_steps_makes_tasks_save_and_gives_the_node_back(lab, cluster):
    names = lab.enqueue(["a", "b"], 300, save=True)
    job = lab.submit_one("main", "--nodes", "1", "--idle-exit", "60s")
    lab.wait_ran(2)
    report = lab.ask("fleet", "cancel", "main", "--step")
    assert len(report["signalled"]) == 1
    cluster.wait_for(lambda: len([run for run in lab.runs() if run.saved]) == 2, "both saved", seen=lab.said)
    cluster.wait_job(job, "COMPLETED")
    assert lab.counts()["waiting"] == len(names)


def _content(path) -> dict | None:
    return json.loads(path.read_text()) if path.exists() else None
