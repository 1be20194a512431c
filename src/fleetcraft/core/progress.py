"""The form of a progress file: what a running task says of itself, one small JSON object, replaced whole.

Any program may write it, so a reader takes nothing on trust: what is not of this form, or too much, is not there.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

SCHEMA = "fleetcraft.progress/1"
VARIABLE = "FLEETCRAFT_PROGRESS"
# All of them go into every heartbeat of a worker, which hundreds of readers read.
MAX_FILE_BYTES = 4096
MAX_TEXT = 64
MAX_NUMBERS = 16
_COUNTS = ("done", "total", "flops")
_TEXTS = ("unit", "phase")
# Larger ones become floats: other languages' readers have no whole numbers beyond.
_MAX_WHOLE = 2**53


def encode(values: Mapping[str, Any], *, task: str, attempt: str, at_utc: float) -> bytes:
    """The bytes of a progress file; what does not fit the form is left out, never written wrong."""
    tidied = tidy(values)
    body: dict[str, Any] = {
        "schema": SCHEMA, "task": task, "attempt": int(attempt) if attempt.isdecimal() else None,
        "at_utc": round(at_utc, 3), "done": None, "total": None, "unit": "", "phase": "", "flops": None,
        "numbers": {}, **tidied,
    }  # fmt: skip
    return json.dumps(body, separators=(",", ":"), allow_nan=False).encode() + b"\n"


def decode(data: bytes, *, task: str, attempt: int, named: bool = False) -> dict[str, Any] | None:
    """What the file says of this attempt and no more; None for another's word, and for what is no progress.

    With `named` a file that does not say whose it is may be anybody's, and is not believed.
    """
    if len(data) > MAX_FILE_BYTES:
        return None
    try:
        body = json.loads(data)
    except (ValueError, RecursionError):
        return None
    if not isinstance(body, dict) or body.get("schema") != SCHEMA:
        return None
    if body.get("task") not in (task, None) or body.get("attempt") not in (attempt, None):
        return None
    if named and (body.get("task") is None or body.get("attempt") is None):
        return None
    found = tidy(body)
    at_utc = number(body.get("at_utc"))
    if at_utc is not None:
        found["at_utc"] = at_utc
    return found or None


def tidy(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values that fit the form, those that say nothing left out."""
    found: dict[str, Any] = {}
    for key in _COUNTS:
        value = number(values.get(key))
        if value is not None and value >= 0:
            found[key] = value
    for key in _TEXTS:
        text = values.get(key)
        if isinstance(text, str) and text:
            found[key] = text[:MAX_TEXT]
    numbers = values.get("numbers")
    if isinstance(numbers, dict):
        kept = {
            key: value
            for key, raw in numbers.items()
            if isinstance(key, str) and 0 < len(key) <= MAX_TEXT and (value := number(raw)) is not None
        }
        if kept:
            found["numbers"] = dict(list(kept.items())[:MAX_NUMBERS])
    return found


def number(value: object) -> int | float | None:
    """A finite number, or None; what converts itself (a numpy or torch scalar) is asked, a text and a truth is not."""
    if value is None or isinstance(value, (bool, str, bytes, bytearray)):
        return None
    if isinstance(value, int) and abs(value) <= _MAX_WHOLE:
        return int(value)
    try:
        real = float(value)  # type: ignore[arg-type]
    except Exception:  # noqa: BLE001  whatever a foreign type raises
        return None
    return real if math.isfinite(real) else None
