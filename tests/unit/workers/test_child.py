"""One process at a time: how it is started, what it inherits, and how its end is told."""

from __future__ import annotations

import errno
import json
import os
import resource
import signal
import sys
import time

import pytest

from fleetcraft.core.clock import SystemClock
from fleetcraft.spool.host import LIFE_VARIABLE, MARK_VARIABLE
from fleetcraft.workers.child import Graces, Launch, Supervisor
from fleetcraft.workers.launch import Folders, Programs
from fleetcraft.workers.process_table import ProcessTable
from tests.support.children import LIFE, PATH, Ward, new_mark, open_descriptors, until


@pytest.fixture
def ward(tmp_path):
    found = Ward(tmp_path)
    yield found
    assert found.close() == []


@pytest.mark.parametrize("code", (0, 1, 75, 137, 255))
def test_an_exit_code_is_told(ward, code):
    ended = ward.wait(ward.shell(f"exit {code}"))
    assert (ended.exit_code, ended.signal, ended.stop_reason) == (code, None, None)
    assert ended.left_background == ended.unkillable == ()


@pytest.mark.parametrize("number", (signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV, signal.SIGPIPE, signal.SIGHUP))
def test_a_signal_is_told_apart_from_an_exit_code(ward, number):
    ended = ward.wait(ward.shell(f"ulimit -c 0; kill -{int(number)} $$"))
    assert (ended.exit_code, ended.signal) == (None, number)


def test_the_cost_is_that_of_the_child(ward):
    # A peak below the one of the process that started it is unknown, and a long run of tests has a high one.
    size_mib = 200 + resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    burn = (
        f"import time\nx = bytearray({size_mib} << 20)\n"
        "end = time.process_time() + 0.2\nwhile time.process_time() < end: pass"
    )
    ended = ward.wait(ward.start(sys.executable, "-c", burn))
    assert 0.2 <= ended.cpu_s < 5
    assert ended.rss_kib is not None
    assert size_mib << 10 <= ended.rss_kib < (size_mib + 200) << 10
    assert ended.wall_s >= 0.2


def test_a_peak_below_the_workers_own_is_unknown_rather_than_wrong(ward):
    assert ward.wait(ward.start("true")).rss_kib is None


def test_a_missing_program_is_named(ward):
    with pytest.raises(FileNotFoundError) as caught:
        ward.start("no-such-program")
    assert caught.value.filename == "no-such-program"
    with pytest.raises(FileNotFoundError) as caught:
        ward.start("/no/such/program")
    assert caught.value.filename == "/no/such/program"
    assert len(ward.supervisor) == 0


def test_a_missing_folder_is_named(ward):
    with pytest.raises(FileNotFoundError) as caught:
        ward.start("true", cwd="/no/such/folder")
    assert caught.value.filename == "/no/such/folder"


def test_a_file_that_is_no_program_is_refused_as_exec_does(ward, tmp_path):
    (tmp_path / "data").write_text("no program")
    with pytest.raises(PermissionError):
        ward.start("./data")
    (tmp_path / "data").chmod(0o755)
    with pytest.raises(OSError, match="Exec format") as caught:
        ward.start("./data")
    assert caught.value.errno == errno.ENOEXEC


def test_a_program_is_looked_for_in_the_tasks_own_path(ward, tmp_path):
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        program = tmp_path / folder / "which-one"
        program.write_text(f"#!/bin/sh\necho it is {folder}\n")
        program.chmod(0o755)
    first, second = (b"%b:/usr/bin:/bin" % os.fsencode(tmp_path / folder) for folder in ("one", "two"))
    ward.wait(ward.start("which-one", env={b"PATH": first}))
    ward.wait(ward.start("which-one", env={b"PATH": second}))
    assert ward.log.read_text() == "it is one\nit is two\n"
    (tmp_path / "one" / "which-one").unlink()
    with pytest.raises(FileNotFoundError):
        ward.start("which-one", env={b"PATH": first})


def test_a_relative_entry_of_the_path_belongs_to_the_working_directory(ward, tmp_path):
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "tool").write_text("#!/bin/sh\npwd\n")
    (tmp_path / "here" / "tool").chmod(0o755)
    ward.wait(ward.start("tool", cwd=str(tmp_path / "here"), env={b"PATH": b":/bin"}))
    with pytest.raises(FileNotFoundError):
        ward.start("tool", env={b"PATH": b":/bin"})
    assert ward.log.read_text() == f"{tmp_path / 'here'}\n"


def test_the_working_directory_is_the_tasks_and_ours_stays(ward, tmp_path):
    before = os.getcwd()
    folders = [tmp_path / f"folder {number}\n'ü" for number in range(40)]
    for folder in folders:
        folder.mkdir()
        ward.wait(ward.start("sh", "-c", 'printf "%s|" "$(pwd)"', cwd=str(folder)))
    assert ward.log.read_text().split("|")[:-1] == [str(folder) for folder in folders]
    assert os.getcwd() == before


def test_a_folder_made_anew_is_entered_anew(ward, tmp_path):
    for number in range(3):
        (tmp_path / "again").mkdir()
        ward.wait(
            ward.shell(f"echo {number} > file; test -e ../again/file && rm -r ../again", cwd=str(tmp_path / "again"))
        )
        assert not (tmp_path / "again").exists()
    assert [one.exit_code for one in ward.ended.values()] == [0, 0, 0]


def test_remembered_folders_are_bounded(tmp_path):
    folders = Folders()
    before = len(open_descriptors())
    for number in range(100):
        (tmp_path / str(number)).mkdir()
        folders.enter(str(tmp_path / str(number)), 0.0)
    folders.leave()
    assert len(open_descriptors()) - before == 16
    folders.close()


def test_a_program_moved_meanwhile_is_found_anew(tmp_path):
    programs = Programs()
    env = {b"PATH": os.fsencode(f"{tmp_path}/a:{tmp_path}/b")}
    for folder in "ab":
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "tool").write_text("")
        (tmp_path / folder / "tool").chmod(0o755)
    assert programs.find("tool", env, 0.0) == f"{tmp_path}/a/tool"
    (tmp_path / "a" / "tool").unlink()
    assert programs.find("tool", env, 1.0) == f"{tmp_path}/a/tool"
    assert programs.find("tool", env, 11.0) == f"{tmp_path}/b/tool"
    (tmp_path / "b" / "tool").chmod(0o644)
    programs.forget()
    with pytest.raises(PermissionError):
        programs.find("tool", env, 11.0)


def test_the_environment_is_exactly_what_was_given_and_the_marks(ward):
    child = ward.start("env", "-0", env={b"PATH": PATH[b"PATH"], b"A": "ü=\n'".encode(), b"RAW": b"\xff\xfe"})
    ward.wait(child)
    seen = dict(entry.split(b"=", 1) for entry in ward.log.read_bytes().split(b"\0")[:-1])
    assert seen == {
        b"PATH": PATH[b"PATH"],
        b"A": "ü=\n'".encode(),
        b"RAW": b"\xff\xfe",
        LIFE_VARIABLE.encode(): LIFE.encode(),
        MARK_VARIABLE.encode(): child.mark.encode(),
    }


def test_an_argument_list_of_200_kb_arrives_whole(ward):
    argv = [str(number) * 10 for number in range(5000)]
    assert sum(map(len, argv)) > 180_000
    ward.wait(ward.start(sys.executable, "-c", "import sys, json; print(json.dumps(sys.argv[1:]))", *argv))
    assert json.loads(ward.log.read_text()) == argv


def test_one_argument_that_the_kernel_refuses_is_an_error_of_the_launch(ward):
    with pytest.raises(OSError, match="Argument list too long") as caught:
        ward.start("true", "x" * 200_000)
    assert caught.value.errno == errno.E2BIG


def test_a_shell_line_of_200_kb_runs_as_a_script(ward):
    body = "".join(f"x=$((x + {number}))\n" for number in range(13_000)) + 'echo "sum $x"; exit 5'
    assert len(body) > 200_000
    assert ward.wait(ward.start("/bin/sh", script=body.encode())).exit_code == 5
    assert ward.log.read_text() == f"sum {sum(range(13_000))}\n"


def test_a_script_keeps_nothing_open_for_what_it_starts(ward):
    ward.wait(ward.start("/bin/sh", script=b"readlink /proc/self/fd/*"))
    assert "memfd" not in ward.log.read_text()


def test_a_script_with_unicode_and_a_first_line_of_its_own(ward):
    ward.wait(ward.start("/bin/sh", script="#!/bin/bash\necho 'grüße\\n\n'\nexit 7".encode()))
    assert ward.ended.popitem()[1].exit_code == 7
    assert "grüße" in ward.log.read_text()


def test_input_is_empty_and_output_goes_to_the_log_in_order(ward):
    line = "cat; readlink /proc/self/fd/0; echo out; echo err >&2; echo out again"
    ward.wait(ward.shell(line))
    assert ward.log.read_text() == "/dev/null\nout\nerr\nout again\n"


def test_a_child_gets_three_descriptors_and_what_was_passed(ward, tmp_path):
    with (tmp_path / "passed").open("w") as passed:
        ward.wait(ward.shell("ls /proc/self/fd; echo here >&7", pass_fds=((passed.fileno(), 7),)))
    # One more is the folder that ls itself reads.
    assert set(ward.log.read_text().split()) == {"0", "1", "2", "3", "7"}
    assert (tmp_path / "passed").read_text() == "here\n"


def test_what_the_worker_inherited_is_not_handed_on(tmp_path):
    theirs = os.open("/dev/null", os.O_RDONLY)
    os.set_inheritable(theirs, True)
    ward = Ward(tmp_path)
    ward.wait(ward.start("ls", "/proc/self/fd"))
    os.close(theirs)
    assert str(theirs) not in ward.log.read_text().split()
    ward.close()


def test_passed_descriptors_may_cross(ward, tmp_path):
    first, second = (os.open(tmp_path / name, os.O_WRONLY | os.O_CREAT) for name in ("first", "second"))
    code = f"import os; os.write({second}, b'one'); os.write({first}, b'two')"
    ward.wait(ward.start(sys.executable, "-c", code, pass_fds=((first, second), (second, first))))
    os.close(first)
    os.close(second)
    assert (tmp_path / "first").read_text() == "one"
    assert (tmp_path / "second").read_text() == "two"


def test_a_launch_that_failed_leaves_nothing_open(ward):
    ward.wait(ward.start("true"))
    before = len(open_descriptors())
    for _ in range(5):
        with pytest.raises(FileNotFoundError):
            ward.start("/no/such/shell", script=b"x" * 200_000, pass_fds=((ward.output, 5),))
    assert len(open_descriptors()) == before


def test_signals_are_as_by_default_in_a_child(ward):
    ignored = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGHUP, signal.SIGPIPE)}
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1, signal.SIGTERM})
    try:
        ward.wait(ward.shell("grep -E 'SigBlk|SigIgn' /proc/self/status"))
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        for number, handler in ignored.items():
            signal.signal(number, handler)
    _, blocked_in_child, _, ignored_in_child = ward.log.read_text().split()
    assert int(blocked_in_child, 16) == 0
    # The C library keeps two signals for itself, which no program can use.
    assert int(ignored_in_child, 16) & ~(0b11 << 31) == 0


def test_a_writer_into_a_closed_pipe_ends_by_sigpipe(ward):
    ward.wait(ward.shell("(yes; echo $? > code) | head -1 > /dev/null; wait; sleep 0.05; cat code"))
    assert ward.log.read_text().strip() == str(128 + signal.SIGPIPE)


def test_a_child_leads_its_own_session(ward):
    child = ward.shell("cut -d' ' -f1,5,6 /proc/$$/stat")
    ward.wait(child)
    assert ward.log.read_text().split() == [str(child.pid)] * 3


def test_a_stopped_child_is_seen_and_seen_to_go_on(ward):
    child = ward.shell("echo ready; kill -STOP $$; echo on")
    ward.said("ready")
    until(lambda: ward.turn() or ward.supervisor.stopped() == [child], "the child stands still")
    os.kill(child.pid, signal.SIGCONT)
    until(lambda: ward.turn() or not ward.supervisor.stopped(), "the child goes on")
    assert ward.wait(child).exit_code == 0


def test_a_stopped_child_still_hears_the_request_to_end(ward):
    child = ward.shell("trap 'echo saved; exit 3' TERM; echo ready; kill -STOP $$; while :; do sleep 0.01; done")
    ward.said("ready")
    until(lambda: ward.turn() or ward.supervisor.stopped() == [child], "the child stands still")
    ward.supervisor.stop(child, "drain", grace_s=10)
    ended = ward.wait(child)
    assert (ended.exit_code, ended.stop_reason) == (3, "drain")
    assert "saved" in ward.log.read_text()


def test_the_wake_up_descriptor_becomes_readable_by_an_end_alone(ward):
    child = ward.start("true")
    until(lambda: ward.turn(10) or child.mark in ward.ended, "the end wakes the loop", within_s=5)
    assert ward.turn(0) == []


def test_without_children_there_is_no_deadline_and_nothing_to_collect(ward):
    assert ward.supervisor.next_deadline_s() is None
    assert ward.supervisor.collect() == []
    assert ward.supervisor.running() == []


def test_many_ends_at_once_are_all_delivered(ward):
    children = [ward.start("true") for _ in range(60)]
    for child in children:
        ward.wait(child)
    assert len(ward.ended) == 60
    assert ward.supervisor.next_deadline_s() is None


class Stuck(ProcessTable):
    """KILL does not reach some processes, as when they wait for a dead file server."""

    def __init__(self):
        self.deaf: set[int] = set()

    def send(self, pid, number):
        if pid not in self.deaf:
            super().send(pid, number)

    def where(self, pid):
        return "state D, in nfs_wait_bit_killable"


def test_what_cannot_be_killed_is_declared_and_watched_until_it_is_gone(tmp_path):
    table = Stuck()
    ward = Ward(tmp_path, table=table, graces=Graces(settle_s=0.02, sweep_s=0.05, declare_s=0.2))
    child = ward.shell("sleep 300 & echo $! > left.part; mv left.part left; exit 3")
    left = ward.pid_in("left")
    table.deaf.add(left)
    ended = ward.wait(child)
    assert (ended.exit_code, ended.left_background) == (3, (left,))
    assert ended.unkillable == ((left, "state D, in nfs_wait_bit_killable"),)
    assert ward.supervisor.unkillable() == {left}
    assert ward.wait(ward.start("true")).exit_code == 0
    os.kill(left, signal.SIGKILL)
    until(lambda: ward.turn() or not ward.supervisor.unkillable(), "it is gone at last")
    assert ward.close() == []


def test_a_leader_that_cannot_be_killed_has_neither_exit_code_nor_signal(tmp_path, monkeypatch):
    ward = Ward(tmp_path, table=Stuck(), graces=Graces(settle_s=0.02, sweep_s=0.05, declare_s=0.2))
    child = ward.start("sleep", "300")
    monkeypatch.setattr(os, "killpg", lambda pid, number: None)
    ward.supervisor.stop(child, "timeout", grace_s=0.05)
    ended = ward.wait(child)
    assert (ended.exit_code, ended.signal, ended.stop_reason) == (None, None, "timeout")
    assert ended.unkillable == ((child.pid, "state D, in nfs_wait_bit_killable"),)
    assert ward.supervisor.running() == []
    os.kill(child.pid, signal.SIGKILL)
    until(lambda: ward.turn() or not ward.supervisor.unkillable(), "it is gone at last")
    assert ward.close() == []


def test_closing_names_what_it_could_not_end(tmp_path, monkeypatch):
    ward = Ward(tmp_path, table=Stuck(), graces=Graces(declare_s=0.1))
    child = ward.start("sleep", "300")
    monkeypatch.setattr(os, "killpg", lambda pid, number: None)
    assert ward.close(0.0) == [(child.pid, "state D, in nfs_wait_bit_killable")]
    os.kill(child.pid, signal.SIGKILL)
    os.waitpid(child.pid, 0)


def test_closing_gives_back_descriptors_handler_and_wake_up(tmp_path):
    handler = signal.getsignal(signal.SIGCHLD)
    before = open_descriptors()
    one = Supervisor(SystemClock(), LIFE)
    with (tmp_path / "log").open("w") as log:
        one.spawn(Launch(argv=["sleep", "300"], cwd="/", env=PATH, output=log.fileno(), mark=new_mark()))
        started = time.monotonic()
        assert one.close(5.0) == []
    assert time.monotonic() - started < 5
    assert open_descriptors() == before
    assert signal.getsignal(signal.SIGCHLD) == handler
    assert signal.set_wakeup_fd(-1) == -1


def test_a_python_without_sessions_gets_groups(tmp_path, monkeypatch):
    real = os.posix_spawn

    def old(*args, **options):
        if "setsid" in options:
            raise NotImplementedError("setsid is unavailable on this platform")
        return real(*args, **options)

    monkeypatch.setattr(os, "posix_spawn", old)
    ward = Ward(tmp_path)
    child = ward.shell("sleep 300 & cut -d' ' -f1,5 /proc/$$/stat; wait")
    ward.said("\n")
    ward.supervisor.stop(child, "timeout", grace_s=5)
    assert ward.wait(child).signal == signal.SIGTERM
    assert ward.log.read_text().split() == [str(child.pid)] * 2
    assert "process group" in ward.supervisor.notes[-1]
    assert ward.close() == []
