"""What stands between a step and the worker on each node, run by a real bash."""

from __future__ import annotations

import subprocess

import pytest

from fleetcraft.fleet.names import FleetFolder
from fleetcraft.fleet.render import on_node
from tests.support.waiting import wait_for

TOKEN = "fcabc2defgh3"


@pytest.fixture
def job(tmp_path):
    folder = FleetFolder(str(tmp_path / "spool"), "study").job(TOKEN)
    (tmp_path / "spool" / "fleets" / "study" / "jobs" / TOKEN).mkdir(parents=True)
    return folder


def start(job, script, folder):
    words = on_node(["/bin/bash", "-c", script], job)
    return subprocess.Popen(words, cwd=folder, stderr=subprocess.PIPE, text=True, start_new_session=True)


def starts(folder):
    trace = folder / "starts"
    return len(trace.read_text().splitlines()) if trace.exists() else 0


def test_a_worker_that_was_killed_is_started_anew_on_its_node(job, tmp_path):
    node = start(job, 'echo x >>starts; [ "$(wc -l <starts)" -ge 3 ] || kill -9 $$; exit 7', tmp_path)
    said = node.communicate(timeout=60)[1]
    assert (node.returncode, starts(tmp_path)) == (7, 3)
    assert said.count("ended by signal 9") == 2


def test_a_worker_that_always_dies_is_given_up(job, tmp_path):
    node = start(job, "echo x >>starts; kill -9 $$", tmp_path)
    node.communicate(timeout=60)
    assert (node.returncode, starts(tmp_path)) == (137, 4)


def test_an_ordinary_end_is_an_end(job, tmp_path):
    node = start(job, "echo x >>starts; exit 75", tmp_path)
    node.communicate(timeout=60)
    assert (node.returncode, starts(tmp_path)) == (75, 1)


@pytest.mark.parametrize("by_file", (True, False))
def test_the_word_to_stop_arrives_once_and_ends_the_starting(job, tmp_path, by_file):
    script = "trap 'echo told >>told; kill -9 $$' USR1; echo x >>starts; while :; do sleep 0.02; done"
    node = start(job, script, tmp_path)
    wait_for(lambda: starts(tmp_path) == 1, "the worker starts")
    if by_file:
        with open(job.stop, "w"):
            pass
    else:
        node.terminate()
    node.communicate(timeout=60)
    assert (node.returncode, starts(tmp_path)) == (137, 1)
    assert (tmp_path / "told").read_text() == "told\n"
