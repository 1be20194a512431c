"""The local transport: every way in which a command can end is told apart, and nothing is left behind."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time

import pytest

from fleetcraft.transports.api import Surroundings
from fleetcraft.transports.local import LocalTransport, surround
from fleetcraft.transports.processes import all_processes, lives, marked, process, spawn
from tests.support.waiting import wait_for


def test_a_command_says_everything_and_its_code():
    answer = LocalTransport().run(["sh", "-c", "cat; echo e >&2; exit 3"], stdin=b"in\xff")
    assert (answer.code, answer.out, answer.err, answer.problem) == (3, "in�", "e\n", "")
    assert answer.answered
    assert answer.argv[0] == "sh"


def test_megabytes_pass_both_ways_at_once():
    data = os.urandom(1 << 20).hex().encode()
    answer = LocalTransport().run(["sh", "-c", "tee /dev/stderr"], stdin=data)
    assert (len(answer.out), len(answer.err), answer.code) == (len(data), len(data), 0)


def test_a_command_that_reads_nothing_keeps_its_own_code():
    assert LocalTransport().run(["sh", "-c", "exit 4"], stdin=b"x" * (1 << 20)).code == 4


@pytest.mark.parametrize(
    ("argv", "cwd", "words"),
    (
        (["fleetcraft-no-such-program"], None, "is not on the PATH"),
        (["/no/such/program"], None, "not found: /no/such/program"),
        (["true"], "/no/such/folder", "the folder /no/such/folder is not there"),
        (["/etc/passwd"], None, "Permission denied"),
        (["true", "\0"], None, "not a command"),
        ([], None, "not "),
    ),
)
def test_what_cannot_be_started_has_no_code_and_a_reason(argv, cwd, words):
    answer = LocalTransport().run(argv, cwd=cwd)
    assert answer.code is None
    assert words in answer.problem


def test_the_deadline_ends_the_command_and_all_of_its_session(tmp_path):
    # A group of its own inside the session, and one that ignores the polite signal.
    script = f"set -m; trap '' TERM; (trap '' TERM; echo $BASHPID > {tmp_path}/inner; sleep 600) & echo said; wait"
    started = time.monotonic()
    answer = LocalTransport().run(["bash", "-c", script], timeout_s=1.0)
    assert answer.code is None
    assert "timed out after 1 s" in answer.problem
    assert answer.out == "said\n"
    assert 1.0 <= time.monotonic() - started < 20
    inner = process(int((tmp_path / "inner").read_text()))
    assert inner is None or inner.is_gone


def test_a_command_killed_by_somebody_gave_no_answer():
    answer = LocalTransport().run(["sh", "-c", "kill -9 $$"])
    assert (answer.code, answer.problem) == (None, "ended by the signal SIGKILL")


def test_too_much_output_is_ended_and_named():
    answer = LocalTransport(most_bytes=1 << 20).run(["sh", "-c", "yes"], timeout_s=60)
    assert answer.code is None
    assert answer.problem == "said more than 1 MiB and was ended"


def test_what_is_left_in_the_background_does_not_hold_the_answer():
    answer = LocalTransport().run(["sh", "-c", "sleep 30 & echo $!"], timeout_s=20)
    left = process(int(answer.out))
    assert left is not None  # a normal end ends nothing else
    os.kill(left.pid, signal.SIGKILL)
    assert answer.code == 0
    assert answer.took_s < 10


def test_the_environment_is_scrubbed_by_prefix_kept_by_name_and_added_to():
    base = {"SQUEUE_FORMAT": "x", "SLURM_CONF": "/c", "SLURM_CLUSTERS": "y", "PATH": os.environ["PATH"]}
    around = Surroundings(drop_prefixes=("SQUEUE_", "SLURM_"), keep=("SLURM_CONF",), add={"SLURM_BITSTR_LEN": "0"})
    assert surround(base, around) == {"SLURM_CONF": "/c", "PATH": base["PATH"], "SLURM_BITSTR_LEN": "0"}
    said = LocalTransport(base=base).run(
        [sys.executable, "-c", "import os;print(sorted(os.environ))"], surroundings=around
    )
    assert "SLURM_BITSTR_LEN" in said.out
    assert "SQUEUE_FORMAT" not in said.out


def test_nothing_of_ours_is_left_as_a_zombie():
    LocalTransport().run(["true"])
    LocalTransport().run(["sleep", "60"], timeout_s=0.1)
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


def test_a_started_process_has_its_own_session_and_is_found_by_its_mark():
    mark = os.urandom(8).hex()
    pid = spawn([sys.executable, "-c", "import time; time.sleep(60)"], env={"FLEETCRAFT_TEST_MARK": mark})
    try:
        wait_for(lambda: [seen.pid for seen in marked("FLEETCRAFT_TEST_MARK", mark)] == [pid], "the mark is seen")
        seen = next(seen for seen in all_processes() if seen.pid == pid)
        assert seen.session == pid
        assert lives(pid, seen.start_ticks)
        assert not lives(pid, seen.start_ticks + 1)
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    assert not lives(pid, seen.start_ticks)


@pytest.fixture
def collecting():
    """A process that collects every child itself, in another thread, as a worker's loop does."""
    over = threading.Event()
    before = signal.signal(signal.SIGCHLD, lambda *_: None)

    def collect():
        while not over.is_set():
            try:
                os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                over.wait(0.0005)

    thread = threading.Thread(target=collect)
    thread.start()
    yield
    over.set()
    thread.join()
    signal.signal(signal.SIGCHLD, before)


def test_an_exit_code_is_told_although_somebody_else_collects_the_child(collecting):
    transport = LocalTransport()
    answers = [transport.run(["sh", "-c", f"cat; exit {number % 5}"], stdin=b"in") for number in range(60)]
    assert [answer.code for answer in answers] == [number % 5 for number in range(60)]
    assert {(answer.out, answer.err, answer.problem) for answer in answers} == {("in", "", "")}
    assert "is not on the PATH" in transport.run(["fleetcraft-no-such-program"]).problem
    assert transport.run(["sh", "-c", "kill -9 $PPID"]).problem == "ended by a signal"
    assert "timed out" in transport.run(["sleep", "60"], timeout_s=0.2).problem


def test_no_descriptor_is_left_open():
    before = set(os.listdir("/proc/self/fd"))
    for argv in (["true"], ["fleetcraft-no-such-program"], ["sh", "-c", "exit 3"]):
        LocalTransport().run(argv, stdin=b"x")
    assert set(os.listdir("/proc/self/fd")) == before
