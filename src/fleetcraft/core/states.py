"""The state words, each with its sentence: one table for code, command line, JSON and docs."""

from __future__ import annotations

from enum import StrEnum


class TaskState(StrEnum):
    """Where a task stands."""

    HELD = "held"  # waits for other tasks
    BLOCKED = "blocked"  # what it waits for can no longer come true
    WAITING = "waiting"  # free to be claimed
    CLAIMED = "claimed"  # a worker owns it and has not started it, or keeps it until its backoff ends
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    QUARANTINED = "quarantined"  # set aside with evidence: it was running whenever its worker died
    CANCELLED = "cancelled"

    @property
    def ended(self) -> bool:
        """True when nothing more happens unless a person asks for it."""
        return self in _ENDED


_ENDED = frozenset({TaskState.SUCCEEDED, TaskState.FAILED, TaskState.QUARANTINED, TaskState.CANCELLED})


class Outcome(StrEnum):
    """How one attempt ended."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    TIMEOUT = "timeout"
    OUT_OF_MEMORY = "out_of_memory"
    OUTPUT_INVALID = "output_invalid"
    LOST = "lost"  # ended by no fault of the task
    ABANDONED = "abandoned"  # ended by a worker that found itself taken for dead
    CANCELLED = "cancelled"
    DUPLICATE = "duplicate"  # a second success; shown, never counted


class LossCause(StrEnum):
    """Why an attempt was lost; only the unexplained ones count towards quarantine."""

    WORKER_GONE = "worker_gone"
    NODE_GONE = "node_gone"
    WALLTIME = "walltime"
    PREEMPTED = "preempted"
    DRAINED = "drained"
    CHECKPOINTED = "checkpointed"
    BLACK_HOLE = "black_hole"

    @property
    def explained(self) -> bool:
        """True when the loss says nothing about the task."""
        return self not in (LossCause.WORKER_GONE, LossCause.NODE_GONE)


class WorkerState(StrEnum):
    """Where a worker life stands."""

    STARTING = "starting"
    UP = "up"
    DRAINING = "draining"
    STORAGE_FULL = "storage_full"
    STOPPED = "stopped"
    STALE = "stale"  # its heartbeat stands still: unproven
    LOST = "lost"  # a reaper has proof
