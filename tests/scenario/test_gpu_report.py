"""The report of a spool that real workers served: it can be published, and then names nobody and nothing."""

from __future__ import annotations

import io
import socket

from fleetcraft.cli.commands import dispatch
from fleetcraft.cli.output import Output
from tests.support.lab import Lab


def test_the_report_of_a_spool_can_be_published_and_names_nobody(lab: Lab, tmp_path):
    lab.enqueue([{"name": f"secret-{number}", "command": ["sleep", "0.1"], "gpus": 1} for number in range(3)])
    lab.worker(cpus=2, gpus="simulated:1")
    lab.wait_until_ended(3)
    said = io.StringIO()
    page = tmp_path / "r.html"
    words = ["gpu", "report", "--spool", str(lab.root), "--publish", "--output", str(page)]
    assert dispatch(words, Output(said, said, color=False)) == 0, said.getvalue()
    text = page.read_text()
    assert "task-1" in text
    for private in ("secret-", socket.gethostname() + "<", str(lab.root)):
        assert private not in text
