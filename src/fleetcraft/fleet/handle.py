"""One fleet opened for use: its records, its scheduler, its guards, and the times that a deployment may choose."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from fleetcraft.core.errors import Refused
from fleetcraft.fleet.gate import Guard
from fleetcraft.fleet.names import FleetFolder, MakeToken, check_fleet_name, make_token
from fleetcraft.fleet.records import RecordLog, no_such_fleet
from fleetcraft.fleet.state import FleetState, fold
from fleetcraft.schedulers.api import JobRef, Scheduler
from fleetcraft.spool.spool import Spool

MEND = (
    "Put the named file back from a backup or a snapshot. Without one: `fleetcraft fleet cancel` ends its jobs, "
    "and a fleet of another name goes on."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetPolicy:
    """How long is waited before something counts. Tests and fast sites choose shorter ones."""

    settle_s: float = 30.0  # so long a submission may be under way in another process
    withdraw_after_s: float = 180.0  # so long a lost submission may still appear before it is given up
    late_s: float = 3600.0  # so long a withdrawn submission is still looked for
    lost_after_s: float = 300.0  # so long no source may know a job before it counts as lost
    revive_s: float = 600.0  # so long a job that the infrastructure ended may come back by a requeue
    attempts: int = 8  # so often a decision is made anew when another pass was faster
    failures: int = 3  # so many jobs in a row that fail at their start stop the supply
    quick_s: float = 120.0  # a job that failed within this time failed at its start
    notice_s: float = 7.0  # so long a worker may need to see that it was told to stop
    by_hand_s: float = 1800.0  # so long nothing replaces a job that somebody else cancelled


@dataclass(slots=True)
class Fleet:
    """A fleet of a spool. Opening it changes nothing; `create` makes its folders."""

    spool: Spool
    name: str
    scheduler: Scheduler
    guards: Sequence[Guard] = ()
    policy: FleetPolicy = field(default_factory=FleetPolicy)
    make_token: MakeToken = make_token
    log: RecordLog = field(init=False)

    def __post_init__(self) -> None:
        check_fleet_name(self.name)
        self.log = RecordLog(self.spool.files, self.spool.clock, FleetFolder(self.spool.layout.root, self.name))

    @property
    def folder(self) -> FleetFolder:
        """Its paths."""
        return self.log.folder

    def must_exist(self) -> None:
        """Raise UsageError when it was never made."""
        if not self.log.exists():
            raise no_such_fleet(self.name, self.spool.layout.root)

    def state(self) -> FleetState:
        """Read what is new and fold everything. Raises OutOfReach."""
        self.log.refresh()
        state = fold(self.log.records)
        # Numbers of damaged records count as read: they are named, and a decision stands behind them.
        state.last = self.log.last
        state.problems[:0] = self.log.problems
        return state

    def now(self) -> float:
        """The time of records."""
        return self.spool.clock.utc()

    def launch(self) -> Callable[[Sequence[str]], Sequence[str]]:
        """How a script of this scheduler starts words on every node of its job."""
        return lambda words: self.scheduler.command(list(words))

    def must_be_whole(self) -> None:
        """Raise Refused while a record is damaged: what it said may be a job that runs, or a cap."""
        said = self.state().damage
        if said:
            raise Refused(f"Nothing is submitted for the fleet {self.name}: {said}.", hint=MEND)

    def cancel_refs(
        self, refs: Sequence[JobRef], signal: str | None = None, *, only_waiting: bool = False
    ) -> list[str]:
        """Ask for their end (or send a signal); returns what was refused, in words."""
        if not refs:
            return []
        if only_waiting:
            changes = self.scheduler.cancel(list(refs), only_waiting=True)
        else:
            changes = self.scheduler.cancel(list(refs), signal=signal)
        return [f"{change.ref}: {change.text or 'not asked'}" for change in changes if not change.asked]

    def mark_withdrawn(self, token: str) -> None:
        """A job with this token that starts from now on runs nothing. Raises OSError."""
        files, job = self.spool.files, self.folder.job(token)
        if not files.exists(job.root):
            files.make_folder(job.root)
        try:
            files.create(job.withdrawn)
        except FileExistsError:
            return
        files.sync_folder(job.root)


def open_fleet(
    spool: Spool, name: str, scheduler: Scheduler, guards: Sequence[Guard] = (), policy: FleetPolicy | None = None
) -> Fleet:
    """An existing fleet. Raises UsageError."""
    fleet = Fleet(spool, name, scheduler, guards, policy or FleetPolicy())
    fleet.must_exist()
    return fleet


def place_program(fleet: Fleet, data: bytes, digest: str) -> str:
    """Keep a worker program as one file of the fleet, named by its digest, and return its path.

    It is never replaced, so that a running fleet reads one version only. Raises OSError.
    """
    path = os.path.join(fleet.folder.programs, f"fleetcraft-{digest[:16]}.pyz")
    if not fleet.spool.files.exists(path):
        from fleetcraft.store.files import publish_file

        publish_file(fleet.spool.files, path, data)
    return path
