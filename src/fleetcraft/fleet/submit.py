"""One submission: rendered, laid before the guards, written down, asked for, and its answer written down.

The intent stands in the records before the scheduler is asked, so a crash at any point leaves something to look up.
Nothing is asked twice: a lost answer stays open until the token was looked up (see `resolve`).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from fleetcraft.core.errors import OutOfReach, Refused
from fleetcraft.fleet import records as kinds
from fleetcraft.fleet.gate import Proposal, Ruling, ask_guards
from fleetcraft.fleet.handle import MEND, Fleet
from fleetcraft.fleet.render import render_work, request_for
from fleetcraft.fleet.spec import FleetSpec
from fleetcraft.fleet.state import WORK, FleetState, fold, ref_json
from fleetcraft.schedulers.api import (
    JobRef,
    JobRequest,
    Limits,
    Observation,
    Retry,
    StartEstimate,
    Submission,
    SubmitOutcome,
)
from fleetcraft.store.files import ensure_folder, explain, publish_file

LATE = "late"
SCRIPT = "script.sh"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What is to be submitted, and why."""

    spec: FleetSpec
    why: str
    purpose: str = WORK
    lane: int | None = None
    follows: str | None = None
    begin_utc: float | None = None
    after: tuple[JobRef, ...] = ()
    exclude: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A submission before it is made: everything a dry run shows."""

    wish: Wish
    token: str
    request: JobRequest
    ruling: Ruling
    node_hours: float
    gpu_hours: float
    units: float | None

    def as_json(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            "token": self.token, "why": self.wish.why, "purpose": self.wish.purpose, "lane": self.wish.lane,
            "shape": self.wish.spec.shape, "nodes": self.request.nodes, "gpus_per_node": self.wish.spec.gpus_per_node,
            "time_limit_s": self.request.time_limit_s, "begin_utc": self.request.begin_utc,
            "exclude": list(self.request.exclude), "node_hours": self.node_hours, "gpu_hours": self.gpu_hours,
            "units": self.units, "allowed": self.ruling.allowed, "decisions": self.ruling.as_json(),
        }  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Submitted:
    """What became of one wish. Without a `submission` the guards said no."""

    draft: Draft
    submission: Submission | None = None
    problems: tuple[str, ...] = field(default=())

    @property
    def token(self) -> str:
        """The token of the job."""
        return self.draft.token

    @property
    def ref(self) -> JobRef | None:
        """The job, where one stands for the wish."""
        return self.submission.ref if self.submission else None

    @property
    def words(self) -> str:
        """One sentence for a person."""
        if self.submission is None:
            if self.draft.ruling.unanswered:
                return f"nothing was submitted: {self.draft.ruling.unanswered}"
            return f"refused: {self.draft.ruling.reason}"
        said = f": {self.submission.text}" if self.submission.text else ""
        outcome = self.submission.outcome
        if self.submission.ref is not None:
            return f"job {self.submission.ref} ({self.token}) stands for it"
        if outcome is SubmitOutcome.AMBIGUOUS:
            return f"the answer was lost; {self.token} is looked up by the next pass{said}"
        return f"not submitted ({self.submission.code or outcome.value}){said}"


@dataclass(frozen=True, slots=True, kw_only=True)
class DryRun:
    """Everything that a submission would do, without doing it."""

    draft: Draft
    argv: tuple[str, ...] | None  # None: the adapter cannot show it
    estimate: StartEstimate

    def as_json(self) -> dict[str, Any]:
        """For `--json`."""
        estimate = self.estimate
        return {
            **self.draft.as_json(), "script": self.draft.request.script,
            "argv": None if self.argv is None else list(self.argv),
            "start": {
                "possible": estimate.possible, "start_utc": estimate.start_utc, "nodes": list(estimate.nodes),
                "partition": estimate.partition, "code": estimate.code, "text": estimate.text,
            },
        }  # fmt: skip


def draft(
    fleet: Fleet, state: FleetState, wish: Wish, *, script_for: Callable[[str], str] | None = None,
    limits: Limits | None = None, mine: Observation | None = None,
) -> Draft:  # fmt: skip
    """Render and ask the guards. Nothing is written and nothing submitted.

    `script_for` makes the script of a job that serves something else than the spool, from its token.
    """
    spec, token = wish.spec, fleet.make_token()
    script = script_for(token) if script_for else render_work(spec, fleet.folder, token, fleet.launch())
    request = request_for(
        spec, fleet.folder, token, script, begin_utc=wish.begin_utc, after=wish.after, exclude=wish.exclude
    )
    proposal = Proposal(
        spec=spec, request=request, state=state, now_utc=fleet.now(), why=wish.why, limits=limits, mine=mine,
        gpu_hours=spec.gpu_hours(), node_hours=spec.node_hours(), units=spec.units(),
    )  # fmt: skip
    return Draft(
        wish=wish, token=token, request=request, ruling=ask_guards(fleet.guards, proposal),
        node_hours=spec.node_hours(), gpu_hours=spec.gpu_hours(), units=spec.units(),
    )  # fmt: skip


def dry_run(fleet: Fleet, drafted: Draft) -> DryRun:
    """Ask the scheduler when it would start, and show what would be said to it."""
    shows = getattr(fleet.scheduler, "submit_argv", None)
    said = shows(drafted.request) if callable(shows) else None
    argv = tuple(said) if said is not None else None
    return DryRun(draft=drafted, argv=argv, estimate=fleet.scheduler.test_only(drafted.request))


def declare(fleet: Fleet, state: FleetState, spec: FleetSpec) -> int:
    """The number of the record that holds this very spec; written when it is new. Raises Overtaken."""
    _check_records(fleet)
    for number, known in state.specs.items():
        if known == spec and state.shapes.get(spec.shape) == number:
            return number
    return fleet.log.decide(kinds.SPEC, spec=spec.as_json(), digest=spec.digest).number


def submit(fleet: Fleet, drafted: Draft, *, spec_number: int | None) -> Submitted:
    """Make the submission. `fleet.log` must have been read before the decision to submit was made.

    Raises Overtaken when another pass wrote something meanwhile; then nothing was asked and nothing is left behind.
    """
    if not drafted.ruling.allowed:
        _note_refusal(fleet, drafted)
        return Submitted(draft=drafted)
    _check_records(fleet)
    wish, request = drafted.wish, drafted.request
    fleet.log.decide(
        kinds.INTENT, token=drafted.token, spec=spec_number, shape=wish.spec.shape, lane=wish.lane,
        nodes=request.nodes, gpus_per_node=wish.spec.gpus_per_node, time_limit_s=request.time_limit_s,
        purpose=wish.purpose, why=wish.why, follows=wish.follows, begin_utc=wish.begin_utc,
        after=[str(ref) for ref in wish.after], exclude=list(request.exclude),
        gpu_hours=drafted.gpu_hours, units=drafted.units, decisions=drafted.ruling.as_json(),
    )  # fmt: skip
    begun_s = fleet.spool.clock.boot()
    try:
        _make_job_folder(fleet, drafted)
    except OutOfReach as error:
        return _conclude(fleet, drafted, _never_sent("folder", str(error)))
    # After a pause of this process another pass may have given the intent up; then it must not be asked any more.
    if fleet.spool.clock.boot() - begun_s > fleet.policy.settle_s:
        return _conclude(fleet, drafted, _never_sent(LATE, "this process was paused before it could ask"))
    return _conclude(fleet, drafted, fleet.scheduler.submit(request))


def _check_records(fleet: Fleet) -> None:
    """What a damaged record said may be a job that runs, or a cap. Looks at what was read already. Raises Refused."""
    problems = [*fleet.log.problems, *fold(fleet.log.records).problems]
    if problems:
        raise Refused(f"Nothing is submitted for the fleet {fleet.name}: {'; '.join(problems)}.", hint=MEND)


def _never_sent(code: str, text: str) -> Submission:
    return Submission(outcome=SubmitOutcome.NOT_SUBMITTED, code=code, retry=Retry.TRANSIENT, text=text)


def _make_job_folder(fleet: Fleet, drafted: Draft) -> None:
    """The scheduler writes the job's output there, so it must be there first; the script stays for whoever asks."""
    files, job = fleet.spool.files, fleet.folder.job(drafted.token)
    try:
        ensure_folder(files, job.root)
        content = drafted.request.script.encode("utf-8", "surrogateescape")
        publish_file(files, os.path.join(job.root, SCRIPT), content, durable=False)
    except OSError as error:
        raise explain(error, f"Cannot make the folder {job.root}") from error


def _conclude(fleet: Fleet, drafted: Draft, submission: Submission) -> Submitted:
    token = drafted.token
    if submission.ref is not None:
        fleet.log.state_fact(
            kinds.SUBMITTED, token=token, ref=ref_json(submission.ref), outcome=submission.outcome.value,
            text=submission.text,
        )  # fmt: skip
        problems = end_if_withdrawn(fleet, token)
        return Submitted(draft=drafted, submission=submission, problems=tuple(problems))
    if submission.outcome in (SubmitOutcome.REJECTED, SubmitOutcome.NOT_SUBMITTED):
        fleet.log.state_fact(
            kinds.REJECTED, token=token, code=submission.code or submission.outcome.value,
            retry=submission.retry.value, text=submission.text, hint=submission.hint,
        )  # fmt: skip
    else:
        fleet.log.state_fact(kinds.UNRESOLVED, token=token, text=submission.text)
    return Submitted(draft=drafted, submission=submission)


def end_if_withdrawn(fleet: Fleet, token: str) -> list[str]:
    """A job that came after its intent was given up must not run: its script runs nothing, and it is cancelled."""
    job = fold(fleet.log.records).jobs.get(token)
    if job is None or not job.withdrawn or job.ref is None:
        return []
    return fleet.cancel_refs([job.ref, *job.extra_refs])


def _note_refusal(fleet: Fleet, drafted: Draft) -> None:
    """Keep a refusal, once for as long as its reason stays the same."""
    notes = [record for record in fleet.log.records if record.kind in (kinds.NOTE, kinds.INTENT)]
    last = notes[-1] if notes else None
    reason = drafted.ruling.reason
    if (
        last is not None
        and last.body.get("what") == "refused"
        and last.body.get("refused") == list(drafted.ruling.refused)
    ):
        return
    fleet.log.state_fact(
        kinds.NOTE, what="refused", why=drafted.wish.why, refused=list(drafted.ruling.refused), reason=reason,
        decisions=drafted.ruling.as_json(),
    )  # fmt: skip
