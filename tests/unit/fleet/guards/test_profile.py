from __future__ import annotations

from dataclasses import replace

from fleetcraft.config.loading import parse_profile, resolve
from fleetcraft.core.states import JobState
from fleetcraft.fleet.guards.balance import promises
from fleetcraft.fleet.guards.profile import charges_of, provider_of, with_profile
from fleetcraft.schedulers.api import JobRef, JobRequest, JobView, Limits, PartitionLimits

PROFILE = """\
format = 1
[partitions.big]
submit_as = "gpu-large"
nodes = 100
gpus_per_node = 4
max_time = "1h"
max_nodes = 8
max_gpus_per_user = 64
su_rate = 3.0
[partitions.dev]
su_rate = 0.5
[limits]
max_submit = 7
[balance]
provider = "sshare"
unit = "GPUh"
floor = 5
"""
SITE = resolve(parse_profile(PROFILE, name="here", source="test"), "big")
REQUEST = JobRequest(token="fcaaaaaaaaaa", name="f", script="", partition="gpu-large", time_limit_s=60.0)


def test_every_partition_of_the_profile_has_its_price_by_the_schedulers_name():
    charges = charges_of(SITE)
    assert (charges.rate, charges.unit, charges.floor) == (3.0, "GPUh", 5.0)
    assert dict(charges.rates) == {"gpu-large": 3.0, "dev": 0.5}
    job = JobView(
        ref=JobRef(id="1"), state=JobState.RUNNING, raw_state="R", partition="dev", node_count=2, time_limit_s=7200.0
    )
    assert promises([job], REQUEST, charges, None).items[0].units == 2.0


def test_a_site_without_a_balance_has_no_provider():
    assert provider_of(resolve(parse_profile("format = 1\n[partitions.p]\n", name="x", source="t"))) is None
    provider = provider_of(SITE)
    assert provider is not None
    assert (provider.kind, provider.unit) == ("sshare", "GPUh")


def test_the_smaller_number_of_profile_and_scheduler_counts_and_either_may_be_silent():
    told = Limits(
        at_utc=0.0,
        partitions=(
            PartitionLimits(name="gpu-large", time_limit_s=86400.0, max_nodes=4, nodes=50),
            PartitionLimits(name="other", time_limit_s=86400.0),
        ),
    )
    merged = with_profile(told, SITE, REQUEST)
    chosen, other = merged.partitions
    assert (chosen.time_limit_s, chosen.max_nodes, chosen.nodes, chosen.gpus_per_node) == (3600.0, 4, 50, 4)
    assert other == told.partitions[1]
    profile = {account.where: account for account in merged.accounts}
    assert profile["profile here, partition big"].max_gpus == 64
    assert profile["profile here"].max_submit == 7


def test_what_the_profile_allows_in_a_partition_is_counted_over_its_own_jobs():
    told = Limits(at_utc=0.0)
    big, whole = with_profile(told, SITE, REQUEST).accounts
    assert (big.partition, big.qos, whole.partition, whole.qos) == ("gpu-large", "", "", "")
    # One partition of the scheduler under two names of the profile, told apart by the QOS.
    text = 'format = 1\n[partitions.debug]\nsubmit_as = "gpu"\nqos = "debug"\nmax_submit = 1\n'
    site = resolve(parse_profile(text, name="here", source="test"), "debug")
    own, _ = with_profile(told, site, replace(REQUEST, partition="gpu", qos="debug")).accounts
    assert (own.partition, own.qos) == ("gpu", "debug")
    # A person asked for another QOS: then everything in the partition counts.
    own, _ = with_profile(told, site, replace(REQUEST, partition="gpu", qos="high")).accounts
    assert (own.partition, own.qos) == ("gpu", "")


def test_where_the_profile_names_no_partition_its_shape_holds_on_the_sites_default_one():
    site = resolve(parse_profile(PROFILE.replace('"gpu-large"', '""'), name="here", source="test"), "big")
    told = Limits(
        at_utc=0.0,
        partitions=(PartitionLimits(name="batch", is_default=True, gpus_per_node=8), PartitionLimits(name="other")),
    )
    request = JobRequest(token="fcaaaaaaaaaa", name="f", script="", time_limit_s=60.0)
    batch, other = with_profile(told, site, request).partitions
    assert (batch.gpus_per_node, batch.time_limit_s) == (4, 3600.0)
    assert other == told.partitions[1]
