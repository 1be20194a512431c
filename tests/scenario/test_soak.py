"""The long storm: a million tasks and ten thousand kills, within an hour on two cores. Run it with `make soak`."""

from __future__ import annotations

import os
import time

import pytest

from tests.support.lab import Lab
from tests.support.seeds import say, seeded
from tests.support.storm import Storm, StormPlan

TASKS = int(os.environ.get("SOAK_TASKS", "1000000"))
KILLS = int(os.environ.get("SOAK_KILLS", "10000"))


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_a_million_tasks_survive_ten_thousand_kills(lab: Lab):
    commands = TASKS // 20
    plan = StormPlan(
         commands=commands, calls=TASKS - commands, per_batch=max(100, TASKS // 100), kills=KILLS,
        kill_every_s=0.25, deadline_s=6600.0, say=True,
    )  # fmt: skip
    storm = Storm(lab, seeded(), plan)
    begun_s = time.monotonic()
    storm.run()
    say(f"{TASKS} tasks and {dict(storm.kills)} kills in {time.monotonic() - begun_s:.0f} s")
    storm.check()
