"""`gpu import` as it is typed."""

from __future__ import annotations

import json

from fleetcraft.cli.main import main
from tests.support.telemetry_files import plain_log

ROWS = [(30 * at, 600, 10, 100) for at in range(4)]


def test_it_says_what_was_taken_in_and_what_is_not_known(tmp_path, capsys):
    plain_log(tmp_path / "logs" / "n1.csv", ROWS)
    plain_log(tmp_path / "logs" / "n2.csv", ROWS[:1])
    command = ["gpu", "import", str(tmp_path / "logs"), "--to", str(tmp_path / "root")]
    assert main(command) == 0
    out = capsys.readouterr().out
    assert "imported 5 rows of 2 logs" in out
    assert "2 logs without a time zone" in out
    assert "2 logs without a name of a GPU" in out
    assert "1 log too short" in out
    assert main([*command, "--json"]) == 0
    body = json.loads(capsys.readouterr().out)
    assert [one["state"] for one in body["logs"]] == ["already imported"] * 2


def test_a_zone_that_is_none_and_a_missing_place_are_refused(tmp_path, capsys, monkeypatch):
    monkeypatch.delenv("FLEETCRAFT_SPOOL", raising=False)
    log = plain_log(tmp_path / "n1.csv", ROWS)
    assert main(["gpu", "import", str(log), "--to", str(tmp_path / "root"), "--zone", "Nowhere/At_All"]) == 2
    assert "Nowhere/At_All" in capsys.readouterr().err


def test_a_file_that_is_no_log_ends_with_one(tmp_path, capsys):
    (tmp_path / "x.csv").write_text("a,b\n1,2\n")
    assert main(["gpu", "import", str(tmp_path / "x.csv"), "--to", str(tmp_path / "root")]) == 1
    assert "not a log" in capsys.readouterr().out
