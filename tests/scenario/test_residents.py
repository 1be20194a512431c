"""Calls in residents: loaded once per slot, and every way in which a call can end."""

from __future__ import annotations

import signal
import sys
from typing import Any

import pytest

from fleetcraft.actions.requests import cancel
from fleetcraft.actions.selection import Selection
from fleetcraft.spool.permits import list_permits, set_ceiling
from tests.support.lab import Lab
from tests.support.waiting import wait_for

MODULE = """
import os, signal, sys, time

def setup(**how):
    with open("loaded", "a") as out:
        out.write(f"{os.getpid()} {os.environ['FLEETCRAFT_SLOT']} {os.environ['CUDA_VISIBLE_DEVICES']}\\n")
    return {"pid": os.getpid(), **how}

def note(state, number):
    with open("ran", "a") as out:
        out.write(f"{number} {os.getpid()}\\n")
    return {"number": number, **state}

def square(number): return number * number
def say(text, fail=False):
    print(text)
    print(text, "too", file=sys.stderr)
    if fail: raise ValueError(text)
def nothing(number=0): return None
def maybe_die(number):
    with open("ran", "a") as out:
        out.write(f"{number}\\n")
    if number == 13: os.kill(os.getpid(), signal.SIGKILL)
    return number
def hang(number=0):
    open(f"hangs-{number}", "w").close()
    while True: time.sleep(0.05)
def until_go(number=0):
    open(f"waits-{number}", "w").close()
    while not os.path.exists("go"): time.sleep(0.02)
    return "went"
def hungry(): raise MemoryError("no 40 GB here")
def leave(): sys.exit(7)
def flaky(path):
    with open(path, "a") as out: out.write("x")
    if os.path.getsize(path) < 3: raise RuntimeError("not yet")
    return "at last"
def write(path, text):
    with open(path, "w") as out: out.write(text)
def bad_setup(): raise RuntimeError("no weights in " + os.getcwd())
def dying_setup(): os._exit(3)
"""


@pytest.fixture
def calls(lab: Lab) -> Lab:
    (lab.folder / "work.py").write_text(MODULE)
    return lab


def enqueue(lab: Lab, *tasks: dict[str, Any], **defaults: Any) -> None:
    lab.enqueue(tasks, python=sys.executable, **defaults)


def call(name: str, function: str, args: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    return {"name": name, "call": f"work:{function}", **({"args": args} if args else {}), **more}


def test_a_function_is_loaded_once_per_slot_with_its_own_gpu(calls: Lab):
    tasks = [
        call(f"t{number}", "note", {"number": number}, setup="work:setup", setup_args={"mode": "best"}, gpus=1)
        for number in range(500)
    ]
    enqueue(calls, *tasks)
    calls.drain(cpus=2, gpus="simulated:2")
    assert calls.counts() == {"succeeded": 500}
    loaded = [line.split() for line in (calls.folder / "loaded").read_text().splitlines()]
    assert 1 <= len(loaded) <= 2
    assert len({slot for _, slot, _ in loaded}) == len({gpu for _, _, gpu in loaded}) == len(loaded)
    ran = [line.split() for line in (calls.folder / "ran").read_text().splitlines()]
    assert sorted(int(number) for number, _ in ran) == list(range(500))
    assert {pid for _, pid in ran} <= {pid for pid, _, _ in loaded}


def test_values_come_back_in_receipts(calls: Lab):
    enqueue(calls, *(call(f"t{number}", "square", {"number": number}) for number in range(300)))
    calls.drain(cpus=1)
    assert calls.counts() == {"succeeded": 300}
    values: dict[int, int] = {}
    for record in calls.records():
        if record["t"] == "receipt":
            got = record["values"] if "values" in record else [record["value"]]
            values.update(zip(range(record["i"], record["i"] + record.get("k", 1)), got, strict=True))
    assert values == {number: number * number for number in range(300)}


def test_prints_are_found_by_the_range_in_the_receipt(calls: Lab):
    tasks = [
        call(f"t{number}", "say", {"text": f"line {number}"}) if number % 50 == 0 else call(f"t{number}", "nothing")
        for number in range(200)
    ]
    enqueue(calls, *tasks, call("loud", "say", {"text": "broken", "fail": True}))
    calls.drain(cpus=1)
    for number in range(0, 200, 50):
        # Python keeps what goes to stdout for a moment; either order is the task's own business.
        assert sorted(calls.output(f"t{number}").splitlines()) == [
            f"line {number}".encode(),
            f"line {number} too".encode(),
        ]
    assert set(calls.output("loud").splitlines()) == {b"broken", b"broken too"}
    receipt = calls.receipts("loud")[0]
    assert (receipt["o"], receipt["error"]) == ("failed", "ValueError: broken")
    assert "in say" in receipt["traceback"]


def test_the_call_that_kills_its_resident_is_found_and_the_others_are_not_blamed(calls: Lab):
    enqueue(calls, *(call(f"t{number}", "maybe_die", {"number": number}) for number in range(40)))
    calls.drain(cpus=1)
    assert calls.counts() == {"succeeded": 39, "failed": 1}
    verdict = calls.verdict("t13")
    assert (verdict.state, verdict.failures) == ("failed", 1)
    assert "signal 9" in calls.receipts("t13")[-1]["error"]
    assert all(calls.verdict(f"t{number}").failures == 0 for number in range(40) if number != 13)


def test_a_setup_that_fails_fails_the_tasks_and_says_why(calls: Lab):
    enqueue(calls, *(call(f"t{number}", "square", {"number": number}, setup="work:bad_setup") for number in range(3)))
    enqueue(
        calls,
        call("dies", "nothing", setup="work:dying_setup"),
        call("missing", "no_such_function"),
        call("ok", "square", {"number": 3}),
    )
    calls.drain(cpus=2)
    assert calls.counts() == {"succeeded": 1, "failed": 5}
    assert "no weights in" in calls.receipts("t1")[-1]["error"]
    assert "exit 3" in calls.receipts("dies")[-1]["error"]
    assert "no_such_function" in calls.receipts("missing")[-1]["error"]


def test_a_call_that_runs_too_long_ends_alone(calls: Lab):
    enqueue(
        calls,
        call("stuck", "hang", timeout="0.4s"),
        *(call(f"t{number}", "nothing", {"number": number}, timeout="0.4s") for number in range(20)),
    )
    calls.drain(cpus=1)
    assert calls.outcomes("stuck") == ["timeout"]
    assert calls.counts() == {"succeeded": 20, "failed": 1}


def test_a_running_call_can_be_cancelled(calls: Lab):
    enqueue(calls, call("stuck", "hang"), call("next", "nothing"))
    worker = calls.worker(cpus=1)
    wait_for((calls.folder / "hangs-0").exists, "the call runs", seen=calls.picture)
    cancel(calls.spool, Selection(names=("stuck",)))
    assert worker.wait() == 0
    assert (calls.state("stuck"), calls.state("next")) == ("cancelled", "succeeded")


def test_failures_memory_and_exits_of_calls_have_their_own_words(calls: Lab):
    enqueue(
        calls, call("hungry", "hungry"), call("leaves", "leave"), call("typo", "square", {"wrong": 1}),
        call("flaky", "flaky", {"path": "tries"}, retries=3, backoff="0.05s"), call("fine", "square", {"number": 2}),
    )  # fmt: skip
    calls.drain(cpus=1)
    assert calls.outcomes("hungry") == ["out_of_memory"]
    assert calls.outcomes("leaves") == ["failed"]
    assert "exit code 7" in calls.receipts("leaves")[0]["error"]
    assert "wrong" in calls.receipts("typo")[0]["error"]
    assert calls.outcomes("flaky") == ["failed", "failed", "succeeded"]
    assert calls.counts() == {"succeeded": 2, "failed": 3}


def test_declared_outputs_of_calls_are_proved(calls: Lab):
    enqueue(
        calls, call("good", "write", {"path": "a", "text": "hello"}, outputs=["a"]),
        call("bad", "nothing", outputs=["never"]),
    )  # fmt: skip
    calls.drain()
    assert calls.receipts("good")[0]["outputs"][0]["size"] == 5
    assert calls.outcomes("bad") == ["output_invalid"]


def test_a_killed_worker_takes_its_residents_along_and_their_calls_run_again(calls: Lab):
    enqueue(calls, *(call(f"t{number}", "until_go", {"number": number}) for number in range(4)))
    first = calls.worker(cpus=2)
    wait_for(lambda: len(list(calls.folder.glob("waits-*"))) == 2, "two calls run", seen=calls.picture)
    first.kill()
    wait_for(lambda: not calls.strays(), "the residents are gone with their worker", 10.0, calls.strays)
    (calls.folder / "go").touch()
    calls.drain()
    assert calls.counts() == {"succeeded": 4}
    assert sum(calls.verdict(f"t{number}").losses for number in range(4)) == 2


def test_a_drain_ends_a_call_and_gives_everything_back(calls: Lab):
    enqueue(calls, call("long", "hang"), *(call(f"t{number}", "nothing") for number in range(50)))
    worker = calls.worker(cpus=1)
    wait_for((calls.folder / "hangs-0").exists, "the call runs", seen=calls.picture)
    worker.send(signal.SIGTERM)
    assert worker.wait() == 0, worker.said()
    assert calls.strays() == []
    assert calls.verdict("long").state is None
    assert calls.receipts("long")[0]["cause"] == "drained"
    assert sum(token.count for token in calls.tokens()) == 51 - sum(calls.counts().values())
    assert {token.form for token in calls.tokens()} == {""}


def test_commands_and_calls_share_one_cpu(calls: Lab):
    enqueue(calls, *(call(f"c{number}", "nothing", {"number": number}) for number in range(50)))
    enqueue(calls, *({"name": f"p{number}", "command": ["true"]} for number in range(20)))
    enqueue(calls, *(call(f"s{number}", "square", {"number": number}, setup=None) for number in range(50)))
    calls.drain(cpus=1)
    assert calls.counts() == {"succeeded": 120}


def test_the_quarantine_reaches_calls_that_kill_their_worker(calls: Lab):
    with (calls.folder / "work.py").open("a") as module:
        module.write("\ndef shoot(): os.kill(os.getppid(), signal.SIGKILL); time.sleep(60)\n")
    enqueue(calls, call("killer", "shoot"), *(call(f"t{number}", "nothing") for number in range(10)))
    codes: list[int] = []
    while calls.state("killer") is None:
        assert len(codes) < 8, f"not quarantined: {calls.verdict('killer')}"
        codes.append(calls.worker(cpus=1).wait())
    calls.drain()
    assert calls.counts() == {"succeeded": 10, "quarantined": 1}


def test_calls_share_a_named_resource_too(calls: Lab):
    set_ceiling(calls.spool, "api", 1)
    with (calls.folder / "work.py").open("a") as module:
        module.write(
            "\ndef alone(number):\n"
            "    os.mkdir('inside')  # fails when another one is\n"
            "    time.sleep(0.02)\n"
            "    os.rmdir('inside')\n"
        )
    enqueue(calls, *(call(f"t{number}", "alone", {"number": number}, uses="api:1") for number in range(30)))
    workers = [calls.worker(cpus=2), calls.worker(cpus=2)]
    assert [worker.wait() for worker in workers] == [0, 0]
    assert calls.counts() == {"succeeded": 30}
    assert [owner for _, _, owner in list_permits(calls.spool)] == [""]
