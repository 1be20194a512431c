"""Nothing of an attempt outlives it: real process trees that resist, escape, hold the output, or come in crowds."""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from fleetcraft.spool import host
from fleetcraft.workers.child import Graces
from tests.support.children import Ward, is_gone, until

ROOT = Path(__file__).parents[2]
DEAF = "import os, signal, sys, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"

# Tells its pid, then stays.
DAEMON = "echo $$ > {0}.part; mv {0}.part {0}; exec sleep 300"


@pytest.fixture
def ward(tmp_path):
    found = Ward(tmp_path)
    yield found
    assert found.close() == []


@pytest.fixture(params=("as this kernel tells", "by its list of children", "by walking through /proc"))
def any_ward(request, ward, monkeypatch):
    """The three ways to know what came home to us, of which a kernel offers one or two."""
    kin = ward.supervisor._kin
    if "list" in request.param:
        real, kin._list = os.pread, kin._list or os.dup(ward.output)
        monkeypatch.setattr(
            os, "pread", lambda fd, size, at: _list_of_children(at) if fd == kin._list else real(fd, size, at)
        )
    if "walking" in request.param:
        kin._list = None
        monkeypatch.setattr(kin, "_recent", lambda ended, now_s: None)
    return ward


def _list_of_children(offset: int) -> bytes:
    return b"".join(b"%d " % pid for pid in _children())[offset:]


def _children() -> list[int]:
    return [pid for pid in host.all_pids() if (seen := host.process(pid)) and seen.parent == os.getpid()]


def marked(child) -> list[int]:
    return [seen.pid for seen in host.processes_marked(host.MARK_VARIABLE, child.mark)]


def python(code: str) -> tuple[str, ...]:
    return (sys.executable, "-c", textwrap.dedent(code))


def tell(name: str) -> str:
    """Python that writes its own pid to a file, whole."""
    return f"open('{name}.part', 'w').write(f'{{os.getpid()}}\\n'); os.rename('{name}.part', '{name}')"


def test_a_shell_that_leaves_a_process_behind(any_ward):
    child = any_ward.shell("sleep 300 & echo $! > left.part; mv left.part left; exit 0")
    left = any_ward.pid_in("left")
    ended = any_ward.wait(child)
    assert (ended.exit_code, ended.left_background, ended.stop_reason) == (0, (left,), None)
    assert is_gone(left)


@pytest.mark.needs_command("setsid")
def test_a_daemon_in_its_own_session_is_found_and_ended(any_ward):
    child = any_ward.shell(f"setsid sh -c '{DAEMON.format('left')}' & while ! test -e left; do :; done")
    left = any_ward.pid_in("left")
    ended = any_ward.wait(child)
    assert (ended.exit_code, ended.left_background) == (0, (left,))
    assert is_gone(left)


@pytest.mark.needs_command("setsid")
def test_a_daemon_that_also_threw_its_environment_away(any_ward):
    child = any_ward.shell(f"setsid env -i sh -c '{DAEMON.format('left')}' & while ! test -e left; do :; done")
    left = any_ward.pid_in("left")
    ended = any_ward.wait(child)
    assert left in ended.left_background
    assert is_gone(left)


def test_a_killed_leader_with_three_children_that_ignore_term_and_share_a_pipe(any_ward):
    # Like data loaders: each holds both ends, so that no broken pipe ever ends them.
    child = any_ward.start(
        *python(
            DEAF
            + """
r, w = os.pipe()
for _ in range(3):
    if os.fork() == 0:
        os.read(r, 1)
print("ready", flush=True)
time.sleep(300)
"""
        )
    )
    any_ward.said("ready")
    until(lambda: len(marked(child)) == 4, "four processes")
    os.kill(child.pid, signal.SIGKILL)
    ended = any_ward.wait(child)
    assert ended.signal == signal.SIGKILL
    assert len(ended.left_background) == 3
    assert marked(child) == []


def test_a_grandchild_that_ignores_term_is_killed_after_the_grace(ward):
    code = DEAF + f"if os.fork(): os.wait()\n{tell('deep')}\nprint('ready', flush=True)\ntime.sleep(300)"
    child = ward.start(*python(code))
    deep = ward.pid_in("deep")
    ward.supervisor.stop(child, "timeout", grace_s=0.3)
    started = time.monotonic()
    ended = ward.wait(child)
    assert 0.25 <= time.monotonic() - started < 3
    assert (ended.stop_reason, ended.signal, ended.left_background) == ("timeout", signal.SIGKILL, ())
    assert is_gone(deep)


def test_a_time_limit_does_not_wait_for_a_grandchild_that_holds_the_output(ward):
    child = ward.shell("trap '' TERM; sh -c \"trap '' TERM; echo in; sleep 30; sleep 30\" & wait; wait")
    ward.said("in")
    started = time.monotonic()
    ward.supervisor.stop(child, "timeout", grace_s=1.0)
    ended = ward.wait(child)
    assert time.monotonic() - started < 3
    assert ended.stop_reason == "timeout"
    assert marked(child) == []


SAVING = f"""
import os, signal, time
def save(*_):
    time.sleep(1)
    {tell("saved")}
    os._exit(0)
signal.signal(signal.SIGTERM, save)
print("ready", flush=True)
while True:
    time.sleep(60)
"""


def test_a_checkpoint_is_written_within_the_grace_though_the_shell_around_it_ended(ward):
    child = ward.start("/bin/sh", "-c", '"$0" -c "$1" & wait', sys.executable, SAVING)
    ward.said("ready")
    ward.supervisor.stop(child, "drain", grace_s=20)
    started = time.monotonic()
    ended = ward.wait(child)
    assert (ward.folder / "saved").exists()
    assert 0.9 < time.monotonic() - started < 10
    assert (ended.signal, ended.stop_reason, ended.left_background) == (signal.SIGTERM, "drain", ())


def test_asking_again_neither_shortens_the_grace_nor_changes_the_reason(ward):
    child = ward.start(*python(DEAF + "print('ready', flush=True)\ntime.sleep(300)"))
    ward.said("ready")
    started = time.monotonic()
    ward.supervisor.stop(child, "drain", grace_s=0.6)
    for _ in range(3):
        ward.turn(0.05)
        ward.supervisor.stop(child, "timeout", grace_s=0.0)
    ended = ward.wait(child)
    assert time.monotonic() - started >= 0.55
    assert ended.stop_reason == "drain"


def test_force_does_not_wait(ward):
    child = ward.start(*python(DEAF + "print('ready', flush=True)\ntime.sleep(300)"))
    ward.said("ready")
    ward.supervisor.stop(child, "drain", grace_s=60)
    ward.supervisor.force(child)
    assert ward.wait(child, within_s=5).stop_reason == "drain"


def test_one_end_of_a_group_ends_the_others_that_wait_for_it_for_ever(ward):
    child = ward.shell("for i in 1 2 3; do sleep 300 & done; echo ready; exit 9")
    ended = ward.wait(child)
    assert ended.exit_code == 9
    assert len(ended.left_background) == 3
    assert marked(child) == []


@pytest.mark.needs_command("setsid")
def test_the_daemon_of_one_attempt_lives_on_while_another_is_swept(any_ward):
    line = "setsid sh -c '{0}' & while ! test -e {1}; do :; done; {2}"
    lasting = any_ward.shell(line.format(DAEMON.format("mine"), "mine", "while ! test -e enough; do sleep 0.02; done"))
    mine = any_ward.pid_in("mine")
    leaving = any_ward.shell(line.format(DAEMON.format("other"), "other", "exit 0"))
    ended = any_ward.wait(leaving)
    assert len(ended.left_background) == 1
    assert mine not in ended.left_background
    assert not is_gone(mine)
    for _ in range(20):
        any_ward.wait(any_ward.start("true"))
    assert not is_gone(mine)
    (any_ward.folder / "enough").touch()
    assert any_ward.wait(lasting).left_background == (mine,)
    assert is_gone(mine)


CHAIN = f"""{DEAF}
for _ in range(400):
    if os.fork():
        os._exit(0)
    os.setsid()
    time.sleep(0.005)
time.sleep(300)
"""


def test_processes_that_start_others_faster_than_they_are_ended(any_ward):
    child = any_ward.start(*python(CHAIN))
    ended = any_ward.wait(child)
    assert ended.exit_code == 0
    assert ended.left_background
    until(lambda: any_ward.turn() or marked(child) == [], "the chain is gone", within_s=10)


def test_output_of_100_mb_flows_at_full_speed_and_none_of_it_through_us(ward):
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    line = "put() { dd if=/dev/zero bs=1M count=$1 2>/dev/null; }; put 40 >&2; put 40; put 10 & put 10 >&2; wait"
    ended = ward.wait(ward.shell(line), within_s=60)
    assert ended.exit_code == 0
    assert ward.log.stat().st_size == 100 << 20
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib < 8 << 10


def test_a_stop_in_a_burst_of_starts_meets_every_process(ward):
    rng = random.Random(7)
    children = []
    for _ in range(60):
        child = ward.start("sleep", "300")
        children.append(child)
        if rng.random() < 0.7:
            # At once: the session exists before the start returns, so no signal can miss.
            ward.supervisor.stop(child, "cancelled", grace_s=5)
        if rng.random() < 0.2:
            ward.turn(0)
    for child in children:
        ward.supervisor.stop(child, "cancelled", grace_s=5)
    started = time.monotonic()
    assert {ward.wait(child).signal for child in children} == {signal.SIGTERM}
    assert time.monotonic() - started < 4


def test_zombies_that_come_home_are_collected_without_a_word(any_ward):
    child = any_ward.start(
        *python("import os, time\nfor _ in range(20):\n if os.fork() == 0: os._exit(0)\ntime.sleep(0.05)")
    )
    ended = any_ward.wait(child)
    assert ended.left_background == ()
    until(lambda: any_ward.turn() or not _children(), "no zombie is left")


def test_closing_ends_everything_and_names_nothing(tmp_path):
    ward = Ward(tmp_path, graces=Graces(settle_s=0.05, sweep_s=0.2, declare_s=5.0))
    children = [ward.start(*python(DEAF + "os.fork()\nprint('ready', flush=True)\ntime.sleep(300)")) for _ in range(3)]
    until(lambda: ward.turn() or ward.log.read_text().count("ready") == 6, "six are up")
    assert ward.close(0.2) == []
    assert [pid for child in children for pid in marked(child)] == []


LIMITED = """
import json, os, resource, sys
from pathlib import Path
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
from tests.support.children import Ward, open_descriptors
ward = Ward(Path(sys.argv[1]))
count, most, codes, started = int(sys.argv[2]), 0, [0, 0], 0
folders = [os.path.join(sys.argv[1], str(n)) for n in range(40)]
for folder in folders: os.mkdir(folder)
while started < count or len(ward.supervisor):
    while started < count and len(ward.supervisor) < 8:
        script = b"exit 1" if started % 10 == 0 else None
        argv = ["/bin/sh"] if script else ["/bin/true"]
        ward.start(*argv, script=script, cwd=folders[started % 40])
        started += 1
    for ended in ward.turn(1.0):
        codes[ended.exit_code] += 1
        assert ended.left_background == (), ended
    if started % 500 < 8:
        most = max(most, len(open_descriptors()))
print(json.dumps({"codes": codes, "most": most, "left": ward.close()}))
"""


@pytest.mark.slow
def test_5000_short_tasks_with_64_descriptors(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(tmp_path), "5000"],
        env={"PYTHONPATH": f"{ROOT}:{ROOT / 'src'}", "PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["codes"] == [4500, 500]
    assert said["most"] <= 32
    assert said["left"] == []


TAKEN_OVER = """
import sys
from pathlib import Path
from tests.support.children import Ward
ward = Ward(Path(sys.argv[1]))
print(*ward.supervisor._kin.nobodys, flush=True)
child = ward.shell("sleep 300 & exit 0")
print(len(ward.wait(child).left_background), ward.close(), flush=True)
"""


def test_a_worker_that_took_the_place_of_a_shell_leaves_the_shells_children_alone(tmp_path):
    # A batch script starts a monitor in the background and then calls exec.
    line = 'sleep 300 >/dev/null & echo $!; exec "$0" -c "$1" "$2"'
    done = subprocess.run(
        ["/bin/sh", "-c", line, sys.executable, TAKEN_OVER, str(tmp_path)],
        env={"PYTHONPATH": f"{ROOT}:{ROOT / 'src'}", "PATH": os.environ["PATH"]},
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    monitor, known, rest = done.stdout.splitlines()
    try:
        assert known == monitor
        assert rest == "1 []"
        assert not is_gone(int(monitor))
    finally:
        os.kill(int(monitor), signal.SIGKILL)
