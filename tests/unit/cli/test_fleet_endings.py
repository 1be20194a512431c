"""Drain, cancel, shell, devnode and smoke on the command line, with a scheduler in memory."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest

from fleetcraft.actions import fleet_open
from fleetcraft.cli.main import main
from fleetcraft.core.clock import SystemClock
from fleetcraft.core.states import JobState
from fleetcraft.fleet import devnode, drain
from fleetcraft.fleet.names import FleetFolder
from fleetcraft.fleet.smoke import CHECKS
from fleetcraft.testing.scheduler_memory import MemoryScheduler
from tests.unit.readmodel.building import make_spool, publish

PROFILE = """\
format = 1
[scheduler]
kind = "slurm"
submit_gap = "0s"
[partitions.memory]
gpus_per_node = 2
[defaults]
partition = "memory"
time = "2h"
"""


@pytest.fixture
def scheduler(tmp_path, monkeypatch):
    folder = tmp_path / "config" / "clusters"
    folder.mkdir(parents=True)
    (folder / "here.toml").write_text(PROFILE)
    monkeypatch.setenv("FLEETCRAFT_CONFIG_DIR", str(tmp_path / "config"))
    monkeypatch.setenv("FLEETCRAFT_SPOOL", str(tmp_path / "spool"))
    monkeypatch.chdir(tmp_path)
    memory = MemoryScheduler(SystemClock(), nodes=4)
    monkeypatch.setattr(fleet_open, "open_scheduler", lambda *_, **__: memory)
    return memory


@pytest.fixture
def spool(tmp_path, scheduler):
    spool = make_spool(tmp_path)
    publish(spool, ["a"])
    return spool


def ask(capsys, *words):
    code = main([*words, "--json"])
    return code, json.loads(capsys.readouterr().out)


def say(capsys, *words):
    code = main(list(words))
    captured = capsys.readouterr()
    return code, captured.out + captured.err


def states(scheduler: MemoryScheduler) -> dict[str, str]:
    return {number: job.state.value for number, job in scheduler.jobs.items()}


def test_workers_are_told_how_to_measure(spool, scheduler, capsys):
    assert "--telemetry" not in say(capsys, "fleet", "submit", "--dry-run")[1]
    for how in ("off", "5s"):
        assert f"--telemetry {how}" in say(capsys, "fleet", "submit", "--dry-run", "--telemetry", how)[1]
    assert "--interval 5s" in say(capsys, "fleet", "devnode", "--dry-run", "--telemetry", "5s")[1]
    assert "gpu sample" not in say(capsys, "fleet", "devnode", "--dry-run", "--telemetry", "off")[1]


def test_a_drain_gives_waiting_jobs_back_leaves_running_ones_and_stops_every_pass(spool, scheduler, capsys):
    say(capsys, "fleet", "submit", "one", "--nodes", "3")
    say(capsys, "fleet", "submit", "one", "--nodes", "2")
    code, document = ask(capsys, "fleet", "drain", "one", "--why", "enough")
    assert (code, document["schema"], len(document["cancelled"])) == (0, "fleetcraft.fleet.drain/1", 1)
    assert states(scheduler) == {"1": "running", "2": "cancelled"}
    assert ask(capsys, "fleet", "status", "one")[1]["fleets"][0]["standing"] == "draining"
    scheduler.end("1", JobState.DONE, "COMPLETED")
    assert ask(capsys, "fleet", "ensure", "one")[1]["action"] == "nothing"
    assert "enough" in say(capsys, "why", "fleet", "one")[1]


def test_a_drain_can_be_taken_back(spool, scheduler, capsys):
    say(capsys, "fleet", "submit", "one")
    say(capsys, "fleet", "drain", "one")
    assert ask(capsys, "fleet", "drain", "one", "--resume")[1]["resumed"] is True
    assert ask(capsys, "fleet", "list")[1]["fleets"][0]["drained"] is False


def test_a_cancel_ends_the_fleet_and_says_what_it_did(spool, scheduler, capsys):
    say(capsys, "fleet", "submit", "one", "--nodes", "3")
    code, text = say(capsys, "fleet", "cancel", "one", "--save", "0s")
    assert code == 0
    assert "asked the scheduler to end" in text
    assert states(scheduler) == {"1": "cancelled"}
    assert "no job is live" in say(capsys, "fleet", "cancel", "one")[1]


def test_one_job_of_a_fleet_can_be_cancelled(spool, scheduler, capsys):
    say(capsys, "fleet", "submit", "one")
    say(capsys, "fleet", "submit", "one")
    assert say(capsys, "fleet", "cancel", "one", "--job", "2", "--save", "0s")[0] == 0
    assert states(scheduler) == {"1": "running", "2": "cancelled"}
    assert say(capsys, "fleet", "cancel", "one", "--job", "99")[0] == 2


def test_a_step_cancel_only_sends_a_signal(spool, scheduler, capsys):
    say(capsys, "fleet", "submit", "one")
    code, document = ask(capsys, "fleet", "cancel", "one", "--step", "--signal", "USR2")
    assert (code, document["step"], len(document["signalled"])) == (0, True, 1)
    assert scheduler.jobs["1"].signals == ["USR2"]
    assert states(scheduler) == {"1": "running"}


def test_a_cancel_that_the_scheduler_did_not_take_ends_with_75(spool, scheduler, capsys, monkeypatch):
    say(capsys, "fleet", "submit", "one")
    say(capsys, "fleet", "status", "one")
    scheduler.deaf = True
    monkeypatch.setattr(drain, "_LOOK_EVERY_S", 0.01)
    code, text = say(capsys, "fleet", "cancel", "one", "--save", "0s")
    assert code == 75
    assert "no contact" in text


def test_a_shell_is_printed_for_a_job(spool, scheduler, capsys):
    say(capsys, "fleet", "submit", "one")
    say(capsys, "fleet", "status")
    code, document = ask(capsys, "fleet", "shell", "1")
    assert (code, document["job"], document["node"]) == (0, "1", "n1")
    assert document["argv"][-1] == "bash"
    assert say(capsys, "fleet", "shell", "1", "--shell", "zsh", "--print")[1] == "env JOB=1 zsh\n"
    assert say(capsys, "fleet", "shell", "nothing")[0] == 2


def test_a_shell_asks_for_a_job_that_started_since_the_last_look(spool, scheduler, capsys):
    say(capsys, "fleet", "submit", "one")
    code, document = ask(capsys, "fleet", "shell", "1")
    assert (code, document["job"], document["node"], document["doubt"]) == (0, "1", "n1", "")


def test_a_shell_is_tried_where_nobody_tells_whether_the_job_runs(spool, scheduler, capsys):
    say(capsys, "fleet", "submit", "one")
    scheduler.deaf = True
    code, document = ask(capsys, "fleet", "shell", "1")
    assert (code, document["job"], document["node"]) == (0, "1", None)
    assert document["doubt"] == "the scheduler was not heard of it yet; it is tried all the same"


def test_there_is_no_shell_in_a_job_that_waits_or_has_ended(spool, scheduler, capsys):
    say(capsys, "fleet", "submit", "one", "--nodes", "4")
    say(capsys, "fleet", "submit", "one", "--nodes", "4")
    code, text = say(capsys, "fleet", "shell", "2", "--print")
    assert code == 2
    assert "There is no shell in job 2: it is pending." in text
    scheduler.end("1", JobState.DONE, "COMPLETED")
    say(capsys, "fleet", "status", "one")
    assert "it is done" in say(capsys, "fleet", "shell", "1", "--print")[1]


def test_only_a_terminal_gets_a_terminal(spool, scheduler, capsys, monkeypatch):
    say(capsys, "fleet", "submit", "one")
    monkeypatch.setattr(scheduler, "kind", "slurm")
    ran: list[Any] = []
    monkeypatch.setattr(os, "execvp", lambda *words: ran.append(words[1]))
    assert say(capsys, "fleet", "shell", "1")[0] == 0
    assert ran[0][0] == "srun"
    assert "--pty" not in ran[0]
    assert "--pty" in ask(capsys, "fleet", "shell", "1")[1]["argv"]


def test_a_shell_takes_the_place_of_the_command(spool, scheduler, capsys, monkeypatch):
    say(capsys, "fleet", "submit", "one")
    say(capsys, "fleet", "status")
    ran: list[Any] = []
    monkeypatch.setattr(os, "execvp", lambda *words: ran.append(words))
    assert say(capsys, "fleet", "shell", "1")[0] == 0
    assert ran == [("env", ["env", "JOB=1", "bash"])]


def test_a_devnode_is_asked_for_and_given_back(spool, scheduler, capsys):
    code, document = ask(capsys, "fleet", "devnode", "--time", "1h", "--detach")
    assert (code, document["job"]) == (0, "1")
    assert states(scheduler) == {"1": "running"}
    assert say(capsys, "fleet", "cancel", "devnode", "--save", "0s")[0] == 0
    assert states(scheduler) == {"1": "cancelled"}


def test_a_devnode_that_is_held_goes_back_when_its_holder_leaves(spool, scheduler, capsys, monkeypatch):
    from fleetcraft.actions import fleet_hold

    def leave(_seconds: float) -> None:
        raise KeyboardInterrupt

    real: Any = devnode.hold
    monkeypatch.setattr(fleet_hold, "hold", lambda *words, **settings: real(*words, **settings, wait=leave))
    code, text = say(capsys, "fleet", "devnode", "--time", "1h")
    assert code == 130
    assert "Ctrl-C gives the node back" in text
    assert "the node goes back: the scheduler was asked to end job 1" in text
    assert states(scheduler) == {"1": "cancelled"}


def test_a_devnode_that_could_not_be_given_back_says_what_to_run(spool, scheduler, capsys, monkeypatch):
    from fleetcraft.actions import fleet_hold

    def leave(_seconds: float) -> None:
        scheduler.deaf = True
        raise KeyboardInterrupt

    real: Any = devnode.hold
    monkeypatch.setattr(fleet_hold, "hold", lambda *words, **settings: real(*words, **settings, wait=leave))
    code, text = say(capsys, "fleet", "devnode", "--time", "1h")
    assert code == 130
    assert "no contact" in text
    assert "the node may still be held: fleetcraft fleet cancel devnode --job 1" in text


def test_a_dry_devnode_and_a_dry_smoke_submit_nothing(spool, scheduler, capsys):
    for verb in ("devnode", "smoke"):
        code, text = say(capsys, "fleet", verb, "--dry-run")
        assert code == 0
        assert "nothing was submitted; every guard would allow it" in text
    assert scheduler.submissions == []


def write_checks(spool, token, codes):
    folder = FleetFolder(spool.layout.root, "smoke").job(token).smoke
    os.makedirs(folder)
    for name, code in codes.items():
        for end, text in (("out", f"{name} said this\nand that\n"), ("code", f"{code}\n")):
            with open(os.path.join(folder, f"{name}.{end}"), "w", encoding="utf-8") as target:
                target.write(text)


@pytest.mark.parametrize(
    ("codes", "ended", "code", "word"),
    (
        ({"environment": 0, "gpus": 77, "spool": 0, "nvml": 77, "task": 0}, True, 0, "all is well"),
        ({"environment": 0, "gpus": 1, "spool": 0, "nvml": 77, "task": 0}, True, 1, "and that"),
        (
            {"environment": 0, "gpus": 1, "spool": 0, "nvml": 1},
            True,
            1,
            "ended: gpus and nvml failed; task did not run",
        ),
        ({"environment": 0}, True, 1, "it has not run"),
        ({"environment": 0}, False, 3, "it has not run"),
    ),
)
def test_a_smoke_job_tells_each_check(spool, scheduler, capsys, codes, ended, code, word):
    token = ask(capsys, "fleet", "smoke", "--no-wait")[1]["token"]
    write_checks(spool, token, codes)
    if ended:
        scheduler.end("1", JobState.DONE, "COMPLETED")
    found, text = say(capsys, "fleet", "smoke", "--read", token)
    assert found == code
    assert word in text


def test_a_smoke_job_is_waited_for(spool, scheduler, capsys, monkeypatch):
    from fleetcraft.actions import fleet_hold

    def pass_time(_seconds: float) -> None:
        write_checks(spool, scheduler.submissions[0], dict.fromkeys(CHECKS, 0))
        scheduler.end("1", JobState.DONE, "COMPLETED")

    real: Any = fleet_hold.follow_smoke
    monkeypatch.setattr(fleet_hold, "follow_smoke", lambda *words: real(*words, wait=pass_time))
    code, text = say(capsys, "fleet", "smoke")
    assert code == 0
    assert "job 1: running" in text
    assert "job 1: done" in text


def test_where_gpus_are_simulated_no_driver_is_expected(spool, scheduler, capsys):
    assert "no driver is expected" not in say(capsys, "fleet", "smoke", "--dry-run")[1]
    text = say(capsys, "fleet", "smoke", "--dry-run", "--worker-gpus", "simulated:2")[1]
    assert text.count("workers get --gpus simulated:2: no driver is expected") == 2
    assert say(capsys, "fleet", "smoke", "--dry-run", "--worker-gpus", "none")[1].count("no driver is expected") == 1


def test_the_task_check_shows_the_outcome_of_its_receipt(spool, scheduler, capsys):
    token = ask(capsys, "fleet", "smoke", "--no-wait")[1]["token"]
    write_checks(spool, token, dict.fromkeys(CHECKS, 0))
    path = os.path.join(FleetFolder(spool.layout.root, "smoke").job(token).smoke, "task.out")
    with open(path, "w", encoding="utf-8") as target:
        target.write("enqueued 1 task: smoke\nsmoke  succeeded  (id 1.0)\n\n  attempt 1  succeeded\n    where  n1\n")
    text = say(capsys, "fleet", "smoke", "--read", token)[1]
    assert next(line for line in text.splitlines() if " task " in line).split()[1:] == [
        "task", "attempt", "1", "succeeded",
    ]  # fmt: skip
