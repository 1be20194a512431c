"""A report for strangers: only fields on a list, names replaced by numbers, and a search for what may have slipped in.

What is kept is named here; a field that is added elsewhere stays out until somebody lists it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from fleetcraft.core.errors import Refused

_PLAIN = (
    "schema", "since_ms", "until_ms", "length_ms", "mode", "definition", "coverage", "bins", "activity_ms",
)  # fmt: skip
_ROW = (
    "hosts", "gpus", "samples", "gpu_hours", "coverage", "utilization_pct", "active_fraction", "active_gpu_hours",
    "inactive_gpu_hours", "reserved_idle_gpu_hours", "free_idle_gpu_hours", "utilization_weighted_gpu_hours",
    "memory_mean_bytes", "memory_max_bytes", "memory_fraction", "power_mean_w", "energy", "doubled_gpu_hours",
    "extra_samples",
)  # fmt: skip
_TASK = (
    "attempts", "held_ms", "observed_ms", "active_ms", "memory_peak_bytes", "joules_held", "joules_counter", "shared",
)  # fmt: skip
_SHORT = 3
_ROOTS = "home|root|scratch|work|tmp|users?|mnt|data|gpfs|lustre|nfs"
_PATH = re.compile(rf"(?<![\w.:/<])/(?:{_ROOTS})\w*/[^\s\"'<>]*", re.IGNORECASE)
# Numbers that place a shape are no text; an id of a job may well be among them.
_GEOMETRY = re.compile(r' (?:x|y|x1|x2|y1|y2|cx|cy|r|rx|width|height|d|points|viewBox|transform)="[^"]*"')
_DATA_URL = re.compile(r"data:[\w/+;=-]*base64,[A-Za-z0-9+/=]*")


def clean(document: Mapping[str, Any]) -> dict[str, Any]:
    """The document with listed fields only, and numbers for names."""
    hosts = _numbers("host", _hosts(document))
    found = _take(document, _PLAIN)
    found["published"] = True
    found["total"] = _row(document["total"])
    found["rows"] = [{"name": hosts[row["name"]], **_row(row)} for row in document["rows"]]
    found["timelines"] = [
        {"label": f"{hosts[one['host']]} {one['unit']} {place}", "host": hosts[one["host"]], "unit": one["unit"],
         "cells": one["cells"]}
        for place, one in enumerate(document["timelines"], 1)
    ]  # fmt: skip
    found["ledgers"] = [_ledger(ledger) for ledger in document["ledgers"]]
    found["problems"] = [
        {"kind": one["kind"], "host": hosts.get(one["host"], ""), "text": ""} for one in document["problems"]
    ]
    found["sources"] = [
        {"name": f"file-{place}", **_take(one, ("bytes", "sha256"))} for place, one in enumerate(document["sources"], 1)
    ]
    return found


def _hosts(document: Mapping[str, Any]) -> list[str]:
    named = [row["name"] for row in document["rows"]]
    named += [one["host"] for one in document["timelines"]]
    return [*named, *(one["host"] for one in document["problems"] if one["host"])]


def _numbers(word: str, names: Iterable[str]) -> dict[str, str]:
    return {name: f"{word}-{place}" for place, name in enumerate(dict.fromkeys(names), 1)}


def _take(some: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    return {name: some[name] for name in names if name in some}


def _row(row: Mapping[str, Any]) -> dict[str, Any]:
    return _take(row, _ROW)


def _ledger(ledger: Mapping[str, Any]) -> dict[str, Any]:
    return {
        **_take(ledger, ("unit", "allocated_ms", "adds_up", "check", "classes_ms", "observed_ms")),
        "wastes": [{**_take(one, ("class", "ms", "share")), "text": "", "remedy": ""} for one in ledger["wastes"]],
        "tasks": [
            {"name": f"task-{place}", **_take(one, _TASK)} for place, one in enumerate(ledger["tasks"], 1)
        ],
        "sources": [],
    }  # fmt: skip


def check(text: str, denied: Iterable[str], fixed: str = "") -> None:
    """Refuse a text that still has one of these words, or a path. Words of `fixed` are ours and say nothing.

    Raises Refused with the place.
    """
    bare = _DATA_URL.sub("data", _GEOMETRY.sub("", text))
    match = _PATH.search(bare)
    if match is not None:
        raise _leak(bare, match.start(), "a path")
    ours = fixed.casefold()
    folded = bare.casefold()
    for word in sorted({one.strip() for one in denied if one.strip()}, key=lambda one: (-len(one), one)):
        pattern = _pattern(word)
        if pattern is None or pattern.search(ours):
            continue
        match = pattern.search(folded)
        if match is not None:
            raise _leak(bare, match.start(), "a name or an id of the input")


def _pattern(word: str) -> re.Pattern[str] | None:
    """The word on its own, in any case; None for a number so small that it would tell nothing."""
    folded = word.casefold()
    if folded.isdigit() and len(folded) <= _SHORT:
        return None
    if folded.isdigit():
        return re.compile(rf"(?<![\w.,]){folded}(?!\w|[.,]\d)")  # an id, not a part of a measured number
    return re.compile(rf"(?<!\w){re.escape(folded)}(?!\w)")


def _leak(text: str, at: int, what: str) -> Refused:
    line = text.count("\n", 0, at) + 1
    return Refused(
        f"The report cannot be published: line {line}, character {at - text.rfind(chr(10), 0, at)} still holds {what}.",
        hint="Nothing was written. Make it without --publish and look at that place; please report the field.",
    )
