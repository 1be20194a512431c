"""The thread that asks: late is said once, no second question goes out, and a late answer ends the outage."""

from __future__ import annotations

import subprocess
import sys
import threading
import time

from fleetcraft.core.clock import SystemClock
from fleetcraft.telemetry.deadline import Reader
from tests.support.waiting import wait_for


def reader():
    return Reader("test", SystemClock())


def test_an_answer_and_an_error_come_back():
    one = reader()
    assert one.call(lambda: 7, 5.0).value == 7
    assert str(one.call(lambda: 1 // 0, 5.0).error) == "integer division or modulo by zero"
    assert one.call(lambda: None, 5.0).late is False
    assert one.take_outage() is None


def test_all_questions_are_asked_by_one_thread():
    one = reader()
    names = {one.call(threading.get_ident, 5.0).value for _ in range(5)}
    assert len(names) == 1
    assert names != {threading.get_ident()}


def test_while_a_call_is_out_no_other_is_made_and_nobody_waits():
    one, let_go, asked = reader(), threading.Event(), []
    before = time.time()
    assert one.call(lambda: let_go.wait(30.0), 0.05).late
    began = time.monotonic()
    for _ in range(100):
        assert one.call(lambda: asked.append(1), 10.0).late
    assert time.monotonic() - began < 5.0
    assert asked == []
    assert before <= one.out_since_utc() <= time.time()
    let_go.set()
    wait_for(lambda: not one.is_out(), "the call came back")
    assert one.out_since_utc() is None
    outage = one.take_outage()
    assert before <= outage.since_utc <= outage.until_utc <= time.time()
    assert one.take_outage() is None
    # The late answer belongs to nobody: the next question gets its own.
    assert one.call(lambda: "fresh", 5.0).value == "fresh"
    assert asked == []


def test_a_slow_call_can_be_looked_at_again_before_it_is_late():
    one, let_go = reader(), threading.Event()
    assert one.ask(lambda: let_go.wait(30.0), 1.0)
    assert one.look(0.01) is None
    let_go.set()
    assert one.collect(5.0).value is True
    assert one.take_outage() is None


def test_one_reader_that_is_out_holds_no_other_one():
    sick, well, let_go = reader(), reader(), threading.Event()
    assert sick.call(lambda: let_go.wait(30.0), 0.05).late
    assert well.call(lambda: "well", 5.0).value == "well"
    let_go.set()


def test_the_process_ends_while_a_call_is_out():
    program = (
        "import time; from fleetcraft.core.clock import SystemClock; from fleetcraft.telemetry.deadline import Reader\n"
        "assert Reader('x', SystemClock()).call(lambda: time.sleep(600), 0.05).late; print('ends')"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=True)
    assert ended.stdout == "ends\n"
