"""Hand-made spools: batches by the real publisher, journals by the real writer, tokens by their names."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from fleetcraft.core.names import Token
from fleetcraft.core.resources import Request
from fleetcraft.core.task import canonical
from fleetcraft.spool.life import Life
from fleetcraft.spool.publish import LedgerWriter
from fleetcraft.spool.spool import Spool


def make_spool(path: os.PathLike[str] | str) -> Spool:
    return Spool.open(os.path.join(path, "spool"), create=True)


def publish(
    spool: Spool, names: Sequence[str], *, request: Request | None = None, priority: int = 500,
    after: Mapping[str, Sequence[str]] | None = None, extra: Mapping[str, Any] | None = None,
    defaults: Mapping[str, Any] | None = None,
) -> int:  # fmt: skip
    """One batch of tasks; `after` by name makes it a held one."""
    held = after is not None
    writer = LedgerWriter(spool, request or Request(), priority, held, [{"cwd": "/", **(defaults or {})}])
    for name in names:
        line: dict[str, Any] = {"name": name, "command": ["true"], **(extra or {})}
        if after is not None and name in after:
            line["after"] = list(after[name])
        writer.add(name, canonical(line))
    published = writer.commit()
    assert published.batch is not None
    spool.refresh()
    return published.batch


def only_token(spool: Spool, batch: int) -> Token:
    found = [token for token in spool.tokens().tokens if token.batch == batch]
    assert len(found) == 1, found
    return found[0]


def replace_tokens(spool: Spool, batch: int, tokens: Sequence[Token]) -> None:
    """Take away every token of a batch and put others in their place."""
    for token in spool.tokens().tokens:
        if token.batch == batch:
            os.unlink(spool.layout.token(token.name))
    for token in tokens:
        with open(spool.layout.token(token.name), "xb"):
            pass


def started(life: Life, batch: int, index: int, *, attempt: int = 1, gen: int = 0, slot: int = 0, **more: Any) -> None:
    life.record({"t": "started", "b": batch, "i": index, "g": gen, "a": attempt, "s": slot, "at": 1000.0, **more})


def receipt(
    life: Life, batch: int, index: int, outcome: str = "succeeded", *, final: str | None = None, attempt: int = 1,
    gen: int = 0, slot: int = 0, **more: Any,
) -> None:  # fmt: skip
    if final is None:
        final = {"succeeded": "succeeded", "cancelled": "cancelled"}.get(outcome, "failed")
    body = {
        "t": "receipt",
        "b": batch,
        "i": index,
        "g": gen,
        "a": attempt,
        "s": slot,
        "o": outcome,
        "at": 1000.0,
        "end": 1002.5,
    }
    if final:
        body["final"] = final
    life.record({**body, "wall": 2.5, "cpu": 1.5, "rss_kib": 2048, "log": [0, 0, 0], **more})
