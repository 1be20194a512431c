"""A drafted profile says what was told, marks what was not, and is sound whatever the scheduler said."""

from __future__ import annotations

import tomllib

from hypothesis import given
from hypothesis import strategies as st

from fleetcraft.config.check import check_text
from fleetcraft.config.loading import parse_profile, resolve
from fleetcraft.config.problems import Weight
from fleetcraft.fleet.probe import Surroundings, draft_profile
from fleetcraft.schedulers.api import AccountLimits, Limits, PartitionLimits

AROUND = Surroundings(name="mine", kind="slurm", host="login3.site.example", at="2026-12-01", scratch="SCRATCH")
GPU = PartitionLimits(
    name="gpu",
    state="UP",
    is_default=True,
    time_limit_s=86400.0,
    nodes=4,
    max_nodes=2,
    cpus_per_node=8,
    memory_per_node_bytes=200 << 30,
    gpus_per_node=4,
    gpu_types=("h100",),
    preemptible=False,
    qos="part_gpu",
)
LIMITS = Limits(
    at_utc=0.0,
    partitions=(GPU, PartitionLimits(name="low", preemptible=True)),
    accounts=(
        AccountLimits(where="association physics/me", max_submit=40, max_wall_s=3600.0),
        AccountLimits(where="QOS normal"),
    ),
    problems=("sacctmgr: no answer",),
)


def test_what_was_told_is_in_the_draft():
    site = resolve(parse_profile(draft_profile(LIMITS, AROUND), name="mine", source="mine.toml"))
    shape = site.partition
    assert (shape.name, shape.nodes, shape.max_nodes, shape.gpus_per_node, shape.gpu_type) == ("gpu", 4, 2, 4, "h100")
    assert (shape.cpus_per_node, shape.memory_per_node_bytes, shape.max_time_s) == (8, 200 << 30, 86400.0)
    assert site.account == "physics"
    assert site.storage.spool == "$SCRATCH/fleetcraft/spools"
    assert site.login.hosts == ("login*",)


def test_what_was_not_told_is_marked_and_never_guessed():
    text = draft_profile(LIMITS, AROUND)
    lines = text.splitlines()
    assert "# not told: sacctmgr: no answer" in lines
    low = lines[lines.index("[partitions.low]") :]
    assert "#? nodes =" in low
    assert "#? gpus_per_node =" in low
    assert any(line.startswith("#? max_time") for line in low)
    assert "preemptible = true" in low
    assert any(line.startswith("#? su_rate") for line in lines)
    assert any("physics/me: at most 40 submitted, at most 01:00:00 per job" in line for line in lines)
    assert tomllib.loads(text)["partitions"]["low"] == {"preemptible": True}


def test_a_host_that_is_no_login_node_is_not_taken_for_one():
    for around in (
        Surroundings(name="m", kind="slurm", host="n17", at=""),
        Surroundings(name="m", kind="slurm", host="login1", at="", in_job=True),
    ):
        data = tomllib.loads(draft_profile(LIMITS, around))
        assert "login" not in data
        assert "storage" not in data


def test_several_accounts_or_partitions_leave_the_choice_to_the_person():
    limits = Limits(
        at_utc=0.0,
        partitions=(PartitionLimits(name="a"), PartitionLimits(name="b")),
        accounts=(AccountLimits(where="association x/me"), AccountLimits(where="association y/me")),
    )
    text = draft_profile(limits, AROUND)
    assert tomllib.loads(text)["defaults"] == {}
    assert "# one of: a, b" in text
    assert "# x, y" in text


def test_other_schedulers_are_named():
    data = tomllib.loads(draft_profile(LIMITS, Surroundings(name="m", kind="psij:pbs", host="h", at="")))
    assert data["scheduler"]["kind"] == "psij"
    assert data["scheduler"]["executor"] == "pbs"
    assert tomllib.loads(draft_profile(LIMITS, Surroundings(name="m", kind="local", host="h", at="")))["scheduler"] == {
        "kind": "local"
    }


COUNTS = st.none() | st.integers(min_value=0, max_value=1 << 40)
TIMES = st.none() | st.floats(min_value=0, max_value=1e8)
PARTITIONS = st.builds(
    PartitionLimits,
    name=st.text(max_size=12),
    state=st.text(max_size=12),
    is_default=st.booleans(),
    time_limit_s=TIMES,
    max_nodes=COUNTS,
    nodes=COUNTS,
    cpus_per_node=COUNTS,
    memory_per_node_bytes=COUNTS,
    gpus_per_node=COUNTS,
    gpu_types=st.lists(st.text(max_size=8), max_size=3).map(tuple),
    qos=st.text(max_size=8),
    preemptible=st.none() | st.booleans(),
)
ACCOUNTS = st.builds(
    AccountLimits,
    where=st.text(max_size=12) | st.text(max_size=12).map("association {}/me".format),
    max_jobs=COUNTS,
    max_wall_s=TIMES,
)
TOLD = st.builds(
    Limits,
    at_utc=st.just(0.0),
    partitions=st.lists(PARTITIONS, max_size=4).map(tuple),
    accounts=st.lists(ACCOUNTS, max_size=3).map(tuple),
    problems=st.lists(st.text(max_size=20), max_size=2).map(tuple),
    answered=st.booleans(),
)


@given(TOLD, st.text(max_size=10), st.text(max_size=10), st.booleans())
def test_a_draft_is_sound_whatever_was_told(limits, name, host, in_job):
    around = Surroundings(name=name, kind="slurm", host=host, at="now", in_job=in_job, version=name)
    errors = [
        problem
        for problem in check_text(draft_profile(limits, around), "draft")
        if problem.weight is Weight.ERROR and problem.key != "partitions"  # none may be there
    ]
    assert errors == []
