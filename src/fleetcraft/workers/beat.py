"""What a heartbeat says: enough for status, `why` and other workers, small enough to be read by hundreds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fleetcraft.core.states import WorkerState
from fleetcraft.workers.attempt import Running
from fleetcraft.workers.book import Book
from fleetcraft.workers.calls import Calls
from fleetcraft.workers.runner import Runner
from fleetcraft.workers.slots import Capacity

_MOST_LISTED = 256


def compose(
    state: WorkerState, reason: str, capacity: Capacity, book: Book, runner: Runner, calls: Calls,
    counts: Mapping[str, int], rate_per_s: float | None, telemetry: Mapping[str, Any] | None = None,
) -> dict[str, Any]:  # fmt: skip
    """The content of heartbeat.json but for the sequence and the journal's marks."""
    running: list[dict[str, Any]] = [
        {
            "task": str(entry.id), "g": entry.claim.token.gen, "a": entry.attempt, "slot": entry.slot.number,
            "pid": entry.child.pid if entry.child else None, "at": round(entry.at_utc, 3), "log": list(entry.log),
            **({"gpus": list(entry.slot.gpus)} if entry.slot.gpus else {}),
            **_progress(runner, entry),
        }
        for entry in list(runner.running.values())[:_MOST_LISTED]
    ]  # fmt: skip
    for host in list(calls.hosts.values())[:_MOST_LISTED]:
        if host.chunk is not None:
            chunk = host.chunk
            running.append(
                {
                    "task": f"{chunk.id.batch}.{chunk.id.index + chunk.done}", "k": chunk.count - chunk.done,
                    "g": chunk.claim.token.gen, "a": chunk.attempt, "slot": host.slot.number,
                    "pid": host.resident.child.pid, "at": round(chunk.at_utc, 3),
                    **({"gpus": list(host.slot.gpus)} if host.slot.gpus else {}),
                }
            )  # fmt: skip
    content: dict[str, Any] = {
        "state": state.value,
        "reason": reason,
        "capacity": capacity.describe(),
        "running": running,
        "residents": len(calls.hosts),
        "claims": [claim.token.name for claim in list(book)[:_MOST_LISTED]],
        "unstarted": book.unstarted(),
        "counts": {name: count for name, count in counts.items() if count},
        "rate_per_s": None if rate_per_s is None else round(rate_per_s, 3),
    }
    if telemetry is not None:
        content["telemetry"] = telemetry
    return content


def _progress(runner: Runner, entry: Running) -> dict[str, Any]:
    # A beat of a worker of short tasks must not look for a file of each.
    if not entry.announced:
        return {}
    said = runner.progress.read(entry.slot.number, str(entry.id), entry.attempt)
    return {"progress": said} if said is not None else {}
