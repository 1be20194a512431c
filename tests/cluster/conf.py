"""The configuration files of a test cluster, as text. Nothing here touches the machine."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tests.cluster.policy import ClusterPolicy

CLUSTER_NAME = "test"
CONTROLLER_HOST = "ctl"
ACCOUNT = "acct"


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """Where a cluster lives: its folder, its ports, and how memory is kept in bounds there."""

    root: Path
    policy: ClusterPolicy
    controller_port: int
    database_port: int
    first_node_port: int
    first_job_id: int
    cgroups: bool  # real cgroups; else the accounting plug-in ends what takes too much

    @property
    def node_names(self) -> tuple[str, ...]:
        return tuple(f"n{number}" for number in range(1, self.policy.nodes + 1))

    @property
    def auth_info(self) -> str:
        return f"socket={self.root}/munge/socket"


def slurm_conf(site: Site) -> str:
    """All daemons run as root, so that jobs can run as whoever submitted them."""
    policy, root = site.policy, site.root
    scheduler = (
        f"bf_interval={policy.backfill_interval_s}",
        # Jobs start within a moment, not at the next full minute.
        "sched_min_interval=100000",
        *policy.scheduler_parameters,
    )
    lines = [
        f"ClusterName={CLUSTER_NAME}",
        f"SlurmctldHost={CONTROLLER_HOST}(127.0.0.1)",
        f"SlurmctldPort={site.controller_port}",
        "SlurmUser=root",
        "SlurmdUser=root",
        "AuthType=auth/munge",
        # A requeued job waits for the end of its credential.
        f"AuthInfo={site.auth_info},cred_expire={policy.requeue_delay_s}",
        f"StateSaveLocation={root}/state",
        f"SlurmdSpoolDir={root}/spool/%n",
        f"SlurmctldPidFile={root}/run/slurmctld.slurm-pid",
        f"SlurmdPidFile={root}/run/%n.slurm-pid",
        f"SlurmctldLogFile={root}/log/slurmctld.log",
        f"SlurmdLogFile={root}/log/slurmd-%n.log",
        "SlurmctldDebug=verbose",
        "SlurmdDebug=verbose",
        "MailProg=/bin/true",
        "MpiDefault=none",
        "SwitchType=switch/none",
        f"ProctrackType=proctrack/{'cgroup' if site.cgroups else 'linuxproc'}",
        f"TaskPlugin=task/{'cgroup' if site.cgroups else 'none'}",
        "SelectType=select/cons_tres",
        "SelectTypeParameters=CR_CPU_Memory",
        f"DefMemPerCPU={policy.memory_per_cpu_mb}",
        # More processors and memory than this machine has.
        "SlurmdParameters=config_overrides",
        "DebugFlags=NO_CONF_HASH",
        "SchedulerType=sched/backfill",
        f"SchedulerParameters={','.join(scheduler)}",
        "PreemptType=preempt/partition_prio",
        "PreemptMode=REQUEUE",
        "ReturnToService=2",
        "InactiveLimit=0",
        f"FirstJobId={site.first_job_id}",
        f"MinJobAge={policy.min_job_age_s}",
        f"KillWait={policy.kill_wait_s}",
        f"MessageTimeout={policy.message_timeout_s}",
        f"SlurmdTimeout={policy.slurmd_timeout_s}",
        f"OverTimeLimit={policy.over_time_limit_min}",
        f"MaxArraySize={policy.max_array_size}",
        f"MaxJobCount={policy.max_job_count}",
        "JobAcctGatherType=jobacct_gather/linux",
        f"JobAcctGatherFrequency={policy.accounting_frequency_s}",
        "GresTypes=gpu",
        *_accounting(site),
        *([] if site.cgroups else ["JobAcctGatherParams=OverMemoryKill"]),
        *_nodes(site),
        *_partitions(site),
        *policy.slurm_lines,
    ]
    return "\n".join(lines) + "\n"


def _accounting(site: Site) -> list[str]:
    if not site.policy.accounting:
        return []
    return [
        "AccountingStorageType=accounting_storage/slurmdbd",
        "AccountingStorageHost=127.0.0.1",
        f"AccountingStoragePort={site.database_port}",
        # With munge this is no password but the socket of its daemon.
        f"AccountingStoragePass={site.root}/munge/socket",
        f"AccountingStorageEnforce={site.policy.enforce}",
        "AccountingStorageTRES=gres/gpu",
    ]


def _nodes(site: Site) -> list[str]:
    policy = site.policy
    shape = (
        f"CPUs={policy.cpus_per_node} RealMemory={policy.memory_per_node_mb} "
        f"Gres=gpu:{policy.gpus_per_node} NodeAddr=127.0.0.1"
    )
    return [
        f"NodeName={name} Port={site.first_node_port + index} {shape}" for index, name in enumerate(site.node_names)
    ]


def _partitions(site: Site) -> list[str]:
    """One to use, three to be preempted in or to preempt from, and two where nothing starts."""
    shared = f"Nodes={','.join(site.node_names)} OverSubscribe=NO MaxTime=1-0 DefaultTime=10"
    return [
        f"PartitionName=gpu Default=YES State=UP PriorityTier=5 PreemptMode=OFF {shared}",
        f"PartitionName=low State=UP PriorityTier=1 PreemptMode=REQUEUE GraceTime={site.policy.low_grace_s} {shared}",
        f"PartitionName=lowc State=UP PriorityTier=1 PreemptMode=CANCEL {shared}",
        f"PartitionName=high State=UP PriorityTier=10 PreemptMode=OFF {shared}",
        f"PartitionName=drained State=DRAIN {shared}",
        f"PartitionName=down State=DOWN {shared}",
    ]


def gres_conf(site: Site) -> str:
    """Ordinary empty files stand for the GPUs: they are counted and given out, and nothing is behind them."""
    count = site.policy.gpus_per_node
    if count == 0:
        return ""
    return "".join(
        f"NodeName={name} Name=gpu File={site.root}/gpu/{name}-[0-{count - 1}]\n" for name in site.node_names
    )


def cgroup_conf(site: Site) -> str:
    """Version 1 in any case: version 2 asks for a systemd that a container does not have."""
    lines = ["CgroupPlugin=cgroup/v1", "CgroupAutomount=no"]
    if site.cgroups:
        lines += [f"CgroupMountpoint={site.root}/cgroup", "ConstrainRAMSpace=yes", "ConstrainSwapSpace=no"]
    return "\n".join(lines) + "\n"


def slurmdbd_conf(site: Site) -> str:
    root = site.root
    lines = [
        "AuthType=auth/munge",
        f"AuthInfo={site.auth_info}",
        "DbdHost=localhost",
        "DbdAddr=127.0.0.1",
        f"DbdPort={site.database_port}",
        "SlurmUser=root",
        "StorageType=accounting_storage/mysql",
        "StorageHost=localhost",
        "StoragePort=0",
        "StorageUser=root",
        "StorageLoc=slurm_acct_db",
        f"LogFile={root}/log/slurmdbd.log",
        f"PidFile={root}/run/slurmdbd.slurm-pid",
        "DebugLevel=verbose",
    ]
    return "\n".join(lines) + "\n"
