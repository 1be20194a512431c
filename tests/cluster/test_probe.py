"""A profile is drafted from what a real Slurm tells, as its ordinary user sees it."""

from __future__ import annotations

import json

import pytest

from fleetcraft.config.loading import parse_profile, resolve
from tests.cluster import usercode

pytestmark = [pytest.mark.needs_slurm, pytest.mark.slow]


def ask(cluster, folder, *words):
    """(exit code, document) of one command line of the user."""
    python = usercode.python_for_user(cluster)
    env = {**python.env, "FLEETCRAFT_CONFIG_DIR": str(folder), "SCRATCH": str(cluster.shared)}
    done = cluster.run(python.argv(*words, "--json"), env=env, check=False)
    return done.returncode, json.loads(done.stdout)


def test_a_draft_says_what_the_site_is(cluster, policy):
    folder = cluster.folder("probe-config")
    code, drafted = ask(cluster, folder, "cluster", "probe", "mine", "--write")
    assert (code, drafted["written"], drafted["not_told"]) == (0, True, [])
    assert ask(cluster, folder, "config", "check", "mine")[1]["errors"] == 0
    profile = parse_profile(drafted["toml"], name="mine", source="mine")
    assert set(profile.partitions) >= {"gpu", "low", "high"}
    site = resolve(profile)
    assert site.partition.name == "gpu"
    assert site.partition.nodes == len(cluster.node_names)
    assert site.partition.gpus_per_node == policy.gpus_per_node
    assert site.partition.max_time_s == 86400.0
    assert site.account is not None
    assert site.storage.spool == "$SCRATCH/fleetcraft/spools"
    assert resolve(profile, "low").partition.preemptible
    assert not resolve(profile, "high").partition.preemptible
