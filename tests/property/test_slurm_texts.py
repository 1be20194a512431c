"""Whatever text Slurm, a site or a terminal throws at the parsers: they answer, and lose no row without a word."""

from __future__ import annotations

import math

from hypothesis import example, given
from hypothesis import strategies as st

from fleetcraft.schedulers.api import SubmitOutcome
from fleetcraft.schedulers.hostlist import expand
from fleetcraft.schedulers.slurm_accounting import ACCOUNT_FIND_FIELDS, array_states, read_sacct
from fleetcraft.schedulers.slurm_arrays import plan_array, spec_valid
from fleetcraft.schedulers.slurm_causes import log_cause, read_exit, retry_after
from fleetcraft.schedulers.slurm_ids import MAX_ELEMENTS, federation_origin, parse_array_spec, parse_job_id
from fleetcraft.schedulers.slurm_json import json_number, json_state
from fleetcraft.schedulers.slurm_limits import allowed_qos, read_associations, read_qos
from fleetcraft.schedulers.slurm_quantities import (
    gpu_types_in,
    gpus_in,
    memory_request,
    read_memory,
    read_tres,
)
from fleetcraft.schedulers.slurm_reasons import failed_parents, read_dependency, read_reason
from fleetcraft.schedulers.slurm_reply import read_sbatch, read_test_only
from fleetcraft.schedulers.slurm_rows import QUEUE_HOT, QUEUE_WIDE, read_squeue
from fleetcraft.schedulers.slurm_site import (
    config_number,
    config_seconds,
    read_config,
    read_nodes,
    read_partitions,
    read_sinfo,
    read_version,
    scheduler_parameter,
    with_nodes,
)
from fleetcraft.schedulers.slurm_states import BASE_STATES, FLAG_STATES, read_state
from fleetcraft.schedulers.slurm_times import duration_s, epoch_utc, read_stamp, requested_s

_PIECES = st.sampled_from(
    (
        *("\x1f", "\n", "|", "[", "]", ",", "-", "%", ":", "_", "+", ".", ";", "=", " ", "...", "\r", "\0", "²", "٣"),
        *("1", "007", "18446744073709551616", "9" * 40, "n", "gpu", "gres/gpu", "PENDING", "RUNNING", "CANCELLED by"),
        *("JobID", "NodeName=", "State=", "PartitionName=", "CLUSTER:", "Submitted batch job", "sbatch: error:"),
        *("UNLIMITED", "2031-01-01T00:00:00", "2031-13-41T25:61:61", "afterok:", "(failed)", "uts", "0x10", "1e9"),
    )
)
_TEXT = st.text(max_size=60) | st.lists(_PIECES, max_size=14).map("".join)
_SHAPED = _TEXT | st.from_regex(r"[0-9]{1,6}_\[[0-9,:%.-]{0,20}\]?", fullmatch=True)
_CODES = st.none() | st.integers(min_value=-20, max_value=300)


@given(_SHAPED)
@example("1_[0-999999999999]")
@example("1_[9-1]")
@example("n[0-999999999],x")
@example("[" * 2000)
@example("9" * 5000)
@example("1-9" * 500)
def test_every_word_is_read_or_refused(text):
    for number in (duration_s(text), requested_s(text), epoch_utc(text, 0.0), config_seconds(text)):
        assert number is None or (math.isfinite(number) and number >= 0)
    stamp = read_stamp(text)
    assert stamp.epoch is None or not stamp.error
    hosts = expand(text, limit=500)
    assert hosts is None or len(hosts) <= 500
    job = parse_job_id(text)
    if job is not None:
        assert job.count is None or 1 <= job.count <= MAX_ELEMENTS
        assert job.tasks(limit=100) is None or len(job.tasks(limit=100) or ()) <= 100
        assert parse_job_id(job.key) is not None
    parse_array_spec(text)
    spec_valid(text, 1001)
    federation_origin(text)
    memory = read_memory(text)
    assert memory is None or memory.bytes >= 0
    memory_request(text)
    assert all(amount >= 0 for amount in read_tres(text).values())
    gpus_in(text)
    gpu_types_in(text)
    reason = read_reason(text)
    assert reason.cls in ("wait", "blocked", "held", "maintenance", "dead")
    assert reason.sentence
    read_dependency(text)
    failed_parents(text)
    read_version(text)
    config_number(text)
    retry_after(log_cause(text))


@given(_TEXT, _TEXT)
def test_an_unknown_state_is_carried_and_never_an_end(text, column):
    reading = read_state(text)
    assert reading.raw == text
    if reading.phase == "unknown":
        assert reading.state == text.strip()
        assert reading.outcome is None
        assert not reading.job_state.ended
    said = read_exit(text, column)
    assert said.success is not True or reading.state == "COMPLETED"


@given(st.lists(st.sampled_from((*BASE_STATES, *FLAG_STATES)) | _TEXT, max_size=5))
def test_every_list_of_states_is_read(items):
    reading = read_state(items)
    assert json_state(items) == reading
    going_on = {"COMPLETING", "STAGE_OUT", "REQUEUED", "REQUEUE_HOLD", "SPECIAL_EXIT"}
    if going_on & set(items):
        assert not reading.job_state.ended


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | _TEXT, st.lists))
def test_every_json_value_is_read(value):
    json_number(value)
    json_number({"set": True, "infinite": False, "number": value})
    json_state(value)


@given(_TEXT, _TEXT, _CODES, _TEXT)
@example("5;", "", 0, "")
def test_no_reply_proves_more_than_it_says(out, err, code, problem):
    said = read_sbatch(out, err, code, problem)
    assert (said.ref is not None) == (said.outcome is SubmitOutcome.SUBMITTED)
    if code != 0:
        assert said.ref is None
    if said.outcome is SubmitOutcome.SUBMITTED:
        assert said.ref is not None
        assert said.ref.id in out
    else:
        assert said.hint
    tested = read_test_only(out, err, code, problem)
    assert tested.ok is None or code is not None
    tested.estimate()


@given(_TEXT, _TEXT, _CODES, st.lists(_TEXT, max_size=4), st.sampled_from((QUEUE_HOT, QUEUE_WIDE, ("id", "state"))))
def test_every_answer_of_the_queue_is_read(out, err, code, asked, fields):
    said = read_squeue(out, err, code, asked=asked, fields=fields)
    if said.query != "ok":
        assert said.present is None
        assert said.absent is None
        assert not said.rows
    else:
        assert said.present is not None
        assert said.absent is not None
        assert {*said.present, *said.absent} == set(asked)


_CELL = st.text(alphabet=st.characters(exclude_characters="\n\x1f", exclude_categories=["Cs"]), max_size=12)
_ROW = st.lists(_CELL, min_size=1, max_size=12).map("\x1f".join)


@given(st.lists(_ROW, max_size=8))
def test_no_line_of_the_queue_is_dropped_without_a_word(lines):
    said = read_squeue("".join(f"{line}\n" for line in lines), "", 0)
    silent = [line for line in lines if not line.strip() or line.startswith(("JOBID", "CLUSTER:"))]
    assert len(said.rows) + len(said.problems) >= len(lines) - len(silent)


@given(st.lists(_ROW, max_size=8))
def test_no_line_of_accounting_is_dropped_without_a_word(lines):
    said = read_sacct("".join(f"{line}\n" for line in lines), "", 0)
    if said.query != "ok":
        return
    rows = sum(len(job.attempts) for job in said.jobs.values())
    steps = sum(1 for line in lines if line[:1].isdigit() and "." in line.partition("\x1f")[0])
    silent = [line for line in lines if not line.strip() or line.startswith("JobID")]
    assert rows + steps + len(said.problems) >= len(lines) - len(silent)


@given(_TEXT, _TEXT, _CODES, st.dictionaries(_TEXT, st.floats(allow_nan=False), max_size=3))
def test_every_answer_of_accounting_is_read(out, err, code, submitted):
    said = read_sacct(out, err, code, fields=ACCOUNT_FIND_FIELDS, submitted_utc=submitted)
    assert said.query == "ok" or not said.jobs
    for job in said.jobs.values():
        assert job.restarts >= 0
        assert job.latest in job.attempts
    array_states(said, "1", (1, 2, 3))


@given(_TEXT)
def test_every_text_about_a_site_is_read(text):
    config = read_config(text)
    scheduler_parameter(config, "requeue_delay")
    nodes, _ = read_nodes(text)
    partitions, _ = read_partitions(text)
    for partition in partitions:
        with_nodes(partition, nodes)
    read_sinfo(text)
    read_associations(text)
    read_qos(text)
    allowed_qos(text)


@given(
    st.integers(min_value=-3, max_value=3000),
    st.none() | st.integers(min_value=0, max_value=1200),
    st.none() | st.integers(min_value=0, max_value=1200),
    st.none() | st.integers(min_value=0, max_value=4000),
    st.integers(min_value=-5, max_value=4000),
)
def test_a_plan_covers_every_element_once_and_keeps_every_limit(n, size, tasks, submit, queued):
    plan = plan_array(n, max_array_size=size, max_array_tasks=tasks, max_submit=submit, queued=queued)
    covered = [offset + index for offset, count in (*plan.now, *plan.later) for index in range(count)]
    assert covered == list(range(max(n, 0)))
    for _, count in (*plan.now, *plan.later):
        assert count >= 1
        assert plan.single_jobs or size is None or count <= size
        assert plan.single_jobs or tasks is None or count <= max(tasks, 1)
    if submit is not None:
        assert sum(count for _, count in plan.now) <= max(0, submit - max(queued, 0))
