from __future__ import annotations

import json
import os

import pytest

from fleetcraft.core.names import CLAIM
from fleetcraft.core.states import TaskState
from fleetcraft.readmodel.detail import TaskUnknown, find_task, show_task
from fleetcraft.readmodel.lives import read_workers
from fleetcraft.readmodel.logs import decoded, task_log
from fleetcraft.readmodel.status import read_status
from fleetcraft.readmodel.tasks import list_tasks
from fleetcraft.readmodel.verify import Found, verify_outputs
from fleetcraft.readmodel.why import explain_task
from fleetcraft.spool.compact import compact
from fleetcraft.spool.life import Life
from fleetcraft.spool.reading import SpoolFold
from fleetcraft.spool.requests import CANCEL, STOP, ask
from fleetcraft.spool.spool import Spool
from tests.unit.readmodel.building import make_spool, only_token, publish, receipt, replace_tokens, started


def claim_all(spool, batch, life):
    replace_tokens(spool, batch, [only_token(spool, batch).owned(CLAIM, life.id)])


def write_log(life, data, *, slot=0, file_no=0):
    name = f"output-{slot}.log" if not file_no else f"output-{slot}.{file_no}.log"
    with open(os.path.join(life.folder, name), "ab") as log:
        start = log.tell()
        log.write(data)
        return [file_no, start, log.tell()]


def test_tasks_come_in_order_with_their_last_attempt(tmp_path):
    spool = make_spool(tmp_path)
    batch = publish(spool, ["a", "b", "c", "d"], extra={"tags": ["eval"]})
    life = Life.begin(spool)
    claim_all(spool, batch, life)
    started(life, batch, 0)
    receipt(life, batch, 0)
    started(life, batch, 1)
    receipt(life, batch, 1, "failed", final="", exit=3, error="exit 3")
    started(life, batch, 1, attempt=2)
    receipt(life, batch, 1, "failed", attempt=2, exit=4, error="exit 4")
    started(life, batch, 2, slot=7, gpus=["GPU-x"])
    tasks = list(list_tasks(spool, details=True))
    assert [task.name for task in tasks] == ["a", "b", "c", "d"]
    assert [task.state.value for task in tasks] == ["succeeded", "failed", "running", "claimed"]
    assert [task.attempts for task in tasks] == [1, 2, 1, 0]
    assert (tasks[0].wall_s, tasks[0].cpu_s, tasks[0].max_rss_bytes, tasks[0].exit) == (2.5, 1.5, 2048 * 1024, None)
    assert (tasks[1].exit, tasks[1].outcome, tasks[1].error) == (4, "failed", "exit 4")
    assert (tasks[2].slot, tasks[2].gpus, tasks[2].worker, tasks[2].ended_utc) == (7, ("GPU-x",), life.id, None)
    assert tasks[3].worker is None
    json.dumps([task.as_json() for task in tasks])


def test_tasks_are_chosen_by_state_tag_batch_name_and_number(tmp_path):
    spool = make_spool(tmp_path)
    first = publish(spool, ["clip-1", "clip-2", "other"], extra={"tags": ["x", "y"]})
    publish(spool, ["clip-3"], extra={"tags": ["x"]})
    receipt(Life.begin(spool), first, 1)
    names = lambda **chosen: [task.name for task in list_tasks(spool, **chosen)]  # noqa: E731
    assert names(pattern="clip-*") == ["clip-1", "clip-2", "clip-3"]
    assert names(states=[TaskState.SUCCEEDED]) == ["clip-2"]
    assert names(tags=["x", "y"]) == ["clip-1", "clip-2", "other"]
    assert names(batch=2) == ["clip-3"]
    assert names(limit=2) == ["clip-1", "clip-2"]
    assert names(pattern="clip-*", limit=1, details=True) == ["clip-1"]
    assert names(pattern="nothing") == []


def test_a_group_of_calls_gives_each_its_own_time_and_value(tmp_path):
    spool = make_spool(tmp_path)
    batch = publish(spool, ["a", "b", "c"])
    life = Life.begin(spool)
    started(life, batch, 0, k=3, how="g")
    receipt(life, batch, 0, k=3, walls_us=[1000, 2000, 3000], values=[1, {"x": 2}, None])
    tasks = list(list_tasks(spool, details=True))
    assert [task.wall_s for task in tasks] == [0.001, 0.002, 0.003]
    assert [task.value for task in tasks] == [1, {"x": 2}, None]
    assert [task.cpu_s for task in tasks] == [None, None, None]


def test_a_task_is_found_by_name_first_and_then_by_id(tmp_path):
    spool = make_spool(tmp_path)
    publish(spool, ["a", "1.0", "-dash", "with\nnewline", "\udcff"])
    assert str(find_task(spool, "1.0")) == "1.1"
    assert str(find_task(spool, "1.2")) == "1.2"
    assert str(find_task(spool, "with\nnewline")) == "1.3"
    assert str(find_task(spool, "\udcff")) == "1.4"
    with pytest.raises(TaskUnknown):
        find_task(spool, "1.99")


def test_show_knows_every_attempt_of_every_life(tmp_path):
    spool = make_spool(tmp_path)
    batch = publish(spool, [f"t{number}" for number in range(20)])
    one, other = Life.begin(spool), Life.begin(spool)
    started(one, batch, 12)
    one.record({"t": "spawned", "b": batch, "i": 12, "a": 1, "pid": 77, "boot": 1.0})
    other.record(
        {
            "t": "lost",
            "b": batch,
            "i": 12,
            "g": 0,
            "a": 1,
            "life": one.id,
            "cause": "worker_gone",
            "counted": True,
            "alone": False,
        }
    )
    started(other, batch, 12, attempt=2)
    receipt(other, batch, 12, attempt=2, outputs=[{"path": "x", "size": 3, "sha256": "ab"}])
    started(other, batch, 1)
    detail = show_task(spool, "t12")
    assert detail.state is TaskState.SUCCEEDED
    assert [(view.attempt, view.worker, view.facts["outcome"]) for view in detail.attempts] == [
        (1, one.id, "lost"), (2, other.id, "succeeded"),
    ]  # fmt: skip
    assert detail.attempts[0].pid == 77
    assert detail.attempts[0].facts["slot"] == 0
    assert detail.as_json()["charged"]["losses"] == 1
    json.dumps(detail.as_json())


def test_the_receipt_of_a_life_says_more_than_its_reaper(tmp_path):
    spool = make_spool(tmp_path)
    batch = publish(spool, ["a"])
    one, reaper = Life.begin(spool), Life.begin(spool)
    started(one, batch, 0)
    reaper.record({"t": "lost", "b": batch, "i": 0, "g": 0, "a": 1, "life": one.id, "cause": "worker_gone"})
    receipt(one, batch, 0, wall=9.0)
    (view,) = show_task(spool, "a").attempts
    assert (view.facts["outcome"], view.facts["wall_s"], view.final) == ("succeeded", 9.0, "succeeded")


def test_adopted_copies_and_segments_are_read_like_journals(tmp_path):
    spool = make_spool(tmp_path)
    batch = publish(spool, ["a", "b"])
    life = Life.begin(spool)
    copied = {
        "n": 5,
        "t": "receipt",
        "b": batch,
        "i": 0,
        "g": 0,
        "a": 1,
        "s": 3,
        "o": "succeeded",
        "final": "succeeded",
        "wall": 4.0,
    }
    life.record({"t": "adopted", "life": "gone-1-aa", "rec": copied})
    (view,) = show_task(spool, "a").attempts
    assert (view.worker, view.facts["wall_s"]) == ("gone-1-aa", 4.0)
    (task,) = list_tasks(spool, pattern="a", details=True)
    assert (task.worker, task.slot) == ("gone-1-aa", 3)


def test_compaction_changes_no_answer(tmp_path):
    spool = make_spool(tmp_path)
    batch = publish(spool, ["a", "b"])
    life = Life.begin(spool)
    life.beat({"state": "stopped", "reason": "", "capacity": {"cpus": 1, "gpus": []}, "counts": {"succeeded": 1}})
    for index, outcome in ((0, "succeeded"), (1, "failed")):
        started(life, batch, index)
        receipt(life, batch, index, outcome, log=write_log(life, b"output of %d\n" % index))
    replace_tokens(spool, batch, [])
    assert life.close()

    def answers():
        fresh = Spool.open(spool.layout.root)
        tasks = [task.as_json() for task in list_tasks(fresh, details=True)]
        shown = [show_task(fresh, name).as_json() for name in "ab"]
        output = [b"".join(task_log(fresh, name)) for name in "ab"]
        status = read_status(fresh)
        workers = [worker.as_json() for worker in read_workers(fold_of(fresh), 0.0)]
        return tasks, shown, output, status.counts, status.ended_workers, workers

    before = answers()
    assert before[2] == [b"output of 0\n", b"output of 1\n"]
    assert compact(spool, grace_s=0.0).removed == 1
    assert answers() == before


def fold_of(spool):
    reader = SpoolFold(spool)
    reader.refresh()
    return reader


def test_output_is_the_byte_range_of_the_receipt(tmp_path):
    spool = make_spool(tmp_path)
    batch = publish(spool, ["a", "b"])
    life = Life.begin(spool)
    receipt(life, batch, 0, log=write_log(life, b"of a\n"))
    receipt(life, batch, 1, log=write_log(life, "of b: ä\n".encode()))
    assert b"".join(task_log(spool, "a")) == b"of a\n"
    assert "".join(decoded(task_log(spool, "b"))) == "of b: ä\n"


def test_output_of_a_running_attempt_begins_behind_the_last_one_of_its_slot(tmp_path):
    spool = make_spool(tmp_path)
    batch = publish(spool, ["a", "b", "c"])
    life = Life.begin(spool)
    receipt(life, batch, 0, log=write_log(life, b"of a\n"))
    receipt(life, batch, 2, slot=1, log=write_log(life, b"other slot\n", slot=1))
    started(life, batch, 1)
    write_log(life, b"of b, so far")
    assert b"".join(task_log(spool, "b")) == b"of b, so far"


def test_following_goes_on_until_the_receipt_and_ends_at_its_range(tmp_path):
    spool = make_spool(tmp_path)
    batch = publish(spool, ["a"])
    life = Life.begin(spool)
    write_log(life, b"")
    started(life, batch, 0, log=[0, 0])
    steps = iter(range(4))

    def wait(_seconds):
        step = next(steps)
        if step < 2:
            write_log(life, b"part %d\n" % step)
        elif step == 2:
            receipt(life, batch, 0, log=[0, 0, 14])
            write_log(life, b"of the next task on this slot\n")

    assert b"".join(task_log(spool, "a", follow=True, wait=wait)) == b"part 0\npart 1\n"


def test_characters_split_between_chunks_stay_whole():
    raw = "äöü€".encode()
    assert "".join(decoded(iter([raw[:1], raw[1:4], raw[4:8], raw[8:]]))) == "äöü€"
    assert "".join(decoded(iter([b"\xff", b"a\xe2"]))) == "\ufffda\ufffd"


def test_why_says_what_a_waiting_task_waits_for(tmp_path):
    spool = make_spool(tmp_path)
    publish(spool, ["a"])
    ask(spool, STOP, reason="")
    said = " ".join(explain_task(spool, "a").sentences)
    assert "is waiting" in said
    assert "stopped by request" in said
    assert "lane c1" in said


def test_why_tells_each_attempt_and_the_evidence_of_a_death(tmp_path):
    spool = make_spool(tmp_path)
    batch = publish(spool, ["a"], extra={"retries": 1})
    one, reaper = Life.begin(spool), Life.begin(spool)
    started(one, batch, 0)
    reaper.note("reap", life=one.id, reason="process 77 is gone", facts={"pid": 77})
    reaper.record(
        {"t": "lost", "b": batch, "i": 0, "g": 0, "a": 1, "life": one.id, "cause": "worker_gone", "counted": True}
    )
    started(reaper, batch, 0, attempt=2)
    receipt(reaper, batch, 0, "failed", attempt=2, exit=3, error="exit 3")
    found = explain_task(spool, "a")
    said = " ".join(found.sentences)
    assert "process 77 is gone" in said
    assert "Attempt 2 failed (exit 3)" in said
    assert "1 retry" in said
    json.dumps(found.as_json())


def test_why_names_the_task_that_blocks(tmp_path):
    spool = make_spool(tmp_path)
    first = publish(spool, ["a"])
    publish(spool, ["b", "c"], after={"b": ["a"], "c": ["b"]})
    ask(spool, CANCEL, items=[[first, 0, [[0, 1]]]])
    said = " ".join(explain_task(spool, "c").sentences)
    assert "waits for 'b', which is blocked" in said
    assert "no longer come true" in said
    assert "'a', which is cancelled" in " ".join(explain_task(spool, "b").sentences)


def test_verify_finds_what_changed(tmp_path):
    spool = make_spool(tmp_path)
    folder = tmp_path / "outputs"
    folder.mkdir()
    for name in ("same", "changed", "shorter", "missing"):
        (folder / name).write_bytes(b"abc")
    batch = publish(spool, ["a"], extra={"cwd": str(folder), "outputs": ["same"]})
    digest = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    proofs = [{"path": name, "size": 3, "sha256": digest} for name in ("same", "changed", "shorter", "missing")]
    receipt(Life.begin(spool), batch, 0, outputs=proofs)
    (folder / "changed").write_bytes(b"abd")
    (folder / "shorter").write_bytes(b"ab")
    (folder / "missing").unlink()
    found = [one.found for one in verify_outputs(spool)]
    assert found == [Found.SAME, Found.CHANGED, Found.CHANGED, Found.MISSING]
    assert [one.found for one in verify_outputs(spool, ["a"])] == found
