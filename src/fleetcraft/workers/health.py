"""Is this node fit to work? A short look before the first claim, and an eye on failures afterwards.

A black hole is a node on which tasks fail alike, quickly and one after the other, while they succeed
elsewhere: without a guard it eats a whole spool. It stops claiming, and what failed there counts as lost.
"""

from __future__ import annotations

import os
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fleetcraft.core.decision import Decision
from fleetcraft.core.states import Outcome
from fleetcraft.spool.life import HEARTBEAT, read_json
from fleetcraft.spool.spool import Spool
from fleetcraft.telemetry.api import Sensor

if TYPE_CHECKING:
    from fleetcraft.workers.runner import Concluded

MIN_FREE_BYTES = 16 * 1024**2
MIN_FREE_INODES = 64
# So many different tasks in a row must fail here, and so many succeed elsewhere, before the node is suspected.
STREAK = 5
ELSEWHERE = 5


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


@dataclass(slots=True)
class BlackHole:
    """Counts failures in a row and compares with what other lives report."""

    spool: Spool
    life: str
    streak: deque[Concluded] = field(default_factory=lambda: deque(maxlen=64))
    _elsewhere_at_start: dict[str, int] = field(default_factory=dict)

    def observe(self, concluded: Concluded) -> Decision | None:
        """Take one ended attempt; a refusal means that this node must stop claiming."""
        outcome = concluded.ruling.outcome
        if outcome is Outcome.SUCCEEDED:
            self.streak.clear()
            return None
        if outcome is not Outcome.FAILED:
            return None
        if not self.streak:
            self._elsewhere_at_start = self._successes_elsewhere()
        self.streak.append(concluded)
        tasks = {entry.id for entry in self.streak}
        if len(tasks) < STREAK or len(self.streak) % STREAK:
            return None
        now = self._successes_elsewhere()
        gained = sum(count - self._elsewhere_at_start.get(life, 0) for life, count in now.items())
        if gained < ELSEWHERE:
            return None
        return Decision.refuse(
            f"{len(tasks)} tasks in a row failed on this node while {gained} succeeded elsewhere",
            failed=[str(task) for task in sorted(tasks)], succeeded_elsewhere=gained,
        )  # fmt: skip

    def _successes_elsewhere(self) -> dict[str, int]:
        counts: dict[str, int] = {}
        for life in self.spool.lives():
            if life == self.life:
                continue
            beat = read_json(self.spool.files, os.path.join(self.spool.layout.life(life), HEARTBEAT))
            if beat is not None:
                counts[life] = int(beat.get("counts", {}).get(Outcome.SUCCEEDED.value, 0))
        return counts
