"""Takes over what dead lives left, pass after pass, as `spool reap` does; ends when one asks it to, or by a crash.

python -m tests.support.reaper_program SPOOL SECONDS [LEASE_S]
"""

from __future__ import annotations

import sys
import time

from fleetcraft.core.errors import LifeEnded
from fleetcraft.spool.evidence import ReapPolicy
from fleetcraft.spool.life import Life
from fleetcraft.spool.reading import SpoolFold
from fleetcraft.spool.reap import Reaper
from fleetcraft.spool.spool import Spool

_PASS_EVERY_S = 0.05


def main(arguments: list[str]) -> int:
    spool = Spool.open(arguments[0])
    until_s = time.monotonic() + float(arguments[1])
    lease_s = float(arguments[2]) if len(arguments) > 2 else None
    life = Life.begin(spool, kind="maintenance")
    reaper = Reaper(life, SpoolFold(spool, durable=True), ReapPolicy(lease_s=lease_s, kill_grace_s=1.0))
    try:
        while time.monotonic() < until_s:
            for report in reaper.step():
                if report.state == "dead":
                    sys.stdout.write(f"took over {report.life}: {report.returned} tokens, {report.lost} lost\n")
                    sys.stdout.flush()
            time.sleep(_PASS_EVERY_S)
    except LifeEnded as error:
        sys.stderr.write(f"{error}\n")
        return 75
    life.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
