"""A play on one spool: small worker lives, reapers, publishers and a person, one file operation at a time.

Nothing here runs a process: "running" a task is writing its records. What counts is the order of file operations,
which comes from the plan. After every operation the cover of every task is looked at from outside, and at the end
a healthy worker finishes what is left.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from fleetcraft.core.errors import LifeEnded, OutOfReach
from fleetcraft.core.names import CLAIM, DRAFT, FENCED, Token
from fleetcraft.core.outcome import Fold, Start
from fleetcraft.core.ranges import RangeSet
from fleetcraft.core.resources import Request
from fleetcraft.core.states import LossCause, TaskState
from fleetcraft.core.task import canonical
from fleetcraft.spool import host
from fleetcraft.spool.claims import Piece, release, return_whole, split, take
from fleetcraft.spool.cover import remaining
from fleetcraft.spool.evidence import Evidence, Liveness, ReapPolicy
from fleetcraft.spool.life import JOURNAL, Life, find_state
from fleetcraft.spool.maintenance import finish_drafts
from fleetcraft.spool.publish import LedgerWriter
from fleetcraft.spool.reading import SpoolFold
from fleetcraft.spool.reap import Reaper
from fleetcraft.spool.retry import open_generation
from fleetcraft.spool.spool import Spool
from fleetcraft.store.files import Files
from fleetcraft.store.journal import read_lines
from fleetcraft.testing.clock import ManualClock
from fleetcraft.testing.files import Operation, StaleFiles, TornListingFiles
from fleetcraft.testing.scheduler import Act, Interleaver

RETRIES = 1
CRASH_LIMIT = 2
MUTATIONS = frozenset({"rename", "link", "unlink", "create"})


class QuickFiles(Files):
    """What is durable is kept in the books here, so nothing needs to reach a disk."""

    def sync(self, descriptor: int) -> None:
        return

    def sync_folder(self, folder: str) -> None:
        return


def publish(spool: Spool, names: list[str], **content: Any) -> Any:
    """Publish tasks with these names."""
    writer = LedgerWriter(spool, Request(), 500, held=False, defaults=[{"cwd": "/"}])
    for name in names:
        writer.add(name, canonical({"name": name, "command": ["true"], **content}))
    return writer.commit()


@dataclass(slots=True)
class Script:
    """Small decisions of one actor; 0, the plainest, when the script has ended."""

    choices: list[int] = field(default_factory=list)
    position: int = 0

    def choose(self, count: int) -> int:
        if self.position >= len(self.choices):
            return 0
        self.position += 1
        return self.choices[self.position - 1] % count


class Books:
    """What the journals say, by what is written and by what a power cut would leave; kept up from outside."""

    def __init__(self) -> None:
        self.written, self.durable = Fold(), Fold()
        self._read: dict[tuple[str, bool], int] = {}
        self._synced: dict[str, int] = {}

    def saw(self, operation: Operation) -> None:
        if operation.kind in ("write", "sync") and operation.path.endswith(JOURNAL) and os.path.exists(operation.path):
            self._take(operation.path, durable=False)
            if operation.kind == "sync":
                self._synced[operation.path] = os.path.getsize(operation.path)
                self._take(operation.path, durable=True)

    def _take(self, path: str, *, durable: bool) -> None:
        fold, key = (self.durable if durable else self.written), (path, durable)
        life = os.path.basename(os.path.dirname(path))
        for line in read_lines(Files(), path, self._read.get(key, 0)):
            self._read[key] = line.offset + line.length
            if line.record is not None:
                fold.add(life, line.record)

    def cut_power(self, path: str) -> None:
        """What was not synced is gone; others may have read it."""
        if os.path.exists(path):
            os.truncate(path, self._synced.get(path, 0))

    def retried(self, batch: int, ranges: RangeSet, gen: int) -> None:
        for fold in (self.written, self.durable):
            fold.retried(batch, ranges, gen)


@dataclass(slots=True)
class Stage:
    """The spool, who is on it, and what must always hold."""

    root: str
    fails: set[tuple[int, int]] = field(default_factory=set)  # (task index, attempt) that fails
    many_hosts: bool = False
    torn: bool = False  # listings are no snapshots
    stale_s: float = 0.0  # how old the listings and look-ups of an actor may be; every operation takes a second
    clock: ManualClock = field(default_factory=ManualClock)
    owners: dict[str, str] = field(default_factory=dict)  # life: actor
    gone: set[str] = field(default_factory=set)  # actors whose process has ended
    suspected: set[str] = field(default_factory=set)  # actors that are taken for dead although they only pause
    running: dict[str, tuple[int, int]] = field(default_factory=dict)  # life: task
    books: Books = field(default_factory=Books)
    play: Interleaver = field(init=False)
    strict: bool = True  # no suspicion in this play: then two names never cover one task
    requested: set[str] = field(default_factory=set)
    committed: set[str] = field(default_factory=set)  # owners of drafts whose publication or retry is committed
    batches: dict[int, int] = field(default_factory=dict)  # number: count

    def __post_init__(self) -> None:
        self.play = Interleaver(self.observe)
        Spool.open(self.root, create=True, clock=self.clock)

    def enter(self, name: str, work: Callable[[Files], None]) -> None:
        """Bring an actor onto the stage."""
        files: Files = QuickFiles()
        if self.stale_s and name not in ("first", "last"):
            files = StaleFiles(files, self.clock, self.stale_s)
        self.play.add(name, work, files)

    def spool(self, files: Files) -> Spool:
        files = TornListingFiles(files) if self.torn else files
        spool = Spool(self.root, files=files, clock=self.clock)
        spool.refresh()
        return spool

    def boot(self) -> str:
        """The boot id of the actor whose thread asks."""
        return f"boot-{threading.current_thread().name}" if self.many_hosts else "boot-of-all"

    @property
    def policy(self) -> ReapPolicy:
        return ReapPolicy(cache_limit_s=self.stale_s)

    def reader(self, spool: Spool) -> SpoolFold:
        return SpoolFold(spool, durable=True, _boot=self.boot())

    def judge(self, identity: Any, watch: Any, now_s: float, policy: ReapPolicy, *, degraded: bool = False) -> Evidence:
        """Evidence as the play has it: an actor that ended or was killed is dead, a suspected one seems so."""
        actor = self.owners.get(identity.life, "")
        if actor in self.gone or actor in self.suspected:
            return Evidence(liveness=Liveness.DEAD, reason="the play says so", cause=LossCause.WORKER_GONE)
        return Evidence(liveness=Liveness.ALIVE, reason="it is on stage")

    @contextmanager
    def patched(self) -> Iterator[None]:
        """Processes and boots as the play has them."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(host, "processes_marked", lambda *_: [])
            patch.setattr(host, "boot_id", self.boot)
            yield

    # What must hold after every operation

    def observe(self) -> None:
        self.clock.advance(1.0)
        name, act, operation = self.play.log[-1]
        actor = self.play.actors[name]
        if act is Act.KILL or actor.ended:
            self.gone.add(name)
        if act in (Act.KILL, Act.FAIL):
            return
        self.books.saw(operation)
        if operation.kind == "link":
            self._committed(operation)
        if operation.kind in MUTATIONS or operation.kind in ("write", "sync"):
            self.check_cover(f"after {name} {act.value} {operation}")

    def _committed(self, operation: Operation) -> None:
        if not os.path.exists(operation.target) or operation.target in self.requested:
            return
        content = Files().read(operation.target)
        self.requested.add(operation.target)
        if operation.target.endswith(".jsonl"):
            header = json.loads(content.split(b"\n")[0])
            self.committed.add(header["publication"])
            self.batches[header["batch"]] = header["count"]
        else:
            body = json.loads(content)
            if body["kind"] == "retry":
                self.committed.add(body["owner"])
                for batch, gen, pairs in body["items"]:
                    self.books.retried(batch, RangeSet((start, stop) for start, stop in pairs), gen)

    def check_cover(self, when: str) -> None:
        """I2: every unfinished task has a name that leads somewhere. I3: not two of different owners."""
        files = Files()
        spool = Spool(self.root, files=files, clock=self.clock)
        names: dict[tuple[int, int, int], list[Token]] = {}
        states: dict[str, str | None] = {}
        for token in spool.tokens().tokens:
            if token.form == DRAFT and token.life not in self.committed:
                if token.life not in states:
                    states[token.life] = find_state(files, spool.layout.life(token.life))
                if states[token.life] not in ("live", "reaping"):
                    continue
            for index in range(token.start, token.stop):
                names.setdefault((token.batch, index, token.gen), []).append(token)
        for batch, count in self.batches.items():
            for index in range(count):
                verdict = self.books.durable.verdict(batch, index)
                if verdict.state is not None:
                    continue
                covers = names.get((batch, index, verdict.gen), [])
                assert covers, f"task {batch}.{index} lost its cover {when}"
                if self.strict:
                    solid = [token for token in covers if not _is_inner_draft(token, covers)]
                    assert len(solid) <= 1, f"task {batch}.{index} is covered by {[t.name for t in solid]} {when}"

    def starts(self, life: str, batch: int, index: int, gen: int) -> None:
        """Called by a worker the moment that it starts a task."""
        if find_state(Files(), os.path.join(self.root, "workers", life)) != "live":
            return  # a paused worker that was reaped between its look and its start; it will find out
        for other, task in self.running.items():
            if other != life and task == (batch, index) and self.owners[other] not in self.gone:
                state = find_state(Files(), os.path.join(self.root, "workers", other))
                assert state != "live", f"{batch}.{index} runs on {life} and on {other}, both live"
        if self.strict:
            verdict = self.books.durable.verdict(batch, index)
            assert (verdict.gen, verdict.state) == (gen, None), f"{batch}.{index} runs in generation {gen}; {verdict}"
        self.running[life] = (batch, index)


def _is_inner_draft(token: Token, covers: list[Token]) -> bool:
    return token.form == DRAFT and any(
        wide.form in (CLAIM, FENCED) and wide.life == token.life and wide.covers(token) for wide in covers
    )


@dataclass(slots=True)
class Worker:
    """One small worker: claims, splits, runs, retries, reaps; `passes` bounds its life."""

    stage: Stage
    name: str
    script: Script
    passes: int = 6
    reaps: bool = True
    until_done: bool = False

    def __call__(self, files: Files) -> None:
        stage = self.stage
        spool = stage.spool(files)
        try:
            life = Life.begin(spool)
        except OSError:
            return  # the storage did not let it be born
        stage.owners[life.id] = self.name
        try:
            self._live(spool, life)
            life.close()
        except LifeEnded:
            self._abandon(life)
        except (OSError, OutOfReach):
            return  # the storage did not answer: the process ends and is reaped
        finally:
            stage.running.pop(life.id, None)

    def _live(self, spool: Spool, life: Life) -> None:
        reader = self.stage.reader(spool)
        reaper = Reaper(life, reader, self.stage.policy, judge=self.stage.judge)
        for _ in range(self.passes):
            life.beat({"state": "up"})
            life.check_live()
            if self.reaps:
                reaper.step()
            tokens = spool.tokens().tokens
            spool.refresh()
            reader.requests.refresh(force=True)
            finish_drafts(spool, tokens, reader.requests.owners)
            mine = [token for token in tokens if token.form == CLAIM and token.life == life.id]
            for late in mine:
                batch = spool.batch(late.batch)
                if batch is not None:
                    self._work(spool, life, reader, late)
            waiting = sorted((token for token in tokens if not token.form), key=lambda token: token.name)
            if waiting:
                taken = take(life, waiting[self.script.choose(len(waiting))])
                if taken is not None:
                    self._work(spool, life, reader, taken[0])
            elif self.until_done and not spool.tokens().tokens and not reaper.busy:
                return

    def _work(self, spool: Spool, life: Life, reader: SpoolFold, token: Token) -> None:
        batch = spool.batch(token.batch)
        assert batch is not None
        left = RangeSet([(token.start, token.stop)])
        reader.requests.refresh(force=True)
        reader._applied = reader.requests.apply_to(reader.fold, reader._applied)
        if token.attempt > 1 or token.gen > 0:
            reader.refresh()
        if token.attempt > 1 or token.gen > 0 or reader.fold.generations:
            left = remaining(spool, batch, token, reader.fold)
        plan = self.script.choose(4)
        if plan == 1 and len(left) == token.count:
            return_whole(life, token)
            return
        if plan == 2 and token.count > 1:
            cut = token.start + 1 + self.script.choose(token.count - 1)
            kept = split(life, token, (token.start, cut), [Piece(cut, token.stop, token.attempt)])
            assert kept is not None
            left.remove(cut, token.stop)
            token = kept
        for position in list(left.numbers()):
            gone = self._run(life, reader, token, position)
            left.remove(position, position + 1)
            if gone is None:
                continue
            # The failed task leaves with a higher attempt, in the step that ends its old cover.
            rest = list(left)
            keep = (rest[0][0], rest[-1][1]) if rest else None
            kept = split(life, token, keep, [Piece(position, position + 1, gone)])
            if kept is None:
                return
            token = kept
        release(life, token)

    def _run(self, life: Life, reader: SpoolFold, token: Token, index: int) -> int | None:
        """Attempts of one task until it ended; the next attempt number when it shall leave instead."""
        stage, attempt = self.stage, token.attempt
        verdict = reader.fold.verdict(token.batch, index) if attempt > 1 else None
        how = Start.SINGLE
        body = {"b": token.batch, "i": index, "g": token.gen}
        if verdict is not None and verdict.gen == token.gen and verdict.losses >= CRASH_LIMIT:
            if verdict.lost_alone:
                life.record({**body, "t": "receipt", "a": attempt, "o": "lost", "final": "quarantined"})
                return None
            how = Start.ALONE
        failures = verdict.failures if verdict is not None and verdict.gen == token.gen else 0
        while True:
            life.check_live()
            life.record({**body, "t": "started", "a": attempt, "how": how.value})
            if attempt > 1:
                life.journal.sync()
            stage.starts(life.id, token.batch, index, token.gen)
            life.files.exists(life.folder)  # the task runs for one step
            failed = (index, attempt) in stage.fails
            failures += failed
            final = "succeeded" if not failed else ("failed" if failures > RETRIES else "")
            life.record(
                {**body, "t": "receipt", "a": attempt, "o": "failed" if failed else "succeeded", "final": final}
            )
            stage.running.pop(life.id, None)
            if final:
                return None
            attempt += 1
            if self.script.choose(2):
                return attempt

    def _abandon(self, life: Life) -> None:
        """Woken after its reaping: write the cost down, touch nothing else, go."""
        task = self.stage.running.get(life.id)
        try:
            if task is not None:
                life.note("abandoned", task=list(task))
            life.journal.sync()
        except (OSError, OutOfReach):
            return


def reap(stage: Stage, name: str, rounds: int = 4) -> Callable[[Files], None]:
    """A command that only reaps."""

    def work(files: Files) -> None:
        spool = stage.spool(files)
        try:
            life = Life.begin(spool, kind="maintenance")
            stage.owners[life.id] = name
            reaper = Reaper(life, stage.reader(spool), stage.policy, judge=stage.judge)
            for _ in range(rounds):
                reaper.step()
            life.close()
        except (OSError, OutOfReach):
            return

    return work


def person(stage: Stage, name: str) -> Callable[[Files], None]:
    """Asks once for everything that failed."""

    def choose(fold: Fold) -> dict[int, RangeSet]:
        wanted: dict[int, RangeSet] = {}
        for index in range(stage.batches[1]):
            verdict = fold.verdict(1, index)
            if verdict.state in (TaskState.FAILED, TaskState.QUARANTINED):
                wanted.setdefault(verdict.gen + 1, RangeSet()).add(index, index + 1)
        return wanted

    def work(files: Files) -> None:
        spool = stage.spool(files)
        try:
            open_generation(spool, stage.reader(spool), 1, choose)
        except (OSError, OutOfReach):
            return

    return work


def publisher(stage: Stage, names: list[str]) -> Callable[[Files], None]:
    """Enqueues a second batch."""

    def work(files: Files) -> None:
        try:
            publish(stage.spool(files), names)
        except (OSError, OutOfReach):
            return

    return work
