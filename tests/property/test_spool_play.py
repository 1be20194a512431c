"""The spool under any order of operations: crashes, power cuts, lost replies, paused workers, several reapers.

Whatever happens, no task loses its cover, no two live workers run one attempt, and at the end every task has ended
once, with a reason.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import example, given, note, settings
from hypothesis import strategies as st

from fleetcraft.core.states import TaskState
from fleetcraft.spool.check import check
from fleetcraft.spool.reading import SpoolFold
from fleetcraft.spool.spool import Spool
from fleetcraft.store.files import Files
from fleetcraft.store.journal import read_lines
from fleetcraft.testing.scheduler import Act, Plan
from tests.property.spool_play import (
    CRASH_LIMIT,
    MUTATIONS,
    RETRIES,
    Script,
    Stage,
    Worker,
    person,
    publisher,
    reap,
)
from tests.support.descriptors import closing_leftovers


@dataclass(frozen=True)
class Scene:
    """One play: who is on stage, in which order they go, and what befalls them.

    Blows are placed by an actor's changes of the spool (renames, links, creates, unlinks), for that is where they hurt.
    """

    tasks: int
    workers: int
    segments: list[tuple[int, int]]
    kills: list[tuple[int, int]] = field(default_factory=list)  # (actor, before this change)
    deaths: list[tuple[int, int]] = field(default_factory=list)  # (actor, before this operation of any kind)
    lost: list[tuple[int, int]] = field(default_factory=list)  # (actor, the reply to this change)
    storms: list[tuple[int, int, int]] = field(default_factory=list)  # (actor, from this change on, operations)
    pause: tuple[int, int, int] | None = None  # (worker, before this change, steps of the others)
    power: bool = False
    scripts: list[list[int]] = field(default_factory=list)
    fails: set[tuple[int, int]] = field(default_factory=set)
    with_person: bool = False
    with_publisher: bool = False
    many_hosts: bool = False
    stale_s: float = 0.0
    torn: bool = False


_CHANGES = st.integers(0, 10) | st.integers(0, 30)


@st.composite
def scenes(draw, *, pauses=False, person=False, stale=False):
    workers = draw(st.integers(1, 3))
    actors = st.integers(0, workers + 3)
    steps = st.integers(1, 5) | st.integers(1, 80)
    failing = st.tuples(st.integers(0, 3), st.just(1)) | st.tuples(st.integers(0, 3), st.integers(1, 4))
    return Scene(
        tasks=draw(st.sampled_from([3, 2, 1, 4])),
        workers=workers,
        segments=draw(st.lists(st.tuples(actors, steps), max_size=30)),
        kills=draw(st.lists(st.tuples(actors, _CHANGES), max_size=3)),
        deaths=draw(st.lists(st.tuples(actors, st.integers(0, 160)), max_size=2)),
        lost=draw(st.lists(st.tuples(actors, _CHANGES), max_size=2)),
        storms=draw(st.lists(st.tuples(actors, _CHANGES, st.integers(1, 6)), max_size=1)),
        pause=draw(st.tuples(st.integers(0, workers - 1), _CHANGES, st.integers(20, 300))) if pauses else None,
        power=draw(st.booleans()),
        scripts=draw(st.lists(st.lists(st.integers(0, 7), max_size=16), min_size=workers, max_size=workers)),
        fails=draw(st.sets(failing, max_size=6)),
        with_person=person,
        with_publisher=draw(st.booleans()),
        many_hosts=draw(st.booleans()),
        stale_s=draw(st.sampled_from([20.0, 60.0, 200.0])) if stale else 0.0,
        torn=draw(st.booleans()),
    )


def run(root, scene):
    stage = Stage(
        str(root), fails=scene.fails, many_hosts=scene.many_hosts,
        torn=scene.torn, stale_s=scene.stale_s, strict=scene.pause is None,
    )  # fmt: skip
    with closing_leftovers(), stage.patched():
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
    for number in range(scene.workers):
        stage.enter(f"w{number}", Worker(stage, f"w{number}", Script(scene.scripts[number])))
    for name in ("r0", "r1"):
        stage.enter(name, reap(stage, name))
    if scene.with_publisher:
        stage.enter("publisher", publisher(stage, ["t0", "u0", "u1"]))
    if scene.with_person:
        stage.enter("person", person(stage, "person"))
    stage.play.run(Fate(stage, scene, list(stage.play.actors)[1:]), limit=20_000)


class Fate:
    """Chooses who goes next, and lets the blows of the scene fall."""

    def __init__(self, stage, scene, actors):
        self.stage, self.scene = stage, scene
        self.plan = Plan(scene.segments)
        self.changes = dict.fromkeys(actors, 0)
        self.storm_left = dict.fromkeys(actors, 0)
        self.wakes_at = None
        count = len(actors)
        self.kills = {(actors[number % count], place) for number, place in scene.kills}
        self.deaths = {(actors[number % count], place) for number, place in scene.deaths}
        self.lost = {(actors[number % count], place) for number, place in scene.lost}
        self.storms = {(actors[number % count], place): length for number, place, length in scene.storms}

    def __call__(self, waiting):
        waiting = self._without_the_paused(waiting)
        steps = {name: self.stage.play.actors[name].steps for name in waiting}
        name, _ = self.plan(waiting, steps)
        act = self._blow(name, waiting[name].kind, steps[name])
        if act is Act.KILL and self.scene.power:
            for life, owner in self.stage.owners.items():
                if owner == name:
                    self.stage.books.cut_power(os.path.join(self.stage.root, "workers", life, "journal.jsonl"))
        return name, act

    def _without_the_paused(self, waiting):
        """The worker that pauses is taken for dead meanwhile, and stays so."""
        if self.scene.pause is None:
            return waiting
        number, place, length = self.scene.pause
        name, now = f"w{number}", len(self.stage.play.log)
        if name not in waiting or (waiting[name].kind not in MUTATIONS and self.wakes_at is None):
            return waiting
        if self.wakes_at is None and self.changes[name] == place:
            self.wakes_at = now + length
            self.stage.suspected.add(name)
        if self.wakes_at is None or now >= self.wakes_at or len(waiting) == 1:
            return waiting
        return {other: operation for other, operation in waiting.items() if other != name}

    def _blow(self, name, kind, step):
        if (name, step) in self.deaths:
            return Act.KILL
        act = Act.GRANT
        if kind in MUTATIONS:
            place = (name, self.changes[name])
            if place in self.kills:
                return Act.KILL
            if place in self.storms:
                self.storm_left[name] = self.storms[place]
            if place in self.lost:
                act = Act.LOSE
            self.changes[name] += 1
        if self.storm_left[name]:
            self.storm_left[name] -= 1
            act = Act.LOSE if kind in MUTATIONS or kind == "write" else Act.FAIL
        return act


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
    if stage.strict:
        assert reader.fold.open == {}, "an attempt has no end"
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


# It wakes after its burial, makes one draft, and dies before it sees what befell it.
_LATE_DRAFT = Scene(
    tasks=3, workers=1, segments=[], kills=[(0, 5)], pause=(0, 4, 94), scripts=[[0, 0, 1]], fails={(0, 1)}
)


@_FEW
@example(scene=_LATE_DRAFT)
@given(scene=scenes(pauses=True))
def test_a_paused_worker_that_wakes(tmp_path_factory, scene):
    run(tmp_path_factory.mktemp("spool") / "s", scene)


@_FEW
@given(scene=scenes(person=True))
def test_a_person_retries_meanwhile(tmp_path_factory, scene):
    run(tmp_path_factory.mktemp("spool") / "s", scene)


@_FEW
@given(scene=scenes(stale=True))
def test_listings_and_look_ups_are_old(tmp_path_factory, scene):
    run(tmp_path_factory.mktemp("spool") / "s", scene)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@_MANY
@given(scene=scenes() | scenes(pauses=True) | scenes(person=True) | scenes(stale=True))
def test_many_plays(tmp_path_factory, scene):
    run(tmp_path_factory.mktemp("spool") / "s", scene)
