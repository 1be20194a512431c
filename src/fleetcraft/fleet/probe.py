"""Drafts a site profile from what the scheduler tells, and says in the draft what it did not tell.

A line that begins with `#?` could not be learned: it is for a person to fill in. Nothing is guessed, so whatever
was learned the draft is sound and only says less than it could.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass

from fleetcraft.schedulers.api import AccountLimits, Limits, PartitionLimits

_BARE = re.compile(r"[A-Za-z0-9_-]+")
# As the profile's model takes names.
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+@:/-]{0,199}")
_LOGIN = re.compile(r"login[a-z-]*\d*")
_UNITS = (("T", 1 << 40), ("G", 1 << 30))
_BALANCE_TOOLS = ("sbalance", "sshare")


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What was learned beside the scheduler's answers."""

    name: str
    kind: str  # as the adapter calls itself: slurm, local, psij:pbs
    host: str
    at: str  # the date, for people
    version: str = ""
    in_job: bool = False  # asked from inside a job, so this host is no login node
    scratch: str | None = None  # the variable that names the scratch file system, without its dollar sign
    time_zone: str | None = None
    tools: frozenset[str] = frozenset()  # programs on the PATH that read a balance


def draft_profile(limits: Limits, around: Surroundings) -> str:
    """The text of a profile."""
    named = {partition.name: partition for partition in limits.partitions if _NAME.fullmatch(partition.name)}
    blocks = [
        _head(limits, around),
        _scheduler(around),
        _defaults(limits),
        *map(_partition, named.values()),
        _limits(limits),
        _login(around),
        _storage(around),
        _balance(around),
    ]
    return "\n".join("\n".join(block) + "\n" for block in (list(lines) for lines in blocks))


def _head(limits: Limits, around: Surroundings) -> Iterator[str]:
    said = f", {_comment(around.version)}" if around.version else ""
    yield f"# Drafted on {_comment(around.host)} at {_comment(around.at)} from what the scheduler told{said}."
    yield "# Lines with #? could not be learned: fill them in and remove the mark, or leave them."
    for problem in limits.problems:
        yield f"# not told: {_comment(problem)}"
    if not limits.answered:
        yield "# The scheduler did not answer. What follows is only the frame."
    yield "format = 1"
    yield f"description = {_text(_comment(f'{around.name}, drafted from its scheduler'))}"
    yield f"time_zone = {_text(around.time_zone)}" if around.time_zone else '#? time_zone = "America/Chicago"'


def _scheduler(around: Surroundings) -> Iterator[str]:
    kind, _, executor = around.kind.partition(":")
    yield "[scheduler]"
    yield f"kind = {_text(kind)}"
    if kind == "psij":
        yield f"executor = {_text(executor or 'pbs')}"
    if kind == "local":
        return
    yield 'poll_floor = "30s"       # ask no more often; look up the rule of your site'
    yield '#? gpus = "node"         # where GPUs come with whole nodes and must not be asked for'
    yield '#? memory = "site"       # where the site forbids to ask for memory'
    yield "#? allow_options = []    # options that one submission may add"


def _defaults(limits: Limits) -> Iterator[str]:
    known = [partition.name for partition in limits.partitions if _NAME.fullmatch(partition.name)]
    default = [partition.name for partition in limits.partitions if partition.is_default and partition.name in known]
    chosen = default[0] if default else known[0] if len(known) == 1 else None
    yield "[defaults]"
    yield (
        f"partition = {_text(chosen)}"
        if chosen
        else f'#? partition = ""         # one of: {_comment(", ".join(known))}'
    )
    accounts = _accounts(limits)
    if len(accounts) == 1 and _NAME.fullmatch(accounts[0]):
        yield f"account = {_text(accounts[0])}"
    else:
        yield f'#? account = ""           # {_comment(", ".join(accounts)) or "not told"}'
    yield '#? time = "12:00:00"      # the usual time limit'


def _partition(partition: PartitionLimits) -> Iterator[str]:
    yield f"[partitions.{_key(partition.name)}]"
    if partition.state and partition.state.upper() != "UP":
        yield f"# state when it was asked: {_comment(partition.state)}"
    yield _count("nodes", partition.nodes)
    # More than there are is how some sites say "all".
    most = partition.max_nodes
    if most and (partition.nodes is None or most <= partition.nodes):
        yield f"max_nodes = {most}"
    yield f"gpus_per_node = {partition.gpus_per_node}" if partition.gpus_per_node is not None else "#? gpus_per_node ="
    types = [name for name in partition.gpu_types if _NAME.fullmatch(name)]
    if partition.gpus_per_node and len(types) == 1:
        yield f"gpu_type = {_text(types[0])}"
    elif types:
        yield f'#? gpu_type = ""        # one of: {_comment(", ".join(types))}'
    yield _count("cpus_per_node", partition.cpus_per_node)
    memory = partition.memory_per_node_bytes
    yield f"memory = {_text(_size(memory))}" if memory and memory >= 1 << 20 else "#? memory ="
    limit = partition.time_limit_s
    yield (
        f"max_time = {_text(_time(limit))}"
        if limit and limit >= 60
        else '#? max_time = ""          # not limited, or not told'
    )
    if partition.preemptible:
        yield "preemptible = true"
    elif partition.preemptible is None:
        yield "#? preemptible = false"
    yield "#? su_rate = 1.0          # what a node costs per hour; no scheduler tells"
    if partition.qos:
        yield f"# its jobs are also limited by the QOS {_comment(partition.qos)}, which is read before each submission"


def _limits(limits: Limits) -> Iterator[str]:
    yield "# The scheduler's own limits are read before each submission. Write here only what is stricter:"
    for account in limits.accounts:
        yield f"#   {_comment(account.where)}: {_said(account)}"
    yield "#? [limits]"
    yield "#? max_nodes ="


def _said(account: AccountLimits) -> str:
    parts = [
        ("jobs", account.max_jobs),
        ("submitted", account.max_submit),
        ("nodes", account.max_nodes),
        ("GPUs", account.max_gpus),
        ("nodes per job", account.max_nodes_per_job),
    ]
    said = [f"at most {value} {what}" for what, value in parts if value is not None]
    if account.max_wall_s is not None:
        said.append(f"at most {_time(account.max_wall_s)} per job")
    return ", ".join(said) or "no limit told"


def _login(around: Surroundings) -> Iterator[str]:
    yield "# What one user may run on a login node is a rule of the site that no program tells. Look it up."
    if not around.in_job and _LOGIN.fullmatch(around.host.split(".", maxsplit=1)[0]):
        yield "[login]"
        yield 'hosts = ["login*"]'
    else:
        yield "#? [login]"
        yield '#? hosts = ["login*"]     # host names where people log in'
    yield "#? warn_processes ="
    yield "#? stop_processes ="


def _storage(around: Surroundings) -> Iterator[str]:
    if around.scratch is None:
        yield "#? [storage]"
        yield '#? scratch = "/scratch/$USER"  # a file system that every node sees'
        yield '#? spool = "/scratch/$USER/fleetcraft/spools"'
        return
    yield "[storage]"
    yield f'scratch = "${around.scratch}"'
    yield f'spool = "${around.scratch}/fleetcraft/spools"'
    yield "#? purge_days =           # where the site removes what nobody touched"


def _balance(around: Surroundings) -> Iterator[str]:
    found = [tool for tool in _BALANCE_TOOLS if tool in around.tools]
    yield "# A balance is kept only once its floor is written."
    yield "#? [balance]"
    yield f'#? provider = "{found[0] if found else "command"}"  # {"found here" if found else "no known tool is here"}'
    yield "#? floor ="


def _accounts(limits: Limits) -> list[str]:
    places = [
        account.where.removeprefix("association ")
        for account in limits.accounts
        if account.where.startswith("association ")
    ]
    return sorted({place.split("/", maxsplit=1)[0] for place in places} - {""})


def _count(key: str, value: int | None) -> str:
    return f"{key} = {value}" if value else f"#? {key} ="


def _key(name: str) -> str:
    return name if _BARE.fullmatch(name) else _text(name)


def _text(value: str) -> str:
    # JSON's text is TOML's too, but for DEL, which only JSON leaves as it is; a lone surrogate has no place in UTF-8.
    plain = value.encode("utf-8", "replace").decode("utf-8")
    return json.dumps(plain, ensure_ascii=False).replace("\x7f", "\\u007f")


def _comment(text: str) -> str:
    plain = text.encode("utf-8", "replace").decode("utf-8")
    return "".join(character if character.isprintable() else " " for character in plain)


def _size(size_bytes: int) -> str:
    for unit, factor in _UNITS:
        if size_bytes % factor == 0:
            return f"{size_bytes // factor}{unit}"
    return f"{size_bytes >> 20}M"


def _time(seconds: float) -> str:
    whole = int(seconds)
    days, rest = divmod(whole, 86400)
    clock = f"{rest // 3600:02d}:{rest % 3600 // 60:02d}:{rest % 60:02d}"
    return f"{days}-{clock}" if days else clock
