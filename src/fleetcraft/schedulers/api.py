"""The seam to a batch scheduler: values in, values out, and an unanswered question never looks like an answer.

Every submission carries a token that is unique for ever, in the job's name and in its comment. A reply that was lost
is found again by it, so that nothing is submitted twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from fleetcraft.core.states import JobState


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class JobRef:
    """One job: its id as the scheduler prints it (`17`, `17_3`, `32+1`), and the cluster where there are several."""

    id: str
    cluster: str | None = None

    def __str__(self) -> str:
        return f"{self.id};{self.cluster}" if self.cluster else self.id


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRequest:
    """What is asked of a scheduler. Nothing in it is ever pasted into a script: it becomes options, word by word.

    `script` is a complete shell script that does not depend on the scheduler's directives.
    """

    token: str  # lower-case letters, digits and dashes; at most 40 characters
    name: str  # for people; the adapter appends the token
    script: str
    nodes: int = 1
    tasks_per_node: int = 1
    cpus_per_node: int | None = None  # None: what the site gives
    gpus_per_node: int = 0
    gpu_type: str | None = None
    memory_bytes: int | None = None  # per node; 0: all of it; None: what the site gives
    exclusive: bool = False
    time_limit_s: float | None = None
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    reservation: str | None = None
    constraint: str | None = None
    nodelist: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    begin_utc: float | None = None
    after_any: tuple[JobRef, ...] = ()  # start when these have ended, however they ended
    array: tuple[int, ...] = ()  # indexes; empty: no array
    array_limit: int | None = None  # how many elements run at once
    signal: str | None = None  # sent to the batch script `signal_before_s` before the time limit
    signal_before_s: float = 120.0
    requeue: bool = False
    output: str | None = None  # where what the job says goes; its folder exists before the submission
    cwd: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    hold: bool = False
    extra: tuple[str, ...] = ()  # site options of the profile, one word each, already checked


class SubmitOutcome(StrEnum):
    """What is known after a submission."""

    SUBMITTED = "submitted"
    FOUND = "found"  # a job with this token was there already: nothing was submitted
    REJECTED = (
        "rejected"  # the scheduler said no; the same request will meet the same no, unless `retry` says otherwise
    )
    NOT_SUBMITTED = "not_submitted"  # the request never arrived; it may be sent again
    AMBIGUOUS = "ambiguous"  # the reply was lost: look the token up before anything else


class Retry(StrEnum):
    """When the same submission may be tried again."""

    NEVER = "never"
    TRANSIENT = "transient"  # soon, with a growing pause
    WHEN_QUEUE_DRAINS = "when_queue_drains"  # a limit on queued jobs
    CHUNK = "chunk"  # in smaller pieces
    LOOK_UP = "look_up"  # only after the token was looked up and not found


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """The scheduler's reply to one submission."""

    outcome: SubmitOutcome
    ref: JobRef | None = None
    code: str = ""  # a word for the kind of refusal: partition, qos, account, resources, submit_limit, ...
    retry: Retry = Retry.NEVER
    text: str = ""  # what the scheduler said, for a person
    hint: str = ""  # what to do about it

    @property
    def accepted(self) -> bool:
        """True when a job stands for the request."""
        return self.ref is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobView:
    """What is known of one job, and from where."""

    ref: JobRef
    state: JobState
    raw_state: str  # the scheduler's own word
    name: str = ""
    token: str = ""  # empty when the job is not ours
    reason: str = ""  # the scheduler's reason, as it gave it
    reason_text: str = ""  # the same in a sentence
    partition: str = ""
    qos: str = ""  # empty, as the account: not told, so that it may be any
    account: str = ""
    submit_utc: float | None = None
    start_utc: float | None = None
    end_utc: float | None = None  # for a running job: when its time limit is reached
    nodes: tuple[str, ...] = ()
    node_count: int | None = None
    gpus: int | None = None
    exit_code: int | None = None
    signal: int | None = None
    restarts: int | None = None
    time_limit_s: float | None = None
    source: str = ""  # queue, accounting, exit_record, memory
    stale: bool = False  # the last thing known; the latest question was not answered
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """One look at the scheduler. A job in neither `jobs` nor `absent` was not answered for."""

    at_utc: float
    jobs: Mapping[str, JobView]  # by str(ref)
    absent: tuple[JobRef, ...] = ()  # every source answered, and none knows it: no proof of an end by itself
    answered: bool = True  # False: the queue gave no answer, and nothing may be concluded from what is missing
    problems: tuple[str, ...] = ()
    queries: int = 0  # how many commands it took
    from_cache: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StartEstimate:
    """The scheduler's guess for a request, without submitting it."""

    possible: bool | None  # None: no answer
    start_utc: float | None = None
    nodes: tuple[str, ...] = ()
    partition: str = ""
    code: str = ""
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionLimits:
    """What one partition allows. None: not limited, or not known; `Limits.problems` tells which."""

    name: str
    state: str = ""
    is_default: bool = False
    time_limit_s: float | None = None
    max_nodes: int | None = None
    nodes: int | None = None
    cpus_per_node: int | None = None
    memory_per_node_bytes: int | None = None
    gpus_per_node: int | None = None
    gpu_types: tuple[str, ...] = ()
    idle_nodes: int | None = None
    qos: str = ""
    preemptible: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountLimits:
    """What an association or a QOS leaves to this user. None: not limited."""

    where: str  # for a person: association ACCOUNT/USER, QOS NAME, or the profile
    # Whose jobs it limits. Empty: not only those of one QOS, account or partition.
    qos: str = ""
    account: str = ""
    partition: str = ""
    max_jobs: int | None = None
    max_submit: int | None = None
    max_nodes: int | None = None  # over all jobs
    max_gpus: int | None = None
    max_nodes_per_job: int | None = None
    max_wall_s: float | None = None
    gpu_minutes_left: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What the site allows, as far as it told."""

    at_utc: float
    partitions: tuple[PartitionLimits, ...] = ()
    accounts: tuple[AccountLimits, ...] = ()
    max_array_size: int | None = None
    max_array_tasks: int | None = None
    min_job_age_s: float | None = None
    kill_wait_s: float | None = None
    requeue_delay_s: float | None = None
    has_accounting: bool | None = None
    answered: bool = True
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What became of a cancel, a hold or a release: asked is not done; the next observation tells."""

    ref: JobRef
    asked: bool
    text: str = ""


class Scheduler(Protocol):
    """One scheduler on one site. No call raises for what the scheduler does; wrong arguments raise UsageError."""

    @property
    def kind(self) -> str:
        """slurm, local, psij:pbs ..."""
        ...

    def submit(self, request: JobRequest) -> Submission:
        """Submit once. A token that is known already is found, not submitted again."""
        ...

    def find(self, token: str) -> Observation:
        """Every job that carries the token, whether it waits, runs or ended. `answered` False: nobody knows."""
        ...

    def observe(self, refs: Sequence[JobRef]) -> Observation:
        """The jobs' states by as few questions as possible."""
        ...

    def mine(self) -> Observation:
        """Every job of this user that the queue knows, ours or not."""
        ...

    def cancel(self, refs: Sequence[JobRef], *, signal: str | None = None, only_waiting: bool = False) -> list[Change]:
        """Ask for their end, or only send a signal to all of their processes and the batch script.

        With `only_waiting` a job that began meanwhile is left alone, where the scheduler can tell.
        """
        ...

    def hold(self, refs: Sequence[JobRef]) -> list[Change]:
        """Keep waiting jobs from starting."""
        ...

    def release(self, refs: Sequence[JobRef]) -> list[Change]:
        """Let held jobs start."""
        ...

    def test_only(self, request: JobRequest) -> StartEstimate:
        """When would it start? Nothing is submitted."""
        ...

    def limits(self) -> Limits:
        """What the site allows. Cached by the adapter; sites ask for few questions."""
        ...

    def version(self) -> tuple[int, ...] | None:
        """The scheduler's version, None when it did not say."""
        ...

    def command(self, words: Sequence[str], job: JobRef | None = None) -> list[str]:
        """The argv that starts `words` on every node of the job that runs it (srun ...), or inside a job."""
        ...

    def describe(self) -> Mapping[str, Any]:
        """What the adapter found out about the site, for `doctor` and bundles of evidence."""
        ...
