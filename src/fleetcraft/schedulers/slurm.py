"""The Slurm adapter: joins what is asked and what is read over a transport, with as few questions as there can be.

A question that failed changes nothing: what was known stays, marked as stale. A submission whose reply was lost is
never sent again before its token was looked up.
"""

from __future__ import annotations

import posixpath
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from fleetcraft.core.clock import Clock, SystemClock
from fleetcraft.core.states import JobState
from fleetcraft.schedulers import slurm_args as args
from fleetcraft.schedulers import slurm_commands as commands
from fleetcraft.schedulers.api import (
    Change,
    JobRef,
    JobRequest,
    JobView,
    Limits,
    Observation,
    Retry,
    StartEstimate,
    Submission,
    SubmitOutcome,
)
from fleetcraft.schedulers.job_memory import JobMemory, Look
from fleetcraft.schedulers.questions import SILENCE_S, Questions
from fleetcraft.schedulers.slurm_reply import read_sbatch, read_test_only
from fleetcraft.schedulers.slurm_rows import QUEUE_WIDE, QueueAnswer, QueueRow
from fleetcraft.schedulers.slurm_verdict import ExitRecord, Policy
from fleetcraft.schedulers.tokens import check_token
from fleetcraft.transports.api import Answer, Transport

# A controller that could not be reached at all has not seen the request: it may be sent again, a few times.
_CONNECT_TRIES = 3
_CONNECT_PAUSE_S = 2.0
_TAKEN = "the scheduler forgot it and gave its id to another job, which is left alone"


class SlurmScheduler:
    """Slurm on the host of one transport."""

    kind = "slurm"

    def __init__(
        self,
        transport: Transport,
        *,
        site: args.Site | None = None,
        timeout_s: float = 60.0,
        policy: Policy | None = None,
        settle_s: float = 30.0,
        silence_s: float = SILENCE_S,
        clock: Clock | None = None,
        pause: Callable[[float], object] | None = None,
    ) -> None:
        """`settle_s`: how long a request whose reply was lost may still arrive at a controller that hung.

        `silence_s`: so long after a question without an answer the next ones are not asked.
        """
        self._transport = transport
        self._clock = clock or SystemClock()
        self._site = site or args.Site()
        self._ask = Questions(transport, self._site, timeout_s, self._clock, silence_s)
        self._memory = JobMemory(policy or Policy(), self._clock)
        self._settle_s = settle_s
        self._pause = pause or threading.Event().wait
        self._lost_replies: dict[str, float] = {}  # token -> when, by the clock that only grows

    # Submission

    def submit(self, request: JobRequest) -> Submission:
        """See `Scheduler.submit`."""
        script = args.script_bytes(request)
        argv = args.sbatch_argv(request, now_utc=self._clock.utc(), site=self._site)
        known = self._look_up_first(request.token)
        if known is not None:
            if known.ref is not None:
                self._memory.learn_requeue({str(known.ref): request.requeue})
            return known
        refusal = self._make_output_folder(request)
        if refusal is not None:
            return refusal
        reply = self._send(request, argv, script)
        tries_left = _CONNECT_TRIES - 1
        while tries_left and reply.outcome is SubmitOutcome.NOT_SUBMITTED and reply.retry is Retry.TRANSIENT:
            tries_left -= 1
            self._pause(_CONNECT_PAUSE_S)
            reply = self._send(request, argv, script)
        if reply.outcome is SubmitOutcome.AMBIGUOUS:
            self._lost_replies[request.token] = self._clock.mono()
            reply = self._settle_lost_reply(request.token, reply)
            if reply.ref is not None:
                self._memory.learn_requeue({str(reply.ref): request.requeue})
            return reply
        self._lost_replies.pop(request.token, None)
        if reply.ref is not None:
            self._memory.submitted(reply.ref, request.token, self._clock.utc(), may_requeue=request.requeue)
        return reply

    def _send(self, request: JobRequest, argv: Sequence[str], script: bytes) -> Submission:
        answer = self._ask.run(argv, stdin=script, surroundings=args.sbatch_surroundings(request))
        return read_sbatch(answer.out, answer.err, answer.code, problem=answer.problem)

    def submit_argv(self, request: JobRequest) -> list[str]:
        """The words that a submission would be made with, for whoever wants to see them first."""
        return args.sbatch_argv(request, now_utc=self._clock.utc(), site=self._site)

    def _look_up_first(self, token: str) -> Submission | None:
        """What stands in the way of sending: the job is there, or nobody can say whether it is."""
        lost_s = self._lost_replies.get(token)
        seen = self.find(token) if lost_s is not None else self._find_queued(token)
        ref = _only_job(seen)
        if ref is not None:
            self._lost_replies.pop(token, None)
            return Submission(outcome=SubmitOutcome.FOUND, ref=ref, text="a job with this token is there already")
        if not seen.answered:
            ours = SubmitOutcome.NOT_SUBMITTED if lost_s is None else SubmitOutcome.AMBIGUOUS
            retry = Retry.TRANSIENT if lost_s is None else Retry.LOOK_UP
            return Submission(
                outcome=ours,
                code="no_answer",
                retry=retry,
                text="; ".join(seen.problems),
                hint="Nothing was sent, because the queue did not answer. Try again later.",
            )
        if lost_s is not None and self._clock.mono() - lost_s < self._settle_s:
            return Submission(
                outcome=SubmitOutcome.AMBIGUOUS,
                code="settling",
                retry=Retry.LOOK_UP,
                text="the reply was lost and the job is not seen yet",
                hint=f"It may still arrive within {self._settle_s:g} s. Nothing was sent again.",
            )
        return None

    def _settle_lost_reply(self, token: str, reply: Submission) -> Submission:
        ref = _only_job(self.find(token))
        if ref is None:
            return replace(reply, retry=Retry.LOOK_UP)
        self._lost_replies.pop(token, None)
        return Submission(outcome=SubmitOutcome.SUBMITTED, ref=ref, text=f"found after a lost reply: {reply.text}")

    def _make_output_folder(self, request: JobRequest) -> Submission | None:
        """A job whose output folder is missing dies without a word (0:53)."""
        if request.output is None:
            return None
        # Placeholders that the job fills in make folders that nobody can make now.
        known = request.output.split("%", 1)[0] if "%" in posixpath.dirname(request.output) else request.output
        folder = posixpath.dirname(known)
        if not folder:
            return None
        answer = self._ask.run(["mkdir", "-p", "--", folder], cwd=request.cwd)
        if answer.code == 0:
            return None
        return Submission(
            outcome=SubmitOutcome.NOT_SUBMITTED,
            code="output_folder",
            retry=Retry.TRANSIENT if answer.code is None else Retry.NEVER,
            text=answer.problem or answer.err.strip(),
            hint=f"The folder {folder} for the job's output could not be made.",
        )

    def test_only(self, request: JobRequest) -> StartEstimate:
        """See `Scheduler.test_only`."""
        argv = args.sbatch_argv(request, now_utc=self._clock.utc(), site=self._site, test_only=True)
        answer = self._ask.ask(argv, stdin=args.script_bytes(request), surroundings=args.sbatch_surroundings(request))
        said = read_test_only(
            answer.out,
            answer.err,
            answer.code,
            problem=answer.problem,
            utc_offset_s=self._ask.utc_offset_s() if answer.code is not None else None,
        )
        return said.estimate()

    # Questions

    def find(self, token: str) -> Observation:
        """See `Scheduler.find`."""
        queued = self._find_queued(check_token(token))
        if queued.jobs or not queued.answered:
            return queued
        account = self._ask.accounting_of_user()
        views = self._memory.from_accounting(token, account)
        problems = (account.text,) if account.query == "failed" else ()
        if account.query == "disabled":
            problems = ("without accounting, a job that left the queue cannot be found",)
        return Observation(
            at_utc=self._clock.utc(),
            jobs={str(view.ref): view for view in views},
            answered=account.query != "failed",
            problems=problems,
            queries=queued.queries + 1,
        )

    def _find_queued(self, token: str) -> Observation:
        return self._queued(lambda row: args.carries(token, row.name, row.comment))

    def mine(self) -> Observation:
        """See `Scheduler.mine`."""
        return self._queued(lambda _row: True)

    def _queued(self, is_wanted: Callable[[QueueRow], bool]) -> Observation:
        answer = self._ask.queue(QUEUE_WIDE)
        if answer.query != "ok":
            return self._unanswered(answer)
        # A refused submission leaves a row with our token, and was never a job.
        rows = [row for row in answer.rows if not row.refused and is_wanted(row)]
        views = [self._memory.from_queue(row, self._site.cluster) for row in rows]
        return Observation(
            at_utc=self._clock.utc(),
            jobs={str(view.ref): view for view in views},
            problems=answer.problems,
            queries=1,
        )

    def observe(self, refs: Sequence[JobRef]) -> Observation:
        """See `Scheduler.observe`."""
        if not refs:
            return Observation(at_utc=self._clock.utc(), jobs={})
        refs = list(dict.fromkeys(refs))
        answer = self._ask.queue()
        if answer.query != "ok":
            return self._unanswered(answer, refs)
        look = Look(answer.rows)
        asked = [ref for ref in refs if self._memory.needs_accounting(ref, look)]
        accounting, problems, queries = self._ask.accounting(asked, self._memory.submitted_utc(asked))
        self._memory.learn_requeue_delay(self._ask.requeue_delay_s)
        jobs: dict[str, JobView] = {}
        absent: list[JobRef] = []
        for ref in refs:
            view, is_absent = self._memory.judge(ref, look, accounting)
            if view is not None:
                jobs[str(ref)] = view
            if is_absent:
                absent.append(ref)
        return Observation(
            at_utc=self._clock.utc(),
            jobs=jobs,
            absent=tuple(absent),
            problems=(*answer.problems, *problems),
            queries=1 + queries,
        )

    def _unanswered(self, answer: QueueAnswer, refs: Sequence[JobRef] = ()) -> Observation:
        remembered = {str(ref): self._memory.remembered(ref) for ref in refs}
        return Observation(
            at_utc=self._clock.utc(),
            jobs={text: view for text, view in remembered.items() if view is not None},
            answered=False,
            problems=(answer.text or "squeue gave no answer",),
            queries=1,
        )

    def remember(
        self,
        views: Iterable[JobView] = (),
        exit_records: Mapping[str, ExitRecord] | None = None,
        may_requeue: Mapping[str, bool] | None = None,
    ) -> None:
        """Take over what another process knew, and what jobs wrote about their own end, by `str(ref)`.

        `may_requeue` False: the job was submitted so that it never comes back. The scheduler's rows do not tell it.
        """
        self._memory.take_over(views, exit_records or {})
        self._memory.learn_requeue(may_requeue or {})

    # Wishes

    def cancel(self, refs: Sequence[JobRef], *, signal: str | None = None, only_waiting: bool = False) -> list[Change]:
        """See `Scheduler.cancel`."""
        return self._change(
            refs,
            lambda some: commands.scancel_argv(some, signal=signal, only_waiting=only_waiting, site=self._site),
        )

    def hold(self, refs: Sequence[JobRef]) -> list[Change]:
        """See `Scheduler.hold`."""
        return self._change(refs, commands.hold_argv)

    def release(self, refs: Sequence[JobRef]) -> list[Change]:
        """See `Scheduler.release`."""
        return self._change(refs, commands.release_argv)

    def _change(self, refs: Sequence[JobRef], argv_of: Callable[[Sequence[JobRef]], list[str]]) -> list[Change]:
        changes = [Change(ref=ref, asked=False, text=_TAKEN) for ref in refs if self._memory.is_taken(ref)]
        refs = [ref for ref in refs if not self._memory.is_taken(ref)]
        silent: Answer | None = None
        for start in range(0, len(refs), commands.CHUNK):
            some = refs[start : start + commands.CHUNK]
            answer = silent or self._ask.run(argv_of(some))
            silent = answer if answer.code is None else None
            changes += [_change_of(ref, answer) for ref in some]
        return changes

    # The site

    def limits(self) -> Limits:
        """See `Scheduler.limits`."""
        return self._ask.limits()

    def nodes_down(self, names: Sequence[str]) -> Mapping[str, str] | None:
        """Which of these nodes are down, and what the controller says of them; None: no answer."""
        return self._ask.nodes_down(names)

    def version(self) -> tuple[int, ...] | None:
        """See `Scheduler.version`."""
        return self._ask.version()

    def command(self, words: Sequence[str], job: JobRef | None = None) -> list[str]:
        """See `Scheduler.command`."""
        return commands.srun_argv(words, job=job, overlap=job is not None)

    def describe(self) -> Mapping[str, Any]:
        """See `Scheduler.describe`."""
        return {"kind": self.kind, "transport": self._transport.name, **self._ask.describe()}


def _only_job(seen: Observation) -> JobRef | None:
    """The job to go on with; of several, one that has not ended."""
    views = sorted(seen.jobs.values(), key=lambda view: (view.state.ended, view.state is JobState.UNKNOWN, view.ref))
    if not views:
        return None
    # What was submitted is the whole array, or the whole of a job of many parts.
    return replace(views[0].ref, id=commands.base_ids([views[0].ref])[0])


def _change_of(ref: JobRef, answer: Answer) -> Change:
    if answer.code == 0:
        return Change(ref=ref, asked=True)
    if answer.code is None:
        return Change(ref=ref, asked=False, text=answer.problem)
    # One refusal line per job; the others of the same call were done.
    lines = [line.strip() for line in answer.err.splitlines() if line.strip()]
    words = [line for line in lines if ref.id in line.replace(",", " ").replace(":", " ").split()]
    if words:
        return Change(ref=ref, asked=False, text=words[0])
    named = any(any(word.isdigit() for word in line.replace(",", " ").replace(":", " ").split()) for line in lines)
    return Change(ref=ref, asked=named, text="" if named else "; ".join(lines)[:200])
