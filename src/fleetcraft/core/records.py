"""The journal line: a JSON object, a space, the crc32 of the object in hex, a newline.

`encode_line` and `decode_line` are exact inverses. Reading is total: damaged bytes never raise, they come
back as None and are counted with their offset by the reader.

Kinds of record (key `t`): `up`, `started`, `spawned`, `receipt`, `lost`, `adopted`, `note`, `end`. A task is
named by `b` (batch) and `i` (position); `k` above one says that the record speaks of `k` tasks from `i` on.
"""

from __future__ import annotations

import json
import math
from codecs import BOM_UTF8
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any
from zlib import crc32

# The scanner behind json.loads, without its checks of types and blanks: a third of the time of a line.
scan_json: Callable[[str, int], tuple[Any, int]] = json.JSONDecoder().scan_once  # type: ignore[attr-defined]  # no stub

STARTED = "started"
SPAWNED = "spawned"
RECEIPT = "receipt"
LOST = "lost"
ADOPTED = "adopted"
NOTE = "note"


def encode_line(body: str) -> bytes:
    """One journal line from a JSON object written on one line."""
    raw = body.encode()
    return b"%b %08x\n" % (raw, crc32(raw))


def decode_line(line: bytes) -> dict[str, Any] | None:
    """The record of one line (with or without its newline), or None when the bytes are damaged."""
    if line[-1:] == b"\n":
        line = line[:-1]
    if line[:1] != b"{":
        # A hole left by a crash or by a network file system reads as zero bytes before the next good line;
        # editors and file transfers put a byte order mark before the first one.
        line = line.lstrip(b"\0").removeprefix(BOM_UTF8)
    try:
        if len(line) < 11 or line[-9:-8] != b" " or crc32(line[:-9]) != int(line[-8:], 16):
            return None
        text = line[:-9].decode()
        value, end = scan_json(text, 0)
    except (ValueError, StopIteration, RecursionError):
        return None
    return value if isinstance(value, dict) and end == len(text) else None


def dump(record: Mapping[str, Any]) -> str:
    """Strict JSON on one line.

    Values that are not finite become their names (`NaN`, `Infinity`, `-Infinity`), the same for every number
    type; numbers of foreign types (numpy, torch) become plain ones. Raises TypeError for what has no JSON form.
    """
    try:
        return json.dumps(record, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError):
        return json.dumps(_plain(record), separators=(",", ":"), allow_nan=False)


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        if math.isfinite(value):
            return float(value)
        return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
    if value is None or isinstance(value, (str, int)):
        return value
    if isinstance(value, Mapping):
        return {_key(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, Decimal):
        whole = value.is_finite() and value == value.to_integral_value() and abs(value) < 10**4000
        return int(value) if whole else _plain(float(value))
    # A scalar of numpy or torch: `item` gives the plain number. An array has more than one and is refused.
    item = getattr(value, "item", None)
    if callable(item) and not getattr(value, "shape", ()):
        return _plain(item())
    raise TypeError(f"{type(value).__name__} has no JSON form")


def _key(key: Any) -> str:
    plain = _plain(key)
    return plain if isinstance(plain, str) else json.dumps(plain)


def started_body(number: int, batch: int, index: int, gen: int, attempt: int, slot: int, at: float) -> str:
    """A `started` record, formatted by hand: it is written before every single task."""
    return f'{{"n":{number},"t":"started","b":{batch},"i":{index},"g":{gen},"a":{attempt},"s":{slot},"at":{at:.3f}}}'


def spawned_body(number: int, batch: int, index: int, attempt: int, pid: int, boot_s: float) -> str:
    """A `spawned` record; the session is the pid, since every task leads its own session."""
    return f'{{"n":{number},"t":"spawned","b":{batch},"i":{index},"a":{attempt},"pid":{pid},"boot":{boot_s:.2f}}}'


def success_body(
    number: int, batch: int, index: int, gen: int, attempt: int, slot: int,
    at: float, end: float, wall_s: float, cpu_s: float, rss_kib: int | None, log: tuple[int, int, int],
) -> str:  # fmt: skip
    """The receipt of a plain success (exit 0, nothing declared), formatted by hand."""
    rss = "null" if rss_kib is None else rss_kib
    return (
        f'{{"n":{number},"t":"receipt","b":{batch},"i":{index},"g":{gen},"a":{attempt},"s":{slot},"o":"succeeded",'
        f'"final":"succeeded","at":{at:.3f},"end":{end:.3f},"wall":{wall_s:.4f},"cpu":{cpu_s:.4f},"rss_kib":{rss},'
        f'"log":[{log[0]},{log[1]},{log[2]}]}}'
    )
