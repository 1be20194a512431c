from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetcraft.cli.commands import load
from fleetcraft.cli.parser import build_parser
from fleetcraft.cli.worker_run import options_from
from fleetcraft.core.errors import UsageError
from fleetcraft.workers.options import (
    WorkerOptions,
    deadline_from_environment,
    parse_deadline_utc,
    parse_idle_exit_s,
    parse_telemetry_s,
)

NOW = 1_800_000_000.0


def parsed(*words, environment=None):
    return options_from(build_parser(load("worker", "run")).parse(words), environment or {}, NOW)


def test_without_options_a_worker_has_the_documented_ones():
    options = parsed(environment={})
    assert (options.spool, options.cpus, options.gpus, options.idle_exit_s) == (".fleetcraft", None, "auto", 600.0)
    assert (options.deadline_utc, options.drain_before_s, options.lease_s, options.max_tasks) == (
        None,
        120.0,
        None,
        None,
    )


def test_every_option_arrives():
    options = parsed(
        "--spool", "s", "--cpus", "3", "--gpus", "simulated:4", "--idle-exit", "never", "--deadline", "2h",
        "--drain-before", "90s", "--max-tasks", "7", "--watch", "poll", "--lease", "5m", "--job-id", "77",
        "--pass-env", "A", "--pass-env", "B", "--quiet",
    )  # fmt: skip
    assert options == WorkerOptions(
        spool="s", cpus=3, gpus="simulated:4", idle_exit_s=None, deadline_utc=NOW + 7200, drain_before_s=90.0,
        max_tasks=7, watch="poll", lease_s=300.0, job_id="77", pass_env=("A", "B"), quiet=True,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("environment", "expected"),
    (
        ({}, None),
        ({"FLEETCRAFT_DEADLINE": "1900000000"}, 1_900_000_000.0),
        ({"FLEETCRAFT_DEADLINE": "30m"}, NOW + 1800),
        ({"SLURM_JOB_END_TIME": "1800003600"}, NOW + 3600),
        ({"FLEETCRAFT_DEADLINE": "10m", "SLURM_JOB_END_TIME": "1800003600"}, NOW + 600),
        ({"FLEETCRAFT_DEADLINE": " ", "SLURM_JOB_END_TIME": "1800003600"}, NOW + 3600),
    ),
)
def test_the_deadline_comes_from_the_surroundings(environment, expected):
    assert deadline_from_environment(environment, NOW) == expected


def test_the_option_wins_and_the_job_is_known():
    options = parsed("--deadline", "1h", environment={"SLURM_JOB_END_TIME": "1800000001", "SLURM_JOB_ID": "9"})
    assert (options.deadline_utc, options.job_id) == (NOW + 3600, "9")


def test_a_deadline_may_be_an_iso_time_with_a_zone():
    assert parse_deadline_utc("2027-01-15T08:00:00Z", NOW) == NOW
    assert parse_deadline_utc("2027-01-15T09:00:00+01:00", NOW) == NOW


def test_idle_exit_knows_zero_and_never():
    assert parse_idle_exit_s("0s") == 0.0
    assert parse_idle_exit_s("never") is None


@pytest.mark.parametrize(
    "wrong",
    (
        {"spool": ""},
        {"cpus": 0},
        {"gpus": "simulated:0"},
        {"gpus": "-1"},
        {"watch": "always"},
        {"max_tasks": 0},
        {"lease_s": 1.0},
        {"heartbeat_s": 0.0},
        {"idle_exit_s": -1.0},
        {"deadline_utc": float("nan")},
        {"pass_env": ("A-B",)},
        {"crash_limit": 0},
    ),
)
def test_what_cannot_be_is_refused(wrong):
    with pytest.raises(UsageError):
        WorkerOptions(**{"spool": "s", **wrong})


@given(st.text(max_size=30))
def test_reading_a_deadline_is_total(text):
    try:
        assert parse_deadline_utc(text, NOW) >= 0
    except UsageError:
        return


@pytest.mark.parametrize(("word", "seconds"), (("on", 10.0), ("off", None), ("1s", 1.0), ("30s", 30.0), ("60s", 60.0)))
def test_how_often_gpus_are_measured(word, seconds):
    assert parse_telemetry_s(word) == seconds


@pytest.mark.parametrize("word", ("0s", "0.9s", "61s", "never", ""))
def test_what_is_no_interval_of_samples_is_named(word):
    with pytest.raises(UsageError, match="--telemetry"):
        parse_telemetry_s(word)
