"""Runs one worker from JSON on its command line, on healthy files or on those that a named fault makes.

python -m tests.support.worker_program '{"spool": ..., "cpus": 2}' [FAULT [ARGUMENT]]

Besides the worker's options the JSON may say `node`: the worker then takes itself for one on another machine of
that name, so that neither side can look at the other's processes; and `clock_file`: see `tests.support.clocks`.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from fleetcraft.spool import host


def pretend_node(name: str) -> None:
    """Be on another machine, as far as identities tell. Before anything else is imported: some ask only once."""
    host.host_name = lambda: name
    host.boot_id = lambda: f"boot-of-{name}"
    host.machine_id = lambda: f"machine-{name}"


def main(arguments: list[str]) -> int:
    chosen: dict[str, Any] = json.loads(arguments[0])
    if "node" in chosen:
        pretend_node(chosen.pop("node"))
    from fleetcraft.core.errors import FleetcraftError
    from fleetcraft.store.files import Files
    from fleetcraft.workers.options import WorkerOptions
    from fleetcraft.workers.worker import run_worker
    from tests.support.clocks import jumping_clock
    from tests.support.faults import FAULTS

    clock = jumping_clock(chosen.pop("clock_file")) if "clock_file" in chosen else None
    values: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in chosen.items()
    }
    options = WorkerOptions(**values)
    files = FAULTS[arguments[1]](*arguments[2:]) if len(arguments) > 1 else Files()
    try:
        return run_worker(options, files=files, clock=clock)
    except FleetcraftError as error:
        sys.stderr.write(f"error: {error}\n")
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
