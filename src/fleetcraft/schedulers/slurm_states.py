"""Slurm's state words: every base state and flag, short, cut, or in a list, folded into phases that we can act on.

A word that we do not know is carried as it came; it is never an end and never an error.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from fleetcraft.core.states import JobState

ACTIVE = "active"
HELD = "held"
TERMINAL = "terminal"
TERMINAL_UNLESS_REQUEUED = "terminal_unless_requeued"
MOVED = "moved"
UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class _Word:
    short: str
    phase: str
    job_state: JobState
    outcome: str | None = None


_BASE = {
    "PENDING": _Word("PD", ACTIVE, JobState.PENDING),
    "RUNNING": _Word("R", ACTIVE, JobState.RUNNING),
    "SUSPENDED": _Word("S", ACTIVE, JobState.RUNNING),  # the nodes are kept, the clock stands still
    "COMPLETED": _Word("CD", TERMINAL, JobState.DONE, "completed"),
    "CANCELLED": _Word("CA", TERMINAL, JobState.CANCELLED, "cancelled"),
    "FAILED": _Word("F", TERMINAL, JobState.FAILED, "failed"),
    "TIMEOUT": _Word("TO", TERMINAL, JobState.TIMEOUT, "timeout"),
    "NODE_FAIL": _Word("NF", TERMINAL_UNLESS_REQUEUED, JobState.LOST, "node_fail"),
    "PREEMPTED": _Word("PR", TERMINAL_UNLESS_REQUEUED, JobState.LOST, "preempted"),
    # Ended by its word; the verdict still waits for a requeue, as after the loss of a node.
    "BOOT_FAIL": _Word("BF", TERMINAL, JobState.LOST, "boot_fail"),
    # More time would not help a job that missed its deadline: not TIMEOUT.
    "DEADLINE": _Word("DL", TERMINAL, JobState.FAILED, "deadline"),
    "OUT_OF_MEMORY": _Word("OOM", TERMINAL, JobState.OUT_OF_MEMORY, "oom"),
}
# In the order in which the commands prefer them to the base state and to each other.
_FLAGS = {
    "COMPLETING": _Word("CG", ACTIVE, JobState.ENDING),
    "STAGE_OUT": _Word("SO", ACTIVE, JobState.ENDING),
    "CONFIGURING": _Word("CF", ACTIVE, JobState.RUNNING),  # it has its nodes, and they are paid for
    "EXPEDITING": _Word("", ACTIVE, JobState.PENDING),
    "RESIZING": _Word("RS", ACTIVE, JobState.RUNNING),
    "REQUEUED": _Word("RQ", ACTIVE, JobState.PENDING),
    "REQUEUE_FED": _Word("RF", ACTIVE, JobState.PENDING),
    "REQUEUE_HOLD": _Word("RH", HELD, JobState.HELD),
    "SPECIAL_EXIT": _Word("SE", HELD, JobState.HELD),
    "STOPPED": _Word("ST", ACTIVE, JobState.RUNNING),
    "REVOKED": _Word("RV", MOVED, JobState.UNKNOWN),
    "RESV_DEL_HOLD": _Word("RD", HELD, JobState.HELD),
    "SIGNALING": _Word("SI", ACTIVE, JobState.RUNNING),
}
# Only in lists and REST answers; the base state decides. Alone they say that something is still going on.
_SILENT = {
    "LAUNCH_FAILED": _Word("", ACTIVE, JobState.ENDING),
    "RECONFIG_FAIL": _Word("", ACTIVE, JobState.ENDING),
    "POWER_UP_NODE": _Word("", ACTIVE, JobState.RUNNING),
    "UPDATE_DB": _Word("", ACTIVE, JobState.ENDING),
}
_ALL = {**_BASE, **_FLAGS, **_SILENT}
BASE_STATES = tuple(_BASE)
FLAG_STATES = (*_FLAGS, *_SILENT)
_SHORT = {word.short: name for name, word in _ALL.items() if word.short}
# One letter less and COMPLETING could not be told from COMPLETED.
_SHORTEST_CUT = 7
_CANCELLED_BY = re.compile(r"CANCELLED by ([0-9]{1,10})", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class StateReading:
    """What a state word means. `state` is the full word, or the text itself when nobody knows it."""

    raw: str
    state: str
    phase: str
    job_state: JobState
    outcome: str | None = None
    base: str | None = None  # None: hidden behind a flag, or unknown
    flags: tuple[str, ...] = ()
    by_uid: int | None = None  # who cancelled it

    @property
    def terminal(self) -> bool:
        """True when Slurm will do nothing more with the job."""
        return self.phase == TERMINAL


def read_state(state: str | Sequence[str]) -> StateReading:
    """The meaning of a column of text, or of the list that newer JSON answers give."""
    return _read_text(state) if isinstance(state, str) else _read_list(tuple(str(item) for item in state))


@lru_cache(maxsize=1024)
def _read_text(raw: str) -> StateReading:
    text = raw.strip()
    cancelled = _CANCELLED_BY.fullmatch(text)
    name = "CANCELLED" if cancelled or text.upper().startswith("CANCELLED ") else _full_name(text)
    word = _ALL.get(name)
    if word is None:
        return StateReading(raw=raw, state=text, phase=UNKNOWN, job_state=JobState.UNKNOWN)
    return StateReading(
        raw=raw,
        state=name,
        phase=word.phase,
        job_state=word.job_state,
        outcome=word.outcome,
        base=name if name in _BASE else None,
        flags=() if name in _BASE else (name,),
        by_uid=int(cancelled[1]) if cancelled else None,
    )


def _full_name(text: str) -> str:
    """The state behind a short or a cut form, or the text itself."""
    upper = text.upper()
    if upper in _ALL:
        return upper
    if upper in _SHORT:
        return _SHORT[upper]
    cut = upper.removesuffix("+")
    if cut != upper or len(cut) >= _SHORTEST_CUT:
        found = [name for name in _ALL if cut and name.startswith(cut)]
        if len(found) == 1:
            return found[0]
    return text


@lru_cache(maxsize=256)
def _read_list(items: tuple[str, ...]) -> StateReading:
    names = [_full_name(item.strip()) for item in items]
    base = next((name for name in names if name in _BASE), None)
    flags = tuple(name for name in names if name not in _BASE)
    shown = next((name for name in _FLAGS if name in flags), None) or base
    if shown is None:
        shown = next((name for name in flags if name in _SILENT), flags[0] if flags else "")
    reading = _read_text(shown)
    raw = ",".join(items)
    phase, outcome, job_state = reading.phase, reading.outcome, reading.job_state
    if any(name not in _ALL for name in flags) and phase in (TERMINAL, TERMINAL_UNLESS_REQUEUED):
        # A flag that we do not know may mean that it goes on.
        phase, outcome, job_state = UNKNOWN, None, JobState.UNKNOWN
    return StateReading(
        raw=raw, state=reading.state, phase=phase, job_state=job_state, outcome=outcome, base=base, flags=flags
    )
