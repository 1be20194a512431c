"""What a profile says, in the words of the guards: its limits beside the scheduler's own, its charges, its provider."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

from fleetcraft.config.site import Partition, ResolvedSite
from fleetcraft.fleet.guards.balance import Charges
from fleetcraft.fleet.guards.providers import ProviderSpec
from fleetcraft.schedulers.api import AccountLimits, JobRequest, Limits, PartitionLimits

Number = TypeVar("Number", int, float)


def charges_of(site: ResolvedSite) -> Charges:
    """How the site charges for the partition that was chosen."""
    return Charges(
        rates=dict(site.balance.rates),
        rate=site.partition.su_rate,
        unit=site.balance.unit,
        floor=site.balance.floor or 0.0,
        burn_stop=site.balance.burn_stop,
    )


def provider_of(site: ResolvedSite) -> ProviderSpec | None:
    """Whom to ask for the balance; None where the site has none."""
    rules = site.balance
    if rules.provider == "none":
        return None
    return ProviderSpec(
        kind=rules.provider,
        command=rules.command,
        path=rules.path or "",
        pattern=rules.pattern or "",
        account=site.account,
        unit=rules.unit,
        max_age_s=rules.max_age_s,
        timeout_s=rules.timeout_s,
    )


def from_profile(site: ResolvedSite, request: JobRequest, at_utc: float) -> Limits:
    """The profile alone, for a scheduler that has no way to tell what its site allows."""
    name = request.partition or site.partition.name
    return Limits(at_utc=at_utc, partitions=(PartitionLimits(name=name, is_default=True),))


def with_profile(limits: Limits, site: ResolvedSite, request: JobRequest) -> Limits:
    """The scheduler's limits with the profile's: the smaller number counts, and what one does not say the other may."""
    chosen = site.partition
    # Where the profile names no partition (a QOS or a constraint stands for it), the site's default one is used, and
    # what the profile says of its nodes holds there all the same.
    parts = []
    for part in limits.partitions:
        is_chosen = part.name == request.partition or (request.partition is None and part.is_default)
        parts.append(_merged(part, chosen) if is_chosen else part)
    where = f"profile {site.profile}"
    # Several of the profile's partitions may be one of the scheduler's under different QOS. Another QOS than the
    # profile's was asked for by a person, and then every job in the partition counts.
    qos = chosen.qos if chosen.qos and chosen.qos == request.qos else ""
    accounts = [
        AccountLimits(
            where=f"{where}, partition {chosen.name}",
            qos=qos,
            partition=request.partition or "",
            max_jobs=chosen.max_jobs,
            max_submit=chosen.max_submit,
            max_nodes=chosen.max_nodes_per_user,
            max_gpus=chosen.max_gpus_per_user,
            max_nodes_per_job=chosen.max_nodes,
            max_wall_s=chosen.max_time_s,
        ),
        AccountLimits(
            where=where,
            max_jobs=site.limits.max_jobs,
            max_submit=site.limits.max_submit,
            max_nodes=site.limits.max_nodes,
            max_gpus=site.limits.max_gpus,
            max_nodes_per_job=site.limits.max_nodes_per_job,
            max_wall_s=site.limits.max_time_s,
        ),
    ]
    return replace(limits, partitions=tuple(parts), accounts=(*limits.accounts, *accounts))


def _merged(part: PartitionLimits, profile: Partition) -> PartitionLimits:
    return replace(
        part,
        nodes=_smaller(part.nodes, profile.nodes),
        max_nodes=_smaller(part.max_nodes, profile.max_nodes),
        time_limit_s=_smaller(part.time_limit_s, profile.max_time_s),
        gpus_per_node=_smaller(part.gpus_per_node, profile.gpus_per_node),
        cpus_per_node=_smaller(part.cpus_per_node, profile.cpus_per_node),
        memory_per_node_bytes=_smaller(part.memory_per_node_bytes, profile.memory_per_node_bytes),
    )


def _smaller(first: Number | None, second: Number | None) -> Number | None:
    known = [value for value in (first, second) if value is not None]
    return min(known, default=None)
