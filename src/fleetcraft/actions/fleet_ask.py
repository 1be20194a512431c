"""Ask a site what a user has and may have there, without submitting anything."""

from __future__ import annotations

from dataclasses import dataclass

from fleetcraft.actions.fleet_open import newest_spec, open_door, open_existing
from fleetcraft.actions.fleet_options import FleetOptions, resolve_site
from fleetcraft.config.site import ResolvedSite
from fleetcraft.fleet.guards.profile import with_profile
from fleetcraft.schedulers.api import JobRequest, Limits, Observation, Scheduler
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
    if profile is not None:
        site = resolve_site(FleetOptions(profile=profile, partition=partition))
        scheduler: Scheduler = open_door(site, spool.clock).scheduler
    else:
        opened = open_existing(spool, fleet)
        spec = newest_spec(opened.state())
        assert spec is not None  # noqa: S101  it was opened by it
        site, scheduler = spec.site, opened.scheduler
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


def site_or_none(profile: str | None, partition: str | None = None) -> ResolvedSite | None:
    """The site for rules of this host. Without a name and without a profile of one's own there is none."""
    from fleetcraft.config.problems import ProfileUnknown

    try:
        return resolve_site(FleetOptions(profile=profile, partition=partition))
    except ProfileUnknown:
        if profile is not None:
            raise
        return None
