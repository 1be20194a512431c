from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import Any

import pytest

from fleetcraft.core.clock import SystemClock
from fleetcraft.fleet.guards.census import Seen
from fleetcraft.fleet.guards.reap import Target, choose, end, may_reap, worker_identities
from fleetcraft.spool import host
from fleetcraft.spool.host import Identity

HERE = "login1"
LIFE = "login1-7-ab12cd"


def seen(pid, **changes):
    values: dict[str, Any] = {"name": "p", "threads": 1, "memory_bytes": 0, "start_ticks": pid * 10, "parent": 1}
    return Seen(pid=pid, **(values | changes))


def identity(pid, **changes):
    values: dict[str, Any] = {
        "life": "l", "kind": "worker", "host": HERE, "machine_id": None, "boot_id": host.boot_id(), "pid": pid,
        "pid_namespace": host.pid_namespace(), "start_ticks": pid * 10, "nonce": "n", "job_id": None,
        "created_utc": 0.0,
    }  # fmt: skip
    return Identity(**(values | changes))


def test_only_what_carries_our_mark_or_is_a_recorded_worker_is_chosen():
    everything = [
        seen(50),
        seen(51, life=LIFE),
        seen(52, life=LIFE, mark="m"),
        seen(53),
        seen(54),
        seen(55, local_job="/jobs/fcx"),
    ]
    chosen = choose(
        everything, [identity(53), identity(54, start_ticks=1), identity(54, boot_id="other")], me=99, here=HERE
    )
    assert [target.pid for target in chosen] == [53, 51, 52, 55]
    assert "worker of life l" in chosen[0].because
    assert chosen[3].because == "of the local job fcx"


@pytest.mark.parametrize(
    "changes", ({"pid_namespace": "pid:[1]"}, {"kind": "maintenance"}, {"start_ticks": None}, {"boot_id": None})
)
def test_an_identity_that_does_not_match_in_everything_chooses_nobody(changes):
    assert choose([seen(53)], [identity(53, **changes)], me=99, here=HERE) == []


def test_neither_this_process_nor_one_above_it_is_ever_chosen():
    everything = [
        seen(1, parent=0),
        seen(50, life=LIFE),
        seen(51, life=LIFE, parent=50),
        seen(52, life=LIFE, parent=51),
    ]
    assert [target.pid for target in choose(everything, [], me=51, here=HERE)] == [52]


def test_what_a_scheduler_started_is_not_chosen_even_with_our_mark():
    assert choose([seen(51, life=LIFE, in_job=True)], [identity(51)], me=99, here=HERE) == []


def test_it_is_refused_elsewhere_than_on_a_login_node_and_where_nobody_knows():
    assert may_reap("login2", ("login*",)).allowed
    assert not may_reap("c101", ("login*",)).allowed
    assert "no profile" in may_reap("c101", ()).reason


def test_identity_files_are_read_and_damaged_ones_name_nobody(tmp_path):
    for life, content in (("good", json.dumps(identity(7).as_json())), ("torn", '{"life"'), ("empty", "{}")):
        (tmp_path / "workers" / life).mkdir(parents=True)
        (tmp_path / "workers" / life / "identity.json").write_text(content)
    assert [found.pid for found in worker_identities([str(tmp_path), str(tmp_path / "nothing")])] == [7]


@pytest.fixture
def child():
    started: list[subprocess.Popen[bytes]] = []

    def start(code: str) -> tuple[subprocess.Popen[bytes], Target]:
        process = subprocess.Popen([sys.executable, "-c", f"{code}\nprint(flush=True)\nimport time\ntime.sleep(60)"],
                                   stdout=subprocess.PIPE)  # fmt: skip
        started.append(process)
        assert process.stdout is not None
        process.stdout.readline()
        now = host.process(process.pid)
        assert now is not None
        return process, Target(pid=process.pid, start_ticks=now.start_ticks, name="python", because="test")

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_an_obedient_process_ends_and_a_stubborn_one_is_killed(child):
    obedient, first = child("")
    stubborn, second = child("import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)")
    outcomes = {ending.target.pid: ending.outcome for ending in end([first, second], SystemClock(), grace_s=0.5)}
    assert outcomes == {obedient.pid: "ended", stubborn.pid: "killed"}
    assert obedient.wait(10) == -signal.SIGTERM
    assert stubborn.wait(10) == -signal.SIGKILL


def test_a_pid_that_another_process_has_now_is_never_signalled(child):
    process, target = child("")
    other = Target(pid=target.pid, start_ticks=target.start_ticks + 1, name="python", because="test")
    (ending,) = end([other], SystemClock(), grace_s=0.1)
    assert (ending.outcome, ending.note) == ("gone", "the pid is another process now")
    assert process.poll() is None


def test_a_process_that_is_gone_is_told_so(child):
    process, target = child("")
    process.kill()
    process.wait(10)
    (ending,) = end([target], SystemClock(), grace_s=0.1)
    assert ending.outcome == "gone"
    assert not os.path.exists(f"/proc/{target.pid}")


@pytest.mark.parametrize(
    "life", ("n1-7-ab12cd", "login1", "login1-x-ab", "xlogin1-7-ab12cd", "login1-7-AB/../", "login12-7-ab")
)
def test_what_was_started_on_another_host_or_by_somebody_else_is_spared(life):
    assert choose([seen(51, life=life)], [], me=99, here=HERE) == []
    assert choose([seen(51)], [identity(51, host="n1")], me=99, here=HERE) == []
