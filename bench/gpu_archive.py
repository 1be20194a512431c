"""How fast telemetry is read: an archive of logs against scripts that do the same, and large trees against their goals.

    python bench/gpu_archive.py [--rounds 5] [--only archive,tail,large] [--json] [--output FILE]

Everything is measured in the same run, from process start to process end. The trees are made in a temporary folder
(about 2 GiB for `large`) and removed. Exit 0: every goal was reached; 1: one was missed or could not be measured.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
ARCHIVE = ROOT.parent / "shared" / "data" / "telemetry-archive"
PYTHON = str(ROOT / ".venv" / "bin" / "python")
FLEETCRAFT = os.environ.get("FLEETCRAFT_BENCH_COMMAND") or str(ROOT / ".venv" / "bin" / "fleetcraft")
OURS = [FLEETCRAFT, "gpu", "summary"]
HOURS, KWH = 1407.430, 667.960
INTERVAL_MS = 30_000
GIB = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One measured thing and its goal; None where there is none."""

    what: str
    seconds: float
    worst: float
    goal_s: float | None = None
    ratio: float | None = None
    goal_ratio: float | None = None

    @property
    def reached(self) -> bool:
        return (self.goal_s is None or self.seconds <= self.goal_s) and (
            self.goal_ratio is None or (self.ratio is not None and self.ratio >= self.goal_ratio)
        )


def measure(command: list[str], rounds: int, *, files: Path | None = None, check: Callable[[str], None]) -> list[float]:
    """Wall times of whole processes, the pages of `files` dropped before each; the answer is checked each time."""
    times = []
    for _ in range(rounds):
        for path in files.rglob("*") if files else ():
            drop(path)
        start = time.monotonic()
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=600)
        times.append(time.monotonic() - start)
        check(done.stdout)
    return times


def drop(path: Path) -> None:
    """Take a file's pages out of memory, as far as the kernel allows."""
    if path.is_file():
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def is_right(text: str) -> None:
    """Our answer over the archive must be the right one."""
    total = json.loads(text)["total"]
    if abs(total["gpu_hours"] - HOURS) > 0.001 or abs(total["energy"]["held_kwh"] - KWH) > 0.001:
        raise SystemExit(f"a wrong answer: {total['gpu_hours']} h, {total['energy']['held_kwh']} kWh")


def is_right_peer(text: str) -> None:
    body = json.loads(text)
    if abs(body["gpu_hours"] - HOURS) > 0.001 or abs(body["kwh"] - KWH) > 0.001:
        raise SystemExit(f"the peer has a wrong answer: {body}")


def archive_lines(work: Path, rounds: int) -> Iterator[Line]:
    """The archive from its logs, rolled up, and by two scripts."""
    if not ARCHIVE.is_dir():
        raise SystemExit(f"the archive is not at {ARCHIVE}")
    rolled_root = work / "rolled"
    subprocess.run(
        [FLEETCRAFT, "gpu", "import", str(ARCHIVE), "--to", str(rolled_root)], check=True, capture_output=True
    )
    summary = [*OURS, str(ARCHIVE), "--json"]
    rolled_summary = [*OURS, str(rolled_root), "--json"]
    plot_script = [PYTHON, str(HERE / "programs/gpu_archive_plot.py"), str(ARCHIVE), str(work / "plot.png")]
    csv_script = [PYTHON, str(HERE / "programs/gpu_archive_csv.py"), str(ARCHIVE)]
    cold = measure(summary, rounds, files=ARCHIVE, check=is_right)
    # In turns, so that what else the machine does meets all of them.
    ours, rolled, plot, plain = [], [], [], []
    for _ in range(rounds):
        ours += measure(summary, 1, check=is_right)
        plain += measure(csv_script, 1, check=is_right_peer)
        rolled += measure(rolled_summary, 1, check=is_right)
        plot += measure(plot_script, 1, check=json.loads)
    yield line("archive from its CSV logs, files not in memory", cold, goal_s=1.0)
    yield line("archive from its CSV logs", ours)
    yield line("  a script with csv and matplotlib", plot, ratio=ratio(plot, ours), goal_ratio=10.0)
    yield line("  a script with csv alone", plain, ratio=ratio(plain, ours))
    yield line("archive once imported, with roll-ups", rolled)
    yield line("  a script with csv alone", plain, ratio=ratio(plain, rolled), goal_ratio=3.0)


def line(what: str, times: list[float], **goals: float) -> Line:
    return Line(what=what, seconds=statistics.median(times), worst=max(times), **goals)


def ratio(peer: list[float], ours: list[float]) -> float:
    return statistics.median(peer) / statistics.median(ours)


def tail_lines(work: Path, rounds: int) -> Iterator[Line]:
    """The last five minutes of 1,000 hosts with 8 GPUs each, behind 30 days of files."""
    root = work / "tail"
    now_ms = time.time_ns() // 1_000_000
    hosts, gpus, days = 1000, 8, 30
    for number in range(hosts):
        make_month(root / f"node{number:04d}", now_ms, gpus, days)

    def check(text: str) -> None:
        seen = json.loads(text)["coverage"]
        if (seen["hosts_with_data"], seen["gpus_with_data"]) != (hosts, hosts * gpus):
            raise SystemExit(f"not all of the tree was seen: {seen}")

    times = measure([*OURS, str(root), "--window", "5m", "--by", "fleet", "--json"], rounds, check=check)
    yield line("last 5 min of 1,000 hosts x 8 GPUs, 30 days of files", times, goal_s=2.0)


def make_month(folder: Path, now_ms: int, gpus: int, days: int) -> None:
    """A segment for each day. Only the last one has all of its rows: of the others nothing may be read."""
    from fleetcraft.telemetry.segment import COLUMN_LINE, segment_stem

    folder.mkdir(parents=True)
    day_ms = 86_400_000
    for day in range(days, 0, -1):
        start = now_ms - day * day_ms + 3_600_000
        path = folder / f"{segment_stem(start, 'abcdef12', '77')}.csv"
        head = header_of(folder.name, start, gpus, 10.0).line() + "\n" + COLUMN_LINE + "\n"
        hour = range(now_ms - 3_600_000, now_ms, 10_000)
        rows = rows_of(hour, start, gpus, random.Random(day)) if day == 1 else iter(())
        path.write_text(head + "".join(f"{row}\n" for row in rows))
        path.with_suffix(".rollup.csv").touch()
        if day > 1:
            os.utime(path, ((start + day_ms) / 1000,) * 2)


def header_of(host: str, start_ms: int, gpus: int, interval_s: float):  # noqa: ANN201  imported late
    from fleetcraft.telemetry.api import Device
    from fleetcraft.telemetry.segment import Header, Slot

    slots = tuple(
        Slot(n=n, device=Device(uuid=f"GPU-{host}-{n}", index=n, name="NVIDIA H100", memory_bytes=80 * GIB))
        for n in range(gpus)
    )
    return Header(
        host=host, boot_id="abcdef12", job="77", fleet="f", interval_s=interval_s, started_utc_ms=start_ms, slots=slots
    )


def rows_of(stamps: range, start_ms: int, gpus: int, rng: random.Random) -> Iterator[str]:
    """Rows as a sampler writes them; their levels come from a small stock, their counter grows."""
    from fleetcraft.telemetry.segment import COLUMNS

    stock = []
    for _ in range(61):
        known = {
            "util_pct": rng.choice(["0", "33.5", "100"]), "memory_used_bytes": str(rng.randrange(80 * GIB)),
            "memory_total_bytes": str(80 * GIB), "power_w": f"{rng.uniform(60, 700):.2f}", "energy_mj": "{}",
            "temperature_c": "61", "sm_clock_mhz": "1980", "throttle_mask": "0", "performance_state": "0",
            "own_pids": "1",
        }  # fmt: skip
        stock.append(",".join(known.get(name, "") for name in COLUMNS[6:]))
    for tick, stamp in enumerate(stamps):
        lead = f"{tick},{stamp},{stamp - start_ms},{stamps.step}"
        for n in range(gpus):
            yield f"{lead},{n},ok," + stock[(tick + 7 * n) % 61].format(stamp - start_ms)


def large_lines(work: Path, rounds: int) -> Iterator[Line]:
    """5.76 million rows: 125 hosts, 8 GPUs, two days at 30 s, without roll-ups; as CSV, then sealed."""
    from fleetcraft.telemetry.segment import COLUMN_LINE, segment_stem

    start, root, total = 1_800_000_000_000, work / "large", 125 * 8 * 5760
    for number in range(125):
        folder = root / f"node{number:03d}"
        folder.mkdir(parents=True)
        rows = rows_of(range(start, start + 2 * 86_400_000, INTERVAL_MS), start, 8, random.Random(number))
        head = header_of(folder.name, start, 8, 30.0).line() + "\n" + COLUMN_LINE + "\n"
        (folder / f"{segment_stem(start, 'abcdef12', '77')}.csv").write_text(head + "\n".join(rows) + "\n")

    def check(text: str) -> None:
        if json.loads(text)["total"]["samples"] != total:
            raise SystemExit(f"not all rows were read: {text[:200]}")

    command = [*OURS, str(root), "--by", "fleet", "--json"]
    yield line("5.76 million rows as CSV, no roll-ups", measure(command, rounds, check=check), goal_s=8.0)
    for path in root.rglob("*.csv"):
        seal(path)
    yield line("5.76 million rows sealed, no roll-ups", measure(command, rounds, check=check), goal_s=3.0)


def seal(path: Path) -> None:
    """As `gpu seal` leaves it: Parquet and what is told of it, without the segment."""
    import polars as pl

    with path.open() as source:
        head = json.loads(source.readline().partition(" ")[2])
    frame = pl.read_csv(path, comment_prefix="#", infer_schema_length=None)
    empty = [name for name in frame.columns if frame[name].null_count() == frame.height]
    frame.with_columns(pl.col(name).cast(pl.Float64) for name in empty).write_parquet(path.with_suffix(".parquet"))
    path.with_suffix(".sealed.json").write_text(json.dumps({"head": head, "statements": []}))
    path.unlink()


PARTS = {"archive": archive_lines, "tail": tail_lines, "large": large_lines}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default=",".join(PARTS), help="which parts, with commas between")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--output", metavar="FILE", help="keep the lines and the load of the machine as JSON")
    arguments = parser.parse_args()
    lines: list[Line] = []
    before = os.getloadavg()[0]
    where = os.environ.get("FLEETCRAFT_BENCH_DIR")
    with tempfile.TemporaryDirectory(prefix="fleetcraft-bench-gpu-", dir=where) as work:
        for name in arguments.only.split(","):
            for one in PARTS[name](Path(work), arguments.rounds):
                lines.append(one)
                if not arguments.json:
                    print(shown(one), flush=True)
    told = {
        "cpus": os.cpu_count(),
        "load_before_after": [before, os.getloadavg()[0]],
        "lines": [{**asdict(one), "reached": one.reached} for one in lines],
    }
    if arguments.json:
        print(json.dumps(told, indent=1))
    if arguments.output:
        Path(arguments.output).write_text(json.dumps(told, indent=1) + "\n")
    return 0 if all(one.reached for one in lines) else 1


def shown(one: Line) -> str:
    text = f"{one.what:<56} {one.seconds:6.3f} s (worst {one.worst:.3f})"
    if one.ratio is not None:
        text += f"  {one.ratio:5.1f}x"
    goal = "" if one.goal_s is None else f"  goal <= {one.goal_s:g} s"
    goal += "" if one.goal_ratio is None else f"  goal >= {one.goal_ratio:g}x"
    return text + (goal and f"{goal}: {'reached' if one.reached else 'MISSED'}")


if __name__ == "__main__":
    sys.exit(main())
