"""Polling shared by all processes of a user: one question in ten seconds, and everybody gets its answer."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

import pytest

from fleetcraft.core.states import JobState
from fleetcraft.schedulers.api import JobRef, JobView, Observation
from fleetcraft.schedulers.polling import FLOOR_S, Pace, SharedPoll, poll_folder, site_key
from fleetcraft.testing.clock import ManualClock

KEY = site_key("slurm@local", config="/etc/slurm.conf", user="u")


def view(number, state=JobState.RUNNING):
    return JobView(
        ref=JobRef(id=str(number)), state=state, raw_state="RUNNING", nodes=("n1", "n2"), notes=("a note",), gpus=4
    )


class Asked:
    """A scheduler that writes down what it was asked."""

    def __init__(self, clock, *, answered=True, took_s=0.0):
        self.clock, self.answered, self.took_s = clock, answered, took_s
        self.questions = []

    def __call__(self, refs):
        self.questions.append(sorted(ref.id for ref in refs))
        self.clock.advance(self.took_s)
        known = {str(ref): view(ref.id) for ref in refs if ref.id.isdigit()}
        absent = tuple(ref for ref in refs if not ref.id.isdigit())
        if not self.answered:
            return Observation(at_utc=self.clock.utc(), jobs={}, answered=False, problems=("down",), queries=1)
        return Observation(at_utc=self.clock.utc(), jobs=known, absent=absent, queries=2)


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def ask(clock):
    return Asked(clock)


def opened(tmp_path, clock, key=KEY, **rest):
    return SharedPoll(str(tmp_path / "polls"), key, clock=clock, **rest)


ONE, TWO = JobRef(id="1"), JobRef(id="2")


def test_a_second_process_within_the_floor_gets_the_answer_with_its_age(tmp_path, clock, ask):
    first = opened(tmp_path, clock).observe([ONE, JobRef(id="x", cluster="c")], ask)
    asked_at = clock.utc()
    clock.advance(9.0)
    second = opened(tmp_path, clock).observe([ONE, JobRef(id="x", cluster="c")], ask)
    assert len(ask.questions) == 1
    assert (first.from_cache, second.from_cache) == (False, True)
    assert (second.at_utc, second.queries) == (asked_at, 0)
    assert second.jobs == first.jobs
    assert second.absent == (JobRef(id="x", cluster="c"),)
    clock.advance(1.0)
    assert not opened(tmp_path, clock).observe([ONE], ask).from_cache
    assert len(ask.questions) == 2


def test_a_job_that_the_others_did_not_ask_for_is_not_answered_for_and_asked_next_time(tmp_path, clock, ask):
    opened(tmp_path, clock).observe([ONE], ask)
    other = opened(tmp_path, clock).observe([TWO, JobRef(id="gone")], ask)
    assert (dict(other.jobs), other.absent, other.answered) == ({}, (), True)
    clock.advance(FLOOR_S)
    seen = opened(tmp_path, clock).observe([ONE], ask)
    assert ask.questions[-1] == ["1", "2", "gone"]
    assert list(seen.jobs) == ["1"]
    assert list(opened(tmp_path, clock).observe([TWO], ask).jobs) == ["2"]
    assert len(ask.questions) == 2


def test_the_site_floor_counts_and_none_goes_below_ten_seconds(tmp_path, clock, ask):
    opened(tmp_path, clock, floor_s=0.0).observe([ONE], ask)
    clock.advance(9.9)
    assert opened(tmp_path, clock, floor_s=0.0).observe([ONE], ask).from_cache
    clock.advance(50.0)
    assert opened(tmp_path, clock, floor_s=120.0).observe([ONE], ask).from_cache
    assert opened(tmp_path, clock, floor_s=120.0).next_allowed_s() == pytest.approx(60.1)


def test_the_floor_is_counted_from_the_end_of_a_slow_question(tmp_path, clock):
    slow = Asked(clock, took_s=40.0)
    opened(tmp_path, clock).observe([ONE], slow)
    clock.advance(9.0)
    assert opened(tmp_path, clock).observe([ONE], slow).from_cache


def test_two_sites_never_mix(tmp_path, clock, ask):
    opened(tmp_path, clock).observe([ONE], ask)
    for other in (
        site_key("slurm@local", config="/other/slurm.conf", user="u"),
        site_key("slurm@local", config="/etc/slurm.conf", cluster="b", user="u"),
        site_key("slurm@far", config="/etc/slurm.conf", user="u"),
        site_key("slurm@local", config="/etc/slurm.conf", user="v"),
    ):
        assert not opened(tmp_path, clock, other).observe([ONE], ask).from_cache
    # Not even when one file lies where the other's would be.
    folder = tmp_path / "polls"
    names = {path.name.split(".")[0] for path in folder.iterdir()}
    assert len(names) == 5
    mine = opened(tmp_path, clock)
    theirs = next(path for path in folder.glob("*.answer") if not path.name.startswith(mine._name))
    theirs.replace(mine._path("answer"))
    assert not mine.observe([ONE], ask).answered


@pytest.mark.parametrize("what", ("answer", "asked", "wanted"))
@pytest.mark.parametrize("harm", (b"", b"{", b"0" * 64 + b"\n{}", None))
def test_a_torn_file_is_no_answer_and_is_mended(tmp_path, clock, ask, what, harm):
    opened(tmp_path, clock).observe([ONE], ask)
    poll = opened(tmp_path, clock)
    path = poll._path(what)
    with open(path, "rb") as source:
        whole = source.read()
    with open(path, "wb") as target:
        target.write(whole[:-7] if harm is None else harm)
    seen = poll.observe([ONE], ask)
    if what == "asked":
        assert not seen.from_cache  # without a stamp nobody knows when the last question was
    if what == "answer":
        assert (seen.answered, dict(seen.jobs)) == (False, {})
        assert seen.problems
    clock.advance(FLOOR_S)
    assert list(poll.observe([ONE], ask).jobs) == ["1"]
    assert list(opened(tmp_path, clock).observe([ONE], ask).jobs) == ["1"]


def test_a_failed_question_leaves_the_last_answer_and_counts_as_a_question(tmp_path, clock, ask):
    opened(tmp_path, clock).observe([ONE], ask)
    clock.advance(FLOOR_S)
    failing = Asked(clock, answered=False)
    assert not opened(tmp_path, clock).observe([ONE], failing).answered
    again = opened(tmp_path, clock).observe([ONE], failing)
    assert again.from_cache
    assert again.jobs["1"].state is JobState.RUNNING
    assert clock.utc() - again.at_utc == FLOOR_S
    assert len(failing.questions) == 1


def test_a_process_that_dies_while_it_asks_has_asked(tmp_path, clock, ask):
    def die(_refs):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        opened(tmp_path, clock).observe([ONE], die)
    seen = opened(tmp_path, clock).observe([ONE], ask)
    assert (seen.answered, seen.from_cache) == (False, True)
    clock.advance(FLOOR_S)
    assert opened(tmp_path, clock).observe([ONE], ask).answered


def test_a_set_wall_clock_neither_opens_nor_closes_the_gate(tmp_path, clock, ask):
    opened(tmp_path, clock).observe([ONE], ask)
    clock.jump_utc(3600)
    assert opened(tmp_path, clock).observe([ONE], ask).from_cache
    clock.jump_utc(-7200)
    assert opened(tmp_path, clock).observe([ONE], ask).from_cache
    clock.advance(FLOOR_S)
    assert not opened(tmp_path, clock).observe([ONE], ask).from_cache


def test_after_a_boot_a_stamp_from_the_future_does_not_close_the_gate_for_ever(tmp_path, clock, ask):
    poll = opened(tmp_path, clock)
    poll.observe([ONE], ask)
    poll._boot = "another boot"
    clock.advance(5.0)
    assert poll.observe([ONE], ask).from_cache
    clock.jump_utc(-86_400)
    assert not poll.observe([ONE], ask).from_cache


def test_while_another_process_asks_nobody_waits(tmp_path, clock, ask):
    poll = opened(tmp_path, clock)
    seen = []

    def asking(refs):
        seen.append(opened(tmp_path, clock).observe([ONE], ask))
        return ask(refs)

    poll.observe([ONE], asking)
    assert (seen[0].answered, seen[0].from_cache) == (False, True)
    assert "another process" in seen[0].problems[0]
    clock.advance(FLOOR_S)
    poll.observe([ONE], asking)
    assert seen[1].jobs["1"].state is JobState.RUNNING


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to make a folder that even root cannot write in")
def test_without_a_folder_this_process_still_keeps_to_the_floor(clock, ask):
    poll = SharedPoll("/proc/nowhere", KEY, clock=clock)
    first = poll.observe([ONE], ask)
    assert first.answered
    assert "not shared" in first.problems[0]
    assert poll.observe([ONE], ask).from_cache
    clock.advance(FLOOR_S)
    assert not poll.observe([ONE], ask).from_cache
    assert len(ask.questions) == 2


_PROCESS = """
import json, sys
from fleetcraft.schedulers.api import JobRef, Observation
from fleetcraft.schedulers.polling import SharedPoll
asked = 0
def ask(refs):
    global asked
    asked += 1
    open(sys.argv[2], "a").write("x")
    return Observation(at_utc=1.0, jobs={})
for _ in range(40):
    SharedPoll(sys.argv[1], "key").observe([JobRef(id=sys.argv[3])], ask)
print(asked)
"""


def test_of_six_processes_at_once_one_asks(tmp_path):
    count = tmp_path / "asked"
    started = time.monotonic()
    running = [
        subprocess.Popen(
            [sys.executable, "-c", _PROCESS, str(tmp_path / "polls"), str(count), str(number)], stdout=subprocess.PIPE
        )
        for number in range(6)
    ]
    answers = [int(process.communicate()[0]) for process in running]
    assert [process.returncode for process in running] == [0] * 6
    passed = time.monotonic() - started
    assert sum(answers) == len(count.read_text())
    assert 1 <= sum(answers) <= 1 + passed // FLOOR_S


def test_the_folder_is_the_runtime_folder_or_the_cache(tmp_path):
    assert poll_folder({"XDG_RUNTIME_DIR": str(tmp_path)}) == f"{tmp_path}/fleetcraft/polls"
    assert poll_folder({"XDG_RUNTIME_DIR": "/no/such", "XDG_CACHE_HOME": "/c"}) == "/c/fleetcraft/polls"
    assert poll_folder({"FLEETCRAFT_POLLS": "/shared/polls", "XDG_RUNTIME_DIR": str(tmp_path)}) == "/shared/polls"
    assert poll_folder({}).endswith("/.cache/fleetcraft/polls")


def test_the_pace_slows_down_while_nothing_changes_and_never_breaks_a_floor():
    pace = Pace(floor_s=20.0)
    none = lambda: 0.0  # noqa: E731
    waits, last = [], None
    for _ in range(7):
        last = pace.next_s(last, has_changed=False, chance=none)
        waits.append(last)
    assert waits[0] == 30.0
    assert waits[1] == 45.0
    assert waits == sorted(waits)
    assert waits[-1] == 180.0
    assert pace.next_s(180.0, has_changed=True, chance=none) == 30.0
    assert pace.next_s(None, has_changed=True, took_s=20.0, chance=none) == 100.0
    assert pace.next_s(None, has_changed=True, chance=lambda: 1.0) == pytest.approx(33.0)
    assert Pace(floor_s=1.0, busy_s=1.0).next_s(None, has_changed=True, chance=none) == FLOOR_S
    assert Pace(floor_s=120.0).next_s(None, has_changed=True, chance=none) == 120.0


def test_what_is_written_is_plain_json_behind_its_digest(tmp_path, clock, ask):
    poll = opened(tmp_path, clock)
    poll.observe([ONE], ask)
    with open(poll._path("answer"), encoding="utf-8") as source:
        digest, body = source.read().split("\n", 1)
    assert len(digest) == 64
    assert json.loads(body)["observation"]["jobs"]["1"]["state"] == "running"
