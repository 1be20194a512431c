"""Ask a site what a user has and may have there, without submitting anything."""

from __future__ import annotations

from dataclasses import dataclass

from fleetcraft.actions.fleet_open import Door, choose_fleet, open_door, site_of
from fleetcraft.actions.fleet_options import FleetOptions, resolve_site
from fleetcraft.config.site import ResolvedSite
from fleetcraft.core.errors import UsageError
from fleetcraft.fleet.guards.profile import with_profile
from fleetcraft.fleet.records import list_fleets
from fleetcraft.schedulers.api import JobRequest, Limits, Observation
from fleetcraft.spool.spool import Spool


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a site said about a user."""

    profile: str
    mine: Observation
    limits: Limits
    request: JobRequest  # whose limits are meant


def ask_site(spool: Spool, fleet: str | None, *, profile: str | None, partition: str | None) -> Asked:
    """Every job of the user, and the limits. Raises UsageError."""
    site = _site(spool, fleet, profile, partition)
    scheduler = open_door(site, spool.clock).scheduler
    request = JobRequest(
        token="",
        name="",
        script="",
        partition=site.partition.scheduler_name,
        account=site.account,
        qos=site.qos,
        time_limit_s=0.0,  # so that limits on time are told too
    )
    # Whoever only looks takes the answer that another process got a moment ago.
    mine = getattr(scheduler, "mine_shared", scheduler.mine)()
    limits = scheduler.limits()
    if limits.answered:
        limits = with_profile(limits, site, request)
    return Asked(profile=site.profile, mine=mine, limits=limits, request=request)


def open_site(spool: Spool, fleet: str | None = None, profile: str | None = None) -> Door:
    """The scheduler of the site that is meant, to ask it more than once. Raises UsageError."""
    return open_door(_site(spool, fleet, profile, None), spool.clock)


def _site(spool: Spool, fleet: str | None, profile: str | None, partition: str | None) -> ResolvedSite:
    """Of the profile or the fleet that was named; else the one that all fleets share; else the default profile's."""
    if profile is not None or partition is not None:
        return resolve_site(FleetOptions(profile=profile, partition=partition))
    names = list_fleets(spool.files, spool.layout.root)
    if fleet is None and not names:
        return resolve_site(FleetOptions())
    if fleet is None and len(names) > 1:
        # A fleet of which only a refusal is on record names no site.
        sites = [site for name in names if (site := _site_on_record(spool, name)) is not None]
        if not sites:
            return resolve_site(FleetOptions())
        if all((site.profile, site.scheduler) == (sites[0].profile, sites[0].scheduler) for site in sites):
            return sites[0]
    return site_of(spool, choose_fleet(spool, fleet))


def _site_on_record(spool: Spool, name: str) -> ResolvedSite | None:
    try:
        return site_of(spool, name)
    except UsageError:
        return None


def site_or_none(profile: str | None, partition: str | None = None) -> ResolvedSite | None:
    """The site for rules of this host. Without a name and without a profile of one's own there is none."""
    from fleetcraft.config.problems import ProfileUnknown

    try:
        return resolve_site(FleetOptions(profile=profile, partition=partition))
    except ProfileUnknown:
        if profile is not None:
            raise
        return None
