"""A node on which everything fails while it succeeds elsewhere stops claiming, and its failures charge nobody."""

from __future__ import annotations

from tests.support.lab import Lab
from tests.support.waiting import wait_for

# Fails where the folder of the node lacks a file; takes long enough for two workers to share the work.
NEEDS_FILE = ["sh", "-c", 'sleep 0.05; test -e "$TMPDIR/installed"']


def test_a_broken_node_leaves_and_its_tasks_succeed_elsewhere(lab: Lab):
    sound, broken = lab.folder / "sound", lab.folder / "broken"
    sound.mkdir()
    broken.mkdir()
    (sound / "installed").touch()
    lab.enqueue([{"name": f"t{number}", "command": NEEDS_FILE} for number in range(120)])
    good = lab.worker(env={"TMPDIR": str(sound)}, idle_exit_s=None)
    good_life = lab.life_of(good)
    wait_for(lambda: lab.heartbeat(good_life).get("counts", {}).get("succeeded", 0) >= 1, "the sound node works")
    bad = lab.worker(env={"TMPDIR": str(broken)})
    bad_life = lab.life_of(bad)
    assert bad.wait() == 1, bad.said()
    assert "failed on this node while" in bad.said()
    lab.wait_until_ended(120)
    assert lab.counts() == {"succeeded": 120}
    lost = {record["i"] for record in lab.records(bad_life) if record["t"] == "receipt" and record["o"] == "lost"}
    failed = {record["i"] for record in lab.records(bad_life) if record["t"] == "receipt" and record["o"] == "failed"}
    assert len(failed) >= 5
    assert failed <= lost, "a failure of the broken node was not taken back"
    for index in failed:
        verdict = lab.verdict(f"t{index}")
        assert (verdict.state, verdict.failures) == ("succeeded", 0)
    assert lab.tokens() == []


def test_tasks_that_fail_everywhere_make_no_black_hole(lab: Lab):
    lab.enqueue([{"name": f"t{number}", "command": ["sh", "-c", "sleep 0.02; exit 3"]} for number in range(60)])
    workers = [lab.worker(), lab.worker()]
    assert [worker.wait() for worker in workers] == [0, 0]
    assert lab.counts() == {"failed": 60}


def test_a_lone_worker_is_never_its_own_black_hole(lab: Lab):
    tasks = [{"name": f"t{number}", "command": ["false" if number % 20 < 12 else "true"]} for number in range(100)]
    lab.enqueue(tasks)
    lab.drain()
    assert lab.counts() == {"succeeded": 40, "failed": 60}
