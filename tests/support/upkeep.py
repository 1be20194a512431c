"""Small spools for the tests of check, folding and compaction, and an oracle of coverage of their own."""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from fleetcraft.core.names import CLAIM, DRAFT, FENCED, Token, parse_token
from fleetcraft.core.resources import Request
from fleetcraft.spool.life import IDENTITY, Life
from fleetcraft.spool.publish import LedgerWriter
from fleetcraft.spool.reading import SpoolFold
from fleetcraft.spool.reap import Reaper
from fleetcraft.spool.spool import Spool
from fleetcraft.store.files import Files
from fleetcraft.testing.files import Operation, WrappedFiles

T = TypeVar("T")

DEFAULTS: dict[str, Any] = {"cwd": "/"}


def publish(
    spool: Spool, names: Sequence[str], *, held: bool = False, defaults: dict[str, Any] | None = None,
    request: Request | None = None, priority: int = 500,
) -> int:  # fmt: skip
    """One batch of commands; returns its number."""
    writer = LedgerWriter(spool, request or Request(), priority, held, [defaults or DEFAULTS])
    for name in names:
        writer.add(name, json.dumps({"name": name, "command": ["true", name]}).encode())
    number = writer.commit().batch
    assert number is not None
    return number


def publish_many(spool: Spool, count: int, *, size: int = 1, first: int = 0) -> list[int]:
    """`count` batches of `size` tasks; task names are t<batch>-<position>."""
    return [publish(spool, [f"t{place}-{index}" for index in range(size)]) for place in range(first, first + count)]


def succeed(life: Life, batch: int, start: int, stop: int, *, attempt: int = 1, gen: int = 0) -> None:
    """Receipts of success, without having run anything."""
    for index in range(start, stop):
        body = {"b": batch, "i": index, "g": gen, "a": attempt, "s": 0}
        life.record({"t": "started", **body, "at": 0.0})
        life.record({"t": "receipt", **body, "o": "succeeded", "final": "succeeded", "at": 0.0, "end": 0.0,
                     "wall": 0.0, "cpu": 0.0, "rss_kib": 1, "log": [0, 0, 0]})  # fmt: skip
    life.journal.sync()


def drain(spool: Spool, life: Life) -> None:
    """Do what a worker does to every waiting token: claim, run, record, release."""
    spool.refresh()
    for token in spool.tokens().tokens:
        if token.form:
            continue
        claim = token.owned(CLAIM, life.id)
        os.rename(spool.layout.token(token.name), spool.layout.token(claim.name))
        batch = spool.batch(token.batch)
        assert batch is not None
        for number, first, last, _ in batch.origins(token.start, token.stop):
            succeed(life, number, first, last, attempt=token.attempt, gen=token.gen)
        os.unlink(spool.layout.token(claim.name))


def pretend_dead(spool: Spool, life: str) -> None:
    """Its pid belongs to another process now: the evidence of death that a host has after a crash."""
    path = os.path.join(spool.layout.life(life), IDENTITY)
    with open(path, encoding="utf-8") as source:
        identity = json.load(source)
    with open(path, "w", encoding="utf-8") as target:
        json.dump({**identity, "start_ticks": 1}, target)


def reap_all(spool: Spool) -> None:
    """A new process finds what the dead ones left."""
    life = Life.begin(spool, kind="maintenance")
    reaper = Reaper(life, SpoolFold(spool, durable=True))
    for _ in range(3):
        reaper.step()
    assert life.close()


def bury_the_dead(spool: Spool) -> None:
    """Every life that is still live died with its process, and is reaped."""
    for life in spool.lives():
        if os.path.exists(os.path.join(spool.layout.life(life), IDENTITY)):
            pretend_dead(spool, life)
    reap_all(spool)


def names_of_all(root: str) -> list[str]:
    """Every task name of a spool, from a fresh look at its ledgers."""
    spool = Spool.open(root)
    spool.refresh()
    found = []
    for batch in spool.batches():
        found += [json.loads(line)["name"] for line in batch.lines(0, batch.count)]
    return found


def offers(root: str) -> Counter[tuple[int, int, int]]:
    """How often each (batch, index, generation) is offered by any name of a life that is not over.

    Reads headers and names by itself. Drafts count only when they are all that a task has.
    """
    ledgers: dict[int, dict[str, Any]] = {}
    for name in os.listdir(os.path.join(root, "batches")):
        if name.endswith(".jsonl") and not name.startswith("."):
            with open(os.path.join(root, "batches", name), encoding="utf-8") as source:
                ledgers[int(name[:-6])] = json.loads(source.readline())
    folded = {part[0] for header in ledgers.values() for part in header.get("folds", ())}
    found: Counter[tuple[int, int, int]] = Counter()
    for name in os.listdir(os.path.join(root, "tokens")):
        token = parse_token(name)
        assert token is not None, name
        if token.batch in folded or not _counts(root, token, ledgers):
            continue
        place = 0
        for batch, count, _ in ledgers[token.batch].get("folds", [[token.batch, ledgers[token.batch]["count"], 0]]):
            for index in range(max(token.start, place), min(token.stop, place + count)):
                found[batch, index - place, token.gen] += 1
            place += count
    return found


def _counts(root: str, token: Token, ledgers: dict[int, dict[str, Any]]) -> bool:
    if token.batch not in ledgers:
        return False
    if token.form == DRAFT:
        return bool(ledgers[token.batch]["publication"] == token.life)
    if token.form in (CLAIM, FENCED):
        return any(
            os.path.exists(os.path.join(root, "workers", token.life, f"state.{state}")) for state in ("live", "reaping")
        ) or (token.form == FENCED and os.path.exists(os.path.join(root, "workers", token.life, "state.fenced")))
    return True


def count_entries(root: str) -> int:
    """Files and directories below a spool."""
    return sum(len(files) + len(folders) for _, folders, files in os.walk(root))


class Template:
    """A prepared spool, copied for every crash point."""

    def __init__(self, tmp_path: Path, prepare: Callable[[Spool], object]) -> None:
        self.base = tmp_path
        self.source = str(tmp_path / "template")
        prepare(Spool.open(self.source, create=True))
        self.used = 0

    def copy(self) -> str:
        self.used += 1
        target = str(self.base / f"copy{self.used}")
        shutil.copytree(self.source, target)
        return target


class AtOperation(WrappedFiles):
    """Lets somebody else act before operation number `at`."""

    def __init__(self, at: int, act: Callable[[], object], inner: Files | None = None) -> None:
        super().__init__(inner)
        self.at, self.act, self.count, self.acted = at, act, 0, False

    def _around(self, operation: Operation, do: Callable[[], T]) -> T:
        number, self.count = self.count, self.count + 1
        if number == self.at:
            self.acted = True
            self.act()
        return do()
