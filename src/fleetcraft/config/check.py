"""What the values of a profile must hold together, beyond what each may be alone."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from urllib.parse import urlsplit

from fleetcraft.config.lines import Path, line_of, spelled
from fleetcraft.config.model import PartitionTable, ProfileFile
from fleetcraft.config.options import OWNED, option_name
from fleetcraft.config.paths import lies_under, looks_absolute
from fleetcraft.config.problems import Problem, Weight
from fleetcraft.config.reading import read
from fleetcraft.core.quantities import format_duration

# Users were warned by sites for asking more often; the scheduler of a site is everybody's.
POLL_FLOOR_S = 10.0
# A scheduler may deliver a signal up to a minute early or late; less leaves no time to put work back.
SIGNAL_FLOOR_S = 90.0
_LOCAL_ROOTS = ("/tmp", "/var/tmp", "/dev/shm", "/run")  # noqa: S108  named in order to be warned of
_PAIR = re.compile(r"\d+:\d\d")

Item = tuple[Weight, Sequence[str | int], str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Text:
    """The text under check, for what the tables no longer show."""

    lines: Mapping[Path, int]
    rows: tuple[str, ...]

    def written(self, path: Sequence[str | int]) -> str:
        at = self.lines.get(tuple(map(str, path)))
        return self.rows[at - 1].partition("=")[2].partition("#")[0].strip().strip("\"'") if at else ""


def check_text(text: str, file: str) -> list[Problem]:
    """Everything that is wrong with a profile, in the order of its lines."""
    found, problems, lines = read(text, file)
    if found is None:
        return problems
    source = _Text(lines=lines, rows=tuple(text.splitlines()))
    problems = [
        Problem(weight=weight, key=spelled(path), message=message, hint=hint, file=file, line=line_of(lines, path))
        for look in _LOOKS
        for weight, path, message, hint in look(found, source)
    ]
    return sorted(problems, key=lambda problem: (problem.line or 0, problem.weight))


def _error(path: Sequence[str | int], message: str, hint: str = "") -> Item:
    return Weight.ERROR, path, message, hint


def _warning(path: Sequence[str | int], message: str, hint: str = "") -> Item:
    return Weight.WARNING, path, message, hint


def _scheduler(file: ProfileFile, _: _Text) -> Iterator[Item]:
    rules = file.scheduler
    if rules.kind != "local" and rules.poll_floor_s < POLL_FLOOR_S:
        shown = format_duration(rules.poll_floor_s)
        yield _error(
            ("scheduler", "poll_floor"),
            f"scheduler.poll_floor = {shown} would ask the scheduler of everybody too often.",
            f"It takes at least {POLL_FLOOR_S:.0f}s; sites ask for 30s and more.",
        )
    if rules.kind == "psij" and rules.executor is None:
        yield _error(
            ("scheduler", "executor"), 'scheduler.kind = "psij" needs scheduler.executor.', "pbs, lsf, flux ..."
        )
    if rules.kind != "psij" and rules.executor is not None:
        yield _error(("scheduler", "executor"), 'scheduler.executor is for kind = "psij" only.', "Remove it.")
    if rules.kind != "local" and rules.signal_before_s < SIGNAL_FLOOR_S:
        yield _warning(
            ("scheduler", "signal_before"),
            "scheduler.signal_before is short: a scheduler may signal a minute off.",
            f"Write {SIGNAL_FLOOR_S:.0f}s or more.",
        )
    for place, word in enumerate(rules.options):
        yield from _option(("scheduler", "options", place), word)
    for place, word in enumerate(rules.allow_options):
        yield from _option(("scheduler", "allow_options", place), word)
        if "=" in word:
            yield _error(
                ("scheduler", "allow_options", place),
                f"{word!r}: only the name is allowed, with any value.",
                "Leave out = and what follows.",
            )


def _option(path: Sequence[str | int], word: str) -> Iterator[Item]:
    name = option_name(word)
    if name is None:
        yield _error(path, f"{word!r} is not an option of the form --name or --name=value.", "One word each.")
    elif name in OWNED:
        yield _error(path, f"--{name} is said by Fleetcraft itself.", "Use the key or the command option for it.")


def _partitions(file: ProfileFile, _: _Text) -> Iterator[Item]:
    names, default = list(file.partitions), file.defaults.partition
    if not names and file.scheduler.kind != "local":
        yield _error(
            ("partitions",), "no partition is described.", "Add a table [partitions.NAME] for each that you use."
        )
    if default is not None and default not in names:
        yield _error(
            ("defaults", "partition"),
            f"defaults.partition = {default!r} is not described.",
            f"There are: {', '.join(names)}." if names else f"Add a table [partitions.{default}].",
        )
    if default is None and len(names) > 1:
        yield _warning(("defaults",), "several partitions and no defaults.partition: each command must name one.")
    for name, shape in file.partitions.items():
        yield from _shape(name, shape)
        if file.balance.provider != "none" and shape.su_rate is None:
            yield _warning(
                ("partitions", name),
                f"partitions.{name} has no su_rate, so submissions to it are refused while a balance is kept.",
                "Write what a node costs per hour; 0 where it is free.",
            )


def _shape(name: str, shape: PartitionTable) -> Iterator[Item]:
    if shape.nodes is not None and shape.max_nodes is not None and shape.max_nodes > shape.nodes:
        yield _error(
            ("partitions", name, "max_nodes"), f"max_nodes = {shape.max_nodes} is more than its {shape.nodes} nodes."
        )
    if shape.min_nodes is not None and shape.max_nodes is not None and shape.min_nodes > shape.max_nodes:
        yield _error(("partitions", name, "min_nodes"), f"min_nodes is more than max_nodes = {shape.max_nodes}.")
    if shape.gpu_type is not None and not shape.gpus_per_node:
        yield _error(("partitions", name, "gpu_type"), "gpu_type without gpus_per_node.", "Say how many a node has.")
    if shape.memory_per_node_bytes is not None and 0 < shape.memory_per_node_bytes < 1 << 20:
        yield _warning(("partitions", name, "memory"), "memory is less than a MiB.", "Write the unit: 200G.")
    if shape.max_time_s is None:
        yield _warning(
            ("partitions", name), f"partitions.{name} states no max_time, so too long jobs are not noticed here."
        )


def _times(file: ProfileFile, source: _Text) -> Iterator[Item]:
    paths = [("defaults", "time"), ("limits", "max_time")] + [
        ("partitions", name, "max_time") for name in file.partitions
    ]
    for path in paths:
        written = source.written(path)
        if _PAIR.fullmatch(written):
            yield _warning(
                path,
                f"{spelled(path)} = {written!r} is minutes and seconds, as in Slurm.",
                f"Write {written}:00 for hours, or {written.partition(':')[0]}m.",
            )
    wanted, default = file.defaults.time_limit_s, file.partitions.get(file.defaults.partition or "")
    if wanted is not None and default is not None and default.max_time_s is not None and wanted > default.max_time_s:
        longest = format_duration(default.max_time_s)
        yield _error(("defaults", "time"), f"defaults.time is more than {longest}, the most of its partition.")


def _storage(file: ProfileFile, _: _Text) -> Iterator[Item]:
    rules = file.storage
    places: list[tuple[tuple[str, ...], str | None]] = [
        (("storage", name), getattr(rules, name)) for name in ("scratch", "spool", "logs")
    ]
    places += [(("storage", "keep_light", str(place)), root) for place, root in enumerate(rules.keep_light)]
    for path, root in places:
        if root is not None and (not looks_absolute(root) or ".." in root.split("/") or root.strip("/") == ""):
            yield _error(path, f"{'.'.join(path)} = {root!r} is not a whole path.", "Begin with /, ~/ or $NAME/.")
    for name, root in (("spool", rules.spool), ("logs", rules.logs)):
        if root is None:
            continue
        if any(lies_under(root, local) for local in _LOCAL_ROOTS) and file.scheduler.kind != "local":
            yield _error(
                ("storage", name),
                f"storage.{name} = {root!r} is not shared between nodes.",
                "Choose a shared file system.",
            )
        light = [kept for kept in rules.keep_light if lies_under(root, kept)]
        if light:
            yield _error(("storage", name), f"storage.{name} lies under {light[0]}, which is for configuration only.")
    if rules.spool is None and file.scheduler.kind != "local":
        yield _warning(
            ("storage",),
            "no storage.spool: every command must name its spool.",
            "Write the folder, on a file system that every node sees.",
        )


def _login(file: ProfileFile, _: _Text) -> Iterator[Item]:
    rules = file.login
    for what in ("processes", "threads", "ssh", "memory_bytes"):
        key = what.removesuffix("_bytes")
        steps = [(word, getattr(rules, f"{word}_{what}", None)) for word in ("warn", "stop", "cap")]
        stated = [(word, value) for word, value in steps if value is not None]
        for (low, small), (high, large) in pairwise(stated):
            if small > large:
                yield _error(("login", f"{low}_{key}"), f"login.{low}_{key} is more than {high}_{key} = {large}.")
    stops = [word for word in type(rules).model_fields if word.startswith("stop_") and getattr(rules, word) is not None]
    if stops and not rules.hosts:
        yield _error(("login",), "login has limits and no hosts, so they would never apply.", 'hosts = ["login*"]')


def _balance(file: ProfileFile, _: _Text) -> Iterator[Item]:
    rules = file.balance
    needs = {"command": bool(rules.command), "file": rules.path is not None}
    if not needs.get(rules.provider, True):
        wanted = "command" if rules.provider == "command" else "path"
        yield _error(("balance", "provider"), f"balance.provider = {rules.provider!r} needs balance.{wanted}.")
    if rules.provider != "none" and rules.floor is None:
        yield _error(
            ("balance",), "a balance without balance.floor stops nothing.", "Write what must remain, 0 at least."
        )
    if rules.provider == "none" and (rules.floor is not None or rules.burn_stop is not None):
        yield _error(("balance",), "balance.floor and burn_stop need a provider.", 'For example provider = "command".')
    if rules.floor is not None and rules.burn_stop is not None and rules.burn_stop > rules.floor:
        yield _error(
            ("balance", "burn_stop"), f"balance.burn_stop is more than floor = {rules.floor:g}.",
            "Submissions stop first, running fleets later.",
        )  # fmt: skip
    if rules.pattern is not None:
        groups = _groups(rules.pattern)
        if groups != 1:
            said = "is no regular expression" if groups is None else f"has {groups} groups"
            yield _error(("balance", "pattern"), f"balance.pattern {said}.", "It takes one group, around the number.")


def _groups(pattern: str) -> int | None:
    try:
        return re.compile(pattern).groups
    except re.error:
        return None


def _words(file: ProfileFile, _: _Text) -> Iterator[Item]:
    if file.names.pattern is not None and _groups(file.names.pattern) is None:
        yield _error(("names", "pattern"), "names.pattern is no regular expression.")
    hook = file.notify.webhook
    if hook is not None:
        parts = urlsplit(hook)
        if parts.scheme not in ("http", "https") or not parts.netloc:
            yield _error(("notify", "webhook"), f"notify.webhook = {hook!r} is not an http address.")
        elif parts.scheme == "http":
            yield _warning(("notify", "webhook"), "notify.webhook sends in the clear.", "Use https.")
    if file.time_zone is not None and not _zone_exists(file.time_zone):
        yield _error(
            ("time_zone",), f"time_zone = {file.time_zone!r} is not known here.", "For example America/Chicago."
        )


def _zone_exists(name: str) -> bool:
    import zoneinfo

    try:
        zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        # A machine without any zone data proves nothing about a name.
        return not zoneinfo.available_timezones()
    return True


_LOOKS: tuple[Callable[[ProfileFile, _Text], Iterator[Item]], ...] = (
    _scheduler, _partitions, _times, _storage, _login, _balance, _words,
)  # fmt: skip
