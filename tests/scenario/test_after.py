"""Tasks that wait for others: chains, diamonds, whole batches, and what can no longer come true."""

from __future__ import annotations

from fleetcraft.actions.requests import cancel, retry
from fleetcraft.actions.selection import Selection
from tests.support.lab import Lab
from tests.support.waiting import wait_for

NOTE = 'echo "$FLEETCRAFT_TASK" >> order'


def note(name: str, *after: str, script: str = NOTE) -> dict[str, object]:
    return {"name": name, "command": ["sh", "-c", script], **({"after": list(after)} if after else {})}


def order(lab: Lab) -> list[str]:
    return (lab.folder / "order").read_text().split()


def test_a_chain_runs_in_order(lab: Lab):
    chain = [note("t0"), *(note(f"t{number}", f"t{number - 1}") for number in range(1, 8))]
    lab.enqueue(reversed(chain))
    lab.drain()
    assert order(lab) == [f"t{number}" for number in range(8)]
    assert lab.counts() == {"succeeded": 8}
    assert lab.tokens() == []


def test_a_diamond_joins_when_both_sides_are_done(lab: Lab):
    lab.enqueue([note("top"), note("left", "top"), note("right", "top"), note("bottom", "left", "right")])
    lab.drain()
    ran = order(lab)
    assert (ran[0], set(ran[1:3]), ran[3:]) == ("top", {"left", "right"}, ["bottom"])


def test_a_task_may_wait_for_a_whole_batch(lab: Lab):
    first = lab.enqueue([note(f"part{number}") for number in range(100)])
    lab.enqueue([note("merge", f"batch:{first.batches[0]}")])
    workers = [lab.worker(), lab.worker()]
    assert [worker.wait() for worker in workers] == [0, 0]
    ran = order(lab)
    assert len(ran) == 101
    assert ran[-1] == "merge"


def test_what_waits_for_a_failed_task_is_held_for_ever_and_keeps_no_worker(lab: Lab):
    lab.enqueue(
        [
            note("bad", script="exit 1"),
            note("good"),
            note("blocked", "bad"),
            note("deeper", "blocked"),
            note("fine", "good"),
        ]
    )
    lab.drain()
    assert lab.counts() == {"succeeded": 2, "failed": 1}
    assert {token.form for token in lab.tokens()} == {".held"}
    assert sum(token.count for token in lab.tokens()) == 2


def test_a_retry_of_what_failed_frees_what_waited_for_it(lab: Lab):
    lab.enqueue([note("bad", script=f"test -e fixed && {NOTE}"), note("next", "bad")])
    lab.drain()
    assert lab.counts() == {"failed": 1}
    (lab.folder / "fixed").touch()
    retry(lab.spool, Selection(names=("bad",)))
    lab.drain()
    assert order(lab) == ["bad", "next"]
    assert lab.counts() == {"succeeded": 2}
    assert lab.verdict("bad").gen == 1


def test_a_cancelled_upstream_blocks_too(lab: Lab):
    lab.enqueue([note("first", script="while [ ! -e go ]; do sleep 0.02; done"), note("second", "first")])
    worker = lab.worker()
    lab.wait_running("first")
    cancel(lab.spool, Selection(names=("first",)))
    assert worker.wait() == 0
    assert lab.counts() == {"cancelled": 1}
    assert [token.form for token in lab.tokens()] == [".held"]


def test_two_workers_wait_for_each_others_tasks_without_leaving_early(lab: Lab):
    """A held task whose condition another worker is about to make true is no work yet, and is not forgotten."""
    lab.enqueue([note("slow", script=f"while [ ! -e go ]; do sleep 0.02; done; {NOTE}"), note("after", "slow")])
    one = lab.worker()
    lab.wait_running("slow")
    two = lab.worker()
    assert two.wait() == 0, "nothing waits that it could run"
    (lab.folder / "go").touch()
    assert one.wait() == 0
    assert order(lab) == ["slow", "after"]


def test_a_worker_that_dies_between_the_end_and_the_release_loses_nothing(lab: Lab):
    lab.enqueue([note("first"), *(note(f"next{number}", "first") for number in range(30))])
    first = lab.worker()
    wait_for(lambda: lab.state("first") == "succeeded", "the first has ended")
    first.kill()
    lab.drain()
    assert lab.counts() == {"succeeded": 31}
    assert (
        sorted(order(lab)) == sorted(["first", *(f"next{number}" for number in range(30))])
        or len(set(order(lab))) == 31
    )
