"""Why nothing runs on a GPU: from the queue, in the order in which a person can do something about it."""

from __future__ import annotations

import pytest

from fleetcraft.core.resources import Request
from fleetcraft.core.states import WorkerState
from fleetcraft.readmodel.gpu_queue import LaneNow, read_queue
from fleetcraft.readmodel.picture import take_picture
from fleetcraft.usage.classify import Cause
from tests.support.gpu_pictures import GIB, queue_of, served
from tests.unit.readmodel.building import make_spool, publish

ONE = served("n1", ["a"])
LANE = LaneNow("g1", Request(gpus=1), waiting=2)


def cause(*lanes: LaneNow, worker=ONE, **more) -> Cause:
    return queue_of(*lanes, served=[worker], **more).why(worker, "a")[0]


def lane(waiting: int = 1, held: int = 0, **request) -> LaneNow:
    asked = Request(**{"gpus": 1, **request})
    return LaneNow(asked.lane, asked, waiting=waiting, held=held)


@pytest.mark.parametrize(
    ("lanes", "more", "expected"),
    (
        ([], {}, Cause.NOTHING_QUEUED),
        ([lane()], {}, Cause.WORK_WAITS),
        ([lane(gpus=0)], {}, Cause.NOTHING_QUEUED),
        ([lane()], {"stopped": True}, Cause.STOPPED),
        ([lane(gpus=2)], {}, Cause.LANE_WITHOUT_WORKERS),
        ([lane(vram_bytes=81 * GIB)], {}, Cause.LANE_WITHOUT_WORKERS),
        ([lane(cpus=9)], {}, Cause.LANE_WITHOUT_WORKERS),
        ([lane(uses=(("io", 1),))], {"short": frozenset({"io"})}, Cause.PERMITS),
        ([lane(uses=(("io", 3),))], {"limits": {"io": 2}}, Cause.PERMITS),
        ([lane(waiting=0, held=4)], {}, Cause.UPSTREAM),
        ([lane(waiting=0, held=4)], {"blocked": 4}, Cause.BLOCKED),
        ([lane(gpus=2), lane()], {}, Cause.WORK_WAITS),
    ),
)
def test_the_cause_is_that_of_the_queue(lanes, more, expected):
    assert cause(*lanes, **more) is expected


def test_needs_that_another_worker_could_meet_are_unmet_only_here():
    small, large = served("n1", ["a"]), served("n2", ["b", "c"])
    queue = queue_of(lane(gpus=2), served=[small, large])
    assert queue.why(small, "a")[0] is Cause.NEEDS_UNMET
    assert queue.why(large, "b")[0] is Cause.WORK_WAITS


def test_what_needs_more_than_is_free_waits_for_the_node():
    gpus = served("n1", ["a", "b"])
    gpus.beat["capacity"]["gpus"][1]["used"] = 1.0
    assert queue_of(lane(gpus=2), served=[gpus]).why(gpus, "a")[0] is Cause.NODE_BUSY
    running = served("n1", ["a"], running=[{"task": "1.0"}])
    assert cause(lane(timed=True), worker=running) is Cause.NODE_BUSY


@pytest.mark.parametrize(
    ("worker", "expected"),
    (
        (served("n1", ["a"], state=WorkerState.DRAINING), Cause.DRAINING),
        (served("n1", ["a"], state=WorkerState.STORAGE_FULL), Cause.STORAGE_FULL),
        (served("n1", ["a"], state=WorkerState.STALE), Cause.NO_WORKER),
        (served("n1", ["a"], state=WorkerState.STOPPED), Cause.NO_WORKER),
        (served("n1", ["a"], used=1.0), Cause.CLAIMED),
        (served("n1", ["a"], used=1.0, residents=1), Cause.RESIDENT),
        (served("n1", ["a"], running=[{"task": "1.0", "gpus": ["a"]}]), Cause.TASK),
    ),
)
def test_the_worker_is_asked_before_the_queue(worker, expected):
    assert cause(LANE, worker=worker) is expected


def test_tasks_that_a_worker_keeps_for_later_are_told():
    assert cause(worker=served("n1", ["a"], unstarted=2)) is Cause.BACKOFF


def test_without_a_worker_there_is_no_queue():
    assert queue_of(LANE).why(None, "a")[0] is Cause.NO_WORKER


def test_the_queue_of_a_spool_is_counted_by_lane(tmp_path):
    spool = make_spool(tmp_path)
    publish(spool, ["a", "b"], request=Request(gpus=1))
    publish(spool, ["c"])
    publish(spool, ["d"], request=Request(gpus=1), after={"d": ["a"]})
    queue = read_queue(take_picture(spool), [])
    assert queue.gpu_waiting == 2
    counted = {name: (one.waiting, one.held) for name, one in queue.lanes.items()}
    assert counted == {Request(gpus=1).lane: (2, 1), Request().lane: (1, 0)}
    assert queue.as_json()["held"] == 1
