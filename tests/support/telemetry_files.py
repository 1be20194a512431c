"""Telemetry for tests: segments as a sampler writes them, with the samples that a test wants, and plain logs."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from fleetcraft.telemetry.api import Device, DeviceState, Reading
from fleetcraft.telemetry.segment import COLUMN_LINE, Header, Slot, encode_row, segment_stem, statement

START_MS = 1_800_000_000_000  # a multiple of five minutes
ARCHIVE = Path(__file__).parents[3] / "shared" / "data" / "telemetry-archive"
Values = Mapping[str, float]


def write_segment(
    root: Path,
    host: str,
    rows: Iterable[tuple[int, int, Values]],
    *,
    job: str = "7",
    fleet: str = "",
    interval_s: float = 10.0,
    gpus: int = 1,
    boot: str = "abcdef12",
    start_ms: int = START_MS,
    baseline_bytes: int | None = None,
    lost: Sequence[int] = (),
    end: str = "",
) -> Path:
    """A segment of `(seconds since its start, GPU, values)`; the rows whose places are in `lost` are of a lost GPU."""
    folder = root / host
    folder.mkdir(parents=True, exist_ok=True)
    slots = tuple(
        Slot(
            n=n,
            device=Device(uuid=f"GPU-{host}-{n}", index=n, name="NVIDIA H100", memory_bytes=80 << 30),
            baseline_bytes=baseline_bytes,
        )
        for n in range(gpus)
    )
    header = Header(
        host=host, boot_id=boot, job=job, fleet=fleet, interval_s=interval_s, started_utc_ms=start_ms,
        started_mono_ms=5000, slots=slots,
    )  # fmt: skip
    lines = [header.line(), COLUMN_LINE]
    last_ms = start_ms
    for place, (second, n, values) in enumerate(rows):
        last_ms = start_ms + second * 1000
        state = DeviceState.LOST if place in lost else DeviceState.OK
        reading = Reading(uuid=slots[n].device.uuid, state=state, values={} if place in lost else values)
        lines.append(encode_row(place, last_ms, last_ms - start_ms + 5000, None, n, reading))
    if end:
        lines.append(statement("end", last_ms, why=end))
    path = folder / f"{segment_stem(start_ms, boot, job)}.csv"
    path.write_text("\n".join(lines) + "\n")
    os.utime(path, (last_ms / 1000, last_ms / 1000))  # the age of a segment is looked at
    return path


def steady(seconds: range, values: Values, gpu: int = 0) -> list[tuple[int, int, Values]]:
    """The same values at each of these seconds."""
    return [(second, gpu, values) for second in seconds]


def plain_log(path: Path, rows: Iterable[tuple[float, object, object, object]], start_ms: int = START_MS) -> Path:
    """A log of `(seconds, memory in MiB, utilization, watts)`."""
    lines = ["timestamp,mem_used_mib,mem_total_mib,util_pct,power_w"]
    for second, memory, util, power in rows:
        at = datetime.fromtimestamp(start_ms / 1000 + second, UTC)
        stamp = f"{at:%Y/%m/%d %H:%M:%S}.{at.microsecond // 1000:03d}"
        lines.append(f"{stamp},{memory},97871,{util},{power}")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n")
    return path
