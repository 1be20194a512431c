"""Collects what a GPU report says into one document; the page, the figures and the JSON are all made of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from fleetcraft.core.errors import UsageError
from fleetcraft.readmodel.gpu_ledger import Ledgers, open_ledgers
from fleetcraft.readmodel.gpu_sources import Chosen, choose
from fleetcraft.usage.ledger_api import Class
from fleetcraft.usage.reading import read_windows
from fleetcraft.usage.summary import Summary, summarize, tally
from fleetcraft.usage.timeline import activity_cells, bins, choose_length_ms, class_cells
from fleetcraft.usage.windows import by_gpu

if TYPE_CHECKING:
    from fleetcraft.usage.api import Window
    from fleetcraft.usage.ledger_api import Ledger
    from fleetcraft.usage.reading import Options

SCHEMA = "fleetcraft.gpu.report/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The document, and the words of the input that a published one may not have."""

    document: dict[str, Any]
    private: frozenset[str]


def collect(
    options: Options, *, paths: Sequence[str] = (), spool_root: str | None = None, problems: Sequence[str] = ()
) -> Report:
    """Read samples, and with a spool its ledger too. Raises UsageError where there is nothing at all."""
    ledgers = open_ledgers(
        spool_root, fleet=options.fleet, job=options.job, since_ms=options.since_ms, until_ms=options.until_ms,
        by="host", telemetry=paths, problems=problems,
    )  # fmt: skip
    try:
        chosen = choose(
            paths, spool_root=None if paths else spool_root, fleet=options.fleet, job=options.job,
            since_ms=options.since_ms, until_ms=options.until_ms,
        )  # fmt: skip
    except UsageError:
        if spool_root is None or (ledgers.gpu is None and ledgers.slots is None):
            raise
        chosen = Chosen(sources=[], expected={})
    tallied = tally(chosen.sources, replace(options, keep_digests=True), chosen.expected)
    summary = summarize(tallied, by="host", options=options)
    some = [ledger for ledger in (ledgers.gpu, ledgers.slots) if ledger is not None]
    since_ms, until_ms = _span(options, summary, some)
    length_ms = choose_length_ms(since_ms, until_ms)
    windows = read_windows(chosen.sources, options, length_ms)
    document = {
        "schema": SCHEMA, "since_ms": since_ms, "until_ms": until_ms, "length_ms": length_ms,
        "mode": "samples" if spool_root is None else "ledger", "published": False,
        "definition": summary.definition, "total": summary.total.as_json(), "coverage": summary.coverage.as_json(),
        "rows": [row.as_json() for row in summary.rows], "bins": [asdict(one) for one in bins(windows)],
        "timelines": list(_timelines(windows, ledgers, length_ms, bare=spool_root is None)),
        "activity_ms": _activity(summary),
        "ledgers": [_ledger(one, bare=spool_root is None) for one in some],
        "problems": [{"kind": one.kind, "host": one.host, "text": one.text} for one in summary.problems]
        + [{"kind": "ledger", "host": "", "text": text} for one in some for text in one.problems],
        "sources": [
            {"name": path, "bytes": end - start, "sha256": digest} for path, start, end, digest in tallied.pieces
        ],
    }  # fmt: skip
    return Report(document=document, private=frozenset(_private(document, some, chosen, options, spool_root)))


def _span(options: Options, summary: Summary, ledgers: Sequence[Ledger]) -> tuple[int, int]:
    sums = summary.total.sums
    starts = [one.since_ms for one in ledgers if one.allocated_ms] + [sums.first_ms] * bool(sums.first_ms)
    ends = [one.until_ms for one in ledgers if one.allocated_ms] + [sums.last_ms] * bool(sums.last_ms)
    spans = [span for one in ledgers for span in one.spans]
    if spans and options.since_ms is None:
        starts = [min(span.start_ms for span in spans)] + [sums.first_ms] * bool(sums.first_ms)
    if spans and options.until_ms is None:
        ends = [max(span.end_ms for span in spans)] + [sums.last_ms] * bool(sums.last_ms)
    since_ms = min(starts, default=0) if options.since_ms is None else options.since_ms
    until_ms = max(ends, default=since_ms) if options.until_ms is None else options.until_ms
    return since_ms, max(until_ms, since_ms + 1)


def _timelines(windows: list[Window], ledgers: Ledgers, length_ms: int, *, bare: bool) -> Iterator[dict[str, Any]]:
    if bare:
        mine = by_gpu(windows)
        hosts = [gpu.host for gpu in mine]
        for gpu, some in mine.items():
            label = gpu.host if hosts.count(gpu.host) == 1 else f"{gpu.host} GPU {gpu.index}"
            yield {"label": label, "host": gpu.host, "unit": "GPU", "cells": activity_cells(some)}
        return
    for ledger in (ledgers.gpu, ledgers.slots):
        if ledger is None:
            continue
        for gpu, cells in class_cells(ledger.spans, length_ms).items():
            what = f"GPU {gpu.index}" if ledger.unit == "GPU" else "slots"
            yield {"label": f"{gpu.host} {what}", "host": gpu.host, "unit": ledger.unit, "cells": cells}


def _activity(summary: Summary) -> dict[str, int]:
    sums = summary.total.sums
    known = {"active": sums.active_ms, "reserved": sums.reserved_ms, "free": sums.free_ms}
    return {**known, "unclear": sums.observed_ms - sum(known.values())}


def _ledger(ledger: Ledger, *, bare: bool) -> dict[str, Any]:
    """The part of a ledger that the page shows. Samples alone are no allocation, so they get no bars of their own."""
    return {
        "unit": ledger.unit, "allocated_ms": ledger.allocated_ms, "adds_up": ledger.adds_up,
        "check": ledger.check_line(), "observed_ms": ledger.total.observed_ms,
        "classes_ms": {} if bare else ledger.total.as_json()["classes_ms"],
        # Work that no journal tells of is no waste where there is no journal.
        "wastes": [one.as_json() for one in ledger.wastes if not (bare and one.kind is Class.UNKNOWN)],
        "tasks": [one.as_json() for one in ledger.tasks], "sources": list(ledger.sources),
    }  # fmt: skip


def _private(
    document: Mapping[str, Any], ledgers: Sequence[Ledger], chosen: Chosen, options: Options, spool_root: str | None
) -> Iterator[str]:
    yield from (row["name"] for row in document["rows"])
    yield from (one["host"] for one in document["timelines"])
    yield from (one["name"] for one in document["sources"])
    for source in chosen.sources:
        yield from (source.host, source.job, source.path, source.root)
    yield from (options.fleet or "", options.job or "", spool_root or "")
    for ledger in ledgers:
        for span in ledger.spans:
            yield from (span.gpu.host, span.gpu.uuid, span.job)
        for task in ledger.tasks:
            # Not its id: batch and place in it (1.0) tell nothing, and look like any printed number.
            yield from (task.name, *task.gpus)
