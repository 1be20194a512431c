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


class JobState(StrEnum):
    """Where a job of the scheduler stands, in words that every scheduler shares."""

    PENDING = "pending"  # waits for its turn
    HELD = "held"  # waits for a person or an administrator to release it
    BLOCKED = "blocked"  # accepted, but as asked it will not start
    RUNNING = "running"
    ENDING = "ending"  # its processes are being ended or its files staged out; the outcome is not known yet
    DONE = "done"
    FAILED = "failed"
    TIMEOUT = "timeout"
    OUT_OF_MEMORY = "out_of_memory"
    CANCELLED = "cancelled"
    LOST = "lost"  # the infrastructure ended it, or nobody knows what became of it; nobody is charged
    UNKNOWN = "unknown"  # no answer, or a word that we do not know: never an end

    @property
    def ended(self) -> bool:
        """True when the scheduler will do nothing more with it."""
        return self in _JOB_ENDED


_JOB_ENDED = frozenset(
    {JobState.DONE, JobState.FAILED, JobState.TIMEOUT, JobState.OUT_OF_MEMORY, JobState.CANCELLED, JobState.LOST}
)
