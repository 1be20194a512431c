"""Workers, publishers and reapers are killed at random moments; the accounts stay exact."""

from __future__ import annotations

import os
import random

import pytest

from tests.support.lab import Lab
from tests.support.storm import Storm, StormPlan


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_nothing_is_lost_or_counted_twice_whoever_is_killed_whenever(lab: Lab):
    seed = int(os.environ.get("STORM_SEED") or random.randrange(1 << 32))
    print(f"repeat with STORM_SEED={seed}")
    storm = Storm(lab, StormPlan(seed=seed, commands=10_000, calls=10_000, deadline_s=200.0))
    storm.run()
    print(f"kills: {dict(storm.kills)}")
    storm.check()
    assert storm.kills["worker"] > 10
