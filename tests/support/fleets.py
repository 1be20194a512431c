"""Fleets in a temporary spool with a scheduler in memory and a clock of the test."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fleetcraft.config.site import Partition, ResolvedSite, SchedulerRules
from fleetcraft.core.names import WAITING
from fleetcraft.fleet.ensure import ensure_pass
from fleetcraft.fleet.handle import Fleet, FleetPolicy
from fleetcraft.fleet.spec import FleetSpec, spec_for
from fleetcraft.spool.spool import Spool
from fleetcraft.testing.clock import ManualClock
from fleetcraft.testing.scheduler_memory import MemoryScheduler
from tests.support.enqueuing import options, stream


def site(**changes: Any) -> ResolvedSite:
    partition = {"name": "memory", "gpus_per_node": 4, "cpus_per_node": 8, **changes.pop("partition", {})}
    rules = {"submit_gap_s": 0.0, **changes.pop("scheduler", {})}
    return ResolvedSite(
        profile="test", source="test", partition=Partition(**partition), scheduler=SchedulerRules(**rules), **changes
    )


def spec(fleet: str = "blue", **changes: Any) -> FleetSpec:
    found = site(**changes.pop("site", {}))
    return spec_for(fleet, found, **{"time_limit_s": 3600.0, "nodes": 2, **changes})


def make_fleet(folder: Path, name: str = "blue", *, nodes: int = 8, guards: Any = (), **policy: Any) -> Fleet:
    """A fleet that was made, on a spool of its own."""
    clock = ManualClock()
    spool = Spool.open(str(folder / "spool"), create=True, clock=clock)
    fleet = Fleet(spool, name, MemoryScheduler(clock, nodes=nodes), guards, FleetPolicy(**policy))
    fleet.log.create()
    return fleet


def another_process(fleet: Fleet) -> Fleet:
    """The same fleet opened anew: other memory, same files, same scheduler."""
    spool = Spool.open(fleet.spool.layout.root, clock=fleet.spool.clock)
    return Fleet(spool, fleet.name, fleet.scheduler, fleet.guards, fleet.policy)


def clock_of(fleet: Fleet) -> ManualClock:
    clock = fleet.spool.clock
    assert isinstance(clock, ManualClock)
    return clock


def scheduler_of(fleet: Fleet) -> MemoryScheduler:
    scheduler = fleet.scheduler
    assert isinstance(scheduler, MemoryScheduler)
    return scheduler


def later(fleet: Fleet, seconds: float) -> None:
    """Let time pass, and act on the jobs."""
    clock_of(fleet).advance(seconds)
    scheduler_of(fleet).advance()


def enqueue(fleet: Fleet, count: int, **defaults: Any) -> None:
    lines = [f"true {number} {os.urandom(4).hex()}" for number in range(count)]
    stream(fleet.spool, lines, options(**defaults))


def waiting(spool: Spool) -> Iterator[Any]:
    return (token for token in spool.tokens().tokens if token.form == WAITING)


def work_off(spool: Spool, count: int) -> int:
    """Take so many tasks off the spool, as workers would; returns how many there were."""
    done = 0
    for token in list(waiting(spool)):
        take = min(token.count, count - done)
        if take <= 0:
            break
        path = spool.layout.token(token.name)
        if take == token.count:
            os.unlink(path)
        else:
            os.rename(path, spool.layout.token(token.part(token.start + take, token.stop).name))
        done += take
    return done


def one_pass(fleet: Fleet, *arguments: Any, **named: Any) -> Any:
    """A pass, with its report as a test wants to read it."""
    return ensure_pass(fleet, *arguments, **named)
