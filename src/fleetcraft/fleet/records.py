"""The numbered records of one fleet: what was asked, decided, submitted and seen, in one order for everybody.

A record is committed by an exclusive link of the next number. A decision is only linked when every smaller number was
read before it was made, so of two passes that decide at once one loses, reads what the other wrote, and decides anew.
A fact is linked under the next free number, because what happened stays true whoever was faster.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fleetcraft.core.clock import Clock, stamp_utc
from fleetcraft.core.errors import FleetcraftError, UsageError
from fleetcraft.core.records import dump
from fleetcraft.fleet.names import FLEETS, FleetFolder, is_fleet_name, record_number
from fleetcraft.store.files import GONE, Files, ensure_folder, explain, write_all

SPEC, INTENT, SUBMITTED, REJECTED, UNRESOLVED = "spec", "intent", "submitted", "rejected", "unresolved"
HOLD, RELEASE = "hold", "release"
SEEN, CANCEL, DRAIN, RESUME, NOTE, NOTIFIED, IDLE = "seen", "cancel", "drain", "resume", "note", "notified", "idle"
# A listing of a network file system may miss a name that another host has just made.
_LOOKS = 3


class Overtaken(FleetcraftError):
    """Another pass wrote the next record first: read it, and decide anew."""

    code = "overtaken"


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One record. Keys that a later version added are kept in `body`."""

    number: int
    kind: str
    at_utc: float
    body: Mapping[str, Any]


@dataclass(slots=True)
class RecordLog:
    """All records of one fleet that were read so far; `refresh` reads what is new."""

    files: Files
    clock: Clock
    folder: FleetFolder
    records: list[Record] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    last: int = 0  # every number up to here was read, or found damaged and named in `problems`

    def create(self) -> None:
        """Make the folders of the fleet. Raises OutOfReach."""
        folder = self.folder
        try:
            for path in (os.path.dirname(folder.root), folder.root, folder.records, folder.jobs, folder.programs):
                ensure_folder(self.files, path)
        except OSError as error:
            raise explain(error, f"Cannot make the fleet {folder.root}") from error

    def exists(self) -> bool:
        """True when the fleet was ever made."""
        return self.files.exists(self.folder.records)

    def refresh(self) -> int:
        """Read every record that is new; returns how many. Raises OutOfReach when the folder cannot be read."""
        before = len(self.records)
        try:
            names, _ = self.files.names(self.folder.records)
        except OSError as error:
            if error.errno in GONE:
                return 0
            raise explain(error, f"Cannot read {self.folder.records}") from error
        highest = max((number for name in names if (number := record_number(name))), default=0)
        while self.last < highest:
            self._take(self.last + 1)
        # What was linked since the listing, or is not in it yet.
        while self._take(self.last + 1, listed=False):
            pass
        return len(self.records) - before

    def _take(self, number: int, *, listed: bool = True) -> bool:
        path = self.folder.record(number)
        for look in range(_LOOKS):
            try:
                raw = self.files.read(path)
                break
            except OSError as error:
                if error.errno not in GONE:
                    raise explain(error, f"Cannot read {path}") from error
                if not listed:
                    return False
                if look == _LOOKS - 1:
                    self.problems.append(f"record {number} is missing ({path}), though later ones are there")
                    self.last = number
                    return True
        else:
            return False
        record = _parse(number, raw)
        if record is None:
            self.problems.append(f"record {number} cannot be read ({path}): it is damaged and left out")
        else:
            self.records.append(record)
        self.last = number
        return True

    def decide(self, kind: str, **body: object) -> Record:
        """Commit a decision made on everything up to `last`. Raises Overtaken, OutOfReach, StorageFull."""
        return self._commit(kind, body, once=True)

    def state_fact(self, kind: str, **body: object) -> Record:
        """Commit a fact under the next free number. Raises OutOfReach, StorageFull."""
        return self._commit(kind, body, once=False)

    def _commit(self, kind: str, body: Mapping[str, object], *, once: bool) -> Record:
        folder = self.folder.records
        at_utc = stamp_utc(self.clock.utc())
        content = dump({"kind": kind, "at_utc": at_utc, **body}).encode() + b"\n"
        aside = os.path.join(folder, f".r{secrets.token_hex(8)}.tmp")
        try:
            descriptor = self.files.open_new(aside)
            try:
                write_all(self.files, descriptor, content)
                self.files.sync(descriptor)
            finally:
                self.files.close(descriptor)
            number = self._link(aside, self.files.identity(aside), once=once)
            self.files.sync_folder(folder)
        except OSError as error:
            raise explain(error, f"Cannot write a record into {folder}") from error
        finally:
            _forget(self.files, aside)
        self.refresh()
        return Record(number=number, kind=kind, at_utc=at_utc, body=json.loads(content))

    def _link(self, aside: str, mine: tuple[int, int] | None, *, once: bool) -> int:
        number = self.last + 1
        while True:
            target = self.folder.record(number)
            try:
                self.files.link(aside, target)
            except OSError as error:
                if mine is not None and self.files.identity(target) == mine:
                    return number  # the reply was lost, the link is there
                if not isinstance(error, FileExistsError):
                    raise
                if once:
                    raise Overtaken(
                        f"Another pass over the fleet {self.folder.name} wrote record {number} first.",
                        hint="Run the command again; nothing was submitted by this one.",
                    ) from error
                number += 1
                continue
            return number


def _parse(number: int, raw: bytes) -> Record | None:
    """The record, or None when its bytes are no record (cut short, zeros, foreign)."""
    try:
        body = json.loads(raw)
        return Record(number=number, kind=str(body["kind"]), at_utc=float(body["at_utc"]), body=body)
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def _forget(files: Files, path: str) -> None:
    try:
        files.unlink(path)
    except OSError:
        return  # never made; or stray, and foreign to every reader


def list_fleets(files: Files, spool_root: str) -> list[str]:
    """The names of the fleets of a spool, sorted. Raises OutOfReach."""
    folder = os.path.join(spool_root, FLEETS)
    try:
        return sorted(name for name in files.folders(folder) if is_fleet_name(name))
    except OSError as error:
        if error.errno in GONE:
            return []
        raise explain(error, f"Cannot read {folder}") from error


def no_such_fleet(name: str, spool_root: str) -> UsageError:
    """The error for a fleet that was never made."""
    return UsageError(
        f"There is no fleet {name} in the spool {spool_root}.",
        hint=f"See `fleetcraft fleet list`, or make it: `fleetcraft fleet submit {name}`.",
    )
