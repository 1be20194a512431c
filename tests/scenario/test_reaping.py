"""What dead and paused workers leave: taken over once, by any number of reapers, and never counted twice."""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path

import pytest

from fleetcraft.spool.life import Life
from fleetcraft.spool.spool import Spool
from fleetcraft.testing.clock import ManualClock
from fleetcraft.testing.files import WrappedFiles
from tests.support.counting import counter_command, executions
from tests.support.lab import Lab, Process
from tests.support.seeds import seeded
from tests.support.waiting import wait_for

UNTIL_GO = ["sh", "-c", "while [ ! -e go ]; do sleep 0.02; done"]
LEASE_S = 1.0


def reapers(lab: Lab, count: int, seconds: float = 3.0) -> list[Process]:
    argv = [sys.executable, "-m", "tests.support.reaper_program", str(lab.root), str(seconds)]
    return [lab.start(argv) for _ in range(count)]


def test_a_worker_paused_across_its_reaping_counts_nothing_and_ends_with_75(lab: Lab):
    lab.enqueue([{"name": "slow", "command": UNTIL_GO}])
    paused = lab.worker(node="far", lease_s=LEASE_S)
    life = lab.life_of(paused)
    lab.wait_running("slow")
    paused.send(signal.SIGSTOP)
    other = lab.worker(lease_s=LEASE_S, idle_exit_s=None)
    wait_for(lambda: lab.life_state(life) == "dead", "the silent life is taken over", seen=lab.picture)
    wait_for(lambda: any(record["t"] == "started" and record["a"] == 2 for record in lab.records()), "a second attempt")
    (lab.folder / "go").touch()
    lab.wait_until_ended(1)
    paused.send(signal.SIGCONT)
    assert paused.wait() == 75, paused.said()
    verdict = lab.verdict("slow")
    assert (verdict.state, verdict.attempt, verdict.duplicates) == ("succeeded", 2, 0)
    mine = [record for record in lab.records(life) if record["t"] == "receipt"]
    assert [(record["o"], record["a"]) for record in mine] == [("abandoned", 1)]
    assert mine[0]["wall"] > LEASE_S
    assert lab.tokens() == []
    other.send(signal.SIGTERM)
    assert other.wait() == 0


def test_a_worker_that_was_paused_but_not_reaped_goes_on(lab: Lab):
    lab.enqueue([{"name": "slow", "command": UNTIL_GO}])
    worker = lab.worker(node="far", lease_s=LEASE_S)
    life = lab.life_of(worker)
    lab.wait_running("slow")
    worker.send(signal.SIGSTOP)
    before = lab.heartbeat(life)["sequence"]
    wait_for(lambda: _state_of(worker) == "T", "the worker stands still")
    (lab.folder / "go").touch()
    wait_for(lambda: lab.heartbeat(life)["at_utc"] + LEASE_S < lab.spool.clock.utc(), "longer than the lease")
    assert lab.heartbeat(life)["sequence"] <= before + 1
    worker.send(signal.SIGCONT)
    assert worker.wait() == 0, worker.said()
    assert lab.outcomes("slow") == ["succeeded"]


def _state_of(process: Process) -> str:
    with open(f"/proc/{process.pid}/stat", encoding="ascii") as source:
        return source.read().rsplit(") ", 1)[1].split()[0]


def test_silence_alone_is_no_death_without_a_lease(lab: Lab):
    lab.enqueue([{"name": "slow", "command": UNTIL_GO}])
    silent = lab.worker(node="far")
    life = lab.life_of(silent)
    lab.wait_running("slow")
    silent.kill()
    reaper = reapers(lab, 1, 2.0)[0]
    assert reaper.wait() == 0, reaper.said()
    assert lab.life_state(life) == "live"
    assert [token.life for token in lab.tokens()] == [life]
    (lab.folder / "go").touch()
    wait_for(lambda: not lab.strays(), "the child ends by itself")


def test_four_reapers_take_over_one_dead_worker_once(lab: Lab):
    tasks = [{"name": f"t{number}", "command": UNTIL_GO if number == 40 else ["true"]} for number in range(200)]
    lab.enqueue(tasks)
    worker = lab.worker(cpus=1)
    lab.wait_running("t40")
    worker.kill()
    crowd = reapers(lab, 4, 4.0)
    wait_for(lambda: all(lab.life_state(life) != "live" for life in [lab.lives()[0]]), "somebody began")
    crowd[0].kill()
    assert [reaper.wait() for reaper in crowd[1:]] == [0, 0, 0]
    covered: list[int] = []
    for token in lab.tokens():
        assert token.form == "", token.name
        covered += range(token.start, token.stop)
    assert len(covered) == len(set(covered)), "two tokens cover one task"
    ended = {record["i"] for record in lab.records() if record["t"] == "receipt"}
    assert set(covered) | ended == set(range(200))
    assert lab.verdict("t40").losses == 1
    (lab.folder / "go").touch()
    lab.drain()
    assert lab.counts() == {"succeeded": 200}
    assert lab.verdict("t40").duplicates == 0


def test_the_children_of_a_dead_worker_end_before_their_tasks_run_again(lab: Lab):
    stubborn = "trap '' TERM; echo begin >> trace; while [ ! -e go ]; do sleep 0.02; done; echo end >> trace"
    lab.enqueue([{"name": "stubborn", "command": ["sh", "-c", stubborn]}])
    first = lab.worker()
    child = lab.wait_running("stubborn")["pid"]
    wait_for((lab.folder / "trace").exists, "the task begins")
    first.kill()
    second = lab.worker()

    def alone() -> bool:
        began = (lab.folder / "trace").read_text().count("begin")
        assert began == 1 or child not in lab.strays(), "the old child still runs beside the new one"
        return began == 2

    wait_for(alone, "the second attempt", seen=lab.picture)
    (lab.folder / "go").touch()
    assert second.wait() == 0
    assert (lab.folder / "trace").read_text() == "begin\nbegin\nend\n"
    assert lab.counts() == {"succeeded": 1}


def test_a_pause_in_the_middle_of_a_heartbeat_is_still_seen_as_a_pause(tmp_path: Path):
    clock = ManualClock()

    class PausingFiles(WrappedFiles):
        def rename(self, source: str, target: str) -> None:
            if target.endswith("heartbeat.json"):
                clock.advance(60.0)
            super().rename(source, target)

    life = Life.begin(Spool.open(str(tmp_path / "spool"), create=True, files=PausingFiles(), clock=clock))
    begun_boot_s = clock.boot()
    life.beat({})
    assert life.last_good_boot_s == begun_boot_s
    life.close()


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_machines_that_pause_and_die_at_random_count_every_task_once(lab: Lab):
    """Three machines that can only judge one another by silence; some fall silent without being dead."""
    dice = seeded()
    argv = counter_command(lab.folder)
    for batch in range(10):
        lab.enqueue([{"name": f"b{batch}t{number}", "command": [*argv, "executed"]} for number in range(150)])
    workers: dict[int, Process] = {}
    wakes_s: dict[int, float] = {}
    blows = 20
    until_s = time.monotonic() + 150.0
    while blows or sum(lab.counts().values()) < 1500 or lab.tokens():
        assert time.monotonic() < until_s, f"it did not end: {lab.picture()}"
        for number in range(6):
            if number not in workers or not workers[number].alive:
                node = f"n{number % 3}"
                workers[number] = lab.worker(cpus=1, node=node, lease_s=1.5, idle_exit_s=None, crash_limit=100)
        time.sleep(dice.expovariate(1 / 0.4))  # the next blow comes at a moment that nobody knows
        for number in [number for number, wake_s in wakes_s.items() if time.monotonic() > wake_s]:
            workers[number].send(signal.SIGCONT)
            del wakes_s[number]
        chosen = dice.randrange(6)
        if not blows or chosen in wakes_s:
            continue
        blows -= 1
        if dice.random() < 0.5:
            workers[chosen].kill()
        else:
            workers[chosen].send(signal.SIGSTOP)
            wakes_s[chosen] = time.monotonic() + dice.choice([0.5, 2.0, 6.0])
    for worker in workers.values():
        worker.send(signal.SIGCONT)
        worker.send(signal.SIGTERM)
    codes = {worker.wait() for worker in workers.values()}
    assert codes <= {0, 75, -signal.SIGKILL, -signal.SIGTERM}, codes  # TERM may come before a worker listens
    # Those that were killed last are judged by their silence too, so somebody must wait for it.
    lab.drain(lease_s=1.5, idle_exit_s=8.0)
    assert lab.counts() == {"succeeded": 1500}
    assert lab.tokens() == []
    assert {lab.life_state(life) for life in lab.lives()} <= {"dead", None}
    done = executions(lab.folder / "executed")
    assert len({(entry.task, entry.attempt) for entry in done}) == len(done), "two workers ran one attempt"
