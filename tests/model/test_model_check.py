"""The protocol model is checked exhaustively, with small bounds, in every test run."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

MODEL = Path(__file__).parents[2] / "model"


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.needs_command("make", "spin", "gcc")
@pytest.mark.skipif(not MODEL.is_dir(), reason="there is no model/ in this checkout")
def test_the_model_keeps_its_promises_and_every_mutation_breaks_them():
    result = subprocess.run(["make", "-C", str(MODEL), "check"], capture_output=True, text=True, check=False)
    assert result.returncode == 0, f"{result.stdout[-8000:]}\n{result.stderr[-2000:]}"
