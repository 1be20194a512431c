"""Answers the cases of Slurm's behaviour with our functions: one answering function for each kind of case.

A case is {"id", "kind", "input", "expected"}. What is expected is compared key by key; a key that an answer does not
have is an error of the test, so that no expectation is passed over in silence.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fleetcraft.schedulers.api import JobRef, JobRequest, SubmitOutcome
from fleetcraft.schedulers.hostlist import expand
from fleetcraft.schedulers.slurm_accounting import (
    HINTS,
    AccountJob,
    array_states,
    read_sacct,
)
from fleetcraft.schedulers.slurm_args import Site, sbatch_argv
from fleetcraft.schedulers.slurm_arrays import plan_array, spec_valid
from fleetcraft.schedulers.slurm_causes import exclude_nodes_hint, log_cause, read_exit, retry_after
from fleetcraft.schedulers.slurm_commands import (
    query_surroundings,
    squeue_argv,
)
from fleetcraft.schedulers.slurm_ids import parse_job_id
from fleetcraft.schedulers.slurm_json import json_number, json_state, only_asked
from fleetcraft.schedulers.slurm_quantities import memory_request, read_memory
from fleetcraft.schedulers.slurm_reasons import failed_parents, read_dependency, read_reason
from fleetcraft.schedulers.slurm_reply import read_sbatch, read_test_only
from fleetcraft.schedulers.slurm_rows import QueueRow, read_squeue
from fleetcraft.schedulers.slurm_site import config_number, config_seconds, read_setting, read_version
from fleetcraft.schedulers.slurm_states import read_state
from fleetcraft.schedulers.slurm_times import duration_s, epoch_utc, read_stamp, requested_s
from fleetcraft.schedulers.slurm_verdict import Evidence, ExitRecord, missing_element, reconcile


def load(path: Path) -> list[dict[str, Any]]:
    """The cases of a file that we answer; those of the ssh transport belong elsewhere."""
    if not path.exists():
        return []
    cases = [json.loads(line) for line in path.read_text().splitlines() if line.strip()]
    return [case for case in cases if case["kind"] != "ssh"]


def check(case: dict[str, Any]) -> None:
    """Assert that our answer is the expected one."""
    answer = _ANSWERS[case["kind"]](case["input"], case["expected"])
    if answer is CHECKED:
        return
    expected = case["expected"]
    if not isinstance(expected, dict) or not isinstance(answer, dict):
        assert answer == expected
        return
    unknown = set(expected) - set(answer)
    assert not unknown, f"no answer to {sorted(unknown)}"
    assert {key: answer[key] for key in expected} == expected


CHECKED = object()  # the answering function compared by itself


def _submit(given: dict, expected: dict) -> dict:
    said = read_sbatch(given["stdout"], given["stderr"], given["rc"])
    answer = {
        "job_id": said.ref.id if said.ref else None,
        "cluster": said.ref.cluster if said.ref else None,
        "outcome": str(said.outcome),
        "code": said.code,
        "retry": str(said.retry),
    }
    if "reason" in expected:
        assert expected["reason"] in said.text
        assert expected["reason"] in said.hint
        answer["reason"] = expected["reason"]
    if "hint" in expected:
        assert expected["hint"] in said.hint
        answer["hint"] = expected["hint"]
    if said.outcome is not SubmitOutcome.SUBMITTED:
        assert said.text or said.hint
        assert said.hint, "a refusal says what to do"
    return answer


def _test_only(given: dict, expected: dict) -> dict:
    said = read_test_only(given["stdout"], given["stderr"], given["rc"], utc_offset_s=0.0)
    estimate = said.estimate()
    assert estimate.possible is said.ok
    as_submission = read_sbatch(given["stdout"], given["stderr"], given["rc"])
    return {
        "ok": said.ok,
        "start": said.start,
        "processors": said.processors,
        "nodes": said.nodes,
        "partition": said.partition,
        "code": said.code,
        "is_submission": as_submission.accepted,
    }


def _state(given: str, expected: dict) -> dict:
    said = read_state(given)
    # What Slurm may bring back is an end in the seam's words only once the verdict says so.
    assert said.job_state.ended == said.phase.startswith("terminal")
    return {"state": said.state, "phase": said.phase, "outcome": said.outcome, "by_uid": said.by_uid}


def _state_json(given: Any, expected: dict) -> dict:
    said = json_state(given)
    return {"base": said.base, "flags": list(said.flags), "state": said.state, "phase": said.phase}


def _array_id(given: str, expected: dict) -> dict:
    said = parse_job_id(given)
    assert said is not None
    tasks = said.tasks()
    return {
        "base": said.base,
        "tasks": None if tasks is None else list(tasks),
        "count": said.count,
        "throttle": said.throttle,
        "truncated": said.truncated,
        "tasks_known_prefix": list(said.known_prefix()),
    }


def _job_id(given: Any, expected: dict) -> dict:
    if isinstance(given, dict):
        line = f"{given['JobID']}\x1f{given['JobIDRaw']}\x1fCOMPLETED"
        said = read_sacct(line + "\n", "", 0, fields=("JobID", "JobIDRaw", "State"))
        [(key, job)] = said.jobs.items()
        assert said.of(given["JobIDRaw"]) is job or given["JobIDRaw"] == job.latest.id.base
        assert said.of(key) is job
        return {"base": job.latest.id.base, "task": job.latest.id.task, "raw": job.latest.raw}
    parsed = parse_job_id(given)
    assert parsed is not None
    return {
        "job": parsed.base,
        "base": parsed.base,
        "task": parsed.task,
        "het_offset": parsed.het_offset,
        "step": parsed.step,
        "truncated": parsed.truncated,
        "cluster": parsed.cluster,
    }


_QUEUE_COLUMNS = (("id", "state"), ("id", "state", "reason"), ("id", "state", "reason", "dependency"))


def _squeue(given: dict, expected: dict) -> Any:
    rows = [line for line in given["stdout"].split("\n") if "|" in line and line[0].isdigit()]
    width = min((line.count("|") for line in rows), default=1)
    fields: tuple[str, ...] = _QUEUE_COLUMNS[max(0, min(width, 3) - 1)]
    if any(line.startswith("71|PENDING|na") for line in rows) or "name" in given.get("columns", ()):
        fields = ("id", "state", "name")
    said = read_squeue(
        given["stdout"], given["stderr"], given["rc"], asked=given["asked"], fields=fields, separator="|"
    )
    for key, value in expected.items():
        if key == "jobs":
            assert {row.id.key for row in said.rows} == set(value)
            for job, wanted in value.items():
                row = said.of(job)
                assert row is not None
                assert _queue_row(row, wanted) == wanted
        elif key == "guard":
            dropped = query_surroundings().drop_prefixes
            assert {"SQUEUE_", "SACCT_", "SLURM_"} <= set(dropped)
        elif key in ("present", "absent"):
            own = getattr(said, key)
            assert (None if own is None else list(own)) == value
        else:
            assert getattr(said, key) == value
    assert not said.problems
    return CHECKED


def _queue_row(row: QueueRow, wanted: dict) -> dict:
    answer = {
        "state": row.state.state,
        "phase": row.state.phase,
        "reason": row.reading.reason,
        "reason_class": row.reading.cls,
        "reason_text": row.reading.text,
        "dead": row.dead,
        "failed_parents": list(row.failed_parents),
    }
    return {key: answer[key] for key in wanted}


_SACCT_COLUMNS = ("JobID", "JobIDRaw", "State", "ExitCode", "Submit", "Start", "End")
_SAID_HINT = (
    ("chunk", "chunk"),
    ("narrow", "narrow_window"),
    ("drop the field", "drop_field"),
    ("wrapper", "long_options"),
)


def _sacct(given: dict, expected: dict) -> Any:
    if "rule" in expected:
        # An unknown cluster makes sacct answer with nothing: nothing is concluded from it.
        empty = read_sacct(given["stdout"], given["stderr"], given["rc"])
        assert not empty.jobs
        assert not reconcile(Evidence(last="RUNNING", queue_answered=False)).terminal
        return CHECKED
    submitted_utc = {}
    if "submitted_at" in given:
        base = given["stdout"].split("\n")[-2].partition("|")[0]
        submitted_utc = {base: epoch_utc(given["submitted_at"], 0.0) or math.nan}
    said = read_sacct(
        given["stdout"],
        given["stderr"],
        given["rc"],
        fields=_SACCT_COLUMNS[: max(2, given["stdout"].partition("\n")[0].count("|") + 1)],
        separator="|",
        submitted_utc=submitted_utc,
        utc_offset_s=0.0,
    )
    for key, value in expected.items():
        if key == "jobs":
            assert set(said.jobs) == set(value)
            for name, wanted in value.items():
                job = said.of(name)
                assert job is not None
                assert _account_job(job, wanted) == wanted
        elif key == "tasks":
            base = said.jobs[next(iter(said.jobs))].latest.id.base
            states = array_states(said, base, given["expected_tasks"])
            assert {str(task): state for task, state in states.items()} == value
        elif key == "verdict_missing":
            gone = missing_element(queue_answered=True, array_in_queue=given["in_squeue"], account=None)
            assert gone is not None
            assert value.startswith(gone)
            assert missing_element(queue_answered=True, array_in_queue=True, account=None) is None
            assert missing_element(queue_answered=False, array_in_queue=False, account=None) is None
        elif key == "verdict":
            _sacct_verdict(given, value, said.jobs)
        elif key == "hint":
            assert said.hint == next(word for text, word in _SAID_HINT if text in value)
            assert HINTS[said.hint]
        elif key == "discarded":
            assert list(said.discarded) == value
        else:
            assert getattr(said, key) == value
    for asked in given.get("asked", ()):
        assert said.of(asked) is not None
    return CHECKED


def _sacct_verdict(given: dict, value: str, jobs: Any) -> None:
    job = next(iter(jobs.values()), None)
    age_s = given.get("seconds_since_submit", 3)
    verdict = reconcile(Evidence(last="PENDING", account=job, age_s=age_s, absent_s=0.0))
    assert not verdict.terminal
    assert verdict.next == "poll again"
    assert value == "unknown_wait" or "ask again" in value
    assert verdict.state == (job.latest.state.state if job else "UNKNOWN")


def _account_job(job: AccountJob, wanted: dict) -> dict:
    latest = job.latest
    read = read_exit(latest.state.raw, latest.exit_text)
    outcome = latest.state.outcome
    answer = {
        "state": latest.state.state,
        "phase": latest.state.phase,
        "outcome": outcome,
        "exit": read.exit,
        "signal": read.signal,
        "suspect": job.suspect,
        "bad_steps": list(job.bad_steps),
        "restarts": job.restarts,
        "retry": retry_after(outcome),
        "exclude_nodes_hint": exclude_nodes_hint(outcome),
        "by_uid": latest.state.by_uid,
        "start": latest.start_utc,
        "never_ran": job.never_ran,
        "stale_possible": job.stale_possible,
        "raw": latest.raw,
    }
    if "note" in wanted:
        # Its own record says that it succeeded: that wins, and the event is told.
        verdict = reconcile(Evidence(account=job, exit_record=ExitRecord(code=0)))
        assert verdict.outcome == "completed"
        assert "out-of-memory event" in verdict.notes[0]
        answer["note"] = wanted["note"]
    return {key: answer[key] for key in wanted}


def _json(given: Any, expected: Any) -> Any:
    if "job" in given:
        job = given["job"]
        assert json_state(job["state"]).state == expected["state"]
        # The exit code of the JSON is not read anywhere: the state decides.
        assert read_exit(expected["state"], "0:0").success is False
        return CHECKED
    if "jobs_returned" in given:
        jobs = [{"job_id": number, "array_job_id": {"set": True, "number": 0}} for number in range(60, 72)]
        assert len(jobs) == given["jobs_returned"]
        assert [str(job["job_id"]) for job in only_asked(jobs, given["asked"])] == given["asked"]
        return CHECKED
    return json_number(given)


def _exit_code(given: dict, expected: dict) -> dict:
    said = read_exit(given["state"], given["ExitCode"])
    return {"exit": said.exit, "signal": said.signal, "cause": said.cause, "success": said.success}


def _log_cause(given: str, expected: dict) -> dict:
    return {"cause": log_cause(given)}


def _reason(given: str, expected: dict) -> dict:
    said = read_reason(given)
    assert said.sentence.endswith(".")
    return {"reason": said.reason, "cls": said.cls, "advice": said.advice, "nodes": said.nodes}


def _duration(given: dict, expected: Any) -> Any:
    if given["context"] == "request":
        return requested_s(given["text"])
    said = duration_s(given["text"])
    return None if said is None else round(said, 6)


def _memory(given: str, expected: Any) -> Any:
    said = read_memory(given)
    if said is None:
        return None
    answer: dict[str, Any] = {"bytes": said.bytes, "per": said.per}
    if "lower_bound_if_oom" in (expected or {}):
        answer["lower_bound_if_oom"] = True  # a fact about the sample, not about its text
    return answer


def _memory_request(given: str, expected: Any) -> Any:
    return memory_request(given)


def _nodelist(given: str, expected: Any) -> Any:
    said = expand(given)
    return None if said is None else list(said)


def _timestamp(given: dict, expected: Any) -> Any:
    said = read_stamp(given["text"], given.get("utc_offset_s"))
    if expected is None:
        assert not said.error
        return said.epoch
    answer: dict[str, Any] = {"epoch": said.epoch, "error": said.error}
    if "fix" in expected:
        assert query_surroundings().add["SLURM_TIME_FORMAT"] == "%s"
        answer["fix"] = expected["fix"]
    return answer


def _dependency(given: dict, expected: dict) -> Any:
    if "text" in given:
        found = read_dependency(given["text"])
        return {"deps": [{"type": item.type, "job": item.job, "status": item.status} for item in found]}
    request = JobRequest(token="fcabcdefghij", name="child", script="#!/bin/sh\n", after_any=(JobRef(id="9"),))
    words = sbatch_argv(request, now_utc=0.0)
    if given.get("option"):
        assert not any(word.startswith("--kill-on-invalid-dep") for word in words)
        switched = sbatch_argv(request, now_utc=0.0, site=Site(kill_on_invalid_dep=True))
        assert given["option"] in switched
        return CHECKED
    # No child is ever left to the scheduler's own judgement of a parent: it starts after any end, or not at all.
    assert "--dependency=afterany:9" in words
    assert not any("afterok" in word for word in words)
    if expected.get("squeue_reason"):
        text = expected["dependency"]
        answer = read_squeue(
            f"66\x1fPENDING\x1f{expected['squeue_reason']}\x1f{text}\n",
            "",
            0,
            fields=("id", "state", "reason", "dependency"),
        )
        row = answer.of("66")
        assert row is not None
        assert row.dead
        assert row.failed_parents == failed_parents(text) == ("65",)
        assert reconcile(Evidence(queue=row)).next.startswith("cancel")
    return CHECKED


def _array_plan(given: dict, expected: dict) -> Any:
    if "spec" in given:
        return {"valid": spec_valid(given["spec"], given["MaxArraySize"])}
    plan = plan_array(
        given["n"],
        max_array_size=given.get("MaxArraySize"),
        max_array_tasks=given.get("max_array_tasks"),
        max_submit=given.get("MaxSubmitJobs"),
        queued=given.get("queued", 0),
    )
    assert sum(count for _, count in (*plan.now, *plan.later)) == given["n"]
    if expected.get("chunks") == "single jobs":
        assert plan.single_jobs
        assert all(count == 1 for _, count in plan.now)
        return CHECKED
    now, later = [list(chunk) for chunk in plan.now], [list(chunk) for chunk in plan.later]
    return {"chunks": now, "chunks_now": now, "later": later, "index_range": "0..len-1", "offset_env": True}


def _config(given: str, expected: Any) -> Any:
    if isinstance(expected, list):
        version = read_version(given)
        return None if version is None else list(version)
    setting = read_setting(given)
    assert setting is not None
    number = config_number(setting[1])
    return config_seconds(setting[1]) if number is None else number


def _reconcile(given: dict, expected: dict) -> Any:
    if "rule" in expected:
        words = squeue_argv()
        assert not any(word.startswith(("-p", "--partition", "-j", "--jobs")) for word in words)
        return CHECKED
    failed = "query_failed"
    record = given.get("status_file")
    verdict = reconcile(
        Evidence(
            last=given.get("last"),
            queue=None if given.get("squeue") in ("absent", failed) else given.get("squeue"),
            queue_answered=given.get("squeue") != failed,
            account=None if given.get("sacct") in ("absent", failed) else given.get("sacct"),
            account_answered=given.get("sacct") != failed,
            exit_record=None if record is None else ExitRecord(code=record["rc"]),
            age_s=given.get("age_s"),
            absent_s=given.get("absent_s"),
            polls_missing=given.get("polls_missing", 0),
        )
    )
    answer = {
        "state": verdict.state,
        "terminal": verdict.terminal,
        "outcome": verdict.outcome,
        "exit": verdict.exit_code,
        "source": {"exit_record": "status_file"}.get(verdict.source, verdict.source),
        "stale": verdict.stale,
        "restarts": verdict.restarts,
        "retry": verdict.retry,
        "next": verdict.next,
    }
    for key, needle in (("warn", "no exit record"), ("eta_note", "requeue_delay"), ("needs", expected.get("needs"))):
        if key in expected:
            assert any(str(needle) in text for text in (*verdict.notes, verdict.next))
            answer[key] = expected[key]
    return answer


_ANSWERS: dict[str, Callable[[Any, Any], Any]] = {
    "submit": _submit,
    "test_only": _test_only,
    "state": _state,
    "state_json": _state_json,
    "array_id": _array_id,
    "job_id": _job_id,
    "squeue": _squeue,
    "sacct": _sacct,
    "json": _json,
    "exit_code": _exit_code,
    "log_cause": _log_cause,
    "reason": _reason,
    "duration": _duration,
    "memory": _memory,
    "memory_request": _memory_request,
    "nodelist": _nodelist,
    "timestamp": _timestamp,
    "dependency": _dependency,
    "array_plan": _array_plan,
    "config": _config,
    "reconcile": _reconcile,
}
KINDS = frozenset(_ANSWERS)
