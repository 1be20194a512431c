"""PBS, LSF, Flux and others by way of PSI/J: its scripts, words and tables, and our own account of what they are worth.

PSI/J takes a job that is in no answer for completed, and a failed question for failed jobs. So its own watching is
never used where it can be helped: the commands it makes run over our transport, and an answer that it cannot read is
no answer. What it cannot tell is unknown, with the reason.
"""

from __future__ import annotations

import getpass
import io
import json
import signal
import sys
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from fleetcraft.core.clock import Clock, SystemClock
from fleetcraft.core.errors import UsageError
from fleetcraft.core.states import JobState
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
from fleetcraft.schedulers.psij_records import PsijRecord, PsijRecords
from fleetcraft.schedulers.psij_request import ATTRIBUTES, job_of, refusal
from fleetcraft.schedulers.tokens import check_token
from fleetcraft.store.files import Files, publish_file
from fleetcraft.transports.api import Transport
from fleetcraft.transports.local import LocalTransport

_WAITING, _RUNS = "QUEUED", "ACTIVE"
_WORDS = {"NEW": JobState.PENDING, _WAITING: JobState.PENDING, _RUNS: JobState.RUNNING}


def available() -> tuple[str, ...]:
    """The back ends that can be asked for by name."""
    return tuple(ATTRIBUTES)


def _library() -> Any:
    # Its local back end takes over the whole process's handling of ended children; a worker would lose its own.
    before = signal.getsignal(signal.SIGCHLD)
    try:
        import psij
        import psij.executors.local

        return psij
    except ImportError as error:
        raise UsageError(
            f"The scheduler psij needs the package psij-python ({error}).",
            hint="Install it with: pip install 'fleetcraft[psij]'",
        ) from error
    finally:
        if before is not None and signal.getsignal(signal.SIGCHLD) is not before:
            signal.signal(signal.SIGCHLD, before)


class PsijScheduler:
    """One back end of PSI/J. `folder` keeps scripts and records; the nodes must see it too."""

    def __init__(
        self,
        executor: str,
        folder: str,
        *,
        transport: Transport | None = None,
        timeout_s: float = 60.0,
        clock: Clock | None = None,
    ) -> None:
        if executor not in ATTRIBUTES:
            raise UsageError(f"{executor!r} is not a back end of PSI/J that is known here.", hint=", ".join(ATTRIBUTES))
        self._psij = _library()
        self._name = executor
        self._records = PsijRecords(folder)
        self._transport = transport or LocalTransport()
        self._timeout_s = timeout_s
        self._clock = clock or SystemClock()
        self._executor = self._open_executor()
        self._live: dict[str, Any] = {}  # token -> psij.Job, for back ends that work inside this process
        self._last: dict[str, JobView] = {}

    def _open_executor(self) -> Any:
        psij = self._psij
        config: Any = None
        if self._name not in ("local", "flux"):
            from psij.executors.batch.batch_scheduler_executor import BatchSchedulerExecutorConfig

            config = BatchSchedulerExecutorConfig(work_directory=Path(self._records.folder), keep_files=True)
        try:
            executor = psij.JobExecutor.get_instance(self._name, config=config)
        except (ImportError, ValueError) as error:
            raise UsageError(f"PSI/J cannot load its back end {self._name}: {error.__cause__ or error}.") from error
        if config is not None:
            executor.work_directory.mkdir(parents=True, exist_ok=True)
            # Its own way asks for the terminal's owner, and there is no terminal in a job or in cron.
            executor._current_user = getpass.getuser  # noqa: SLF001  there is no setting for it
        elif self._name == "local":
            _close_pipes(executor)
        return executor

    @property
    def kind(self) -> str:
        """See `Scheduler.kind`."""
        return f"psij:{self._name}"

    @property
    def _is_batch(self) -> bool:
        return hasattr(self._executor, "get_submit_command")

    # Submission

    def submit(self, request: JobRequest) -> Submission:
        """See `Scheduler.submit`."""
        token = check_token(request.token)
        refused = refusal(self._name, request)
        if refused is not None:
            return refused
        earlier = self._earlier(token)
        if earlier is not None:
            return earlier
        self._records.intend(request, self._clock.utc())
        job = job_of(self._psij, self._name, request, self._records)
        reply = self._send(job, token) if self._is_batch else self._start(job, token)
        if reply.ref is not None:
            self._records.note_id(token, reply.ref.id)
        elif reply.outcome is not SubmitOutcome.AMBIGUOUS:
            self._records.forget(token)
        return reply

    def _earlier(self, token: str) -> Submission | None:
        known = self._records.of(token)
        if known is None:
            return None
        if known.native_id is not None:
            return Submission(outcome=SubmitOutcome.FOUND, ref=JobRef(id=known.native_id))
        return Submission(
            outcome=SubmitOutcome.AMBIGUOUS,
            code="reply_lost",
            retry=Retry.LOOK_UP,
            text="the reply to an earlier submission was lost, and PSI/J cannot look a job up by its name",
            hint="The job tells its id itself once it runs; until then nothing is sent again.",
        )

    def _send(self, job: Any, token: str) -> Submission:
        executor = self._executor
        path = executor.work_directory / f"{token}.job"
        text = io.StringIO()
        executor.generate_submit_script(job, executor._create_script_context(job), text)  # noqa: SLF001  the only way to it
        publish_file(Files(), str(path), text.getvalue().encode())
        answer = self._transport.run(executor.get_submit_command(job, path), timeout_s=self._timeout_s)
        if answer.code is None:
            if answer.problem.startswith("not "):  # not found, not started
                return Submission(outcome=SubmitOutcome.NOT_SUBMITTED, code="no_command", text=answer.problem)
            return Submission(
                outcome=SubmitOutcome.AMBIGUOUS, code="reply_lost", retry=Retry.LOOK_UP, text=answer.problem
            )
        if answer.code != 0:
            # PSI/J does not read refusals. One that may have been delivered is not sent again.
            said = f"{answer.out}\n{answer.err}".strip()
            lost = any(words in said.lower() for words in ("timed out", "timeout", "reset by peer", "broken pipe"))
            return Submission(
                outcome=SubmitOutcome.AMBIGUOUS if lost else SubmitOutcome.REJECTED,
                code="reply_lost" if lost else "refused",
                retry=Retry.LOOK_UP if lost else Retry.NEVER,
                text=said[:1000],
            )
        try:
            native_id = str(executor.job_id_from_submit_output(answer.out))
        except Exception as error:  # noqa: BLE001  its readers raise whatever they stumble over
            return Submission(
                outcome=SubmitOutcome.AMBIGUOUS,
                code="reply_unread",
                retry=Retry.LOOK_UP,
                text=f"{type(error).__name__}: {answer.out[:500]!r}",
            )
        return Submission(outcome=SubmitOutcome.SUBMITTED, ref=JobRef(id=native_id))

    def _start(self, job: Any, token: str) -> Submission:
        """Back ends without commands run inside this process, and with it end what they know."""
        try:
            self._executor.submit(job)
            if self._name == "flux":
                job.wait(timeout=timedelta(seconds=self._timeout_s), target_states=[self._psij.JobState.QUEUED])
        except Exception as error:  # noqa: BLE001  its errors have no common base
            return Submission(
                outcome=SubmitOutcome.REJECTED, code="refused", text=f"{type(error).__name__}: {error}"[:1000]
            )
        self._live[token] = job
        return Submission(outcome=SubmitOutcome.SUBMITTED, ref=JobRef(id=str(job.native_id)))

    # Questions

    def find(self, token: str) -> Observation:
        """See `Scheduler.find`."""
        now_utc = self._clock.utc()
        known = self._records.of(check_token(token))
        if known is None:
            return Observation(at_utc=now_utc, jobs={})
        if known.native_id is None:
            return Observation(
                at_utc=now_utc,
                jobs={},
                answered=False,
                problems=("PSI/J cannot look a job up by its name; the job tells its id once it runs",),
            )
        return self.observe([JobRef(id=known.native_id)])

    def observe(self, refs: Sequence[JobRef]) -> Observation:
        """See `Scheduler.observe`."""
        tokens = self._records.tokens()
        said, problem, queries = self._ask([ref.id for ref in refs if ref.id in tokens])
        jobs: dict[str, JobView] = {}
        absent: list[JobRef] = []
        for ref in refs:
            token = tokens.get(ref.id)
            known = self._records.of(token) if token is not None else None
            if known is None or token is None:
                absent.append(ref)
                continue
            view = self._view(ref, token, known, said.get(ref.id), answered=not problem)
            jobs[str(ref)] = self._last[str(ref)] = view
        return Observation(
            at_utc=self._clock.utc(),
            jobs=jobs,
            absent=tuple(absent),
            answered=not problem,
            problems=(problem,) if problem else (),
            queries=queries,
        )

    def _ask(self, ids: Sequence[str]) -> tuple[dict[str, Any], str, int]:
        """PSI/J's word for each job, or why there is none."""
        if not self._is_batch:
            return {str(job.native_id): job.status for job in self._live.values()}, "", 0
        if not ids:
            return {}, "", 0
        answer = self._transport.run(self._executor.get_status_command(ids), timeout_s=self._timeout_s)
        if answer.code is None:
            return {}, answer.problem, 1
        try:
            return self._executor.parse_status_output(answer.code, _mended(self._name, answer.out)), "", 1
        except Exception as error:  # noqa: BLE001  one odd row makes its reader raise for all
            words = (answer.err.strip() or str(error) or answer.out)[:200]
            return {}, f"PSI/J cannot read the answer: {type(error).__name__}: {words}", 1

    def _view(self, ref: JobRef, token: str, known: PsijRecord, status: Any, *, answered: bool) -> JobView:
        state, notes = self._judge(ref, known, status, answered=answered)
        last = self._last.get(str(ref))
        raw = status.state.name if status is not None else (last.raw_state if last is not None else "")
        code = known.ended[0] if known.ended is not None else None
        record = known.asked
        return JobView(
            ref=ref,
            state=state,
            raw_state=raw,
            name=f"{record.get('name', '')}.{token}",
            token=token,
            reason=(status.message or "") if status is not None else "",
            reason_text=(status.message or "") if status is not None else "",
            qos=str(record.get("qos") or ""),
            account=str(record.get("account") or ""),
            submit_utc=record.get("at_utc"),
            start_utc=known.began[1] if known.began is not None else None,
            end_utc=known.ended[1] if known.ended is not None else None,
            node_count=record.get("nodes"),
            gpus=record.get("gpus"),
            exit_code=code,
            time_limit_s=record.get("time_limit_s"),
            source="exit_record" if known.ended is not None else ("queue" if status is not None else "memory"),
            stale=not answered and known.ended is None,
            notes=notes,
        )

    def _judge(
        self, ref: JobRef, known: PsijRecord, status: Any, *, answered: bool
    ) -> tuple[JobState, tuple[str, ...]]:
        word = status.state.name if status is not None else ""
        if word == "CANCELED" and known.ended is None:
            return JobState.CANCELLED, ()
        if known.ended is not None:
            # The script ended and said how; whatever the back end calls that.
            if word == "CANCELED" and known.ended[0] != 0:
                return JobState.CANCELLED, ()
            return (JobState.DONE if known.ended[0] == 0 else JobState.FAILED), ()
        if word in _WORDS:
            return _WORDS[word], ()
        if not answered:
            last = self._last.get(str(ref))
            return (last.state if last is not None else JobState.UNKNOWN), ("the question was not answered",)
        if word in ("COMPLETED", "FAILED"):
            # PSI/J has one word for time limit, lost node, preemption and failure.
            return JobState.LOST, (f"PSI/J says {word} and the script left no exit code: nobody knows what ended it",)
        return JobState.UNKNOWN, ("PSI/J's question does not show it any more, and the script left no exit code",)

    def mine(self) -> Observation:
        """See `Scheduler.mine`."""
        if not self._is_batch:
            return self.observe([JobRef(id=native_id) for native_id in self._records.tokens()])
        executor = self._executor
        answer = self._transport.run(executor.get_list_command(), timeout_s=self._timeout_s)
        try:
            ids = [text for text in executor.parse_list_output(answer.out) if text] if answer.code == 0 else None
        except Exception:  # noqa: BLE001  as in `_ask`
            ids = None
        if ids is None:
            return Observation(
                at_utc=self._clock.utc(),
                jobs={},
                answered=False,
                problems=(answer.problem or answer.err.strip()[:200] or "the list cannot be read",),
                queries=1,
            )
        ours = self._records.tokens()
        seen = self.observe([JobRef(id=native_id) for native_id in ids if native_id in ours])
        others = {
            native_id: JobView(
                ref=JobRef(id=native_id),
                state=JobState.UNKNOWN,
                raw_state="",
                source="queue",
                notes=("PSI/J lists the ids of other jobs, and nothing else",),
            )
            for native_id in ids
            if native_id not in ours
        }
        return Observation(
            at_utc=seen.at_utc,
            jobs={**others, **seen.jobs},
            answered=seen.answered,
            problems=seen.problems,
            queries=seen.queries + 1,
        )

    # Wishes

    def cancel(self, refs: Sequence[JobRef], *, signal: str | None = None, only_waiting: bool = False) -> list[Change]:
        """See `Scheduler.cancel`."""
        if signal is not None:
            return [Change(ref=ref, asked=False, text="PSI/J sends no signals") for ref in refs]
        if only_waiting:
            seen = self.observe(refs)
            runs = [ref for ref in refs if (view := seen.jobs.get(str(ref))) and view.state is JobState.RUNNING]
            left = [Change(ref=ref, asked=False, text="it runs already") for ref in runs]
            return [*left, *self.cancel([ref for ref in refs if ref not in runs])]
        return [self._cancel(ref, self._records.tokens().get(ref.id)) for ref in refs]

    def _cancel(self, ref: JobRef, token: str | None) -> Change:
        if token is None:
            return Change(ref=ref, asked=False, text="no job of this folder")
        if self._is_batch:
            answer = self._transport.run(self._executor.get_cancel_command(ref.id), timeout_s=self._timeout_s)
            said = answer.problem or answer.err.strip() or answer.out.strip()
            return Change(ref=ref, asked=answer.code == 0, text="" if answer.code == 0 else said[:200])
        job = self._live.get(token)
        if job is None:
            return Change(ref=ref, asked=False, text="it was started by another process; only that one can end it")
        try:
            self._executor.cancel(job)
        except Exception as error:  # noqa: BLE001  it raises KeyError for a job that has just ended
            return Change(ref=ref, asked=False, text=f"{type(error).__name__}: {error}")
        return Change(ref=ref, asked=True)

    def hold(self, refs: Sequence[JobRef]) -> list[Change]:
        """See `Scheduler.hold`."""
        return [Change(ref=ref, asked=False, text="PSI/J holds no jobs") for ref in refs]

    def release(self, refs: Sequence[JobRef]) -> list[Change]:
        """See `Scheduler.release`."""
        return [Change(ref=ref, asked=False, text="PSI/J releases no jobs") for ref in refs]

    # The site

    def test_only(self, request: JobRequest) -> StartEstimate:
        """See `Scheduler.test_only`."""
        refused = refusal(self._name, request)
        if refused is not None:
            return StartEstimate(possible=False, code=refused.code, text=refused.text)
        return StartEstimate(possible=None, text="PSI/J gives no estimate")

    def limits(self) -> Limits:
        """See `Scheduler.limits`."""
        return Limits(at_utc=self._clock.utc(), answered=False, problems=("PSI/J does not tell a site's limits",))

    def version(self) -> tuple[int, ...] | None:
        """See `Scheduler.version`."""
        return None

    def command(self, words: Sequence[str], job: JobRef | None = None) -> list[str]:
        """See `Scheduler.command`."""
        if self._name == "slurm":
            inside = [] if job is None else [f"--jobid={job.id}", "--overlap"]
            return ["srun", *inside, "--ntasks-per-node=1", "--kill-on-bad-exit=0", *words]
        # On one node the script itself stands where the step would; for more no way was ever seen to work.
        return list(words)

    def describe(self) -> Mapping[str, Any]:
        """See `Scheduler.describe`."""
        return {
            "kind": self.kind,
            "folder": self._records.folder,
            "psij": getattr(self._psij, "__version__", None),
            "python": sys.version.split()[0],
        }


def _close_pipes(executor: Any) -> None:
    """Its local back end opens a pipe for each job and never closes it."""
    done = executor._process_done  # noqa: SLF001  there is no other place

    def done_and_closed(entry: Any) -> None:
        try:
            done(entry)
        finally:
            pipe = getattr(entry.process, "stdout", None)
            if pipe is not None:
                pipe.close()

    executor._process_done = done_and_closed  # noqa: SLF001  as above


def _mended(name: str, out: str) -> str:
    """PSI/J 0.9 reads the reasons of LSF under a key that LSF does not write, and raises for each row with a reason."""
    if name != "lsf":
        return out
    try:
        data = json.loads(out)
        for row in data["RECORDS"]:
            said = [row.get(key) for key in ("EXIT_REASON", "KILL_REASON", "SUSPEND_REASON")]
            row["reason"] = next((reason for reason in said if reason), "")
    except (ValueError, TypeError, KeyError, AttributeError):
        return out
    return json.dumps(data)
