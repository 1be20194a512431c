"""Ask a fleet's scheduler once how its jobs stand, and write down what changed: the common begin of many verbs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fleetcraft.actions.fleet_open import open_existing
from fleetcraft.fleet.handle import Fleet
from fleetcraft.fleet.look import Look, look
from fleetcraft.fleet.names import FleetFolder
from fleetcraft.fleet.records import RecordLog, list_fleets
from fleetcraft.fleet.state import FleetState, fold
from fleetcraft.spool.spool import Spool


@dataclass(frozen=True, slots=True)
class Looked:
    """One fleet with what is known of it now. `look` is None when nobody was asked."""

    fleet: Fleet
    state: FleetState
    look: Look | None


def look_at(spool: Spool, names: Sequence[str | None], *, ask: bool = True) -> list[Looked]:
    """These fleets of the spool, or all of them. Raises UsageError, OutOfReach."""
    found = []
    for name in names or list_fleets(spool.files, spool.layout.root):
        fleet = open_existing(spool, name)
        state = fleet.state()
        seen = None
        if ask:
            seen = look(fleet, state)
            state = fleet.state()
        found.append(Looked(fleet, state, seen))
    return found


def read_states(spool: Spool) -> dict[str, FleetState]:
    """What the records of every fleet say. No scheduler is asked. Raises OutOfReach."""
    states = {}
    for name in list_fleets(spool.files, spool.layout.root):
        log = RecordLog(spool.files, spool.clock, FleetFolder(spool.layout.root, name))
        log.refresh()
        states[name] = fold(log.records)
    return states
