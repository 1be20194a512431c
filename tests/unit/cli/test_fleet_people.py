"""What people see of fleets: their own time, more than one shape, and an end that the scheduler has not told yet."""

from __future__ import annotations

import json
import os

import pytest

from fleetcraft.fleet.names import FleetFolder
from fleetcraft.readmodel.words import SECONDS, local_time
from tests.unit.cli import test_fleet_verbs
from tests.unit.cli.test_fleet_verbs import ask, say

scheduler, spool = test_fleet_verbs.scheduler, test_fleet_verbs.spool


@pytest.fixture
def in_chicago(tmp_path, scheduler):
    path = tmp_path / "config" / "clusters" / "here.toml"
    path.write_text(path.read_text().replace("format = 1", 'format = 1\ntime_zone = "America/Chicago"'))


def test_a_time_is_told_in_the_zone_that_is_named_with_it():
    assert local_time(1_700_000_000.0) == "2023-11-14 22:13 UTC"
    assert local_time(1_700_000_000.0, "America/Chicago", SECONDS) == "2023-11-14 16:13:20 CST"
    assert local_time(1_690_000_000.0, "America/Chicago") == "2023-07-21 23:26 CDT"
    assert local_time(1_700_000_000.0, "No/Where") == "2023-11-14 22:13 UTC"
    assert local_time(None) == "?"


def test_people_read_the_time_of_the_site_and_programs_read_utc(spool, in_chicago, capsys):
    assert " C" in say(capsys, "fleet", "submit", "one", "--dry-run")[1].split("would start it by ")[1][:22]
    assert say(capsys, "fleet", "submit", "one")[0] == 0
    say(capsys, "fleet", "status")
    told = say(capsys, "fleet", "status", "one")[1] + say(capsys, "why", "fleet", "one")[1]
    assert " CST" in told or " CDT" in told
    assert " UTC" not in told
    for words in (("fleet", "status", "one"), ("why", "fleet", "one"), ("why", "job", "1")):
        text = json.dumps(ask(capsys, *words)[1])
        assert " CST" not in text
        assert " CDT" not in text


def test_a_second_shape_stands_beside_the_first(spool, scheduler, capsys):
    assert say(capsys, "fleet", "submit", "study1", "--nodes", "1")[0] == 0
    assert say(capsys, "fleet", "submit", "study1", "--shape", "big", "--nodes", "2")[0] == 0
    document = ask(capsys, "fleet", "status", "study1")[1]["fleets"][0]
    assert sorted((job["shape"], job["nodes"]) for job in document["jobs"]) == [("big", 2), ("main", 1)]
    code, text = say(capsys, "fleet", "submit", "study1", "--shape", "devnode")
    assert code == 2
    assert "fleet devnode" in text


def test_a_job_that_wrote_its_end_has_ended_whatever_the_last_answer_says(spool, scheduler, capsys):
    say(capsys, "fleet", "submit", "one")
    token = ask(capsys, "fleet", "status", "one")[1]["fleets"][0]["jobs"][0]["token"]
    job = FleetFolder(spool.layout.root, "one").job(token)
    end = {"token": token, "code": 78, "reason": "apptainer is not on this node", "at_utc": 5}
    with open(job.ended, "w", encoding="utf-8") as target:
        json.dump(end, target)
    shown = ask(capsys, "fleet", "status", "one", "--no-ask")[1]["fleets"][0]["jobs"][0]
    assert shown["state"] == "ending"
    expected = "apptainer is not on this node; its script ended with 78; the scheduler has not said so yet"
    assert shown["about"] == expected
    text = say(capsys, "why", "job", token)[1]
    assert "Apptainer is not on this node; its script ended with 78" in text
    assert f"What it said is in {job.output}." in text
    # A run that began after that is another one.
    with open(job.started, "w", encoding="utf-8") as target:
        json.dump({"token": token, "at_utc": 6}, target)
    assert ask(capsys, "fleet", "status", "one", "--no-ask")[1]["fleets"][0]["jobs"][0]["state"] == "running"


def test_without_a_word_the_spool_of_the_profile_is_used(tmp_path, spool, scheduler, capsys, monkeypatch):
    path = tmp_path / "config" / "clusters" / "here.toml"
    # Only of this machine alone may a profile name a folder under /tmp.
    text = path.read_text().replace('"slurm"', '"local"')
    path.write_text(text + f'[storage]\nspool = "{tmp_path}/spools"\n')
    os.makedirs(tmp_path / "spools")
    os.rename(spool.layout.root, tmp_path / "spools" / "main")
    monkeypatch.delenv("FLEETCRAFT_SPOOL")
    assert ask(capsys, "fleet", "submit", "one")[0] == 0
    assert ask(capsys, "fleet", "status")[1]["fleets"][0]["spool"] == f"{tmp_path}/spools/main"
    code, text = say(capsys, "fleet", "status", "--spool", "nowhere")
    assert code == 2
    assert "/nowhere" in text


def test_a_person_at_a_terminal_waits_for_the_pause_between_two_submissions(
    tmp_path, spool, scheduler, capsys, monkeypatch
):
    path = tmp_path / "config" / "clusters" / "here.toml"
    path.write_text(path.read_text().replace('submit_gap = "0s"', 'submit_gap = "2s"'))
    assert say(capsys, "fleet", "submit", "one")[0] == 0
    code, text = say(capsys, "fleet", "submit", "one")
    assert code == 4
    assert "2 s are kept between two; submit again in 2 s" in text
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    code, text = say(capsys, "fleet", "submit", "one")
    assert code == 0
    assert "the site wants a pause after your last submission" in text
    assert len(scheduler.submissions) == 2


def test_a_question_without_an_answer_is_no_refusal(spool, scheduler, capsys):
    scheduler.deaf = True
    code, text = say(capsys, "fleet", "submit", "one")
    assert code == 75
    assert "one: nothing was submitted: no answer" in text
    assert "refused" not in text
    assert "run the same command again" in text
    code, text = say(capsys, "fleet", "submit", "one", "--dry-run")
    assert code == 75
    assert "not every question had an answer" in text


def test_a_refusal_beside_a_missing_answer_stays_a_refusal(spool, scheduler, capsys):
    say(capsys, "fleet", "submit", "one", "--gpu-hours", "9")
    scheduler.deaf = True
    code, text = say(capsys, "fleet", "submit", "one", "--gpu-hours", "9", "--dry-run")
    assert code == 4
    assert "it would be refused" in text


def test_a_dry_run_says_that_the_submission_could_not_be_written(spool, scheduler, capsys, monkeypatch):
    real = os.access
    monkeypatch.setattr(
        os, "access", lambda path, mode: not str(path).startswith(spool.layout.root) and real(path, mode)
    )
    code, text = say(capsys, "fleet", "submit", "one", "--dry-run")
    assert code == 2
    assert "the submission itself could not be written: Cannot write on the record of the fleet one" in text
    assert "Look at the owner and the permissions of" in text
    document = ask(capsys, "fleet", "submit", "one", "--dry-run")[1]
    assert document["problem"].startswith("Cannot write on the record of the fleet one")


def test_a_spool_that_may_not_be_written_is_wrong_usage(spool, scheduler, capsys, monkeypatch):
    def forbid(*_words, **_named):
        raise PermissionError(13, "Permission denied", spool.layout.root)

    monkeypatch.setattr("fleetcraft.fleet.records.ensure_folder", forbid)
    code, text = say(capsys, "fleet", "submit", "one")
    assert code == 2
    assert "Look at the owner and the permissions of" in text
    assert "again" not in text


def test_why_tells_how_old_its_knowledge_is_and_no_reason_twice(spool, scheduler, capsys):
    say(capsys, "fleet", "submit", "one")
    say(capsys, "fleet", "status", "one")
    text = say(capsys, "why", "job", "1")[1]
    assert "The last word about it on record is " in text
    assert "`fleetcraft fleet status one` asks the scheduler" in text
    assert "asked for: asked for" not in text
    assert ": asked for" not in text
