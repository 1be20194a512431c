"""Verbs that may give a fleet more nodes: submit, renew, ensure, and the two jobs that a person holds for a check."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

from fleetcraft.actions.fleet_open import new_fleet, open_existing, site_of
from fleetcraft.actions.fleet_options import FleetOptions, make_spec, resolve_site, with_program
from fleetcraft.actions.login_transport import transport_for
from fleetcraft.actions.spool_choice import check_spool_place
from fleetcraft.actions.writable import access_error
from fleetcraft.core.errors import EXIT_DONE, EXIT_REFUSED, EXIT_TRY_AGAIN, OutOfReach
from fleetcraft.fleet.drain import drain
from fleetcraft.fleet.ensure import PassOptions, PassReport, ensure_loop, ensure_pass
from fleetcraft.fleet.guards import providers
from fleetcraft.fleet.guards.burn import decide_burn
from fleetcraft.fleet.guards.profile import charges_of, provider_of
from fleetcraft.fleet.handle import Fleet
from fleetcraft.fleet.launch import Launched, Patience, launch, preview
from fleetcraft.fleet.names import FleetFolder
from fleetcraft.fleet.spec import FleetSpec
from fleetcraft.fleet.submit import Draft, DryRun, Submitted, Wish, draft
from fleetcraft.schedulers.api import Retry, SubmitOutcome
from fleetcraft.spool.spool import Spool
from fleetcraft.store.files import explain
from fleetcraft.transports.api import Transport


@dataclass(frozen=True, slots=True)
class Prepared:
    """A fleet and the shape that was asked for, before anything is submitted."""

    fleet: Fleet
    spec: FleetSpec


def prepare(spool: Spool, name: str, options: FleetOptions, *, write: bool) -> Prepared:
    """Resolve everything that a person said. Raises UsageError, Refused."""
    site = resolve_site(options)
    check_spool_place(site, spool.layout.root)
    fleet = new_fleet(spool, name, site)
    return Prepared(fleet, with_program(fleet, make_spec(fleet, site, options), options, write=write))


def submit_preview(spool: Spool, name: str, options: FleetOptions) -> DryRun:
    """Everything that `submit_fleet` would do first, without doing it."""
    prepared = prepare(spool, name, options, write=False)
    return preview(prepared.fleet, prepared.spec, limits=prepared.fleet.scheduler.limits())


def ask_guards_about(spool: Spool, name: str, options: FleetOptions) -> Draft:
    """What every guard says to the job that would be submitted first. Nothing is written."""
    prepared = prepare(spool, name, options, write=False)
    wish = Wish(spec=prepared.spec, why="a question", lane=0 if prepared.spec.lanes else None)
    return draft(prepared.fleet, prepared.fleet.state(), wish, limits=prepared.fleet.scheduler.limits())


def submit_fleet(
    spool: Spool, name: str, options: FleetOptions, *, why: str, patience: Patience = lambda _seconds: False
) -> Launched:
    """Declare the shape and submit its first jobs."""
    prepared = prepare(spool, name, options, write=True)
    # Asked first: where nobody answers, this question says so sooner than one for the queue.
    limits = prepared.fleet.scheduler.limits()
    return launch(prepared.fleet, prepared.spec, why=why, limits=limits, patience=patience)


def write_problem(spool: Spool, name: str) -> OutOfReach | None:
    """Why nothing could be written on the record of this fleet: what a submission would end with. Writes nothing."""
    place = FleetFolder(spool.layout.root, name).records
    while not os.path.lexists(place):
        place = os.path.dirname(place)
    error = access_error(place)
    return None if error is None else explain(error, f"Cannot write on the record of the fleet {name} in {place}")


def one_pass(spool: Spool, name: str | None, what: PassOptions) -> PassReport:
    """One pass over an existing fleet. Raises UsageError, OutOfReach."""
    return _pass(open_existing(spool, name), what)


def passes(
    spool: Spool, name: str | None, what: PassOptions, interval_s: float, on_report: Callable[[PassReport], None]
) -> None:
    """Pass after pass, until interrupted."""
    fleet = open_existing(spool, name)
    ensure_loop(lambda: _pass(fleet, what), interval_s, on_report=on_report)


def _pass(fleet: Fleet, what: PassOptions) -> PassReport:
    transport = transport_for(site_of(fleet.spool, fleet.name))
    burned = _burn(fleet, transport)
    if burned is not None and not what.dry:
        drain(fleet, burned)
    report = ensure_pass(fleet, what, runner=transport, limits=fleet.scheduler.limits)
    if burned is not None:
        report.problems.append(f"the fleet is drained: {burned}")
    return report


def _burn(fleet: Fleet, transport: Transport) -> str | None:
    """Why a fleet with live jobs must be let go now; None when nothing says so."""
    state = fleet.state()
    spec = state.spec()
    if spec is None or state.drained or not state.live() or spec.site.balance.burn_stop is None:
        return None
    provider = provider_of(spec.site)
    if provider is None:
        return None
    decision = decide_burn(charges_of(spec.site), providers.ask(provider, transport, fleet.spool.clock))
    return None if decision.allowed else decision.reason


def exit_of(submitted: Submitted) -> int:
    """The exit code of one submission: refused, unknown or not reached, or done."""
    if submitted.ref is not None:
        return EXIT_DONE
    answer = submitted.submission
    if answer is None:
        return EXIT_TRY_AGAIN if submitted.draft.ruling.unanswered else EXIT_REFUSED
    if answer.outcome is SubmitOutcome.REJECTED:
        return EXIT_REFUSED
    if answer.outcome is SubmitOutcome.NOT_SUBMITTED and answer.retry is Retry.NEVER:
        return EXIT_REFUSED
    return EXIT_TRY_AGAIN
