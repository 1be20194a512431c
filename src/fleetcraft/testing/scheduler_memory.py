"""A batch scheduler in memory: the seam of the real ones, moved by a clock of the test, with every fault on order.

It is an ideal scheduler: first come, first served, on so many equal nodes. What the world does to its answers is said
by `faults`, one per call, and what it does to its jobs by the methods that a test calls.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

from fleetcraft.core.clock import Clock
from fleetcraft.core.states import JobState
from fleetcraft.schedulers.api import (
    Change,
    JobRef,
    JobRequest,
    JobView,
    Limits,
    Observation,
    PartitionLimits,
    Retry,
    StartEstimate,
    Submission,
    SubmitOutcome,
)


class Fault(Enum):
    """What goes wrong with the next submission."""

    NONE = "none"
    REPLY_LOST = "reply_lost"  # submitted, and the answer never came
    NEVER_ARRIVED = "never_arrived"  # not submitted, and the answer says so
    LOST_BOTH = "lost_both"  # not submitted, and the answer never came
    DELAYED = "delayed"  # the answer never came, and the submission takes effect later
    REJECTED = "rejected"
    FULL = "full"  # a limit on queued jobs


@dataclass(slots=True)
class MemoryJob:
    """One job of this scheduler."""

    ref: JobRef
    request: JobRequest
    submit_utc: float
    state: JobState = JobState.PENDING
    raw_state: str = "PENDING"
    reason: str = "Priority"
    start_utc: float | None = None
    end_utc: float | None = None
    nodes: tuple[str, ...] = ()
    exit_code: int | None = None
    run_for_s: float | None = None  # None: until its time limit
    held: bool = False
    visible_utc: float = 0.0  # no question finds it before
    signals: list[str] = field(default_factory=list)
    restarts: int = 0


class MemoryScheduler:
    """Jobs in a dictionary. `advance` lets time act on them."""

    kind = "memory"

    def __init__(self, clock: Clock, *, nodes: int = 8, lag_s: float = 0.0, keep_s: float = 1e9) -> None:
        self.clock = clock
        self.node_names = tuple(f"n{number}" for number in range(1, nodes + 1))
        self.jobs: dict[str, MemoryJob] = {}
        self.faults: deque[Fault] = deque()
        self.lag_s = lag_s  # so late a new job appears in any answer
        self.keep_s = keep_s  # so long an ended job is remembered
        self.deaf = False  # no question is answered
        self.down_nodes: set[str] = set()
        self.delay_s = 60.0  # of a submission that takes effect later
        self.delayed: list[tuple[float, JobRequest]] = []
        self.submissions: list[str] = []  # tokens, one for each job that was made
        self.calls: dict[str, int] = {}
        self._next = 1

    # The seam

    def submit(self, request: JobRequest) -> Submission:
        """See `Scheduler.submit`."""
        self._count("submit")
        if self.deaf:
            return Submission(
                outcome=SubmitOutcome.NOT_SUBMITTED, code="no_answer", retry=Retry.TRANSIENT, text="no contact"
            )
        known = next((job for job in self._visible() if job.request.token == request.token), None)
        if known is not None:
            return Submission(outcome=SubmitOutcome.FOUND, ref=known.ref)
        fault = self.faults.popleft() if self.faults else Fault.NONE
        if fault is Fault.REJECTED:
            return Submission(outcome=SubmitOutcome.REJECTED, code="qos", text="invalid qos")
        if fault is Fault.FULL:
            return Submission(
                outcome=SubmitOutcome.REJECTED, code="submit_limit", retry=Retry.WHEN_QUEUE_DRAINS, text="too many jobs"
            )
        if fault is Fault.NEVER_ARRIVED:
            return Submission(
                outcome=SubmitOutcome.NOT_SUBMITTED, code="no_answer", retry=Retry.TRANSIENT, text="connect failure"
            )
        lost = Submission(outcome=SubmitOutcome.AMBIGUOUS, retry=Retry.LOOK_UP, text="socket timed out")
        if fault is Fault.LOST_BOTH:
            return lost
        if fault is Fault.DELAYED:
            self.delayed.append((self.clock.utc() + self.delay_s, request))
            return lost
        job = self._make(request)
        return lost if fault is Fault.REPLY_LOST else Submission(outcome=SubmitOutcome.SUBMITTED, ref=job.ref)

    def find(self, token: str) -> Observation:
        """See `Scheduler.find`."""
        self._count("find")
        if self.deaf:
            return self._nothing()
        found = [job for job in self._visible() if job.request.token == token]
        return Observation(at_utc=self.clock.utc(), jobs={str(job.ref): self._view(job) for job in found}, queries=1)

    def observe(self, refs: Sequence[JobRef]) -> Observation:
        """See `Scheduler.observe`."""
        self._count("observe")
        if self.deaf:
            return self._nothing()
        visible = {str(job.ref): job for job in self._visible()}
        return Observation(
            at_utc=self.clock.utc(),
            jobs={str(ref): self._view(visible[str(ref)]) for ref in refs if str(ref) in visible},
            absent=tuple(ref for ref in refs if str(ref) not in visible),
            queries=1,
        )

    def mine(self) -> Observation:
        """See `Scheduler.mine`."""
        self._count("mine")
        if self.deaf:
            return self._nothing()
        live = [job for job in self._visible() if not job.state.ended]
        return Observation(at_utc=self.clock.utc(), jobs={str(job.ref): self._view(job) for job in live}, queries=1)

    def cancel(self, refs: Sequence[JobRef], *, signal: str | None = None, only_waiting: bool = False) -> list[Change]:
        """See `Scheduler.cancel`."""
        self._count("cancel")
        changes: list[Change] = []
        for ref in refs:
            job = self.jobs.get(ref.id)
            if self.deaf or job is None:
                changes.append(Change(ref=ref, asked=False, text="no contact" if self.deaf else "invalid job id"))
                continue
            if signal is not None:
                job.signals.append(signal)
            elif only_waiting and job.state is JobState.RUNNING:
                pass  # it began meanwhile, and nothing is said
            elif not job.state.ended:
                self.end(ref.id, JobState.CANCELLED, "CANCELLED")
            changes.append(Change(ref=ref, asked=True))
        return changes

    def hold(self, refs: Sequence[JobRef]) -> list[Change]:
        """See `Scheduler.hold`."""
        return self._hold(refs, held=True)

    def release(self, refs: Sequence[JobRef]) -> list[Change]:
        """See `Scheduler.release`."""
        return self._hold(refs, held=False)

    def test_only(self, request: JobRequest) -> StartEstimate:
        """See `Scheduler.test_only`."""
        if self.deaf:
            return StartEstimate(possible=None, text="no contact")
        possible = request.nodes <= len(self.node_names)
        return StartEstimate(possible=possible, start_utc=self.clock.utc() if possible else None, partition="memory")

    def limits(self) -> Limits:
        """See `Scheduler.limits`."""
        part = PartitionLimits(name="memory", is_default=True, nodes=len(self.node_names))
        return Limits(at_utc=self.clock.utc(), partitions=(part,), answered=not self.deaf)

    def version(self) -> tuple[int, ...] | None:
        """See `Scheduler.version`."""
        return (1,)

    def command(self, words: Sequence[str], job: JobRef | None = None) -> list[str]:
        """See `Scheduler.command`."""
        return ["env", *([f"JOB={job}"] if job else []), *words]

    def submit_argv(self, request: JobRequest) -> list[str]:
        """What a command line would say."""
        return ["memory-submit", f"--name={request.name}.{request.token}", f"--nodes={request.nodes}"]

    def describe(self) -> Mapping[str, Any]:
        """See `Scheduler.describe`."""
        return {"kind": self.kind, "nodes": len(self.node_names)}

    # What a test does to it

    def advance(self) -> None:
        """Let the time that has passed act: late submissions, ends, starts."""
        now_utc = self.clock.utc()
        for due_utc, request in list(self.delayed):
            if due_utc <= now_utc:
                self.delayed.remove((due_utc, request))
                self._make(request)
        for job in self.jobs.values():
            if job.state is JobState.RUNNING and job.start_utc is not None:
                limit_s = job.request.time_limit_s if job.request.time_limit_s is not None else 1e18
                run_s = limit_s if job.run_for_s is None else job.run_for_s
                if now_utc >= job.start_utc + min(run_s, limit_s):
                    done = job.run_for_s is not None and run_s <= limit_s
                    state = JobState.DONE if done else JobState.TIMEOUT
                    self.end(job.ref.id, state, "COMPLETED" if done else "TIMEOUT")
        for job in self.jobs.values():
            self._start(job)

    def end(self, job_id: str, state: JobState, raw_state: str, *, exit_code: int | None = 0) -> None:
        """End a job."""
        job = self.jobs[job_id]
        job.state, job.raw_state, job.end_utc, job.exit_code = state, raw_state, self.clock.utc(), exit_code

    def requeue(self, job_id: str) -> None:
        """Take a running job off its nodes and let it wait again, as a preemption does."""
        job = self.jobs[job_id]
        job.state, job.raw_state, job.reason, job.nodes = JobState.PENDING, "PENDING", "BeginTime", ()
        job.start_utc = job.end_utc = None
        job.restarts += 1

    def fail_node(self, name: str) -> None:
        """The node dies, and every job on it."""
        self.down_nodes.add(name)
        for job in self.jobs.values():
            if job.state is JobState.RUNNING and name in job.nodes:
                self.end(job.ref.id, JobState.LOST, "NODE_FAIL")

    def with_token(self, token: str) -> list[MemoryJob]:
        """Every job that was ever made with a token."""
        return [job for job in self.jobs.values() if job.request.token == token]

    # Inside

    def _make(self, request: JobRequest) -> MemoryJob:
        ref = JobRef(id=str(self._next))
        self._next += 1
        now_utc = self.clock.utc()
        job = self.jobs[ref.id] = MemoryJob(ref, replace(request), now_utc, visible_utc=now_utc + self.lag_s)
        self.submissions.append(request.token)
        self._start(job)
        return job

    def _start(self, job: MemoryJob) -> None:
        if job.state is not JobState.PENDING or job.held:
            return
        request, now_utc = job.request, self.clock.utc()
        if request.begin_utc is not None and now_utc < request.begin_utc:
            job.reason = "BeginTime"
            return
        if any(not self.jobs[ref.id].state.ended for ref in request.after_any if ref.id in self.jobs):
            job.reason = "Dependency"
            return
        busy = {name for other in self.jobs.values() if other.state is JobState.RUNNING for name in other.nodes}
        gone = busy | self.down_nodes | set(request.exclude)
        free = [name for name in self.node_names if name not in gone]
        if len(free) < request.nodes:
            job.reason = "Resources"
            return
        job.state, job.raw_state, job.reason = JobState.RUNNING, "RUNNING", "None"
        job.start_utc, job.nodes = now_utc, tuple(free[: request.nodes])

    def _visible(self) -> list[MemoryJob]:
        now_utc = self.clock.utc()
        return [
            job for job in self.jobs.values()
            if job.visible_utc <= now_utc and (job.end_utc is None or now_utc - job.end_utc <= self.keep_s)
        ]  # fmt: skip

    def _view(self, job: MemoryJob) -> JobView:
        state = JobState.HELD if job.held and job.state is JobState.PENDING else job.state
        end_utc = job.end_utc
        if state is JobState.RUNNING and job.start_utc is not None and job.request.time_limit_s is not None:
            end_utc = job.start_utc + job.request.time_limit_s
        return JobView(
            ref=job.ref, state=state, raw_state=job.raw_state, name=job.request.name, token=job.request.token,
            reason=job.reason, submit_utc=job.submit_utc, start_utc=job.start_utc, end_utc=end_utc, nodes=job.nodes,
            node_count=job.request.nodes, exit_code=job.exit_code, restarts=job.restarts,
            time_limit_s=job.request.time_limit_s, qos=job.request.qos or "", account=job.request.account or "",
            source="queue",
        )  # fmt: skip

    def _hold(self, refs: Sequence[JobRef], *, held: bool) -> list[Change]:
        for ref in refs:
            job = self.jobs.get(ref.id)
            if job is not None and not self.deaf:
                job.held = held
                self._start(job)
        return [Change(ref=ref, asked=not self.deaf) for ref in refs]

    def _nothing(self) -> Observation:
        return Observation(at_utc=self.clock.utc(), jobs={}, answered=False, problems=("no contact",), queries=1)

    def _count(self, call: str) -> None:
        self.calls[call] = self.calls.get(call, 0) + 1
