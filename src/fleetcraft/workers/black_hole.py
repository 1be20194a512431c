"""Is this node a black hole: do tasks fail here alike that succeed elsewhere? Settled by a probe, not by a guess.

After a streak of failures here beside successes elsewhere the worker stops claiming and offers one of the failed
tasks again. When another worker makes it succeed, the node is to blame: its failures are taken back and it leaves.
When it fails there too, the tasks are to blame, and the worker goes on.
"""

from __future__ import annotations

import os
from collections import deque
from dataclasses import dataclass, field
from enum import Enum

from fleetcraft.core.outcome import Fold
from fleetcraft.core.states import Outcome, TaskState
from fleetcraft.spool.life import HEARTBEAT, read_json
from fleetcraft.spool.spool import Spool
from fleetcraft.workers.attempt import Concluded

# So many different tasks in a row must fail here, and so many succeed elsewhere meanwhile, before a probe is made.
STREAK = 5
ELSEWHERE = 5
PROBE_LIMIT_S = 10.0
_KEPT = 256


class Finding(Enum):
    """What a probe has shown."""

    OPEN = "open"
    NODE = "node"  # it succeeded elsewhere
    TASKS = "tasks"  # it failed elsewhere too, or nobody took it in time


@dataclass(slots=True)
class BlackHole:
    """Counts failures in a row, and keeps the probe."""

    spool: Spool
    life: str
    streak: deque[Concluded] = field(default_factory=lambda: deque(maxlen=_KEPT))
    needed: int = STREAK
    probe: Concluded | None = None
    found: bool = False
    _since_s: float = 0.0
    _elsewhere_at_start: dict[str, int] = field(default_factory=dict)

    def note_success(self) -> None:
        """Some task succeeded here."""
        if not self.found:
            self.streak.clear()

    def observe(self, concluded: Concluded) -> None:
        """Take one ended attempt."""
        outcome = concluded.ruling.outcome
        if outcome is Outcome.SUCCEEDED:
            self.note_success()
        elif outcome is Outcome.FAILED:
            if not self.streak:
                self._elsewhere_at_start = self._successes_elsewhere()
            self.streak.append(concluded)

    def suspects(self) -> bool:
        """True when a probe is due."""
        if self.probe is not None or len(self.streak) < self.needed or self.found:
            return False
        if len({entry.id for entry in self.streak}) < self.needed:
            return False
        now = self._successes_elsewhere()
        return sum(count - self._elsewhere_at_start.get(life, 0) for life, count in now.items()) >= ELSEWHERE

    def begin(self, now_s: float) -> Concluded:
        """Choose the probe: the earliest of the streak; it is not ours any more."""
        self.probe, self._since_s = self.streak.popleft(), now_s
        return self.probe

    def look(self, fold: Fold, now_s: float) -> Finding:
        """What the probe has shown by now; `TASKS` clears the suspicion and makes the next one harder."""
        if self.probe is None:
            return Finding.TASKS
        state = fold.verdict(self.probe.id.batch, self.probe.id.index).state
        if state is TaskState.SUCCEEDED:
            self.probe, self.found = None, True
            return Finding.NODE
        if state is None and now_s - self._since_s < PROBE_LIMIT_S:
            return Finding.OPEN
        self.probe = None
        self.needed *= 2
        self.streak.clear()
        return Finding.TASKS

    def _successes_elsewhere(self) -> dict[str, int]:
        counts: dict[str, int] = {}
        for life in self.spool.lives():
            if life == self.life:
                continue
            beat = read_json(self.spool.files, os.path.join(self.spool.layout.life(life), HEARTBEAT))
            if beat is not None:
                counts[life] = int(beat.get("counts", {}).get(Outcome.SUCCEEDED.value, 0))
        return counts
