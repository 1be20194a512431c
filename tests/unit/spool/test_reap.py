"""Death needs evidence; what a dead life left is taken over once, by any number of reapers that may die anywhere."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleetcraft.core.names import CLAIM, DRAFT, FENCED, Token, parse_token
from fleetcraft.core.states import LossCause
from fleetcraft.spool import host
from fleetcraft.spool.claims import take
from fleetcraft.spool.evidence import Evidence, JobWord, Liveness, ReapPolicy, Watch, judge
from fleetcraft.spool.life import Life, find_state, read_identity
from fleetcraft.spool.reading import SpoolFold
from fleetcraft.spool.reap import Reaper
from fleetcraft.spool.spool import Spool
from fleetcraft.store.files import Files
from fleetcraft.testing.clock import ManualClock
from fleetcraft.testing.files import Crash, CrashingFiles, FaultyFiles, RecordingFiles, StaleFiles
from fleetcraft.testing.scheduler import Interleaver, Plan
from tests.property.spool_play import publish

COUNT = 6


@pytest.fixture(autouse=True)
def no_processes(monkeypatch, request):
    """Looking through /proc is for the tests that start processes."""
    if "real_processes" not in request.fixturenames:
        monkeypatch.setattr(host, "processes_marked", lambda *_: [])


@pytest.fixture
def real_processes():
    return host.processes_marked


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def spool(tmp_path, clock):
    spool = Spool.open(str(tmp_path / "s"), create=True, clock=clock)
    publish(spool, [f"t{number}" for number in range(COUNT)])
    spool.refresh()
    return spool


def dead(identity, watch, now_s, policy, *, degraded=False):
    return Evidence(liveness=Liveness.DEAD, reason="the test says so")


def reaper(spool, judge=dead, policy=None, files=None):
    spool = Spool(spool.layout.root, files=files, clock=spool.clock) if files else spool
    spool.refresh()
    life = Life.begin(spool, kind="maintenance")
    return Reaper(life, SpoolFold(spool, durable=True), policy or ReapPolicy(), judge=judge)


def names(spool):
    return sorted(os.listdir(spool.layout.tokens))


def claimed(spool, life):
    taken = take(life, next(token for token in spool.tokens().tokens if not token.form))
    assert taken is not None
    return taken[0]


def receipt(life, index, attempt=1):
    life.record({"t": "started", "b": 1, "i": index, "g": 0, "a": attempt})
    life.record({"t": "receipt", "b": 1, "i": index, "g": 0, "a": attempt, "o": "succeeded", "final": "succeeded"})


def fenced_folder(spool, life, state):
    os.rename(os.path.join(life.folder, "state.live"), os.path.join(life.folder, f"state.{state}"))


# Evidence


def _identity(spool, **changes):
    life = Life.begin(spool)
    identity = read_identity(Files(), life.folder)
    assert identity is not None
    return replace(identity, **changes)


def test_this_very_process_is_alive(spool):
    evidence = judge(_identity(spool), Watch(0, 0.0), 1e9, ReapPolicy(lease_s=1.0))
    assert evidence.liveness is Liveness.ALIVE


def test_a_pid_that_is_gone_or_belongs_to_another_is_evidence(spool):
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    gone = judge(_identity(spool, pid=process.pid), Watch(0, 0.0), 0.0, ReapPolicy())
    assert (gone.liveness, gone.cause) == (Liveness.DEAD, LossCause.WORKER_GONE)
    reused = judge(_identity(spool, start_ticks=1), Watch(0, 0.0), 0.0, ReapPolicy())
    assert reused.liveness is Liveness.DEAD
    assert "another process" in reused.reason


def test_a_stopped_process_is_alive(spool):
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        seen = host.process(process.pid)
        assert seen is not None
        process.send_signal(signal.SIGSTOP)
        identity = _identity(spool, pid=process.pid, start_ticks=seen.start_ticks)
        assert judge(identity, Watch(0, 0.0), 1e9, ReapPolicy(lease_s=1.0)).liveness is Liveness.ALIVE
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize(
    "changes",
    (
        {"pid_namespace": "pid:[1]"},
        {"pid_namespace": None},
        {"start_ticks": None},
        {"boot_id": "other", "machine_id": "other"},
        {"boot_id": "other", "machine_id": None},
        {"boot_id": "other", "host": "far"},
        {"boot_id": None},
    ),
)
def test_what_cannot_be_known_is_unknown(spool, changes):
    evidence = judge(_identity(spool, **changes), Watch(0, 0.0), 1e9, ReapPolicy())
    assert evidence.liveness is Liveness.UNKNOWN
    assert evidence.reason


def test_a_life_from_before_a_restart_of_this_machine_is_dead_once_it_is_silent(spool, monkeypatch):
    monkeypatch.setattr(host, "machine_id", lambda: "this-machine")
    identity, watch = _identity(spool, boot_id="an earlier boot"), Watch(3, 100.0)
    assert judge(identity, watch, 129.0, ReapPolicy()).liveness is Liveness.UNKNOWN
    evidence = judge(identity, watch, 130.0, ReapPolicy())
    assert (evidence.liveness, evidence.cause) == (Liveness.DEAD, LossCause.NODE_GONE)
    assert "started anew" in evidence.reason
    assert judge(identity, watch, 130.0, ReapPolicy(), degraded=True).liveness is Liveness.UNKNOWN
    copy = Watch(4, 125.0)  # a machine made from the same image, which beats
    assert judge(identity, copy, 130.0, ReapPolicy()).liveness is Liveness.UNKNOWN


def test_proc_that_shows_nothing_is_no_evidence(spool, monkeypatch):
    monkeypatch.setattr(host, "process", lambda pid: None)
    assert judge(_identity(spool), Watch(0, 0.0), 1e9, ReapPolicy()).liveness is Liveness.UNKNOWN


def test_the_scheduler_must_say_it_twice_a_grace_apart(spool):
    answers: list[bool | None] = [None]
    policy = ReapPolicy(job_word=lambda life: JobWord(ended=answers[-1], cause=LossCause.WALLTIME), job_grace_s=30.0)
    identity, watch = _identity(spool, boot_id="other", machine_id="far", job_id="77"), Watch(5, 0.0)
    assert judge(identity, watch, 100.0, policy).liveness is Liveness.UNKNOWN
    answers.append(False)
    assert judge(identity, watch, 101.0, policy).liveness is Liveness.ALIVE
    answers.append(True)
    assert judge(identity, watch, 102.0, policy).liveness is Liveness.UNKNOWN
    assert judge(identity, watch, 131.0, policy).liveness is Liveness.UNKNOWN
    evidence = judge(identity, watch, 132.0, policy)
    assert (evidence.liveness, evidence.cause) == (Liveness.DEAD, LossCause.WALLTIME)
    answers.append(False)
    judge(identity, watch, 133.0, policy)
    answers.append(True)
    assert judge(identity, watch, 134.0, policy).liveness is Liveness.UNKNOWN


def test_another_pid_namespace_of_this_machine_is_judged_by_its_job(spool):
    identity = replace(_identity(spool), pid_namespace="pid:[1]", job_id="77")
    running = ReapPolicy(job_word=lambda life: JobWord(ended=False))
    assert judge(identity, Watch(5, 0.0), 1e9, running).liveness is Liveness.ALIVE
    assert judge(identity, Watch(5, 0.0), 1e9, ReapPolicy()).liveness is Liveness.UNKNOWN


def test_a_heartbeat_that_moved_between_the_two_answers_is_life(spool):
    policy = ReapPolicy(job_word=lambda life: JobWord(ended=True), job_grace_s=30.0)
    identity = _identity(spool, boot_id="other", machine_id="far", job_id="77")
    watch = Watch(5, 0.0)
    judge(identity, watch, 100.0, policy)
    moved = replace(watch, sequence=6, since_s=110.0)
    assert judge(identity, moved, 140.0, policy).liveness is Liveness.UNKNOWN


# Reaping


def test_a_living_neighbour_is_left_alone(spool):
    worker = Life.begin(spool)
    claim = claimed(spool, worker)
    report = reaper(spool, judge=judge).step()
    assert [(entry.life, entry.state) for entry in report] == [(worker.id, "live")]
    assert names(spool) == [claim.name]


def test_what_a_dead_life_left_goes_back_once_with_a_higher_attempt(spool):
    worker = Life.begin(spool)
    claim = claimed(spool, worker)
    receipt(worker, 0)
    receipt(worker, 3)
    worker.record({"t": "started", "b": 1, "i": 1, "g": 0, "a": 1})
    mine = reaper(spool)
    report = mine.step()
    assert [(entry.life, entry.state, entry.returned, entry.lost) for entry in report] == [(worker.id, "dead", 1, 1)]
    assert names(spool) == [claim.part(1, COUNT, 2).waiting().name]
    assert find_state(Files(), worker.folder) == "dead"
    verdict = mine.reader.fold.verdict(1, 1)
    assert (verdict.losses, verdict.attempt, verdict.state) == (1, 1, None)
    assert mine.step() == []
    assert mine.life.journal.durable == mine.life.journal.length


def test_an_attempt_made_in_place_counts_for_the_next_number(spool):
    worker = Life.begin(spool)
    claim = claimed(spool, worker)
    for attempt in (1, 2):
        worker.record({"t": "started", "b": 1, "i": 2, "g": 0, "a": attempt})
        worker.record({"t": "receipt", "b": 1, "i": 2, "g": 0, "a": attempt, "o": "failed", "final": ""})
    worker.record({"t": "started", "b": 1, "i": 2, "g": 0, "a": 3})
    reaper(spool).step()
    assert names(spool) == [claim.part(0, COUNT, 4).waiting().name]


def test_a_claim_whose_tasks_have_all_ended_is_dropped(spool):
    worker = Life.begin(spool)
    claimed(spool, worker)
    for index in range(COUNT):
        receipt(worker, index)
    reaper(spool).step()
    assert names(spool) == []


@pytest.mark.parametrize("committed", (False, True))
def test_drafts_of_a_split_are_void_before_its_commit_and_cover_after_it(spool, committed):
    worker = Life.begin(spool)
    claim = claimed(spool, worker)
    draft = claim.part(3, COUNT).owned(DRAFT, worker.id)
    Files().create(spool.layout.token(draft.name))
    if committed:
        Files().rename(spool.layout.token(claim.name), spool.layout.token(claim.part(0, 3).name))
    reaper(spool).step()
    whole = [claim.part(0, COUNT, 2).waiting().name]
    parts = [claim.part(0, 3, 2).waiting().name, claim.part(3, COUNT, 2).waiting().name]
    assert names(spool) == (parts if committed else whole)


def test_the_order_is_fence_then_state_then_records_then_renames(spool):
    worker = Life.begin(spool)
    claim = claimed(spool, worker)
    worker.record({"t": "started", "b": 1, "i": 0, "g": 0, "a": 1})
    recording = RecordingFiles()
    mine = reaper(spool, files=recording)
    recording.operations.clear()
    mine.step()
    steps = [
        str(operation).replace(worker.id, "W").replace(claim.waiting().name, "N") for operation in recording.operations
    ]
    order = [
        "rename state.live -> state.reaping",
        "rename N@W -> N!W",
        "rename state.reaping -> state.fenced",
        "write journal.jsonl",
        "sync journal.jsonl",
        "rename N!W -> " + claim.part(0, COUNT, 2).waiting().name,
        "rename state.fenced -> state.dead",
    ]
    last = [len(steps) - 1 - steps[::-1].index(step) for step in order]
    assert last == sorted(last), steps
    assert steps.index("write journal.jsonl") < steps.index(order[0]), "the evidence is written down first"


_STUBBORN = "import signal, time; signal.signal(15, lambda *_: None); print('up', flush=True); time.sleep(600)"


def test_a_life_whose_children_still_run_is_not_fenced(spool, real_processes, clock):
    worker = Life.begin(spool)
    claim = claimed(spool, worker)
    stubborn = subprocess.Popen(
        [sys.executable, "-c", _STUBBORN],
        env=os.environ | {host.LIFE_VARIABLE: worker.id}, stdout=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    assert stubborn.stdout is not None
    try:
        assert stubborn.stdout.readline() == b"up\n"
        mine = reaper(spool, policy=ReapPolicy(kill_grace_s=5.0))
        report = mine.step()
        assert [entry.ended_children for entry in report] == [(stubborn.pid,)]
        assert mine.busy
        assert names(spool) == [claim.name]
        assert stubborn.poll() is None
        clock.advance(5.0)
        mine.step()
        stubborn.wait(timeout=30)
        assert stubborn.returncode == -signal.SIGKILL
        report = mine.step()
        assert [(entry.state, entry.ended_children) for entry in report] == [("dead", (stubborn.pid,))]
        assert not mine.busy
    finally:
        stubborn.kill()
        stubborn.wait()
        stubborn.stdout.close()


def test_after_evidence_the_age_of_listings_is_waited_for(spool, clock):
    worker = Life.begin(spool)
    other = Spool(spool.layout.root, files=StaleFiles(None, clock, 30.0), clock=clock)
    mine = reaper(other, policy=ReapPolicy(cache_limit_s=30.0))
    other.tokens()
    claim = claimed(spool, worker)  # not in the listing that the reaper's host keeps
    clock.advance(1.0)
    assert [entry.state for entry in mine.step()] == ["live"]
    assert mine.busy
    clock.advance(29.0)
    mine.step()
    clock.advance(1.0)
    mine.step()
    assert not mine.busy
    assert names(spool) == [claim.part(0, COUNT, 2).waiting().name]


def test_evidence_that_is_taken_back_starts_the_wait_anew(spool, clock):
    worker = Life.begin(spool)
    claim = claimed(spool, worker)
    answers = iter([Liveness.DEAD, Liveness.ALIVE, Liveness.DEAD, Liveness.DEAD])

    def wavering(identity, watch, now_s, policy, *, degraded=False):
        return Evidence(liveness=next(answers), reason="x")

    mine = reaper(spool, judge=wavering, policy=ReapPolicy(cache_limit_s=10.0))
    for _ in range(3):
        mine.step()
        clock.advance(9.0)
    assert names(spool) == [claim.name]
    clock.advance(1.0)
    mine.step()
    assert names(spool) != [claim.name]


@pytest.mark.parametrize("state", ("fenced", "dead"))
def test_a_claim_made_after_death_is_taken_over_too(spool, state):
    worker = Life.begin(spool)
    fenced_folder(spool, worker, state)
    token = next(token for token in spool.tokens().tokens if not token.form)
    late = token.owned(CLAIM, worker.id)
    mine = reaper(spool)
    if state == "dead":
        mine.step()
    os.rename(spool.layout.token(token.name), spool.layout.token(late.name))
    mine.step()
    mine.step()
    assert names(spool) == [token.part(0, COUNT, 2).name]
    assert find_state(Files(), worker.folder) == "dead"


def test_a_claim_made_while_its_life_is_being_buried_is_not_buried_with_it(spool):
    worker = Life.begin(spool)
    fenced_folder(spool, worker, "fenced")
    token = next(token for token in spool.tokens().tokens if not token.form)
    late = iter(
        [lambda: os.rename(spool.layout.token(token.name), spool.layout.token(token.owned(CLAIM, worker.id).name))]
    )

    class Meanwhile(Files):
        def sync_folder(self, folder):
            super().sync_folder(folder)
            if folder == spool.layout.tokens:  # the last step before the burial
                next(late, lambda: None)()

    mine = reaper(spool, files=Meanwhile())
    for _ in range(3):
        mine.step()
    assert names(spool) == [token.part(0, COUNT, 2).name]


def test_one_listing_that_shows_neither_name_of_a_claim_makes_no_draft_a_cover(spool):
    worker = Life.begin(spool)
    claim = claimed(spool, worker)
    fenced, draft = claim.owned(FENCED, worker.id), claim.part(3, COUNT).owned(DRAFT, worker.id)
    Files().create(spool.layout.token(draft.name))
    fenced_folder(spool, worker, "reaping")
    moved = iter([lambda: os.rename(spool.layout.token(claim.name), spool.layout.token(fenced.name))])

    class Torn(Files):
        """Another reaper renames the claim while its place in the folder is being passed."""

        def names(self, folder):
            found, foreign = super().names(folder)
            move = next(moved, None) if folder == spool.layout.tokens else None
            if move is None:
                return found, foreign
            move()
            return [name for name in found if name != claim.name], foreign

    reaper(spool, files=Torn()).step()
    assert names(spool) == [claim.part(0, COUNT, 2).waiting().name]


def test_a_life_that_another_reaper_fenced_is_not_fenced_again(spool, clock):
    worker = Life.begin(spool)
    claim = claimed(spool, worker)
    stale = StaleFiles(None, clock, 60.0, lambda operation: operation.kind == "exists")
    mine = reaper(spool, files=stale)
    assert stale.exists(os.path.join(worker.folder, "state.live"))
    fenced_folder(spool, worker, "fenced")
    os.rename(spool.layout.token(claim.name), spool.layout.token(claim.part(0, COUNT, 2).waiting().name))
    # Made by the worker as it woke; its claim was gone before that, so it never became a split.
    Files().create(spool.layout.token(claim.part(3, COUNT).owned(DRAFT, worker.id).name))
    mine.step()
    clock.advance(60.0)
    mine.step()
    assert names(spool) == [claim.part(0, COUNT, 2).waiting().name]


def test_a_late_claim_leaves_alone_what_a_repair_has_offered_anew(spool):
    worker = Life.begin(spool)
    fenced_folder(spool, worker, "dead")
    mine = reaper(spool)
    mine.step()
    token = next(token for token in spool.tokens().tokens if not token.form)
    os.rename(spool.layout.token(token.name), spool.layout.token(token.owned(CLAIM, worker.id).name))
    repaired = token.part(2, COUNT, 2)
    Files().create(spool.layout.token(repaired.name))
    mine.step()
    assert names(spool) == sorted([repaired.name, token.part(0, 2, 2).name])


def test_stray_drafts_of_a_buried_life_are_removed(spool):
    worker = Life.begin(spool)
    fenced_folder(spool, worker, "fenced")
    Files().create(
        spool.layout.token(Token(lane="c1", priority=1, batch=1, start=0, stop=1, form=DRAFT, life=worker.id).name)
    )
    reaper(spool).step()
    assert [name for name in names(spool) if DRAFT in name] == []


def test_an_unanswered_state_change_settles_nothing(spool):
    worker = Life.begin(spool)
    claim = claimed(spool, worker)
    faulty = FaultyFiles(fault=lambda operation: errno.EIO if operation.target.endswith("state.fenced") else None)
    mine = reaper(spool, files=faulty)
    for _ in range(2):
        mine.step()
        assert names(spool) == [claim.owned(FENCED, worker.id).name]
    assert find_state(Files(), worker.folder) == "reaping"
    reaper(spool).step()
    assert names(spool) == [claim.part(0, COUNT, 2).waiting().name]


def test_a_life_without_identity_or_state_is_left_alone(spool):
    worker = Life.begin(spool)
    claimed(spool, worker)
    os.unlink(os.path.join(worker.folder, "identity.json"))
    unborn = Life.begin(spool)
    os.unlink(os.path.join(unborn.folder, "state.live"))
    assert reaper(spool).step() == []


def test_receipts_of_another_machine_are_copied_before_they_are_relied_on(spool):
    worker = Life.begin(spool)
    claim = claimed(spool, worker)
    receipt(worker, 0)
    path = os.path.join(worker.folder, "identity.json")
    with open(path, encoding="utf-8") as source:
        identity = json.load(source) | {"boot_id": "another-boot"}
    with open(path, "w", encoding="utf-8") as target:
        json.dump(identity, target)
    mine = reaper(spool)
    mine.step()
    os.truncate(os.path.join(worker.folder, "journal.jsonl"), 0)  # its machine lost power before writing it out
    fresh = SpoolFold(spool)
    fresh.refresh()
    assert 0 in fresh.fold.ok[1]
    assert names(spool) == [claim.part(1, COUNT, 2).waiting().name]


def _scene(tmp_path, name, clock):
    """A dead worker in the middle of a committed split, with receipts and a running task."""
    spool = Spool.open(str(tmp_path / name), create=True, clock=clock)
    publish(spool, [f"t{number}" for number in range(COUNT)])
    worker = Life.begin(spool)
    claim = claimed(spool, worker)
    receipt(worker, 0)
    worker.record({"t": "started", "b": 1, "i": 1, "g": 0, "a": 1})
    Files().create(spool.layout.token(claim.part(4, 6).owned(DRAFT, worker.id).name))
    Files().rename(spool.layout.token(claim.name), spool.layout.token(claim.part(0, 4).name))
    Files().create(spool.layout.token(claim.part(2, 4).owned(DRAFT, worker.id).name))  # not committed: void
    return spool, worker


def _assert_taken_over(spool, worker):
    assert find_state(Files(), worker.folder) == "dead"
    tokens = [parse_token(name) for name in names(spool)]
    offered = sorted(index for token in tokens if token for index in range(token.start, token.stop))
    assert offered == [1, 2, 3, 4, 5]
    assert all(token and not token.form and token.attempt > 1 for token in tokens)
    fresh = SpoolFold(spool)
    fresh.refresh()
    assert fresh.fold.open == {}
    assert fresh.fold.verdict(1, 1).losses == 1


@pytest.mark.parametrize("after", (False, True))
def test_a_reaper_that_dies_anywhere_needs_no_reaper(tmp_path, clock, after):
    at = 0
    while True:
        spool, worker = _scene(tmp_path, f"s{at}", clock)
        files = CrashingFiles()
        mine = reaper(spool, files=files)
        files.at, files.after = files.count + at, after
        try:
            mine.step()
        except Crash:
            reaper(spool, judge=lambda identity, *_, **__: dead(*[None] * 4)).step()
            _assert_taken_over(spool, worker)
        else:
            _assert_taken_over(spool, worker)
            return
        at += 1


@settings(max_examples=40)
@given(order=st.lists(st.tuples(st.integers(0, 2), st.integers(1, 9)), max_size=20))
def test_several_reapers_finish_it_once(tmp_path_factory, order):
    spool, worker = _scene(tmp_path_factory.mktemp("reap"), "s", ManualClock())

    def only_the_worker(identity, *_, **__):
        liveness = Liveness.DEAD if identity.life == worker.id else Liveness.ALIVE
        return Evidence(liveness=liveness, reason="x")

    def work(files):
        mine = reaper(spool, judge=only_the_worker, files=files)
        for _ in range(3):
            mine.step()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(host, "processes_marked", lambda *_: [])
        play = Interleaver()
        for name in ("r0", "r1", "r2"):
            play.add(name, work)
        plan = Plan(order, slice_steps=5)
        play.run(lambda waiting: plan(waiting, {name: play.actors[name].steps for name in waiting}))
    _assert_taken_over(spool, worker)
