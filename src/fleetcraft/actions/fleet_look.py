"""Ask a fleet's scheduler once how its jobs stand, and write down what changed: the common begin of many verbs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fleetcraft.actions.fleet_open import newest_spec, open_existing
from fleetcraft.fleet.handle import Fleet
from fleetcraft.fleet.look import Look, look, read_exit_record
from fleetcraft.fleet.names import FleetFolder
from fleetcraft.fleet.records import RecordLog, list_fleets
from fleetcraft.fleet.state import FleetState, Job, fold
from fleetcraft.spool.spool import Spool


@dataclass(frozen=True, slots=True)
class Looked:
    """One fleet with what is known of it now. `look` is None when nobody was asked."""

    fleet: Fleet
    state: FleetState
    look: Look | None


def look_at(spool: Spool, names: Sequence[str | None], *, ask: bool = True) -> list[Looked]:
    """These fleets of the spool, or all that ever had a shape. Raises UsageError, OutOfReach."""
    found = []
    for name in names or [name for name, log in read_logs(spool).items() if _ever_had_a_shape(log)]:
        fleet = open_existing(spool, name)
        state = fleet.state()
        seen = None
        if ask:
            seen = look(fleet, state)
            state = fleet.state()
        found.append(Looked(fleet, state, seen))
    return found


def _ever_had_a_shape(log: RecordLog) -> bool:
    """A shape that cannot be read was one: its jobs may run on."""
    state = fold(log.records)
    return newest_spec(state) is not None or bool(log.problems or state.problems)


def read_logs(spool: Spool) -> dict[str, RecordLog]:
    """The records of every fleet. No scheduler is asked. Raises OutOfReach."""
    logs = {}
    for name in list_fleets(spool.files, spool.layout.root):
        logs[name] = RecordLog(spool.files, spool.clock, FleetFolder(spool.layout.root, name))
        logs[name].refresh()
    return logs


def read_end(spool: Spool, name: str, job: Job) -> tuple[Mapping[str, Any] | None, str]:
    """What the script of a job wrote at its end, and the file with its output. Raises OSError."""
    folder = FleetFolder(spool.layout.root, name).job(job.token)
    return read_exit_record(spool.files, folder, job.token), folder.output


def read_states(spool: Spool) -> dict[str, FleetState]:
    """What the records of every fleet say. Raises OutOfReach."""
    return {name: fold(log.records) for name, log in read_logs(spool).items()}
