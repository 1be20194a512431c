"""Recorded cases of area 2, process supervision; each test is named by its case."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.support.lab import Lab, Process
from tests.support.seeds import seeded
from tests.support.waiting import wait_for


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    with Lab(tmp_path) as one:
        yield one


# A leader whose child holds its own pipe open, ignores TERM and outlives it, as data loaders do.
LOADER = "(trap '' TERM; while :; do sleep 0.05; done) & echo up > up; wait"


@pytest.mark.parametrize("way", ("timeout", "leader killed", "drain"))
def test_f2_01_nothing_of_an_attempt_survives_its_end(lab: Lab, way: str):
    timeout = {"timeout": "0.5s"} if way == "timeout" else {}
    lab.enqueue([{"name": "train", "command": ["bash", "-c", LOADER], **timeout}])
    worker = lab.worker(kill_grace_s=0.5)
    wait_for((lab.folder / "up").exists, "the loader is up")
    if way == "leader killed":
        os.kill(lab.wait_running("train")["pid"], signal.SIGKILL)
    elif way == "drain":
        worker.send(signal.SIGTERM)
    assert worker.wait(30) == 0, worker.said()
    assert lab.strays() == []
    receipt = lab.receipts("train")[0]
    assert receipt["o"] == {"timeout": "timeout", "leader killed": "failed", "drain": "lost"}[way]


def test_f2_03_a_timeout_waits_for_the_process_and_not_for_the_end_of_its_output(lab: Lab):
    lab.enqueue([{"name": "slow", "command": ["sh", "-c", "sleep 30 & wait"], "timeout": "1s"}])
    lab.drain(kill_grace_s=2.0)
    receipt = lab.receipts("slow")[0]
    assert receipt["o"] == "timeout"
    assert 0.9 < receipt["wall"] < 3.5
    assert lab.strays() == []


def test_f2_04_what_escaped_by_setsid_is_ended_and_named(lab: Lab):
    lab.enqueue([{"name": "daemon", "command": ["sh", "-c", "setsid sleep 300 & exit 0"]}])
    lab.drain()
    receipt = lab.receipts("daemon")[0]
    assert receipt["o"] == "succeeded"
    assert len(receipt["left_background"]) == 1
    assert lab.strays() == []


def test_f2_05_a_hundred_megabytes_of_output_on_both_streams_block_nothing(lab: Lab):
    program = (
        "import os\n"
        "block = b'x' * (1 << 20)\n"
        "for _ in range(50): os.write(2, block)\n"
        "for _ in range(50): os.write(1, block)\n"
        "for _ in range(10): os.write(1, b'o' * 4096); os.write(2, b'e' * 4096)\n"
    )
    lab.enqueue([{"name": "loud", "command": [sys.executable, "-c", program]}])
    worker = lab.worker(idle_exit_s=None)
    lab.wait_until_ended(1)
    peak_kib = int(
        next(
            line for line in Path(f"/proc/{worker.pid}/status").read_text().splitlines() if line.startswith("VmHWM")
        ).split()[1]
    )
    worker.send(signal.SIGTERM)
    assert worker.wait() == 0
    _, start, stop = lab.receipts("loud")[0]["log"]
    assert stop - start == 100 * (1 << 20) + 20 * 4096
    assert peak_kib < 50 * 1024


def test_f2_08_any_first_stop_signal_begins_one_drain_and_repeats_change_nothing(lab: Lab):
    dice = seeded()
    script = "trap 'echo x >> asked; sleep 0.4; exit 75' TERM; echo up > up; while :; do sleep 0.02; done"
    lab.enqueue([{"name": "long", "command": ["sh", "-c", script], "checkpoint_grace": "20s"}])
    worker = lab.worker()
    life = lab.life_of(worker)
    wait_for((lab.folder / "up").exists, "the task is up")
    signals = [signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM, signal.SIGCONT, signal.SIGHUP]
    dice.shuffle(signals)
    # Two that count at most, so that the third does not end the grace; HUP and CONT never count.
    counted = [number for number in signals if number not in (signal.SIGCONT, signal.SIGHUP)][:2]
    begun_s = time.monotonic()
    for number in [number for number in signals if number in counted or number in (signal.SIGCONT, signal.SIGHUP)]:
        worker.send(number)
        if number in counted:
            wait_for(partial(was_heard, lab, life, number), "the signal is in the journal")
            assert time.monotonic() - begun_s < 10.0
    assert worker.wait() == 0, worker.said()
    assert heard(lab, life) == [signal.Signals(number).name for number in signals if number in counted]
    assert (lab.folder / "asked").read_text() == "x\n"
    assert sum(record.get("what") == "drain" for record in lab.records(life)) == 1


def was_heard(lab: Lab, life: str, number: int) -> bool:
    return signal.Signals(number).name in heard(lab, life)


def heard(lab: Lab, life: str) -> list[str]:
    return [record["name"] for record in lab.records(life) if record.get("what") == "signal"]


@pytest.mark.parametrize("way", ("exec", "group"))
def test_f2_10_a_signal_to_the_whole_group_or_to_the_worker_alone_reaches_it_at_once(lab: Lab, way: str):
    """Batch scripts end in `exec`, so the scheduler signals the worker itself; under a shell it signals the group."""
    script = '"$@"; exit $?' if way == "group" else 'exec "$@"'
    worker = lab.worker(idle_exit_s=None, before=("bash", "-c", script, "bash"))
    life = wait_for(lambda: [life for life in lab.lives() if lab.heartbeat(life).get("state") == "up"], "it is up")[0]
    asked_s = time.monotonic()
    if way == "group":
        os.killpg(worker.pid, signal.SIGTERM)
    else:
        worker.send(signal.SIGTERM)
    wait_for(lambda: "SIGTERM" in heard(lab, life), "the worker heard it")
    assert time.monotonic() - asked_s < 5.0
    worker.wait()  # of bash, which may be gone before the worker that it ran
    wait_for(lambda: lab.life_state(life) == "dead", "the worker has ended in order")


def test_f2_11_a_checkpoint_that_takes_its_time_is_complete_before_the_kill(lab: Lab):
    script = "trap 'sleep 2; echo whole > saved; exit 75' TERM; echo up > up; while :; do sleep 0.02; done"
    lab.enqueue([{"name": "train", "command": ["sh", "-c", script]}])
    # The default grace must hold, so none is chosen here.
    worker = lab.worker(kill_grace_s=10.0)
    wait_for((lab.folder / "up").exists, "the task is up")
    worker.send(signal.SIGTERM)
    worker.send(signal.SIGTERM)
    assert worker.wait(25) == 0, worker.said()
    assert (lab.folder / "saved").read_text() == "whole\n"
    assert lab.receipts("train")[0]["cause"] == "checkpointed"


def test_f2_12_a_task_inherits_nothing_of_the_job_that_its_worker_runs_in(lab: Lab):
    leaked = {
        "SLURM_CPU_BIND": "quiet,mask_cpu:0xF", "SLURM_CPUS_PER_TASK": "4", "SLURM_JOB_ID": "42",
        "SBATCH_PARTITION": "gpu", "PMI_RANK": "0", "PMIX_RANK": "0", "OMPI_COMM_WORLD_RANK": "3", "SLURM_PROCID": "0",
        "LD_PRELOAD": "", "FOO": "bar",
    }  # fmt: skip
    lab.enqueue([{"name": "env", "command": ["env", "-0"]}])
    lab.drain(env=leaked)
    names = {entry.split(b"=")[0].decode() for entry in lab.output("env").split(b"\0") if entry}
    assert not names & (leaked.keys() - {"LD_PRELOAD"})
    assert {"PATH", "FLEETCRAFT_TASK", "FLEETCRAFT_LIFE"} <= names
    lab.enqueue([{"name": "asked", "command": ["env", "-0"]}])
    lab.drain(env=leaked, pass_env=["SLURM_JOB_ID"])
    assert b"SLURM_JOB_ID=42" in lab.output("asked").split(b"\0")


def test_f2_19_descriptors_stay_bounded_under_a_low_limit(lab: Lab):
    lab.enqueue([{"name": f"t{number}", "command": ["echo", str(number)]} for number in range(1500)])
    before = ("bash", "-c", 'ulimit -n 64 && exec "$@"', "bash")
    worker = lab.worker(cpus=2, before=before, idle_exit_s=None)
    lab.wait_until_ended(300)
    early = len(os.listdir(f"/proc/{worker.pid}/fd"))
    lab.wait_until_ended(1500, 120.0)
    late = len(os.listdir(f"/proc/{worker.pid}/fd"))
    worker.send(signal.SIGTERM)
    assert worker.wait() == 0
    assert lab.counts() == {"succeeded": 1500}
    assert late <= early + 4
    assert late < 40


def test_f2_19_a_worker_without_a_free_descriptor_waits_and_loses_nothing(lab: Lab):
    """The limit is taken away from a running worker and given back: what could not start is tried again."""
    lab.enqueue(
        [
            {"name": f"t{number}", "shell": f"true; : {'x' * 140_000}" if number % 5 == 0 else "true"}
            for number in range(60)
        ]
    )
    worker = lab.worker(cpus=2, idle_exit_s=5.0)
    lab.wait_until_ended(5)
    used = len(os.listdir(f"/proc/{worker.pid}/fd"))
    resource.prlimit(worker.pid, resource.RLIMIT_NOFILE, (used, 1024))
    life = lab.life_of(worker)
    journal = lab.heartbeat(life).get("length")
    assert journal
    wait_for(lambda: worker.alive and lab.heartbeat(life), "it is still there")
    resource.prlimit(worker.pid, resource.RLIMIT_NOFILE, (1024, 1024))
    code = worker.wait(60)
    assert code in {0, 75}, worker.said()
    lab.drain()
    assert lab.counts() == {"succeeded": 60}
    assert lab.tokens() == []


def test_f2_20_the_end_of_a_login_session_is_no_end_of_work(lab: Lab):
    lab.enqueue([{"name": "slow", "command": ["sh", "-c", "while [ ! -e go ]; do sleep 0.02; done"]}])
    worker = lab.worker()
    life = lab.life_of(worker)
    lab.wait_running("slow")
    os.killpg(worker.pid, signal.SIGHUP)
    sequence = lab.heartbeat(life)["sequence"]
    wait_for(lambda: lab.heartbeat(life)["sequence"] > sequence + 2, "it goes on after a hang-up")
    assert lab.heartbeat(life)["state"] == "up"
    worker.send(signal.SIGTERM)
    assert worker.wait() == 0
    worker.kill()
    assert lab.verdict("slow").state is None
    assert [token.form for token in lab.tokens()] == [""]
    (lab.folder / "go").touch()
    lab.drain()
    assert lab.counts() == {"succeeded": 1}


@pytest.mark.parametrize("kind", ("spins in C", "is stopped"))
def test_f2_22_no_payload_can_hold_up_the_heartbeat(lab: Lab, kind: str):
    if kind == "spins in C":
        lab.enqueue(
            [
                {
                    "name": "hog",
                    "call": "re:match",
                    "args": {"pattern": "(a+)+$", "string": "a" * 40 + "b"},
                    "python": sys.executable,
                }
            ]
        )
    else:
        lab.enqueue([{"name": "hog", "command": ["sh", "-c", "kill -STOP $$; exit 0"]}])
    worker = lab.worker(heartbeat_s=0.2, kill_grace_s=0.2)
    life = lab.life_of(worker)
    wait_for(lambda: lab.heartbeat(life).get("running"), "the payload runs", seen=lab.picture)
    beats = [lab.heartbeat(life)["sequence"]]
    for _ in range(5):
        begun_s = time.monotonic()
        beats.append(
            wait_for(lambda: (now := lab.heartbeat(life)["sequence"]) > beats[-1] and now, "the next heartbeat")
        )
        assert time.monotonic() - begun_s < 5.0
    worker.send(signal.SIGTERM)
    assert worker.wait(30) == 0, worker.said()
    assert lab.strays() == []


def test_f2_24_a_payload_that_reads_stdin_gets_the_end_of_file(lab: Lab):
    lab.enqueue([{"name": f"t{number}", "command": ["sh", "-c", "read line; echo got:$line"]} for number in range(5)])
    with (lab.folder / "list").open("w+") as source:
        source.write("q\n" * 100)
        source.seek(0)
        argv = [
            sys.executable,
            "-m",
            "tests.support.worker_program",
            f'{{"spool": "{lab.root}", "idle_exit_s": 0, "cpus": 1, "gpus": "none"}}',
        ]
        done = subprocess.run(argv, stdin=source, cwd=Path(__file__).parents[2], check=False, timeout=60)
        assert done.returncode == 0
        assert source.tell() == 0, "somebody read the list"
    assert {lab.output(f"t{number}") for number in range(5)} == {b"got:\n"}


def test_f2_25_two_workers_started_at_the_same_instant_write_every_output_once(lab: Lab):
    lab.enqueue(
        [
            {"name": f"t{number}", "command": ["sh", "-c", 'set -C; echo x > "out-$FLEETCRAFT_TASK"']}
            for number in range(100)
        ]
    )
    workers: list[Process] = [lab.worker() for _ in range(4)]
    assert [worker.wait() for worker in workers] == [0] * 4
    assert lab.counts() == {"succeeded": 100}
    assert len(list(lab.folder.glob("out-t*"))) == 100


def test_f2_26_when_one_member_of_a_group_dies_the_others_end_before_the_next_attempt(lab: Lab):
    member = "while :; do sleep 0.05; done"
    # The leader ends as soon as one of its members does, as launchers do; the others would wait for ever.
    leader = (
        f"for n in 1 2 3 4; do setsid sh -c '{member}' & pids=\"$pids $!\"; done\n"
        "echo $pids >> groups; set -- $pids; wait $1; exit 1"
    )
    lab.enqueue([{"name": "gang", "command": ["bash", "-c", leader], "retries": 1, "backoff": "0.05s"}])
    worker = lab.worker()

    def members(attempt: int) -> list[str]:
        path = lab.folder / "groups"
        lines = path.read_text().splitlines() if path.exists() else []
        return lines[attempt].split() if len(lines) > attempt else []

    first = wait_for(lambda: members(0), "four members", seen=lab.picture)
    os.kill(int(first[0]), signal.SIGKILL)
    again = wait_for(lambda: members(1), "the second attempt", seen=lab.picture)
    assert not [pid for pid in first if int(pid) in lab.strays()], "members of the first attempt are still there"
    os.kill(int(again[0]), signal.SIGKILL)
    assert worker.wait() == 0
    assert lab.outcomes("gang") == ["failed", "failed"]
    assert lab.strays() == []
