#!/usr/bin/env python3
"""Measures Fleetcraft against the floor and its peers, prints a table, and writes JSON and a page.

    bench/run.py                    the whole table, about 25 minutes
    bench/run.py --quick            the same with small counts, about 2 minutes
    bench/run.py --only latency     one measurement

Exit codes: 0 all figures reached, 1 one was missed or could not be measured, 2 wrong usage.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from context import Bench
from measure import BenchError, become_subreaper
from ours import Fleetcraft, find_command
from peers import default_cache, prepare
from rows_costs import delay, delay_kernel, metadata
from rows_curve import curve
from rows_latency import commands, latency, polling
from rows_processes import processes
from rows_scale import enqueue, files, queued, resident, status
from tables import Report, Row, machine_slug, unmeasured

RESULTS = Path(__file__).resolve().parent / "results"

Measurement = Callable[[Bench], list[Row]]

# Short and sensitive ones first, while the disk is quiet.
MEASUREMENTS: dict[str, Measurement] = {
    "commands": commands,
    "latency": latency,
    "polling": polling,
    "processes": processes,
    "metadata": metadata,
    "delay": delay,
    "delay-kernel": delay_kernel,
    "enqueue": enqueue,
    "resident": resident,
    "files": files,
    "status": status,
    "queued": queued,
    "curve": curve,
}


def main() -> int:
    options = _parse()
    become_subreaper()
    installed, why_not = _find_ours()
    peers = prepare(options.cache, with_peers=not options.no_peers)
    root = Path(tempfile.mkdtemp(prefix="fleetcraft-bench-", dir=os.environ.get("FLEETCRAFT_BENCH_DIR")))
    bench = Bench(
        root=root,
        is_quick=options.quick,
        rounds=options.rounds or (1 if options.quick else 3),
        installed=installed,
        peers=peers,
    )
    try:
        report = _measure(bench, options.only or list(MEASUREMENTS), [*why_not, *peers.missing])
    finally:
        if options.keep:
            print(f"kept: {root}")
        else:
            # Only now: a mass deletion would slow every run after it.
            shutil.rmtree(root, ignore_errors=True)
    print()
    report.show()
    is_whole = not options.quick and not options.only and not options.no_peers
    stem = f"{report.date_utc[:10]}-{machine_slug()}" if is_whole else "partial"
    written = report.write(RESULTS, stem=stem, page="latest.md" if is_whole else "partial.md")
    print("\nwritten: " + ", ".join(str(path) for path in written))
    return 0 if all(row.met for row in report.rows if row.reach) else 1


def _find_ours() -> tuple[Fleetcraft | None, list[str]]:
    """The product, if it answers; else the reason. The floor and the peers are measured all the same."""
    command = find_command()
    if command is None:
        return None, ["fleetcraft: not installed"]
    installed = Fleetcraft(command=command)
    try:
        installed.version()
    except BenchError as error:
        return None, [str(error)]
    return installed, []


def _measure(bench: Bench, names: list[str], missing: list[str]) -> Report:
    rows: list[Row] = []
    remarks = [f"not available: {reason}" for reason in missing]
    for name in names:
        started_s = time.monotonic()
        print(f"{name} ...", flush=True)
        try:
            rows += MEASUREMENTS[name](bench)
        except BenchError as error:
            rows.append(unmeasured(name, "a valid run", str(error)))
        # A fault in one measurement must not lose the others, which took half an hour.
        except Exception as error:  # noqa: BLE001
            traceback.print_exc()
            rows.append(unmeasured(name, "a valid run", f"fault in the benchmark: {error!r}"))
        remarks.append(f"{name} took {time.monotonic() - started_s:.0f} s")
    versions = bench.peers.versions()
    if bench.installed:
        versions["fleetcraft"] = bench.installed.version().removeprefix("fleetcraft ")
    mode = ("quick" if bench.is_quick else "full") + f", rounds: {bench.rounds}"
    date_utc = datetime.now(UTC).isoformat(timespec="seconds")
    return Report(
        date_utc=date_utc,
        mode=mode,
        versions=versions,
        rows=rows,
        runs=bench.runs,
        curve=bench.curve,
        remarks=remarks,
    )


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small counts, one round")
    parser.add_argument("--only", action="append", choices=list(MEASUREMENTS), help="one measurement; may be repeated")
    parser.add_argument("--rounds", type=int, help="interleaved rounds (3, or 1 with --quick)")
    parser.add_argument("--no-peers", action="store_true", help="leave the peers out, and install nothing")
    parser.add_argument("--keep", action="store_true", help="keep the working directories")
    parser.add_argument("--cache", type=Path, default=default_cache(), help="where peers are installed (%(default)s)")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
