"""What is known of one site for one request, as plain values: the form in which a profile leaves this room.

Nothing here needs a third-party package. `as_json` and `from_json` are exact opposites, so that a fleet can keep
the very values that it was submitted with, whatever becomes of the profile later.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerRules:
    """How the scheduler of the site is spoken to."""

    kind: str = "slurm"  # slurm, local, psij
    executor: str | None = None  # for psij: pbs, lsf, flux, slurm, local ...
    cluster: str | None = None  # where one login serves several clusters
    poll_floor_s: float = 30.0  # the least time between two questions, all processes of the user together
    submit_gap_s: float = 10.0  # the least time between two submissions
    command_timeout_s: float = 60.0
    requeue: bool = False  # may the scheduler start a job of ours anew by itself
    kill_on_invalid_dep: bool = False
    # count: so many per node are asked for; gres: the same in older words; node: they come with the node.
    gpus: str = "count"
    memory: str = "ask"  # ask: what was wanted is asked for; site: nothing is asked, the site decides
    exclusive: bool = False  # whole nodes
    signal_before_s: float = 120.0  # how long before the time limit a job is told
    options: tuple[str, ...] = ()  # one word each, added to every submission
    allow_options: tuple[str, ...] = ()  # names (`--licenses`) that a person may add to one submission


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """One partition and the shape of its nodes. None: not stated in the profile, so nothing is known of it."""

    name: str
    description: str = ""
    submit_as: str | None = None  # the scheduler's name for it, where a site is spoken to by QOS or constraint; "" none
    nodes: int | None = None
    gpus_per_node: int | None = None
    gpu_type: str | None = None
    cpus_per_node: int | None = None
    memory_per_node_bytes: int | None = None
    max_time_s: float | None = None
    min_nodes: int | None = None  # per job
    max_nodes: int | None = None  # per job
    max_nodes_per_user: int | None = None
    max_gpus_per_user: int | None = None
    max_jobs: int | None = None  # running, per user
    max_submit: int | None = None  # waiting and running, per user
    preemptible: bool = False
    su_rate: float | None = None  # units of account per node and hour
    account: str | None = None
    qos: str | None = None
    reservation: str | None = None
    constraint: str | None = None

    @property
    def scheduler_name(self) -> str | None:
        """What is passed to the scheduler as the partition; None: nothing is passed."""
        return self.name if self.submit_as is None else self.submit_as or None


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteLimits:
    """Limits of the site as a whole, below what the scheduler says of itself. None: no limit from the profile."""

    max_jobs: int | None = None
    max_submit: int | None = None
    max_nodes: int | None = None  # over all jobs
    max_gpus: int | None = None  # over all jobs
    max_nodes_per_job: int | None = None
    max_time_s: float | None = None
    max_lanes: int = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class LoginRules:
    """What one user may put on a login node. None: the site has no such rule."""

    hosts: tuple[str, ...] = ()  # host name patterns of login nodes, as in `login*`; empty: none is known
    submit_hosts: tuple[str, ...] = ()  # where submissions are allowed; empty: anywhere
    warn_processes: int | None = None
    stop_processes: int | None = None
    cap_processes: int | None = None  # where the site itself ends things; shown only
    warn_threads: int | None = None
    stop_threads: int | None = None
    warn_ssh: int | None = None
    stop_ssh: int | None = None
    warn_memory_bytes: int | None = None
    stop_memory_bytes: int | None = None
    env: Mapping[str, str] = field(default_factory=dict)  # set for what we start there (MALLOC_ARENA_MAX ...)


@dataclass(frozen=True, slots=True, kw_only=True)
class Storage:
    """Where things go. The texts keep their `~` and `$NAME`: they are expanded where the paths live."""

    scratch: str | None = None
    spool: str | None = None  # the folder under which spools of this site are made
    logs: str | None = None
    purge_days: int | None = None  # the site removes what nobody touched for so long
    keep_light: tuple[str, ...] = ()  # roots for configuration only: no spool, no heavy output


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What a job does before the worker starts, line by line, and with what the worker runs."""

    modules: tuple[str, ...] = ()  # words behind `module load`
    lines: tuple[str, ...] = ()  # shell lines, after the modules
    env: Mapping[str, str] = field(default_factory=dict)
    unset: tuple[str, ...] = ()
    python: str | None = None  # the interpreter on the nodes; None: the one that submits
    bundle: bool = False  # ship the worker side as one file instead of using an installed package


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """The image that tasks run in, where there is one."""

    runtime: str = "apptainer"
    image: str = ""
    options: tuple[str, ...] = ()
    binds: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class BalanceRules:
    """How the balance of the account is read, and where spending stops."""

    provider: str = "none"  # none, command, file, sbalance, sshare, tacc
    command: tuple[str, ...] = ()
    path: str | None = None
    pattern: str | None = None  # a regular expression with one group, the number
    unit: str = "SU"
    floor: float | None = None  # no submission may take the balance, less all that is reserved, below this
    burn_stop: float | None = None  # at or below this balance running fleets are drained too
    rates: Mapping[str, float] = field(default_factory=dict)  # per node and hour, by the scheduler's partitions
    max_age_s: float = 900.0  # an older answer is no answer
    timeout_s: float = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class NameRules:
    """What a job may be called where everybody can read it."""

    pattern: str | None = None
    forbidden: tuple[str, ...] = ()  # words, whatever their case


@dataclass(frozen=True, slots=True, kw_only=True)
class NotifyRules:
    """Whom a fleet tells of its end."""

    command: tuple[str, ...] = ()  # gets the event as JSON on its standard input
    webhook: str | None = None  # gets the same by POST
    on: tuple[str, ...] = ("drained", "done", "failed")


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedSite:
    """One site for one request: the rules of the profile, the partition chosen, and what will be asked for.

    `account` to `time_limit_s` are the overrides of the person, else the partition's, else the defaults.
    """

    profile: str
    source: str  # the file, or `shipped:NAME`
    host: str | None = None  # None: the scheduler is spoken to on this machine
    time_zone: str | None = None
    partition: Partition
    account: str | None = None
    qos: str | None = None
    reservation: str | None = None
    constraint: str | None = None
    time_limit_s: float | None = None
    scheduler: SchedulerRules = field(default_factory=SchedulerRules)
    limits: SiteLimits = field(default_factory=SiteLimits)
    login: LoginRules = field(default_factory=LoginRules)
    storage: Storage = field(default_factory=Storage)
    setup: Setup = field(default_factory=Setup)
    container: Container | None = None
    balance: BalanceRules = field(default_factory=BalanceRules)
    names: NameRules = field(default_factory=NameRules)
    notify: NotifyRules = field(default_factory=NotifyRules)

    def as_json(self) -> dict[str, Any]:
        """Plain JSON values: what a fleet keeps and what goes to a node."""
        plain: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        return plain

    @property
    def digest(self) -> str:
        """A name for exactly these values."""
        text = json.dumps(self.as_json(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()


_PARTS: dict[str, type[Any]] = {
    "partition": Partition,
    "scheduler": SchedulerRules,
    "limits": SiteLimits,
    "login": LoginRules,
    "storage": Storage,
    "setup": Setup,
    "container": Container,
    "balance": BalanceRules,
    "names": NameRules,
    "notify": NotifyRules,
}


def from_json(record: Mapping[str, Any]) -> ResolvedSite:
    """The site that `as_json` wrote. Keys of a later version are left out."""
    values = _known(ResolvedSite, record)
    for name, kind in _PARTS.items():
        if isinstance(values.get(name), Mapping):
            values[name] = build(kind, values[name])
    return ResolvedSite(**values)


def build(kind: type[Any], values: Mapping[str, Any]) -> Any:
    """One part from plain values: lists become tuples, keys that it does not have are left out."""
    return kind(
        **{name: tuple(value) if isinstance(value, list) else value for name, value in _known(kind, values).items()}
    )


def _known(kind: type[Any], values: Mapping[str, Any]) -> dict[str, Any]:
    names = {part.name for part in fields(kind)}
    return {name: value for name, value in values.items() if name in names}
