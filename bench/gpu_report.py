"""How long `gpu report` takes for the telemetry archive, from process start to process end, and how large its page is.

    python bench/gpu_report.py [--rounds 3] [--output FILE]

Exit 0: the goals (5 s, 3 MB) were reached; 1: one was missed, or the archive is not there.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ARCHIVE = ROOT.parent / "shared" / "data" / "telemetry-archive"
GOAL_S, GOAL_BYTES = 5.0, 3_000_000


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Time `gpu report` on the telemetry archive.")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--output", type=Path, help="write the result as JSON too")
    arguments = parser.parse_args()
    if not ARCHIVE.is_dir():
        print(f"there is no archive in {ARCHIVE}", file=sys.stderr)
        return 1
    times, size = [], 0
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder, "report.html")
        command = [Path(sys.executable).with_name("fleetcraft"), "gpu", "report", ARCHIVE, "--output", page]
        for _ in range(arguments.rounds):
            begin = time.monotonic()
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            times.append(time.monotonic() - begin)
        size = page.stat().st_size
    median, worst = statistics.median(times), max(times)
    print(f"report of the archive  median {median:.2f} s  worst {worst:.2f} s  goal {GOAL_S:g} s")
    print(f"size of the page       {size:,} bytes  goal {GOAL_BYTES:,}")
    if arguments.output:
        result = {"median_s": median, "worst_s": worst, "bytes": size, "rounds": arguments.rounds}
        arguments.output.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return 0 if median <= GOAL_S and size <= GOAL_BYTES else 1


if __name__ == "__main__":
    raise SystemExit(main())
