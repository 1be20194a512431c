"""From the rules of a profile to the scheduler that they describe."""

from __future__ import annotations

import os
from collections.abc import Mapping

from fleetcraft.config.site import SchedulerRules
from fleetcraft.core.clock import Clock
from fleetcraft.schedulers import open as opening
from fleetcraft.schedulers.api import Scheduler
from fleetcraft.schedulers.slurm_args import Site
from fleetcraft.transports.api import Transport

# In the words of a profile, how GPUs are asked for; in the words of the adapter, by which option.
_GPU_OPTIONS = {"count": "gpus-per-node", "gres": "gres", "node": "none"}


def open_scheduler(
    rules: SchedulerRules,
    *,
    folder: str | None = None,
    transport: Transport | None = None,
    clock: Clock | None = None,
    env: Mapping[str, str] = os.environ,
    share_polls: bool = True,
) -> Scheduler:
    """The scheduler of a site. Raises UsageError for a kind that this program does not have.

    `folder` is where jobs of this machine, or records of PSI/J, are kept.
    """
    site = Site(
        cluster=rules.cluster,
        gpu_option=_GPU_OPTIONS[rules.gpus],
        kill_on_invalid_dep=rules.kill_on_invalid_dep,
    )
    return opening.open_scheduler(
        rules.kind,
        executor=rules.executor,
        site=site,
        timeout_s=rules.command_timeout_s,
        poll_floor_s=rules.poll_floor_s,
        share_polls=share_polls,
        folder=folder,
        transport=transport,
        clock=clock,
        environ=env,
    )
