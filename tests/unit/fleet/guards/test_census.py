from __future__ import annotations

import os
import subprocess
import sys

import pytest

from fleetcraft.fleet.guards.census import census, processes_of, ssh_sockets

UID = 1234
_TCP_HEAD = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"


def tcp(remote_port: int, state: str, uid: int) -> str:
    return (
        f"   0: 0100007F:A1B2 0200007F:{remote_port:04X} {state} 00000000:00000000 00:00000000 00000000  {uid} 0 1 1\n"
    )


@pytest.fixture
def proc(tmp_path):
    (tmp_path / "net").mkdir()
    (tmp_path / "net/tcp").write_text(_TCP_HEAD)
    return tmp_path


def add(proc, pid, *, uid=UID, name="python3", threads=1, rss_kib=100, state="S (sleeping)", environ=b"", parent=1):
    folder = proc / str(pid)
    folder.mkdir()
    (folder / "status").write_text(
        f"Name:\t{name}\nState:\t{state}\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\nPPid:\t{parent}\n"
        f"Threads:\t{threads}\nVmRSS:\t{rss_kib} kB\n"
    )
    fields = [state[0], str(parent), *["0"] * 17, str(pid * 10), "0"]
    (folder / "stat").write_text(f"{pid} ({name} ) x)) {' '.join(fields)}\n")
    (folder / "environ").write_bytes(environ)
    return folder


def test_processes_threads_and_memory_of_one_user_are_added_up(proc):
    add(proc, 10, threads=3, rss_kib=1000)
    add(proc, 11, threads=97, rss_kib=24)
    add(proc, 12, uid=0, threads=5)
    add(proc, 13, state="Z (zombie)")
    (proc / "self").mkdir()
    seen = census(proc=str(proc), uid=UID, host="login1")
    assert seen.problem == ""
    assert (seen.processes, seen.threads, seen.memory_bytes) == (2, 100, 1024 * 1024)


def test_ssh_is_the_larger_of_client_processes_and_open_connections(proc):
    add(proc, 10, name="ssh")
    add(proc, 11, name="sshd")
    assert census(proc=str(proc), uid=UID).ssh == 1
    (proc / "net/tcp").write_text(
        _TCP_HEAD + tcp(22, "01", UID) * 2 + tcp(22, "06", UID) + tcp(443, "01", UID) + tcp(22, "01", 0)
    )
    assert ssh_sockets(UID, str(proc)) == 2
    assert census(proc=str(proc), uid=UID).ssh == 2


def test_what_is_ours_is_known_by_the_mark_in_its_environment(proc):
    add(proc, 10, environ=b"PATH=/bin\0FLEETCRAFT_LIFE=n1-7-ab\0FLEETCRAFT_MARK=m1\0")
    add(proc, 11, environ=b"XFLEETCRAFT_LIFE=no\0SLURM_JOB_ID=17\0")
    ours, other = sorted(processes_of(UID, str(proc)), key=lambda seen: seen.pid)
    assert (ours.life, ours.mark, ours.is_ours, ours.in_job) == ("n1-7-ab", "m1", True, False)
    assert (other.is_ours, other.in_job, other.start_ticks, other.parent) == (False, True, 110, 1)
    assert census(proc=str(proc), uid=UID).ours == 1
    add(proc, 12, environ=b"FLEETCRAFT_LOCAL_JOB=/jobs/fcx\0")
    assert census(proc=str(proc), uid=UID).ours == 2


def test_a_process_that_ends_meanwhile_is_not_counted(proc):
    add(proc, 10)
    (add(proc, 11) / "stat").unlink()
    assert census(proc=str(proc), uid=UID).processes == 1


def test_a_status_that_makes_no_sense_makes_the_count_unreadable(proc):
    add(proc, 10)
    (proc / "10/status").write_text("Name:\tx\nState:\tS\nUid:\tnobody\n")
    seen = census(proc=str(proc), uid=UID)
    assert seen.processes is None
    assert "ValueError" in seen.problem


def test_a_proc_without_any_process_of_the_user_is_unreadable_not_empty(proc):
    seen = census(proc=str(proc), uid=UID)
    assert seen.processes is None
    assert str(UID) in seen.problem


def test_a_proc_that_is_not_there_is_told(tmp_path):
    assert "FileNotFoundError" in census(proc=str(tmp_path / "nothing"), uid=UID).problem


def test_the_real_proc_shows_this_process_and_a_marked_child():
    before = census()
    child = subprocess.Popen(
        [sys.executable, "-c", "import sys; print(flush=True); sys.stdin.read()"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=os.environ | {"FLEETCRAFT_LIFE": "test-life"},
    )  # fmt: skip
    try:
        assert child.stdout is not None
        child.stdout.readline()
        seen = {process.pid: process for process in processes_of(os.getuid())}
        assert before.problem == ""
        assert os.getpid() in seen
        assert seen[child.pid].life == "test-life"
        assert seen[child.pid].memory_bytes > 0
    finally:
        child.communicate()


def test_what_runs_below_a_schedulers_daemon_is_of_a_job_whatever_its_environment_says(proc):
    add(proc, 5, uid=0, name="slurmd", parent=1)
    add(proc, 6, uid=0, name="slurmstepd", parent=5)
    add(proc, 10, parent=6)
    add(proc, 11, parent=10, environ=b"FLEETCRAFT_LIFE=n1-7-ab\0")
    add(proc, 12, parent=1)
    add(proc, 13, parent=13)
    add(proc, 14, parent=99)
    in_job = {seen.pid: seen.in_job for seen in processes_of(UID, str(proc))}
    assert in_job == {10: True, 11: True, 12: False, 13: False, 14: False}


def test_children_of_a_process_of_a_job_are_of_that_job(proc):
    add(proc, 10, parent=1, environ=b"SLURM_JOB_ID=17\0")
    add(proc, 11, parent=10)
    add(proc, 12, parent=11)
    assert all(seen.in_job for seen in processes_of(UID, str(proc)))


@pytest.mark.parametrize(
    ("group", "expected"),
    (
        ("1:memory:/slurm/uid_7/job_17/step_0\n0::/\n", True),
        ("0::/system.slice/slurmstepd.scope/job_17/step_0/user\n", True),
        ("0::/user.slice/user-7.slice/session-3.scope\n", False),
    ),
)
def test_the_control_group_tells_a_job_when_everything_above_has_ended(proc, group, expected):
    (add(proc, 10) / "cgroup").write_text(group)
    assert [seen.in_job for seen in processes_of(UID, str(proc))] == [expected]
