"""Sealed segments: Parquet files, read by polars, which is an optional part (`fleetcraft[analysis]`).

Sums are computed in polars where that is all that is asked; samples become series only for detail.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from fleetcraft.core.errors import UsageError
from fleetcraft.telemetry.segment_read import LARGEST
from fleetcraft.usage.api import Gpu
from fleetcraft.usage.segmentread import Segment, Statement, begin_segment, gpu_of, series_of
from fleetcraft.usage.series import LEVELS, Column, Series

if TYPE_CHECKING:
    import polars as pl


class PolarsMissing(UsageError):
    """The library that reads sealed segments is not there."""


def polars() -> Any:
    """The library. Raises PolarsMissing with the way to get it."""
    try:
        import polars as pl
    except ImportError as error:
        raise PolarsMissing(
            "Sealed telemetry cannot be read here: polars is not installed.",
            hint="Install it: `pip install 'fleetcraft[analysis]'`.",
        ) from error
    return pl


def head_of(told: Mapping[str, Any], host: str) -> Segment:
    """What stands beside a sealed segment: all but its samples. Raises ValueError where it has no head."""
    head = told.get("head")
    if not isinstance(head, dict):
        raise ValueError("what is told of it beside it has no head")  # noqa: TRY004  a damaged file, not a wrong call
    segment = begin_segment(head, host)
    for one in told.get("statements") or []:
        body = dict(one)
        kind, stamp = str(body.pop("t", "")), body.pop("utc_ms", None)
        segment.statements.append(Statement(host=segment.host, kind=kind, utc_ms=stamp, body=body))
        segment.learn(body)
    return segment


def read_sealed(data: bytes, segment: Segment, path: str, since_ms: int | None, until_ms: int | None) -> Segment:
    """The same with its samples in [since, until)."""
    frame = _frame(data, since_ms, until_ms)
    devices = segment.numbered()
    for (number,), rows in frame.partition_by("gpu", as_dict=True, maintain_order=True).items():
        segment.series.append(_series(rows, segment, devices.get(str(number), {}), str(number), path))
    return segment


def _frame(data: bytes, since_ms: int | None, until_ms: int | None) -> pl.DataFrame:
    library = polars()
    names = library.read_parquet_schema(io.BytesIO(data))
    frame: pl.DataFrame = library.read_parquet(
        io.BytesIO(data), columns=["utc_ms", "gpu", "state", *(name for name in LEVELS if name in names)]
    )
    if since_ms is not None:
        frame = frame.filter(library.col("utc_ms") >= since_ms)
    if until_ms is not None:
        frame = frame.filter(library.col("utc_ms") < until_ms)
    return frame


def _series(rows: pl.DataFrame, segment: Segment, device: Mapping[str, Any], number: str, path: str) -> Series:
    states = rows["state"].to_list()
    columns: dict[str, Column] = {}
    for name in LEVELS:
        if name in rows.columns and rows[name].null_count() < rows.height:
            cells = rows[name].cast(float)
            columns[name] = cells.set(~(cells.abs() < LARGEST).fill_null(value=False), None).to_list()
    gpu: Gpu = gpu_of(segment.host, device, number)
    return series_of(segment, device, gpu, path, rows["utc_ms"].to_list(), columns, states)
