"""The long storm on a real cluster. Run it with `make soak-slurm`; the environment makes it smaller."""

from __future__ import annotations

import sys
from collections import Counter

import pytest

from tests.cluster.fleet_lab import FleetLab
from tests.cluster.soak_slurm import Soak, SoakPlan

pytestmark = [pytest.mark.needs_slurm, pytest.mark.soak]


def test_fleets_lose_nothing_in_a_storm(cluster):
    plan = SoakPlan.from_environment()
    soak = Soak(FleetLab(cluster, requeue=True, command_timeout_s=10), plan)
    lab = soak.lab
    soak.begin()
    soak.storm()
    cluster.mend()
    soak.calm(deadline_s=300 + plan.tasks / 5)
    # Nothing lost: every task has its receipt. Nothing twice at once: no lock was ever met.
    assert not (lab.folder / "twice").exists(), (lab.folder / "twice").read_text()
    ended = Counter(run.task for run in lab.runs() if run.end_utc is not None and not run.saved)
    assert set(ended) == set(soak.names)
    listed = lab.tasks()
    assert {task["name"]: task["state"] for task in listed} == dict.fromkeys(soak.names, "succeeded")
    jobs = lab.check_single_submissions(*soak.fleets)
    again = sum(count - 1 for count in ended.values())
    sys.stderr.write(
        f"\nseed {plan.seed}: {len(soak.names)} tasks, {again} ran to their end again after a loss, {jobs} jobs, "
        f"faults {dict(soak.done)}, passes by exit code {dict(soak.answers)}\n"
    )
