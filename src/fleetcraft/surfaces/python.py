"""The spool as Python code sees it: `from fleetcraft import Spool`."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING

from fleetcraft.actions.api import SpoolActions, states_of

if TYPE_CHECKING:
    from fleetcraft.readmodel.status import StatusView
    from fleetcraft.readmodel.tasks import TaskView


class Spool(SpoolActions):
    """One directory of tasks. It is made by the first enqueue; nothing else changes what it looks at."""

    def status(self) -> StatusView:
        """How many tasks stand where, and what stands in the way. `status().as_json()` is what the command prints."""
        from fleetcraft.readmodel.status import read_status

        return read_status(self.open())

    def tasks(
        self,
        *,
        states: Collection[str] = (),
        tags: Collection[str] = (),
        batch: int | None = None,
        pattern: str | None = None,
        limit: int | None = None,
        details: bool = False,
    ) -> Iterator[TaskView]:
        """Tasks in the order of their ids; every condition that is given must hold."""
        from fleetcraft.readmodel.tasks import list_tasks

        return list_tasks(
            self.open(),
            states=states_of(states),
            tags=tags,
            batch=batch,
            pattern=pattern,
            limit=limit,
            details=details,
        )
