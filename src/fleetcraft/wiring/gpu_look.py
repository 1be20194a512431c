"""One look at all GPUs after another: files each time, the scheduler no more often than its pace allows.

Whoever looks changes nothing: jobs, tasks and files stay as they are.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fleetcraft.core.clock import Clock, SystemClock
from fleetcraft.core.errors import FleetcraftError, UsageError
from fleetcraft.readmodel.fleet_gpus import NodeView
from fleetcraft.readmodel.gpu_now import Signs, is_same_job, read_now
from fleetcraft.readmodel.gpu_picture import GpusNow
from fleetcraft.readmodel.gpu_queue import QueueNow, Served, read_queue
from fleetcraft.readmodel.gpu_sources import root_of
from fleetcraft.usage.tails import HostTail, Now, Tails, server_now
from fleetcraft.usage.thresholds import Thresholds

if TYPE_CHECKING:
    from fleetcraft.fleet.state import FleetState
    from fleetcraft.schedulers.api import Observation, Scheduler
    from fleetcraft.spool.reading import SpoolFold
    from fleetcraft.spool.spool import Spool

_REACH_S = 90.0
# A node that is down stays so for minutes.
_DOWN_AGAIN_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LookOptions:
    """What is looked at. Without a spool only the telemetry of `paths` is."""

    paths: Sequence[str] = ()
    fleet: str | None = None
    job: str | None = None
    profile: str | None = None
    ask: bool = True
    heartbeat: str = ""  # path of a file that the application touches; {job} and {host} are filled in
    thresholds: Thresholds = field(default_factory=Thresholds)
    deep_s: float = 0.0  # how far back it matters how long a GPU was idle


@dataclass(slots=True)
class Looker:
    """Keeps between looks what did not change."""

    options: LookOptions
    spool: Spool | None = None
    clock: Clock = field(default_factory=SystemClock)
    states: Mapping[str, FleetState] = field(default_factory=dict)  # of the fleets, as of the last look
    hosts: tuple[str, ...] = ()
    running_tasks: dict[str, int] = field(default_factory=dict)  # by the job that their worker names
    _tails: Tails | None = None
    _reader: SpoolFold | None = None
    _ask: Callable[[], Observation] | None = None
    mine: Observation | None = None  # the scheduler's last answer
    _scheduler: Scheduler | None = None
    _down: Mapping[str, str] = field(default_factory=dict)  # nodes that the scheduler calls down, of the last question
    _next_ask_s: float = 0.0
    _next_down_s: float = 0.0
    _wait_s: float | None = None
    _problems: list[str] = field(default_factory=list)
    _server_utc_s: float = 0.0

    def roots(self) -> list[str]:
        """The telemetry folders. Raises UsageError for a path that is none."""
        roots = []
        for path in self.options.paths:
            if not os.path.isdir(path):
                raise UsageError(
                    f"{path} is not a telemetry folder.", hint="Name <spool>/telemetry, or a folder of --to."
                )
            roots.append(root_of(path) if os.path.exists(os.path.join(path, "spool.json")) else path)
        if self.spool is not None and not roots:
            roots.append(root_of(self.spool.layout.root))
        return roots

    def look(self) -> GpusNow:
        """Everything as it is now. Raises UsageError, OutOfReach, OSError."""
        thresholds = self.options.thresholds
        self._problems = []
        tails, now = self._read_tails()
        served: list[Served] = []
        queue: QueueNow | None = None
        nodes: list[NodeView] = []
        if self.spool is not None:
            self._check_fleet(self.spool)
            served, queue = self._read_spool()
            nodes = self._read_nodes()

        def join(down: Mapping[str, str]) -> GpusNow:
            return read_now(
                tails, thresholds, at_utc=self.clock.utc(), clock=now.source, served=served, nodes=nodes, queue=queue,
                signs=self._signs(now), deep_s=self.options.deep_s, down=down,
                scheduler_answered=None if self.mine is None else self.mine.answered,
                scheduler_age_s=None if self.mine is None else max(0.0, round(self.clock.utc() - self.mine.at_utc, 1)),
                problems=self._problems,
            )  # fmt: skip

        picture = join({})
        down = self._ask_for_silent([host.host for host in picture.hosts if not host.reports])
        if down:
            picture = join(down)
        self.hosts = tuple(host.host for host in picture.hosts)
        return narrowed(picture, self.options, self._fleet_by_job())

    def _check_fleet(self, spool: Spool) -> None:
        from fleetcraft.fleet.records import list_fleets

        only = self.options.fleet
        if only is not None and only not in list_fleets(spool.files, spool.layout.root):
            raise UsageError(f"There is no fleet {only!r} in {spool.layout.root}.", hint="See `fleetcraft fleet list`.")

    def _fleet_by_job(self) -> dict[str, str]:
        from fleetcraft.fleet.tail import job_ids

        jobs = [(name, job) for name, state in self.states.items() for job in state.jobs.values()]
        return {one: name for name, job in jobs for one in job_ids(job)}

    def _ask_for_silent(self, hosts: Sequence[str]) -> Mapping[str, str]:
        """Which of the silent hosts are down by the scheduler's word; asked only while some are silent."""
        ask = getattr(self._scheduler, "nodes_down", None)
        if not hosts or ask is None or not self.options.ask:
            self._down = {}
        elif self.clock.mono() >= self._next_down_s:
            self._next_down_s = self.clock.mono() + _DOWN_AGAIN_S
            # The names that a scheduler knows have no domain.
            found = ask(sorted({host.partition(".")[0] for host in hosts}))
            self._down = {} if found is None else found
        return self._down

    def _read_tails(self) -> tuple[dict[str, HostTail], Now]:
        thresholds = self.options.thresholds
        if self._tails is None:
            wanted_s = max(thresholds.window_s, thresholds.grace_s, self.options.deep_s)
            self._tails = Tails(wanted_s + _REACH_S)
        found: dict[str, HostTail] = {}
        now = Now(utc_s=self.clock.utc(), source="local_clock")
        for root in self.roots():
            now = server_now(root)
            for host, tail in self._tails.read(root, now).items():
                known = found.get(host)
                if known is None or _is_newer(tail, known):
                    found[host] = tail
        return found, now

    def _read_spool(self) -> tuple[list[Served], QueueNow]:
        from fleetcraft.readmodel.picture import take_picture
        from fleetcraft.spool.reading import SpoolFold

        assert self.spool is not None  # noqa: S101  the caller looked
        if self._reader is None:
            self._reader = SpoolFold(self.spool)
        picture = take_picture(self.spool, self._reader)
        beats = {life: reading.heartbeat or {} for life, reading in self._reader.lives.items()}
        served = [Served(worker=worker, beat=beats.get(worker.life, {})) for worker in picture.workers]
        self.running_tasks = {}
        for worker in picture.workers:
            if worker.is_running and worker.job_id:
                self.running_tasks[worker.job_id] = self.running_tasks.get(worker.job_id, 0) + worker.running
        return served, read_queue(picture, [one for one in served if one.worker.is_running])

    def _read_nodes(self) -> list[NodeView]:
        from fleetcraft.actions.fleet_look import read_states
        from fleetcraft.readmodel.fleet_snapshot import take_snapshot
        from fleetcraft.schedulers.api import Observation

        assert self.spool is not None  # noqa: S101  the caller looked
        assert self._reader is not None  # noqa: S101  the spool was read just before
        states = self.states = read_states(self.spool)
        if not states and self.options.profile is None:
            return []  # nothing was ever submitted from here, so there is nobody to ask
        if self.options.ask:
            self._ask_when_due()
        mine = self.mine or Observation(at_utc=self.clock.utc(), jobs={}, answered=False)
        view = take_snapshot(mine, None, states, self._reader, self.clock.utc())
        if self.options.ask:
            self._problems += view.problems
        return list(view.nodes)

    def _ask_when_due(self) -> None:
        """Ask for all jobs, through the answer that all processes of the user share, and ever less often."""
        from fleetcraft.actions.fleet_ask import open_site
        from fleetcraft.schedulers.polling import Pace

        assert self.spool is not None  # noqa: S101  the caller looked
        begun_s = self.clock.mono()
        if self.mine is not None and begun_s < self._next_ask_s:
            return
        try:
            if self._ask is None:
                scheduler = open_site(self.spool, self.options.fleet, self.options.profile).scheduler
                self._ask, self._scheduler = getattr(scheduler, "mine_shared", scheduler.mine), scheduler
            before = self.mine
            self.mine = self._ask()
        except FleetcraftError as error:
            self._problems.append(f"the scheduler was not asked: {error}")
            self._next_ask_s = begun_s + Pace().idle_s
            return
        took_s = self.clock.mono() - begun_s
        changed = before is None or _states(before) != _states(self.mine)
        self._wait_s = Pace().next_s(self._wait_s, has_changed=changed, took_s=took_s)
        self._next_ask_s = self.clock.mono() + self._wait_s

    def _signs(self, now: Now) -> Signs | None:
        self._server_utc_s = now.utc_s
        return self._sign_age_s if self.options.heartbeat else None

    def _sign_age_s(self, host: str, job: str) -> float | None:
        path = self.options.heartbeat.replace("{host}", host).replace("{job}", job)
        try:
            return max(0.0, self._server_utc_s - os.stat(path).st_mtime)
        except OSError:
            return None

    def heartbeat_age_s(self, jobs: Iterable[str]) -> float | None:
        """The age of the newest sign of life of an application, by any of the names of its job, on any host."""
        if not self.options.heartbeat:
            return None
        hosts = self.hosts or ("",)
        ages = [age for job in jobs for host in hosts if (age := self._sign_age_s(host, job)) is not None]
        return min(ages, default=None)


def _states(seen: Observation) -> dict[str, str]:
    return {ref: job.state.value for ref, job in seen.jobs.items()}


def _is_newer(tail: HostTail, known: HostTail) -> bool:
    return known.age_s is None or (tail.age_s is not None and tail.age_s < known.age_s)


def narrowed(picture: GpusNow, options: LookOptions, fleets: Mapping[str, str] | None = None) -> GpusNow:
    """Only the GPUs of the job and fleet that were asked for. `fleets` names the fleet of a job.

    A GPU that no sample tells of belongs to the fleet of its job, and a host that nothing tells of to its jobs.
    """
    if options.fleet is None and options.job is None:
        return picture
    from dataclasses import replace

    known = fleets or {}

    def wanted(job: str, fleet: str) -> bool:
        fleet = fleet or known.get(job, "")
        return options.fleet in (None, fleet) and (options.job is None or is_same_job(options.job, job))

    hosts = []
    for host in picture.hosts:
        kept = tuple(gpu for gpu in host.gpus if wanted(gpu.job, gpu.fleet))
        if kept or (not host.gpus and any(wanted(job, "") for job in host.jobs)):
            hosts.append(replace(host, gpus=kept, reports=any(gpu.reports for gpu in kept)))
    return replace(picture, hosts=tuple(hosts))
