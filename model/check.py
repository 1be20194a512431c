"""Search the spool model with spin: every configuration must be clean, every mutation must be caught.

A search counts only when it was complete: a full depth, memory or time limit is a failure, never a pass.
"""
# ruff: noqa: INP001, T201 -- a script that is run by path and talks to its user by printing

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
MODEL = HERE / "spool.pml"
DOCUMENT = HERE.parent / "docs" / "explanation" / "model.md"
MEMORY_LIMIT_MIB = 6000
DEPTH_LIMIT = 200_000
LIMIT_S = {"small": 90.0, "large": 900.0, "huge": 3600.0}
TRUNCATED = ("max search depth too small", "out of memory", "memory limit", "hash table full", "Search not completed")
MARK = ("<!-- table {size}: begin -->", "<!-- table {size}: end -->")


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One search: a clean configuration, its cycle search, or a mutation of it."""

    name: str
    kind: str
    define: tuple[str, ...]
    breaks: str | None
    says: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What one search printed."""

    name: str
    kind: str
    define: str
    states: int
    depth: int
    seconds_s: float
    verdict: str
    good: bool
    says: str


def load_jobs(size: str, *, mutations: bool) -> list[Job]:
    """Read the configurations of one size, and the mutations that are searched in them."""
    configurations = json.loads((HERE / "configurations.json").read_text())
    jobs = []
    for entry in configurations[size]:
        define = tuple(entry["define"])
        jobs.append(Job(name=entry["name"], kind="clean", define=define, breaks=None, says=entry["says"]))
        if entry.get("cycles"):
            jobs.append(Job(name=entry["name"], kind="cycles", define=define, breaks=None, says="no run is endless"))
    if mutations:
        defines = {entry["name"]: tuple(entry["define"]) for entry in configurations["small"]}
        for entry in json.loads((HERE / "mutations" / "mutations.json").read_text()):
            define = defines[entry["in"]] + tuple(entry["define"])
            name = f"{entry['name']} in {entry['in']}"
            jobs.append(Job(name=name, kind="mutation", define=define, breaks=entry["breaks"], says=entry["says"]))
    return jobs


def compile_job(job: Job, folder: Path) -> None:
    """Write the verifier of one job with spin and compile it."""
    switches = [f"-D{item}" for item in job.define]
    generated = subprocess.run(
        [shutil.which("spin") or "spin", "-a", "-o1", "-o2", *switches, str(MODEL)],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    if generated.returncode != 0 or not (folder / "pan.c").exists():
        raise RuntimeError(f"spin: {generated.stdout.strip()[-400:]}")
    mode = ["-DNP", "-DNOFAIR"] if job.kind == "cycles" else ["-DSAFETY"]
    optimize = "-O1" if job.kind == "mutation" else "-O2"  # a mutation ends early: compiling is most of its time
    flags = [optimize, "-w", *mode, "-DCOLLAPSE", "-DNOREDUCE", f"-DMEMLIM={MEMORY_LIMIT_MIB}"]
    built = subprocess.run(
        [shutil.which("gcc") or "gcc", *flags, "-o", "pan", "pan.c"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    if built.returncode != 0:
        raise RuntimeError(f"gcc: {built.stderr.strip()[-400:]}")


def judge(job: Job, text: str, *, timed_out: bool) -> tuple[str, bool]:
    """Say what the verifier's output means for this job."""
    found = re.search(r"^pan:1: (.*?)(?: \(at depth|$)", text, re.MULTILINE)
    errors = re.search(r"errors: (\d+)", text)
    if job.breaks is not None:
        if found is None:
            return ("NOT CAUGHT, out of time" if timed_out else "NOT CAUGHT"), False
        if found[1].startswith("BOUND"):
            return f"hit a bound: {found[1]}", False
        return f"caught: {found[1]}", found[1].startswith(job.breaks)
    if timed_out:
        return "out of time, not complete", False
    if found is not None:
        return f"BROKEN: {found[1]}", False
    cut = next((line for line in TRUNCATED if line in text), None)
    if cut is not None or errors is None or errors[1] != "0":
        return f"not complete: {cut or text.strip()[-200:]}", False
    return ("complete, no endless run" if job.kind == "cycles" else "complete, clean"), True


def run_job(job: Job, limit_s: float, keep: Path | None) -> Row:
    """Compile and search one job in its own folder."""
    with tempfile.TemporaryDirectory(prefix="spool-model-") as name:
        folder = Path(name)
        begin_s = time.monotonic()
        text, timed_out = "", False
        try:
            compile_job(job, folder)
            begin_s = time.monotonic()
            command = ["./pan", "-E", f"-m{DEPTH_LIMIT}", "-w22", *(["-l"] if job.kind == "cycles" else [])]
            done = subprocess.run(
                command, cwd=folder, capture_output=True, text=True, errors="replace", timeout=limit_s, check=False
            )
            text = done.stdout + done.stderr
        except subprocess.TimeoutExpired:
            timed_out = True
        except RuntimeError as error:
            text = str(error)
        seconds_s = time.monotonic() - begin_s
        verdict, good = judge(job, text, timed_out=timed_out)
        if keep is not None and (folder / "spool.pml.trail").exists():
            replay = subprocess.run(
                ["./pan", "-r", "spool.pml.trail"],
                cwd=folder,
                capture_output=True,
                text=True,
                errors="replace",
                check=False,
            )
            keep.mkdir(parents=True, exist_ok=True)
            (keep / f"{job.name.replace(' ', '-')}.txt").write_text(replay.stdout + replay.stderr)
    states = re.search(r"(\d+) states, stored", text)
    depth = re.search(r"depth reached (\d+)", text)
    return Row(
        name=job.name,
        kind=job.kind,
        define=" ".join(job.define),
        states=int(states[1]) if states else 0,
        depth=int(depth[1]) if depth else 0,
        seconds_s=round(seconds_s, 2),
        verdict=verdict,
        good=good,
        says=job.says,
    )


def render(rows: list[Row]) -> str:
    """Lay out the rows as a Markdown table that also reads well in a terminal."""
    heads = ("search", "kind", "features and bounds", "states", "depth", "seconds", "verdict")
    cells = [
        (row.name, row.kind, row.define, f"{row.states:,}", str(row.depth), f"{row.seconds_s:.2f}", row.verdict)
        for row in rows
    ]
    widths = [max(len(line[column]) for line in (heads, *cells)) for column in range(len(heads))]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) + " |"
        for line in (heads, *cells)
    ]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(lines)


def write_document(size: str, table: str) -> None:
    """Replace the table between the marks of one size in the documentation page."""
    begin, end = (mark.format(size=size) for mark in MARK)
    text = DOCUMENT.read_text()
    if begin not in text or end not in text:
        raise SystemExit(f"{DOCUMENT}: the marks '{begin}' and '{end}' are missing; put them back and run again")
    head, rest = text.split(begin, 1)
    DOCUMENT.write_text(f"{head}{begin}\n{table}\n{end}{rest.split(end, 1)[1]}")


def parse(argv: list[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, epilog="example: python model/check.py --small")
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--small", action="store_true", help="small bounds and all mutations (the default)")
    size.add_argument("--large", action="store_true", help="larger bounds, up to half an hour")
    size.add_argument("--huge", action="store_true", help="the one search that is too long for --large")
    parser.add_argument("--only", metavar="TEXT", help="only searches whose name contains TEXT")
    parser.add_argument("--json", action="store_true", help="print the rows as JSON")
    parser.add_argument("--jobs", type=int, default=2, help="searches at once (default 2)")
    parser.add_argument("--limit-s", type=float, help="seconds for one search (default 90 small, 900 large, 3600 huge)")
    parser.add_argument("--trails", type=Path, metavar="DIR", help="write every counterexample found to DIR")
    parser.add_argument("--write-docs", action="store_true", help="put the table into docs/explanation/model.md")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    """Run the searches; 0 when all are as expected, 1 when one is not, 2 when a tool is missing."""
    options = parse(argv)
    missing = [tool for tool in ("spin", "gcc") if shutil.which(tool) is None]
    if missing:
        print(f"model: not on PATH: {', '.join(missing)}; run: apt-get install spin gcc libc6-dev", file=sys.stderr)
        return 2
    size = "huge" if options.huge else "large" if options.large else "small"
    jobs = load_jobs(size, mutations=size == "small")
    if options.only:
        jobs = [job for job in jobs if options.only in job.name]
    if not jobs:
        print(
            f"model: no search of this size is named *{options.only}*; see model/configurations.json", file=sys.stderr
        )
        return 2
    limit_s = options.limit_s or LIMIT_S[size]
    with ThreadPoolExecutor(max_workers=max(1, min(options.jobs, os.cpu_count() or 1))) as pool:
        rows = list(pool.map(lambda job: run_job(job, limit_s, options.trails), jobs))
    bad = [row for row in rows if not row.good]
    table = render(rows)
    print(json.dumps([asdict(row) for row in rows], indent=1) if options.json else table)
    if options.write_docs:
        write_document(size, table)
    for row in bad:
        print(f"model: {row.name} ({row.define}): {row.verdict}", file=sys.stderr)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
