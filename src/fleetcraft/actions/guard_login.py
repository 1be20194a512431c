"""Look at the login node by a site's rules, and on demand end what Fleetcraft left running there."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from fleetcraft.actions.fleet_ask import site_or_none
from fleetcraft.config.site import LoginRules
from fleetcraft.core.clock import Clock
from fleetcraft.core.decision import Decision
from fleetcraft.core.errors import Refused
from fleetcraft.fleet.guards.census import census, processes_of
from fleetcraft.fleet.guards.login import LoginEvidence, decide_login
from fleetcraft.fleet.guards.reap import Ending, choose, end, may_reap, worker_identities
from fleetcraft.spool.host import host_name


@dataclass(frozen=True, slots=True, kw_only=True)
class LoginLook:
    """What was counted, and what the guard says to it."""

    decision: Decision
    evidence: LoginEvidence
    profile: str | None  # None: no profile says what is allowed here
    cap_processes: int | None  # where the site itself ends things


def look_at_login(profile: str | None) -> LoginLook:
    """Count and decide. Raises UsageError for a profile that is not there."""
    site = site_or_none(profile)
    rules = site.login if site is not None else LoginRules()
    evidence = census()
    return LoginLook(
        decision=decide_login(rules, evidence),
        evidence=evidence,
        profile=site.profile if site is not None else None,
        cap_processes=rules.cap_processes,
    )


def reap_login(profile: str | None, spools: Sequence[str], clock: Clock, *, grace_s: float) -> list[Ending]:
    """End what is ours, only where a profile says that this is a login node. Raises Refused, UsageError."""
    site = site_or_none(profile)
    allowed = may_reap(host_name(), site.login.hosts if site is not None else ())
    if not allowed.allowed:
        raise Refused(
            f"Nothing is ended here: {allowed.reason}.",
            hint="Name the profile of this site with --profile; its login.hosts must match this host.",
        )
    targets = choose(processes_of(os.getuid()), worker_identities(spools), os.getpid(), host_name())
    return end(targets, clock, grace_s)
