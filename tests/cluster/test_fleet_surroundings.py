"""What a profile and a person say of the surroundings of tasks arrives in them, and what is missing is named."""

from __future__ import annotations

import json

import pytest

from tests.cluster.fleet_lab import FleetLab

pytestmark = [pytest.mark.needs_slurm, pytest.mark.slow]


@pytest.fixture
def lab(cluster) -> FleetLab:
    return FleetLab(cluster)


def _module_tool(lab) -> str:
    """A `module` that puts a folder in front of the path, as the real ones do."""
    return f'export -n LOADED; module() {{ export PATH="{lab.folder}/$2/bin:$PATH" LOADED="$2"; }}'


def test_modules_and_variables_reach_plain_tasks_on_every_node(lab, cluster):
    lab.call(
        "task", "enqueue", "--env", "OWN=task", "--name", "a", "--", "sh", "-c", 'echo "$PATH|$LOADED|$ASKED|$OWN"'
    )
    tool = lab.folder / "bash_env"
    tool.write_text(_module_tool(lab) + "\n")
    profile = lab.profile.read_text()
    lines = f'lines = [". {tool}", "module load tool/1"]\n'
    lab.profile.write_text(
        profile.replace("[setup]\n", f"[setup]\n{lines}") if "[setup]\n" in profile else f"{profile}\n[setup]\n{lines}"
    )
    lab.submit_one(
        "main", "--nodes", "2", "--time", "5m", "--idle-exit", "3s", "--env", "ASKED=yes", "--env", "OWN=fleet"
    )
    lab.wait_done()
    path, loaded, asked, own = lab.call("task", "logs", "a").stdout.strip().split("|")
    assert path.split(":")[0] == f"{lab.folder}/tool/1/bin"
    assert (loaded, asked, own) == ("tool/1", "yes", "task")


def test_a_node_without_the_container_runtime_is_told_of_in_status(lab, cluster):
    lab.enqueue(["a"], 0.1)
    job = lab.submit_one("main", "--container", "/images/none.sif", "--time", "10m")
    cluster.wait_job(job, "FAILED")
    shown = lab.status()["jobs"][0]
    assert shown["state"] == "failed"
    assert "apptainer is not on this node" in shown["about"]
    record = json.loads((lab.spool / "fleets" / "main" / "jobs" / shown["token"] / "exit.json").read_text())
    assert (record["code"], record["reason"][:9]) == (78, "apptainer")


def test_the_signal_is_asked_for_as_the_profile_says(lab):
    lab.enqueue(["a"], 0.1)
    dry = lab.ask("fleet", "submit", "main", "--time", "10m", "--dry-run")
    assert "--signal=B:USR1@120" in dry["argv"]
    assert "--drain-before 120s" in dry["script"]
    dry = lab.ask("fleet", "submit", "main", "--time", "1h", "--drain-before", "5m", "--dry-run")
    assert "--signal=B:USR1@300" in dry["argv"]
