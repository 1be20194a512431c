from __future__ import annotations

import os

import pytest

from fleetcraft.fleet.guards.providers import SSHARE, ProviderSpec, ask
from fleetcraft.testing.clock import ManualClock
from fleetcraft.transports.api import Answer

CLOCK = ManualClock(utc_s=1000.0)


class Host:
    """Answers with what it was given, and keeps what it was asked."""

    name = "test"

    def __init__(self, out="", err="", code=0, problem=""):
        self.answer = (out, err, code, problem)
        self.asked = []

    def run(self, argv, **settings):
        self.asked.append((tuple(argv), settings))
        out, err, code, problem = self.answer
        return Answer(argv=tuple(argv), code=code, out=out, err=err, took_s=0.1, problem=problem)


def test_a_command_is_run_with_its_time_limit_and_read():
    host = Host("12.5\n")
    told = ask(ProviderSpec(kind="command", command=("my-balance", "-x"), timeout_s=7.0, unit="GPUh"), host, CLOCK)
    assert (told.total, told.unit, told.at_utc, told.problem) == (12.5, "GPUh", 1000.0, "")
    argv, settings = host.asked[0]
    assert argv == ("my-balance", "-x")
    assert settings["timeout_s"] == 7.0


@pytest.mark.parametrize(
    ("host", "word"),
    (
        (Host("12", code=None, problem="timed out after 7 s"), "timed out"),
        (Host("12", err="no such project\n", code=1), "ended with 1: no such project"),
        (Host("Your balance is fine"), "neither a number nor JSON"),
        (Host(""), "neither a number nor JSON"),
    ),
)
def test_a_failure_is_a_balance_without_a_number_and_with_the_reason(host, word):
    told = ask(ProviderSpec(kind="command", command=("my-balance",)), host, CLOCK)
    assert told.total is None
    assert word in told.problem


def test_sshare_needs_no_command_and_asks_for_the_account():
    host = Host("Account|User|GrpTRESMins|GrpTRESRaw|TRESRunMins\nlab||billing=600|billing=60|billing=0\n")
    told = ask(ProviderSpec(kind="sshare", account="lab"), host, CLOCK)
    assert (told.total, told.includes_running) == (9.0, True)
    assert host.asked[0][0] == (*SSHARE, "-A", "lab")


def test_other_tools_need_their_command():
    assert "names no command" in ask(ProviderSpec(kind="tacc"), Host("12"), CLOCK).problem


def test_a_file_is_read_and_one_that_is_too_old_is_no_answer(tmp_path):
    path = tmp_path / "balance"
    path.write_text("77\n")
    os.utime(path, (900.0, 900.0))
    spec = ProviderSpec(kind="file", path=str(path), max_age_s=100.0)
    told = ask(spec, Host(), CLOCK)
    assert (told.total, told.at_utc) == (77.0, 900.0)
    os.utime(path, (899.0, 899.0))
    assert "101 s old" in ask(spec, Host(), CLOCK).problem
    path.unlink()
    assert "No such file" in ask(spec, Host(), CLOCK).problem
