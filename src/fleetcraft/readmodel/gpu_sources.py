"""Which telemetry belongs to a spool, a fleet, a job or a path, and which hosts should have some.

A host that a fleet's job or a worker of the spool held is expected to have telemetry: one without is shown.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fleetcraft.core.errors import UsageError
from fleetcraft.readmodel.gpu_expected import Wanted, expected_hosts, states_of
from fleetcraft.usage.sources import Source, find, in_root

FOLDER = "telemetry"


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """Files to read, and how many GPUs are expected on each host by those who ran work there."""

    sources: list[Source]
    expected: Mapping[str, int]


def root_of(spool_root: str) -> str:
    """Where the samplers of a spool write."""
    return os.path.join(spool_root, FOLDER)


def choose(
    paths: Sequence[str] = (), *, spool_root: str | None = None, fleet: str | None = None, job: str | None = None,
    since_ms: int | None = None, until_ms: int | None = None,
) -> Chosen:  # fmt: skip
    """The telemetry of these paths, or else of the spool. Raises UsageError where there is none.

    Hosts are expected that had work between `since_ms` and `until_ms`.
    """
    if paths:
        return Chosen(sources=find([_within_spool(path) for path in paths]), expected={})
    if spool_root is None:
        raise UsageError("No telemetry was named.", hint="Name files or folders, or a spool with --spool.")
    root = root_of(spool_root)
    sources = every = list(in_root(root))
    if job is not None:
        # The host's other segments share its GPUs, and the hold rule wants to see them.
        hosts = {source.host for source in sources if source.job == job}
        sources = [source for source in sources if source.host in hosts]
    wanted = Wanted(fleet=fleet, job=job, since_ms=since_ms, until_ms=until_ms)
    expected = expected_hosts(spool_root, wanted)
    if not sources and not expected and every:
        raise UsageError(
            f"No job {job!r} was sampled in {root}, and no worker was in it.",
            hint="`fleetcraft fleet list` and `fleetcraft worker list` show what there is.",
        )
    if not sources and not expected:
        raise UsageError(
            f"There is no telemetry in {root}.",
            hint="Workers sample their GPUs while they run; `fleetcraft gpu sample` does it without one.",
        )
    return Chosen(sources=sources, expected=expected)


def is_fleet(spool_root: str, fleet: str) -> bool:
    """True for a fleet that is on record. Raises OutOfReach."""
    return fleet in states_of(spool_root)


def no_fleet(spool_root: str, fleet: str) -> UsageError:
    """The refusal of a name that neither the records nor the samples know."""
    return UsageError(
        f"There is no fleet {fleet!r} in {spool_root}, and nothing was sampled for one.",
        hint="See `fleetcraft fleet list`.",
    )


def _within_spool(path: str) -> str:
    """A spool that was named by its path means its telemetry."""
    return root_of(path) if os.path.exists(os.path.join(path, "spool.json")) else path
