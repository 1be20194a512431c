"""The scheduler's word on the jobs that other lives ran in, for the reaper.

A controller may hang for minutes, so a thread of its own asks, and the worker's loop reads the latest answer. A job is
asked about only while somebody wants to know, and all of them in one question.
"""

from __future__ import annotations

import random
import shutil
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from fleetcraft.core.clock import Clock
from fleetcraft.core.states import JobState, LossCause
from fleetcraft.schedulers.api import JobRef, JobView, Observation, Scheduler
from fleetcraft.spool.evidence import JobWord
from fleetcraft.spool.host import Identity

ASK_EVERY_S = 60.0
# Nobody asked for so long: the life was reaped, or it beats again.
FORGET_AFTER_S = 900.0
# The controller's clock and a node's differ a little; a job that began so much later than a life began anew.
ANEW_AFTER_S = 60.0
_NO_ANSWER = JobWord(ended=None, text="the scheduler has not answered yet")
_WAITS = frozenset({JobState.PENDING, JobState.HELD, JobState.BLOCKED})
_CAUSES = {
    "TIMEOUT": LossCause.WALLTIME,
    "DEADLINE": LossCause.WALLTIME,
    "PREEMPTED": LossCause.PREEMPTED,
    "CANCELLED": LossCause.DRAINED,
    "NODE_FAIL": LossCause.NODE_GONE,
    "BOOT_FAIL": LossCause.NODE_GONE,
}
# The run that a life belonged to is over, even if the job itself may be started anew.
_RUN_OVER = frozenset({"NODE_FAIL", "BOOT_FAIL", "PREEMPTED"})


def open_job_word(
    clock: Clock, *, own: Identity | None = None, every_s: float = ASK_EVERY_S, in_background: bool = True
) -> JobWatcher | None:  # fmt: skip
    """The word of the scheduler whose commands this host has; None where it has none."""
    if shutil.which("squeue") is None:
        return None
    return JobWatcher(_Slurm(), clock, own=own, every_s=every_s, in_background=in_background)


class _Slurm:
    """Slurm, opened by the first question: most workers never ask one."""

    def __init__(self) -> None:
        self._scheduler: Scheduler | None = None

    def __call__(self, refs: Sequence[JobRef]) -> Observation:
        if self._scheduler is None:
            from fleetcraft.schedulers.open import open_scheduler

            self._scheduler = open_scheduler("slurm")
        return self._scheduler.observe(refs)


def weigh(view: JobView, identity: Identity) -> JobWord:
    """What one job's state says about a life that ran in it."""
    text = f"{view.raw_state} {view.reason}".strip()
    word = view.raw_state.split(maxsplit=1)[0].upper() if view.raw_state else ""
    if view.stale or view.state is JobState.UNKNOWN:
        return JobWord(ended=None, text=text)
    if view.state in _WAITS:
        # A life has run in it, and now it waits: it was requeued, and a waiting job has no processes.
        return JobWord(ended=True, cause=LossCause.NODE_GONE, text=f"{text}, so it was requeued")
    if view.state is JobState.ENDING and word in _RUN_OVER:
        return JobWord(ended=True, cause=_CAUSES[word], text=text)
    if _began_anew(view, identity):
        return JobWord(ended=True, cause=LossCause.NODE_GONE, text="it was requeued and began anew since")
    if view.state is JobState.LOST and word not in _CAUSES:
        return JobWord(ended=None, text=f"{text}; absence alone is no proof")
    if view.state.ended:
        return JobWord(ended=True, cause=_CAUSES.get(word, LossCause.WORKER_GONE), text=text)
    return JobWord(ended=False, text=text)


def is_earlier_run(identity: Identity, own: Identity) -> bool:
    """Whether a life ran in an earlier start of the very job that this one runs in."""
    if identity.job_id != own.job_id or identity.job_restarts is None or own.job_restarts is None:
        return False
    return identity.job_restarts < own.job_restarts


def _began_anew(view: JobView, identity: Identity) -> bool:
    """By the scheduler's own count, which needs no clock, or by a start long after the life began."""
    begun_utc = view.start_utc if view.state is JobState.RUNNING else None
    if begun_utc is not None and begun_utc > identity.created_utc + ANEW_AFTER_S:
        return True
    if view.state not in (JobState.RUNNING, JobState.ENDING) or view.restarts is None:
        return False
    return identity.job_restarts is not None and view.restarts > identity.job_restarts


def restarts_of_this_job(environment: Mapping[str, str]) -> int | None:
    """How often the job around this process was started anew; None outside of a job that says so."""
    if "SLURM_JOB_ID" not in environment:
        return None
    # The variable is there only from the second start on.
    text = environment.get("SLURM_RESTART_COUNT", "0")
    return int(text) if text.isdecimal() else None


@dataclass(slots=True)
class JobWatcher:
    """Asks the scheduler in the background; call it with a life's identity."""

    observe: Callable[[Sequence[JobRef]], Observation]
    clock: Clock
    own: Identity | None = None  # the life that asks
    every_s: float = ASK_EVERY_S
    in_background: bool = True  # False: only `ask` asks
    _wanted: dict[str, float] = field(default_factory=dict)  # job id: when somebody last asked
    _views: dict[str, JobView] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _stop: threading.Event = field(default_factory=threading.Event)
    _news: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def __call__(self, identity: Identity) -> JobWord:
        """The latest answer; the first question about a job only begins to look."""
        if identity.job_id is None:
            return _NO_ANSWER
        if self.own is not None and is_earlier_run(identity, self.own):
            # The scheduler's word reached this process at its birth: no question can tell more.
            return JobWord(ended=True, cause=LossCause.NODE_GONE, text="it was requeued, and this is its later run")
        with self._lock:
            is_new = identity.job_id not in self._wanted
            self._wanted[identity.job_id] = self.clock.mono()
            view = self._views.get(identity.job_id)
        if not self.in_background:
            pass
        elif self._thread is None:
            self._thread = threading.Thread(target=self._run, name="jobs", daemon=True)
            self._thread.start()
        elif is_new:
            self._news.set()
        return weigh(view, identity) if view is not None else _NO_ANSWER

    def ask(self) -> Observation | None:
        """One question about everything wanted; None when nothing is."""
        now = self.clock.mono()
        with self._lock:
            self._wanted = {job: since for job, since in self._wanted.items() if now - since < FORGET_AFTER_S}
            wanted = sorted(self._wanted)
        if not wanted:
            return None
        seen = self.observe([JobRef(id=job) for job in wanted])
        with self._lock:
            self._views = {job: seen.jobs[job] for job in wanted if job in seen.jobs}
        return seen

    def _run(self) -> None:
        # Not all nodes of a fleet at the same moment: they saw the same death.
        if self._stop.wait(random.uniform(0.0, min(5.0, self.every_s))):  # noqa: S311  no secret
            return
        while not self._stop.is_set():
            self._news.clear()
            try:
                self.ask()
            except Exception as error:  # noqa: BLE001  no answer, and the next question may have one
                sys.stderr.write(f"the scheduler could not be asked about other jobs: {error!r}\n")
            self._news.wait(self.every_s * random.uniform(0.8, 1.2))  # noqa: S311  no secret

    def close(self) -> None:
        """Stop asking; a question in flight is left to end by itself."""
        self._stop.set()
        self._news.set()
