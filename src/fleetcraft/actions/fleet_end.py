"""Verbs that end something of a fleet, or open a door into it: drain, cancel, signal, shell."""

from __future__ import annotations

from collections.abc import Sequence

from fleetcraft.actions.fleet_open import open_existing
from fleetcraft.core.errors import EXIT_DONE, EXIT_TRY_AGAIN
from fleetcraft.fleet.drain import EndReport, cancel, cancel_step, drain, resume
from fleetcraft.fleet.records import list_fleets
from fleetcraft.fleet.shell import ShellTarget, shell_target
from fleetcraft.spool.spool import Spool


def drain_fleet(spool: Spool, name: str | None, *, why: str) -> tuple[str, EndReport]:
    """Nothing new; waiting jobs go back, workers leave when what they run has ended."""
    fleet = open_existing(spool, name)
    return fleet.name, drain(fleet, why)


def resume_fleet(spool: Spool, name: str | None, *, why: str) -> str:
    """Take a drain back."""
    fleet = open_existing(spool, name)
    resume(fleet, why)
    return fleet.name


def cancel_fleet(
    spool: Spool, name: str | None, jobs: Sequence[str], *, why: str, finish_s: float, save_s: float
) -> tuple[str, EndReport]:
    """Work goes back first, then the jobs end."""
    fleet = open_existing(spool, name)
    return fleet.name, cancel(fleet, jobs or None, why=why, finish_s=finish_s, save_s=save_s)


def signal_fleet(spool: Spool, name: str | None, jobs: Sequence[str], *, signal: str | None) -> tuple[str, EndReport]:
    """Only the workers are told, or every process by a signal; the jobs are not cancelled."""
    fleet = open_existing(spool, name)
    return fleet.name, cancel_step(fleet, jobs or None, signal=signal)


def find_shell(spool: Spool, target: str, *, node: str | None, shell: str, pty: bool = True) -> ShellTarget:
    """The command that opens a shell beside a task or in a job of any fleet of the spool. Raises UsageError."""
    fleets = [open_existing(spool, name) for name in list_fleets(spool.files, spool.layout.root)]
    return shell_target(fleets, target, node=node, shell=shell, pty=pty)


def exit_of_end(report: EndReport) -> int:
    """75 where the scheduler did not take a cancel: the same command may be run again."""
    return EXIT_TRY_AGAIN if report.problems else EXIT_DONE
