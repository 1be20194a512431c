"""What people asked: stop, resume, drain, cancel, retry, limit. Numbered, immutable, never deleted by a reader.

A request is committed by an exclusive link of the next number, so two people never share one. A retry is
numbered within its batch, so that two retries of one task meet: the second sees the first and is refused.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fleetcraft.core.clock import stamp_utc
from fleetcraft.core.outcome import Fold
from fleetcraft.core.ranges import RangeSet
from fleetcraft.core.records import dump
from fleetcraft.spool.layout import request_number, retry_number
from fleetcraft.spool.spool import Spool
from fleetcraft.store.files import GONE, explain, write_all

STOP, RESUME, DRAIN, CANCEL, LIMIT, RETRY = "stop", "resume", "drain", "cancel", "limit", "retry"


def commit(spool: Spool, body: Mapping[str, Any], name: Callable[[int], str], first: int) -> int:
    """Publish a request under the first free number from `first` on, and return that number.

    Raises FileExistsError for a retry number that was taken (`name` decides by never growing it), StorageFull
    or OutOfReach when the storage did not do it.
    """
    files, folder = spool.files, spool.layout.requests
    aside = os.path.join(folder, f".q{secrets.token_hex(8)}.tmp")
    content = dump({"at_utc": stamp_utc(spool.clock.utc()), **body}).encode() + b"\n"
    try:
        descriptor = files.open_new(aside)
        try:
            write_all(files, descriptor, content)
            files.sync(descriptor)
        finally:
            files.close(descriptor)
        mine = files.identity(aside)
        number = first
        while True:
            target = os.path.join(folder, name(number))
            try:
                files.link(aside, target)
            except OSError as error:
                if files.identity(target) == mine:
                    break  # the reply was lost, the link is there
                if not isinstance(error, FileExistsError):
                    raise
                if name(number + 1) == name(number):
                    raise
                number += 1
                continue
            break
        files.sync_folder(folder)
    except FileExistsError:
        raise
    except OSError as error:
        raise explain(error, f"Cannot write a request into {folder}") from error
    finally:
        _forget(spool, aside)
    return number


def _forget(spool: Spool, path: str) -> None:
    try:
        spool.files.unlink(path)
    except OSError:
        return  # never made; or stray, and foreign to every reader


def ask(spool: Spool, kind: str, **fields: object) -> int:
    """Commit a general request and return its number."""
    numbers = [number for name in spool.files.names(spool.layout.requests)[0] if (number := request_number(name))]
    return commit(spool, {"kind": kind, **fields}, "{}.json".format, max(numbers, default=0) + 1)


# How coarse the time of a folder may be: milliseconds on a local disk, up to two seconds elsewhere.
_TICK_S = 2.0


@dataclass(slots=True)
class RequestLog:
    """All requests so far, read once each; `refresh` costs one stat while nothing has been new for a while."""

    spool: Spool
    stopped: bool = False
    stop_reason: str = ""
    drained: set[str] = field(default_factory=set)
    limits: dict[str, int] = field(default_factory=dict)
    cancels: list[tuple[int, int, RangeSet]] = field(default_factory=list)
    retries: list[tuple[int, int, RangeSet]] = field(default_factory=list)
    owners: dict[str, int] = field(default_factory=dict)  # committed retries: draft owner to batch
    damaged: int = 0
    _seen: set[str] = field(default_factory=set)
    _modified_ns: int = -1
    _modified_since_s: float = 0.0
    _trusted: bool = False
    _last_stop: int = 0

    def refresh(self, *, force: bool = False) -> bool:
        """Read what is new; True when something was."""
        files, folder = self.spool.files, self.spool.layout.requests
        now_s = self.spool.clock.mono()
        try:
            modified = files.modified_ns(folder)
            if modified != self._modified_ns:
                self._modified_ns, self._modified_since_s, self._trusted = modified, now_s, False
            if self._trusted and not force:
                return False
            names = files.names(folder)[0]
        except OSError as error:
            if error.errno in GONE:
                return False
            raise
        fresh = [name for name in names if name not in self._seen and _order(name) is not None]
        for name in sorted(fresh, key=lambda name: _order(name) or (0, 0)):
            self._read(os.path.join(folder, name), name)
            self._seen.add(name)
        # A request that came within the same tick as the last one leaves the folder's time as it was. A listing
        # made when that time is older than any tick is whole.
        self._trusted = now_s - self._modified_since_s >= _TICK_S
        return bool(fresh)

    def _read(self, path: str, name: str) -> None:
        try:
            body = json.loads(self.spool.files.read(path))
            self._apply(body, request_number(name) or 0)
        except (ValueError, KeyError, TypeError):
            self.damaged += 1

    def _apply(self, body: Mapping[str, Any], number: int) -> None:
        kind = body["kind"]
        if kind in (STOP, RESUME):
            if number > self._last_stop:
                self._last_stop, self.stopped = number, kind == STOP
                self.stop_reason = str(body.get("reason", ""))
        elif kind == DRAIN:
            self.drained.update(body["lives"])
        elif kind == LIMIT:
            self.limits[body["name"]] = int(body["ceiling"])
        elif kind == CANCEL:
            self.cancels.extend(_items(body["items"]))
        elif kind == RETRY:
            self.retries.extend(_items(body["items"]))
            self.owners[body["owner"]] = body["items"][0][0]

    def apply_to(self, fold: Fold, since: tuple[int, int] = (0, 0)) -> tuple[int, int]:
        """Tell a fold of cancels and retries that it does not know yet; returns the new position."""
        for batch, gen, ranges in self.cancels[since[0] :]:
            fold.cancel(batch, gen, ranges)
        for batch, gen, ranges in self.retries[since[1] :]:
            fold.retried(batch, ranges, gen)
        return len(self.cancels), len(self.retries)


def _order(name: str) -> tuple[int, int] | None:
    number = request_number(name)
    if number is not None:
        return 0, number
    return retry_number(name)


def _items(items: Iterable[Sequence[Any]]) -> list[tuple[int, int, RangeSet]]:
    return [(int(batch), int(gen), RangeSet((start, stop) for start, stop in pairs)) for batch, gen, pairs in items]
