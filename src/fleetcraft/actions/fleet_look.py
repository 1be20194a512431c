"""Ask a fleet's scheduler once how its jobs stand, and write down what changed: the common begin of many verbs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fleetcraft.actions.fleet_open import newest_spec, open_existing, site_of
from fleetcraft.actions.fleet_together import by_site, look_together
from fleetcraft.fleet.handle import Fleet
from fleetcraft.fleet.look import Look, read_exit_record
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
    """These fleets of the spool, or all that ever had a shape. Raises UsageError, OutOfReach.

    Those of one site are asked for together.
    """
    fleets = [
        open_existing(spool, name)
        for name in names or [name for name, log in read_logs(spool).items() if _ever_had_a_shape(log)]
    ]
    looks: dict[str, Look] = {}
    if ask:
        for some in by_site([(site_of(spool, fleet.name), fleet) for fleet in fleets]):
            for name, seen in look_together(some).items():
                if isinstance(seen, Exception):
                    raise seen
                looks[name] = seen
    return [Looked(fleet, fleet.state(), looks.get(fleet.name)) for fleet in fleets]


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
