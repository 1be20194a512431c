"""The TOML file of a site profile as pydantic models: which tables and keys there are, and what each may hold.

Only types and ranges of single values stand here; what values must hold together is in `check`. A field is called
as in `site`, with its unit; the alias is the key as a person writes it.
"""

from __future__ import annotations

import math
import re
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StrictBool

from fleetcraft.core.errors import UsageError
from fleetcraft.core.quantities import parse_duration_s, parse_size_bytes

FORMAT = 1
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+@:/-]{0,199}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_TIME = 'takes seconds, or a text: "90s", "20m", "1h30m", "12:00:00", "1-12:00:00"'
_SIZE = 'takes bytes, or a text: "512M", "200G"'
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")


def _duration(value: object) -> float:
    if not isinstance(value, (str, int, float)) or isinstance(value, bool):
        raise ValueError(_TIME)  # noqa: TRY004  pydantic's way
    try:
        return parse_duration_s(value, "it")
    except UsageError as error:
        raise ValueError(_TIME) from error


def _size(value: object) -> int:
    if not isinstance(value, (str, int)) or isinstance(value, bool):
        raise ValueError(_SIZE)  # noqa: TRY004  pydantic's way
    try:
        return parse_size_bytes(value, "it")
    except UsageError as error:
        raise ValueError(_SIZE) from error


def _text(value: object) -> str:
    if not isinstance(value, str) or not value.strip() or _CONTROL.search(value):
        raise ValueError("takes one line of text in quotes")
    return value


def _name(value: object) -> str:
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        raise ValueError("takes one word of letters, digits and _ . + @ : / -")
    return value


def _word(value: object) -> str:
    if not isinstance(value, str) or not value or _CONTROL.search(value) or value != value.strip():
        raise ValueError("takes one word in quotes")
    return value


def _variable(value: object) -> str:
    if not isinstance(value, str) or not _VARIABLE.fullmatch(value):
        raise ValueError("is not a name of an environment variable (letters, digits, _)")
    return value


def _value(value: object) -> str:
    if not isinstance(value, str) or _CONTROL.search(value):
        raise ValueError("takes a text in quotes")
    return value


def _finite(value: object) -> float:
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        raise ValueError("takes a number")  # noqa: TRY004  pydantic's way
    # A whole number may be too large for a float.
    number = float(value) if abs(value) < 10**18 else math.inf
    if not math.isfinite(number):
        raise ValueError("takes a number")
    return number


def _listed(value: object) -> object:
    if not isinstance(value, list):
        raise ValueError('takes a list: ["one", "two"]')  # noqa: TRY004  pydantic's way
    return tuple(value)


Duration = Annotated[float, BeforeValidator(_duration)]
Size = Annotated[int, BeforeValidator(_size)]
Text = Annotated[str, BeforeValidator(_text)]
Name = Annotated[str, BeforeValidator(_name)]
Number = Annotated[float, BeforeValidator(_finite)]
Count = Annotated[int, Field(strict=True, ge=0)]
Positive = Annotated[int, Field(strict=True, ge=1)]
Words = Annotated[tuple[Annotated[str, BeforeValidator(_word)], ...], BeforeValidator(_listed)]
Lines = Annotated[tuple[Text, ...], BeforeValidator(_listed)]
Names = Annotated[tuple[Name, ...], BeforeValidator(_listed)]
Variables = Annotated[tuple[Annotated[str, BeforeValidator(_variable)], ...], BeforeValidator(_listed)]
Env = dict[Annotated[str, BeforeValidator(_variable)], Annotated[str, BeforeValidator(_value)]]


class Table(BaseModel):
    """One table of the file: nothing in it may be unknown, and nothing changes after it was read."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    def values(self) -> dict[str, Any]:
        """By the names of `site`, only what the file states."""
        return self.model_dump(exclude_unset=True)


class SchedulerTable(Table):
    """See `site.SchedulerRules`."""

    kind: Literal["slurm", "local", "psij"] = "slurm"
    executor: Name | None = None
    cluster: Name | None = None
    poll_floor_s: Duration = Field(default=30.0, alias="poll_floor")
    submit_gap_s: Duration = Field(default=10.0, alias="submit_gap")
    command_timeout_s: Annotated[Duration, Field(gt=0)] = Field(default=60.0, alias="command_timeout")
    requeue: StrictBool = False
    kill_on_invalid_dep: StrictBool = False
    gpus: Literal["count", "gres", "node"] = "count"
    memory: Literal["ask", "site"] = "ask"
    exclusive: StrictBool = False
    signal_before_s: Annotated[Duration, Field(ge=1)] = Field(default=120.0, alias="signal_before")
    options: Words = ()
    allow_options: Words = ()


class DefaultsTable(Table):
    """What is asked for when neither the person nor the partition says otherwise."""

    partition: Name | None = None
    account: Name | None = None
    qos: Name | None = None
    reservation: Name | None = None
    constraint: Text | None = None
    time_limit_s: Annotated[Duration, Field(gt=0)] | None = Field(default=None, alias="time")


class PartitionTable(Table):
    """See `site.Partition`."""

    description: Text | None = None
    submit_as: Annotated[str, BeforeValidator(_value)] | None = None
    nodes: Positive | None = None
    gpus_per_node: Count | None = None
    gpu_type: Name | None = None
    cpus_per_node: Positive | None = None
    memory_per_node_bytes: Size | None = Field(default=None, alias="memory")
    max_time_s: Annotated[Duration, Field(gt=0)] | None = Field(default=None, alias="max_time")
    min_nodes: Positive | None = None
    max_nodes: Positive | None = None
    max_nodes_per_user: Positive | None = None
    max_gpus_per_user: Positive | None = None
    max_jobs: Positive | None = None
    max_submit: Positive | None = None
    preemptible: StrictBool = False
    su_rate: Annotated[Number, Field(ge=0)] | None = None
    account: Name | None = None
    qos: Name | None = None
    reservation: Name | None = None
    constraint: Text | None = None


class LimitsTable(Table):
    """See `site.SiteLimits`."""

    max_jobs: Positive | None = None
    max_submit: Positive | None = None
    max_nodes: Positive | None = None
    max_gpus: Positive | None = None
    max_nodes_per_job: Positive | None = None
    max_time_s: Annotated[Duration, Field(gt=0)] | None = Field(default=None, alias="max_time")
    max_lanes: Annotated[int, Field(strict=True, ge=1, le=4)] = 4


class LoginTable(Table):
    """See `site.LoginRules`."""

    hosts: Words = ()
    submit_hosts: Words = ()
    warn_processes: Positive | None = None
    stop_processes: Positive | None = None
    cap_processes: Positive | None = None
    warn_threads: Positive | None = None
    stop_threads: Positive | None = None
    warn_ssh: Positive | None = None
    stop_ssh: Positive | None = None
    warn_memory_bytes: Size | None = Field(default=None, alias="warn_memory")
    stop_memory_bytes: Size | None = Field(default=None, alias="stop_memory")
    env: Env = Field(default_factory=dict)


class StorageTable(Table):
    """See `site.Storage`."""

    scratch: Text | None = None
    spool: Text | None = None
    logs: Text | None = None
    purge_days: Positive | None = None
    keep_light: Lines = ()


class SetupTable(Table):
    """See `site.Setup`."""

    modules: Names = ()
    lines: Lines = ()
    env: Env = Field(default_factory=dict)
    unset: Variables = ()
    python: Text | None = None
    bundle: StrictBool = False


class ContainerTable(Table):
    """See `site.Container`."""

    runtime: Literal["apptainer", "singularity"] = "apptainer"
    image: Text
    options: Words = ()
    binds: Lines = ()


class BalanceTable(Table):
    """See `site.BalanceRules`."""

    provider: Literal["none", "command", "file", "sbalance", "sshare", "tacc"] = "none"
    command: Words = ()
    path: Text | None = None
    pattern: Text | None = None
    unit: Text = "SU"
    floor: Annotated[Number, Field(ge=0)] | None = None
    burn_stop: Annotated[Number, Field(ge=0)] | None = None
    max_age_s: Annotated[Duration, Field(gt=0)] = Field(default=900.0, alias="max_age")
    timeout_s: Annotated[Duration, Field(gt=0)] = Field(default=30.0, alias="timeout")


class NamesTable(Table):
    """See `site.NameRules`."""

    pattern: Text | None = None
    forbidden: Lines = ()


class NotifyTable(Table):
    """See `site.NotifyRules`."""

    command: Words = ()
    webhook: Text | None = None
    on: Annotated[tuple[Literal["drained", "done", "failed"], ...], BeforeValidator(_listed)] = (
        "drained",
        "done",
        "failed",
    )


class ProfileFile(Table):
    """The whole file."""

    format: Literal[1]
    description: Text | None = None
    time_zone: Text | None = None
    scheduler: SchedulerTable = Field(default_factory=SchedulerTable)
    defaults: DefaultsTable = Field(default_factory=DefaultsTable)
    partitions: dict[Name, PartitionTable] = Field(default_factory=dict)
    limits: LimitsTable = Field(default_factory=LimitsTable)
    login: LoginTable = Field(default_factory=LoginTable)
    storage: StorageTable = Field(default_factory=StorageTable)
    setup: SetupTable = Field(default_factory=SetupTable)
    container: ContainerTable | None = None
    balance: BalanceTable = Field(default_factory=BalanceTable)
    names: NamesTable = Field(default_factory=NamesTable)
    notify: NotifyTable = Field(default_factory=NotifyTable)
