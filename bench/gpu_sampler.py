#!/usr/bin/env python3
"""What a sampler costs its node: processor time and memory, with 8 GPUs and every field, once a second.

The driver is played by the library in tests/mock_nvml, so the figures are those of our code and of the binding, not of
a driver. A process of the same Python that only waits is measured beside it. Exit 0: both figures were reached.

usage: bench/gpu_sampler.py [--seconds N] [--interval S] [--gpus N] [--output FILE] [--json]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
MOST_CORE = 0.003
MOST_RSS_BYTES = 24 << 20
WARM_UP_S = 3.0
_TICK_S = 1.0 / os.sysconf("SC_CLK_TCK")
_GPM = ",".join(f"{metric}:40.5" for metric in (1, 2, 3, 5, 10, 11, 12, 13))
_IDLE = "import os,sys; sys.stdin.read()"


def build_mock(folder: str) -> str:
    """The played driver; returns the folder to be put on the library path."""
    library = os.path.join(folder, "libnvidia-ml.so.1")
    source = ROOT / "tests" / "mock_nvml" / "mock_nvml.c"
    subprocess.run(
        ["gcc", "-shared", "-fPIC", "-O1", "-Wl,-soname,libnvidia-ml.so.1", "-o", library, str(source), "-lm"],
        check=True,
    )
    return folder


def environment(library: str, gpus: int) -> dict[str, str]:
    """Of a node whose GPUs all work, with two processes each and every measured field."""
    mine = os.getpid()
    spread = {
        "MOCK_UTIL": "63", "MOCK_MEMORY": "40960", "MOCK_POWER": "512345", "MOCK_ECC": "0", "MOCK_ROWS": "0:0:0:0",
        "MOCK_SCOPE": "185:0:512345", "MOCK_PROCS": f"{mine}:4294967296",
    }  # fmt: skip
    played = {name: ",".join(f"{gpu}:{value}" for gpu in range(gpus)) for name, value in spread.items()}
    return {
        **os.environ, **played, "MOCK_GPUS": str(gpus), "MOCK_GPM": _GPM, "LD_LIBRARY_PATH": library,
        "FLEETCRAFT_NVML": "1", "PYTHONPATH": str(ROOT / "src"),
    }  # fmt: skip


def used(pid: int) -> tuple[float, int, int]:
    """Seconds on a processor, to a nanosecond where the kernel says so; memory now, and at most."""
    seconds = int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9
    for task in Path(f"/proc/{pid}/task").iterdir():
        if int(task.name) != pid:
            seconds += int((task / "schedstat").read_text().split()[0]) / 1e9
    status = dict(
        line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("Vm")
    )
    return seconds, int(status["VmRSS"].split()[0]) << 10, int(status["VmHWM"].split()[0]) << 10


def jiffies(pid: int) -> float:
    """Seconds on a processor as the kernel accounts them for the whole process, threads that ended included."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * _TICK_S


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Run one, let it warm up, and look at it for some time."""
    with tempfile.TemporaryDirectory() as folder:
        env = environment(build_mock(folder), options.gpus)
        root = os.path.join(folder, "telemetry")
        told = {"root": root, "interval_s": options.interval, "gpus": "auto", "minded": True}
        argv = [sys.executable, "-m", "fleetcraft.telemetry.sampler", json.dumps(told)]
        with (
            subprocess.Popen(argv, env=env, stdin=subprocess.PIPE, stderr=subprocess.PIPE, cwd=folder) as sampler,
            subprocess.Popen([sys.executable, "-c", _IDLE], stdin=subprocess.PIPE, cwd=folder) as idle,
        ):
            time.sleep(WARM_UP_S)
            if sampler.poll() is not None:
                raise SystemExit(f"the sampler ended: {sampler.stderr.read().decode() if sampler.stderr else ''}")
            begun_s = jiffies(sampler.pid)
            from_s, began_s = used(sampler.pid)[0], time.monotonic()
            time.sleep(options.seconds)
            whole_s = jiffies(sampler.pid) - begun_s
            (to_s, rss, peak), passed_s = used(sampler.pid), time.monotonic() - began_s
            idle_rss = used(idle.pid)[1]
            for process in (sampler, idle):
                if process.stdin is not None:
                    process.stdin.close()
            sampler.wait(20)
        files = sorted(Path(root).glob("*/*-none.csv"))
        lines = files[0].read_text().splitlines()
        rows = [line.split(",") for line in lines[2:] if not line.startswith("#")]
        names = lines[1].split(",")
        absent = sorted({names[at] for at in range(6, len(names) - 1) if all(not row[at] for row in rows)})
        return {
            "gpus": options.gpus, "interval_s": options.interval, "seconds": round(passed_s, 1), "rows": len(rows),
            "fields": len(names) - 7, "absent_fields": absent,
            "bytes_per_row": round(sum(len(line) + 1 for line in lines[2:]) / max(1, len(rows)), 1),
            "core_share": round(max(to_s - from_s, 0.0) / passed_s, 6),
            "core_share_with_ended_threads": round(whole_s / passed_s, 6),
            "rss_bytes": rss, "peak_rss_bytes": peak, "idle_python_rss_bytes": idle_rss,
            "most_core_share": MOST_CORE, "most_rss_bytes": MOST_RSS_BYTES, "python": sys.version.split()[0],
            "cpus": os.cpu_count(), "load": round(os.getloadavg()[0], 2),
        }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--interval", type=float, default=1.0)
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--output", help="also write the JSON there, for example into bench/results")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = measure(options)
    share = max(found["core_share"], found["core_share_with_ended_threads"])
    found["reached"] = share <= MOST_CORE and found["rss_bytes"] <= MOST_RSS_BYTES
    text = json.dumps(found, indent=2)
    if options.output:
        Path(options.output).write_text(text + "\n")
    if options.json:
        print(text)
    else:
        print(
            f"{found['gpus']} GPUs every {found['interval_s']:g} s, {found['rows']} rows in {found['seconds']:g} s:\n"
            f"  processor  {100 * share:.3f} % of a core (at most {100 * MOST_CORE:g} %)\n"
            f"  memory     {found['rss_bytes'] / 2**20:.1f} MiB (at most {MOST_RSS_BYTES / 2**20:g}); "
            f"{found['peak_rss_bytes'] / 2**20:.1f} while it loads, an idle Python "
            f"{found['idle_python_rss_bytes'] / 2**20:.1f}\n"
            f"  file       {found['bytes_per_row']} bytes a row; never known here: {', '.join(found['absent_fields'])}"
        )
    return 0 if found["reached"] else 1


if __name__ == "__main__":
    sys.exit(main())
