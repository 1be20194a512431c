"""Runs one worker from JSON on its command line, on healthy files or on those that a named fault makes.

python -m tests.support.worker_program '{"spool": ..., "cpus": 2}' [FAULT [ARGUMENT]]
"""

from __future__ import annotations

import json
import sys

from fleetcraft.core.errors import FleetcraftError
from fleetcraft.store.files import Files
from fleetcraft.workers.options import WorkerOptions
from fleetcraft.workers.worker import run_worker
from tests.support.clocks import jumping_clock
from tests.support.faults import FAULTS


def main(arguments: list[str]) -> int:
    chosen = json.loads(arguments[0])
    clock = jumping_clock(chosen.pop("clock_file")) if "clock_file" in chosen else None
    options = WorkerOptions(**{name: tuple(value) if isinstance(value, list) else value for name, value in chosen.items()})
    files = FAULTS[arguments[1]](*arguments[2:]) if len(arguments) > 1 else Files()
    try:
        return run_worker(options, files=files, clock=clock)
    except FleetcraftError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
