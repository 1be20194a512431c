"""`gpu summary`: the table and the document, spans, evidence, and errors that name the way on."""

from __future__ import annotations

import io
import json
import os

import pytest

from fleetcraft.cli.commands import dispatch
from fleetcraft.cli.output import Output
from fleetcraft.core.errors import UsageError
from tests.support.telemetry_files import START_MS, steady, write_segment


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    monkeypatch.setattr("time.time_ns", lambda: (START_MS + 600_000) * 1_000_000)


@pytest.fixture
def root(tmp_path):
    write_segment(tmp_path / "t", "n1", steady(range(0, 600, 10), {"util_pct": 80, "power_w": 360}), fleet="f")
    (tmp_path / "t" / "n2").mkdir()
    (tmp_path / "t" / "n2" / f"{START_MS}-abcdef12-7.csv").write_text("")
    return tmp_path / "t"


def run(*words, as_json=False):
    out, err = io.StringIO(), io.StringIO()
    code = dispatch(["gpu", "summary", *map(str, words)], Output(out, err, json=as_json, color=False))
    return code, out.getvalue()


def document(*words):
    code, text = run(*words, as_json=True)
    assert code == 0
    return json.loads(text)


def test_the_table_has_rows_total_coverage_and_the_definition(root):
    code, text = run(root)
    assert code == 0
    lines = text.splitlines()
    assert lines[0].split()[:3] == ["HOST", "GPUS", "GPU-HOURS"]
    assert lines[1].split()[:3] == ["n1", "1", "0.167"]
    assert lines[2].split()[:4] == ["n2", "0", "no", "data"]
    assert lines[3].split()[0] == "all"
    assert "coverage    1 of 2 hosts, 1 of 1 known GPU; 0.167 of 0.167 GPU-hours were seen (100.0 %)" in lines
    assert "energy      0.060 kWh by holding power; no energy counter" in lines
    assert lines[-1].startswith("definition  hold: a sample counts until the next of its GPU")


def test_the_document_has_numbers_and_null_for_what_is_not_known(root):
    body = document(root, "--by", "gpu")
    assert body["schema"] == "fleetcraft.gpu.summary/1"
    assert body["total"]["utilization_pct"] == 80.0
    assert body["total"]["memory_mean_bytes"] is None
    assert body["coverage"]["hosts"] == 2
    assert {problem["kind"] for problem in body["problems"]} == {"empty", "no_data"}


def test_the_last_minutes(root):
    body = document(root, "--window", "5m")
    assert (body["since_utc_ms"], body["until_utc_ms"]) == (START_MS + 300_000, START_MS + 600_000)
    assert body["total"]["gpu_hours"] == pytest.approx(1 / 12)
    assert body["total"]["coverage"] == 1.0


def test_dates_are_in_the_zone_that_was_named(root):
    # 2027-01-15 08:00 UTC
    body = document(root, "--since", "2027-01-15T02:01", "--until", "2027-01-15T02:02", "--zone", "America/Chicago")
    assert body["since_utc_ms"] == START_MS + 60_000
    assert body["total"]["samples"] == 6


def test_a_fleet(root):
    assert document(root, "--fleet", "f")["total"]["samples"] == 60
    assert document(root, "--fleet", "g")["total"]["samples"] == 0


def test_a_frozen_answer_is_verified_and_refused_a_second_time(root, tmp_path):
    target = tmp_path / "e.json"
    assert run(root, "--output", target)[0] == 0
    code, text = run("--verify", target)
    assert code == 0
    assert "holds: 1 file," in text
    path = next((root / "n1").iterdir())
    path.write_text(path.read_text().replace(",80,", ",81,"))
    code, text = run("--verify", target)
    assert code == 1
    assert "other content" in text
    assert json.loads(run("--verify", target, as_json=True)[1])["holds"] is False


@pytest.mark.parametrize(
    ("words", "match"),
    (
        (["--window", "5m", "--since", "1h"], "both say where to begin"),
        (["--since", "1h", "--until", "2h"], "lies before"),
        (["--since", "2027-13-01"], "is not a time"),
        (["--since", "yesterday"], "or a date or time such as 2031-05-04"),
        (["--since", ""], "'' is not a time"),
        (["--zone", "Nowhere/Land"], "no time zone"),
    ),
)
def test_what_cannot_be_meant(root, words, match):
    with pytest.raises(UsageError, match=match):
        run(root, *words)


def test_a_spool_without_telemetry_says_what_makes_some(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FLEETCRAFT_SPOOL", raising=False)
    with pytest.raises(UsageError, match="no telemetry in"):
        run()


def test_a_host_of_a_worker_without_telemetry_is_shown(root, tmp_path):
    spool = tmp_path / "s"
    life = spool / "workers" / "w1"
    life.mkdir(parents=True)
    (spool / "spool.json").write_text("{}")
    os.rename(root, spool / "telemetry")
    (life / "identity.json").write_text(json.dumps({"kind": "worker", "host": "n9", "job_id": "7"}))
    (life / "heartbeat.json").write_text(json.dumps({"capacity": {"gpus": [{}, {}]}}))
    body = document("--spool", spool)
    assert body["coverage"]["hosts"] == 3
    assert (body["coverage"]["gpus"], body["coverage"]["gpus_with_data"]) == (3, 1)
    assert document(spool)["total"]["samples"] == 60


@pytest.mark.parametrize(
    ("words", "match"),
    (
        (["--fleet", "g"], "no fleet 'g' in .*, and nothing was sampled for one"),
        (["--job", "9"], "No job '9' was sampled in"),
    ),
)
def test_a_name_that_a_spool_does_not_know_is_refused(root, tmp_path, words, match):
    spool = tmp_path / "s"
    spool.mkdir()
    (spool / "spool.json").write_text("{}")
    os.rename(root, spool / "telemetry")
    assert document("--spool", spool, "--fleet", "f", "--job", "7")["total"]["samples"] == 60
    with pytest.raises(UsageError, match=match):
        run("--spool", spool, *words, "--output", tmp_path / "e.json")
    assert not (tmp_path / "e.json").exists()


def test_a_gpu_that_did_not_answer_is_named(tmp_path):
    rows = [(at, 0, {"util_pct": 50}) for at in range(0, 600, 10)]
    write_segment(tmp_path, "n3", rows, lost=range(30, 60))
    text = run(tmp_path, "--by", "gpu")[1]
    assert "! n3/0 GPU-n3-0: lost, broken or without an answer for 0.083 GPU-hours, not counted as seen" in text
    assert document(tmp_path)["rows"][0]["coverage"] == 0.5


def test_a_time_without_samples_is_not_called_a_host_that_wrote_nothing(root):
    texts = [one["text"] for one in document(root, "--until", "2020-01-01")["problems"] if one["host"] == "n1"]
    assert texts == ["no sample was written in that time"]
