"""Finds profiles by name, reads them whole or not at all, and turns one into a site for one request.

Files of the person come before the shipped ones of the same name. This is where pydantic comes in, so nothing that
must start fast imports it at the top.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib import resources
from typing import Any

from fleetcraft.config.check import check_text
from fleetcraft.config.model import ProfileFile
from fleetcraft.config.problems import Problem, ProfileInvalid, ProfileUnknown, Weight
from fleetcraft.config.reading import read
from fleetcraft.config.site import (
    BalanceRules,
    Container,
    LoginRules,
    NameRules,
    NotifyRules,
    Partition,
    ResolvedSite,
    SchedulerRules,
    Setup,
    SiteLimits,
    Storage,
    build,
)
from fleetcraft.core.errors import UsageError

DIR_VARIABLE = "FLEETCRAFT_CONFIG_DIR"
PROFILE_VARIABLE = "FLEETCRAFT_PROFILE"
SHIPPED = "shipped:"
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")
_SUFFIX = ".toml"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileEntry:
    """One profile that can be named."""

    name: str
    path: str  # `shipped:NAME` for one that came with the program
    shipped: bool
    shadowed: bool = False  # a file of the person has the same name


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """A profile that was read and found sound. `warnings` do not hinder its use."""

    name: str
    source: str
    text: str
    description: str
    time_zone: str | None
    defaults: Mapping[str, Any]
    partitions: Mapping[str, Partition]
    rules: Mapping[str, Any]  # the parts of ResolvedSite that no request changes, by its field names
    warnings: tuple[Problem, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Overrides:
    """What the person says for one request. None: as the profile says."""

    account: str | None = None
    qos: str | None = None
    reservation: str | None = None
    constraint: str | None = None
    time_limit_s: float | None = None


def profile_folder(env: Mapping[str, str] = os.environ) -> str:
    """Where the person's own profiles are."""
    own = env.get(DIR_VARIABLE)
    if own:
        return os.path.join(own, "clusters")
    base = env.get("XDG_CONFIG_HOME", "")
    # The standard for these folders says that a relative path is to be ignored.
    if not base.startswith("/"):
        base = os.path.join(env.get("HOME") or os.path.expanduser("~"), ".config")
    return os.path.join(base, "fleetcraft", "clusters")


def is_profile_name(name: str) -> bool:
    """True when a profile of the person may be called so."""
    return _NAME.fullmatch(name) is not None


def list_profiles(env: Mapping[str, str] = os.environ) -> list[ProfileEntry]:
    """The person's profiles, then the shipped ones."""
    folder = profile_folder(env)
    try:
        files = sorted(os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError):
        files = []
    own = {name.removesuffix(_SUFFIX): name for name in files if _is_profile(name)}
    entries = [ProfileEntry(name=name, path=os.path.join(folder, file), shipped=False) for name, file in own.items()]
    entries += [
        ProfileEntry(name=name, path=f"{SHIPPED}{name}", shipped=True, shadowed=name in own) for name in _shipped()
    ]
    return entries


def default_profile_name(env: Mapping[str, str] = os.environ) -> str:
    """The profile for whoever names none: the variable's, else the only one of the person's. Raises ProfileUnknown."""
    named = env.get(PROFILE_VARIABLE)
    if named:
        return named
    own = [entry.name for entry in list_profiles(env) if not entry.shipped]
    if len(own) == 1:
        return own[0]
    if own:
        raise ProfileUnknown(
            f"Which profile? There are {', '.join(own)}.", hint=f"Name one, or set ${PROFILE_VARIABLE}."
        )
    raise ProfileUnknown(
        f"There is no profile in {profile_folder(env)}.",
        hint="Draft one on the cluster: `fleetcraft cluster probe NAME --write`.",
    )


def find_text(name_or_path: str, env: Mapping[str, str] = os.environ) -> tuple[str, str, str]:
    """Name, source and text of a profile: a path (with a slash or `.toml`), a name, or `shipped:NAME`."""
    name = name_or_path
    if "/" in name or name.endswith(_SUFFIX):
        return os.path.basename(name).removesuffix(_SUFFIX), name, _read_file(name)
    if not name.startswith(SHIPPED):
        path = os.path.join(profile_folder(env), f"{name}{_SUFFIX}")
        if _NAME.fullmatch(name) and os.path.lexists(path):
            return name, path, _read_file(path)
    bare = name.removeprefix(SHIPPED)
    if bare in _shipped():
        text = resources.files("fleetcraft.config").joinpath("profiles", f"{bare}{_SUFFIX}").read_text("utf-8")
        return bare, f"{SHIPPED}{bare}", text
    raise _unknown(bare, env)


def load_profile(name_or_path: str, env: Mapping[str, str] = os.environ) -> Profile:
    """The profile, sound. Raises ProfileUnknown, ProfileInvalid."""
    name, source, text = find_text(name_or_path, env)
    return parse_profile(text, name=name, source=source)


def parse_profile(text: str, *, name: str, source: str) -> Profile:
    """The profile in this text. Raises ProfileInvalid."""
    problems = check_text(text, source)
    if any(problem.weight is Weight.ERROR for problem in problems):
        raise ProfileInvalid.of(problems)
    file, _, _ = read(text, source)
    if file is None:
        raise ProfileInvalid(f"{source}: cannot be read.", hint=f"See `fleetcraft config check {source}`.")
    partitions: dict[str, Partition] = {
        label: build(Partition, {"name": label, **part.values()}) for label, part in file.partitions.items()
    }
    return Profile(
        name=name,
        source=source,
        text=text,
        description=file.description or "",
        time_zone=file.time_zone,
        defaults=file.defaults.model_dump(),
        partitions=partitions,
        rules=_rules(file, _rates(partitions)),
        warnings=tuple(problems),
    )


def resolve(profile: Profile, partition: str | None = None, overrides: Overrides | None = None) -> ResolvedSite:
    """The site for one request: the person's word, else the partition's, else the profile's default."""
    chosen = _choose(profile, partition)
    said = overrides or Overrides()

    def pick(name: str) -> Any:
        for source in (getattr(said, name), getattr(chosen, name, None), profile.defaults.get(name)):
            if source is not None:
                return source
        return None

    return ResolvedSite(
        profile=profile.name,
        source=profile.source,
        time_zone=profile.time_zone,
        partition=chosen,
        account=pick("account"),
        qos=pick("qos"),
        reservation=pick("reservation"),
        constraint=pick("constraint"),
        time_limit_s=pick("time_limit_s"),
        **profile.rules,
    )


def _choose(profile: Profile, partition: str | None) -> Partition:
    names = list(profile.partitions)
    wanted = partition or profile.defaults.get("partition") or (names[0] if len(names) == 1 else None)
    if wanted is not None and wanted in profile.partitions:
        return profile.partitions[wanted]
    if wanted is None and not names and profile.rules["scheduler"].kind == "local":
        return Partition(name="local", submit_as="")
    there = f"{profile.source} describes: {', '.join(names) or 'none'}."
    if wanted is None:
        raise UsageError(f"The profile {profile.name} has no default partition.", hint=f"Name one; {there}")
    raise UsageError(f"The profile {profile.name} has no partition {wanted!r}.", hint=there)


def _rules(file: ProfileFile, rates: Mapping[str, float]) -> dict[str, Any]:
    return {
        "scheduler": _scheduler(file),
        "limits": build(SiteLimits, file.limits.values()),
        "login": build(LoginRules, file.login.values()),
        "storage": build(Storage, file.storage.values()),
        "setup": build(Setup, file.setup.values()),
        "container": build(Container, file.container.values()) if file.container else None,
        "balance": build(BalanceRules, {**file.balance.values(), "rates": dict(rates)}),
        "names": build(NameRules, file.names.values()),
        "notify": build(NotifyRules, file.notify.values()),
    }


def _rates(partitions: Mapping[str, Partition]) -> dict[str, float]:
    """What jobs that wait or run elsewhere are charged; where one name has several rates, the dearest."""
    rates: dict[str, float] = {}
    for part in partitions.values():
        if part.su_rate is not None and part.scheduler_name is not None:
            rates[part.scheduler_name] = max(part.su_rate, rates.get(part.scheduler_name, 0.0))
    return rates


def _scheduler(file: ProfileFile) -> SchedulerRules:
    rules: SchedulerRules = build(SchedulerRules, file.scheduler.values())
    if rules.kind == "local":
        # Nobody shares the jobs of this machine, so nobody has to be spared.
        stated = file.scheduler.model_fields_set
        rules = replace(
            rules,
            poll_floor_s=rules.poll_floor_s if "poll_floor_s" in stated else 1.0,
            submit_gap_s=rules.submit_gap_s if "submit_gap_s" in stated else 0.0,
        )
    return rules


def _shipped() -> list[str]:
    folder = resources.files("fleetcraft.config").joinpath("profiles")
    if not folder.is_dir():
        return []  # the bundle has the code alone
    return sorted(entry.name.removesuffix(_SUFFIX) for entry in folder.iterdir() if _is_profile(entry.name))


def _is_profile(file: str) -> bool:
    return file.endswith(_SUFFIX) and _NAME.fullmatch(file.removesuffix(_SUFFIX)) is not None


def _read_file(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as source:
            if os.fstat(source.fileno()).st_mode & stat.S_IWOTH:
                raise ProfileInvalid(
                    f"{path} can be written by everybody, and a profile names commands that run as you.",
                    hint=f"Look at what it says, then `chmod o-w {path}`.",
                )
            return source.read()
    except FileNotFoundError:
        raise ProfileUnknown(f"There is no file {path}.", hint="See `fleetcraft cluster list`.") from None
    except UnicodeDecodeError:
        raise ProfileInvalid(f"{path} is not UTF-8 text.", hint="Save it as UTF-8.") from None


def _unknown(name: str, env: Mapping[str, str]) -> ProfileUnknown:
    import difflib

    names = sorted({entry.name for entry in list_profiles(env)})
    close = difflib.get_close_matches(name, names, n=1)
    meant = f" Did you mean {close[0]!r}?" if close else ""
    return ProfileUnknown(
        f"There is no profile {name!r}, neither in {profile_folder(env)} nor shipped.{meant}",
        hint="See `fleetcraft cluster list`.",
    )
