"""A file system that loses replies, answers with errors, or cannot make a journal durable."""

from __future__ import annotations

import pytest

from tests.support.counting import counter_command, executions
from tests.support.lab import Lab
from tests.support.seeds import seeded
from tests.support.waiting import wait_for


@pytest.mark.parametrize("fault", ("lost_replies", "lost_replies_io", "flaky"))
def test_claims_whose_replies_are_lost_run_once(lab: Lab, fault: str):
    dice = seeded()
    argv = counter_command(lab.folder)
    for batch in range(30):
        lab.enqueue([{"name": f"b{batch}t{number}", "command": [*argv, "executed"]} for number in range(30)])
    workers = [lab.worker(cpus=2, fault=(fault, str(dice.randrange(1 << 32)))) for number in range(2)]
    codes = [worker.wait() for worker in workers]
    assert set(codes) <= {0, 75}, [worker.said() for worker in workers]
    lab.drain()
    assert lab.counts() == {"succeeded": 900}
    assert lab.tokens() == []
    done = executions(lab.folder / "executed")
    assert len({(entry.task, entry.attempt) for entry in done}) == len(done), "one attempt ran twice"
    assert {lab.life_state(life) for life in lab.lives()} == {"dead"}


def test_a_journal_that_cannot_be_made_durable_ends_its_life_and_keeps_its_claims(lab: Lab):
    broken = lab.folder / "broken"
    lab.enqueue([{"name": f"t{number}", "command": ["sleep", "0.02"]} for number in range(100)])
    worker = lab.worker(fault=("broken_sync", str(broken)))
    life = lab.life_of(worker)
    lab.wait_until_ended(10)
    broken.touch()
    assert worker.wait() == 75, worker.said()
    assert "sync" in worker.said()
    assert lab.life_state(life) == "live", "whoever finds the claims decides, by evidence"
    assert any(token.life == life for token in lab.tokens())
    wait_for(lambda: not lab.strays(), "its children are gone", seen=lab.strays)
    lab.drain()
    assert lab.counts() == {"succeeded": 100}
    assert lab.tokens() == []
    assert lab.life_state(life) == "dead"
