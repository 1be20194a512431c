"""The ends of segments: what is no file is named and never waited for."""

from __future__ import annotations

import os

from fleetcraft.usage.tails import Tails, server_now
from tests.support.telemetry_files import START_MS


def test_a_pipe_where_a_segment_should_be_is_named_and_not_waited_for(tmp_path):
    (tmp_path / "n1").mkdir()
    os.mkfifo(tmp_path / "n1" / f"{START_MS}-abcdef12-7.csv")
    os.mkfifo(tmp_path / "n1" / "sampler.json")
    (tail,) = Tails(horizon_s=300.0).read(str(tmp_path), server_now(str(tmp_path))).values()
    assert tail.gpus == {}
    assert "it is no file" in tail.problems[0]
