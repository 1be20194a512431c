"""Whether the outputs that receipts speak of are still there, byte for byte."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from fleetcraft.core.names import TaskId
from fleetcraft.core.states import TaskState
from fleetcraft.readmodel.detail import find_task
from fleetcraft.readmodel.tasks import TaskView, list_tasks
from fleetcraft.spool.spool import Spool
from fleetcraft.workers.payload import digest_file


class Found(StrEnum):
    """How one output stands against its receipt."""

    SAME = "same"
    CHANGED = "changed"
    MISSING = "missing"
    UNREADABLE = "unreadable"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """One output of one task."""

    name: str
    id: TaskId
    path: str
    found: Found
    detail: str = ""

    @property
    def good(self) -> bool:
        """True when the output is what the receipt says."""
        return self.found is Found.SAME

    def as_json(self) -> dict[str, Any]:
        """For the JSON document."""
        return {
            "name": self.name,
            "id": str(self.id),
            "path": self.path,
            "found": self.found.value,
            "detail": self.detail,
        }


def verify_outputs(spool: Spool, names: Collection[str] = ()) -> Iterator[Verified]:
    """Look at every recorded output of the named tasks, or of all that succeeded. Raises TaskUnknown, OSError."""
    wanted = {find_task(spool, name) for name in names}
    for task in list_tasks(spool, states=(TaskState.SUCCEEDED,), details=True):
        if not wanted or task.id in wanted:
            yield from _verify(spool, task)


def _verify(spool: Spool, task: TaskView) -> Iterator[Verified]:
    cwd: str | None = None
    for proof in task.outputs:
        path = str(proof.get("path"))
        if not os.path.isabs(path):
            if cwd is None:
                cwd = str((spool.task(task.id) or {}).get("cwd", "/"))
            path = os.path.join(cwd, path)
        found, detail = _compare(path, proof.get("size"), proof.get("sha256"))
        yield Verified(name=task.name, id=task.id, path=path, found=found, detail=detail)


def _compare(path: str, size: Any, digest: Any) -> tuple[Found, str]:
    if digest is None:
        # A folder was declared: the receipt says only that it was there.
        return (Found.SAME, "") if os.path.isdir(path) else (Found.MISSING, "the folder is gone")
    try:
        if os.stat(path).st_size != size:
            return Found.CHANGED, f"{os.stat(path).st_size} bytes instead of {size}"
        _, now = digest_file(path)
    except FileNotFoundError:
        return Found.MISSING, "the file is gone"
    except OSError as error:
        return Found.UNREADABLE, error.strerror or str(error)
    return (Found.SAME, "") if now == digest else (Found.CHANGED, f"sha256 {now[:12]} instead of {str(digest)[:12]}")
