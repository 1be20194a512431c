"""What there is of site profiles: which, whether they are sound, and what each says in the end."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fleetcraft.config.check import check_text
from fleetcraft.config.loading import (
    Profile,
    ProfileEntry,
    default_profile_name,
    find_text,
    list_profiles,
    load_profile,
    profile_folder,
    resolve,
)
from fleetcraft.config.problems import Problem, ProfileInvalid, ProfileUnknown, Weight
from fleetcraft.config.site import Partition, ResolvedSite
from fleetcraft.core.quantities import format_bytes, format_duration


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileView:
    """One profile in a list. `problem` tells why it cannot be used; then nothing else is known of it."""

    name: str
    source: str
    shipped: bool
    is_default: bool = False
    scheduler: str | None = None
    partitions: tuple[str, ...] = ()
    description: str = ""
    problem: str = ""

    def as_json(self) -> dict[str, Any]:
        """For the JSON document."""
        return {name: getattr(self, name) for name in self.__slots__}


def check_profiles(names: Sequence[str], env: Mapping[str, str] = os.environ) -> Iterator[tuple[str, list[Problem]]]:
    """(file, what is wrong with it) of each that is named, or of all the person's own. Raises ProfileUnknown."""
    chosen = list(names) or [entry.path for entry in list_profiles(env) if not entry.shipped]
    if not chosen:
        raise ProfileUnknown(
            f"There is no profile in {profile_folder(env)} to check.",
            hint="Name one, or draft one on the cluster: `fleetcraft cluster probe NAME --write`.",
        )
    for name in chosen:
        _, source, text = find_text(name, env)
        yield source, check_text(text, source)


def list_clusters(env: Mapping[str, str] = os.environ) -> list[ProfileView]:
    """The person's profiles and those shipped ones that no file of the person replaces."""
    try:
        default = default_profile_name(env)
    except ProfileUnknown:
        default = None
    return [_view(entry, default, env) for entry in list_profiles(env) if not entry.shadowed]


def show_cluster(name: str | None, env: Mapping[str, str] = os.environ) -> Profile:
    """One profile, sound. Raises ProfileUnknown, ProfileInvalid."""
    return load_profile(name or default_profile_name(env), env)


def show_site(name: str | None, partition: str | None, env: Mapping[str, str] = os.environ) -> ResolvedSite:
    """What a request to this partition would be made with."""
    return resolve(show_cluster(name, env), partition)


def profile_text(name: str | None, env: Mapping[str, str] = os.environ) -> tuple[str, str]:
    """(source, text) of a profile, sound or not."""
    _, source, text = find_text(name or default_profile_name(env), env)
    return source, text


def shape_rows(profile: Profile) -> list[tuple[str, ...]]:
    """The partitions as cells of a table; a question mark where the profile says nothing."""
    rows: list[tuple[str, ...]] = []
    default = profile.defaults.get("partition")
    for name, part in profile.partitions.items():
        gpus = _known(part.gpus_per_node)
        rows.append(
            (
                f"{name} (default)" if name == default else name,
                _known(part.nodes),
                f"{gpus} {part.gpu_type}" if part.gpu_type else gpus,
                _known(part.cpus_per_node),
                "?" if part.memory_per_node_bytes is None else format_bytes(part.memory_per_node_bytes),
                "?" if part.max_time_s is None else format_duration(part.max_time_s),
                _known(part.max_nodes),
                "" if part.su_rate is None else f"{part.su_rate:g}",
                ", ".join(_remarks(part)),
            )
        )
    return rows


def rule_lines(site: ResolvedSite) -> Iterator[tuple[str, str]]:
    """(what, sentence) of the rules that hold for every partition."""
    rules = site.scheduler
    yield "scheduler", f"{rules.kind}, asked at most every {format_duration(rules.poll_floor_s)}"
    login = site.login
    stops = [
        ("processes", login.stop_processes),
        ("threads", login.stop_threads),
        ("ssh connections", login.stop_ssh),
        ("memory", None if login.stop_memory_bytes is None else format_bytes(login.stop_memory_bytes)),
    ]
    said = ", ".join(f"{what} {value}" for what, value in stops if value is not None)
    yield (
        "login nodes",
        f"{', '.join(login.hosts) or 'none named'}; {f'refused from: {said}' if said else 'no limit is stated'}",
    )
    yield "spools", site.storage.spool or "none named: each command must name its spool"
    balance = site.balance
    kept = f"{balance.provider}, floor {balance.floor:g} {balance.unit}" if balance.floor is not None else "not kept"
    yield "balance", kept
    if site.container is not None:
        yield "container", f"{site.container.runtime} {site.container.image}"
    yield "profile", site.source


def flat(record: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every value of a nested record with its dotted name."""
    for name, value in record.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _view(entry: ProfileEntry, default: str | None, env: Mapping[str, str]) -> ProfileView:
    view = {"name": entry.name, "source": entry.path, "shipped": entry.shipped, "is_default": entry.name == default}
    try:
        profile = load_profile(entry.path if entry.shipped else entry.name, env)
    except (ProfileInvalid, ProfileUnknown, OSError) as error:
        return ProfileView(**view, problem=_first_line(error))  # type: ignore[arg-type]
    return ProfileView(
        **view,  # type: ignore[arg-type]
        scheduler=profile.rules["scheduler"].kind,
        partitions=tuple(profile.partitions),
        description=profile.description,
    )


def _first_line(error: Exception) -> str:
    return str(error.args[0] if error.args and not isinstance(error, OSError) else error)


def _known(value: int | None) -> str:
    return "?" if value is None else str(value)


def _remarks(part: Partition) -> Iterator[str]:
    if part.description:
        yield part.description
    if part.preemptible:
        yield "preemptible"
    for name in ("qos", "constraint", "reservation"):
        if getattr(part, name):
            yield f"{name} {getattr(part, name)}"


def has_errors(problems: Sequence[Problem]) -> bool:
    """True when a profile with these problems cannot be used."""
    return any(problem.weight is Weight.ERROR for problem in problems)
