"""Short ways to enqueue in tests, and what a spool then says about itself."""

from __future__ import annotations

import io
import json
from collections import Counter
from pathlib import Path
from typing import Any

from fleetcraft.actions.enqueue import EnqueueOptions, EnqueueResult, enqueue_stream
from fleetcraft.core.names import TaskId, Token
from fleetcraft.spool.ledger import Batch
from fleetcraft.spool.spool import Spool
from fleetcraft.store.files import Files

PLAIN = EnqueueOptions(defaults={"cwd": "/"})


def make_spool(folder: Path, files: Files | None = None) -> Spool:
    """A new spool, made with the real file system, used through `files`."""
    Spool.open(str(folder / "spool"), create=True)
    return Spool.open(str(folder / "spool"), files=files)


def stream(
    spool: Spool, text: bytes | str | list[Any], options: EnqueueOptions = PLAIN, *, label: str = "list", **more: Any
) -> EnqueueResult:
    """Enqueue lines: raw bytes, text, or values to be written as JSON lines."""
    if isinstance(text, list):
        text = "".join(json.dumps(value) + "\n" for value in text)
    raw = text if isinstance(text, bytes) else text.encode("utf-8", "surrogateescape")
    return enqueue_stream(spool, io.BytesIO(raw), label, options, **more)


def options(form: str = "auto", **defaults: Any) -> EnqueueOptions:
    return EnqueueOptions(defaults={"cwd": "/", **defaults}, form=form)


def batches(spool: Spool) -> list[Batch]:
    spool.refresh()
    return spool.batches()


def tasks(spool: Spool) -> list[dict[str, Any]]:
    """Every task as it stands in the ledgers, defaults laid under."""
    return [batch.task(position) for batch in batches(spool) for position in range(batch.count)]


def names(spool: Spool) -> list[str]:
    return [task["name"] for task in tasks(spool)]


def find(spool: Spool, name: str) -> dict[str, Any]:
    """One task by its name, through the index of names."""
    spool.refresh()
    task_id = spool.find(name)
    assert task_id is not None, f"{name!r} is not found"
    task = spool.task(task_id)
    assert task is not None
    return dict(task)


def find_id(spool: Spool, name: str) -> TaskId:
    spool.refresh()
    task_id = spool.find(name)
    assert task_id is not None, f"{name!r} is not found"
    return task_id


def tokens(spool: Spool) -> list[Token]:
    return sorted(spool.tokens().tokens, key=lambda token: token.name)


def cover(spool: Spool) -> Counter[tuple[int, int]]:
    """How many waiting or held tokens offer each task."""
    return Counter(
        (token.batch, index) for token in tokens(spool) if not token.life for index in range(token.start, token.stop)
    )


def leftovers(spool: Spool) -> list[str]:
    """Files beside the ledgers and their indexes: nothing may stay aside."""
    kept = {f"{batch.number}.jsonl" for batch in batches(spool)}
    for batch in spool.batches():
        if not batch.is_small:
            kept |= {f"{batch.publication}.idx", f"{batch.publication}.names"}
    return sorted(set(spool.files.names(spool.layout.batches)[0]) - kept)
