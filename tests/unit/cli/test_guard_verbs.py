"""`guard login`: by the rules of a profile, on this very machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from fleetcraft.actions import guard_login
from fleetcraft.cli.main import main
from fleetcraft.core.names import make_life_id
from fleetcraft.fleet.guards.census import processes_of
from fleetcraft.spool.host import host_name

LOOSE = "[login]\nhosts = ['*']\nstop_processes = 100000\n"
STRICT = "[login]\nhosts = ['*']\nstop_processes = 1\n"
ELSEWHERE = "[login]\nhosts = ['no-such-host']\nstop_processes = 1\n"


@pytest.fixture
def profile(tmp_path, monkeypatch):
    monkeypatch.setenv("FLEETCRAFT_CONFIG_DIR", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "clusters").mkdir()

    def write(text: str) -> None:
        (tmp_path / "clusters" / "here.toml").write_text(f"format = 1\n{text}[partitions.p]\n")

    return write


def ask(capsys, *words):
    code = main(["guard", "login", *words, "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_it_counts_this_very_process_and_says_go(profile, capsys):
    profile(LOOSE)
    code, document = ask(capsys)
    assert (code, document["schema"], document["allowed"]) == (0, "fleetcraft.guard.login/1", True)
    assert document["evidence"]["level"] == "go"
    assert document["evidence"]["processes"] >= 1
    assert (document["profile"], document["reaped"]) == ("here", None)


def test_above_the_stop_line_it_ends_with_4(profile, capsys):
    profile(STRICT)
    code = main(["guard", "login"])
    text = capsys.readouterr().out
    assert code == 4
    assert "stop at 1" in text


def test_without_any_profile_it_counts_and_says_that_no_rule_is_known(profile, capsys):
    assert main(["guard", "login"]) == 0
    assert "no profile says what is allowed here" in capsys.readouterr().out
    assert main(["guard", "login", "--profile", "nothere"]) == 2


@pytest.mark.parametrize("text", (ELSEWHERE, "", None))
def test_nothing_is_ended_where_no_profile_calls_this_a_login_node(profile, capsys, text):
    if text is not None:
        profile(text)
    assert main(["guard", "login", "--reap"]) == 4
    assert host_name() in capsys.readouterr().err


def test_reaping_ends_what_carries_our_mark_and_nothing_else(profile, capsys, monkeypatch):
    profile(LOOSE)
    program = [sys.executable, "-c", "print(flush=True); import time; time.sleep(60)"]
    clean = {key: value for key, value in os.environ.items() if not key.startswith("FLEETCRAFT_")}
    ours = subprocess.Popen(
        program, stdout=subprocess.PIPE, env=clean | {"FLEETCRAFT_LIFE": make_life_id(host_name(), 1, "ab12")}
    )
    other = subprocess.Popen(program, stdout=subprocess.PIPE, env=clean)
    try:
        for process in (ours, other):
            assert process.stdout is not None
            process.stdout.readline()
        mine = {ours.pid, other.pid}
        # Other tests run workers on this host at the same time, and they must not be ended by this one.
        monkeypatch.setattr(
            guard_login, "processes_of", lambda uid: [seen for seen in processes_of(uid) if seen.pid in mine]
        )
        code, document = ask(capsys, "--reap", "--grace", "5s")
        ended = {one["pid"]: one["outcome"] for one in document["reaped"]}
        assert code == 0
        assert ended[ours.pid] == "ended"
        assert other.pid not in ended
        assert ours.wait(10) != 0
        assert other.poll() is None
    finally:
        for process in (ours, other):
            process.kill()
            process.communicate()
