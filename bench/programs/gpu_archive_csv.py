"""A peer: the same summary over a folder of GPU logs with the csv module alone, and nothing else.

Usage: gpu_archive_csv.py FOLDER. A row counts until the next one, 45 s at most, else 30 s.
"""

from __future__ import annotations

import csv
import json
import sys
from datetime import UTC, datetime
from pathlib import Path

ACTIVE_PCT, RESERVED_MIB = 5.0, 500.0
NAMES = ("held_s", "util", "memory", "share", "joules", "active_s", "reserved_s", "free_s")


def add_up(path: Path) -> dict[str, float]:
    """The sums of one log."""
    rows = []
    with path.open(newline="") as source:
        reader = csv.reader(source)
        next(reader, None)
        for stamp, used, total, util, power in reader:
            at = datetime.fromisoformat(stamp.replace("/", "-")).replace(tzinfo=UTC).timestamp()
            rows.append((at, float(used), float(total), float(util), float(power)))
    rows.sort()
    sums = dict.fromkeys(NAMES, 0.0)
    for place, (at, used, total, util, power) in enumerate(rows):
        step = rows[place + 1][0] - at if place + 1 < len(rows) else 30.0
        if step > 45.0:
            step = 30.0
        sums["held_s"] += step
        sums["util"] += util * step
        sums["memory"] += used * step
        sums["share"] += used / total * step
        sums["joules"] += power * step
        kind = "active_s" if util >= ACTIVE_PCT else "reserved_s" if used >= RESERVED_MIB else "free_s"
        sums[kind] += step
    return sums


def main(folder: str) -> None:
    hosts = {path.stem: add_up(path) for path in sorted(Path(folder).glob("*.csv"))}
    total = {name: sum(sums[name] for sums in hosts.values()) for name in NAMES}
    held_s = total["held_s"]
    body = {
        "hosts": sum(1 for sums in hosts.values() if sums["held_s"]),
        "gpu_hours": held_s / 3600,
        "kwh": total["joules"] / 3.6e6,
        "util_mean_percent": total["util"] / held_s,
        "active_fraction": total["active_s"] / held_s,
        "memory_gib": total["memory"] / held_s / 1024,
        "memory_fraction": total["share"] / held_s,
        "reserved_gpu_hours": total["reserved_s"] / 3600,
        "free_gpu_hours": total["free_s"] / 3600,
        "rows": {name: sums["held_s"] / 3600 for name, sums in hosts.items()},
    }
    print(json.dumps(body))


if __name__ == "__main__":
    main(*sys.argv[1:])
