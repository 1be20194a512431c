"""Files and directories follow the workers and what is in flight, never the number of enqueues."""

from __future__ import annotations

import pytest

from fleetcraft.actions.api import SpoolActions
from fleetcraft.spool.check import check
from fleetcraft.spool.spool import Spool
from tests.support.lab import Lab
from tests.support.upkeep import count_entries, offers

ENQUEUES = 10_000
MOST_ENTRIES = 1_000
LOOK_EVERY = 250


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_ten_thousand_single_enqueues_leave_few_files(tmp_path):
    spool = SpoolActions(tmp_path / "spool")
    most = 0
    for place in range(ENQUEUES):
        spool.enqueue(["true", str(place)], name=f"t{place}")
        if place % LOOK_EVERY == 0:
            most = max(most, count_entries(spool.path))

    most = max(most, count_entries(spool.path))
    assert most < MOST_ENTRIES, f"{most} files and directories at the most"
    found = offers(spool.path)
    assert len(found) == ENQUEUES
    assert set(found.values()) == {1}
    fresh = Spool.open(spool.path)
    fresh.refresh()
    assert fresh.total() == ENQUEUES
    for place in (0, 4_321, ENQUEUES - 1):
        task = fresh.find(f"t{place}")
        assert task is not None
        description = fresh.task(task)
        assert description is not None
        assert description["command"] == ["true", str(place)]
    assert check(None, fresh).problems == []


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_ten_thousand_single_enqueues_while_a_worker_drains_leave_few_files(lab: Lab):
    worker = lab.worker(idle_exit_s=600.0)
    most = 0
    for place in range(ENQUEUES):
        lab.enqueue([{"name": f"t{place}", "command": ["/bin/true", str(place)]}])
        if place % LOOK_EVERY == 0:
            most = max(most, count_entries(str(lab.root)))
            assert worker.alive, worker.said()

    most = max(most, count_entries(str(lab.root)))
    lab.drain(deadline_s=300.0)
    most = max(most, count_entries(str(lab.root)))
    assert most < MOST_ENTRIES, f"{most} files and directories at the most"
    assert lab.counts() == {"succeeded": ENQUEUES}
    report = check(None, Spool.open(str(lab.root)))
    assert report.problems == []
    assert report.unfinished == 0
