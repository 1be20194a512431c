"""Every way in which an attempt ends has its own word, its own budget, and its own evidence."""

from __future__ import annotations

import signal
import sys
import time
from itertools import pairwise

import pytest

from tests.support.lab import Lab


def test_a_failing_task_is_tried_again_after_its_backoff_until_its_budget_is_spent(lab: Lab):
    lab.enqueue([{"name": "fails", "command": ["sh", "-c", "exit 3"], "retries": 3, "backoff": "0.2s"}])
    lab.drain()
    receipts = lab.receipts("fails")
    assert [(record["o"], record["a"], record["exit"]) for record in receipts] == [
        ("failed", number, 3) for number in (1, 2, 3, 4)
    ]
    assert [record.get("final") for record in receipts] == [None, None, None, "failed"]
    # Each wait is twice the one before it.
    gaps_s = [later["at"] - sooner["end"] for sooner, later in pairwise(receipts)]
    assert [gap_s >= least_s for gap_s, least_s in zip(gaps_s, (0.19, 0.39, 0.79), strict=True)] == [True] * 3, gaps_s
    assert lab.counts() == {"failed": 1}


def test_a_backoff_keeps_no_slot_from_other_tasks(lab: Lab):
    # Long enough that the worker looks for more, and finds no room for it, while it still runs.
    fails = {"name": "fails", "command": ["sh", "-c", "sleep 0.3; false"], "retries": 1, "backoff": "3s"}
    lab.enqueue([fails], priority=900)
    lab.enqueue([{"name": f"t{number}", "command": ["true"]} for number in range(20)])
    lab.drain(cpus=1)
    failed, again = lab.receipts("fails")
    between = [number for number in range(20) if failed["end"] <= lab.receipts(f"t{number}")[0]["at"] < again["at"]]
    assert between, "the only slot stood empty during the backoff"


def test_a_task_that_works_at_its_third_attempt_succeeds(lab: Lab):
    script = 'echo x >> tries; test "$(wc -l < tries)" -ge 3'
    lab.enqueue([{"name": "flaky", "command": ["sh", "-c", script], "retries": 5, "backoff": "0.05s"}])
    lab.drain()
    assert lab.outcomes("flaky") == ["failed", "failed", "succeeded"]
    assert lab.state("flaky") == "succeeded"


def test_a_timeout_has_a_budget_and_a_word_of_its_own(lab: Lab):
    lab.enqueue([{"name": "long", "command": ["sleep", "300"], "timeout": "0.3s", "retries": 1, "backoff": "0.05s"}])
    begun_s = time.monotonic()
    lab.drain()
    assert time.monotonic() - begun_s < 20.0
    assert lab.outcomes("long") == ["timeout", "timeout"]
    assert "0.3 s" in lab.receipts("long")[-1]["error"]
    assert lab.counts() == {"failed": 1}


@pytest.mark.parametrize(
    "script",
    (
        "echo 'RuntimeError: CUDA out of memory. Tried to allocate 20.00 GiB' >&2; exit 1",
        "echo 'torch.cuda.OutOfMemoryError' >&2; exit 1",
        "echo \"terminate called after throwing an instance of 'std::bad_alloc'\"; exit 134",
        "echo 'MemoryError'; exit 1",
    ),
)
def test_running_out_of_memory_is_no_ordinary_failure(lab: Lab, script: str):
    lab.enqueue([{"name": "big", "command": ["sh", "-c", script]}])
    lab.drain()
    assert lab.outcomes("big") == ["out_of_memory"]
    assert lab.counts() == {"failed": 1}


def test_words_about_memory_in_a_success_change_nothing(lab: Lab):
    lab.enqueue([{"name": "fine", "command": ["echo", "CUDA out of memory is what we avoid"]}])
    lab.drain()
    assert lab.outcomes("fine") == ["succeeded"]


def test_a_success_without_its_declared_output_is_none(lab: Lab):
    lab.enqueue(
        [
            {"name": "missing", "command": ["true"], "outputs": ["never.txt"]},
            {"name": "empty", "command": ["sh", "-c", ": > empty.txt"], "outputs": ["empty.txt"]},
            {"name": "whole", "command": ["sh", "-c", "printf hello > whole.txt"], "outputs": ["whole.txt"]},
            {
                "name": "refused",
                "command": ["sh", "-c", "echo x > refused.txt"],
                "outputs": ["refused.txt"],
                "validate": "exit 9",
            },
        ]
    )
    lab.drain()
    found = {name: lab.outcomes(name) for name in ("missing", "empty", "whole", "refused")}
    assert found.pop("whole") == ["succeeded"]
    assert list(found.values()) == [["output_invalid"]] * 3
    proof = lab.receipts("whole")[0]["outputs"]
    assert proof == [
        {"path": "whole.txt", "size": 5, "sha256": "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824"}
    ]


def test_what_cannot_be_started_says_which_thing_is_missing(lab: Lab):
    plain = lab.folder / "plain"
    plain.write_text("no program")
    lab.enqueue(
        [
            {"name": "program", "command": ["/no/such/program"]},
            {"name": "folder", "command": ["true"], "cwd": "/no/such/folder"},
            {"name": "mode", "command": [str(plain)]},
        ]
    )
    lab.drain()
    errors = {name: lab.receipts(name)[0]["error"] for name in ("program", "folder", "mode")}
    assert "/no/such/program" in errors["program"]
    assert "/no/such/folder" in errors["folder"]
    assert "Permission denied" in errors["mode"]
    assert lab.counts() == {"failed": 3}


def test_a_task_ended_by_a_signal_names_it(lab: Lab):
    lab.enqueue([{"name": "dies", "command": ["sh", "-c", "kill -SEGV $$"]}])
    lab.drain()
    receipt = lab.receipts("dies")[0]
    assert (receipt["o"], receipt["signal"]) == ("failed", signal.SIGSEGV)


def test_a_task_that_kills_its_worker_is_quarantined_and_harms_nobody_else(lab: Lab):
    lab.enqueue([{"name": f"good{number}", "command": ["true"]} for number in range(50)])
    lab.enqueue([{"name": "killer", "command": ["sh", "-c", "kill -9 $PPID"]}])
    lab.enqueue([{"name": f"more{number}", "command": ["true"]} for number in range(50)])
    codes: list[int] = []
    while lab.state("killer") is None:
        assert len(codes) < 8, f"not quarantined: {lab.verdict('killer')}"
        codes.append(lab.worker(crash_limit=3).wait())
    assert codes.count(-signal.SIGKILL) == 4, "three times beside others, then once more alone"
    lab.drain()
    assert lab.counts() == {"succeeded": 100, "quarantined": 1}
    verdict = lab.verdict("killer")
    assert (verdict.losses, verdict.lost_alone) == (4, True)
    started = [
        record["how"] for record in lab.records() if record["t"] == "started" and record["a"] == 4 and "how" in record
    ]
    assert started == ["a"]
    final = lab.receipts("killer")[-1]
    assert "4 times" in final["error"]
    assert lab.tokens() == []


def test_a_crash_limit_of_one_still_runs_the_task_alone_once(lab: Lab):
    lab.enqueue([{"name": "killer", "command": ["sh", "-c", "kill -9 $PPID"]}])
    codes = [lab.worker(crash_limit=1).wait() for _ in range(3)]
    assert codes == [-signal.SIGKILL, -signal.SIGKILL, 0]
    assert lab.counts() == {"quarantined": 1}


def test_a_task_that_runs_alone_waits_for_others_and_keeps_them_out(lab: Lab):
    """The evidence against a task counts only when nothing else ran: not even on the other CPUs of the worker."""
    probe = (
        "import os,sys,time\n"
        "tries = int(os.environ['FLEETCRAFT_ATTEMPT'])\n"
        "if tries < 3: os.kill(os.getppid(), 9)\n"
        "time.sleep(0.3)\n"
    )
    lab.enqueue([{"name": "suspect", "command": [sys.executable, "-c", probe]}], priority=900)
    lab.enqueue([{"name": f"t{number}", "command": ["sleep", "0.05"]} for number in range(60)])
    for _ in range(2):
        assert lab.worker(crash_limit=2, cpus=3).wait() == -signal.SIGKILL
    lab.drain(crash_limit=2, cpus=3)
    assert lab.counts() == {"succeeded": 61}
    alone = lab.receipts("suspect")[-1]
    assert alone["how"] == "a"
    last = alone["by"]
    spans = [
        (record["at"], record["end"], record["i"])
        for record in lab.records(last)
        if record["t"] == "receipt" and record is not alone and record["n"] != alone["n"]
    ]
    overlapping = [span for span in spans if span[0] < alone["end"] - 0.002 and span[1] > alone["at"] + 0.002]
    assert overlapping == []
