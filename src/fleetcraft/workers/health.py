"""Is this node fit to work? A short look before the first claim; `black_hole` keeps an eye on it afterwards."""

from __future__ import annotations

import os
from typing import Any

from fleetcraft.core.decision import Decision
from fleetcraft.spool.spool import Spool
from fleetcraft.telemetry.api import Sensor

MIN_FREE_BYTES = 16 * 1024**2
MIN_FREE_INODES = 64


def check_health(spool: Spool, sensor: Sensor) -> Decision:
    """Decide whether this node may claim: the disk of the spool, and the GPUs that were promised."""
    facts: dict[str, Any] = {"gpus": len(sensor.devices()), "sensor": sensor.name}
    if sensor.reason:
        facts["sensor_reason"] = sensor.reason
        if sensor.reason.startswith("hung"):
            return Decision.refuse(f"the GPU driver does not answer ({sensor.reason})", **facts)
    try:
        disk = os.statvfs(spool.layout.root)
    except OSError as error:
        return Decision.refuse(f"the spool's file system does not answer: {os.strerror(error.errno or 0)}", **facts)
    # Some file systems count no inodes and say zero; free space alone is no proof of success, only of trouble.
    facts.update(free_bytes=disk.f_bavail * disk.f_frsize, free_inodes=disk.f_favail if disk.f_files else None)
    return Decision.allow("the node looks fit", **facts)
