"""What a test cluster is like: its size, its timers, its partitions and its limits.

The timers are short where a scenario waits for them, and have the values of a real site in `real_timers`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterPolicy:
    """One site. Times are in seconds, as slurm.conf takes them."""

    nodes: int = 4
    gpus_per_node: int = 4
    cpus_per_node: int = 8
    memory_per_node_mb: int = 6000
    memory_per_cpu_mb: int = 400  # for a job that names no memory

    min_job_age_s: int = 20  # how long the controller remembers an ended job
    kill_wait_s: int = 3  # between SIGTERM and SIGKILL at the time limit
    message_timeout_s: int = 5  # after so long a client gives up on the controller
    slurmd_timeout_s: int = 10  # after so long a silent node is down
    requeue_delay_s: int = 5  # a requeued job waits so long; also the life of a step credential
    over_time_limit_min: int = 0
    backfill_interval_s: int = 1
    accounting_frequency_s: int = 2

    max_array_size: int = 1001
    max_job_count: int = 10_000
    cgroups: bool = True  # memory kept in bounds by the kernel, where it can
    low_grace_s: int = 0  # between the signal and the end of a preempted job in `low`
    accounting: bool = True
    enforce: str = "limits,qos"
    # Words of sacctmgr, run once at the start, such as ("add", "qos", "tiny", "MaxWall=00:05:00").
    sacctmgr: tuple[tuple[str, ...], ...] = ()
    # More lines of slurm.conf, and more words of SchedulerParameters.
    slurm_lines: tuple[str, ...] = ()
    scheduler_parameters: tuple[str, ...] = ()

    def with_real_timers(self) -> Self:
        """The same site with the timers that Slurm has when nobody sets them."""
        return replace(
            self,
            min_job_age_s=300,
            kill_wait_s=30,
            message_timeout_s=10,
            slurmd_timeout_s=300,
            requeue_delay_s=120,
            backfill_interval_s=30,
            accounting_frequency_s=30,
        )
