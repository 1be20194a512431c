"""What a benchmark run says: rows (what, measured, to reach, met), as a table, as JSON and as a page."""

from __future__ import annotations

import json
import math
import os
import platform
import re
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from measure import Run


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One measured figure. `met` is None where nothing was to be reached, or nothing could be measured."""

    what: str
    measured: str
    value: float | None = None
    reach: str = ""
    met: bool | None = None
    note: str = ""

    @property
    def verdict(self) -> str:
        if self.met is not None:
            return "yes" if self.met else "NO"
        return "not measured" if self.reach else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CurveLine:
    """Efficiency of each system for one length of task on one number of slots, and whether the run was clean."""

    slots: int
    sleep_s: float
    cells: dict[str, tuple[float, bool] | None]

    def words(self) -> list[str]:
        length = f"{self.sleep_s * 1000:g} ms" if self.sleep_s < 1 else f"{self.sleep_s:g} s"
        shown = [f"{cell[0]:.3f}{'' if cell[1] else '†'}" if cell else "-" for cell in self.cells.values()]
        return [f"{self.slots}", length, *shown]


def at_least(what: str, value: float, limit: float, *, unit: str = "", note: str = "", digits: int = 2) -> Row:
    return Row(
        what=what,
        measured=f"{value:,.{digits}f}{unit}",
        value=value,
        reach=f"at least {limit:,g}{unit}",
        met=value >= limit,
        note=note,
    )


def at_most(what: str, value: float, limit: float, *, unit: str = "", note: str = "", digits: int = 2) -> Row:
    return Row(
        what=what,
        measured=f"{value:,.{digits}f}{unit}",
        value=value,
        reach=f"at most {limit:,g}{unit}",
        met=value <= limit,
        note=note,
    )


def info(what: str, measured: str, value: float | None = None, note: str = "") -> Row:
    """A figure that is printed and judged by nobody."""
    return Row(what=what, measured=measured, value=value, note=note)


def unmeasured(what: str, reach: str, reason: str) -> Row:
    return Row(what=what, measured="-", reach=reach, note=reason)


def trusted(runs: Sequence[Run]) -> tuple[Sequence[Run], str]:
    """The clean runs where there are any, else all of them with a mark that says so."""
    clean = [run for run in runs if run.is_clean]
    return (clean, "") if clean else (runs, "†")


def median_rate(runs: Sequence[Run]) -> float:
    chosen, _ = trusted(runs)
    return statistics.median(run.rate for run in chosen)


def describe(runs: Sequence[Run]) -> str:
    """Median rate, range and how many runs were clean."""
    chosen, mark = trusted(runs)
    rates = sorted(run.rate for run in chosen)
    clean = sum(run.is_clean for run in runs)
    digits = 0 if rates[0] >= 100 else 1
    spread = f" ({rates[0]:,.{digits}f} to {rates[-1]:,.{digits}f})" if len(rates) > 1 else ""
    return f"{statistics.median(rates):,.{digits}f}/s{mark}{spread}, clean {clean}/{len(runs)}"


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` of the values do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def _curve_heads(lines: Sequence[CurveLine]) -> list[str]:
    return ["slots", "task", *lines[0].cells]


def _print_table(lines: Sequence[Sequence[str]], notes: Sequence[str]) -> None:
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    for line, note in zip(lines, ["", *notes], strict=True):
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
        if line is lines[0]:
            print("  ".join("-" * width for width in widths))
        elif note:
            print(f"    {note}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """One whole run of the benchmark."""

    date_utc: str
    mode: str
    versions: dict[str, str]
    rows: list[Row]
    runs: list[Run]
    curve: list[CurveLine]
    remarks: list[str]

    def show(self) -> None:
        cells = [[row.what, row.measured, row.reach, row.verdict] for row in self.rows]
        _print_table([["what", "measured", "to reach", "met?"], *cells], [row.note for row in self.rows])
        if self.curve:
            print("\nEfficiency (ideal time ÷ real time; against the floor for tasks of 0 ms):")
            _print_table([_curve_heads(self.curve), *(line.words() for line in self.curve)], [""] * len(self.curve))

    def write(self, directory: Path, *, stem: str, page: str) -> list[Path]:
        directory.mkdir(parents=True, exist_ok=True)
        json_path, page_path = directory / f"{stem}.json", directory / page
        json_path.write_text(json.dumps(self._as_json(), indent=1) + "\n")
        page_path.write_text(self._as_markdown())
        return [json_path, page_path]

    def _as_json(self) -> dict[str, object]:
        return {
            "schema": "fleetcraft-bench/1",
            "date_utc": self.date_utc,
            "mode": self.mode,
            "machine": machine(),
            "versions": self.versions,
            "remarks": self.remarks,
            "rows": [asdict(row) for row in self.rows],
            "curve": [asdict(line) for line in self.curve],
            "runs": [run.as_json() for run in self.runs],
        }

    def _as_markdown(self) -> str:
        about = machine()
        versions = ", ".join(f"{name} {version}" for name, version in self.versions.items())
        hardware = f"{about['cpus']} CPUs, {about['cpu']}, {about['memory_gib']} GiB"
        system = f"kernel {about['kernel']}, work on {about['filesystem']}"
        lines = [
            f"# Benchmark, {self.date_utc[:10]}",
            "",
            f"Mode: {self.mode}. Machine: {hardware}, {system}. Versions: {versions}.",
            "",
            "| what | measured | to reach | met? |",
            "|---|---|---|---|",
        ]
        lines += [f"| {row.what} | {row.measured} | {row.reach} | {row.verdict} |" for row in self.rows]
        notes = [f"- {row.what}: {row.note}" for row in self.rows if row.note]
        unclean = sum(not run.is_clean for run in self.runs)
        notes.append(f"- Runs with more than 10 % of the machine taken by others: {unclean} of {len(self.runs)}.")
        notes.append("- † no clean run; the median is over all runs.")
        lines += ["", *self._curve_as_markdown(), "", "Notes:", "", *notes, *(f"- {remark}" for remark in self.remarks)]
        return "\n".join([*lines, ""])

    def _curve_as_markdown(self) -> list[str]:
        if not self.curve:
            return []
        heads = _curve_heads(self.curve)
        return [
            "Efficiency: ideal time ÷ real time; for tasks of 0 ms the rate ÷ the floor's.",
            "",
            f"| {' | '.join(heads)} |",
            "|---" * len(heads) + "|",
            *(f"| {' | '.join(line.words())} |" for line in self.curve),
        ]


def machine() -> dict[str, object]:
    """What the figures were measured on; no host name, because results are published."""
    cpu = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return {
        "cpus": os.cpu_count(),
        "cpu": cpu.group(1).strip() if cpu else platform.machine(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30),
        "kernel": platform.release().split("-")[0],
        "filesystem": _filesystem(Path(os.environ.get("FLEETCRAFT_BENCH_DIR", tempfile.gettempdir()))),
    }


def machine_slug() -> str:
    about = machine()
    return re.sub(r"[^a-z0-9]+", "-", f"{about['cpus']}cpu {about['cpu']}".lower()).strip("-")[:48]


def _filesystem(path: Path) -> str:
    """Type of the file system that holds `path`: the longest mount point that contains it."""
    best, kind = "", "unknown"
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, point, fs_type, *_ = line.split()
        if path.resolve().is_relative_to(point) and len(point) >= len(best):
            best, kind = point, fs_type
    return kind
