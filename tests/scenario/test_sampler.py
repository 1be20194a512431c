"""Real samplers beside real workers: they end together, and neither takes the other along when it fails."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from fleetcraft.actions.bundle import write_bundle
from fleetcraft.cli.main import main
from fleetcraft.spool import host
from fleetcraft.telemetry.segment_read import Piece, Reader
from tests.support.lab import Lab, Process
from tests.support.mock_nvml import build
from tests.support.waiting import wait_for

_SLEEP = {"name": "long", "command": ["sleep", "300"]}
_WITH: dict[str, Any] = {"gpus": "simulated:2", "telemetry_s": 1.0, "heartbeat_s": 0.2}


def _folder(lab: Lab) -> Path:
    return lab.root / "telemetry" / host.host_name()


def _segments(lab: Lab) -> list[tuple[Reader, Piece]]:
    """Every segment of this host as it stands."""
    if not _folder(lab).is_dir():
        return []
    names = sorted(one for one in os.listdir(_folder(lab)) if one.endswith("-none.csv"))
    readers = [Reader(str(_folder(lab) / name)) for name in names]
    return [(reader, reader.read()) for reader in readers]


def _has_rows(lab: Lab, segments: int = 1, rows: int = 2) -> bool:
    found = _segments(lab)
    return len(found) >= segments and len(found[segments - 1][1].rows) >= rows


def _telemetry(lab: Lab) -> dict[str, Any]:
    """What the newest heartbeat says of the sampler."""
    beats = [
        json.loads(path.read_text()) for path in sorted((lab.root / "workers").glob("*/heartbeat.json"))
    ]  # fmt: skip
    return next((beat["telemetry"] for beat in reversed(beats) if beat.get("telemetry")), {})


def _pid(lab: Lab) -> int | None:
    return _telemetry(lab).get("pid")


def _lives(pid: int) -> bool:
    seen = host.process(pid)
    return seen is not None and not seen.is_gone


def _sampler(lab: Lab, **told: Any) -> Process:
    options = {"root": str(lab.root / "telemetry"), "interval_s": 1.0, "gpus": "simulated:2", **told}
    return lab.start([sys.executable, "-m", "fleetcraft.telemetry.sampler", json.dumps(options)])


def test_it_measures_while_the_worker_lives_and_ends_before_it(lab: Lab):
    lab.enqueue([{"name": "short", "command": ["sleep", "3"]}])
    worker = lab.worker(**_WITH)
    pid = wait_for(lambda: _pid(lab), "a sampler is there", seen=worker.said)
    wait_for(lambda: _has_rows(lab), "samples are there")
    assert worker.wait() == 0, worker.said()
    assert not _lives(pid)
    ((reader, piece),) = _segments(lab)
    assert reader.header is not None
    assert (reader.header.spool, reader.header.life) == ("spool", next((lab.root / "workers").iterdir()).name)
    assert {row[4] for row in piece.rows} == {"0", "1"}
    assert [told.kind for told in piece.statements][-1] == "end"
    assert piece.malformed == 0


def test_a_worker_that_is_killed_takes_its_sampler_along(lab: Lab):
    lab.enqueue([_SLEEP])
    worker = lab.worker(**_WITH)
    pid = wait_for(lambda: _pid(lab), "a sampler is there", seen=worker.said)
    wait_for(lambda: _has_rows(lab), "samples are there")
    worker.kill()
    wait_for(lambda: not _lives(pid), "the sampler has ended", deadline_s=10)
    ((_, piece),) = _segments(lab)
    assert piece.statements[-1].body["why"] == "its parent ended"


def test_a_sampler_that_is_killed_is_started_again_and_goes_on_in_a_new_segment(lab: Lab):
    lab.enqueue([_SLEEP])
    worker = lab.worker(**_WITH)
    pid = wait_for(lambda: _pid(lab), "a sampler is there", seen=worker.said)
    wait_for(lambda: _has_rows(lab), "samples are there")
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: _has_rows(lab, segments=2), "a new segment grows", seen=lambda: (worker.said(), _telemetry(lab)))
    told = wait_for(lambda: _telemetry(lab) if _telemetry(lab).get("starts") == 2 else None, "the heartbeat says so")
    assert told["state"] == "on"
    assert told["pid"] != pid
    assert "was ended by signal 9" in worker.said()
    (_, first), (second, _) = _segments(lab)
    assert first.malformed == 0
    assert len(first.rows) % 2 == 0
    assert second.header is not None
    assert len(second.header.slots) == 2
    worker.send(signal.SIGTERM)
    assert worker.wait() == 0, worker.said()


def test_a_sampler_that_stands_still_does_not_hold_the_worker(lab: Lab):
    lab.enqueue([{"name": "short", "command": ["sleep", "2.5"]}])
    worker = lab.worker(**_WITH)
    pid = wait_for(lambda: _pid(lab), "a sampler is there", seen=worker.said)
    os.kill(pid, signal.SIGSTOP)
    assert worker.wait(30) == 0, worker.said()
    assert not _lives(pid)


@pytest.mark.parametrize("options", ({"gpus": "none"}, {"gpus": "simulated:2", "telemetry_s": None}))
def test_none_is_started_where_there_is_nothing_to_measure(lab: Lab, options: dict[str, Any]):
    lab.enqueue([{"name": "short", "command": ["sleep", "1.6"]}])
    worker = lab.worker(**options)
    assert worker.wait() == 0, worker.said()
    assert not (lab.root / "telemetry").exists()
    assert _telemetry(lab) == ({} if options["gpus"] == "none" else {"state": "off", "interval_s": None})


def test_of_two_samplers_one_writes_and_the_other_says_who(lab: Lab):
    first = _sampler(lab, job="", life="worker-1")
    wait_for(lambda: _has_rows(lab), "samples are there", seen=first.said)
    second = _sampler(lab)
    assert second.wait() == 75
    assert f"pid {first.pid}" in second.said()
    assert "worker-1" in second.said()
    assert "sampler.lock" in second.said()
    waiting = _sampler(lab, wait=True)
    wait_for(lambda: f"pid {first.pid}" in waiting.said(), "it says whom it waits for", seen=waiting.said)
    assert len(_segments(lab)) == 1
    first.kill()
    wait_for(lambda: _has_rows(lab, segments=2), "the other one writes", seen=waiting.said)
    waiting.send(signal.SIGTERM)
    assert waiting.wait() == 0
    assert _segments(lab)[1][1].statements[-1].body["why"] == "signal SIGTERM"


def test_killed_at_any_moment_it_leaves_segments_that_can_be_read(lab: Lab):
    for segments in (1, 2, 3):
        sampler = _sampler(lab)
        wait_for(partial(_has_rows, lab, segments=segments), "samples are there", seen=sampler.said)
        sampler.kill()
    found = _segments(lab)
    assert [piece.malformed for _, piece in found] == [0, 0, 0]
    assert all(reader.header is not None for reader, _ in found)


def test_the_signal_for_a_whole_process_tree_does_not_end_it_before_its_worker(lab: Lab):
    lab.enqueue([_SLEEP])
    worker = lab.worker(**_WITH)
    pid = wait_for(lambda: _pid(lab), "a sampler is there", seen=worker.said)
    wait_for(lambda: _has_rows(lab), "samples are there")
    for number in (signal.SIGUSR1, signal.SIGTERM):
        os.kill(pid, number)
    rows = len(_segments(lab)[0][1].rows)
    wait_for(lambda: _has_rows(lab, rows=rows + 2), "it goes on", seen=worker.said)
    assert _pid(lab) == pid
    worker.send(signal.SIGTERM)
    assert worker.wait() == 0, worker.said()
    assert not _lives(pid)


def test_the_spool_and_its_care_leave_telemetry_alone(lab: Lab, capsys: pytest.CaptureFixture[str]):
    lab.enqueue([{"name": "short", "command": ["sleep", "2.5"]}])
    worker = lab.worker(**_WITH)
    assert worker.wait() == 0, worker.said()
    before = {path.name: path.read_bytes() for path in _folder(lab).iterdir()}
    assert len(before) == 4
    for words in (["spool", "check"], ["spool", "compact", "--grace", "0s"], ["spool", "reap"], ["spool", "check"]):
        assert main([*words, "--spool", str(lab.root)]) == 0
        assert "telemetry" not in capsys.readouterr().out
    assert {path.name: path.read_bytes() for path in _folder(lab).iterdir()} == before


def test_it_comes_with_the_bundle(lab: Lab, tmp_path: Path):
    bundle = str(tmp_path / "fleetcraft.pyz")
    write_bundle(bundle)
    lab.enqueue([{"name": "short", "command": ["sleep", "3"]}])
    words = [
        "worker",
        "run",
        "--spool",
        str(lab.root),
        "--gpus",
        "simulated:1",
        "--telemetry",
        "1s",
        "--idle-exit",
        "0s",
    ]
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    worker = lab.start([sys.executable, "-I", "-S", bundle, *words], env=env)
    assert worker.wait() == 0, worker.said()
    ((_, piece),) = _segments(lab)
    assert len(piece.rows) >= 1
    assert piece.statements[-1].body["why"] == "its parent ended"


def _states(lab: Lab, gpu: str) -> list[str]:
    return [row[5] for _, piece in _segments(lab) for row in piece.rows if row[4] == gpu]


@pytest.mark.needs_command("gcc")
def test_a_device_that_hangs_is_rows_of_that_state_and_the_others_go_on(lab: Lab, tmp_path: Path):
    pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed")
    released = tmp_path / "released"
    played = {
        "LD_LIBRARY_PATH": str(build()), "FLEETCRAFT_NVML": "1", "MOCK_GPUS": "2", "MOCK_UTIL": "0:37,1:63",
        "MOCK_BLOCK": "1:GetUtilizationRates", "MOCK_RELEASE": str(released),
    }  # fmt: skip
    told = {"root": str(lab.root / "telemetry"), "interval_s": 1.0, "deadline_s": 0.5}
    sampler = lab.start(
        [sys.executable, "-m", "fleetcraft.telemetry.sampler", json.dumps(told)], env={**os.environ, **played}
    )
    wait_for(lambda: _states(lab, "1").count("hung") >= 2, "it hangs", seen=lambda: (sampler.said(), _segments(lab)))
    assert set(_states(lab, "0")) == {"ok"}
    released.touch()
    wait_for(lambda: _states(lab, "1")[-1] == "ok", "it answers again", seen=lambda: _segments(lab))
    sampler.send(signal.SIGTERM)
    assert sampler.wait(20) == 0
    ((reader, piece),) = _segments(lab)
    assert [told.kind for told in piece.statements if told.kind in ("hung", "resumed")] == ["hung", "resumed"]
    at = reader.columns.index("util_pct")
    assert {row[at] for row in piece.rows if row[4] == "0"} == {"37"}
    assert {row[at] for row in piece.rows if row[4] == "1"} == {"", "63"}


@pytest.mark.needs_command("gcc")
def test_a_device_that_hangs_for_ever_does_not_hold_a_sampler_that_is_to_end(lab: Lab, tmp_path: Path):
    pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed")
    played = {
        "LD_LIBRARY_PATH": str(build()), "FLEETCRAFT_NVML": "1", "MOCK_GPUS": "1",
        "MOCK_BLOCK": "0:GetUtilizationRates", "MOCK_RELEASE": str(tmp_path / "never"),
    }  # fmt: skip
    told = {"root": str(lab.root / "telemetry"), "interval_s": 1.0, "deadline_s": 0.5}
    sampler = lab.start(
        [sys.executable, "-m", "fleetcraft.telemetry.sampler", json.dumps(told)], env={**os.environ, **played}
    )
    wait_for(lambda: "hung" in _states(lab, "0"), "it hangs", seen=lambda: (sampler.said(), _segments(lab)))
    sampler.send(signal.SIGTERM)
    assert sampler.wait(10) == 0


def test_it_ends_at_once_and_not_at_its_next_tick(lab: Lab):
    sampler = _sampler(lab, interval_s=60.0)
    wait_for(lambda: _has_rows(lab), "samples are there", seen=sampler.said)
    began_s = time.monotonic()
    sampler.send(signal.SIGTERM)
    assert sampler.wait() == 0
    assert time.monotonic() - began_s < 20
