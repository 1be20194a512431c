"""What a site says about itself, in texts that Slurm 22.05.8 printed."""

from __future__ import annotations

from fleetcraft.schedulers.slurm_limits import allowed_qos, read_associations, read_qos
from fleetcraft.schedulers.slurm_quantities import gpu_types_in, gpus_in, read_tres
from fleetcraft.schedulers.slurm_site import (
    config_number,
    config_seconds,
    read_config,
    read_nodes,
    read_partitions,
    read_sinfo,
    scheduler_parameter,
    with_nodes,
)

_PARTITIONS = (
    "PartitionName=gpu AllowGroups=ALL AllowAccounts=ALL Default=YES QoS=N/A DefaultTime=00:10:00 MaxNodes=UNLIMITED "
    "MaxTime=1-00:00:00 MinNodes=0 MaxCPUsPerNode=UNLIMITED Nodes=n[1-4] PriorityTier=5 PreemptMode=OFF State=UP "
    "TotalCPUs=32 TotalNodes=4 DefMemPerNode=UNLIMITED TRES=cpu=32,mem=24000M,node=4,billing=32,gres/gpu=16\n"
    "PartitionName=low Default=NO QoS=part MaxNodes=2 MaxTime=UNLIMITED Nodes=n[1-4] PreemptMode=GANG,REQUEUE State=UP "
    "TotalCPUs=32 TotalNodes=4 TRES=cpu=32,mem=24000M,node=4\n"
)
_NODES = (
    "NodeName=n1 Arch=x86_64 CoresPerSocket=1  CPUAlloc=4 CPUEfctv=8 CPUTot=8 CPULoad=1.03 Gres=gpu:4 NodeAddr=10.0.0.1"
    " OS=Linux 6.1.0 #1 SMP PREEMPT_DYNAMIC  RealMemory=6000 AllocMem=500 State=MIXED ThreadsPerCore=1 "
    "Partitions=gpu,low  BootTime=1796067578 CfgTRES=cpu=8,mem=6000M,billing=8,gres/gpu=4 "
    "AllocTRES=cpu=4,mem=500M,gres/gpu=2 CapWatts=n/a\n"
    "NodeName=n2 CPUAlloc=0 CPUTot=8 Gres=gpu:a100:2(S:0-1) RealMemory=6000 State=IDLE+PLANNED Partitions=gpu "
    "CfgTRES=cpu=8,mem=6000M,billing=8,gres/gpu=2,gres/gpu:a100=2 AllocTRES= CapWatts=n/a\n"
    "NodeName=n3 CPUAlloc=0 CPUTot=8 Gres=(null) RealMemory=6000 State=DOWN*+DRAIN Partitions=gpu CfgTRES=cpu=8 "
    "AllocTRES= Reason=Not responding [slurm@2031-01-01T00:00:00]\n"
)


def test_partitions_tell_what_they_allow():
    partitions, problems = read_partitions(_PARTITIONS + "\nscontrol: something else\n")
    assert len(problems) == 1
    gpu, low = partitions
    assert (gpu.name, gpu.state, gpu.is_default, gpu.time_limit_s, gpu.max_nodes) == ("gpu", "UP", True, 86400, None)
    assert (gpu.nodes, gpu.cpus_per_node, gpu.gpus_per_node) == (4, 8, 4)
    assert gpu.memory_per_node_bytes == 6000 * 1024**2
    assert (gpu.qos, gpu.preemptible) == ("", False)
    assert (low.is_default, low.time_limit_s, low.max_nodes, low.gpus_per_node) == (False, None, 2, None)
    assert (low.qos, low.preemptible) == ("part", True)


def test_nodes_tell_what_they_have_and_what_is_taken():
    nodes, problems = read_nodes(_NODES + "no node\n")
    assert len(problems) == 1
    one, two, three = nodes
    assert (one.name, one.state, one.usable, one.gpus, one.gpus_allocated) == ("n1", "mixed", True, 4, 2)
    assert (one.cpus, one.cpus_allocated, one.memory_bytes) == (8, 4, 6000 * 1024**2)
    assert one.partitions == ("gpu", "low")
    assert (two.state, two.flags, two.usable, two.gpus, two.gpu_types) == ("idle", ("planned",), True, 2, ("a100",))
    assert two.gpus_allocated == 0
    assert (three.state, three.usable, three.gpus) == ("down", False, 0)
    assert set(three.flags) == {"drain", "not_responding"}
    assert (one.down, two.down) == ("", "")
    assert three.down.startswith("down and not_responding: Not responding [slurm@")
    assert three.reason.startswith("Not responding [slurm@")


def test_a_partition_is_as_large_as_its_smallest_node():
    gpu = with_nodes(read_partitions(_PARTITIONS)[0][0], read_nodes(_NODES)[0])
    assert (gpu.gpus_per_node, gpu.cpus_per_node, gpu.idle_nodes, gpu.gpu_types) == (0, 8, 1, ("a100",))


def test_sinfo_rows():
    rows, problems = read_sinfo(
        "gpu\x1fup\x1f1-00:00:00\x1f2\x1fidle*\x1f8+\x1f6000+\x1fgpu:a100:4(S:0-1)\x1fn[3-4]\n"
        "low\x1fup\x1finfinite\x1f2\x1fmixed\x1f8\x1f6000\x1f(null)\x1fn[1-2]\nshort\x1frow\n"
    )
    assert len(problems) == 1
    assert (rows[0].state, rows[0].gpus, rows[0].gpu_types, rows[0].cpus) == ("idle", 4, ("a100",), 8)
    assert rows[0].memory_bytes == 6000 * 1024**2
    assert (rows[1].time_limit_s, rows[1].gpus, rows[1].nodes_text) == (None, None, "n[1-2]")


def test_accounts_and_qos():
    accounts, problems = read_associations("test|acct|ann||normal,+tiny||4|9||||||\ntoo|short\n")
    assert len(problems) == 1
    assert (accounts[0].where, accounts[0].max_jobs, accounts[0].max_submit) == ("association acct/ann", 4, 9)
    assert (accounts[0].account, accounts[0].partition, accounts[0].qos) == ("acct", "", "")
    (inside,), _ = read_associations("test|acct|ann|gpu|normal|||||||||\n")
    assert (inside.where, inside.account, inside.partition) == ("association acct/ann in gpu", "acct", "gpu")
    assert allowed_qos("test|acct|ann||normal,+tiny|||||||||\n") == ("normal", "tiny")
    qos, problems = read_qos(
        "normal|||||||||||cluster\ntiny||3|2|gres/gpu=3,node=4|node=2|00:05:00|gres/gpu=8||1||cluster\n"
    )
    assert problems == ()
    assert (qos[0].where, qos[0].max_submit, qos[0].max_gpus) == ("QOS normal", None, None)
    assert (qos[0].qos, qos[0].account, qos[0].partition) == ("normal", "", "")
    tiny = qos[1]
    assert (tiny.max_jobs, tiny.max_submit, tiny.max_gpus, tiny.max_nodes) == (1, 2, 3, 4)
    assert (tiny.max_nodes_per_job, tiny.max_wall_s) == (2, 300)


def test_configuration():
    config = read_config(
        "Configuration data as of 1796080807\nMinJobAge               = 300 sec\nMaxArraySize            = 1001\n"
        "SchedulerParameters     = bf_interval=1,max_array_tasks=500\nSlurmctldHost[0]        = vm(127.0.0.1)\n\n"
        "Slurmctld(primary) at vm is UP\n"
    )
    assert config_seconds(config["MinJobAge"]) == 300
    assert config_number(config["MaxArraySize"]) == 1001
    assert config_number("UNLIMITED") is None
    assert config["SlurmctldHost[0]"] == "vm(127.0.0.1)"
    assert scheduler_parameter(config, "max_array_tasks") == 500
    assert scheduler_parameter(config, "requeue_delay") is None


def test_resource_texts():
    assert read_tres("cpu=8,mem=6000M,gres/gpu=4,billing=x") == {"cpu": 8, "mem": 6000 * 1024**2, "gres/gpu": 4}
    assert read_tres("mem=500") == {"mem": 500 * 1024**2}
    assert [gpus_in(text) for text in ("gres:gpu:2", "gres/gpu:a100:3", "gpu", "gpu:h100:1,gpu:a100:2")] == [2, 3, 1, 3]
    assert gpus_in("gres/gpu=4,gres/gpu:a100=4") == 4
    assert [gpus_in(text) for text in ("N/A", "(null)", "", "nvme:1")] == [None, None, None, 0]
    assert gpu_types_in("gpu:h100:1,gpu:a100:2(IDX:0-1)") == ("a100", "h100")
