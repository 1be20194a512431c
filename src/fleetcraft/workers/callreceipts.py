"""What is written down about calls: receipts of stretches and of single calls, and where each task goes next."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fleetcraft.core.clock import Clock
from fleetcraft.core.names import TaskId
from fleetcraft.core.outcome import Start
from fleetcraft.core.states import LossCause, Outcome
from fleetcraft.workers.attempt import Concluded, how
from fleetcraft.workers.book import Claim, Pace
from fleetcraft.workers.child import Ended
from fleetcraft.workers.payload import prove_outputs
from fleetcraft.workers.resident import Block, Resident
from fleetcraft.workers.sink import Sink
from fleetcraft.workers.slots import Slot
from fleetcraft.workers.verdict import End, Ruling, Tally, rule


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
    how: Start
    done: int = 0
    permits: list[str] = field(default_factory=list)


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
class CallReceipts:
    """Writes the records of calls and moves their tasks in the claims."""

    clock: Clock
    sink: Sink
    pace: Pace
    drain_cause: LossCause | None = None
    finished: list[Concluded] = field(default_factory=list)

    def _base(self, host: Host, chunk: Chunk, offset: int, outcome: Outcome) -> dict[str, Any]:
        task = chunk.id
        body: dict[str, Any] = {
            "t": "receipt", "b": task.batch, "i": task.index + offset, "g": chunk.claim.token.gen, "a": chunk.attempt,
            "o": outcome.value, "s": host.slot.number, "at": round(chunk.at_utc, 3), "end": round(self.clock.utc(), 3),
        }  # fmt: skip
        if host.slot.gpus:
            body["gpus"] = list(host.slot.gpus)
        return body

    def succeeded(self, host: Host, chunk: Chunk, block: Block, count: int) -> None:
        """One record for a stretch of successes."""
        wall_s = sum(block.walls_us) / 1e6
        cpu_s = block.cpu_s
        body = self._base(host, chunk, chunk.done, Outcome.SUCCEEDED)
        if count > 1:
            body["k"] = count
            body["walls_us"] = block.walls_us
        if block.value is not None:
            body["values"] = block.value
        if block.output is not None:
            body["log"] = [host.file_no, *block.output]
        body.update(final="succeeded", wall=round(wall_s, 6), cpu=None if cpu_s is None else round(cpu_s, 6))
        self._finish_outputs(host, chunk, count, body)
        self.pace.observe(chunk.claim.token.lane, max(wall_s / count, 1e-7), weight=0.3)

    def _finish_outputs(self, host: Host, chunk: Chunk, count: int, body: dict[str, Any]) -> None:
        claim = chunk.claim
        if "outputs" in chunk.tasks and count == 1:
            task = claim.batch.task(chunk.position + chunk.done)
            proofs, problem = prove_outputs(task)
            if problem is not None:
                wrong = End(exit_code=0, output_problem=problem)
                self._rule(host, chunk, chunk.done, wrong, {"wall": body["wall"]})
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

    def failed(self, host: Host, chunk: Chunk, block: Block) -> None:
        """The record of one call that raised."""
        error = block.error or {}
        text = f"{error.get('type', 'Exception')}: {error.get('message', '')}".strip()
        memory = text if error.get("kind") == "memory" else None
        end = End(exit_code=1, error=None if memory else text, memory_evidence=memory)
        extra: dict[str, Any] = {"wall": round(sum(block.walls_us) / 1e6, 6)}
        if block.cpu_s is not None:
            extra["cpu"] = round(block.cpu_s, 6)
        if block.output is not None:
            extra["log"] = [host.file_no, *block.output]
        if error.get("traceback"):
            extra["traceback"] = error["traceback"]
        self._rule(host, chunk, chunk.done, end, extra)

    def _rule(self, host: Host, chunk: Chunk, offset: int, end: End, extra: Mapping[str, Any]) -> None:
        base = self._base(host, chunk, offset, Outcome.FAILED)
        owner = TaskId(chunk.id.batch, chunk.id.index + offset)
        self._judge(chunk.claim, chunk.position + offset, chunk.attempt, owner, end, {**base, **extra})

    def _judge(
        self, claim: Claim, position: int, attempt: int, owner: TaskId, end: End, details: Mapping[str, Any]
    ) -> None:
        """Write the receipt of one call that did not simply succeed, and decide where the task goes."""
        ruling = rule(end, claim.batch.task(position), claim.tallies.get(position, Tally()))
        body: dict[str, Any] = {
            **details, "t": "receipt", "b": owner.batch, "i": owner.index, "g": claim.token.gen, "a": attempt,
            "o": ruling.outcome.value,
        }  # fmt: skip
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
            claim.put_back(position, attempt + 1, due, ruling.tally)
        self.finished.append(
            Concluded(
                id=owner, ruling=ruling, wall_s=float(details.get("wall") or 0.0), claim=claim, position=position,
                attempt=attempt,
            )
        )  # fmt: skip

    def fail_unloaded(self, claim: Claim, position: int, attempt: int, end: End) -> None:
        """Charge one task with the resident that could not be loaded for it; the next task tries again."""
        owner = claim.batch.origin(position)
        claim.begin(position, attempt)
        facts = {
            "b": owner.batch,
            "i": owner.index,
            "g": claim.token.gen,
            "a": attempt,
            "at": round(self.clock.utc(), 3),
        }
        self.sink.record({"t": "started", **facts})
        self._judge(claim, position, attempt, owner, end, {"end": facts["at"]})

    def end_chunk(self, host: Host, chunk: Chunk, ended: Ended) -> None:
        """The resident ended inside a chunk: the call in flight is judged, what came after it did not run."""
        flight = host.resident.in_flight()
        known = flight is not None and flight.position == chunk.done
        if known or chunk.count - chunk.done == 1:
            text = None
            if ended.stop_reason is None:
                text = f"its resident ended with {how(ended)} during the call"
            end = End(
                exit_code=ended.exit_code or None, signal=ended.signal, stop_reason=ended.stop_reason,
                drain_cause=self.drain_cause or LossCause.DRAINED, error=text,
            )  # fmt: skip
            extra: dict[str, Any] = {"cpu": round(ended.cpu_s, 4), "rss_kib": ended.rss_kib}
            if ended.signal is not None:
                extra["signal"] = ended.signal
            self._rule(host, chunk, chunk.done, end, extra)
            chunk.done += 1
        if chunk.done < chunk.count:
            self._lose(host, chunk, ended, careful=not known)

    def _lose(self, host: Host, chunk: Chunk, ended: Ended, *, careful: bool) -> None:
        """The rest of a chunk goes back without charge; where it is not known which call did it, one by one."""
        draining = ended.stop_reason == "drain"
        cause = (self.drain_cause or LossCause.DRAINED) if draining else LossCause.WORKER_GONE
        body = self._base(host, chunk, chunk.done, Outcome.LOST)
        body.update(
            cause=cause.value, counted=False, error=f"its resident ended with {how(ended)} before the call",
        )  # fmt: skip
        if chunk.count - chunk.done > 1:
            body["k"] = chunk.count - chunk.done
        self.sink.record(body)
        for offset in range(chunk.done, chunk.count):
            position = chunk.position + offset
            chunk.claim.put_back(position, chunk.attempt + 1, None, chunk.claim.tallies.get(position, Tally()))
            if careful and not draining:
                chunk.claim.careful.add(position)

    def abandoned(self, host: Host, chunk: Chunk, reason: str) -> dict[str, Any]:
        """The record of a stretch of calls that ran on while this worker was taken for dead."""
        body = self._base(host, chunk, chunk.done, Outcome.ABANDONED)
        return {**body, "k": chunk.count - chunk.done, "error": reason}
