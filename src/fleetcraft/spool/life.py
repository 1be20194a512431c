"""One worker life: its folder, its journal, its heartbeat, and its state, which moves by rename only.

A life that ended well leaves `state.dead`. One that died is taken through `.reaping` and `.fenced` by reapers.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Callable, Mapping
from typing import Any

from fleetcraft.core.clock import stamp_utc
from fleetcraft.core.errors import LifeEnded
from fleetcraft.core.names import CLAIM, DRAFT, FENCED, make_life_id
from fleetcraft.core.records import dump
from fleetcraft.spool import host
from fleetcraft.spool.host import Identity
from fleetcraft.spool.spool import Spool
from fleetcraft.spool.tokens import Moved, move
from fleetcraft.store.files import GONE, Files, publish_file
from fleetcraft.store.journal import JournalWriter

LIVE, REAPING, FENCED_STATE, DEAD = "live", "reaping", "fenced", "dead"
STATES = (LIVE, REAPING, FENCED_STATE, DEAD)
JOURNAL = "journal.jsonl"
HEARTBEAT = "heartbeat.json"
SUMMARY = "summary.json"
IDENTITY = "identity.json"


def state_path(folder: str, state: str) -> str:
    """The state file of a life in one state."""
    return os.path.join(folder, f"state.{state}")


def find_state(files: Files, folder: str) -> str | None:
    """The state of a life, or None when no state file is visible now (being moved, or never born)."""
    for _ in range(3):
        for state in STATES:
            if files.exists(state_path(folder, state)):
                return state
    return None


def read_identity(files: Files, folder: str) -> Identity | None:
    """Who a life is, or None when that cannot be read."""
    try:
        return Identity.from_json(json.loads(files.read(os.path.join(folder, IDENTITY))))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def read_json(files: Files, path: str) -> dict[str, Any] | None:
    """A small file that is replaced whole; None when it is missing or damaged (empty, zeros, foreign)."""
    try:
        value = json.loads(files.read(path))
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None


class Life:
    """Our own life in a spool. Create it by `Life.begin`; end it by `close`."""

    def __init__(self, spool: Spool, identity: Identity, folder: str) -> None:
        self.spool = spool
        self.files = spool.files
        self.identity = identity
        self.id = identity.life
        self.folder = folder
        self.journal = JournalWriter(self.files, os.path.join(folder, JOURNAL))
        self.sequence = 0
        self.last_good_boot_s = spool.clock.boot()
        self.beat_took_s = 0.0  # while our own storage is slow, the silence of others proves nothing
        # Whoever summarizes this journal must hear of every record in it, also of those that a reaper writes.
        self.on_record: Callable[[Mapping[str, Any]], None] | None = None

    @classmethod
    def begin(
        cls, spool: Spool, kind: str = "worker", job_id: str | None = None, job_restarts: int | None = None
    ) -> Life:  # fmt: skip
        """Be born: folder, identity and journal first, the state last, so that whoever sees it sees all."""
        nonce = secrets.token_hex(5)
        pid = os.getpid()
        name = host.host_name()
        seen = host.process(pid)
        identity = Identity(
            life=make_life_id(name, pid, nonce),
            kind=kind,
            host=name,
            machine_id=host.machine_id(),
            boot_id=host.boot_id(),
            pid=pid,
            pid_namespace=host.pid_namespace(),
            start_ticks=seen.start_ticks if seen else None,
            nonce=nonce,
            job_id=job_id,
            job_restarts=job_restarts,
            created_utc=stamp_utc(spool.clock.utc()),
        )
        folder = spool.layout.life(identity.life)
        spool.files.make_folder(folder)
        publish_file(spool.files, os.path.join(folder, IDENTITY), dump(identity.as_json()).encode(), durable=False)
        life = cls(spool, identity, folder)
        spool.files.create(state_path(folder, LIVE))
        spool.files.sync_folder(folder)
        spool.files.sync_folder(spool.layout.workers)
        return life

    def record(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Append one record; its number is filled in. Raises OSError."""
        full = {"n": self.journal.number + 1, **body}
        self.journal.append(dump(full))
        if self.on_record is not None:
            self.on_record(full)
        return full

    def note(self, what: str, **fields: object) -> None:
        """Append a remark that folds ignore and `why` shows."""
        self.record({"t": "note", "what": what, "at": stamp_utc(self.spool.clock.utc()), **fields})

    def beat(self, content: Mapping[str, Any]) -> None:
        """Replace the heartbeat; the sequence only grows, so a watcher needs no clock of ours. Raises OSError."""
        # The time before the write counts: a pause in the middle of it must not look like a fresh heartbeat.
        begun_boot_s, begun_s = self.spool.clock.boot(), self.spool.clock.mono()
        self.sequence += 1
        full = {
            "sequence": self.sequence,
            "at_utc": stamp_utc(self.spool.clock.utc()),
            "durable": self.journal.durable,
            "length": self.journal.length,
            **content,
        }
        publish_file(self.files, os.path.join(self.folder, HEARTBEAT), dump(full).encode(), durable=False)
        self.last_good_boot_s = begun_boot_s
        self.beat_took_s = self.spool.clock.mono() - begun_s

    def check_live(self) -> None:
        """Raise LifeEnded when a reaper took this life for dead; call after a pause and before owning anything."""
        if not self.files.exists(state_path(self.folder, LIVE)):
            state = find_state(self.files, self.folder)
            raise LifeEnded(
                f"Worker {self.id} was taken for dead (state {state or 'gone'}) while it was paused; it stops.",
                hint="What it was running goes on elsewhere; start a new worker.",
            )

    def close(self) -> bool:
        """End: only a life that owns nothing may call itself dead; any other is left for a reaper.

        Returns True when the life ended clean. A maintenance life that recorded nothing leaves no folder.
        """
        self.journal.sync()
        owns = any(
            token.life == self.id and token.form in (CLAIM, DRAFT, FENCED) for token in self.spool.tokens().tokens
        )
        empty = self.journal.number == 0
        self.journal.close()
        if owns:
            return False
        moved = move(self.files, state_path(self.folder, LIVE), state_path(self.folder, DEAD))
        if moved is not Moved.YES:
            return False  # a reaper was faster, or the storage did not say; either way a reaper finishes it
        if empty and self.identity.kind == "maintenance":
            _remove_empty_life(self.files, self.folder)
        return True


def _remove_empty_life(files: Files, folder: str) -> None:
    names, _ = files.names(folder)
    # The state goes last but one: without it the rest is a folder that was never born.
    for name in sorted(names, key=lambda name: name.startswith("state.")):
        try:
            files.unlink(os.path.join(folder, name))
        except OSError as error:
            if error.errno not in GONE:
                return
    try:
        files.remove_folder(folder)
    except OSError:
        return  # a reader holds it, or a stray file appeared; it does no harm
