"""A program of the ordinary user: passes over a fleet by a transport that loses replies, and by processes that die.

Run as `python - MODE JSON < fleet_driver.py`; it needs only the installed project. Each submission is made by a child
process, so that a kill at any point is a real one: nothing is cleaned up, and the next pass finds what is there.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from fleetcraft.actions.fleet_options import FleetOptions, make_spec, resolve_site
from fleetcraft.core.errors import FleetcraftError
from fleetcraft.fleet.handle import Fleet, FleetPolicy
from fleetcraft.fleet.launch import launch
from fleetcraft.fleet.opening import open_scheduler
from fleetcraft.fleet.resolve import resolve
from fleetcraft.spool.spool import Spool
from fleetcraft.transports.api import Answer, Surroundings
from fleetcraft.transports.local import LocalTransport

LOST_BEFORE, LOST_AFTER, TIMED_OUT, KILLED_BEFORE, KILLED_AFTER = (
    "lost before it ran", "lost after it ran", "said that it timed out, after it ran", "killed before", "killed after",
)  # fmt: skip
FAULTS = (LOST_BEFORE, LOST_AFTER, TIMED_OUT, KILLED_BEFORE, KILLED_AFTER)
_TIMED_OUT = "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation\n"


class FaultyTransport:
    """This machine, with a fault at every submission, and at some of the other commands."""

    name = "local"

    def __init__(self, choose: Callable[[str], str | None]) -> None:
        self._inner = LocalTransport()
        self._choose = choose

    def run(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        timeout_s: float = 60.0,
        surroundings: Surroundings = Surroundings(),  # noqa: B008  an immutable value, and the seam's own signature
        cwd: str | None = None,
    ) -> Answer:
        """Run it, and perhaps do not tell."""
        fault = self._choose(os.path.basename(argv[0]))
        if fault == KILLED_BEFORE:
            os.kill(os.getpid(), signal.SIGKILL)
        lost = Answer(argv=tuple(argv), code=None, out="", err="", took_s=0.0, problem="timed out")
        if fault == LOST_BEFORE:
            return lost
        answer = self._inner.run(argv, stdin=stdin, timeout_s=timeout_s, surroundings=surroundings, cwd=cwd)
        if fault == KILLED_AFTER:
            os.kill(os.getpid(), signal.SIGKILL)
        if fault == LOST_AFTER:
            return lost
        if fault == TIMED_OUT:
            return Answer(argv=tuple(argv), code=1, out="", err=_TIMED_OUT, took_s=answer.took_s)
        return answer


def open_fleet(name: str, transport: Any, policy: FleetPolicy) -> tuple[Fleet, Any]:
    """The fleet of the person's own profile and spool, without guards: they are not what is tried here."""
    options = FleetOptions(spec={"nodes": 1, "max_nodes": 1000}, time_limit_s=600.0)
    site = resolve_site(options)
    spool = Spool.open(os.environ["FLEETCRAFT_SPOOL"])
    scheduler = open_scheduler(site.scheduler, transport=transport, clock=spool.clock, share_polls=False)
    fleet = Fleet(spool, name, scheduler, (), policy)
    return fleet, make_spec(fleet, site, options)


def storm(name: str, seed: int, faults: int) -> dict[str, Any]:
    """Submit through so many faults; then look up whatever is open. What came of it, in numbers."""
    rng = random.Random(seed)
    policy = FleetPolicy(settle_s=0.2, withdraw_after_s=0.4, late_s=1.0)
    kinds: Counter[str] = Counter()
    tries = 0
    open_fleet(name, LocalTransport(), policy)  # what it imports is there for every child then
    while sum(kinds.values()) < faults:
        tries += 1
        other_seed = rng.random()
        fault = rng.choice(FAULTS)
        kinds[fault] += _in_child(name, policy, fault, other_seed)
    deadline = time.monotonic() + 60
    while True:
        fleet, _ = open_fleet(name, LocalTransport(), policy)
        resolve(fleet, fleet.state())
        left = [job.token for job in fleet.state().open_intents()]
        if not left or time.monotonic() > deadline:
            return {"faults": dict(kinds), "tries": tries, "open": left, "took_s": time.monotonic() - deadline + 60}
        time.sleep(0.05)


def _in_child(name: str, policy: FleetPolicy, fault: str, seed: float) -> bool:
    """One pass in a process of its own; True when it came as far as the fault."""
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read_end)
        rng = random.Random(seed)

        def choose(command: str) -> str | None:
            if command == "sbatch":
                os.write(write_end, b"x")
                return fault
            return rng.choice(FAULTS) if rng.random() < 0.1 else None

        try:
            fleet, spec = open_fleet(name, FaultyTransport(choose), policy)
            launch(fleet, spec)
        except FleetcraftError:
            pass  # an earlier one is still open: that is what it must say
        finally:
            os._exit(0)
    os.close(write_end)
    came = os.read(read_end, 1)
    os.close(read_end)
    os.waitpid(child, 0)
    return bool(came)


def hung(name: str, folder: str) -> dict[str, Any]:
    """Submit once; right before sbatch runs, wait until the test has done something to the controller."""

    def choose(command: str) -> str | None:
        if command == "sbatch":
            open(os.path.join(folder, "at-sbatch"), "w").close()
            until = time.monotonic() + 60
            while not os.path.exists(os.path.join(folder, "go")) and time.monotonic() < until:
                time.sleep(0.02)
        return None

    fleet, spec = open_fleet(name, FaultyTransport(choose), FleetPolicy())
    (made,) = launch(fleet, spec).submitted
    return {"token": made.token, "job": str(made.ref) if made.ref else None, "words": made.words}


if __name__ == "__main__":
    what, given = sys.argv[1:]
    verbs: dict[str, Callable[..., dict[str, Any]]] = {"storm": storm, "hung": hung}
    sys.stdout.write(json.dumps(verbs[what](**json.loads(given))))
