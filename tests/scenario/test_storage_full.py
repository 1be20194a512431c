"""A full disk is a state: nothing is started, nothing is lost, nothing old changes, and it ends with the space."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.support.lab import Lab
from tests.support.mounts import fill_bytes, fill_inodes, small_disk
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.needs_root, pytest.mark.needs_command("mount", "umount")]

UNTIL_GO = ["sh", "-c", 'while [ ! -e "$0" ]; do sleep 0.02; done']


def contents(root: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


def test_a_worker_on_a_full_disk_waits_and_goes_on_when_there_is_space(tmp_path: Path):
    go = tmp_path / "go"
    with small_disk(tmp_path / "disk", "size=4m") as disk, Lab(tmp_path, disk / "spool") as lab:
        lab.enqueue(
            [
                {"name": f"t{number}", "command": [*UNTIL_GO, str(go)] if number == 30 else ["true"]}
                for number in range(300)
            ]
        )
        worker = lab.worker(cpus=1, idle_exit_s=20.0)
        lab.wait_running("t30")
        fill_bytes(disk / "filler")
        before = contents(lab.root)
        go.touch()
        wait_for(lambda: "storage is full" in worker.said(), "the worker notices", seen=worker.said)
        _nothing_old_changes(lab, before)
        assert worker.alive
        (disk / "filler").unlink()
        lab.wait_until_ended(300)
        assert lab.counts() == {"succeeded": 300}
        assert lab.fold().events == {}, "every task ran once"
        worker.send(signal.SIGTERM)
        assert worker.wait() == 0, worker.said()
        assert lab.tokens() == []


def _nothing_old_changes(lab: Lab, before: dict[str, bytes]) -> None:
    """Journals may have grown by what still fitted; nothing that was written is another now, and nothing is gone."""
    after = contents(lab.root)
    for path, content in before.items():
        if os.path.basename(path) in {"heartbeat.json", "summary.json"} or "/tokens/" in path:
            continue
        assert after[path][: len(content)] == content, f"{path} changed"


def test_output_of_a_task_that_fills_the_disk_costs_only_that_task(tmp_path: Path):
    with small_disk(tmp_path / "disk", "size=4m") as disk, Lab(tmp_path, disk / "spool") as lab:
        lab.enqueue([{"name": "noisy", "command": ["sh", "-c", "cat /dev/zero | head -c 64M"]}])
        lab.enqueue([{"name": f"t{number}", "command": ["true"]} for number in range(20)], priority=100)
        worker = lab.worker(cpus=1, idle_exit_s=3.0)
        wait_for(lambda: "storage is full" in worker.said() or not worker.alive, "the disk is full", seen=worker.said)
        logs = list(lab.root.rglob("output-*.log"))
        assert sum(path.stat().st_size for path in logs) > 2 << 20
        for path in logs:
            os.truncate(path, 0)
        lab.wait_until_ended(21)
        assert lab.counts()["succeeded"] >= 20
        assert worker.wait() == 0, worker.said()


def test_a_disk_without_inodes_holds_new_work_up_and_changes_nothing_old(tmp_path: Path):
    with small_disk(tmp_path / "disk", "size=16m,nr_inodes=200") as disk, Lab(tmp_path, disk / "spool") as lab:
        lab.enqueue([{"name": f"t{number}", "command": ["sleep", "0.01"]} for number in range(400)])
        worker = lab.worker(cpus=2, idle_exit_s=20.0)
        lab.wait_until_ended(20)
        fill_inodes(disk / "fillers")
        before = contents(lab.root)
        ended = sum(lab.counts().values())
        wait_for(lambda: "storage is full" in worker.said(), "the worker notices", seen=worker.said)
        _nothing_old_changes(lab, before)
        for path in (disk / "fillers").iterdir():
            path.unlink()
        lab.wait_until_ended(400)
        assert lab.counts() == {"succeeded": 400}
        assert ended < 400
        worker.send(signal.SIGTERM)
        assert worker.wait() == 0, worker.said()
        assert lab.tokens() == []


def test_a_worker_cannot_begin_on_a_full_disk_and_says_so(tmp_path: Path):
    with small_disk(tmp_path / "disk", "size=1m,nr_inodes=40") as disk, Lab(tmp_path, disk / "spool") as lab:
        lab.enqueue([{"name": "one", "command": ["true"]}])
        fill_inodes(disk / "fillers")
        worker = lab.worker()
        assert worker.wait() == 75
        assert "No space left" in worker.said()
        assert lab.lives() == []


def test_a_full_disk_that_stays_full_ends_an_idle_worker_with_75(tmp_path: Path):
    with small_disk(tmp_path / "disk", "size=2m,nr_inodes=200") as disk, Lab(tmp_path, disk / "spool") as lab:
        lab.enqueue([{"name": f"t{number}", "command": ["sleep", "0.01"]} for number in range(400)])
        worker = lab.worker(cpus=1)
        lab.wait_until_ended(20)
        # With no inodes either, a heartbeat is not even begun, and so frees no page that the end could be written to.
        (disk / "filler").touch()
        fill_inodes(disk / "fillers")
        fill_bytes(disk / "filler")
        wait_for(lambda: "storage is full" in worker.said(), "the worker notices", seen=worker.said)
        worker.send(signal.SIGTERM)

        def ended_on_a_full_disk():
            fill_bytes(disk / "filler")
            return not worker.alive

        wait_for(ended_on_a_full_disk, "the worker gives up", seen=worker.said)
        assert worker.wait() == 75, worker.said()
        (disk / "filler").unlink()
        for path in (disk / "fillers").iterdir():
            path.unlink()
        lab.drain()
        assert lab.counts() == {"succeeded": 400}
        assert lab.tokens() == []
