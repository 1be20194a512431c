"""What the Slurm adapter knows of each job between two looks, and how a new look changes it.

The last view stays until a better one comes: a failed question never replaces it, and a job that is in no answer is
missing before it is lost. A controller that crashed gives the id of a job that it forgot to the next one, so a row
that carries another token says nothing about ours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from fleetcraft.core.clock import Clock
from fleetcraft.schedulers.api import JobRef, JobView
from fleetcraft.schedulers.slurm_accounting import SKEW_S, AccountAnswer, AccountJob
from fleetcraft.schedulers.slurm_args import carries, token_in
from fleetcraft.schedulers.slurm_commands import base_ids
from fleetcraft.schedulers.slurm_rows import QueueRow
from fleetcraft.schedulers.slurm_verdict import (
    ARRAY_GONE,
    ARRAY_QUEUED,
    Evidence,
    ExitRecord,
    Policy,
    lacks_exit_code,
    reconcile,
    view,
)

# A job that the queue calls ended is looked up in accounting for its exit code so often and so long: that one may lag
# for ever, and by half a minute after a restart of its database daemon.
_EXIT_CODE_LOOKS = 3
_EXIT_CODE_WAIT_S = 60.0
_MAY_RETURN = frozenset({"NODE_FAIL", "PREEMPTED", "BOOT_FAIL"})


@dataclass(slots=True)
class _Known:
    """One job's last view and what is counted about it."""

    first_seen_s: float
    view: JobView | None = None
    token: str = ""
    submit_utc: float | None = None
    missing_since_s: float | None = None
    polls_missing: int = 0
    looks_after_end: int = 0
    ended_since_s: float | None = None
    is_settled: bool = False  # nothing can change any more
    exit_record: ExitRecord | None = None
    is_taken: bool = False  # the queue shows another job under its id
    may_requeue: bool = True  # until it is known that it was submitted otherwise

    def is_row(self, name: str, comment: str, submit_utc: float | None) -> bool:
        """True when a row under this job's id may speak of it, and not of another that has or had the same id."""
        if not self.token or carries(self.token, name, comment):
            return True
        if token_in(name, comment):
            return False
        # Names are cut and comments rewritten: without any token, only an older submission is surely another's.
        since = self.submit_utc
        return since is None or submit_utc is None or submit_utc >= since - SKEW_S


class Look:
    """The rows of one queue answer, found by key in constant time."""

    def __init__(self, rows: Iterable[QueueRow]) -> None:
        self._exact: dict[str, QueueRow] = {}
        self._arrays: dict[str, list[QueueRow]] = {}
        self.bases: dict[str, bool] = {}  # whether anything of it waits or runs
        for row in rows:
            self.bases[row.id.base] = self.bases.get(row.id.base, False) or row.state.outcome is None
            self._exact[row.id.key] = row
            if row.id.task is not None or row.id.spans is not None:
                self._arrays.setdefault(row.id.base, []).append(row)

    def of(self, key: str) -> QueueRow | None:
        """The row of a job; the row of the waiting rest of an array speaks for each of its elements."""
        base, _, task = key.partition("_")
        exact = self._exact.get(key)
        if exact is not None and (exact.id.spans is None or not task):
            return exact
        rows = self._arrays.get(base, [])
        if not task:
            return next((row for row in rows if row.state.phase != "terminal"), rows[0] if rows else None)
        if not task.isdigit():
            return None
        return next((row for row in rows if row.id.task is None and row.id.covers(int(task))), None)


class JobMemory:
    """All jobs that one adapter was asked about."""

    def __init__(self, policy: Policy, clock: Clock) -> None:
        self._policy = policy
        self._clock = clock
        self._jobs: dict[str, _Known] = {}
        self._may_return = False
        self._knows_delay = False

    def _known(self, ref: JobRef) -> _Known:
        known = self._jobs.get(str(ref))
        if known is None:
            known = self._jobs[str(ref)] = _Known(first_seen_s=self._clock.mono())
            whole = self._jobs.get(str(replace(ref, id=ref.id.partition("_")[0])))
            if whole is not None and whole is not known:
                # An element was submitted with its array.
                known.token, known.submit_utc, known.may_requeue = whole.token, whole.submit_utc, whole.may_requeue
        return known

    def submitted(self, ref: JobRef, token: str, now_utc: float, *, may_requeue: bool = True) -> None:
        """Accounting keeps jobs for years and ids come again: rows older than this are another job's."""
        self._jobs[str(ref)] = _Known(
            first_seen_s=self._clock.mono(), token=token, submit_utc=now_utc, may_requeue=may_requeue
        )

    def learn_requeue(self, may_requeue: Mapping[str, bool]) -> None:
        """Whether jobs may come back after their end, by `str(ref)`: no row of Slurm tells."""
        for text, may in may_requeue.items():
            self._known(_ref(text)).may_requeue = may

    def take_over(self, views: Iterable[JobView], exit_records: Mapping[str, ExitRecord]) -> None:
        """What another process knew, and what jobs wrote about their own end."""
        for seen in views:
            known = self._known(seen.ref)
            if known.token and seen.token and known.token != seen.token:
                # Two jobs of one id: the controller forgot the older one, and the id is the newer one's.
                if (seen.submit_utc or 0.0) <= (known.submit_utc or 0.0):
                    continue
                known = self._jobs[str(seen.ref)] = _Known(first_seen_s=self._clock.mono())
            if known.view is None:
                known.view, known.token, known.submit_utc = seen, seen.token, known.submit_utc or seen.submit_utc
        for text, record in exit_records.items():
            known = self._known(_ref(text))
            if known.exit_record != record:
                known.exit_record, known.is_settled = record, False

    def remembered(self, ref: JobRef) -> JobView | None:
        """The last view, when the latest question was not answered."""
        known = self._jobs.get(str(ref))
        if known is None or known.view is None:
            return None
        return known.view if known.is_settled else replace(known.view, stale=True)

    def is_taken(self, ref: JobRef) -> bool:
        """True when its id is another job's by now, as far as the last look told: whatever is asked would meet that."""
        known = self._jobs.get(str(ref))
        return known is not None and known.is_taken

    def needs_accounting(self, ref: JobRef, look: Look) -> bool:
        """True for what left the queue, or stands there as ended; never for what lives."""
        known = self._known(ref)
        if known.is_settled:
            return False
        row = _row_of(known, ref, look)
        return row is None or row.state.phase.startswith("terminal")

    def submitted_utc(self, refs: Sequence[JobRef]) -> dict[str, float]:
        """When we submitted them, where that is known, by base id."""
        known = {ref.id: self._known(ref).submit_utc for ref in refs}
        return {key: at for key, at in known.items() if at is not None}

    def learn_requeue_delay(self, ask: Callable[[], float | None]) -> None:
        """The site's delay matters only once a job may come back, and is asked for only then."""
        if self._knows_delay or not self._may_return:
            return
        delay_s = ask()
        if delay_s is not None:
            self._policy = replace(self._policy, requeue_delay_s=delay_s)
            self._knows_delay = True

    def judge(self, ref: JobRef, look: Look, accounting: Mapping[str, AccountAnswer]) -> tuple[JobView | None, bool]:
        """The new view of a job, and whether every source answered and none knows it."""
        known = self._known(ref)
        if known.is_settled:
            return known.view, False
        row = _row_of(known, ref, look)
        known.is_taken = row is None and look.of(ref.id) is not None
        answer = next((accounting[base] for base in base_ids([ref]) if base in accounting), None)
        account = answer.of(ref.id) if answer is not None else None
        if account is not None:
            account = account.only(lambda kept: known.is_row(kept.name, "", kept.submit_utc))
        # Where there is no accounting there is nothing more to learn from it.
        account_answered = answer is not None and answer.query in ("ok", "disabled")
        self._count(known, is_missing=row is None)
        is_absent = row is None and account is None and account_answered
        array = _array_of(known, ref, look, answer) if is_absent else None
        is_new = known.view is None and known.exit_record is None and not known.token
        if row is None and account is None and is_new and array is None:
            return None, is_absent
        now_s = self._clock.mono()
        last = known.view
        evidence = Evidence(
            last=last.raw_state if last is not None else None,
            queue=row,
            account=account,
            account_answered=account_answered,
            has_accounting=answer is None or answer.query != "disabled",
            exit_record=known.exit_record,
            age_s=self._age_s(known, now_s),
            absent_s=None if known.missing_since_s is None else now_s - known.missing_since_s,
            may_requeue=known.may_requeue,
            array=array,
            polls_missing=known.polls_missing,
            restarts=last.restarts if last is not None else None,
        )
        verdict = reconcile(evidence, self._policy)
        seen = self._named(view(ref, verdict, queue=row, account=account, last=last), known)
        known.view = seen
        known.submit_utc = known.submit_utc or seen.submit_utc
        self._may_return = self._may_return or seen.raw_state in _MAY_RETURN
        known.is_settled = self._is_settled(known, terminal=verdict.terminal, row=row, account=account, answer=answer)
        return seen, is_absent

    def _count(self, known: _Known, *, is_missing: bool) -> None:
        if not is_missing:
            known.missing_since_s, known.polls_missing = None, 0
            return
        if known.missing_since_s is None:
            known.missing_since_s = self._clock.mono()
        known.polls_missing += 1

    def _age_s(self, known: _Known, now_s: float) -> float:
        if known.submit_utc is not None:
            return max(self._clock.utc() - known.submit_utc, 0.0)
        return now_s - known.first_seen_s

    def _named(self, seen: JobView, known: _Known) -> JobView:
        if seen.token:
            known.token = seen.token
            return seen
        return replace(seen, token=known.token) if known.token else seen

    def _is_settled(
        self,
        known: _Known,
        *,
        terminal: bool,
        row: QueueRow | None,
        account: AccountJob | None,
        answer: AccountAnswer | None,
    ) -> bool:
        if not terminal:
            known.looks_after_end, known.ended_since_s = 0, None
            return False
        known.looks_after_end += 1
        if known.ended_since_s is None:
            known.ended_since_s = self._clock.mono()
        if row is not None and row.state.phase != "terminal":
            return False
        has_end = account is not None and account.latest.state.phase == "terminal" and not lacks_exit_code(account)
        without = answer is not None and answer.query == "disabled"
        waited_s = self._clock.mono() - known.ended_since_s
        return has_end or without or (known.looks_after_end >= _EXIT_CODE_LOOKS and waited_s >= _EXIT_CODE_WAIT_S)

    def from_queue(self, row: QueueRow, cluster: str | None) -> JobView:
        """The view of a row of a listing, which is remembered too."""
        ref = JobRef(id=row.id.key, cluster=row.id.cluster or cluster)
        # Other people's work with the same account passes through here every day; only ours is kept.
        token = token_in(row.name, row.comment)
        ours = str(ref) in self._jobs or bool(token)
        known = self._known(ref) if ours else _Known(first_seen_s=0.0)
        if not known.is_row(row.name, row.comment, row.submit_utc):
            # The controller gave the id to this job: what was known under it was another's.
            known = _Known(first_seen_s=self._clock.mono())
            if token:
                self._jobs[str(ref)] = known
        last = known.view
        evidence = Evidence(
            last=last.raw_state if last is not None else None,
            queue=row,
            account_answered=False,
            exit_record=known.exit_record,
            may_requeue=known.may_requeue,
            restarts=last.restarts if last is not None else None,
        )
        verdict = reconcile(evidence, self._policy)
        seen = view(ref, verdict, queue=row, last=last)
        known.token = seen.token or known.token
        known.submit_utc = known.submit_utc or seen.submit_utc
        self._count(known, is_missing=False)
        if not known.is_settled:
            known.view = seen
        return seen

    def from_accounting(self, token: str, answer: AccountAnswer) -> list[JobView]:
        """The jobs of an accounting answer that carry the token; their steps and elements come with them."""
        views: list[JobView] = []
        for key, found in answer.jobs.items():
            job = found.only(lambda row: carries(token, row.name))
            # A refused submission leaves a row with our token, and was never a job.
            if job is None or job.refused:
                continue
            ref = JobRef(id=key)
            known = self._known(ref)
            evidence = Evidence(account=job, may_requeue=known.may_requeue)
            seen = replace(view(ref, reconcile(evidence, self._policy), account=job), token=token)
            views.append(seen)
            # Whoever has the id now keeps it.
            if known.token in ("", token):
                known.token, known.view = token, seen
        return views


def _ref(text: str) -> JobRef:
    job, _, cluster = text.partition(";")
    return JobRef(id=job, cluster=cluster or None)


def _row_of(known: _Known, ref: JobRef, look: Look) -> QueueRow | None:
    """The row under the job's id, if it is its own."""
    row = look.of(ref.id)
    return row if row is not None and known.is_row(row.name, row.comment, row.submit_utc) else None


def _array_of(known: _Known, ref: JobRef, look: Look, answer: AccountAnswer | None) -> str | None:
    """What is left of the array of an element that no source has a row of; None for what is no such element."""
    base, _, task = ref.id.partition("_")
    has_run = known.view is not None and bool(known.view.nodes)
    if not task.isdigit() or has_run:
        return None
    if look.bases.get(base):
        return ARRAY_QUEUED
    in_accounting = answer is not None and any(job.latest.id.base == base for job in answer.jobs.values())
    return ARRAY_GONE if in_accounting or base in look.bases or known.token or known.view is not None else None
