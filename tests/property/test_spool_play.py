"""The spool under any order of operations: crashes, power cuts, lost replies, paused workers, several reapers.

Whatever happens, no task loses its cover, no two live workers run one attempt, and at the end every task has ended
once, with a reason.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st

from fleetcraft.core.states import TaskState
from fleetcraft.spool.check import check
from fleetcraft.spool.reading import SpoolFold
from fleetcraft.spool.spool import Spool
from fleetcraft.store.files import Files
from fleetcraft.store.journal import read_lines
from fleetcraft.testing.scheduler import Act, Plan
from tests.property.spool_play import CRASH_LIMIT, MUTATIONS, RETRIES, Script, Stage, Worker, person, publish, publisher, reap


@dataclass(frozen=True)
class Scene:
    """One play: who is on stage, in which order they go, and what befalls them."""

    tasks: int
    workers: int
    segments: list[tuple[int, int]]
    kills: list[tuple[int, int]] = field(default_factory=list)  # (actor, before its step)
    lost: list[tuple[int, int]] = field(default_factory=list)  # (actor, the reply of its mutation)
    power: bool = False
    suspect: tuple[int, int] | None = None  # (worker, from this step of the play on)
    scripts: list[list[int]] = field(default_factory=list)
    fails: set[tuple[int, int]] = field(default_factory=set)
    with_person: bool = False
    with_publisher: bool = False
    many_hosts: bool = False


@st.composite
def scenes(draw, *, suspicion=False, person=False):
    workers = draw(st.integers(1, 3))
    actors = st.integers(0, workers + 2)
    return Scene(
        tasks=draw(st.integers(1, 4)),
        workers=workers,
        segments=draw(st.lists(st.tuples(actors, st.integers(1, 80)), max_size=14)),
        kills=draw(st.lists(st.tuples(actors, st.integers(0, 160)), max_size=3)),
        lost=draw(st.lists(st.tuples(actors, st.integers(0, 30)), max_size=2)),
        power=draw(st.booleans()),
        suspect=draw(st.tuples(st.integers(0, workers - 1), st.integers(20, 400))) if suspicion else None,
        scripts=draw(st.lists(st.lists(st.integers(0, 7), max_size=12), min_size=workers, max_size=workers)),
        fails=draw(st.sets(st.tuples(st.integers(0, 3), st.integers(1, 4)), max_size=5)),
        with_person=person,
        with_publisher=draw(st.booleans()),
        many_hosts=draw(st.booleans()),
    )


def run(root, scene):
    stage = Stage(str(root), fails=scene.fails, many_hosts=scene.many_hosts, strict=scene.suspect is None)
    with stage.patched():
        try:
            _first_acts(stage, scene)
            _last_act(stage)
        finally:
            stage.play.kill_all()
        _judge(stage)
    return stage


def _first_acts(stage, scene):
    stage.enter("first", publisher(stage, [f"t{number}" for number in range(scene.tasks)]))
    while not stage.play.actors["first"].ended:
        stage.play.step("first")
    names = [f"w{number}" for number in range(scene.workers)]
    for number, name in enumerate(names):
        stage.enter(name, Worker(stage, name, Script(scene.scripts[number])))
    stage.enter("reaper", reap(stage, "reaper"))
    if scene.with_publisher:
        stage.enter("publisher", publisher(stage, ["t0", "u0", "u1"]))
    if scene.with_person:
        stage.enter("person", person(stage, "person"))
    actors = list(stage.play.actors)[1:]
    kills = {(actors[number % len(actors)], step) for number, step in scene.kills}
    lost = {(actors[number % len(actors)], place) for number, place in scene.lost}
    plan, mutations = Plan(scene.segments), dict.fromkeys(actors, 0)

    def choose(waiting):
        if scene.suspect and len(stage.play.log) >= scene.suspect[1]:
            stage.suspected.add(names[scene.suspect[0]])
        steps = {name: stage.play.actors[name].steps for name in waiting}
        name, act = plan(waiting, steps)
        if (name, steps[name]) in kills:
            act = Act.KILL
        elif waiting[name].kind in MUTATIONS:
            if (name, mutations[name]) in lost:
                act = Act.LOSE
            mutations[name] += 1
        if act is Act.KILL and scene.power:
            for life, owner in stage.owners.items():
                if owner == name:
                    stage.books.cut_power(os.path.join(stage.root, "workers", life, "journal.jsonl"))
        return name, act

    stage.play.run(choose, limit=20_000)


def _last_act(stage):
    """A healthy worker, alone, after everybody else has gone."""
    stage.gone.update(name for name, actor in stage.play.actors.items() if actor.ended)
    stage.enter("last", Worker(stage, "last", Script(), passes=40, until_done=True))
    stage.play.run(lambda _: ("last", Act.GRANT), limit=20_000)


def _judge(stage):
    note("\n".join(f"{name} {act.value} {operation}" for name, act, operation in stage.play.log[-400:]))
    spool = Spool(stage.root, clock=stage.clock)
    spool.refresh()
    reader = SpoolFold(spool)
    reader.refresh()
    left = [token.name for token in spool.tokens().tokens if token.life not in _never_committed(stage, spool)]
    assert left == [], f"tokens left over: {left}"
    counts = reader.fold.counts()
    assert sum(counts.values()) == spool.total() == sum(stage.batches.values())
    for batch, count in stage.batches.items():
        for index in range(count):
            _explained(reader.fold.verdict(batch, index))
    started = [
        (record["b"], record["i"], record["g"], record["a"])
        for path in Path(stage.root).glob("workers/*/journal.jsonl")
        for record in (line.record for line in read_lines(Files(), str(path)))
        if record is not None and record["t"] == "started"
    ]
    assert len(started) == len(set(started)), "an attempt ran twice"
    report = check(None, spool, pause=stage.clock.advance)
    assert report.problems == []


def _never_committed(stage, spool):
    """Publications and retries whose owner died before the commit: their drafts mean nothing."""
    return {
        token.life
        for token in spool.tokens().tokens
        if token.life not in stage.committed and token.life not in stage.owners
    }


def _explained(verdict):
    if verdict.state is TaskState.FAILED:
        assert verdict.failures > RETRIES
    elif verdict.state is TaskState.QUARANTINED:
        assert verdict.losses >= CRASH_LIMIT
        assert verdict.lost_alone
    else:
        assert verdict.state is TaskState.SUCCEEDED


_FEW = settings(max_examples=40)
_MANY = settings(max_examples=int(os.environ.get("SOAK_PLAYS", "1500")))


@_FEW
@given(scene=scenes())
def test_crashes_power_cuts_and_lost_replies(tmp_path_factory, scene):
    run(tmp_path_factory.mktemp("spool") / "s", scene)


@_FEW
@given(scene=scenes(suspicion=True))
def test_a_paused_worker_that_wakes(tmp_path_factory, scene):
    run(tmp_path_factory.mktemp("spool") / "s", scene)


@_FEW
@given(scene=scenes(person=True))
def test_a_person_retries_meanwhile(tmp_path_factory, scene):
    run(tmp_path_factory.mktemp("spool") / "s", scene)


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.timeout(3600)
@_MANY
@given(scene=scenes() | scenes(suspicion=True) | scenes(person=True))
def test_many_plays(tmp_path_factory, scene):
    run(tmp_path_factory.mktemp("spool") / "s", scene)
