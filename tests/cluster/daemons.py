"""The processes of a test cluster: started apart from the tests, recorded by pid, and always ended.

A record holds pid and start time, so that a number that was given to somebody else is never signalled. A node is
a UTS namespace: every process that belongs to one is found there, however it was started or detached.
"""

from __future__ import annotations

import json
import os
import signal
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.cluster import machine
from tests.support.waiting import wait_for


@dataclass(frozen=True, slots=True, kw_only=True)
class Daemon:
    """One running program of the cluster, known by the file that records it."""

    name: str
    pid: int
    start_ticks: int
    uts: int  # the namespace of its host name

    @property
    def alive(self) -> bool:
        _reap(self.pid)
        return _start_ticks(self.pid) == self.start_ticks

    def send(self, number: int) -> None:
        if self.alive:
            signal_process(self.pid, number)

    def wait_gone(self, deadline_s: float = 60.0) -> None:
        wait_for(lambda: not self.alive, f"{self.name} (pid {self.pid}) has ended", deadline_s)


class Daemons:
    """The daemons of one cluster, by the records in its `run` folder."""

    def __init__(self, root: Path, environment: Mapping[str, str]) -> None:
        self._run = root / "run"
        self._log = root / "log"
        self._environment = dict(environment)

    def start(self, name: str, argv: Sequence[str], *, host: str | None = None) -> Daemon:
        """Start a program that stays in the foreground, in a session of its own, perhaps on a host of its own."""
        known = self.find(name)
        if known is not None and known.alive:
            raise RuntimeError(f"{name} runs already, as process {known.pid}")
        words = list(argv)
        if host is not None:
            # A boot id of its own, new at each start: no process of another node may pass for one of this machine.
            boot = self._run / f"{name}.boot"
            boot.write_text(f"{uuid.uuid4()}\n")
            script = (
                f"echo {host} > /proc/sys/kernel/hostname && "
                f'mount --bind {boot} /proc/sys/kernel/random/boot_id && exec "$@"'
            )
            words = [machine.program("unshare"), "--uts", "--mount", "/bin/sh", "-c", script, name, *words]
        output = os.open(self._log / f"{name}.out", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            # Not by subprocess: the daemon may well outlive the process that started it, for another test process.
            pid = os.posix_spawn(
                words[0],
                words,
                self._environment,
                setsid=True,
                file_actions=[
                    (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
                    (os.POSIX_SPAWN_DUP2, output, 1),
                    (os.POSIX_SPAWN_DUP2, output, 2),
                ],
            )
        finally:
            os.close(output)
        ours = os.stat("/proc/self/ns/uts").st_ino
        if host is not None:
            # Recorded only when the namespace stands: the record is what finds the node's processes later.
            wait_for(lambda: _uts(pid) not in (None, ours) or _start_ticks(pid) is None, f"{name} has its host name")
        ticks, uts = _start_ticks(pid), _uts(pid)
        if ticks is None or uts is None:
            raise RuntimeError(f"{name} ended at once; it said: {self.said(name)}")
        daemon = Daemon(name=name, pid=pid, start_ticks=ticks, uts=uts)
        record = self._run / f"{name}.json"
        scratch = record.with_suffix(".new")
        scratch.write_text(json.dumps({"pid": pid, "start_ticks": ticks, "uts": uts}))
        scratch.rename(record)
        return daemon

    def find(self, name: str) -> Daemon | None:
        """The newest daemon of that name, whether it lives or not."""
        try:
            fields = json.loads((self._run / f"{name}.json").read_text())
        except FileNotFoundError:
            return None
        return Daemon(name=name, **fields)

    def all(self) -> list[Daemon]:
        return [daemon for path in sorted(self._run.glob("*.json")) if (daemon := self.find(path.stem)) is not None]

    def said(self, name: str) -> str:
        """The end of what it printed and logged."""
        texts = [
            path.read_text(errors="replace")[-3000:] for path in sorted(self._log.glob(f"*{name}*")) if path.is_file()
        ]
        return "\n".join(texts)

    def wait_ready(self, daemon: Daemon, ready: Callable[[], bool], deadline_s: float = 60.0) -> None:
        """Wait until it answers; a daemon that ended before says why."""

        def look() -> bool:
            if not daemon.alive:
                raise RuntimeError(f"{daemon.name} ended before it was ready; it said:\n{self.said(daemon.name)}")
            return ready()

        wait_for(look, f"{daemon.name} answers", deadline_s, lambda: self.said(daemon.name))

    def end(self, name: str, number: int = signal.SIGTERM, deadline_s: float = 60.0) -> None:
        """End one daemon, also when it is suspended, and wait until it is gone."""
        daemon = self.find(name)
        if daemon is None:
            return
        daemon.send(number)
        daemon.send(signal.SIGCONT)
        daemon.wait_gone(deadline_s)

    def end_all(self) -> None:
        """End everything at once, and every process in a host name of the cluster."""
        ours = os.stat("/proc/self/ns/uts").st_ino
        daemons = self.all()
        for daemon in daemons:
            daemon.send(signal.SIGKILL)
        end_hosts({daemon.uts for daemon in daemons} - {ours})
        for daemon in daemons:
            daemon.wait_gone()


def end_hosts(namespaces: set[int], deadline_s: float = 60.0) -> None:
    """Kill every process that has one of these host names, as a power cut would: nobody gets to clean up."""

    def nobody_left() -> bool:
        members = [pid for pid in _pids() if _uts(pid) in namespaces]
        for pid in members:
            signal_process(pid, signal.SIGKILL)
            _reap(pid)
        return not members

    if namespaces:
        wait_for(nobody_left, f"no process in the UTS namespaces {sorted(namespaces)}", deadline_s)


def signal_process(pid: int, number: int) -> None:
    """Signal a process that may have ended a moment ago."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass


def processes_on(namespace: int) -> list[int]:
    """The pids of everything that runs with that host name."""
    return [pid for pid in _pids() if _uts(pid) == namespace]


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _uts(pid: int) -> int | None:
    """The namespace of a process; None when it is gone or only its exit code is left."""
    try:
        return os.stat(f"/proc/{pid}/ns/uts").st_ino
    except OSError:
        return None


def _start_ticks(pid: int) -> int | None:
    """When a process started; None when it is gone or only its exit code is left."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else int(fields[19])


def _reap(pid: int) -> None:
    """Collect it when it is our child and has ended."""
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        pass
