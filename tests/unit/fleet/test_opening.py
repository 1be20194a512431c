"""From the rules of a profile to a scheduler, and how often it is asked."""

from __future__ import annotations

import pytest

from fleetcraft.config.site import SchedulerRules
from fleetcraft.core.errors import UsageError
from fleetcraft.fleet.opening import open_scheduler
from fleetcraft.schedulers.api import JobRef
from fleetcraft.schedulers.local import LocalScheduler
from fleetcraft.transports.api import Answer


class Silent:
    """A host on which nothing answers; keeps what was asked."""

    name = "silent"

    def __init__(self):
        self.asked = []

    def run(self, argv, **settings):
        self.asked.append(tuple(argv))
        return Answer(argv=tuple(argv), code=None, out="", err="", took_s=0.0, problem="timed out")


def test_this_machine_needs_no_spacing(tmp_path):
    scheduler = open_scheduler(SchedulerRules(kind="local"), folder=str(tmp_path / "jobs"))
    assert isinstance(scheduler, LocalScheduler)


def test_slurm_is_asked_once_for_two_who_ask_within_the_floor(tmp_path):
    host, env = Silent(), {"XDG_RUNTIME_DIR": str(tmp_path), "HOME": str(tmp_path)}
    rules = SchedulerRules(kind="slurm", cluster="c1", poll_floor_s=600.0)
    seen = []
    for _ in range(2):
        scheduler = open_scheduler(rules, transport=host, env=env)
        assert scheduler.kind == "slurm"
        seen.append(scheduler.observe([JobRef(id="17")]))
    assert not any(observation.answered for observation in seen)
    assert sum(argv[0] == "squeue" for argv in host.asked) == 1
    assert all("--clusters=c1" in argv for argv in host.asked if argv[0] == "squeue")
    assert "younger than 600 s" in seen[1].problems[0]


def test_a_scheduler_that_is_not_there_is_said_so():
    with pytest.raises(UsageError, match=r"no scheduler 'lsf'.*slurm, local"):
        open_scheduler(SchedulerRules(kind="lsf"))
