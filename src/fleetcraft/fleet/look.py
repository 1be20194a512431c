"""One look at a fleet's jobs: one question to the scheduler for all of them, and a record only of what changed.

A question without an answer changes nothing. A job that no source knows is not ended by that: its own exit record
decides, and without one it counts as lost only after it was unknown for long.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fleetcraft.core.states import JobState
from fleetcraft.fleet import records as kinds
from fleetcraft.fleet.handle import Fleet
from fleetcraft.fleet.names import JobFolder
from fleetcraft.fleet.state import FleetState, Job, ref_json
from fleetcraft.schedulers.api import JobRef, JobView, Observation
from fleetcraft.schedulers.slurm_causes import log_cause
from fleetcraft.schedulers.slurm_verdict import ExitRecord
from fleetcraft.store.files import GONE, Files

ABSENT = "ABSENT"
# Reasons of a waiting job come and go with every turn of the scheduler; only these are worth a record.
_TELLING = (JobState.HELD, JobState.BLOCKED)
# The step that ran out of memory says so in the last lines of the job's output.
_LOG_TAIL_BYTES = 8192
_BY_UID = re.compile(r"by ([0-9]{1,10})", re.IGNORECASE)
_LOG_WORDS = {"oom": JobState.OUT_OF_MEMORY.value}


@dataclass(slots=True)
class Look:
    """What one look gave."""

    answered: bool = True
    changed: list[str] = field(default_factory=list)  # tokens
    problems: list[str] = field(default_factory=list)
    views: dict[str, JobView] = field(default_factory=dict)  # by token, as fresh as they are
    queries: int = 0
    at_utc: float | None = None  # when the answer was given; None: no job was asked for


def wanted(state: FleetState, now_utc: float, revive_s: float) -> list[Job]:
    """The jobs that are worth asking for: the live ones, and those that a requeue may bring back."""
    jobs: list[Job] = []
    for job in state.jobs.values():
        if job.ref is None:
            continue
        ended = job.state is not None and job.state.ended
        back = job.state is JobState.LOST and now_utc - (job.seen_utc or 0.0) < revive_s
        if not ended or back:
            jobs.append(job)
    return jobs


def look(fleet: Fleet, state: FleetState) -> Look:
    """Ask once, and write down what changed."""
    result = Look()
    jobs = wanted(state, fleet.now(), fleet.policy.revive_s)
    if not jobs:
        return result
    refs = [ref for job in jobs for ref in ([job.ref] if job.ref else []) + job.extra_refs]
    _remind(fleet, state, jobs)
    observation = fleet.scheduler.observe(refs)
    result.problems += observation.problems
    result.answered, result.queries = observation.answered, observation.queries
    result.at_utc = observation.at_utc
    absent = {str(ref) for ref in observation.absent}
    for job in jobs:
        view = _view_of(observation, job.ref)
        if view is not None and view.token and view.token != job.token:
            # Slurm keeps the id of a job that it starts anew. A controller that crashed gives the id of a job that it
            # forgot to the next one: ours is known no more. An answer for others may speak of their job of that id.
            view = None
            if observation.answered and not observation.from_cache:
                absent.add(str(job.ref))
        if view is not None:
            result.views[job.token] = view
            body = _from_view(fleet, job, view)
        elif job.ref is not None and str(job.ref) in absent and observation.answered:
            body = _from_absence(fleet, job)
        else:
            continue  # not answered for
        if body is not None:
            fleet.log.state_fact(kinds.SEEN, token=job.token, ref=ref_json(job.ref) if job.ref else None, **body)
            result.changed.append(job.token)
    return result


def _remind(fleet: Fleet, state: FleetState, jobs: list[Job]) -> None:
    """Hand over what the records know: a scheduler's ids are used again, and what is new depends on what was."""
    remember = getattr(fleet.scheduler, "remember", None)
    if not callable(remember):
        return
    views: list[JobView] = []
    exits: dict[str, ExitRecord] = {}
    may_requeue: dict[str, bool] = {}
    # Of two jobs with one id the newer one has it.
    owners = {str(job.ref): job for job in sorted(jobs, key=lambda job: job.number) if job.ref is not None}
    for job in owners.values():
        if job.ref is None:
            continue
        spec = state.spec_of(job)
        if spec is not None:
            may_requeue[str(job.ref)] = spec.site.scheduler.requeue
        if job.state is not None and job.state is not JobState.UNKNOWN:
            views.append(
                JobView(
                    ref=job.ref,
                    state=job.state,
                    raw_state=job.raw_state,
                    token=job.token,
                    source="memory",
                    submit_utc=job.intent_utc,
                    start_utc=job.start_utc,
                    end_utc=job.end_utc,
                    nodes=job.node_names,
                )
            )
        record = read_exit(fleet, job)
        if record is not None and isinstance(record.get("code"), int):
            exits[str(job.ref)] = ExitRecord(code=record["code"], end_utc=_number(record, "at_utc"))
    remember(views, exit_records=exits, may_requeue=may_requeue)


def _view_of(observation: Observation, ref: JobRef | None) -> JobView | None:
    return None if ref is None else observation.jobs.get(str(ref))


def _from_view(fleet: Fleet, job: Job, view: JobView) -> dict[str, Any] | None:
    """The body of a record, or None when nothing changed or nothing is known."""
    if view.stale or view.state is JobState.UNKNOWN:
        return None
    state, cause = view.state, view.reason_text
    exit_record = read_exit(fleet, job) if state.ended else None
    if exit_record is not None and state in (JobState.DONE, JobState.FAILED, JobState.OUT_OF_MEMORY):
        # What the script itself wrote at its end is worth more than an exit code that passed through accounting.
        if exit_record.get("code") == 0:
            state = JobState.DONE
        elif state is JobState.DONE:
            state = JobState.FAILED
        cause = ended_words(exit_record)
    if state is JobState.FAILED:
        said = _cause_in_log(fleet, job)
        if said:
            cause = f"{said}; {cause}" if cause else said
    if state is JobState.CANCELLED and job.cancel_utc is None and not job.withdrawn:
        cause = cancelled_words(view.raw_state, cause)
    started = state is JobState.RUNNING or state is JobState.ENDING or state.ended
    new = {
        "state": state.value,
        "raw_state": view.raw_state,
        "reason": (view.reason or view.reason_text) if state in _TELLING else "",
        "cause": cause if state.ended or state in _TELLING else "",
        "start_utc": view.start_utc if started else None,
        "end_utc": view.end_utc if state.ended else None,
        "nodes": list(view.nodes) if started else [],
    }
    old = {
        "state": job.state.value if job.state else None,
        "raw_state": job.raw_state,
        "reason": job.reason,
        "cause": job.cause,
        "start_utc": job.start_utc if started else None,
        "end_utc": job.end_utc if state.ended else None,
        "nodes": list(job.node_names) if started else [],
    }
    if job.absent_since_utc is None and new == old:
        return None
    return {**new, "source": view.source}


def cancelled_words(raw_state: str, cause: str) -> str:
    """Who ended a job that this fleet did not cancel, as far as the scheduler tells."""
    by = _BY_UID.search(raw_state)
    who = f"cancelled by uid {by[1]}" if by else "cancelled"
    said = f"{who}, not by this fleet"
    return f"{said}; {cause}" if cause and cause != said else said


def _from_absence(fleet: Fleet, job: Job) -> dict[str, Any] | None:
    exit_record = read_exit(fleet, job)
    if exit_record is not None:
        good = exit_record.get("code") == 0
        return {
            "state": (JobState.DONE if good else JobState.FAILED).value, "raw_state": ABSENT,
            "cause": f"{ended_words(exit_record)}; the scheduler knows it no more",
            "start_utc": _number(exit_record, "started_utc"), "end_utc": _number(exit_record, "at_utc"),
            "source": "exit_record",
        }  # fmt: skip
    if job.state is JobState.LOST:
        return None
    if job.absent_since_utc is None:
        return {"state": JobState.UNKNOWN.value, "raw_state": ABSENT, "absent": True, "cause": "no source knows it"}
    if fleet.now() - job.absent_since_utc < fleet.policy.lost_after_s:
        return None
    return {
        "state": JobState.LOST.value, "raw_state": ABSENT, "start_utc": job.start_utc,
        "cause": f"no source knew it for {fleet.policy.lost_after_s:.0f} s, and it left no exit record",
    }  # fmt: skip


def _cause_in_log(fleet: Fleet, job: Job) -> str:
    """What the end of its output tells: the scheduler shows some of them as a plain failure."""
    files, path = fleet.spool.files, fleet.folder.job(job.token).output
    try:
        descriptor = files.open_read(path)
        try:
            tail = os.pread(descriptor, _LOG_TAIL_BYTES, max(0, files.size(path) - _LOG_TAIL_BYTES))
        finally:
            files.close(descriptor)
    except OSError:
        return ""  # without it only the reason is missing
    word = log_cause(tail.decode("utf-8", "replace")) or ""
    return _LOG_WORDS.get(word, word)


def read_exit(fleet: Fleet, job: Job) -> Mapping[str, Any] | None:
    """What the job's script wrote at its end, if it is of the last run; None when there is none."""
    return read_exit_record(fleet.spool.files, fleet.folder.job(job.token), job.token)


def read_exit_record(files: Files, folder: JobFolder, token: str) -> Mapping[str, Any] | None:
    """The same from the job's folder alone."""
    record = _read_json(files, folder.ended)
    if record is None or record.get("token") != token:
        return None
    began_utc = _number(_read_json(files, folder.started) or {}, "at_utc")
    ended_utc = _number(record, "at_utc")
    if began_utc is not None and ended_utc is not None and began_utc > ended_utc:
        return None  # of an earlier run: it was requeued and started anew
    return record


def ended_words(record: Mapping[str, Any]) -> str:
    """How the script of a job ended, in its own words where it had some."""
    said = f"its script ended with {record.get('code')}"
    reason = record.get("reason")
    return f"{reason}; {said}" if isinstance(reason, str) and reason else said


def read_file(fleet: Fleet, path: str) -> dict[str, Any] | None:
    """A small file that a job wrote; None when it is not there, or no JSON. Raises OSError for anything else."""
    return _read_json(fleet.spool.files, path)


def _read_json(files: Files, path: str) -> dict[str, Any] | None:
    try:
        value = json.loads(files.read(path))
    except OSError as error:
        if error.errno in GONE:
            return None
        raise
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _number(record: Mapping[str, Any], key: str) -> float | None:
    value = record.get(key)
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None
