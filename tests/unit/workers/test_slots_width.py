"""How many tasks of one request a worker can run at once: what a claim is measured by."""

from __future__ import annotations

import pytest

from fleetcraft.core.resources import Request
from fleetcraft.telemetry.api import Device
from fleetcraft.workers.slots import Capacity

_GIB = 1024**3


@pytest.mark.parametrize(
    ("request_", "gpus", "width"),
    (
        (Request(), 0, 8),
        (Request(cpus=3), 0, 2),
        (Request(gpus=1), 2, 2),
        (Request(gpus=4), 4, 1),
        (Request(gpus=0.25), 1, 4),
        (Request(gpus=0.25), 4, 8),
        (Request(gpus=0.3), 1, 3),
        (Request(gpus=1, cpus=8), 4, 1),
        (Request(gpus=0.25, vram_bytes=40 * _GIB), 2, 4),
        (Request(gpus=1, node=True), 4, 1),
        (Request(timed=True), 0, 1),
        (Request(gpus=4), 2, 1),
    ),
)
def test_the_scarcest_resource_decides(request_: Request, gpus: int, width: int):
    devices = [Device(uuid=f"G{n}", index=n, name="g", memory_bytes=80 * _GIB) for n in range(gpus)]
    assert Capacity(8, devices).width(request_) == width
