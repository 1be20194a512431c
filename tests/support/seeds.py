"""Randomness that can be repeated: the seed of a failing run stands in what the test printed."""

from __future__ import annotations

import os
import random
import sys

VARIABLE = "STORM_SEED"


def seeded() -> random.Random:
    """Dice with a new seed, or with the one that the environment names."""
    seed = int(os.environ.get(VARIABLE) or random.randrange(1 << 32))
    say(f"repeat with {VARIABLE}={seed}")
    return random.Random(seed)


def say(text: str) -> None:
    """A line that pytest shows when the test fails, and at once when output is not captured."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()
