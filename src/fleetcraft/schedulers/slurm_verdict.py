"""What is true of a job, from everything that speaks of it: the queue, accounting, its own exit record, and time.

A question that failed changes nothing. A job that nobody knows is not dead: it is unknown, and after a while lost,
which a person or a policy decides about. A job that lost its node or was preempted may come back under its own id.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from fleetcraft.core.states import JobState
from fleetcraft.schedulers.api import JobRef, JobView
from fleetcraft.schedulers.hostlist import expand
from fleetcraft.schedulers.slurm_accounting import AccountJob, AccountRow
from fleetcraft.schedulers.slurm_args import token_in
from fleetcraft.schedulers.slurm_causes import exclude_nodes_hint, read_exit, retry_after
from fleetcraft.schedulers.slurm_quantities import gpus_in
from fleetcraft.schedulers.slurm_reasons import BLOCKED, DEAD, HELD, ReasonReading, read_reason
from fleetcraft.schedulers.slurm_rows import QueueRow
from fleetcraft.schedulers.slurm_states import MOVED, StateReading, read_state

QUEUE, ACCOUNTING, EXIT_RECORD, MEMORY = "queue", "accounting", "exit_record", "memory"
# After these Slurm may put the job back into the queue.
_MAY_RETURN = frozenset({"node_fail", "preempted", "boot_fail"})
# What stands in the place of a signal for an output file that could not be opened and for memory that ran out.
_NO_SIGNALS = frozenset({0, 53, 125})
# Where an array stands that has no record of one of its elements.
ARRAY_QUEUED, ARRAY_GONE = "queued", "gone"
# A record with code 0 does not outweigh these: the script was not the one that ended the job.
_ENDED_FROM_OUTSIDE = _MAY_RETURN | {"cancelled", "timeout", "deadline"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """How long to wait before an absence means anything."""

    grace_s: float = 120.0  # accounting is some seconds late after a submission
    min_polls: int = 3
    requeue_s: float = 300.0  # a requeued job may be nowhere for so long
    requeue_delay_s: float = 120.0  # what the site waits before a requeued job may start
    requeue_margin_s: float = 60.0

    @property
    def absence_s(self) -> float:
        """How long a job that may come back must have been away."""
        return max(self.requeue_s, self.requeue_delay_s + self.requeue_margin_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExitRecord:
    """What the job's own script wrote at its end."""

    code: int
    end_utc: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """All that was found out about one job. A None view of a source that answered is an absence."""

    last: str | None = None  # the state word of the last verdict
    queue: QueueRow | str | None = None  # a word may carry its reason: PENDING/BeginTime
    queue_answered: bool = True
    account: AccountJob | str | None = None
    account_answered: bool = True
    has_accounting: bool = True  # False: the site keeps none, and its silence is no absence
    exit_record: ExitRecord | None = None
    age_s: float | None = None  # since the submission
    absent_s: float | None = None  # since the queue last knew the job as one that goes on
    may_requeue: bool = True  # False: submitted with --no-requeue, so that an end is an end
    array: str | None = None  # for an array element that has no record: what is left of its array, see below
    polls_missing: int = 0  # answers in a row in which no source knew it
    restarts: int | None = None  # as counted so far


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What is held to be true. `state` is Slurm's word, or LOST or UNKNOWN."""

    state: str
    job_state: JobState
    terminal: bool = False  # nothing more will happen, and what happened is known
    outcome: str | None = None
    exit_code: int | None = None
    signal: int | None = None
    source: str = ""
    stale: bool = False
    restarts: int | None = None
    retry: str | None = None
    exclude_nodes_hint: bool = False
    notes: tuple[str, ...] = ()
    next: str = ""  # what has to happen now, for a person


def reconcile(evidence: Evidence, policy: Policy = Policy()) -> Verdict:
    """The verdict. It is a function of its arguments: the same evidence always gives the same verdict."""
    queue, reason = _queue_state(evidence.queue)
    account = _account_state(evidence.account)
    restarts = _restarts(evidence, queue)
    if evidence.queue_answered and queue is not None and not _is_over(queue):
        return replace(_live(queue, reason, account, evidence), restarts=restarts)
    # An ended job stays in the queue for some minutes, and knows its end before accounting does.
    ended = queue if queue is not None and evidence.queue_answered else None
    if ended is None and account is not None and account.outcome is not None:
        ended = account
    if ended is not None:
        if not evidence.queue_answered:
            # Only the queue knows whether it came back. A completed one does not.
            verdict = _ended(ended, evidence, policy, may_be_back=ended.outcome in _MAY_RETURN)
        else:
            verdict = _ended(ended, evidence, policy)
        return replace(verdict, restarts=restarts, source=verdict.source or (QUEUE if ended is queue else ACCOUNTING))
    if evidence.exit_record is not None and evidence.queue_answered:
        return replace(_by_record(evidence.exit_record), restarts=restarts)
    if not evidence.queue_answered:
        return replace(_unanswered(evidence, account), restarts=restarts)
    if account is not None:
        return replace(_late_accounting(account, evidence, policy), restarts=restarts)
    return replace(_absent(evidence, policy), restarts=restarts)


def _queue_state(view: QueueRow | str | None) -> tuple[StateReading | None, ReasonReading]:
    if view is None:
        return None, read_reason("")
    if isinstance(view, str):
        word, _, reason = view.partition("/")
        return read_state(word), read_reason(reason)
    return view.state, view.reading


def _account_state(view: AccountJob | str | None) -> StateReading | None:
    if view is None:
        return None
    return read_state(view) if isinstance(view, str) else view.latest.state


def _is_over(state: StateReading) -> bool:
    return state.outcome is not None


def _restarts(evidence: Evidence, queue: StateReading | None) -> int | None:
    """How often it was put back: as accounting counts its attempts, or else as we saw it come back."""
    lives = queue is not None and not _is_over(queue)
    known = evidence.restarts
    came_back = lives and evidence.last is not None and read_state(evidence.last).outcome in _MAY_RETURN
    if came_back:
        known = (known or 0) + 1
    if not isinstance(evidence.account, AccountJob):
        return known
    # Accounting is late with the row of a new attempt: one that has ended while the job lives is not the newest.
    newest = evidence.account.latest.state
    behind = lives and (newest.outcome is not None or newest.state in ("REQUEUED", "REQUEUE_FED"))
    return max(evidence.account.restarts + behind, known or 0)


def _live(queue: StateReading, reason: ReasonReading, account: StateReading | None, evidence: Evidence) -> Verdict:
    """The queue knows it, and it has not ended: accounting may only name what hides behind COMPLETING."""
    notes: list[str] = []
    state, job_state = queue.state, queue.job_state
    following = "poll again"
    if queue.state == "COMPLETING" and account is not None and account.state in ("REQUEUED", "REQUEUE_FED"):
        state, job_state = account.state, account.job_state
    if queue.state == "PENDING":
        job_state = {BLOCKED: JobState.BLOCKED, DEAD: JobState.BLOCKED, HELD: JobState.HELD}.get(
            reason.cls, JobState.PENDING
        )
        if reason.cls == DEAD:
            following = "cancel it: it can never start"
        elif reason.cls in (BLOCKED, HELD) and reason.advice:
            following = reason.advice
        if reason.reason == "BeginTime":
            notes.append("after a requeue a job waits about two minutes before it may start again (requeue_delay)")
    if queue.state in ("SUSPENDED", "STOPPED"):
        notes.append("it stands still and keeps its nodes")
    if queue.phase == MOVED:
        notes.append("another cluster of the federation runs it")
    if job_state is JobState.HELD and following == "poll again":
        following = "scontrol release"
    if evidence.exit_record is not None and job_state in (JobState.RUNNING, JobState.ENDING):
        notes.append(f"its script has ended with code {evidence.exit_record.code}; the queue has not seen it yet")
    return Verdict(state=state, job_state=job_state, source=QUEUE, notes=tuple(notes), next=following)


def _ended(ended: StateReading, evidence: Evidence, policy: Policy, *, may_be_back: bool = False) -> Verdict:
    """A source says that it ended. Our own record says how, unless something else ended it."""
    outcome = ended.outcome or "failed"
    notes: list[str] = []
    code, signal, cause = _column(evidence.account, ended)
    if outcome in _MAY_RETURN:
        away = evidence.absent_s if evidence.absent_s is not None else 0.0
        if evidence.may_requeue and (may_be_back or away < policy.absence_s):
            return Verdict(
                state=ended.state,
                job_state=JobState.ENDING,
                outcome=outcome,
                notes=(f"it may be requeued: wait until it was away for {policy.absence_s:.0f} s",),
                next="poll again",
            )
    job_state, state, source = ended.job_state, ended.state, ""
    record = evidence.exit_record
    if record is not None:
        code, source = record.code, EXIT_RECORD
        state, job_state, outcome, cause = _with_record(record, ended, outcome, cause, notes)
    elif outcome in ("completed", "failed"):
        notes.append("no exit record: its node may have crashed, or the file system is late")
        if code:
            notes.append("an exit code of 128 or more is shown by Slurm with 128 taken off")
    if outcome == "cancelled":
        notes.append(_who_cancelled(ended, evidence.account))
    if isinstance(evidence.account, AccountJob) and evidence.account.suspect and job_state is JobState.DONE:
        steps = ", ".join(evidence.account.bad_steps)
        notes.append(f"suspect: a part of it failed{f' (steps {steps})' if steps else ''}")
    if exclude_nodes_hint(outcome):
        notes.append("the next try had better go around its nodes")
    good = job_state is JobState.DONE
    # The table speaks of causes such as stdio; an outcome that it does not know is never tried again by itself.
    retry = None if good else retry_after(cause or outcome)
    return Verdict(
        state=state,
        job_state=job_state,
        terminal=True,
        outcome=outcome,
        exit_code=code,
        signal=None if signal in _NO_SIGNALS else signal,
        source=source,
        retry=retry,
        exclude_nodes_hint=exclude_nodes_hint(outcome),
        notes=tuple(notes),
    )


def _who_cancelled(ended: StateReading, account: AccountJob | str | None) -> str:
    """Only accounting knows who it was, and only when it was somebody."""
    known = _account_state(account)
    uid = ended.by_uid if ended.by_uid is not None or known is None else known.by_uid
    if uid is None:
        return "cancelled without a user's name to it: by a dependency, by itself, or accounting has not heard yet"
    return "cancelled by an administrator" if uid == 0 else f"cancelled by the user with the id {uid}"


def _column(account: AccountJob | str | None, ended: StateReading) -> tuple[int | None, int | None, str | None]:
    if not isinstance(account, AccountJob) or account.latest.state.state != ended.state or lacks_exit_code(account):
        return None, None, None
    found = read_exit(ended.state, account.latest.exit_text)
    return found.exit, found.signal, found.cause


def lacks_exit_code(account: AccountJob) -> bool:
    """True for a failure that is shown with 0:0: for some seconds the row has the state, and not yet the code."""
    return account.latest.state.outcome == "failed" and account.latest.exit_text.strip() in ("", "0:0")


def _with_record(
    record: ExitRecord, ended: StateReading, outcome: str, cause: str | None, notes: list[str]
) -> tuple[str, JobState, str, str | None]:
    """State, job state, outcome and cause where the script's own record stands beside the scheduler's word."""
    if outcome in _ENDED_FROM_OUTSIDE:
        notes.append(f"its script had ended with code {record.code}")
        return ended.state, ended.job_state, outcome, cause
    if record.code == 0:
        if outcome == "oom":
            notes.append("completed with an out-of-memory event: a helper process may have been killed")
        elif outcome != "completed":
            notes.append(f"the scheduler says {ended.state}, its own record says that it succeeded")
        return "COMPLETED", JobState.DONE, "completed", None
    if outcome == "completed":
        notes.append("the scheduler says COMPLETED, its own record says that it failed")
        return "FAILED", JobState.FAILED, "failed", "app"
    return ended.state, ended.job_state, outcome, cause


def _by_record(record: ExitRecord) -> Verdict:
    """The queue does not know it any more and accounting is late: the record is the newest word."""
    good = record.code == 0
    return Verdict(
        state="COMPLETED" if good else "FAILED",
        job_state=JobState.DONE if good else JobState.FAILED,
        terminal=True,
        outcome="completed" if good else "failed",
        exit_code=record.code,
        source=EXIT_RECORD,
        retry=None if good else "never",
    )


def _unanswered(evidence: Evidence, account: StateReading | None) -> Verdict:
    """The queue gave no answer: the last thing known stands."""
    last = read_state(evidence.last) if evidence.last else account
    notes = ["the queue gave no answer"]
    if evidence.exit_record is not None:
        notes.append(f"its script has ended with code {evidence.exit_record.code}")
    if last is None:
        return Verdict(
            state="UNKNOWN",
            job_state=JobState.UNKNOWN,
            stale=True,
            source=MEMORY,
            notes=tuple(notes),
            next="poll again",
        )
    state, job_state = (last.state, last.job_state) if evidence.last != "LOST" else ("LOST", JobState.LOST)
    if last.outcome in _MAY_RETURN:
        job_state = JobState.ENDING
    return Verdict(state=state, job_state=job_state, stale=True, source=MEMORY, notes=tuple(notes), next="poll again")


def _late_accounting(account: StateReading, evidence: Evidence, policy: Policy) -> Verdict:
    """Gone from the queue, and accounting still calls it active: it is late, or never heard of the end."""
    if account.state in ("REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "SPECIAL_EXIT", "PENDING"):
        note = "accounting says that it was put back; the queue does not show it yet"
    else:
        note = "it left the queue, and accounting has not heard of its end"
    if evidence.absent_s is not None and evidence.absent_s >= policy.absence_s and _enough_polls(evidence, policy):
        return Verdict(
            state="LOST",
            job_state=JobState.LOST,
            source=ACCOUNTING,
            notes=(f"gone from the queue for {evidence.absent_s:.0f} s while accounting says {account.state}",),
            next="user or policy",
        )
    job_state = account.job_state
    if job_state is JobState.RUNNING:
        job_state = JobState.ENDING
    return Verdict(state=account.state, job_state=job_state, source=ACCOUNTING, notes=(note,), next="poll again")


def _enough_polls(evidence: Evidence, policy: Policy) -> bool:
    return evidence.polls_missing >= policy.min_polls


def _absent(evidence: Evidence, policy: Policy) -> Verdict:
    """No source that answered knows it."""
    silent = evidence.has_accounting and not evidence.account_answered
    last = read_state(evidence.last) if evidence.last else None
    if last is not None and last.terminal:
        # Purged since: what was known stays known.
        return Verdict(state=last.state, job_state=last.job_state, terminal=True, outcome=last.outcome, source=MEMORY)
    old = evidence.age_s is not None and evidence.age_s > policy.grace_s
    away = evidence.absent_s is None or evidence.absent_s > policy.grace_s
    if last is not None and last.outcome in _MAY_RETURN:
        return _ended(last, evidence, policy)
    conclusive = not silent and old and away and _enough_polls(evidence, policy)
    if evidence.array is not None and not silent:
        return _element(evidence.array, conclusive=conclusive)
    if conclusive:
        return Verdict(
            state="LOST",
            job_state=JobState.LOST,
            source=MEMORY,
            notes=("no source knows it any more, and nothing tells how it ended",),
            next="user or policy",
        )
    note = "accounting gave no answer" if silent else "no source knows it yet, or no longer"
    return Verdict(state="UNKNOWN", job_state=JobState.UNKNOWN, source=MEMORY, notes=(note,), next="poll again")


def _element(array: str, *, conclusive: bool) -> Verdict:
    """An element of an array that was there, without a trace of its own: never lost, for it never ran."""
    gone = missing_element(queue_answered=True, array_in_queue=array == ARRAY_QUEUED, account=None)
    if gone is None or not conclusive:
        note = "it has no record; others of its array are in the queue" if gone is None else "it has no record yet"
        return Verdict(state="UNKNOWN", job_state=JobState.UNKNOWN, source=MEMORY, notes=(note,), next="poll again")
    return Verdict(
        state="CANCELLED",
        job_state=JobState.CANCELLED,
        terminal=True,
        outcome="cancelled",
        source=MEMORY,
        retry="never",
        notes=("it left no record: cancelled while it waited, or never started",),
    )


def missing_element(*, queue_answered: bool, array_in_queue: bool, account: StateReading | None) -> str | None:
    """What an array element without any record is. Cancelled while they waited, elements leave no trace.

    None as long as nothing may be concluded.
    """
    if account is not None or array_in_queue or not queue_answered:
        return None
    return "cancelled_or_never_started"


def view(
    ref: JobRef,
    verdict: Verdict,
    *,
    queue: QueueRow | None = None,
    account: AccountJob | None = None,
    last: JobView | None = None,
) -> JobView:
    """The verdict with everything that the sources tell beside it; what they do not tell stays as it was known."""
    row = account.latest if account else None
    name = (queue.name if queue else "") or (row.name if row else "") or (last.name if last else "")
    comment = queue.comment if queue else ""
    nodes_text = (queue.nodes_text if queue else "") or (row.nodes_text if row else "")
    nodes = expand(nodes_text) or (last.nodes if last else ())
    reason = queue.reason if queue and queue.reason != "None" else ""
    never_ran = bool((queue and queue.never_had_nodes) or (account and account.never_ran))
    waits = queue is not None and queue.state.state == "PENDING"  # its start is a guess
    count = queue.node_count if queue else None
    per_node = gpus_in(queue.gres) if queue else None
    known_gpus = last.gpus if last else None
    remembered = last if verdict.source == MEMORY else None
    exit_code = verdict.exit_code if verdict.exit_code is not None or remembered is None else remembered.exit_code
    return JobView(
        ref=ref,
        state=verdict.job_state,
        raw_state=verdict.state,
        name=name,
        token=token_in(name, comment) or (last.token if last else ""),
        reason=reason,
        reason_text=read_reason(reason).sentence if reason else "",
        partition=(queue.partition if queue else "") or (last.partition if last else ""),
        qos=(queue.qos if queue else "") or (row.qos if row else "") or (last.qos if last else ""),
        account=(queue.account if queue else "") or (row.account if row else "") or (last.account if last else ""),
        submit_utc=_first(queue and queue.submit_utc, row and row.submit_utc, last and last.submit_utc),
        start_utc=None if never_ran else _start_utc(queue, row, last, waits=waits),
        end_utc=_first(row and row.end_utc, queue and queue.end_utc, last and last.end_utc),
        nodes=nodes,
        node_count=count if count is not None else (len(nodes) or (last.node_count if last else None)),
        gpus=per_node * count if per_node is not None and count is not None else known_gpus,
        exit_code=exit_code,
        signal=verdict.signal or (remembered.signal if remembered else None),
        restarts=verdict.restarts,
        time_limit_s=_first(queue and queue.time_limit_s, last and last.time_limit_s),
        source=verdict.source,
        stale=verdict.stale,
        notes=verdict.notes or (remembered.notes if remembered and verdict.terminal else ()),
    )


def _start_utc(queue: QueueRow | None, row: AccountRow | None, last: JobView | None, *, waits: bool) -> float | None:
    if waits:
        # A requeued job has a start in accounting, which is that of its last run.
        return queue.start_utc if queue else None
    return _first(queue and queue.start_utc, row and row.start_utc, last and last.start_utc)


def _first(*values: object) -> float | None:
    """The first that is a number."""
    return next((float(value) for value in values if isinstance(value, (int, float))), None)
