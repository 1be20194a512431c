"""End what Fleetcraft started on a login node and left there, and nothing else.

Known are the marks in a process's environment and the identity files of workers. Pid and start time are compared at
the last moment, through a descriptor of the process, so that a pid that was given out again is never signalled.
"""

from __future__ import annotations

import json
import os
import re
import select
import signal
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from fleetcraft.core.clock import Clock
from fleetcraft.core.decision import Decision
from fleetcraft.core.names import make_life_id
from fleetcraft.fleet.guards.census import Seen
from fleetcraft.fleet.guards.login import is_login_host
from fleetcraft.spool import host
from fleetcraft.spool.host import Identity


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One process to end, and how we know that it is ours."""

    pid: int
    start_ticks: int
    name: str
    because: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """What became of one target."""

    target: Target
    outcome: str  # ended, killed, gone, still there, not permitted
    note: str = ""


def may_reap(here: str, patterns: tuple[str, ...]) -> Decision:
    """Only where the site says that this is a login node: on a compute node the same marks are the work itself."""
    is_login = is_login_host(here, patterns)
    if is_login:
        return Decision.allow(f"{here} is a login node", host=here, hosts=list(patterns))
    if is_login is None:
        return Decision.refuse(f"no profile says whether {here} is a login node", host=here, hosts=[])
    return Decision.refuse(f"{here} is not a login node", host=here, hosts=list(patterns))


def worker_identities(spools: Iterable[str]) -> Iterator[Identity]:
    """The identity files of the worker lives in these spools; a damaged one names nobody."""
    for spool in spools:
        folder = os.path.join(spool, "workers")
        try:
            lives = os.listdir(folder)
        except OSError:
            continue
        for life in lives:
            try:
                with open(os.path.join(folder, life, "identity.json"), "rb") as source:
                    yield Identity.from_json(json.load(source))
            except (OSError, ValueError, KeyError, TypeError):
                continue


def choose(seen: Sequence[Seen], identities: Iterable[Identity], me: int, here: str) -> list[Target]:
    """Workers first, then what carries a mark.

    Never this process or one above it, nothing of a scheduler's job, and nothing that was started on another host than
    `here`: one kernel may play several.
    """
    spared = _line_above(seen, me)
    by_pid = {process.pid: process for process in seen if process.pid not in spared and not process.in_job}
    boot, namespace = host.boot_id(), host.pid_namespace()
    found: dict[int, Target] = {}
    for identity in identities:
        process = by_pid.get(identity.pid)
        if process is None or identity.kind != "worker" or boot is None or identity.boot_id != boot:
            continue
        if identity.host != here:
            continue
        if identity.pid_namespace == namespace and identity.start_ticks == process.start_ticks:
            found[process.pid] = _target(process, f"the worker of life {identity.life}")
    for process in by_pid.values():
        if process.pid not in found and (_is_life_of(process.life, here) or process.local_job is not None):
            found[process.pid] = _target(process, _origin(process))
    return list(found.values())


def _target(process: Seen, because: str) -> Target:
    return Target(pid=process.pid, start_ticks=process.start_ticks, name=process.name, because=because)


def _is_life_of(life: str | None, here: str) -> bool:
    """Whether the mark names a worker life of this host; a mark of any other form is not ours."""
    if life is None:
        return False
    begin = make_life_id(here, 0, "x").removesuffix("-0-x")
    return re.fullmatch(rf"{re.escape(begin)}-[0-9]+-[0-9a-z]+", life) is not None


def _origin(process: Seen) -> str:
    if process.life is None and process.local_job is not None:
        return f"of the local job {os.path.basename(process.local_job)}"
    return f"started by life {process.life or '?'}"


def _line_above(seen: Sequence[Seen], pid: int) -> set[int]:
    parents = {process.pid: process.parent for process in seen}
    line = {pid}
    while pid in parents and parents[pid] not in line:
        pid = parents[pid]
        line.add(pid)
    return line


def end(targets: Sequence[Target], clock: Clock, grace_s: float = 10.0) -> list[Ending]:
    """Ask each to end, wait for all of them together, kill what stayed."""
    endings: list[Ending] = []
    asked: list[tuple[Target, int]] = []
    try:
        for target in targets:
            opened = _open(target)
            if isinstance(opened, Ending):
                endings.append(opened)
                continue
            asked.append((target, opened))
        for target, descriptor in list(asked):
            refused = _signal(target, descriptor, signal.SIGTERM)
            if refused is not None:
                endings.append(refused)
                asked.remove((target, descriptor))
                os.close(descriptor)
        left = _wait([descriptor for _, descriptor in asked], clock, grace_s)
        for _, descriptor in asked:
            if descriptor in left:
                _signal_quietly(descriptor, signal.SIGKILL)
        stuck = _wait(left, clock, grace_s)
        for target, descriptor in asked:
            endings.append(_outcome(target, descriptor, left, stuck))
    finally:
        for _, descriptor in asked:
            os.close(descriptor)
    return endings


def _outcome(target: Target, descriptor: int, left: list[int], stuck: list[int]) -> Ending:
    if descriptor in stuck:
        channel = host.waiting_channel(target.pid)
        return Ending(target=target, outcome="still there", note=f"it waits in the kernel: {channel or 'unknown'}")
    return Ending(target=target, outcome="killed" if descriptor in left else "ended")


def _open(target: Target) -> int | Ending:
    """A descriptor of exactly that process: whatever the pid becomes later, the descriptor stays with it."""
    try:
        descriptor = os.pidfd_open(target.pid)
    except ProcessLookupError:
        return Ending(target=target, outcome="gone")
    except OSError as error:
        return Ending(target=target, outcome="not permitted", note=str(error))
    now = host.process(target.pid)
    if now is None or now.is_gone or now.start_ticks != target.start_ticks:
        os.close(descriptor)
        return Ending(target=target, outcome="gone", note="" if now is None else "the pid is another process now")
    return descriptor


def _signal(target: Target, descriptor: int, number: int) -> Ending | None:
    try:
        signal.pidfd_send_signal(descriptor, number)
    except ProcessLookupError:
        return Ending(target=target, outcome="gone")
    except OSError as error:
        return Ending(target=target, outcome="not permitted", note=str(error))
    return None


def _signal_quietly(descriptor: int, number: int) -> None:
    try:
        signal.pidfd_send_signal(descriptor, number)
    except OSError:
        return  # it ended between the wait and the signal; the next wait tells


def _wait(descriptors: list[int], clock: Clock, timeout_s: float) -> list[int]:
    """Those that have not ended when the time is up. A descriptor of a process is readable once it ended."""
    left = list(descriptors)
    poll = select.poll()
    for descriptor in left:
        poll.register(descriptor, select.POLLIN)
    deadline_s = clock.mono() + timeout_s
    while left:
        remaining_s = deadline_s - clock.mono()
        if remaining_s <= 0:
            break
        for descriptor, _ in poll.poll(int(remaining_s * 1000) + 1):
            poll.unregister(descriptor)
            left.remove(descriptor)
    return left
