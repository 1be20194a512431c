# ruff: noqa: INP001  a script, run by path
"""Makes gpu-report.png: invented samples of two hosts, the real command, and a picture by Chromium."""

from __future__ import annotations

import math
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
FLEETCRAFT = Path(sys.executable).with_name("fleetcraft")
START_MINUTE = 8 * 60


def log_of(phase: int) -> str:
    """Six hours of one GPU: work, a pause that holds memory, a gap, and idle time."""
    lines = ["timestamp,mem_used_mib,mem_total_mib,util_pct,power_w"]
    for place in range(720):
        minute = START_MINUTE + place // 2
        at = (place + phase) % 720
        if 420 <= at < 470:
            continue
        busy, holds = at < 260 or at >= 540, at < 340 or at >= 540
        util = round(86 + 9 * math.sin(at / 17)) if busy else 0
        watts = 560 + 60 * math.sin(at / 23) if busy else 92
        stamp = f"2031/05/04 {minute // 60:02d}:{minute % 60:02d}:{30 * (place % 2):02d}.000"
        lines.append(f"{stamp},{61_000 if holds else 12},97871,{util},{watts:.2f}")
    return "\n".join(lines) + "\n"


def main() -> int:
    """Write the picture beside this file."""
    with tempfile.TemporaryDirectory() as folder:
        logs = Path(folder, "logs")
        logs.mkdir()
        for number, phase in enumerate((0, 150), 1):
            (logs / f"node{number}.csv").write_text(log_of(phase), encoding="utf-8")
        page = Path(folder, "report.html")
        subprocess.run([FLEETCRAFT, "gpu", "report", logs, "--output", page], check=True)
        quiet = ("--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync")
        command = [
            "chromium",
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            *quiet,
            f"--user-data-dir={folder}/profile",
        ]
        command += ["--hide-scrollbars", "--window-size=1000,1330", f"--screenshot={HERE / 'gpu-report.png'}"]
        subprocess.run([*command, page.as_uri()], check=True, timeout=120, stderr=subprocess.DEVNULL)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
