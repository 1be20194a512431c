"""Verbs that may give a fleet more nodes: submit, renew, ensure, and the two jobs that a person holds for a check."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fleetcraft.actions.fleet_open import new_fleet, open_existing
from fleetcraft.actions.fleet_options import FleetOptions, make_spec, resolve_site, with_program
from fleetcraft.core.errors import EXIT_DONE, EXIT_REFUSED, EXIT_TRY_AGAIN
from fleetcraft.fleet.ensure import PassOptions, PassReport, ensure_loop, ensure_pass
from fleetcraft.fleet.handle import Fleet
from fleetcraft.fleet.launch import Launched, launch, preview
from fleetcraft.fleet.spec import FleetSpec
from fleetcraft.fleet.submit import Draft, DryRun, Submitted, Wish, draft
from fleetcraft.schedulers.api import Retry, SubmitOutcome
from fleetcraft.spool.spool import Spool
from fleetcraft.transports.local import LocalTransport


@dataclass(frozen=True, slots=True)
class Prepared:
    """A fleet and the shape that was asked for, before anything is submitted."""

    fleet: Fleet
    spec: FleetSpec


def prepare(spool: Spool, name: str, options: FleetOptions, *, write: bool) -> Prepared:
    """Resolve everything that a person said. Raises UsageError, Refused."""
    site = resolve_site(options)
    fleet = new_fleet(spool, name, site)
    return Prepared(fleet, with_program(fleet, make_spec(fleet, site, options), options, write=write))


def submit_preview(spool: Spool, name: str, options: FleetOptions) -> DryRun:
    """Everything that `submit_fleet` would do first, without doing it."""
    prepared = prepare(spool, name, options, write=False)
    return preview(prepared.fleet, prepared.spec)


def ask_guards_about(spool: Spool, name: str, options: FleetOptions) -> Draft:
    """What every guard says to the job that would be submitted first. Nothing is written."""
    prepared = prepare(spool, name, options, write=False)
    wish = Wish(spec=prepared.spec, why="a question", lane=0 if prepared.spec.lanes else None)
    return draft(prepared.fleet, prepared.fleet.state(), wish)


def submit_fleet(spool: Spool, name: str, options: FleetOptions, *, why: str) -> Launched:
    """Declare the shape and submit its first jobs."""
    prepared = prepare(spool, name, options, write=True)
    return launch(prepared.fleet, prepared.spec, why=why)


def one_pass(spool: Spool, name: str | None, what: PassOptions) -> PassReport:
    """One pass over an existing fleet. Raises UsageError, OutOfReach."""
    fleet = open_existing(spool, name)
    return ensure_pass(fleet, what, runner=LocalTransport(), limits=fleet.scheduler.limits)


def passes(
    spool: Spool, name: str | None, what: PassOptions, interval_s: float, on_report: Callable[[PassReport], None]
) -> None:
    """Pass after pass, until interrupted."""
    fleet = open_existing(spool, name)
    ensure_loop(
        lambda: ensure_pass(fleet, what, runner=LocalTransport(), limits=fleet.scheduler.limits),
        interval_s,
        on_report=on_report,
    )


def exit_of(submitted: Submitted) -> int:
    """The exit code of one submission: refused, unknown or not reached, or done."""
    if submitted.ref is not None:
        return EXIT_DONE
    answer = submitted.submission
    if answer is None or answer.outcome is SubmitOutcome.REJECTED:
        return EXIT_REFUSED
    if answer.outcome is SubmitOutcome.NOT_SUBMITTED and answer.retry is Retry.NEVER:
        return EXIT_REFUSED
    return EXIT_TRY_AGAIN
