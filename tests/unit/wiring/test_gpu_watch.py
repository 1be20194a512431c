"""Watching: told once across runs, in the right places, and no job is ended before everything that must come first."""

from __future__ import annotations

import json
import os
import time

import pytest

from fleetcraft.actions import fleet_open
from fleetcraft.actions.fleet_look import look_at, read_states
from fleetcraft.cli.main import main
from fleetcraft.core.clock import SystemClock
from fleetcraft.core.errors import OutOfReach, UsageError
from fleetcraft.spool.spool import Spool
from fleetcraft.testing.scheduler_memory import MemoryScheduler
from fleetcraft.usage.thresholds import Thresholds
from fleetcraft.wiring.gpu_look import Looker, LookOptions
from fleetcraft.wiring.gpu_watch import Channels, Watch, default_state_path, parse_channels
from tests.support.gpu_pictures import BUSY, FREE, segment
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
QUICK = ["release_gap_s=0", "grace_s=60"]


class Runner:
    """A transport that only remembers."""

    def __init__(self, code=0):
        self.code, self.calls = code, []

    def run(self, argv, *, stdin=b"", timeout_s=60.0):
        self.calls.append((argv, json.loads(stdin)))
        return type("Answer", (), {"code": self.code, "problem": "", "err": "no such user"})()


@pytest.fixture
def telemetry(tmp_path):
    return tmp_path / "telemetry"


def watch(telemetry, **more) -> Watch:
    limits = Thresholds().replaced(more.pop("thresholds", []))
    looker = Looker(LookOptions(paths=[str(telemetry)], thresholds=limits, deep_s=3600.0), more.pop("spool", None))
    return Watch(looker, default_state_path(looker), **more)


def test_an_alert_is_told_once_across_runs_and_to_every_place(telemetry):
    segment(telemetry, "n1", FREE)
    runner, posted = Runner(), []

    def post(url, body, _timeout):
        posted.append((url, json.loads(body)))
        return ""

    places = {
        "channels": Channels(command=("tell", "me"), webhook="http://x.example/hook"), "runner": runner,
        "post": post,
    }  # fmt: skip
    seen = watch(telemetry, **places).step()
    assert [event.kind for event in seen.events] == ["free_idle"]
    assert seen.said == []
    assert [(call[0], call[1]["what"], call[1]["kind"]) for call in runner.calls] == [
        (["tell", "me"], "begin", "free_idle")
    ]
    assert posted[0][1] == runner.calls[0][1]
    again = watch(telemetry, **places).step()
    assert (again.events, len(runner.calls)) == ([], 1)
    assert [kind for kind, _ in again.active] == ["free_idle"]
    json.dumps(again.as_json(), allow_nan=False)


def test_a_place_that_takes_nothing_is_said_and_the_alert_is_not_repeated(telemetry):
    segment(telemetry, "n1", FREE)
    one = watch(
        telemetry, runner=Runner(3), post=lambda *_: "answered 302",
        channels=Channels(command=("mail",), webhook="https://x.example/hook"),
    )  # fmt: skip
    assert one.step().said == ["mail failed: no such user", "x.example: answered 302"]
    assert one.step().events == []


def test_the_end_is_told_once(telemetry):
    segment(telemetry, "n1", FREE)
    one = watch(telemetry, thresholds=["clear_s=0"])
    assert [event.what for event in one.step().events] == ["begin"]
    segment(telemetry, "n1", BUSY)
    assert [event.what for event in one.step().events] == ["end"]
    assert one.step().events == []


def test_two_watchers_of_one_book_do_not_look_at_once(telemetry):
    segment(telemetry, "n1", FREE)
    one = watch(telemetry)
    with one._book(), pytest.raises(OutOfReach, match="Another watcher"):
        watch(telemetry).step()


def test_a_command_that_cannot_be_split_and_an_address_that_is_none_are_refused():
    assert parse_channels("mail -s 'a b' me", None).command == ("mail", "-s", "a b", "me")
    with pytest.raises(UsageError, match="--command"):
        parse_channels("mail 'me", None)
    with pytest.raises(UsageError, match="--webhook"):
        parse_channels(None, "file:///etc/passwd")


@pytest.fixture
def fleet(tmp_path, monkeypatch, capsys):
    """A job of two GPUs on one node of a scheduler in memory."""
    folder = tmp_path / "config" / "clusters"
    folder.mkdir(parents=True)
    (folder / "here.toml").write_text(PROFILE)
    monkeypatch.setenv("FLEETCRAFT_CONFIG_DIR", str(tmp_path / "config"))
    monkeypatch.setenv("FLEETCRAFT_SPOOL", str(tmp_path / "spool"))
    monkeypatch.chdir(tmp_path)
    memory = MemoryScheduler(SystemClock(), nodes=4)
    monkeypatch.setattr(fleet_open, "open_scheduler", lambda *_, **__: memory)
    publish(make_spool(tmp_path), ["a"])
    assert main(["fleet", "submit", "study1", "--nodes", "1"]) == 0
    capsys.readouterr()
    return memory


def releasing(tmp_path, values=(FREE, FREE), *, heartbeat="", age_s=2.0, **more) -> Watch:
    spool = Spool.open(str(tmp_path / "spool"))
    node = next(iter(spool_jobs(spool)))
    segment(tmp_path / "spool" / "telemetry", node, *values, job="1", age_s=age_s, seconds=range(0, 3700, 10))
    limits = Thresholds().replaced(QUICK)
    looker = Looker(LookOptions(thresholds=limits, deep_s=3600.0, heartbeat=heartbeat), spool)
    return Watch(looker, default_state_path(looker), release=True, **more)


def spool_jobs(spool) -> list[str]:
    looked = look_at(spool, [])
    return [name for one in looked for job in one.state.jobs.values() for name in job.node_names]


def notes(tmp_path) -> list[str]:
    """What was written into the records of the fleet."""
    files = [path.read_text("latin-1") for path in sorted((tmp_path / "spool" / "fleets").rglob("*")) if path.is_file()]
    return [word for word in ("idle_warn", "idle_release") for _ in range("".join(files).count(f'"{word}"'))]


def test_a_job_is_given_back_after_two_written_warnings(tmp_path, fleet):
    ended = []

    def end(*words):
        ended.append(words)
        return []

    one = releasing(tmp_path, cancel=end)
    steps = [next(iter(one.step().rulings.values())).step.value for _ in range(2)]
    assert (steps, ended) == (["warn", "warn"], [])
    seen = one.step()
    assert [ruling.step.value for ruling in seen.rulings.values()] == ["release"]
    assert len(ended) == 1
    assert ended[0][0] == "study1"
    assert notes(tmp_path) == ["idle_warn", "idle_warn", "idle_release"]


def test_the_real_end_cancels_the_job_at_the_scheduler(tmp_path, fleet):
    one = releasing(tmp_path)
    one.step()
    one.step()
    seen = one.step()
    assert any("its work went back" in text for text in seen.said), seen.said
    job = next(iter(read_states(Spool.open(str(tmp_path / "spool")))["study1"].jobs.values()))
    assert job.cancel_utc is not None
    assert [view.state.value for view in fleet.mine().jobs.values() if not view.state.ended] == []


@pytest.mark.parametrize("values", ((FREE, BUSY), (FREE,)), ids=["one works", "one is missing"])
def test_one_gpu_that_is_not_known_to_be_free_keeps_the_job(tmp_path, fleet, values):
    one = releasing(tmp_path, values, cancel=lambda *_: pytest.fail("nothing may be ended"))
    for _ in range(4):
        assert [ruling.step.value for ruling in one.step().rulings.values()] == ["none"]
    assert notes(tmp_path) == []


def test_a_fresh_heartbeat_of_the_application_keeps_the_job(tmp_path, fleet):
    sign = tmp_path / "job-1.alive"
    sign.touch()
    one = releasing(tmp_path, heartbeat=str(tmp_path / "job-{job}.alive"), cancel=lambda *_: pytest.fail("ended"))
    rulings = one.step().rulings
    for _ in range(3):
        rulings = one.step().rulings
        assert [ruling.step.value for ruling in rulings.values()] == ["none"]
    assert "sign of life" in next(iter(rulings.values())).why
    os.utime(sign, (time.time() - 600, time.time() - 600))
    assert [ruling.step.value for ruling in one.step().rulings.values()] == ["warn"]


def test_warnings_do_not_survive_work(tmp_path, fleet):
    one = releasing(tmp_path, cancel=lambda *_: pytest.fail("ended"))
    one.step()
    one.step()
    one = releasing(tmp_path, (BUSY, FREE), cancel=lambda *_: pytest.fail("ended"))
    assert [ruling.step.value for ruling in one.step().rulings.values()] == ["none"]
    one = releasing(tmp_path, cancel=lambda *_: pytest.fail("ended"))
    assert [ruling.step.value for ruling in one.step().rulings.values()] == ["warn"]


def test_without_an_answer_of_the_scheduler_nothing_is_ended(tmp_path, fleet):
    one = releasing(tmp_path, cancel=lambda *_: pytest.fail("ended"))
    one.step()
    one.step()
    fleet.deaf = True
    fresh = releasing_again(tmp_path)
    assert fresh.step().rulings == {}


def releasing_again(tmp_path) -> Watch:
    spool = Spool.open(str(tmp_path / "spool"))
    looker = Looker(LookOptions(thresholds=Thresholds().replaced(QUICK), deep_s=3600.0), spool)
    return Watch(looker, default_state_path(looker), release=True, cancel=lambda *_: pytest.fail("ended"))


def test_nothing_is_ruled_without_release(tmp_path, fleet):
    one = releasing(tmp_path, cancel=lambda *_: pytest.fail("ended"))
    one.release = False
    for _ in range(4):
        assert one.step().rulings == {}
