"""Count what this user runs on this host, from /proc alone: processes, threads, ssh connections, memory.

A process that ends while it is looked at is not counted; one that cannot be read makes the whole count unreadable.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from fleetcraft.fleet.guards.login import LoginEvidence
from fleetcraft.schedulers.local_files import MARK as LOCAL_JOB
from fleetcraft.spool.host import LIFE_VARIABLE, MARK_VARIABLE, host_name

_SSH_PORT = 22
_ESTABLISHED = "01"
_GONE = (FileNotFoundError, ProcessLookupError)
# A process that a scheduler started is no matter of the login node, even where one host is both. Tasks see none of the
# variables (their worker keeps them away), so the processes above and the control group are asked as well.
_JOB_VARIABLES = ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "FLUX_JOB_ID")
_STEP_DAEMONS = frozenset(
    {"slurmd", "slurmstepd", "pbs_mom", "sbatchd", "res", "flux-shell", "flux-broker", "sge_shepherd", "condor_starter"}
)
_JOB_GROUP = re.compile(r"/slurm|/job_\d|/pbs", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """One process of this user."""

    pid: int
    name: str
    threads: int
    memory_bytes: int
    start_ticks: int
    parent: int
    life: str | None = None  # our marks in its environment
    mark: str | None = None
    local_job: str | None = None  # of the scheduler `local`
    in_job: bool = False  # a scheduler's job
    environment_read: bool = True

    @property
    def is_ours(self) -> bool:
        """True when Fleetcraft started it."""
        return self.life is not None or self.mark is not None or self.local_job is not None


def census(*, proc: str = "/proc", uid: int | None = None, host: str | None = None) -> LoginEvidence:
    """Everything that the login guard wants to know. Never raises: what cannot be read is told in `problem`."""
    mine = os.getuid() if uid is None else uid
    here = host or host_name()
    try:
        seen = processes_of(mine, proc)
        sockets = ssh_sockets(mine, proc)
    except (OSError, ValueError) as error:
        return LoginEvidence(host=here, problem=f"{type(error).__name__}: {error}")
    if not seen:
        # At least this very process must be there; a /proc that hides it hides others too.
        return LoginEvidence(host=here, problem=f"{proc} lists no process of user {mine}")
    clients = sum(process.name == "ssh" for process in seen)
    return LoginEvidence(
        host=here,
        processes=len(seen),
        threads=sum(process.threads for process in seen),
        ssh=max(clients, sockets),
        memory_bytes=sum(process.memory_bytes for process in seen),
        ours=sum(process.is_ours for process in seen),
    )


def processes_of(uid: int, proc: str = "/proc") -> list[Seen]:
    """Every living process whose real user is `uid`. Raises OSError when /proc cannot be read."""
    found = {seen.pid: seen for seen in _look_at_all(uid, proc)}
    return [
        seen if seen.in_job or not _is_below_a_job(seen, found, proc) else replace(seen, in_job=True)
        for seen in found.values()
    ]


def _is_below_a_job(seen: Seen, known: Mapping[int, Seen], proc: str) -> bool:
    """Whether a process above it belongs to a scheduler, or is one of its daemons."""
    pid, passed = seen.parent, {seen.pid}
    while pid > 0 and pid not in passed:
        passed.add(pid)
        above = known.get(pid)
        if above is not None:
            if above.in_job or above.name in _STEP_DAEMONS:
                return True
            pid = above.parent
            continue
        try:
            status = _fields(os.path.join(proc, str(pid), "status"))
            name, pid = status["Name"], int(status["PPid"])
        except (OSError, KeyError, ValueError):
            return False  # it ended, or is hidden
        if name in _STEP_DAEMONS:
            return True
    return False


def _look_at_all(uid: int, proc: str) -> Iterator[Seen]:
    for name in os.listdir(proc):
        if not name.isascii() or not name.isdigit():
            continue
        try:
            seen = _look(uid, int(name), os.path.join(proc, name))
        except _GONE:
            continue
        if seen is not None:
            yield seen


def _look(uid: int, pid: int, folder: str) -> Seen | None:
    status = _fields(os.path.join(folder, "status"))
    # The owner of the folder is root for programs that hide their memory (agents, ssh), so it is not asked.
    if int(status["Uid"].split()[0]) != uid or status["State"].startswith(("Z", "X")):
        return None
    with open(os.path.join(folder, "stat"), "rb") as source:
        rest = source.read().rpartition(b")")[2].split()
    environment = _environment(os.path.join(folder, "environ"))
    return Seen(
        pid=pid,
        name=status["Name"],
        threads=int(status["Threads"]),
        memory_bytes=int(status.get("VmRSS", "0 kB").split()[0]) * 1024,
        start_ticks=int(rest[19]),
        parent=int(rest[1]),
        life=(environment or {}).get(LIFE_VARIABLE),
        mark=(environment or {}).get(MARK_VARIABLE),
        local_job=(environment or {}).get(LOCAL_JOB),
        in_job=any(variable in (environment or {}) for variable in _JOB_VARIABLES) or _is_in_group(folder),
        environment_read=environment is not None,
    )


def _is_in_group(folder: str) -> bool:
    try:
        with open(os.path.join(folder, "cgroup"), encoding="utf-8", errors="replace") as source:
            return _JOB_GROUP.search(source.read()) is not None
    except OSError:
        return False


def _fields(path: str) -> dict[str, str]:
    with open(path, encoding="utf-8", errors="replace") as source:
        lines = source.read().splitlines()
    return {key: value.strip() for key, _, value in (line.partition(":") for line in lines)}


def _environment(path: str) -> Mapping[str, str] | None:
    """The variables it was started with; None when we may not look."""
    try:
        with open(path, "rb") as source:
            entries = source.read().split(b"\0")
    except PermissionError:
        return None
    pairs = (entry.partition(b"=") for entry in entries if entry)
    return {os.fsdecode(key): os.fsdecode(value) for key, _, value in pairs}


def ssh_sockets(uid: int, proc: str = "/proc") -> int:
    """Established connections of this user to the ssh port of other hosts. Raises OSError when there is no table."""
    count = 0
    for table in ("net/tcp", "net/tcp6"):
        try:
            with open(os.path.join(proc, table), encoding="ascii") as source:
                lines = source.read().splitlines()[1:]
        except FileNotFoundError:
            if table == "net/tcp":
                raise
            continue  # a kernel without IPv6
        for line in lines:
            words = line.split()
            port = int(words[2].rpartition(":")[2], 16)
            count += port == _SSH_PORT and words[3] == _ESTABLISHED and int(words[7]) == uid
    return count
