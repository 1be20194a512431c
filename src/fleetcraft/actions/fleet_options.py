"""From the options of a person and a profile to the site and the spec of one fleet. Nothing is submitted here."""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from fleetcraft.config.site import Container, NotifyRules, ResolvedSite
from fleetcraft.core.errors import Refused, UsageError
from fleetcraft.fleet.handle import Fleet, place_program
from fleetcraft.fleet.spec import FleetSpec, WorkerChoices, spec_for
from fleetcraft.workers.options import WorkerOptions, parse_telemetry_s

_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetOptions:
    """What a person says of a fleet. None: as the profile says."""

    profile: str | None = None
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    reservation: str | None = None
    constraint: str | None = None
    time_limit_s: float | None = None
    preemptible: bool = False
    container: str | None = None
    modules: tuple[str, ...] = ()
    notify: str | None = None  # an address to post to, or a command
    options: tuple[str, ...] = ()  # words for the scheduler that the profile allows
    bundle: bool = False  # the worker as one file instead of an installed package
    shape: str = "main"
    spec: Mapping[str, Any] = field(default_factory=dict)  # other values of FleetSpec
    worker: Mapping[str, Any] = field(default_factory=dict)  # values of WorkerChoices


def resolve_site(options: FleetOptions, env: Mapping[str, str] = os.environ) -> ResolvedSite:
    """The site, with everything that the person said instead of the profile. Raises UsageError, Refused."""
    # These bring pydantic.
    from fleetcraft.config.loading import Overrides, default_profile_name, load_profile, resolve

    profile = load_profile(options.profile or default_profile_name(env), env)
    site = resolve(
        profile,
        _partition(options, profile.partitions),
        Overrides(
            account=options.account,
            qos=options.qos,
            reservation=options.reservation,
            constraint=options.constraint,
            time_limit_s=options.time_limit_s,
        ),
    )
    if options.preemptible and not site.partition.preemptible:
        site = replace(site, partition=replace(site.partition, preemptible=True))
    if options.container is not None:
        base = site.container or Container()
        site = replace(site, container=replace(base, image=options.container))
    if options.modules:
        site = replace(site, setup=replace(site.setup, modules=(*site.setup.modules, *options.modules)))
    if options.notify is not None:
        site = replace(site, notify=_notify(options.notify, site.notify))
    return site


def _partition(options: FleetOptions, partitions: Mapping[str, Any]) -> str | None:
    """With --preemptible alone, the one partition that the profile calls so."""
    if options.partition is not None or not options.preemptible:
        return options.partition
    names = [name for name, part in partitions.items() if part.preemptible]
    if len(names) == 1:
        return names[0]
    if not names:
        raise UsageError(
            "The profile calls no partition preemptible.", hint="Name one with --partition beside --preemptible."
        )
    raise UsageError(f"Which preemptible partition? There are {', '.join(names)}.", hint="Name one with --partition.")


def _notify(text: str, before: NotifyRules) -> NotifyRules:
    if text.startswith(("http://", "https://")):
        return replace(before, webhook=text)
    if _ADDRESS.match(text):
        raise UsageError(
            f"--notify {text!r} is an address that cannot be posted to.", hint="Use http:// or https://, or a command."
        )
    try:
        words = tuple(shlex.split(text))
    except ValueError as error:
        raise UsageError(f"--notify {text!r} is no command: {error}.") from error
    if not words:
        raise UsageError("--notify is empty.", hint="Give an address to post to, or a command.")
    return replace(before, command=words)


def make_spec(fleet: Fleet, site: ResolvedSite, options: FleetOptions) -> FleetSpec:
    """The spec of the fleet's shape. Raises UsageError, Refused."""
    from fleetcraft.config.options import check_name, check_options

    words = check_options(site, options.options)
    _check_worker(options.worker)
    worker = WorkerChoices(**{name: value for name, value in options.worker.items() if value is not None})
    values = dict(options.spec)
    job_name = values.get("job_name") or fleet.name
    said = check_name(site.names, job_name)
    if not said.allowed:
        raise Refused(said.reason, hint="Give another name with --job-name.")
    if values.get("program") is None and not site.setup.python and not _wants_bundle(site, options):
        values["program"] = (sys.executable, "-m", "fleetcraft")
    return spec_for(fleet.name, site, shape=options.shape, options=words, worker=worker, **values)


def _check_worker(worker: Mapping[str, Any]) -> None:
    """What a worker would refuse on its node is refused before nodes are asked for. Raises UsageError."""
    said = {name: worker[name] for name in ("gpus", "cpus", "pass_env") if worker.get(name) is not None}
    try:
        WorkerOptions(spool=".", **said)
        if worker.get("telemetry") is not None:
            parse_telemetry_s(worker["telemetry"])
    except UsageError as error:
        text = error.message.replace("--gpus", "--worker-gpus").replace("--cpus", "--worker-cpus")
        raise UsageError(text, hint=error.hint) from error


def _wants_bundle(site: ResolvedSite, options: FleetOptions) -> bool:
    return options.bundle or site.setup.bundle


def with_program(fleet: Fleet, spec: FleetSpec, options: FleetOptions, *, write: bool) -> FleetSpec:
    """The same spec, with the worker as one file in the fleet's folder where that is wanted.

    Without `write` only the path is computed, for a dry run. Raises OSError.
    """
    if not _wants_bundle(spec.site, options):
        return spec
    from fleetcraft.actions.bundle import build_bundle

    data, _ = build_bundle()
    digest = hashlib.sha256(data).hexdigest()
    python = spec.site.setup.python or "python3"
    if write:
        fleet.log.create()
        path = place_program(fleet, data, digest)
    else:
        path = os.path.join(fleet.folder.programs, f"fleetcraft-{digest[:16]}.pyz")
    return replace(spec, program=(python, path))
