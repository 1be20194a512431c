"""Runs call tasks: one resident per slot loads the function once, then takes many calls in chunks.

A chunk is one stretch of tasks with one `started` record. When a resident dies inside a chunk of several,
which call did it is not known: all of them are lost without charge, and run one by one from then on, so the
one that kills its resident is found and the others are not blamed.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fleetcraft.core.clock import Clock
from fleetcraft.core.outcome import Fold, Start
from fleetcraft.workers.attempt import how
from fleetcraft.workers.book import Claim, Pace
from fleetcraft.workers.callreceipts import CallReceipts, Chunk, Host
from fleetcraft.workers.child import Ended, Supervisor
from fleetcraft.workers.logs import SlotLogs
from fleetcraft.workers.payload import Place, attempt_environment, base_environment, slot_environment
from fleetcraft.workers.resident import Block, Resident, ResidentState
from fleetcraft.workers.sink import Sink
from fleetcraft.workers.slots import Capacity, Slot
from fleetcraft.workers.verdict import End

CHUNK_WORK_S = 0.1
MAX_CHUNK = 4096
_NO_ARGUMENTS = b"{}"
_KEY_FIELDS = ("call", "setup", "setup_args", "python", "cwd", "env")


@dataclass(slots=True)
class Calls:
    """All residents of one worker."""

    clock: Clock
    sink: Sink
    supervisor: Supervisor
    capacity: Capacity
    logs: SlotLogs
    pace: Pace
    life: str
    pass_env: tuple[str, ...]
    deadline_utc: float | None
    kill_grace_s: float
    hosts: dict[int, Host] = field(default_factory=dict)  # by pid
    broken: dict[str, End] = field(default_factory=dict)  # by key: why the last resident could not be loaded
    spare_permits: list[tuple[tuple[tuple[str, int], ...], list[str]]] = field(
        default_factory=list
    )  # of calls that ended
    receipts: CallReceipts = field(init=False)

    def __post_init__(self) -> None:
        self.receipts = CallReceipts(self.clock, self.sink, self.pace)

    @staticmethod
    def key_of(task: Mapping[str, Any]) -> str:
        """What a resident must have been loaded with to take a task."""
        return json.dumps([task.get(name) for name in _KEY_FIELDS], sort_keys=True)

    def idle_host(self, key: str) -> Host | None:
        """A resident that takes such a call now."""
        return next((host for host in self.hosts.values() if host.key == key and _is_ready(host)), None)

    def idle_lanes(self) -> set[str]:
        """The lanes of residents that take a call now."""
        return {host.slot.request.lane for host in self.hosts.values() if _is_ready(host)}

    def loading(self, key: str) -> int:
        """How many residents for such calls will be ready soon."""
        return sum(host.key == key and host.resident.state is ResidentState.LOADING for host in self.hosts.values())

    def load(self, task: Mapping[str, Any], slot: Slot, key: str) -> Host:
        """Start a resident on a slot. Raises OSError."""
        descriptor, file_no, _ = self.logs.begin(slot.number)
        mark = f"{self.life}:resident:{slot.number}:{self.clock.mono():.3f}"
        place = Place(life=self.life, slot=slot.number, gpus=slot.gpus, deadline_utc=self.deadline_utc)
        shared = slot_environment(base_environment(task, os.environ, self.pass_env), place)
        env = attempt_environment({"name": "", "env": task.get("env", {})}, shared, "", 0, mark)
        for name in (b"FLEETCRAFT_TASK", b"FLEETCRAFT_TASK_ID", b"FLEETCRAFT_ATTEMPT"):
            del env[name]  # one resident serves many tasks
        python = str(task.get("python") or sys.executable)
        resident = Resident.start(
            self.supervisor,
            python=python if os.path.exists(python) else sys.executable,
            call=str(task["call"]),
            setup=task.get("setup"),
            setup_args=task.get("setup_args") or {},
            cwd=str(task.get("cwd", "/")),
            env=env,
            output=descriptor,
            mark=mark,
        )
        host = Host(resident, slot, key, file_no)
        self.hosts[resident.child.pid] = host
        return host

    def chunk_size(self, lane: str) -> int:
        """How many calls to hand over at once: a tenth of a second of work, one while that is unknown."""
        mean = self.pace.means_s.get(lane)
        if mean is None:
            return 1
        return max(1, min(MAX_CHUNK, int(CHUNK_WORK_S / max(mean, 1e-7))))

    def send(self, host: Host, claim: Claim, position: int, attempt: int, task: Mapping[str, Any], most: int) -> int:
        """Hand a stretch of calls to a resident; returns how many. Raises OSError."""
        limit = 1 if attempt > 1 or position in claim.careful or position in claim.alone else most
        if "outputs" in task:
            limit = 1  # proved one by one
        payloads, count = self._gather(claim, position, task, limit)
        owner = claim.batch.origin(position)
        if count == 1:
            claim.begin(position, attempt)
        else:
            claim.begin_range(position, position + count, attempt)
        how = Start.ALONE if position in claim.alone else Start.SINGLE if count == 1 else Start.GROUP
        chunk = Chunk(claim, position, owner, count, attempt, task, self.clock.utc(), how)
        body = {
            "t": "started", "b": owner.batch, "i": owner.index, "g": claim.token.gen, "a": attempt, "how": how.value,
            "s": host.slot.number, "at": round(chunk.at_utc, 3),
        }  # fmt: skip
        if count > 1:
            body["k"] = count
        if host.slot.gpus:
            body["gpus"] = list(host.slot.gpus)
        self.sink.record(body)
        if attempt > 1:
            self.sink.sync()
        host.chunk = chunk
        host.resident.send(payloads)
        return count

    def _gather(self, claim: Claim, position: int, task: Mapping[str, Any], limit: int) -> tuple[list[bytes], int]:
        """The argument objects of up to `limit` tasks from `position` on that this resident can take together."""
        payloads = [_arguments(task)]
        if limit == 1:
            return payloads, 1
        stretch = next((high for low, high in claim.fresh if low <= position < high), position + 1)
        folded = claim.batch.folded_at(position)
        end = folded.offset + folded.count if folded else claim.token.stop
        special = claim.attempts.keys() | claim.careful | claim.alone
        # Within one batch the defaults are shared, so equal lines (but for name and arguments) mean equal tasks.
        shape = _shape(json.loads(claim.line(position)))
        for other in range(position + 1, min(position + limit, stretch, end)):
            line = json.loads(claim.line(other))
            arguments = line.get("args")
            if other in special or _shape(line) != shape:
                break
            payloads.append(json.dumps(arguments).encode() if arguments else _NO_ARGUMENTS)
        return payloads, len(payloads)

    def receive(self, host: Host) -> None:
        """Take what a resident has answered."""
        resident = host.resident
        if resident.wants_write:
            resident.flush()
        for block in resident.receive():
            if host.chunk is not None:
                self._take(host, host.chunk, block)
        if resident.fault is not None and resident.child.stop_reason is None:
            self.supervisor.force(resident.child, resident.fault)
        if resident.load_s is not None and not host.reported_load:
            host.reported_load = True
            self.sink.record(
                {"t": "note", "what": "loaded", "s": host.slot.number, "call": json.loads(host.key)[0],
                 "load_s": round(resident.load_s, 4), "python": resident.python, "at": round(self.clock.utc(), 3)}
            )  # fmt: skip

    def _take(self, host: Host, chunk: Chunk, block: Block) -> None:
        count = len(block.walls_us)
        if block.ok:
            self.receipts.succeeded(host, chunk, block, count)
        else:
            self.receipts.failed(host, chunk, block)
        chunk.done += count
        if chunk.done >= chunk.count:
            self._let_go(host, chunk)

    def on_ended(self, ended: Ended) -> bool:
        """Take the end of a resident; False when the process is none."""
        host = self.hosts.pop(ended.child.pid, None)
        if host is None:
            return False
        self.receive(host)
        if host.chunk is not None:
            told = host.resident.salvage()
            if told is not None:
                self._take(host, host.chunk, told)
        if host.chunk is not None:
            self.receipts.end_chunk(host, host.chunk, ended)
            self._let_go(host, host.chunk)
        elif not host.reported_load and ended.stop_reason is None:
            self.broken[host.key] = self._load_failure(host, ended)
        self.capacity.give_back(host.slot)
        host.resident.close()
        return True

    def _let_go(self, host: Host, chunk: Chunk) -> None:
        host.chunk = None
        if chunk.permits:
            self.spare_permits.append((chunk.claim.request.uses, chunk.permits))

    def _load_failure(self, host: Host, ended: Ended) -> End:
        error = host.resident.setup_error
        if error is None:
            return End(error=f"its resident ended with {how(ended)} while it was loading", signal=ended.signal)
        text = f"setup failed: {error.get('type')}: {error.get('message')}"
        return End(error=text, memory_evidence=text if error.get("kind") == "memory" else None)

    def open_now(self) -> list[list[Any]]:
        """Calls in progress, in the form of a summary."""
        opened: list[list[Any]] = []
        for host in self.hosts.values():
            chunk = host.chunk
            if chunk is not None:
                first = chunk.id.index
                ranges = [[first + chunk.done, first + chunk.count]]
                opened.append(
                    [self.life, chunk.id.batch, chunk.claim.token.gen, chunk.attempt, chunk.how.value, ranges]
                )
        return opened

    def evict(self) -> bool:
        """End one idle resident so that its slot can serve something else; True when one was found."""
        for host in self.hosts.values():
            if host.chunk is None and _is_ready(host):
                self.supervisor.stop(host.resident.child, "evicted", first=signal.SIGTERM, grace_s=self.kill_grace_s)
                return True
        return False

    def keep_only(self, key: str | None) -> bool:
        """End idle residents but for one of `key`; True when no other one is left and that one does nothing."""
        kept = next((host for host in self.hosts.values() if host.key == key and host.chunk is None), None)
        others = [host for host in self.hosts.values() if host is not kept]
        for host in others:
            if host.chunk is None:
                self.supervisor.stop(host.resident.child, "evicted", first=signal.SIGTERM, grace_s=self.kill_grace_s)
        return not others

    def stop_all(self, reason: str, *, only_idle: bool = False) -> None:
        """Begin to end residents."""
        for host in self.hosts.values():
            if host.chunk is None or not only_idle:
                self.supervisor.stop(host.resident.child, reason, first=signal.SIGTERM, grace_s=self.kill_grace_s)

    def cancel(self, asked: Fold) -> None:
        """End residents whose one call in progress was cancelled; within a group the short calls finish."""
        for host in self.hosts.values():
            chunk = host.chunk
            if chunk is None or chunk.count - chunk.done != 1:
                continue
            if asked.is_cancelled(chunk.id.batch, chunk.id.index + chunk.done, chunk.claim.token.gen):
                child = host.resident.child
                self.supervisor.stop(child, "cancelled", first=signal.SIGTERM, grace_s=self.kill_grace_s)

    def check_timeouts(self, now_s: float) -> float | None:
        """End a resident whose call in flight ran too long; returns when the next timeout is due."""
        nearest: float | None = None
        for host in self.hosts.values():
            chunk = host.chunk
            if chunk is None or host.resident.child.stop_reason is not None or "timeout" not in chunk.tasks:
                continue
            flight = host.resident.in_flight()
            due_s = (flight.since_mono_s if flight else now_s) + float(chunk.tasks["timeout"])
            if now_s >= due_s:
                self.supervisor.stop(host.resident.child, "timeout", first=signal.SIGTERM, grace_s=self.kill_grace_s)
            elif nearest is None or due_s < nearest:
                nearest = due_s
        return nearest

    @property
    def busy(self) -> bool:
        """True while a call is in progress."""
        return any(host.chunk is not None for host in self.hosts.values())


def _is_ready(host: Host) -> bool:
    return host.resident.state is ResidentState.READY and host.resident.child.stop_reason is None


def _arguments(task: Mapping[str, Any]) -> bytes:
    arguments = task.get("args")
    return json.dumps(arguments).encode() if arguments else _NO_ARGUMENTS


def _shape(line: dict[str, Any]) -> dict[str, Any]:
    line.pop("name", None)
    line.pop("args", None)
    return line
