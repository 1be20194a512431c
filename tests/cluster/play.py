"""`make cluster`: a Slurm cluster to play with, in the foreground until Ctrl-C."""

from __future__ import annotations

import argparse
import signal
import sys
import time

from tests.cluster import machine, usercode
from tests.cluster.policy import ClusterPolicy
from tests.cluster.slurm_cluster import SlurmCluster

_USE = """
The cluster is up ({took_s:.0f} s): {nodes}, each with {cpus} processors and {gpus} GPUs that are counted but not there.
Partitions: gpu (default), low and lowc (preempted by high), high, drained, down.

As root, in another terminal:

    export SLURM_CONF={conf} PATH=$PATH:/usr/sbin
    sinfo
    sbatch -N2 --gpus-per-node=2 -D {shared} --wrap 'srun hostname'; squeue

As the ordinary user {user}, in a shell where Slurm and fleetcraft are at hand:

    {login}

Logs: {root}/log   A power cut of n1: end its slurmd and all that it started (kill_node in tests/cluster/faults.py).
{memory}
Ctrl-C takes it down, and removes {root}.
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=4, metavar="N", help="how many nodes (default: 4)")
    parser.add_argument("--gpus", type=int, default=4, metavar="N", help="GPUs per node (default: 4)")
    parser.add_argument("--real-timers", action="store_true", help="wait as long as a real site does")
    options = parser.parse_args()
    reason = machine.why_not()
    if reason is not None:
        sys.stderr.write(f"{reason}\n")
        return 1
    policy = ClusterPolicy(nodes=options.nodes, gpus_per_node=options.gpus)
    began_s = time.monotonic()
    # Whoever starts it in the background of a script hands SIGINT on as ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with SlurmCluster.start(policy.with_real_timers() if options.real_timers else policy) as cluster:
            sys.stdout.write(_describe(cluster, time.monotonic() - began_s))
            sys.stdout.flush()
            while True:
                signal.pause()
    except KeyboardInterrupt:
        sys.stdout.write("\nThe cluster is down.\n")
    return 0


def _describe(cluster: SlurmCluster, took_s: float) -> str:
    python = usercode.python_for_user(cluster)
    shell = cluster.root / "login"
    # A file, because nobody wants to type the environment of a login.
    words = " ".join(_quoted(word) for word in cluster.user_argv(["/bin/bash", "--norc"], _variables(cluster, python)))
    shell.write_text(f"#!/bin/sh\ncd {cluster.shared} && exec {words}\n")
    shell.chmod(0o700)
    alias = cluster.root / "bin" / "fleetcraft"
    alias.parent.mkdir()
    alias.write_text(f'#!/bin/sh\nexec {" ".join(python.argv())} "$@"\n')
    alias.chmod(0o755)
    memory = (
        f"Memory is not kept in bounds by the kernel: {cluster.no_cgroups}\n"
        if cluster.no_cgroups
        else "A job that takes more memory than it asked for ends as OUT_OF_MEMORY.\n"
    )
    return _USE.format(
        took_s=took_s,
        nodes=f"{cluster.node_names[0]} to {cluster.node_names[-1]}",
        cpus=cluster.policy.cpus_per_node,
        gpus=cluster.policy.gpus_per_node,
        conf=cluster.slurm_conf,
        shared=cluster.shared,
        user=cluster.user.pw_name,
        login=shell,
        root=cluster.root,
        memory=memory,
    )


def _variables(cluster: SlurmCluster, python: usercode.UserPython) -> dict[str, str]:
    return {**python.env, "PATH": f"{cluster.root}/bin:{machine.PATH}", "PS1": "[cluster] $ ", "TERM": "xterm"}


def _quoted(word: str) -> str:
    return "'" + word.replace("'", "'\\''") + "'"


if __name__ == "__main__":
    sys.exit(main())
