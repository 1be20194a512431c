"""What a fleet asks for: one declared shape of job with its site, frozen, and the same after a round trip through JSON.

The site is kept whole, as it was resolved at the submission, so a later edit of the profile changes no running fleet.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from fleetcraft.config.site import ResolvedSite
from fleetcraft.config.site import from_json as site_from_json
from fleetcraft.core.errors import UsageError
from fleetcraft.fleet.names import check_fleet_name

MAX_LANES = 4
MAIN = "main"
DEVNODE, SMOKE_CHECK = "devnode", "smoke"  # shapes that no pass grows or renews
DEFAULT_TIME_LIMIT_S = 3600.0
DEFAULT_IDLE_EXIT_S = 300.0
DEFAULT_TASK_S = 600.0  # assumed while nothing was measured, and said so
DEFAULT_NOTICE_S = 120.0
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SHAPE = re.compile(r"[a-z0-9][a-z0-9-]{0,30}")


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerChoices:
    """What the worker on each node is told beyond spool, idle exit and deadline."""

    cpus: int | None = None  # None: all that the node gives to the job
    gpus: str = "auto"
    drain_before_s: float | None = None  # how long before the deadline the drain begins; None: as the site signals
    lease_s: float | None = None
    pass_env: tuple[str, ...] = ()
    telemetry: str | None = None  # on, off, or how often GPUs are measured; None: on


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetSpec:
    """One shape of job of one fleet. Raises UsageError when a value cannot be.

    A fleet may declare several shapes by name; each lane of renewal and each job belongs to exactly one.
    """

    fleet: str
    site: ResolvedSite
    shape: str = MAIN
    nodes: int = 1  # of one job, at most
    gpus_per_node: int = 0  # what a node has for us, asked for or not
    cpus_per_node: int | None = None
    memory_bytes: int | None = None  # per node; 0: all of it
    time_limit_s: float = DEFAULT_TIME_LIMIT_S
    lanes: int = 0  # sequences of successors that are kept up; 0: none
    min_nodes: int = 0  # kept up even without work
    max_nodes: int | None = None  # of all live jobs of the fleet; None: lanes (or one) times nodes
    idle_exit_s: float | None = DEFAULT_IDLE_EXIT_S
    gpu_hour_cap: float | None = None  # of the fleet, for ever
    node_hour_cap: float | None = None  # the same for nodes without GPUs
    task_s: float = DEFAULT_TASK_S
    finish_within_s: float | None = None  # how soon the backlog should be done; None: as long as jobs last
    renew_before_s: float | None = None  # how long before its end a job gets its successor; None: when it runs
    renew_by: str = "after"  # after: a successor waits for the end of its job; begin: for the time of that end
    exclude: tuple[str, ...] = ()
    nodelist: tuple[str, ...] = ()
    options: tuple[str, ...] = ()  # one word each, already checked against the profile
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: str | None = None
    umask: str = "077"
    program: tuple[str, ...] = ("python3", "-m", "fleetcraft")
    # How long before its end a job is told. One time for both ways: the scheduler's signal and the worker's deadline.
    signal_before_s: float = DEFAULT_NOTICE_S  # 0: the scheduler sends no signal
    job_name: str | None = None  # None: the fleet's name
    worker: WorkerChoices = field(default_factory=WorkerChoices)

    def __post_init__(self) -> None:
        check_fleet_name(self.fleet)
        if not _SHAPE.fullmatch(self.shape):
            raise UsageError(f"{self.shape!r} is no name for a shape.", hint="Use lower-case letters, digits, dashes.")
        self._check_counts()
        self._check_times()
        if not re.fullmatch(r"0?[0-7]{3}", self.umask):
            raise UsageError(f"The umask {self.umask!r} is not an octal number such as 077.")
        if not self.program:
            raise UsageError("There is no program for the workers.")
        for name in (*self.env, *self.site.setup.env, *self.site.setup.unset, *self.worker.pass_env):
            if not _VARIABLE.fullmatch(name):
                raise UsageError(f"{name!r} is not a valid variable name.")

    def _check_counts(self) -> None:
        _at_least("nodes", self.nodes, 1)
        _at_least("gpus per node", self.gpus_per_node, 0)
        _at_least("min nodes", self.min_nodes, 0)
        if self.cpus_per_node is not None:
            _at_least("cpus per node", self.cpus_per_node, 1)
        if self.memory_bytes is not None:
            _at_least("memory", self.memory_bytes, 0)
        if not 0 <= self.lanes <= self.max_lanes:
            raise UsageError(f"{self.lanes} lanes are asked for; this site allows 0 to {self.max_lanes}.")
        if self.max_nodes is not None and self.max_nodes < max(1, self.min_nodes):
            raise UsageError(f"At most {self.max_nodes} nodes is less than at least {max(1, self.min_nodes)}.")

    def _check_times(self) -> None:
        positive = {
            "The time limit": self.time_limit_s,
            "The assumed time of a task": self.task_s,
            "The time to finish within": self.finish_within_s,
            "The time to renew before": self.renew_before_s,
            "The GPU-hour cap": self.gpu_hour_cap,
            "The node-hour cap": self.node_hour_cap,
        }
        for notice_s in (self.signal_before_s, self.worker.drain_before_s):
            if notice_s is not None and not (math.isfinite(notice_s) and notice_s >= 0):
                raise UsageError(f"{notice_s!r} is no time for which a job can be told of its end.")
        for what, value in positive.items():
            if value is not None and not (math.isfinite(value) and value > 0):
                raise UsageError(f"{what} is {value!r}; it must be above zero.")
        if self.renew_by not in ("after", "begin"):
            raise UsageError(f"Renewal by {self.renew_by!r} must be after or begin.")
        if self.idle_exit_s is not None and not (math.isfinite(self.idle_exit_s) and self.idle_exit_s >= 0):
            raise UsageError(f"The idle exit {self.idle_exit_s!r} is not a time of zero or more seconds.")

    @property
    def max_lanes(self) -> int:
        """How many lanes the site allows, never more than the project does."""
        return min(MAX_LANES, self.site.limits.max_lanes)

    @property
    def most_nodes(self) -> int:
        """How many nodes all live jobs may have together."""
        return self.max_nodes if self.max_nodes is not None else max(1, self.lanes) * self.nodes

    @property
    def gpus(self) -> int:
        """GPUs of one whole job."""
        return self.nodes * self.gpus_per_node

    @property
    def serves_work(self) -> bool:
        """True when its jobs run workers: a held node and a smoke check have shapes of their own."""
        return self.shape not in (DEVNODE, SMOKE_CHECK)

    @property
    def name(self) -> str:
        """What people see in the queue, before the token."""
        return self.job_name or self.fleet

    @property
    def preemptible(self) -> bool:
        """True where the site may take nodes away at any time."""
        return self.site.partition.preemptible

    def drain_before_s(self) -> float:
        """How long before the deadline the drain begins: never more than a quarter of a short job."""
        said = self.worker.drain_before_s
        notice_s = (self.signal_before_s or DEFAULT_NOTICE_S) if said is None else said
        return min(notice_s, self.time_limit_s / 4)

    def margin_s(self) -> float:
        """How long before the time limit everything must be over."""
        return min(30.0, self.time_limit_s / 20)

    def node_hours(self, nodes: int | None = None) -> float:
        """Node-hours of one job that runs to its time limit."""
        return (self.nodes if nodes is None else nodes) * self.time_limit_s / 3600

    def gpu_hours(self, nodes: int | None = None) -> float:
        """GPU-hours of one job that runs to its time limit."""
        return self.node_hours(nodes) * self.gpus_per_node

    def units(self, nodes: int | None = None) -> float | None:
        """Units of account (SU) of one job that runs to its time limit; None where the site names no rate."""
        rate = self.site.partition.su_rate
        return None if rate is None else self.node_hours(nodes) * rate

    def with_nodes(self, nodes: int) -> FleetSpec:
        """The same with another width."""
        return self if nodes == self.nodes else replace(self, nodes=nodes)

    def as_json(self) -> dict[str, Any]:
        """Plain values; `from_json` is the exact opposite."""
        plain: dict[str, Any] = {}
        for part in fields(self):
            value = getattr(self, part.name)
            if part.name == "site":
                plain["site"] = self.site.as_json()
            elif part.name == "worker":
                plain["worker"] = {one.name: _plain(getattr(value, one.name)) for one in fields(value)}
            else:
                plain[part.name] = _plain(value)
        return plain

    @property
    def digest(self) -> str:
        """A name for exactly these values."""
        text = json.dumps(self.as_json(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def from_json(data: Mapping[str, Any]) -> FleetSpec:
    """Read what `as_json` wrote; keys of a later version are left out. Raises UsageError, KeyError, TypeError."""
    known = {part.name for part in fields(FleetSpec)}
    values = {name: _frozen(value) for name, value in data.items() if name in known}
    values["site"] = site_from_json(data["site"])
    if "worker" in data:
        choices = {part.name for part in fields(WorkerChoices)}
        values["worker"] = WorkerChoices(
            **{name: _frozen(value) for name, value in data["worker"].items() if name in choices}
        )
    return FleetSpec(**values)


def spec_for(fleet: str, site: ResolvedSite, **options: Any) -> FleetSpec:
    """A spec with what the site says of its nodes where the options say nothing."""
    partition = site.partition
    options = {name: value for name, value in options.items() if value is not None}
    options.setdefault("gpus_per_node", partition.gpus_per_node or 0)
    options.setdefault("cpus_per_node", partition.cpus_per_node)
    options.setdefault("time_limit_s", site.time_limit_s or DEFAULT_TIME_LIMIT_S)
    options.setdefault("signal_before_s", site.scheduler.signal_before_s)
    if "program" not in options and site.setup.python:
        options["program"] = (site.setup.python, "-m", "fleetcraft")
    return FleetSpec(fleet=fleet, site=site, **options)


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return list(value)
    return dict(value) if isinstance(value, Mapping) else value


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _at_least(what: str, value: int, least: int) -> None:
    if isinstance(value, bool) or value < least or value != int(value):
        raise UsageError(f"{what} is {value!r}; it must be a whole number of {least} or more.")
