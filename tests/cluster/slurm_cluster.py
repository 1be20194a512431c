"""A real Slurm with accounting on this machine: munged, MariaDB, slurmdbd, slurmctld and one slurmd per node.

Everything lies in one folder under the temporary directory and on ports of its own, so that several clusters may
run beside each other and nothing of the machine is changed, but for one ordinary user without a password.
"""

from __future__ import annotations

import os
import pwd
import random
import shutil
import tempfile
from pathlib import Path
from typing import Self

from tests.cluster import conf, keeping, machine
from tests.cluster.daemons import Daemons
from tests.cluster.faults import Faults
from tests.cluster.policy import ClusterPolicy

# Where the logs of a cluster go when a test failed.
LOGS = Path(__file__).parents[2] / "build" / "cluster-logs"
_LOG_BYTES = 200_000


class SlurmCluster(Faults):
    """One cluster, of the process that started it: when that ends, however it ends, a keeper takes it down."""

    def __init__(self, root: Path, lock: keeping.Lock) -> None:
        self.root = root
        self._lock = lock
        self._keeper: int | None = None
        self.background = []
        self.user: pwd.struct_passwd = machine.ensure_user()
        self.daemons = Daemons(root, self._daemon_environment())
        self.no_cgroups: str | None = None  # the reason why the kernel does not keep memory in bounds

    # From the first file to the last process

    @classmethod
    def start(cls, policy: ClusterPolicy | None = None) -> Self:
        """Bring a cluster up; nothing of it is left when that fails."""
        reason = machine.why_not()
        if reason is not None:
            raise RuntimeError(reason)
        root = Path(tempfile.mkdtemp(prefix="fleetcraft-cluster-"))
        root.chmod(0o755)  # the user reads its configuration
        for name in ("etc", "log", "run"):
            (root / name).mkdir()
        cluster = cls(root, keeping.Lock(root))
        try:
            # First, so that even a test process that is killed right now leaves nothing behind.
            cluster._keeper = keeping.start_keeper(root)
            cluster._bring_up(policy or ClusterPolicy())
        except BaseException:
            cluster.save_logs(LOGS / root.name)
            cluster.close()
            raise
        return cluster

    def close(self) -> None:
        """Take it down. A second call does nothing."""
        self.end_background()
        if self._lock.is_held:
            take_down(self.root)
            self._lock.release()
            if self._keeper is not None:
                os.waitpid(self._keeper, 0)  # it ends as soon as it has the lock

    def __enter__(self) -> Self:
        return self

    def __exit__(self, error: object, *_rest: object) -> None:
        if error is not None:
            self.save_logs(LOGS / self.root.name)
        self.close()

    def _bring_up(self, policy: ClusterPolicy) -> None:
        with machine.only_one_starts():
            self._choose_site(policy)
            self._write_files()
            database = self._start_mariadb_first_time() if policy.accounting else None
            self._start_munged()
            if database is not None:
                self._create_database()
                self.start_database()
                self._register()
            self.start_controller()
            for name in self.node_names:
                self._spawn_node(name)
        self.wait_for(self.all_idle, "every node is idle", 60.0, self.node_states)

    def _choose_site(self, policy: ClusterPolicy) -> None:
        first = machine.free_ports(policy.nodes + 2)
        self.no_cgroups = machine.why_no_cgroups() if policy.cgroups else "the policy of the cluster wants none"
        self.site = conf.Site(
            root=self.root,
            policy=policy,
            controller_port=first,
            database_port=first + 1,
            first_node_port=first + 2,
            # Ids differ from cluster to cluster, as they do between sites.
            first_job_id=random.randrange(1_000, 60_000),
            cgroups=self.no_cgroups is None,
        )

    def _write_files(self) -> None:
        root = self.root
        for folder in ("state", "spool", "gpu", "shared", "home", "munge", *(f"spool/{n}" for n in self.node_names)):
            (root / folder).mkdir()
        (root / "shared").chmod(0o1777)
        os.chown(root / "home", self.user.pw_uid, self.user.pw_gid)
        for name in self.node_names:
            for index in range(self.policy.gpus_per_node):
                (root / "gpu" / f"{name}-{index}").touch()
        (root / "etc" / "slurm.conf").write_text(conf.slurm_conf(self.site))
        (root / "etc" / "gres.conf").write_text(conf.gres_conf(self.site))
        (root / "etc" / "cgroup.conf").write_text(conf.cgroup_conf(self.site))
        secret = root / "etc" / "slurmdbd.conf"
        secret.touch(mode=0o600)  # slurmdbd refuses a file that others may read
        secret.write_text(conf.slurmdbd_conf(self.site))
        key = root / "munge" / "key"
        key.touch(mode=0o600)
        key.write_bytes(os.urandom(128))
        if self.site.cgroups:
            machine.make_cgroups(root)

    def _register(self) -> None:
        self.sacctmgr("add", "cluster", conf.CLUSTER_NAME)
        self.sacctmgr("add", "account", conf.ACCOUNT, f"Cluster={conf.CLUSTER_NAME}")
        self.sacctmgr("add", "user", f"root,{machine.USER}", f"Account={conf.ACCOUNT}")
        for words in self.policy.sacctmgr:
            self.sacctmgr(*words)

    def save_logs(self, target: Path) -> list[Path]:
        """Copy the ends of all logs, and the configuration, for who looks into a failure."""
        target.mkdir(parents=True, exist_ok=True)
        saved = []
        for path in sorted([*(self.root / "log").glob("*"), self.slurm_conf]):
            copy = target / path.name
            copy.write_bytes(path.read_bytes()[-_LOG_BYTES:])
            saved.append(copy)
        return saved

    def _daemon_environment(self) -> dict[str, str]:
        socket = str(self.root / "mariadb" / "socket")
        return {**self.environment("root"), "HOME": str(self.root / "etc"), "MYSQL_UNIX_PORT": socket, "TZ": "UTC"}


def take_down(root: Path) -> None:
    """End every process of a cluster and remove its folder; also for one whose test process was killed."""
    machine.thaw(root)
    Daemons(root, {}).end_all()
    left = machine.remove_cgroups(root)
    shutil.rmtree(root)
    if left:
        raise RuntimeError(f"control groups that could not be removed: {'; '.join(left)}")
