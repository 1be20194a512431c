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
from fleetcraft.core.names import TaskId
from fleetcraft.core.outcome import Fold, Start
from fleetcraft.core.states import LossCause, Outcome
from fleetcraft.workers.book import Claim, Pace
from fleetcraft.workers.child import Ended, Supervisor
from fleetcraft.workers.logs import SlotLogs
from fleetcraft.workers.payload import Place, attempt_environment, base_environment, prove_outputs, slot_environment
from fleetcraft.workers.resident import Block, Resident
from fleetcraft.workers.runner import Concluded
from fleetcraft.workers.sink import Sink
from fleetcraft.workers.slots import Capacity, Slot
from fleetcraft.workers.verdict import End, Ruling, Tally, rule

CHUNK_WORK_S = 0.1
MAX_CHUNK = 4096
_NO_ARGUMENTS = b"{}"
_KEY_FIELDS = ("call", "setup", "setup_args", "python", "cwd", "env")


@dataclass(slots=True)
class Chunk:
    """A stretch of calls that a resident has now."""

    claim: Claim
    position: int  # first position
    id: TaskId  # of the first
    count: int
    attempt: int
    tasks: Mapping[str, Any]  # the description of the first: timeout and retries of all
    at_utc: float
    done: int = 0
    deadline_s: float | None = None


@dataclass(slots=True)
class Host:
    """A resident on its slot."""

    resident: Resident
    slot: Slot
    key: str
    file_no: int
    chunk: Chunk | None = None
    reported_load: bool = False


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
    drain_cause: LossCause | None = None
    hosts: dict[int, Host] = field(default_factory=dict)  # by pid
    finished: list[Concluded] = field(default_factory=list)

    @staticmethod
    def key_of(task: Mapping[str, Any]) -> str:
        """What a resident must have been loaded with to take a task."""
        return json.dumps([task.get(name) for name in _KEY_FIELDS], sort_keys=True)

    def idle_host(self, key: str) -> Host | None:
        """A resident that could take such a call now."""
        return next(
            (host for host in self.hosts.values() if host.key == key and host.chunk is None and _usable(host)), None
        )

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
        now = self.clock.mono()
        chunk = Chunk(claim, position, owner, count, attempt, task, self.clock.utc())
        timeout = task.get("timeout")
        if timeout is not None:
            chunk.deadline_s = now + float(timeout)
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
        for block in host.resident.receive():
            if host.chunk is not None:
                self._take(host, host.chunk, block)
        if host.resident.load_s is not None and not host.reported_load:
            host.reported_load = True
            self.sink.record(
                {"t": "note", "what": "loaded", "s": host.slot.number, "call": json.loads(host.key)[0],
                 "load_s": round(host.resident.load_s, 4), "at": round(self.clock.utc(), 3)}
            )  # fmt: skip

    def _take(self, host: Host, chunk: Chunk, block: Block) -> None:
        count = len(block.walls_us)
        if block.ok:
            self._succeeded(host, chunk, block, count)
        else:
            self._failed(host, chunk, block)
        if chunk.deadline_s is not None:
            chunk.deadline_s = self.clock.mono() + float(chunk.tasks["timeout"])
        chunk.done += count
        if chunk.done >= chunk.count:
            host.chunk = None

    def _base(self, host: Host, chunk: Chunk, offset: int, outcome: Outcome) -> dict[str, Any]:
        task = chunk.id
        body: dict[str, Any] = {
            "t": "receipt", "b": task.batch, "i": task.index + offset, "g": chunk.claim.token.gen, "a": chunk.attempt,
            "o": outcome.value, "s": host.slot.number, "at": round(chunk.at_utc, 3), "end": round(self.clock.utc(), 3),
        }  # fmt: skip
        if host.slot.gpus:
            body["gpus"] = list(host.slot.gpus)
        return body

    def _succeeded(self, host: Host, chunk: Chunk, block: Block, count: int) -> None:
        wall_s = sum(block.walls_us) / 1e6
        body = self._base(host, chunk, chunk.done, Outcome.SUCCEEDED)
        if count > 1:
            body["k"] = count
            body["walls_us"] = block.walls_us
        if block.value is not None:
            body["values"] = block.value
        if block.output is not None:
            body["log"] = [host.file_no, *block.output]
        body.update(final="succeeded", wall=round(wall_s, 6), cpu=round(block.cpu_s, 6))
        self._finish_outputs(host, chunk, count, body)
        self.pace.observe(chunk.claim.token.lane, max(wall_s / count, 1e-7), weight=0.3)

    def _finish_outputs(self, host: Host, chunk: Chunk, count: int, body: dict[str, Any]) -> None:
        claim = chunk.claim
        if "outputs" in chunk.tasks and count == 1:
            task = claim.batch.task(chunk.position + chunk.done)
            proofs, problem = prove_outputs(task)
            if problem is not None:
                self._rule(
                    host, chunk, chunk.done, End(exit_code=0, output_problem=problem), body.get("wall", 0.0), body
                )
                return
            body["outputs"] = proofs
        self.sink.record(body)
        first = chunk.position + chunk.done
        for position in range(first, first + count):
            claim.end(position)
            if claim.tallies:
                claim.tallies.pop(position, None)
                claim.attempts.pop(position, None)
        ruling = Ruling(outcome=Outcome.SUCCEEDED, final=None)
        self.finished.append(
            Concluded(
                id=TaskId(chunk.id.batch, chunk.id.index + chunk.done),
                ruling=ruling,
                wall_s=float(body["wall"]),
                claim=claim,
                position=first,
                attempt=chunk.attempt,
                count=count,
            )
        )

    def _failed(self, host: Host, chunk: Chunk, block: Block) -> None:
        error = block.error or {}
        text = f"{error.get('type', 'Exception')}: {error.get('message', '')}".strip()
        memory = text if error.get("kind") == "memory" else None
        end = End(exit_code=1, error=None if memory else text, memory_evidence=memory)
        extra: dict[str, Any] = {"wall": round(sum(block.walls_us) / 1e6, 6), "cpu": round(block.cpu_s, 6)}
        if block.output is not None:
            extra["log"] = [host.file_no, *block.output]
        if error.get("traceback"):
            extra["traceback"] = error["traceback"]
        self._rule(host, chunk, chunk.done, end, extra["wall"], extra)

    def _rule(self, host: Host, chunk: Chunk, offset: int, end: End, wall_s: float, extra: Mapping[str, Any]) -> None:
        claim, position = chunk.claim, chunk.position + offset
        task = claim.batch.task(position)
        ruling = rule(end, task, claim.tallies.get(position, Tally()))
        body = {**extra, **self._base(host, chunk, offset, ruling.outcome)}
        for name in ("k", "walls_us", "values", "final"):
            body.pop(name, None)
        if ruling.final is not None:
            body["final"] = ruling.final.value
        if ruling.cause:
            body["cause"] = str(ruling.cause)
        if ruling.error:
            body["error"] = ruling.error
        self.sink.record(body)
        if ruling.final is not None:
            claim.end(position)
        else:
            due = None if ruling.retry_in_s is None else self.clock.mono() + ruling.retry_in_s
            claim.put_back(position, chunk.attempt + 1, due, ruling.tally)
        self.finished.append(
            Concluded(
                id=TaskId(chunk.id.batch, chunk.id.index + offset), ruling=ruling, wall_s=wall_s,
                claim=claim, position=position, attempt=chunk.attempt,
            )
        )  # fmt: skip

    def on_ended(self, ended: Ended) -> bool:
        """Take the end of a resident; False when the process is none."""
        host = self.hosts.pop(ended.child.pid, None)
        if host is None:
            return False
        self.receive(host)
        chunk = host.chunk
        if chunk is not None:
            if chunk.count - chunk.done == 1 or (chunk.done == 0 and host.resident.setup_error is not None):
                self._blame(host, chunk, ended)
            else:
                self._lose(host, chunk, ended)
        self.capacity.give_back(host.slot)
        host.resident.close()
        return True

    def _blame(self, host: Host, chunk: Chunk, ended: Ended) -> None:
        """One call was in progress (or none could be, for want of its setup): it is its outcome."""
        setup = host.resident.setup_error
        text = None
        if setup is not None:
            text = f"setup failed: {setup.get('type')}: {setup.get('message')}"
        elif ended.stop_reason is None:
            how = f"signal {ended.signal}" if ended.signal else f"exit {ended.exit_code}"
            text = f"its resident ended with {how} during the call"
        end = End(
            exit_code=ended.exit_code or None, signal=ended.signal,
            stop_reason=ended.stop_reason, drain_cause=self.drain_cause or LossCause.DRAINED, error=text,
            memory_evidence=text if setup is not None and setup.get("kind") == "memory" else None,
        )  # fmt: skip
        extra: dict[str, Any] = {"cpu": round(ended.cpu_s, 4), "rss_kib": ended.rss_kib}
        if ended.signal is not None:
            extra["signal"] = ended.signal
        self._rule(host, chunk, chunk.done, end, 0.0, extra)
        chunk.done += 1
        self._return_rest(chunk)

    def _return_rest(self, chunk: Chunk) -> None:
        for offset in range(chunk.done, chunk.count):
            position = chunk.position + offset
            chunk.claim.put_back(position, chunk.attempt, None, chunk.claim.tallies.get(position, Tally()))

    def _lose(self, host: Host, chunk: Chunk, ended: Ended) -> None:
        draining = ended.stop_reason == "drain"
        cause = (self.drain_cause or LossCause.DRAINED) if draining else LossCause.WORKER_GONE
        how = f"signal {ended.signal}" if ended.signal else f"exit {ended.exit_code}"
        body = self._base(host, chunk, chunk.done, Outcome.LOST)
        body.update(
            k=chunk.count - chunk.done, cause=cause.value, counted=False,
            error=f"the resident ended with {how} during a group of {chunk.count} calls; each runs by itself next",
        )  # fmt: skip
        self.sink.record(body)
        for offset in range(chunk.done, chunk.count):
            position = chunk.position + offset
            chunk.claim.put_back(position, chunk.attempt + 1, None, chunk.claim.tallies.get(position, Tally()))
            if not draining:
                chunk.claim.careful.add(position)

    def evict(self) -> bool:
        """End one idle resident so that its slot can serve something else; True when one was found."""
        for host in self.hosts.values():
            if host.chunk is None and host.resident.child.stop_reason is None:
                self.supervisor.stop(host.resident.child, "evicted", first=signal.SIGTERM, grace_s=self.kill_grace_s)
                host.resident.close()
                return True
        return False

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
        """End a resident whose call ran too long; returns when the next timeout is due."""
        nearest: float | None = None
        for host in self.hosts.values():
            chunk = host.chunk
            if chunk is None or chunk.deadline_s is None or host.resident.child.stop_reason is not None:
                continue
            if now_s >= chunk.deadline_s:
                self.supervisor.stop(host.resident.child, "timeout", first=signal.SIGTERM, grace_s=self.kill_grace_s)
            elif nearest is None or chunk.deadline_s < nearest:
                nearest = chunk.deadline_s
        return nearest

    @property
    def busy(self) -> bool:
        """True while a call is in progress."""
        return any(host.chunk is not None for host in self.hosts.values())


def _usable(host: Host) -> bool:
    return host.resident.child.stop_reason is None and host.resident.state != "ended"


def _arguments(task: Mapping[str, Any]) -> bytes:
    arguments = task.get("args")
    return json.dumps(arguments).encode() if arguments else _NO_ARGUMENTS


def _shape(line: dict[str, Any]) -> dict[str, Any]:
    line.pop("name", None)
    line.pop("args", None)
    return line
