"""What waits in the spool, lane by lane, and how long such tasks took: the reasons for asking for nodes.

Times come from the newest receipts in the journals. Where there are none the mean is None, never a guess.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from fleetcraft.core.names import CLAIM, DRAFT, FENCED, HELD, Token
from fleetcraft.core.ranges import RangeSet
from fleetcraft.core.resources import Request
from fleetcraft.spool.held import Due, Upstream, judge_token
from fleetcraft.spool.life import HEARTBEAT, JOURNAL, LIVE, find_state, read_identity, read_json
from fleetcraft.spool.maintenance import moved_into_fold
from fleetcraft.spool.reading import SpoolFold
from fleetcraft.spool.requests import RequestLog
from fleetcraft.spool.spool import Spool
from fleetcraft.store.files import GONE
from fleetcraft.store.journal import read_lines

# How much of the end of one journal is read for measured times, and of how many journals.
_TAIL_BYTES = 1 << 16
_MOST_JOURNALS = 64


@dataclass(slots=True)
class LaneWork:
    """The work of one lane."""

    lane: str
    request: Request
    waiting: int = 0  # free to be claimed
    claimed: int = 0  # owned by a worker, running or not
    held: int = 0  # waits for other tasks
    mean_s: float | None = None  # None: nothing of it was measured
    samples: int = 0

    @property
    def unfinished(self) -> int:
        """Tasks that need a slot sooner or later, as far as is known now."""
        return self.waiting + self.claimed


@dataclass(frozen=True, slots=True, kw_only=True)
class LifeView:
    """One live worker as its heartbeat has it."""

    life: str
    job_id: str | None
    host: str | None
    state: str
    cpus: int | None
    gpus: int | None
    running: int
    at_utc: float | None
    reason: str = ""
    is_live: bool = True  # its state file says so; that proves no process


@dataclass(slots=True)
class Backlog:
    """One reading of the spool for the planner."""

    lanes: dict[str, LaneWork] = field(default_factory=dict)
    lives: list[LifeView] = field(default_factory=list)
    stopped: bool = False
    stop_reason: str = ""
    problems: list[str] = field(default_factory=list)

    @property
    def waiting(self) -> int:
        """Tasks that are free to be claimed."""
        return sum(lane.waiting for lane in self.lanes.values())

    @property
    def unfinished(self) -> int:
        """Tasks that are free or owned."""
        return sum(lane.unfinished for lane in self.lanes.values())

    @property
    def held(self) -> int:
        """Tasks that wait for other tasks."""
        return sum(lane.held for lane in self.lanes.values())

    def as_json(self) -> dict[str, Any]:
        """For reports."""
        return {
            "waiting": self.waiting, "unfinished": self.unfinished, "stopped": self.stopped,
            "lanes": {
                name: {
                    "waiting": lane.waiting, "claimed": lane.claimed, "held": lane.held,
                    "mean_s": None if lane.mean_s is None else round(lane.mean_s, 3), "samples": lane.samples,
                }
                for name, lane in sorted(self.lanes.items())
            },
        }  # fmt: skip


def read_backlog(spool: Spool) -> Backlog:
    """Read tokens, requests, heartbeats and the ends of journals. Raises OSError."""
    backlog = Backlog()
    requests = RequestLog(spool)
    requests.refresh(force=True)
    backlog.stopped, backlog.stop_reason = requests.stopped, requests.stop_reason
    spool.refresh()
    tokens = spool.tokens().tokens
    cancelled = {(number, gen): ranges for number, gen, ranges in requests.cancels}
    for token in tokens:
        _count(spool, backlog, token, cancelled)
    if backlog.held and not backlog.unfinished:
        _count_due(spool, backlog, tokens)
    times: dict[str, list[float]] = {}
    for life in _newest_lives(spool):
        view = _view(spool, life)
        if view is not None:
            backlog.lives.append(view)
        for lane, wall_s, count in _measured(spool, life):
            times.setdefault(lane, []).extend([wall_s] * min(count, 64))
    for name, work in backlog.lanes.items():
        walls = times.get(name)
        if walls:
            work.mean_s, work.samples = sum(walls) / len(walls), len(walls)
    return backlog


def _count(spool: Spool, backlog: Backlog, found: Token, cancelled: Mapping[tuple[int, int], RangeSet]) -> None:
    token: Token | None = found
    if spool.is_folded(found.batch):
        # The batch that folds it offers its tasks; only a retry still stands in the old coordinates.
        token = moved_into_fold(spool, found) if found.gen else None
    batch = spool.batch(token.batch) if token else None
    if token is None or batch is None:
        return
    lane = backlog.lanes.setdefault(token.lane, LaneWork(token.lane, batch.request))
    if token.form == HELD:
        lane.held += token.count
    elif token.form in (CLAIM, FENCED):
        lane.claimed += token.count
    elif token.form == DRAFT:
        # Offered in a moment by whoever publishes or splits it; its tasks are under a claim until then, or new.
        lane.waiting += token.count if token.life == batch.publication else 0
    else:
        dropped = sum(
            stop - start
            for number, first, last, _ in batch.origins(token.start, token.stop)
            for start, stop in cancelled.get((number, token.gen), RangeSet()).within(first, last)
        )
        lane.waiting += token.count - dropped


def _count_due(spool: Spool, backlog: Backlog, tokens: list[Token]) -> None:
    """Held tasks whose conditions came true when no worker was left to see it: they are work."""
    reader = SpoolFold(spool)
    reader.refresh()
    upstream = Upstream(spool)
    for token in tokens:
        batch = spool.batch(token.batch) if token.form == HELD else None
        if batch is not None:
            due = len(judge_token(upstream, batch, token, reader.fold)[Due.DUE])
            backlog.lanes[token.lane].waiting += due
            backlog.lanes[token.lane].held -= due


def _newest_lives(spool: Spool) -> list[str]:
    """Live workers, and the youngest of the others: only so many journals are looked at."""
    files = spool.files
    aged: list[tuple[bool, int, str]] = []
    for life in spool.lives():
        folder = spool.layout.life(life)
        try:
            modified = files.modified_ns(os.path.join(folder, JOURNAL))
            aged.append((find_state(files, folder) == LIVE, modified, life))
        except OSError as error:
            if error.errno not in GONE:
                raise
    aged.sort(reverse=True)
    live = [life for is_live, _, life in aged if is_live]
    rest = [life for is_live, _, life in aged if not is_live]
    return live + rest[: max(0, _MOST_JOURNALS - len(live))]


def _view(spool: Spool, life: str) -> LifeView | None:
    folder = spool.layout.life(life)
    identity = read_identity(spool.files, folder)
    if identity is None or identity.kind != "worker":
        return None
    beat = read_json(spool.files, os.path.join(folder, HEARTBEAT)) or {}
    raw = beat.get("capacity")
    capacity: Mapping[str, Any] = raw if isinstance(raw, Mapping) else {}
    cpus, gpus = capacity.get("cpus"), capacity.get("gpus")
    running = beat.get("running")
    at_utc = beat.get("at_utc")
    return LifeView(
        life=life, job_id=identity.job_id, host=identity.host, state=str(beat.get("state", "starting")),
        cpus=cpus if isinstance(cpus, int) else None, gpus=len(gpus) if isinstance(gpus, list) else None,
        running=len(running) if isinstance(running, list) else 0,
        at_utc=float(at_utc) if isinstance(at_utc, (int, float)) else None, reason=str(beat.get("reason") or ""),
        is_live=find_state(spool.files, folder) == LIVE,
    )  # fmt: skip


def _measured(spool: Spool, life: str) -> Iterator[tuple[str, float, int]]:
    """(lane, seconds per task, how many) of the newest receipts of one life."""
    for record in tail_records(spool, life):
        if record.get("t") != "receipt" or record.get("o") != "succeeded":
            continue
        place = spool.places().get(record.get("b", -1))
        if place is None:
            continue
        batch = spool.batch(record["b"]) if not spool.is_folded(record["b"]) else place.cover
        walls = record.get("walls_us")
        if isinstance(walls, list) and walls:
            yield (batch or place.cover).lane, sum(walls) / len(walls) / 1e6, len(walls)
        elif isinstance(record.get("wall"), (int, float)):
            count = max(1, int(record.get("k") or 1))
            yield (batch or place.cover).lane, float(record["wall"]) / count, count


def tail_records(spool: Spool, life: str, tail_bytes: int = _TAIL_BYTES) -> list[dict[str, Any]]:
    """The last records of a life's journal. What is damaged, and the line that the cut falls into, is left out."""
    path = os.path.join(spool.layout.life(life), JOURNAL)
    try:
        start = max(0, spool.files.size(path) - tail_bytes)
        return [line.record for line in read_lines(spool.files, path, start) if line.record is not None]
    except OSError as error:
        if error.errno in GONE:
            return []
        raise
