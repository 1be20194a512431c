"""Slurm's memory sizes and resource lists, as they are printed and as they are asked for."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal

_POWERS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4, "P": 5, "E": 6}
_MEMORY = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,9})?)([KMGTPE]?)B?([nc]?)", re.IGNORECASE)
_REQUEST = re.compile(r"([0-9]{1,15})([KMGT]?)B?", re.IGNORECASE)
_MIB = 1024**2
# gres/gpu:a100=4, gres:gpu:a100:4(S:0-1), gpu=4, gres/gpu:2
_GPU = re.compile(
    r"(?:^|,)\s*(?:gres[/:])?gpu(?:[:/](?P<type>[A-Za-z][\w.+-]*))?(?:[:=](?P<count>[0-9]{1,9}))?(?:\([^)]*\))?(?=,|$)"
)
_PARENTHESES = re.compile(r"\([^)]*\)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """`per` says whose memory it is, where the old suffixes tell: node or cpu."""

    bytes: int
    per: str | None = None


def read_memory(text: str) -> Memory | None:
    """`3152K`, `1.50Gn`, `0c`, or bytes; None when there is no size, as for a job that never ran."""
    match = _MEMORY.fullmatch(text.strip())
    if not match:
        return None
    number, unit, per = match.groups()
    exact = Decimal(number) * 1024 ** _POWERS[unit.upper()]
    whole = int(exact.to_integral_value(rounding=ROUND_HALF_UP))
    return Memory(bytes=whole, per={"n": "node", "c": "cpu"}.get(per.lower()))


def memory_request(text: str) -> str | None:
    """What `--mem` makes of it, or None when it refuses: no fractions, a number alone is MiB, `0` is all there is."""
    match = _REQUEST.fullmatch(text.strip())
    if not match:
        return None
    number, unit = int(match[1]), match[2].upper() or "M"
    if number == 0:
        return "0"
    if unit == "K":
        return f"{math.ceil(number / 1024)}M"
    return f"{number}{unit}"


def memory_option(size_bytes: int) -> str:
    """The word for `--mem`: whole MiB, rounded up; 0 is all of the node."""
    return "0" if size_bytes == 0 else f"{math.ceil(size_bytes / _MIB)}M"


def read_tres(text: str) -> dict[str, int]:
    """`cpu=8,mem=6000M,gres/gpu=4,billing=8` as numbers; memory in bytes. What is no number is left out."""
    amounts: dict[str, int] = {}
    for piece in _PARENTHESES.sub("", text).split(","):
        name, equals, value = piece.strip().partition("=")
        if not equals:
            continue
        if name == "mem":
            # A number alone is MiB here, and bytes in the columns of accounting.
            size = read_memory(f"{value}M" if value.isdigit() else value)
            if size:
                amounts[name] = size.bytes
        elif value.isascii() and value.isdigit() and len(value) <= 18:
            amounts[name] = int(value)
    return amounts


def gpus_in(text: str) -> int | None:
    """How many GPUs a resource text names, in any of its spellings; 0 when it names none, None when it says nothing.

    Accounting names the total and each type: `gres/gpu=4,gres/gpu:a100=4` are four.
    """
    text = text.strip()
    if text in ("", "N/A", "(null)", "None", "n/a"):
        return None
    total: int | None = None
    typed = 0
    for match in _GPU.finditer(text):
        count = int(match["count"] or 1)
        if match["type"]:
            typed += count
        else:
            total = (total or 0) + count
    return typed if total is None else total


def gpu_types_in(text: str) -> tuple[str, ...]:
    """The kinds of GPUs that a resource text names."""
    return tuple(sorted({match["type"] for match in _GPU.finditer(text.strip()) if match["type"]}))
