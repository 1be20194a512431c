"""A peer: the script that one writes for a folder of GPU logs, with the csv module, datetime and matplotlib.

Usage: gpu_archive_plot.py FOLDER TARGET.png. It counts rows, as such scripts do, and draws what it read.
"""

from __future__ import annotations

import csv
import json
import sys
from datetime import datetime
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt


def main(folder: str, target: str) -> None:
    hosts = {}
    for path in sorted(Path(folder).glob("*.csv")):
        times, util, memory, power = [], [], [], []
        with path.open(newline="") as source:
            for row in csv.DictReader(source):
                times.append(datetime.strptime(row["timestamp"], "%Y/%m/%d %H:%M:%S.%f"))  # noqa: DTZ007  as such logs are
                util.append(float(row["util_pct"]))
                memory.append(float(row["mem_used_mib"]) / 1024)
                power.append(float(row["power_w"]))
        if times:
            hosts[path.stem] = (times, util, memory, power)
    rows = sum(len(times) for times, *_ in hosts.values())
    figure, axes = plt.subplots(3, 1, figsize=(12, 9), sharex=True)
    for name, (times, util, memory, power) in hosts.items():
        for axis, values in zip(axes, (util, memory, power), strict=True):
            axis.plot(times, values, linewidth=0.5, label=name)
    for axis, label in zip(axes, ("utilization %", "memory GiB", "power W"), strict=True):
        axis.set_ylabel(label)
    figure.autofmt_xdate()
    figure.savefig(target, dpi=150)
    total = sum(sum(util) for _, util, *_ in hosts.values())
    print(json.dumps({"hosts": len(hosts), "samples": rows, "util_mean_percent": round(total / rows, 2)}))


if __name__ == "__main__":
    main(*sys.argv[1:])
