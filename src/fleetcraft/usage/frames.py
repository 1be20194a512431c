"""Sums of large telemetry by polars: the same rules as in `windows` and `holding`, on columns of millions of rows.

Only for what is plain: anything odd (a damaged line, a clock that was set, two loggers) makes it say None, and the
careful reading takes over.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fleetcraft.telemetry.segment_read import LARGEST
from fleetcraft.usage.api import Gpu, Window
from fleetcraft.usage.holding import ACTIVE_PCT, CAP, RESERVED_BYTES
from fleetcraft.usage.pieces import Piece, read_all
from fleetcraft.usage.sealed import head_of
from fleetcraft.usage.segmentread import MAGIC, Segment, Statement, begin_segment, gpu_of
from fleetcraft.usage.series import LEVELS
from fleetcraft.usage.sources import PLAIN, SEALED, Source

if TYPE_CHECKING:
    import polars as pl

# Importing polars takes as long as reading this many bytes without it.
WORTH_BYTES = 64 << 20
_DENSER = 8  # as many rows lie in a byte of Parquet as in this many of CSV
_CLOCK_STEP_MS = 1000
_LEADS = ("utc_ms", "mono_ms", "gpu", "state")
_NEEDED = ("util_pct", "memory_used_bytes", "memory_total_bytes", "energy_mj", "own_pids", "own_memory_bytes")
_LARGEST = ("memory_max_bytes", "memory_total_bytes", "own_memory_max_bytes")
_TOTALS = (
    ("util_pct", "util"),
    ("memory_used_bytes", "memory"),
    ("power_w", "power"),
    ("sm_active_pct", "sm_active"),
    ("tensor_pct", "tensor"),
    ("sm_clock_mhz", "clock"),
)
_SUMMED = (
    *(f"{total}_{what}" for _, total in _TOTALS for what in ("sum", "ms")),
    "observed_ms", "samples", "memory_fraction_sum", "own_ms", "active_ms", "reserved_ms", "free_ms",
    "counter_mj", "counter_ms", "counter_resets",
)  # fmt: skip


def is_worth(sources: Sequence[Source]) -> bool:
    """True where polars is there, and so much has no roll-up that it pays."""
    large = [source for source in sources if source.kind != PLAIN and not source.rollup]
    if sum(_size(source.path) * (_DENSER if source.kind == SEALED else 1) for source in large) < WORTH_BYTES:
        return False
    import importlib.util

    return importlib.util.find_spec("polars") is not None


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


def sum_host(
    sources: Sequence[Source], since_ms: int | None, until_ms: int | None
) -> list[tuple[Segment, dict[Gpu, Window], Piece]] | None:
    """The sums of every GPU of one host, by segment; None where it is not plain. Raises OSError."""
    import polars as pl

    told: list[tuple[Segment, Piece, pl.DataFrame]] = []
    for source in sources:
        try:
            one = _sealed(source) if source.kind == SEALED else _segment(source)
        except (ValueError, pl.exceptions.PolarsError):
            return None
        if one is None:
            return None
        told.append(one)
    intervals = {segment.context.interval_s for segment, _, _ in told}
    if len(intervals) != 1 or any(not _is_plain(frame) for _, _, frame in told):
        return None
    whole = pl.concat([_named(frame, segment, place) for place, (segment, _, frame) in enumerate(told)], how="diagonal")
    sums = _sums(whole, round(intervals.pop() * 1000), since_ms, until_ms)
    if sums is None:
        return None
    return [
        (segment, {window.gpu: window for place_of, window in sums if place_of == place}, piece)
        for place, (segment, piece, _) in enumerate(told)
    ]


def _segment(source: Source) -> tuple[Segment, Piece, pl.DataFrame] | None:
    import polars as pl

    data = read_all(source.path)
    end = data.rfind(b"\n") + 1
    first, second = data.find(b"\n") + 1, data.find(b"\n", data.find(b"\n") + 1) + 1
    head, names = (
        data[:first].decode("utf-8", "replace"),
        data[first:second].decode("ascii", "replace").strip().split(","),
    )
    if not head.startswith(MAGIC) or b"\0" in data:
        return None
    segment = begin_segment(json.loads(head.partition(" ")[2]), source.host)
    at = data.find(b"\n#", second - 1)
    while at >= 0:
        line = data[at + 2 : data.find(b"\n", at + 1)]
        body = json.loads(line)
        if "devices" in body:
            return None
        kind, stamp = str(body.pop("t", "")), body.pop("utc_ms", None)
        segment.statements.append(Statement(host=segment.host, kind=kind, utc_ms=stamp, body=body))
        at = data.find(b"\n#", at + 1)
    kinds: dict[str, Any] = dict.fromkeys(names, pl.Float64)
    kinds.update(utc_ms=pl.Int64, mono_ms=pl.Int64, gpu=pl.Int32, state=pl.String, reasons=pl.String)
    frame = pl.read_csv(
        io.BytesIO(data[second:end]), has_header=False, new_columns=names, schema=kinds, comment_prefix="#",
        columns=[at for at, name in enumerate(names) if name in _LEADS or name in LEVELS],
    )  # fmt: skip
    return segment, Piece(path=source.path, start=0, end=end), frame


def _sealed(source: Source) -> tuple[Segment, Piece, pl.DataFrame] | None:
    import polars as pl

    with open(source.path.removesuffix(".parquet") + ".sealed.json", encoding="utf-8") as file:
        told = json.load(file)
    segment = head_of(told, source.host)
    names = pl.read_parquet_schema(source.path)
    frame = pl.read_parquet(source.path, columns=[name for name in names if name in _LEADS or name in LEVELS])
    return (
        segment,
        Piece(path=source.path, start=0, end=_size(source.path)),
        frame.cast({pl.selectors.numeric(): pl.Float64}).cast(
            {"utc_ms": pl.Int64, "mono_ms": pl.Int64, "gpu": pl.Int32}
        ),
    )


def _is_plain(frame: pl.DataFrame) -> bool:
    """True where every row has its leads, times go forward, and both clocks agree about the span."""
    if frame.height == 0:
        return True
    if any(frame[name].null_count() for name in ("utc_ms", "gpu", "state")):
        return False
    utc, mono = frame["utc_ms"], frame["mono_ms"]
    if mono[0] is not None and mono[-1] is not None and abs((utc[-1] - utc[0]) - (mono[-1] - mono[0])) > _CLOCK_STEP_MS:
        return False
    return utc.is_sorted()


def _named(frame: pl.DataFrame, segment: Segment, place: int) -> pl.DataFrame:
    """The rows with the identity of their device, and what it holds when nobody uses it."""
    import polars as pl

    devices = segment.numbered()
    numbers = [int(number) for number in devices]
    known = pl.DataFrame(
        {
            "gpu": numbers,
            "uuid": [str(device.get("uuid") or f"gpu{number}") for number, device in devices.items()],
            "edge": [float(device.get("baseline_bytes") or 0) + RESERVED_BYTES for device in devices.values()],
            "size": [
                float(device["memory_bytes"]) if device.get("memory_bytes") else None for device in devices.values()
            ],
            "index": [gpu_of(segment.host, device, number).index for number, device in devices.items()],
        },
        schema={"gpu": pl.Int32, "uuid": pl.String, "edge": pl.Float64, "size": pl.Float64, "index": pl.Int64},
    )
    frame = frame.drop(name for name in LEVELS if name in frame.columns and frame[name].null_count() == frame.height)
    missing = [pl.lit(None, dtype=pl.Float64).alias(name) for name in _NEEDED if name not in frame.columns]
    joined = frame.join(known, on="gpu", how="left", maintain_order="left").with_columns(
        pl.lit(place).alias("place"), pl.lit(segment.host).alias("host"), *missing
    )
    finite = joined.with_columns(
        pl.when(pl.col(name).abs() < LARGEST).then(pl.col(name)).alias(name)
        for name in LEVELS
        if name in joined.columns
    )
    return finite.with_columns(pl.col("memory_total_bytes").fill_null(pl.col("size")))


def _sums(
    whole: pl.DataFrame, interval_ms: int, since_ms: int | None, until_ms: int | None
) -> list[tuple[int, Window]] | None:
    import polars as pl

    cap_ms = int(interval_ms * CAP)
    whole = _by_device(whole)
    same = pl.col("code") == pl.col("code").shift(-1)
    delta = pl.col("utc_ms").shift(-1) - pl.col("utc_ms")
    whole = whole.with_columns(pl.when(same).then(delta).alias("delta"))
    if whole.select((pl.col("delta") < interval_ms // 2).any()).item():
        return None
    held = pl.when(pl.col("delta") <= cap_ms).then(pl.col("delta")).otherwise(interval_ms)
    whole = whole.with_columns(
        (pl.col("utc_ms") + held.fill_null(interval_ms)).alias("end"),
        *_growth(cap_ms, since_ms, has_all=whole["energy_mj"].null_count() == 0),
    )
    begin = pl.col("utc_ms") if since_ms is None else pl.max_horizontal("utc_ms", pl.lit(since_ms))
    end = pl.col("end") if until_ms is None else pl.min_horizontal("end", pl.lit(until_ms))
    whole = whole.with_columns(begin.alias("from"), end.alias("to")).filter(pl.col("to") > pl.col("from"))
    whole = whole.with_columns((pl.col("to") - pl.col("from")).alias("held"))
    is_good = (whole["state"] == "ok").all()
    summed = whole.with_columns(_products(whole, is_good=is_good))
    rows = summed.group_by("code", "place").agg(
        pl.col("uuid").first(), pl.col("host").first(), pl.col("index").first(),
        pl.col("first_ms").min(), pl.col("last_ms").max(), pl.col(_LARGEST).max(),
        pl.col("held").sum(),
        pl.col(name for name in _SUMMED if name in summed.columns).sum(),
        pl.col("energy_mj").count().alias("counted"),
    )  # fmt: skip
    return [(row.pop("place"), _window(row)) for row in rows.iter_rows(named=True)]


def _growth(cap_ms: int, since_ms: int | None, *, has_all: bool) -> list[pl.Expr]:
    """What the counter grew by since its last value of the same segment, and over which time."""
    import polars as pl

    value = pl.col("energy_mj")
    known = pl.when(value.is_not_null()).then(pl.col("utc_ms")).otherwise(None)
    if has_all:
        same = (pl.col("code") == pl.col("code").shift(1)) & (pl.col("place") == pl.col("place").shift(1))
        before, since = (pl.when(same).then(one.shift(1)).otherwise(None) for one in (value, known))
    else:
        before, since = (one.forward_fill().shift(1).over("code", "place") for one in (value, known))
    time = known - since
    grew = (value >= before) & (time <= cap_ms) & (time > 0)
    inside = time if since_ms is None else (pl.col("utc_ms") - pl.max_horizontal(since, pl.lit(since_ms))).clip(0)
    return [
        pl.when(grew).then((value - before) * inside / time).alias("counter_mj"),
        pl.when(grew).then(inside).alias("counter_ms"),
        (value < before).alias("counter_resets"),
    ]


def _by_device(whole: pl.DataFrame) -> pl.DataFrame:
    """The rows of each device together, in order of time. Where devices come in turns, that needs no sorting."""
    import polars as pl

    count = whole["uuid"].n_unique()
    numbers = whole["gpu"]
    if whole["place"][0] == whole["place"][-1] and (numbers == numbers.shift(count)).all():
        parts = [
            whole.gather_every(count, at).with_columns(pl.lit(at).alias("code"))
            for at in range(min(count, whole.height))
        ]
        return pl.concat(parts)
    return whole.with_columns(pl.col("uuid").rank("dense").alias("code")).sort("code", "utc_ms", maintain_order=True)


def _products(whole: pl.DataFrame, *, is_good: bool) -> list[pl.Expr]:
    """What is summed, by row: a plain sum of a column is much faster than a filter inside each group."""
    import polars as pl

    good = pl.col("state") == "ok"

    def of(name: str) -> pl.Expr:
        return pl.col(name) if is_good else pl.when(good).then(pl.col(name))

    held, util, used, size = of("held"), of("util_pct"), of("memory_used_bytes"), of("memory_total_bytes")
    known = [(name, total) for name, total in _TOTALS if name in whole.columns]
    return [
        *((of(name) * held).alias(f"{total}_sum") for name, total in known),
        *(pl.when(of(name).is_not_null()).then(held).alias(f"{total}_ms") for name, total in known),
        held.alias("observed_ms"),
        (pl.col("utc_ms") >= pl.col("from")).alias("samples"),
        pl.col("from").alias("first_ms"), pl.col("to").alias("last_ms"),
        (used / pl.when(size > 0).then(size) * held).alias("memory_fraction_sum"),
        used.alias("memory_max_bytes"), size.alias("memory_total_bytes"),
        of("own_memory_bytes").alias("own_memory_max_bytes"),
        pl.when(of("own_pids") > 0).then(held).alias("own_ms"),
        pl.when(util >= ACTIVE_PCT).then(held).alias("active_ms"),
        pl.when((util < ACTIVE_PCT) & (used >= pl.col("edge"))).then(held).alias("reserved_ms"),
        pl.when((util < ACTIVE_PCT) & (used < pl.col("edge"))).then(held).alias("free_ms"),
    ]  # fmt: skip


def _window(row: dict[str, Any]) -> Window:
    gpu = Gpu(host=row.pop("host"), uuid=row.pop("uuid"), index=row.pop("index") or 0)
    held, counted = row.pop("held"), row.pop("counted")
    row.pop("code")
    grown = row.pop("counter_mj")
    return Window(
        gpu=gpu, start_ms=0, length_ms=0, bad_ms=held - row["observed_ms"], counter_mj=grown if counted else None,
        **{name: value for name, value in row.items() if value is not None},
    )  # fmt: skip
