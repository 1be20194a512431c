"""Two jobs that a person asks for by hand: a node to work on, and a short proof that a site works at all."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from fleetcraft.actions.fleet_open import newest_spec, open_existing
from fleetcraft.actions.fleet_options import FleetOptions
from fleetcraft.actions.fleet_supply import Prepared, prepare
from fleetcraft.core.errors import OutOfReach, UsageError
from fleetcraft.fleet.devnode import Held, hold, hold_draft, submit_hold
from fleetcraft.fleet.handle import Fleet
from fleetcraft.fleet.look import look
from fleetcraft.fleet.smoke import SmokeResult, read_smoke, smoke_draft, submit_smoke
from fleetcraft.fleet.submit import DryRun, Submitted, dry_run
from fleetcraft.spool.spool import Spool

DEVNODE, SMOKE = "devnode", "smoke"
Wait = Callable[[float], None]


def preview_devnode(spool: Spool, name: str, options: FleetOptions) -> DryRun:
    """What `start_devnode` would submit."""
    prepared = prepare(spool, name, options, write=False)
    return dry_run(prepared.fleet, hold_draft(prepared.fleet, prepared.spec))


def start_devnode(spool: Spool, name: str, options: FleetOptions, *, why: str) -> tuple[Prepared, Submitted]:
    """Ask for the node."""
    prepared = prepare(spool, name, options, write=True)
    return prepared, submit_hold(prepared.fleet, prepared.spec, why)


def follow_devnode(
    prepared: Prepared, token: str, on_change: Callable[[Held], None], on_release: Callable[[Sequence[str]], None]
) -> Held:
    """Hold it until its job ends; whatever ends this call gives it back, and `on_release` hears what went wrong."""
    fleet = prepared.fleet
    return hold(fleet, token, on_change=on_change, on_release=on_release, poll_s=pause_s(fleet))


def preview_smoke(spool: Spool, name: str, options: FleetOptions) -> DryRun:
    """What `start_smoke` would submit."""
    prepared = prepare(spool, name, options, write=False)
    return dry_run(prepared.fleet, smoke_draft(prepared.fleet, prepared.spec))


def start_smoke(spool: Spool, name: str, options: FleetOptions) -> tuple[Prepared, Submitted]:
    """Submit the checks."""
    prepared = prepare(spool, name, options, write=True)
    return prepared, submit_smoke(prepared.fleet, prepared.spec)


def pause_s(fleet: Fleet) -> float:
    """How long to wait between two looks: what the site asks for."""
    spec = newest_spec(fleet.state())
    return max(1.0, spec.site.scheduler.poll_floor_s if spec is not None else 30.0)


def follow_smoke(fleet: Fleet, token: str, on_change: Callable[[str], None], wait: Wait = time.sleep) -> SmokeResult:
    """Wait for the end of the checks. `on_change` gets each new state of the job."""
    last = ""
    while True:
        try:
            state = fleet.state()
            look(fleet, state)
            job = fleet.state().jobs.get(token)
        except OutOfReach:
            wait(pause_s(fleet))
            continue
        word = job.state.value if job is not None and job.state is not None else "submitted"
        if word != last:
            on_change(word)
        last = word
        if job is None or not job.is_live:
            return read_smoke(fleet, token)
        wait(pause_s(fleet))


def read_checks(spool: Spool, name: str | None, job: str) -> SmokeResult:
    """The verdicts of a smoke job so far. Raises UsageError."""
    fleet = open_existing(spool, name)
    state = fleet.state()
    look(fleet, state)
    state = fleet.state()
    found = state.jobs.get(job) or state.by_ref(job)
    if found is None:
        raise UsageError(f"The fleet {fleet.name} has no job {job!r}.", hint="See `fleetcraft fleet status --all`.")
    return read_smoke(fleet, found.token)
