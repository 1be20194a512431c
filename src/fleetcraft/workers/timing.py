"""How often a worker does what; one policy, since the periods depend on each other."""

from __future__ import annotations

from dataclasses import dataclass

# Receipts are durable at latest this long after they were written.
SYNC_EVERY_S = 0.9
REAP_EVERY_S = 5.0
REQUESTS_EVERY_S = 1.0
SHARE_EVERY_S = 1.0
HELD_EVERY_S = 2.0
EARLY_SIGNAL_S = 60.0
FLUSH_EVERY_S = 1.0
PROBE_EVERY_S = 0.5
LIST_AT_MOST_EVERY_S = 0.01
# Between the two looks that must both find nothing before a worker leaves.
SECOND_LOOK_S = 0.02
# Without a lease nobody takes a silent worker of another host for dead; still look after so long a pause.
PAUSE_LIMIT_S = 30.0
FULL_LIMIT_S = 30.0


@dataclass(slots=True)
class Timer:
    """Something done every so often."""

    every_s: float
    next_s: float = 0.0

    def due(self, now_s: float) -> bool:
        """True when it is time; the next time is then set."""
        if now_s < self.next_s:
            return False
        self.next_s = now_s + self.every_s
        return True
