"""When work waited: steps from enqueue, starts, returns and cancels, by the shape that could have run it."""

from __future__ import annotations

import pytest

from fleetcraft.actions.requests import cancel
from fleetcraft.actions.selection import Selection
from fleetcraft.core.resources import Request
from fleetcraft.readmodel.gpu_attempts import ms, read_journals
from fleetcraft.readmodel.gpu_waiting import FOREVER_MS, Queue, Shape, read_queue
from fleetcraft.spool.life import Life
from fleetcraft.spool.reading import SpoolFold
from tests.unit.readmodel.building import make_spool, publish, receipt

ONE_GPU = Request(gpus=1.0)
SHAPE = Shape(4, 8, 80 << 30)


@pytest.fixture
def spool(tmp_path):
    return make_spool(tmp_path)


def queue_of(spool) -> Queue:
    reader = SpoolFold(spool)
    reader.refresh()
    return read_queue(spool, reader, read_journals(spool, reader, 10_000_000))


def created_ms(spool, batch: int) -> int:
    return ms(spool.batch(batch).header["created_utc"])


def started(life: Life, batch: int, index: int, at: float, *, attempt: int = 1, slot: int = 0) -> None:
    life.record({"t": "started", "b": batch, "i": index, "g": 0, "a": attempt, "s": slot, "at": at})


def test_a_batch_waits_from_its_enqueue_until_its_last_task_started(spool):
    batch = publish(spool, ["a", "b"], request=ONE_GPU)
    begun_s = created_ms(spool, batch) / 1000
    life = Life.begin(spool)
    started(life, batch, 0, begun_s + 5)
    started(life, batch, 1, begun_s + 9, slot=1)
    waited = queue_of(spool).waited(SHAPE, on_gpu=True)
    assert [end - start for start, end in waited] == [9000]
    assert waited[0][0] == created_ms(spool, batch)


def test_what_never_started_waits_on(spool):
    batch = publish(spool, ["a"], request=ONE_GPU)
    assert queue_of(spool).waited(SHAPE, on_gpu=True) == [(created_ms(spool, batch), FOREVER_MS)]


@pytest.mark.parametrize(
    ("request_", "shape", "on_gpu", "fits"),
    (
        (ONE_GPU, SHAPE, True, True),
        (ONE_GPU, Shape(0, 8), True, False),
        (Request(gpus=8.0), SHAPE, True, False),
        (Request(cpus=2), SHAPE, True, False),
        (Request(cpus=2), Shape(0, 8), False, True),
        (Request(cpus=16), Shape(0, 8), False, False),
        (Request(gpus=1.0, vram_bytes=90 << 30), SHAPE, True, False),
        (Request(node=True, cpus=64), SHAPE, True, True),
    ),
)
def test_only_compatible_work_counts(request_, shape, on_gpu, fits):
    assert shape.takes(request_, on_gpu=on_gpu) is fits


def test_a_retry_waits_again_after_its_backoff(spool):
    batch = publish(spool, ["a"], request=ONE_GPU)
    begun_s = created_ms(spool, batch) / 1000
    life = Life.begin(spool)
    started(life, batch, 0, begun_s + 1)
    receipt(life, batch, 0, "failed", final="", at=begun_s + 1, end=begun_s + 2, retry_in_s=3.0)
    started(life, batch, 0, begun_s + 7, attempt=2)
    receipt(life, batch, 0, "failed", attempt=2, at=begun_s + 7, end=begun_s + 8)
    begin_ms = created_ms(spool, batch)
    parts = [(start - begin_ms, end - begin_ms) for start, end in queue_of(spool).waited(SHAPE, on_gpu=True)]
    assert parts == [(0, 1000), (5000, 7000)]


def test_a_cancelled_task_waits_until_the_cancel(spool):
    batch = publish(spool, ["a", "b"], request=ONE_GPU)
    cancel(spool, Selection(names=("a", "b")))
    ((start, end),) = queue_of(spool).waited(SHAPE, on_gpu=True)
    assert start == created_ms(spool, batch)
    assert start <= end < FOREVER_MS


def test_a_held_batch_is_not_known_to_wait(spool):
    publish(spool, ["a"], request=ONE_GPU, after={"a": ["other"]})
    assert queue_of(spool).waited(SHAPE, on_gpu=True) == []
