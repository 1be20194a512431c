"""Open a fleet for a verb: its site, its scheduler, and the guards that stand before every submission.

A fleet that exists is opened from its own records, so it needs no profile any more. A new one is opened for a site.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from fleetcraft.actions.login_transport import transport_for
from fleetcraft.config.site import Partition, ResolvedSite
from fleetcraft.core.clock import Clock
from fleetcraft.core.errors import FleetcraftError, UsageError
from fleetcraft.fleet.guards.poll import PollEvidence
from fleetcraft.fleet.guards.standard import ReadPoll, standard_guards
from fleetcraft.fleet.handle import Fleet
from fleetcraft.fleet.names import FleetFolder, check_fleet_name
from fleetcraft.fleet.opening import open_scheduler
from fleetcraft.fleet.records import RecordLog, list_fleets, no_such_fleet
from fleetcraft.fleet.spec import FleetSpec
from fleetcraft.fleet.state import FleetState, fold
from fleetcraft.schedulers.api import Scheduler
from fleetcraft.spool.spool import Spool
from fleetcraft.transports.api import Transport

DEFAULT_FLEET = "main"


@dataclass(frozen=True, slots=True)
class Door:
    """How a site is reached."""

    site: ResolvedSite
    transport: Transport
    scheduler: Scheduler


def open_door(site: ResolvedSite, clock: Clock, env: Mapping[str, str] = os.environ) -> Door:
    """The scheduler of a site, on this machine."""
    transport = transport_for(site)
    return Door(site, transport, open_scheduler(site.scheduler, transport=transport, clock=clock, env=env))


def read_poll(scheduler: Scheduler, clock: Clock, floor_s: float) -> ReadPoll | None:
    """What the shared record of questions says; None for a scheduler that nobody has to spare."""
    poll = getattr(scheduler, "poll", None)
    if poll is None:
        return None

    def read() -> PollEvidence:
        left_s = float(poll.next_allowed_s())
        return PollEvidence(last_asked_utc=clock.utc() - max(0.0, floor_s - left_s) if left_s else None)

    return read


def new_fleet(spool: Spool, name: str, site: ResolvedSite, env: Mapping[str, str] = os.environ) -> Fleet:
    """A fleet of this name on this site, whether it was made already or not. Changes nothing."""
    check_fleet_name(name)
    clock = spool.clock
    door = open_door(site, clock, env)
    poll = read_poll(door.scheduler, clock, site.scheduler.poll_floor_s)
    return Fleet(spool, name, door.scheduler, standard_guards(door.transport, clock, door.scheduler, read_poll=poll))


def open_existing(spool: Spool, name: str | None, env: Mapping[str, str] = os.environ) -> Fleet:
    """A fleet with records, by its own site. Without a name: the only one of the spool. Raises UsageError."""
    name = choose_fleet(spool, name)
    return new_fleet(spool, name, site_of(spool, name), env)


def site_of(spool: Spool, name: str) -> ResolvedSite:
    """The site that the fleet was declared with last. Raises UsageError when it was never made."""
    log = RecordLog(spool.files, spool.clock, FleetFolder(spool.layout.root, name))
    log.refresh()
    state = fold(log.records)
    spec = newest_spec(state)
    if spec is None and [*log.problems, *state.problems]:
        return _site_without_shape(spool, name)
    if spec is None and log.records:
        raise UsageError(
            f"The fleet {name} has no shape yet: nothing was submitted for it.",
            hint=f"See `fleetcraft why fleet {name}`, or submit it.",
        )
    if spec is None:
        raise no_such_fleet(name, spool.layout.root)
    return spec.site


def _site_without_shape(spool: Spool, name: str) -> ResolvedSite:
    """A shape that cannot be read must not keep a fleet from being seen and ended. Nothing is submitted for it.

    Of another fleet of the spool, else of the default profile, else plainly Slurm on this machine.
    """
    from fleetcraft.actions.fleet_options import FleetOptions, resolve_site

    for other in list_fleets(spool.files, spool.layout.root):
        log = RecordLog(spool.files, spool.clock, FleetFolder(spool.layout.root, other))
        if other != name:
            log.refresh()
            spec = newest_spec(fold(log.records))
            if spec is not None:
                return spec.site
    try:
        return resolve_site(FleetOptions())
    except FleetcraftError:
        return ResolvedSite(profile="unknown", source="", partition=Partition(name=""))


def newest_spec(state: FleetState) -> FleetSpec | None:
    """Of work, or where a fleet has none, of the held nodes and checks that stand on its record."""
    return state.spec() or state.specs.get(max(state.specs, default=0))


def choose_fleet(spool: Spool, name: str | None) -> str:
    """The fleet that was named, else the only one there is; never a guess. Raises UsageError."""
    if name is not None:
        return check_fleet_name(name)
    names = list_fleets(spool.files, spool.layout.root)
    if len(names) == 1:
        return names[0]
    if not names:
        raise UsageError(
            f"There is no fleet in the spool {spool.layout.root}.", hint="Make one: `fleetcraft fleet submit`."
        )
    raise UsageError(f"Which fleet? There are {', '.join(names)}.", hint="Name one.")
