"""What a site says about itself: version, configuration, partitions and nodes.

Fields that a version does not have are unknown, not zero, and a row that cannot be read is a problem, not a gap.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from fleetcraft.schedulers.api import PartitionLimits
from fleetcraft.schedulers.slurm_commands import SINFO_FIELDS
from fleetcraft.schedulers.slurm_quantities import gpu_types_in, gpus_in, read_tres
from fleetcraft.schedulers.slurm_rows import SEPARATOR
from fleetcraft.schedulers.slurm_times import duration_s

_MIB = 1024**2
_SHOWN = 120
_VERSION = re.compile(r"\bslurm\S*\s+([0-9]{1,4})\.([0-9]{1,3})(?:\.([0-9]{1,3}))?", re.IGNORECASE)
_SETTING = re.compile(r"([A-Za-z][\w\[\]/.-]*)\s*=\s?(.*)")
_TIME = re.compile(r"([0-9]{1,12})\s*(?:(s|sec|secs|seconds?|m|min|mins|minutes?|h|hours?|d|days?))?", re.IGNORECASE)
_UNIT_S = {"s": 1, "m": 60, "h": 3600, "d": 86400}
# A key begins after a blank; values such as reasons hold blanks of their own.
_PAIR = re.compile(r"(?:^|\s)([A-Za-z][A-Za-z0-9_:]*)=")


def read_version(text: str) -> tuple[int, ...] | None:
    """`slurm-wlm 22.05.8`, `slurm 22.05.7-Atos.1.1`, `slurm 25.05.0-0rc1` as numbers."""
    match = _VERSION.search(text)
    return tuple(int(part) for part in match.groups() if part is not None) if match else None


def read_setting(line: str) -> tuple[str, str] | None:
    """One line of `scontrol show config`."""
    match = _SETTING.fullmatch(line.strip())
    return (match[1], match[2].strip()) if match else None


def read_config(text: str) -> dict[str, str]:
    """All of `scontrol show config` by name."""
    found: dict[str, str] = {}
    for line in text.split("\n"):
        setting = read_setting(line)
        if setting:
            found.setdefault(*setting)
    return found


def config_number(value: str) -> int | None:
    """A plain number; None for `(null)`, UNLIMITED and other words."""
    value = value.strip()
    return int(value) if value.isascii() and value.isdigit() and len(value) <= 18 else None


def config_seconds(value: str) -> float | None:
    """`300 sec`, `1h`, `5 min`, or a number of seconds."""
    match = _TIME.fullmatch(value.strip())
    if not match:
        return None
    unit = (match[2] or "s")[0].lower()
    return int(match[1]) * _UNIT_S[unit]


def scheduler_parameter(config: Mapping[str, str], name: str) -> int | None:
    """A number out of SchedulerParameters, such as max_array_tasks or requeue_delay."""
    for piece in config.get("SchedulerParameters", "").split(","):
        key, equals, value = piece.strip().partition("=")
        if equals and key == name:
            return config_number(value)
    return None


def read_pairs(line: str) -> dict[str, str]:
    """`Key=value Key=value`, where a value may hold blanks and equal signs."""
    matches = list(_PAIR.finditer(line))
    pairs: dict[str, str] = {}
    ends = [match.start() for match in matches[1:]] + [len(line)]
    for match, end in zip(matches, ends, strict=False):
        pairs.setdefault(match[1], line[match.end() : end].strip())
    return pairs


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRow:
    """One node as the controller knows it. None: it did not say."""

    name: str
    state: str  # base state, lower case: idle, mixed, allocated, down ...
    flags: tuple[str, ...] = ()  # drain, reserved, maintenance, not_responding ...
    cpus: int | None = None
    cpus_allocated: int | None = None
    memory_bytes: int | None = None
    gpus: int | None = None
    gpus_allocated: int | None = None
    gpu_types: tuple[str, ...] = ()
    partitions: tuple[str, ...] = ()
    reason: str = ""

    @property
    def usable(self) -> bool:
        """True when new jobs may start on it, now or after those that run."""
        return self.state in ("idle", "mixed", "allocated") and not _CLOSED.intersection(self.flags)

    @property
    def down(self) -> str:
        """What is wrong with it, in the controller's words; empty while it answers."""
        words = [word for word in (self.state, *self.flags) if word in _DOWN]
        return " and ".join(words) + (f": {self.reason}" if words and self.reason else "")


_DOWN = ("down", "not_responding", "powered_down", "power_down", "fail")
_CLOSED = frozenset({"drain", "down", "fail", "maint", "maintenance", "not_responding", "reboot", "invalid_reg"})


def read_nodes(text: str) -> tuple[tuple[NodeRow, ...], tuple[str, ...]]:
    """`scontrol --oneliner show node`: the rows and what could not be read."""
    rows: list[NodeRow] = []
    problems: list[str] = []
    for line in text.split("\n"):
        if not line.strip():
            continue
        pairs = read_pairs(line)
        if not line.startswith("NodeName=") or "State" not in pairs:
            problems.append(f"not a node: {line[:_SHOWN]!r}")
            continue
        rows.append(_node(pairs))
    return tuple(rows), tuple(problems)


def _node(pairs: Mapping[str, str]) -> NodeRow:
    state, *flags = (word.rstrip("*~#!%$@^-").lower() for word in pairs["State"].split("+"))
    if pairs["State"].split("+")[0].endswith("*"):
        flags.append("not_responding")
    configured = read_tres(pairs["CfgTRES"]) if "CfgTRES" in pairs else {}
    allocated = read_tres(pairs["AllocTRES"]) if "AllocTRES" in pairs else None
    gpus = gpus_in(pairs.get("Gres", ""))
    if gpus is None:
        gpus = configured.get("gres/gpu", 0 if "Gres" in pairs else None)
    memory = config_number(pairs.get("RealMemory", ""))
    return NodeRow(
        name=pairs["NodeName"].split()[0] if pairs["NodeName"] else "",
        state=state,
        flags=tuple(flags),
        cpus=config_number(pairs.get("CPUTot", "")),
        cpus_allocated=config_number(pairs.get("CPUAlloc", "")),
        memory_bytes=None if memory is None else memory * _MIB,
        gpus=gpus,
        gpus_allocated=None if allocated is None else allocated.get("gres/gpu", 0),
        gpu_types=gpu_types_in(pairs.get("Gres", "")),
        partitions=tuple(name for name in pairs.get("Partitions", "").split(",") if name),
        reason=pairs.get("Reason", ""),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SinfoRow:
    """Nodes of one kind and state in one partition."""

    partition: str
    availability: str
    time_limit_s: float | None
    node_count: int | None
    state: str
    cpus: int | None
    memory_bytes: int | None
    gpus: int | None
    gpu_types: tuple[str, ...]
    nodes_text: str


def read_sinfo(text: str) -> tuple[tuple[SinfoRow, ...], tuple[str, ...]]:
    """The rows of `sinfo_argv` and what could not be read."""
    rows: list[SinfoRow] = []
    problems: list[str] = []
    for line in text.split("\n"):
        if not line.strip():
            continue
        cells = line.split(SEPARATOR)
        if len(cells) != len(SINFO_FIELDS):
            problems.append(f"a row of sinfo with {len(cells)} of {len(SINFO_FIELDS)} columns: {line[:_SHOWN]!r}")
            continue
        partition, availability, limit, count, state, cpus, memory, gres, nodes = cells
        size = config_number(memory.rstrip("+"))
        rows.append(
            SinfoRow(
                partition=partition,
                availability=availability,
                time_limit_s=duration_s(limit),
                node_count=config_number(count),
                state=state.rstrip("*~#!%$@^-+").lower(),
                cpus=config_number(cpus.rstrip("+")),
                memory_bytes=None if size is None else size * _MIB,
                gpus=gpus_in(gres),
                gpu_types=gpu_types_in(gres),
                nodes_text=nodes,
            )
        )
    return tuple(rows), tuple(problems)


def read_partitions(text: str) -> tuple[tuple[PartitionLimits, ...], tuple[str, ...]]:
    """`scontrol --oneliner show partition`: what each allows, and what could not be read."""
    found: list[PartitionLimits] = []
    problems: list[str] = []
    for line in text.split("\n"):
        if not line.strip():
            continue
        pairs = read_pairs(line)
        if not line.startswith("PartitionName=") or not pairs["PartitionName"]:
            problems.append(f"not a partition: {line[:_SHOWN]!r}")
            continue
        found.append(_partition(pairs))
    return tuple(found), tuple(problems)


def _partition(pairs: Mapping[str, str]) -> PartitionLimits:
    nodes = config_number(pairs.get("TotalNodes", ""))
    cpus = config_number(pairs.get("TotalCPUs", ""))
    tres = read_tres(pairs.get("TRES", ""))
    mode = pairs.get("PreemptMode", "").upper()
    return PartitionLimits(
        name=pairs["PartitionName"],
        state=pairs.get("State", ""),
        is_default=pairs.get("Default", "").upper() == "YES",
        time_limit_s=duration_s(pairs.get("MaxTime", "")),
        max_nodes=config_number(pairs.get("MaxNodes", "")),
        nodes=nodes,
        # Only a mean; `with_nodes` knows the nodes themselves.
        cpus_per_node=cpus // nodes if cpus and nodes else None,
        memory_per_node_bytes=tres["mem"] // nodes if nodes and "mem" in tres else None,
        gpus_per_node=tres["gres/gpu"] // nodes if nodes and "gres/gpu" in tres else None,
        qos="" if pairs.get("QoS", "N/A") in ("N/A", "(null)") else pairs["QoS"],
        # GANG alone suspends nobody for good; a partition without a mode says nothing.
        preemptible=None if not mode else any(word in mode for word in ("REQUEUE", "CANCEL", "SUSPEND")),
    )


def with_nodes(partition: PartitionLimits, nodes: tuple[NodeRow, ...]) -> PartitionLimits:
    """The same with what its nodes really have: the smallest of each, and how many are idle."""
    own = [node for node in nodes if partition.name in node.partitions]
    if not own:
        return partition
    return replace(
        partition,
        nodes=len(own) if partition.nodes is None else partition.nodes,
        cpus_per_node=_least([node.cpus for node in own], partition.cpus_per_node),
        memory_per_node_bytes=_least([node.memory_bytes for node in own], partition.memory_per_node_bytes),
        gpus_per_node=_least([node.gpus for node in own], partition.gpus_per_node),
        gpu_types=tuple(sorted({kind for node in own for kind in node.gpu_types})),
        idle_nodes=sum(1 for node in own if node.state == "idle" and node.usable),
    )


def _least(values: list[int | None], otherwise: int | None) -> int | None:
    known = [value for value in values if value is not None]
    return min(known) if known else otherwise
