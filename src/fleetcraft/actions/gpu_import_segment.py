"""Builds the segment of a log that another tool wrote, and makes it appear whole."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fleetcraft import __version__
from fleetcraft.store.files import Files, ensure_folder, publish_file
from fleetcraft.telemetry.api import Device, Reading, Reason
from fleetcraft.telemetry.fields import NAMES
from fleetcraft.telemetry.foreign import Log
from fleetcraft.telemetry.foreign_bursts import TICK_MS
from fleetcraft.telemetry.segment import (
    COLUMN_LINE,
    ENDING,
    Header,
    Slot,
    encode_row,
    harmless,
    segment_stem,
    statement,
)

# What the head of such a segment says of the log.
KEY = "imported"


def build(
    host: str, log: Log, skip: int, *, job: str, interval_s: float, told: Mapping[str, Any]
) -> tuple[Header, list[str]]:
    """The head and the rows, in the order of time."""
    order = sorted(range(skip, len(log.utc_ms)), key=log.utc_ms.__getitem__)
    labels = sorted({"" if log.device is None else log.device[at] for at in order})
    totals = log.columns.get("memory_total_bytes", [])
    slots = {}
    for n, label in enumerate(labels):
        mine = (at for at in order if log.device is None or log.device[at] == label)
        total = next((totals[at] for at in mine if totals and totals[at] is not None), None)
        # An index is no identity: the name says where it comes from.
        uuid = label if label and not label.isdigit() else f"LOG-{harmless(host)}-{label or 0}"
        index = int(label) if label.isdigit() else n
        device = Device(
            uuid=uuid, index=index, name=log.names.get(label, ""), memory_bytes=None if total is None else int(total)
        )
        slots[label] = Slot(n=n, device=device)
    start_ms = log.utc_ms[order[0]] if order else 0
    header = Header(
        host=host, job=job, interval_s=interval_s, sensor="log", version=__version__,
        started_utc_ms=start_ms, slots=tuple(slots.values()), extra={KEY: told},
    )  # fmt: skip
    return header, list(_rows(log, order, slots, start_ms))


def _rows(log: Log, order: Sequence[int], slots: dict[str, Slot], start_ms: int) -> Iterator[str]:
    columns = [(name, values, log.absent.get(name, {})) for name, values in log.columns.items() if name in NAMES]
    lacking = {name: Reason.NOT_FOUND for name in NAMES if name not in log.columns}
    sequence, at_ms, step_ms = 0, start_ms, None
    here: set[int] = set()
    for at in order:
        stamp = log.utc_ms[at]
        slot = slots["" if log.device is None else log.device[at]]
        if slot.n in here or stamp - at_ms > TICK_MS:
            # The next tick, or a second logger, whose rows are no others to a reader than those of the first.
            sequence, step_ms, at_ms = sequence + 1, stamp - at_ms, stamp
            here.clear()
        here.add(slot.n)
        values: dict[str, float] = {}
        reasons = dict(lacking)
        for name, told, absent in columns:
            value = told[at]
            if value is None:
                reasons[name] = absent.get(at, Reason.NOT_FOUND)
            else:
                values[name] = value
        reading = Reading(uuid=slot.device.uuid, values=values, reasons=reasons)
        # A tool stamps the GPUs of one tick some milliseconds apart; in a segment a tick is one moment.
        yield encode_row(sequence, at_ms, at_ms - start_ms, step_ms, slot.n, reading)


def is_even(made: tuple[Header, list[str]]) -> bool:
    """True where each tick has a row of every device; sums are not made ahead of reading for any other segment."""
    header, rows = made
    ticks = int(rows[-1].partition(",")[0]) + 1
    return len(rows) == ticks * len(header.slots)


def write(files: Files, folder: str, made: tuple[Header, list[str]]) -> str:
    """Make the segment appear whole; two logs of a host may begin at the same moment."""
    header, rows = made
    os.makedirs(os.path.dirname(folder), exist_ok=True)
    ensure_folder(files, folder)
    name_ms = header.started_utc_ms
    while True:
        path = os.path.join(folder, segment_stem(name_ms, header.boot_id, header.job) + ENDING)
        stem = path.removesuffix(ENDING)
        if not files.exists(path) and not files.exists(f"{stem}.parquet"):
            break
        name_ms += 1
    last_ms = int(rows[-1].split(",", 2)[1]) if rows else header.started_utc_ms
    ended = statement("end", last_ms, why="end of the log")
    text = "\n".join([header.line(), COLUMN_LINE, *rows, ended]) + "\n"
    publish_file(files, path, text.encode("ascii", "replace"))
    return path
