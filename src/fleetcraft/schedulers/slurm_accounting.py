"""Rows of sacct: attempts, steps and what is known of each job from them.

Accounting lags behind by seconds, keeps old jobs whose ids are used again, and says RUNNING long after an end: its
rows are evidence, and an empty answer is none.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

from fleetcraft.schedulers.slurm_causes import is_bad
from fleetcraft.schedulers.slurm_ids import JobId, parse_job_id
from fleetcraft.schedulers.slurm_lines import told, whole_lines
from fleetcraft.schedulers.slurm_states import ACTIVE, StateReading, read_state
from fleetcraft.schedulers.slurm_times import epoch_utc

SEPARATOR = "\x1f"
ACCOUNT_FIELDS = (
    "JobID",
    "JobIDRaw",
    "State",
    "ExitCode",
    "DerivedExitCode",
    "Submit",
    "Start",
    "End",
    "NodeList",
)
# What a person wrote comes last: it takes all that is left of its row.
ACCOUNT_FIND_FIELDS = (*ACCOUNT_FIELDS, "Account", "QOS", "JobName")
STEP_FIELDS = (*ACCOUNT_FIELDS, "MaxRSS", "TotalCPU", "AllocTRES")
# The clock of the controller may be behind ours by so much.
SKEW_S = 300.0
_SHOWN = 120
_NOTHING_MORE: Mapping[str, str] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountRow:
    """One row: an attempt of a job, or one of its steps."""

    id: JobId
    raw: str = ""
    state: StateReading
    exit_text: str = ""
    derived_text: str = ""
    submit_utc: float | None = None
    start_utc: float | None = None
    end_utc: float | None = None
    nodes_text: str = ""
    account: str = ""
    qos: str = ""
    name: str = ""
    more: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountJob:
    """All that accounting knows of one job: its newest attempt decides."""

    latest: AccountRow
    attempts: tuple[AccountRow, ...]  # oldest first
    steps: tuple[AccountRow, ...] = ()

    @property
    def restarts(self) -> int:
        """How often it was requeued."""
        return len(self.attempts) - 1

    @property
    def bad_steps(self) -> tuple[str, ...]:
        """The steps of a job that failed or were cancelled."""
        return tuple(
            step.id.step or ""
            for step in self.steps
            if step.state.outcome not in (None, "completed") or is_bad(step.exit_text)
        )

    @property
    def suspect(self) -> bool:
        """True for a job that Slurm calls completed although a part of it failed."""
        return self.latest.state.outcome == "completed" and bool(is_bad(self.latest.derived_text) or self.bad_steps)

    @property
    def never_ran(self) -> bool:
        """True for a job that ended without a start.

        One that was cancelled while it waited, and the trace that a refused submission leaves, have a start all the
        same: the time of their end. They never had a node.
        """
        latest = self.latest
        return latest.state.outcome is not None and (latest.start_utc is None or latest.nodes_text == "None assigned")

    @property
    def refused(self) -> bool:
        """True for the trace of a submission that sbatch refused: it used up an id, and was never a job."""
        return self.latest.state.outcome == "failed" and self.never_ran

    def only(self, is_wanted: Callable[[AccountRow], bool]) -> AccountJob | None:
        """The job by those of its rows that are wanted; None when there are none. An id may stand for several jobs."""
        kept = tuple(row for row in self.attempts if is_wanted(row))
        if len(kept) == len(self.attempts):
            return self
        return replace(self, latest=kept[-1], attempts=kept) if kept else None

    @property
    def stale_possible(self) -> bool:
        """True while accounting calls it active: it may be late, only the queue knows."""
        return self.latest.state.phase == ACTIVE


OK = "ok"
FAILED = "failed"
DISABLED = "disabled"  # the site keeps no accounting


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountAnswer:
    """What one sacct call told. `hint` is a word for what to ask differently."""

    query: str
    jobs: Mapping[str, AccountJob] = field(default_factory=dict)  # by id as shown: 17, 17_3, 32+1
    raw_keys: Mapping[str, str] = field(default_factory=dict)  # raw id -> key
    discarded: tuple[str, ...] = ()  # keys of rows that are older than our submission: another job's
    problems: tuple[str, ...] = ()
    retry: bool = False
    hint: str = ""  # chunk, narrow_window, drop_field, long_options
    text: str = ""

    def of(self, key: str) -> AccountJob | None:
        """The job by its id or by its raw id; one row may stand for all elements that were cancelled together."""
        found = self.jobs.get(key)
        if found is None and key in self.raw_keys:
            found = self.jobs.get(self.raw_keys[key])
        base, _, task = key.partition("_")
        if found is None and task.isascii() and task.isdigit() and len(task) <= 18 and base in self.jobs:
            found = self.jobs[base].only(lambda row: row.id.covers(int(task)))
        return found


HINTS = {
    "chunk": "Ask for at most 200 ids in one call, and for the base id of an array instead of its elements.",
    "narrow_window": "Ask for a shorter time, from an hour before the submission on.",
    "drop_field": "Leave that column out; `sacct --helpformat` says once which there are.",
    "long_options": "The site wraps sacct: write --jobs= instead of -j.",
}
_REFUSALS = (
    ("chunk", re.compile(r"Argument list too long", re.IGNORECASE)),
    ("narrow_window", re.compile(r"Too wide of a date range", re.IGNORECASE)),
    ("drop_field", re.compile(r"Invalid field requested", re.IGNORECASE)),
)
_DISABLED = re.compile(r"accounting storage is disabled", re.IGNORECASE)
_WRAPPED = re.compile(r"\bwrapper\b|non-positive number", re.IGNORECASE)


def read_sacct(
    out: str,
    err: str,
    code: int | None,
    *,
    fields: Sequence[str] = ACCOUNT_FIELDS,
    separator: str = SEPARATOR,
    submitted_utc: Mapping[str, float] | None = None,
    skew_s: float = SKEW_S,
    utc_offset_s: float | None = None,
    problem: str = "",
) -> AccountAnswer:
    """What an answer of sacct is worth. A header line, where there is one, says which columns follow.

    `submitted_utc` tells when we submitted a job, by its key or base id: older rows under its id are another job's.
    """
    said = " ".join((problem or err.strip() or out.strip()).split())[:_SHOWN]
    if code is None:
        return AccountAnswer(query=FAILED, retry=True, text=said)
    if _DISABLED.search(err):
        return AccountAnswer(query=DISABLED, text=said)
    if code != 0:
        hint = next((word for word, pattern in _REFUSALS if pattern.search(err)), "")
        return AccountAnswer(query=FAILED, retry=not hint, hint=hint, text=said)
    rows, problems = _rows(out, tuple(fields), separator, utc_offset_s)
    if not rows and problems and (_WRAPPED.search(out) or "ERROR" in out):
        return AccountAnswer(query=FAILED, hint="long_options", problems=problems, text=said)
    kept, discarded = _ours(rows, submitted_utc or {}, skew_s)
    jobs = _jobs(kept)
    raw_keys = {job.latest.raw: key for key, job in jobs.items() if job.latest.raw and job.latest.raw != key}
    return AccountAnswer(query=OK, jobs=jobs, raw_keys=raw_keys, discarded=discarded, problems=problems, text=said)


def _rows(
    out: str, fields: tuple[str, ...], separator: str, utc_offset_s: float | None
) -> tuple[list[AccountRow], tuple[str, ...]]:
    rows: list[AccountRow] = []
    problems: list[str] = []
    build, width = _builder(fields, utc_offset_s), len(fields)
    lines, torn = whole_lines(out, separator, names_last=fields[-1] == "JobName")
    for line in lines:
        if line.startswith("JobID") and separator in line:
            fields = tuple(line.split(separator))
            build, width = _builder(fields, utc_offset_s), len(fields)
            continue
        if not line.strip():
            continue
        cells = line.split(separator, width - 1)
        if not line[:1].isdigit() or len(cells) != width:
            # A banner, or a row that lacks columns.
            problems.append(f"not a row of sacct: {line[:_SHOWN]!r}")
            continue
        row = build(cells)
        if row is None:
            problems.append(f"a row of sacct with an id that is none: {line[:_SHOWN]!r}")
        else:
            rows.append(row)
    if torn:
        problems.append(f"the answer of sacct is cut off: {torn[:_SHOWN]!r}")
    return rows, tuple(problems)


@lru_cache(maxsize=64)
def _builder(fields: tuple[str, ...], utc_offset_s: float | None) -> Callable[[list[str]], AccountRow | None]:
    """A function from cells to a row, with the places of the columns looked up once."""
    place = {name: number for number, name in enumerate(fields)}
    # A column that was not asked for is found in the empty cell behind the last one.
    at = [place.get(name, len(fields)) for name in ACCOUNT_FIND_FIELDS]
    i_id, i_raw, i_state, i_exit, i_derived, i_submit, i_start, i_end, i_nodes, i_account, i_qos, i_name = at
    others = [(name, number) for name, number in place.items() if name not in ACCOUNT_FIND_FIELDS]

    def build(cells: list[str]) -> AccountRow | None:
        cells.append("")
        job = parse_job_id(cells[i_id])
        if job is None:
            return None
        return AccountRow(
            id=job,
            raw=cells[i_raw].partition(".")[0],
            state=read_state(cells[i_state]),
            exit_text=cells[i_exit],
            derived_text=cells[i_derived],
            submit_utc=epoch_utc(cells[i_submit], utc_offset_s),
            start_utc=epoch_utc(cells[i_start], utc_offset_s),
            end_utc=epoch_utc(cells[i_end], utc_offset_s),
            nodes_text=cells[i_nodes],
            account=told(cells[i_account]),
            qos=told(cells[i_qos]),
            name=cells[i_name],
            more={name: cells[number] for name, number in others} if others else _NOTHING_MORE,
        )

    return build


def _ours(
    rows: Sequence[AccountRow], submitted_utc: Mapping[str, float], skew_s: float
) -> tuple[list[AccountRow], tuple[str, ...]]:
    """Without the rows of an older job that had the same id."""
    if not submitted_utc:
        return list(rows), ()
    kept: list[AccountRow] = []
    discarded: dict[str, None] = {}
    for row in rows:
        since = submitted_utc.get(row.id.key, submitted_utc.get(row.id.base, submitted_utc.get(row.raw)))
        if since is not None and row.submit_utc is not None and row.submit_utc < since - skew_s:
            discarded[row.id.key] = None
        else:
            kept.append(row)
    return kept, tuple(discarded)


def _jobs(rows: Sequence[AccountRow]) -> dict[str, AccountJob]:
    attempts: dict[str, list[AccountRow]] = {}
    steps: dict[str, list[AccountRow]] = {}
    for row in rows:
        (attempts if row.id.step is None else steps).setdefault(row.id.key, []).append(row)
    jobs: dict[str, AccountJob] = {}
    for key, found in attempts.items():
        # The order of the rows says nothing. Of two with one time of submission the later one in the answer is newer.
        found.sort(key=lambda row: row.submit_utc or 0.0)
        jobs[key] = AccountJob(latest=found[-1], attempts=tuple(found), steps=tuple(steps.get(key, ())))
    return jobs


MISSING = "MISSING"


def array_states(answer: AccountAnswer, base: str, expected: Sequence[int]) -> dict[int, str]:
    """The state of every element that we submitted. Elements cancelled while they waited leave no trace: MISSING."""
    found: dict[int, str] = {}
    for job in answer.jobs.values():
        if job.latest.id.base != base:
            continue
        for task in job.latest.id.tasks() or ():
            found[task] = job.latest.state.state
    return {task: found.get(task, MISSING) for task in expected}
