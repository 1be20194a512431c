"""What the verbs of fleets print and answer, with a scheduler in memory, in this process."""

from __future__ import annotations

import json
import os

import pytest

from fleetcraft.actions import fleet_open
from fleetcraft.cli.main import main
from fleetcraft.core.clock import SystemClock
from fleetcraft.core.states import JobState
from fleetcraft.schedulers.api import StartEstimate
from fleetcraft.spool.life import Life
from fleetcraft.testing.scheduler_memory import Fault, MemoryScheduler
from tests.unit.readmodel.building import make_spool, publish, receipt, replace_tokens

PROFILE = """\
format = 1
[scheduler]
kind = "slurm"
submit_gap = "0s"
[partitions.memory]
gpus_per_node = 4
su_rate = 2.0
[partitions.spare]
gpus_per_node = 4
preemptible = true
[defaults]
partition = "memory"
time = "2h"
[names]
forbidden = ["secret"]
"""


@pytest.fixture
def scheduler(tmp_path, monkeypatch):
    """One scheduler for every command of a test, and a profile called `here`."""
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
    publish(spool, ["a", "b", "c"])
    return spool


def ask(capsys, *words):
    """(exit code, document) of one command line with --json."""
    code = main([*words, "--json"])
    return code, json.loads(capsys.readouterr().out)


def say(capsys, *words):
    code = main(list(words))
    captured = capsys.readouterr()
    return code, captured.out + captured.err


def test_a_dry_run_shows_everything_and_changes_nothing(spool, scheduler, capsys):
    code, text = say(capsys, "fleet", "submit", "--nodes", "2", "--dry-run")
    assert code == 0
    for part in ("#!/bin/bash", "memory-submit", "2 nodes for 2h00m, at most 16.0 GPU-hours, 8.00 SU", "balance"):
        assert part in text
    assert scheduler.submissions == []
    assert not os.path.exists(os.path.join(spool.layout.root, "fleets"))


def test_a_dry_run_as_json_has_script_argv_cost_start_and_every_decision(spool, capsys):
    code, document = ask(capsys, "fleet", "submit", "--nodes", "2", "--dry-run")
    assert (code, document["schema"], document["dry_run"]) == (0, "fleetcraft.fleet.submit/1", True)
    assert document["script"].startswith("#!/bin/bash")
    assert document["argv"][0] == "memory-submit"
    assert (document["gpu_hours"], document["units"], document["start"]["possible"]) == (16.0, 8.0, True)
    guards = [one["guard"] for one in document["decisions"]]
    assert guards == ["once", "login", "shape", "limits", "cap", "balance"]
    assert all("evidence" in one for one in document["decisions"])


def test_a_fleet_is_submitted_once_and_seen_in_every_view(spool, scheduler, capsys):
    code, document = ask(capsys, "fleet", "submit", "study1", "--nodes", "2", "--why", "a reason")
    assert (code, document["submitted"][0]["job"]) == (0, "1")
    assert len(scheduler.submissions) == 1
    code, document = ask(capsys, "fleet", "status")
    fleet = document["fleets"][0]
    assert (code, document["schema"]) == (0, "fleetcraft.fleet.status/1")
    assert (fleet["name"], fleet["standing"], fleet["answered"], fleet["unfinished"]) == ("study1", "active", True, 3)
    job = fleet["jobs"][0]
    assert (job["id"], job["state"], job["nodes"], job["gpus"], job["stale"]) == ("1", "running", 2, 8, False)
    assert fleet["nodes"] == {"assigned": 2, "pending": 0, "unknown": 0}
    assert ask(capsys, "fleet", "list")[1]["fleets"][0]["live_nodes"] == 2
    code, _text = say(capsys, "fleet", "status", "study1", "--exit-code")
    assert code == 3
    assert "a reason" in say(capsys, "why", "fleet")[1]
    assert "balance allowed" in say(capsys, "why", "job", "1")[1]


def test_a_refusal_ends_with_4_and_is_remembered(spool, scheduler, capsys):
    code, text = say(capsys, "fleet", "submit", "--nodes", "9")
    assert code == 4
    assert "9 nodes, a job there gets at most 4" in text
    assert "the nearest that could: partition memory, nodes 4" in text
    assert scheduler.submissions == []
    code, text = say(capsys, "why", "fleet")
    assert code == 0
    assert "nothing was submitted: shape" in text
    # A fleet that was only refused has no shape, and is in nobody's way.
    assert ask(capsys, "fleet", "list")[1]["fleets"][0]["profile"] is None
    assert say(capsys, "fleet", "status")[0] == 0
    code, text = say(capsys, "fleet", "ensure")
    assert code == 2
    assert "has no shape yet" in text


def test_the_schedulers_no_ends_with_4_and_its_silence_with_75(spool, scheduler, capsys):
    scheduler.faults.append(Fault.REJECTED)
    code, text = say(capsys, "fleet", "submit", "one")
    assert code == 4
    assert "invalid qos" in text
    scheduler.faults.append(Fault.LOST_BOTH)
    code, text = say(capsys, "fleet", "submit", "two")
    assert code == 75
    assert "the answer was lost" in text


def test_without_an_answer_the_guards_refuse(spool, scheduler, capsys):
    scheduler.deaf = True
    code, document = ask(capsys, "guard", "all")
    assert code == 4
    assert document["schema"] == "fleetcraft.guard.all/1"
    refused = [one["guard"] for one in document["decisions"] if not one["allowed"]]
    assert refused == ["shape", "limits"]


def test_a_status_without_an_answer_shows_what_is_known_with_its_age_and_ends_with_75(spool, scheduler, capsys):
    say(capsys, "fleet", "submit")
    say(capsys, "fleet", "status")
    scheduler.deaf = True
    code, text = say(capsys, "fleet", "status")
    assert code == 75
    assert "running" in text
    assert "(no answer)" in text
    assert "the scheduler did not answer; what is shown is up to" in text
    assert say(capsys, "fleet", "status", "--no-ask")[0] == 0


def test_a_snapshot_counts_nodes_and_gpus_reasons_limits_and_coverage(spool, scheduler, capsys):
    say(capsys, "fleet", "submit", "one", "--nodes", "3")
    say(capsys, "fleet", "submit", "two", "--nodes", "2")
    code, document = ask(capsys, "fleet", "snapshot", "one", "--gpus", "--cluster")
    assert (code, document["schema"], document["answered"]) == (0, "fleetcraft.fleet.snapshot/1", True)
    (use,) = document["partitions"]
    assert (use["assigned"]["nodes"], use["assigned"]["gpus"]) == (3, 12)
    assert (use["pending"]["nodes"], use["pending"]["gpus"]) == (2, 8)
    assert document["waiting"][0]["reason"] == "Resources"
    assert document["coverage"] == {
        "nodes": 3, "reporting_nodes": 0, "gpus": 12, "reporting_gpus": 0, "percent": 0.0,
    }  # fmt: skip
    assert [node["node"] for node in document["nodes"]] == ["n1", "n2", "n3"]
    assert document["gpu_states"]["unknown"] == 12
    assert document["cluster"][0]["partition"] == "memory"
    text = say(capsys, "fleet", "snapshot", "one", "--gpus")[1]
    assert "no worker of this spool told about it" in text
    assert "0 of 3 nodes, 0 of 12 GPUs are heard of (0 %)" in text


def test_a_snapshot_without_an_answer_shows_the_record_and_ends_with_75(spool, scheduler, capsys):
    say(capsys, "fleet", "submit", "--nodes", "3")
    say(capsys, "fleet", "status")
    scheduler.deaf = True
    code, document = ask(capsys, "fleet", "snapshot")
    assert (code, document["answered"], document["limits_answered"]) == (75, False, False)
    assert document["age_s"] is not None
    assert document["partitions"][0]["assigned"]["nodes"] == 3
    assert "the scheduler did not answer; what is shown is on record" in say(capsys, "fleet", "snapshot")[1]


def test_ensure_grows_with_the_backlog_and_gives_its_reason(spool, scheduler, capsys):
    say(capsys, "fleet", "submit", "--time", "1h", "--max-nodes", "2")
    scheduler.end("1", JobState.DONE, "COMPLETED")
    code, document = ask(capsys, "fleet", "ensure")
    assert (code, document["schema"], document["action"]) == (0, "fleetcraft.fleet.ensure/1", "submit")
    assert document["submitted"]["job"] == "2"
    code, text = say(capsys, "fleet", "ensure")
    assert code == 0
    assert "3 tasks wait" in text
    assert len(scheduler.submissions) == 2


def test_a_dry_ensure_decides_and_does_nothing(spool, scheduler, capsys):
    say(capsys, "fleet", "submit")
    scheduler.end("1", JobState.DONE, "COMPLETED")
    say(capsys, "fleet", "status")
    code, document = ask(capsys, "fleet", "ensure", "--dry-run")
    assert (code, document["dry_run"], document["action"]) == (0, True, "submit")
    assert len(scheduler.submissions) == 1


def test_renew_queues_one_successor_however_often_it_is_called(spool, scheduler, capsys):
    assert say(capsys, "fleet", "submit", "--lanes", "1")[0] == 0
    assert say(capsys, "fleet", "renew")[0] == 0
    assert say(capsys, "fleet", "renew")[0] == 0
    assert len(scheduler.submissions) <= 2


def test_options_reach_the_request(spool, scheduler, capsys):
    words = ("--partition", "spare", "--time", "30m", "--account", "lab", "--qos", "low", "--reservation", "week",
             "--exclude", "n1,n2", "--module", "gcc/13", "--env", "A=1 2", "--job-name", "calm")  # fmt: skip
    code, _ = say(capsys, "fleet", "submit", *words)
    assert code == 4  # this scheduler has no partition of that name
    code, document = ask(capsys, "fleet", "submit", *words, "--dry-run")
    assert "module load gcc/13" in document["script"]
    assert "export A='1 2'" in document["script"]
    assert document["exclude"] == ["n1", "n2"]
    assert document["time_limit_s"] == 1800.0


def test_preemptible_alone_means_the_partition_that_the_profile_calls_so(spool, capsys):
    code, document = ask(capsys, "fleet", "submit", "--preemptible", "--dry-run")
    assert code == 4
    shape = next(one for one in document["decisions"] if one["guard"] == "shape")
    assert "no partition spare" in shape["reason"]


@pytest.mark.parametrize(
    ("words", "code", "said"),
    (
        (("fleet", "submit", "UP"), 2, "no name for a fleet"),
        (("fleet", "submit", "--profile", "nothere"), 2, "There is no profile 'nothere'"),
        (("fleet", "submit", "--partition", "nothere"), 2, "no partition 'nothere'"),
        (("fleet", "submit", "--env", "novalue"), 2, "NAME=VALUE"),
        (("fleet", "submit", "--gpu-hours", "-1"), 2, "above zero"),
        (("fleet", "submit", "--lanes", "5"), 2, "lanes"),
        (("fleet", "submit", "--job-name", "my-secret"), 4, "forbids"),
        (("fleet", "submit", "--option=--licenses=x"), 4, "allow_options"),
        (("fleet", "submit", "--notify", "'open"), 2, "no command"),
        (("fleet", "submit", "--notify", "ftp://here/x"), 2, "cannot be posted to"),
        (("fleet", "submit", "--time", "0"), 2, "--time 0 leaves a job no time"),
        (("fleet", "submit", "--worker-gpus", "wat"), 2, "--worker-gpus 'wat' must be auto"),
        (("fleet", "submit", "--telemetry", "2m"), 2, "--telemetry"),
        (("fleet", "submit", "--worker-cpus", "0"), 2, "--worker-cpus 0 must be"),
        (("fleet", "ensure"), 2, "There is no fleet"),
        (("fleet", "renew", "other"), 2, "There is no fleet other"),
        (("fleet", "ensure", "--loop", "--json"), 2, "--loop"),
        (("fleet", "snapshot", "other"), 2, "There is no fleet other"),
        (("why", "fleet"), 2, "There is no fleet"),
        (("why", "job", "17"), 2, "'17'"),
    ),
)
def test_what_cannot_be_is_said_in_one_sentence(spool, capsys, words, code, said):
    found, text = say(capsys, *words)
    assert found == code
    assert said in text


def test_a_dry_run_that_the_scheduler_would_refuse_says_so_and_ends_with_4(spool, scheduler, capsys, monkeypatch):
    monkeypatch.setattr(scheduler, "test_only", lambda _: StartEstimate(possible=False, text="Invalid qos"))
    code, text = say(capsys, "fleet", "submit", "--dry-run")
    assert code == 4
    assert "the scheduler would refuse it: Invalid qos" in text
    assert text.rstrip().endswith("every guard would allow it, and the scheduler would refuse it")


def test_a_fleet_that_was_only_refused_hides_no_site_from_a_snapshot(spool, capsys):
    say(capsys, "fleet", "submit", "one")
    assert say(capsys, "fleet", "submit", "two", "--nodes", "9")[0] == 4
    code, document = ask(capsys, "fleet", "snapshot")
    assert (code, document["profile"]) == (0, "here")
    code, text = say(capsys, "why", "fleet", "two")
    assert text.startswith("Fleet two has 0 live jobs; nothing was submitted for it yet.")


def test_a_damaged_spec_is_called_damaged_and_not_missing(spool, capsys):
    say(capsys, "fleet", "submit", "one")
    path = os.path.join(spool.layout.root, "fleets", "one", "records", "1.json")
    os.chmod(path, 0o600)
    with open(path, "w") as file:
        file.write("{")
    code, text = say(capsys, "fleet", "ensure", "one")
    assert code == 4
    assert "record 1 cannot be read" in text
    assert "nothing was submitted" not in text
    assert say(capsys, "fleet", "submit", "one")[0] == 4
    for words in (("status",), ("status", "one"), ("drain", "one")):
        code, text = say(capsys, "fleet", *words)
        assert code == 0, (words, text)
    code, text = say(capsys, "fleet", "cancel", "one", "--save", "0s")
    assert (code, "asked the scheduler to end" in text) == (0, True), text


def test_a_fleet_of_gpu_nodes_that_spent_nothing_counts_gpu_hours(spool, capsys):
    say(capsys, "fleet", "submit", "--nodes", "2")
    _, text = say(capsys, "fleet", "status", "--no-ask")
    assert "spent 0.0 GPU-hours" in text or "spent 0.00 GPU-hours" in text
    assert "node-hours" not in text


def test_of_several_fleets_one_must_be_named(spool, capsys):
    say(capsys, "fleet", "submit", "one")
    say(capsys, "fleet", "submit", "two")
    code, text = say(capsys, "fleet", "ensure")
    assert code == 2
    assert "one, two" in text


def test_a_spool_without_fleets_says_so(spool, capsys):
    assert say(capsys, "fleet", "status") == (
        0,
        "nothing was submitted for a fleet of this spool yet; see `fleetcraft fleet submit --help`\n",
    )
    assert ask(capsys, "fleet", "list")[1]["fleets"] == []


def test_an_ended_fleet_ends_the_wait_of_a_script(spool, scheduler, capsys):
    say(capsys, "fleet", "submit")
    life = Life.begin(spool)
    for index in range(3):
        receipt(life, 1, index)
    replace_tokens(spool, 1, [])
    scheduler.end("1", JobState.DONE, "COMPLETED")
    code, document = ask(capsys, "fleet", "status", "--exit-code")
    assert document["fleets"][0]["jobs"][0]["state"] == "done"
    assert code == 0


def test_a_pass_without_an_answer_ends_with_75_and_does_nothing(spool, scheduler, capsys):
    say(capsys, "fleet", "submit")
    say(capsys, "fleet", "status")
    scheduler.deaf = True
    code, document = ask(capsys, "fleet", "ensure")
    assert (code, document["action"]) == (75, "nothing")
    assert "no contact" in document["problems"]


def test_at_the_burn_stop_a_pass_lets_the_fleet_go(spool, scheduler, capsys, tmp_path):
    told = tmp_path / "balance"
    told.write_text("1000")
    profile = f"{PROFILE}[balance]\nprovider = 'file'\npath = '{told}'\nfloor = 50\nburn_stop = 20\n"
    (tmp_path / "config" / "clusters" / "here.toml").write_text(profile)
    say(capsys, "fleet", "submit", "--nodes", "3")
    say(capsys, "fleet", "submit", "--nodes", "3", "--time", "1h")
    assert ask(capsys, "fleet", "ensure")[1]["standing"] == "active"
    told.write_text("unreadable")
    assert ask(capsys, "fleet", "ensure")[1]["standing"] == "active"
    told.write_text("20")
    code, document = ask(capsys, "fleet", "ensure", "--dry-run")
    assert "20.0 SU are left" in document["problems"][-1]
    assert ask(capsys, "fleet", "list")[1]["fleets"][0]["drained"] is False
    code, document = ask(capsys, "fleet", "ensure")
    assert (code, document["standing"]) == (0, "draining")
    assert [job.state.value for job in scheduler.jobs.values()] == ["running", "cancelled"]
    assert "fleets are let go at 20.0" in say(capsys, "why", "fleet")[1]


def test_a_snapshot_needs_no_fleet_and_no_choice_between_fleets_of_one_site(spool, capsys):
    assert ask(capsys, "fleet", "snapshot")[0] == 0
    say(capsys, "fleet", "submit", "one")
    say(capsys, "fleet", "submit", "two")
    code, document = ask(capsys, "fleet", "snapshot")
    assert (code, document["profile"]) == (0, "here")
    assert document["partitions"][0]["assigned"]["jobs"] == 2


def test_a_refused_shape_does_not_become_the_fleets(spool, scheduler, capsys):
    say(capsys, "fleet", "submit", "--nodes", "2")
    assert say(capsys, "fleet", "submit", "--nodes", "9")[0] == 4
    scheduler.end("1", JobState.DONE, "COMPLETED")
    code, document = ask(capsys, "fleet", "ensure")
    assert (code, document["action"], document["submitted"]["nodes"]) == (0, "submit", 2)
    assert "it was asked to be 2 nodes" in say(capsys, "why", "fleet")[1]


def test_a_submission_after_a_drain_and_one_of_the_same_shape_are_made(spool, scheduler, capsys):
    say(capsys, "fleet", "submit")
    say(capsys, "fleet", "drain")
    assert say(capsys, "fleet", "submit")[0] == 0
    assert say(capsys, "fleet", "submit", "--time", "1h")[0] == 0
    assert len(scheduler.submissions) == 3
