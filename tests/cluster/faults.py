"""What can happen to a cluster: every daemon stopped, hung, killed and started again, and nodes without power."""

from __future__ import annotations

import signal

from tests.cluster import conf, machine
from tests.cluster.daemons import Daemon, Daemons, end_hosts, processes_on, signal_process
from tests.cluster.login import Login
from tests.support.waiting import wait_for


class Faults(Login):
    """A cluster and its daemons, by what they do."""

    daemons: Daemons

    # The controller

    def start_controller(self) -> None:
        argv = [machine.program("slurmctld"), "-D", "-f", str(self.root / "etc" / "slurm.conf")]
        daemon = self.daemons.start("slurmctld", argv, host=conf.CONTROLLER_HOST)
        self.daemons.wait_ready(daemon, lambda: machine.is_open(self.site.controller_port))

    def stop_controller(self) -> None:
        """As an administrator does: it saves its state first."""
        self.daemons.end("slurmctld")

    def kill_controller(self) -> None:
        self.daemons.end("slurmctld", signal.SIGKILL)

    def pause_controller(self) -> None:
        """It hangs: connections are taken by the kernel, and nobody answers."""
        self._running("slurmctld").send(signal.SIGSTOP)

    def resume_controller(self) -> None:
        self._running("slurmctld").send(signal.SIGCONT)

    def controller_answers(self) -> bool:
        answer = self.run(["scontrol", "ping"], user="root", check=False)
        return answer.returncode == 0 and "is UP" in answer.stdout

    # Accounting

    def start_database(self) -> None:
        """Start slurmdbd (MariaDB runs all the time)."""
        daemon = self.daemons.start("slurmdbd", [machine.program("slurmdbd"), "-D"])
        self.daemons.wait_ready(daemon, lambda: machine.is_open(self.site.database_port))

    def stop_database(self) -> None:
        self.daemons.end("slurmdbd")

    def accounts_reach_the_controller(self) -> bool:
        """Whether the accounting daemon knows where the controller listens."""
        words = ["sacctmgr", "-n", "-P", "show", "cluster", conf.CLUSTER_NAME, "format=ControlPort"]
        answer = self.run(words, user="root", check=False)
        return answer.returncode == 0 and answer.stdout.strip() == str(self.site.controller_port)

    def pause_database(self) -> None:
        self._running("slurmdbd").send(signal.SIGSTOP)

    def resume_database(self) -> None:
        self._running("slurmdbd").send(signal.SIGCONT)

    # Nodes

    def kill_node(self, name: str) -> None:
        """A power cut: slurmd, every step and every process of the node end at once, and nobody tells anybody."""
        daemon = self._node(name)
        machine.thaw(self.root, f"slurm_{name}")
        daemon.send(signal.SIGKILL)
        end_hosts({daemon.uts})
        daemon.wait_gone()
        machine.remove_cgroups(self.root, f"slurm_{name}")

    def start_node(self, name: str) -> None:
        """Power is back: slurmd starts, with a host name of its own again."""
        self._spawn_node(name)
        wait_for(
            lambda: machine.is_open(self.site.first_node_port + self.site.node_names.index(name)),
            f"slurmd of {name} listens",
            seen=lambda: self.daemons.said(f"slurmd-{name}"),
        )

    def node_processes(self, name: str) -> list[int]:
        """The pids on a node: slurmd, its steps, and whatever they started."""
        daemon = self._node(name)
        return processes_on(daemon.uts)

    def _node(self, name: str) -> Daemon:
        daemon = self.daemons.find(f"slurmd-{name}")
        assert daemon is not None, f"there is no node {name}; there are {', '.join(self.site.node_names)}"
        return daemon

    def _spawn_node(self, name: str) -> None:
        argv = [machine.program("slurmd"), "-D", "-N", name, "-f", str(self.root / "etc" / "slurm.conf")]
        self.daemons.start(f"slurmd-{name}", argv, host=name)

    def pause_node(self, name: str) -> None:
        """The node hangs: slurmd and everything on it stand still, and the machine is up."""
        for pid in self.node_processes(name):
            signal_process(pid, signal.SIGSTOP)

    def resume_node(self, name: str) -> None:
        for pid in self.node_processes(name):
            signal_process(pid, signal.SIGCONT)

    # All of it

    def mend(self) -> None:
        """Undo every fault of daemons and nodes; jobs go on."""
        for name in self.node_names:
            self.resume_node(name)
        for daemon in self.daemons.all():
            daemon.send(signal.SIGCONT)
        if self.policy.accounting and not self._runs("slurmdbd"):
            self.start_database()
        if not self._runs("slurmctld"):
            self.start_controller()
        for name in self.node_names:
            if not self._runs(f"slurmd-{name}"):
                self.start_node(name)

    def restore(self, deadline_s: float = 60.0) -> None:
        """Undo every fault and end every job, so that the next test finds the cluster as new."""
        self.end_background()
        self.mend()
        self.cancel_all(deadline_s)
        for name, state in self.node_states().items():
            if state.startswith(("down", "drain")) and not state.endswith("*"):
                self.run(["scontrol", "update", f"NodeName={name}", "State=RESUME"], user="root", check=False)
        self.wait_for(self.all_idle, "every node is idle again", deadline_s, self.node_states)
        if self.policy.accounting:
            # A daemon that was started anew has to hear of the other first: until then no change of an account, such
            # as a new QOS, reaches the controller.
            self.wait_for(self.accounts_reach_the_controller, "the accounts know the controller", deadline_s)

    def _running(self, name: str) -> Daemon:
        daemon = self.daemons.find(name)
        assert daemon is not None, f"{name} was never started"
        assert daemon.alive, f"{name} does not run"
        return daemon

    def _runs(self, name: str) -> bool:
        daemon = self.daemons.find(name)
        return daemon is not None and daemon.alive

    # What stands under all of it

    def _start_munged(self) -> None:
        folder = self.root / "munge"
        argv = [
            machine.program("munged"),
            "--foreground",
            f"--socket={folder}/socket",
            f"--key-file={folder}/key",
            f"--pid-file={folder}/pid",
            f"--seed-file={folder}/seed",
            f"--log-file={folder}/log",
        ]
        daemon = self.daemons.start("munged", argv)
        self.daemons.wait_ready(daemon, (folder / "socket").exists)

    def _start_mariadb_first_time(self) -> Daemon:
        folder = self.root / "mariadb"
        folder.mkdir()
        install = [
            machine.program("mariadb-install-db"),
            "--no-defaults",
            f"--datadir={folder}/data",
            "--user=root",
            "--auth-root-authentication-method=socket",
            "--skip-test-db",
        ]
        made = self.run(install, user="root", check=False)
        assert made.returncode == 0, f"mariadb-install-db failed: {made.stdout}{made.stderr}"
        return self.daemons.start(
            "mariadbd",
            [
                machine.program("mariadbd"),
                "--no-defaults",
                f"--datadir={folder}/data",
                f"--socket={folder}/socket",
                f"--pid-file={folder}/pid",
                "--user=root",
                "--skip-networking",
                "--skip-log-bin",
                "--innodb-buffer-pool-size=64M",
                # A power cut of the real machine may lose this database: it is gone with it anyway.
                "--innodb-flush-log-at-trx-commit=0",
                "--innodb-doublewrite=0",
            ],
        )

    def _create_database(self) -> None:
        daemon = self.daemons.find("mariadbd")
        assert daemon is not None
        argv = [machine.program("mariadb"), "--no-defaults", f"--socket={self.root}/mariadb/socket", "-e"]

        def create() -> bool:
            return (
                self.run([*argv, "create database if not exists slurm_acct_db"], user="root", check=False).returncode
                == 0
            )

        self.daemons.wait_ready(daemon, create)
