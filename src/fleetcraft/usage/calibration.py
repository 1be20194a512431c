"""The table of calibrations: what each trial measured, which point is chosen, and digests that catch every edit.

Pure: trials in, rows out; text in, table out. A row belongs to a family, a device, a driver, code and parameters.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from fleetcraft.core.errors import Refused, UsageError

SCHEMA = "fleetcraft.calibration/1"
STABLE, OUT_OF_MEMORY, FAILED = "stable", "out_of_memory", "failed"
_KEY = ("family", "device", "driver", "code", "parameters")


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One point: `per_gpu` commands at once on a GPU, each with `batch`, for whole cycles."""

    batch: int
    per_gpu: int
    cycles: int
    state: str
    wall_s: float | None = None
    gpu_bytes: Mapping[str, int] | None = None  # the peak on the device by phase, all commands together
    gpu_reason: str | None = None  # why it is not known
    host_bytes: int | None = None  # the largest peak of one command
    host_reason: str | None = None
    error: str | None = None

    @property
    def items_per_s(self) -> float | None:
        """Items of all commands in a second of whole cycles."""
        if self.state != STABLE or not self.wall_s:
            return None
        return self.per_gpu * self.batch * self.cycles / self.wall_s

    @property
    def peak_bytes(self) -> int | None:
        """The peak of all phases."""
        return max(self.gpu_bytes.values()) if self.gpu_bytes else None

    def free_pct(self, device_bytes: int | None) -> float | None:
        """The share of the device that stayed free; None when a side of it is not known."""
        if self.peak_bytes is None or not device_bytes:
            return None
        return 100.0 * (device_bytes - self.peak_bytes) / device_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Pick:
    """The chosen point, or why there is none."""

    batch: int | None
    per_gpu: int | None
    free_pct: float | None
    reason: str


def pick(trials: Iterable[Trial], device_bytes: int | None, headroom_pct: float) -> Pick:
    """The fastest stable point with the headroom; ties go to the smaller batch, then to fewer at once.

    Where memory is known for some points only, a point of which it is not known is never chosen.
    """
    stable = [one for one in trials if one.items_per_s is not None]
    if not stable:
        return Pick(batch=None, per_gpu=None, free_pct=None, reason="no point was stable")
    shown = [one for one in stable if one.free_pct(device_bytes) is not None]
    fitting = [one for one in shown if (one.free_pct(device_bytes) or 0.0) >= headroom_pct]
    if shown and not fitting:
        reason = f"no stable point leaves {headroom_pct:g} % of the device free"
        return Pick(batch=None, per_gpu=None, free_pct=None, reason=reason)
    best = min(fitting or stable, key=lambda one: (-(one.items_per_s or 0.0), one.batch, one.per_gpu))
    reason = f"the fastest that leaves {headroom_pct:g} % of the device free"
    if not shown:
        why = best.gpu_reason or "the size of the device is not known"
        reason = f"the fastest; that {headroom_pct:g} % stay free was not shown: {why}"
    return Pick(batch=best.batch, per_gpu=best.per_gpu, free_pct=best.free_pct(device_bytes), reason=reason)


def code_digest(command: Sequence[str], files: Iterable[tuple[str, bytes]]) -> str:
    """One digest over the words and over each file with its path, in any order of the files."""
    total = hashlib.sha256(_canonical({"command": list(command)}))
    for path, content in sorted(files):
        total.update(_canonical({"path": path, "sha256": hashlib.sha256(content).hexdigest()}))
    return total.hexdigest()


def make_row(
    key: Mapping[str, Any],
    *,
    command: Sequence[str],
    code_paths: Sequence[str],
    device_bytes: int | None,
    headroom_pct: float,
    trials: Sequence[Trial],
    at_utc: float,
) -> dict[str, Any]:
    """A row without its digest, trials in the order of their points."""
    ordered = sorted(trials, key=lambda one: (one.per_gpu, one.batch))
    told = [
        {**asdict(one), "gpu_bytes": dict(one.gpu_bytes) if one.gpu_bytes else None, "items_per_s": one.items_per_s}
        for one in ordered
    ]
    return {
        "key": {name: key[name] for name in _KEY}, "command": list(command), "code_paths": sorted(code_paths),
        "device_bytes": device_bytes, "headroom_pct": headroom_pct, "trials": told,
        "pick": asdict(pick(ordered, device_bytes, headroom_pct)), "at_utc": at_utc, "replaces": None,
    }  # fmt: skip


def add(
    rows: Sequence[Mapping[str, Any]], row: Mapping[str, Any], *, replaces: bool, place: str
) -> list[dict[str, Any]]:
    """The rows with one more. Raises Refused where its key is taken and `replaces` is not given."""
    former = [one for one in rows if one["key"] == row["key"]]
    if former and not replaces:
        raise Refused(
            f"{place} has a row for family {row['key']['family']!r} on {row['key']['device']} already.",
            hint="Give --replace; the new row keeps the digest of the old one.",
        )
    fresh = {name: value for name, value in row.items() if name != "sha256"}
    fresh["replaces"] = former[0]["sha256"] if former else None
    kept = [dict(one) for one in rows if one["key"] != row["key"]]
    return sorted([*kept, {**fresh, "sha256": _digest(fresh)}], key=lambda one: _canonical(one["key"]))


def encode(rows: Sequence[Mapping[str, Any]]) -> str:
    """The table as its file has it."""
    body = {"schema": SCHEMA, "rows": list(rows)}
    return json.dumps({**body, "sha256": _digest(body)}, indent=1, sort_keys=True, allow_nan=False) + "\n"


def decode(text: str, place: str) -> list[dict[str, Any]]:
    """The rows of a table. Raises UsageError for anything that is not as `encode` wrote it."""
    try:
        table = json.loads(text)
        rows = table["rows"]
        digests = [(one, one["sha256"], {k: v for k, v in one.items() if k != "sha256"}) for one in rows]
        keys = [tuple(one["key"][name] for name in _KEY[:-1]) for one in rows]
        body = {"schema": table["schema"], "rows": rows}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UsageError(f"{place} is no calibration table: {error}.", hint=_AGAIN) from None
    if body["schema"] != SCHEMA:
        raise UsageError(f"{place} is of schema {body['schema']!r}, not {SCHEMA}.", hint=_AGAIN)
    for number, (_, told, rest) in enumerate(digests, 1):
        if _digest(rest) != told:
            raise UsageError(
                f"{place}: row {number} ({keys[number - 1][0]}) was edited after it was frozen.", hint=_AGAIN
            )
    if _digest(body) != table.get("sha256") or encode(rows) != text:
        raise UsageError(f"{place} was edited after it was frozen.", hint=_AGAIN)
    return list(rows)


_AGAIN = "Restore the file, or measure again: fleetcraft task calibrate FAMILY --replace -- COMMAND"


def choose(rows: Sequence[Mapping[str, Any]], family: str, device: str | None, place: str) -> dict[str, Any]:
    """The one row of a family. Raises UsageError where there is none, or where several could be meant."""
    found = [one for one in rows if one["key"]["family"] == family]
    if not found:
        raise UsageError(f"{place} has no row for family {family!r}.",
                         hint=f"Measure it: fleetcraft task calibrate {family} --batches 1,2,4 -- COMMAND")  # fmt: skip
    fitting = [one for one in found if device is None or one["key"]["device"] == device]
    devices = ", ".join(sorted({str(one["key"]["device"]) for one in found}))
    if not fitting:
        raise UsageError(f"{place} has no row for family {family!r} on {device!r}.", hint=f"It has: {devices}.")
    if len({one["key"]["device"] for one in fitting}) > 1:
        raise UsageError(
            f"{place} has rows for family {family!r} on several devices.", hint=f"Give --device: {devices}."
        )
    if len(fitting) > 1:
        raise UsageError(f"{place} has {len(fitting)} rows for family {family!r} on {fitting[0]['key']['device']}.",
                         hint="They differ in driver, code or parameters; keep one a file.")  # fmt: skip
    return dict(fitting[0])


def _canonical(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def _digest(value: Any) -> str:
    return hashlib.sha256(_canonical(value)).hexdigest()
