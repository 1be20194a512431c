"""A small language to pick GPUs: `class=free-idle host=n1 util<5 mem>=40G !task=*`; all terms must hold.

A comparison with a value that is not known never holds, neither does its opposite: what is not known is not picked.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from fleetcraft.core.errors import FleetcraftError, UsageError
from fleetcraft.core.quantities import parse_duration_s, parse_size_bytes
from fleetcraft.readmodel.gpu_picture import GpuNow, GpusNow

_TERM = re.compile(r"(?P<not>!?)(?P<key>[a-z_]+)(?P<op>!=|<=|>=|=|<|>|~)(?P<value>.*)", re.DOTALL)
Value = float | str | tuple[str, ...] | None


def memory_pct(gpu: GpuNow) -> float | None:
    """Memory in use as a share of the device's; None where one of them is not known."""
    if gpu.memory_bytes is None or not gpu.memory_total_bytes:
        return None
    return 100 * gpu.memory_bytes / gpu.memory_total_bytes


KEYS: Mapping[str, tuple[str, Callable[[GpuNow], Value]]] = {
    "class": ("word", lambda gpu: gpu.kind.value),
    "cause": ("word", lambda gpu: gpu.verdict.cause.value),
    "label": ("word", lambda gpu: gpu.verdict.label),
    "host": ("word", lambda gpu: gpu.host),
    "gpu": ("number", lambda gpu: None if gpu.index is None else float(gpu.index)),
    "uuid": ("word", lambda gpu: gpu.uuid),
    "name": ("word", lambda gpu: gpu.name),
    "job": ("word", lambda gpu: gpu.job),
    "fleet": ("word", lambda gpu: gpu.fleet),
    "worker": ("word", lambda gpu: gpu.worker),
    "task": ("words", lambda gpu: gpu.tasks),
    "util": ("number", lambda gpu: gpu.util_pct),
    "sm": ("number", lambda gpu: gpu.sm_active_pct),
    "active": ("number", lambda gpu: None if gpu.active_fraction is None else 100 * gpu.active_fraction),
    "coverage": ("number", lambda gpu: None if gpu.coverage is None else 100 * gpu.coverage),
    "mem": ("size", lambda gpu: gpu.memory_bytes),
    "mempct": ("number", memory_pct),
    "power": ("number", lambda gpu: gpu.power_w),
    "temp": ("number", lambda gpu: gpu.values.get("temperature_c")),
    "age": ("time", lambda gpu: gpu.age_s),
    "idle": ("time", lambda gpu: gpu.idle_s),
}
_COMPARE: Mapping[str, Callable[[float, float], bool]] = {
    "=": lambda mine, asked: mine == asked,
    "!=": lambda mine, asked: mine != asked,
    "<": lambda mine, asked: mine < asked,
    "<=": lambda mine, asked: mine <= asked,
    ">": lambda mine, asked: mine > asked,
    ">=": lambda mine, asked: mine >= asked,
}


Holds = Callable[[GpuNow], bool]


@dataclass(frozen=True, slots=True)
class Filter:
    """All terms of one expression; an empty one holds for every GPU."""

    text: str
    terms: tuple[Holds, ...]

    def holds(self, gpu: GpuNow) -> bool:
        """True where every term does."""
        return all(term(gpu) for term in self.terms)


def parse_filter(text: str) -> Filter:
    """Raises UsageError for an unknown key, operator or value."""
    return Filter(text.strip(), tuple(_term(word) for word in text.split()))


def _term(word: str) -> Holds:
    match = _TERM.fullmatch(word)
    if match is None:
        needle = word.lower()
        return lambda gpu: needle in _everything(gpu)
    key, op, asked = match["key"], match["op"], match["value"]
    if key not in KEYS:
        raise UsageError(
            f"There is no key {key!r} to filter by.", hint=f"There are: {', '.join(KEYS)}; or any plain word."
        )
    kind, get = KEYS[key]
    is_word = kind in ("word", "words")
    holds = _words(key, op, asked, get) if is_word else _numbers(word, kind, op, asked, get)
    if not match["not"]:
        return holds
    return lambda gpu: get(gpu) is not None and not holds(gpu)


def _words(key: str, op: str, asked: str, get: Callable[[GpuNow], Value]) -> Holds:
    if op in ("<", "<=", ">", ">="):
        raise UsageError(
            f"{key} is a word, and words are not {op} others.", hint=f"Write {key}=..., {key}!=... or {key}~..."
        )
    # Several values, any of which will do; each may be a pattern.
    patterns = [part.lower() for part in asked.split(",")]

    def any_of(gpu: GpuNow) -> bool:
        value = get(gpu)
        words = value if isinstance(value, tuple) else (str(value),)
        if op == "~":
            return any(part in word.lower() for word in words for part in patterns)
        return any(fnmatchcase(word.lower(), part) for word in words for part in patterns)

    return (lambda gpu: not any_of(gpu)) if op == "!=" else any_of


def _numbers(word: str, kind: str, op: str, asked: str, get: Callable[[GpuNow], Value]) -> Holds:
    if op == "~":
        raise UsageError(f"{word}: ~ is for words.", hint="Numbers take = != < <= > >=.")
    try:
        limit = _number(kind, asked)
    except (ValueError, FleetcraftError):
        example = {"size": "40G", "time": "15m"}.get(kind, "5")
        raise UsageError(f"{word}: {asked!r} is no number.", hint=f"Write one such as {example}.") from None
    compare = _COMPARE[op]

    def holds(gpu: GpuNow) -> bool:
        value = get(gpu)
        return isinstance(value, (int, float)) and compare(float(value), limit)

    return holds


def _number(kind: str, text: str) -> float:
    if kind == "size" and text and not text[-1].isdigit():
        return float(parse_size_bytes(text))
    if kind == "time" and text and not text[-1].isdigit():
        return parse_duration_s(text)
    return float(text.removesuffix("%"))


def _everything(gpu: GpuNow) -> str:
    words = (
        gpu.host, gpu.uuid, gpu.name, gpu.job, gpu.fleet, gpu.worker, gpu.kind.value, gpu.verdict.cause.value,
        gpu.verdict.text, *gpu.tasks,
    )  # fmt: skip
    return " ".join(words).lower()


def kept(picture: GpusNow, wanted: Filter) -> GpusNow:
    """Only the GPUs that were asked for; a silent host without any stays while there is no filter."""
    hosts = [replace(host, gpus=tuple(gpu for gpu in host.gpus if wanted.holds(gpu))) for host in picture.hosts]
    return replace(picture, hosts=tuple(host for host in hosts if host.gpus or not wanted.terms))


SORTS: Mapping[str, Callable[[GpuNow], float | str | None]] = {
    "host": lambda gpu: gpu.host,
    "class": lambda gpu: gpu.kind.value,
    "util": lambda gpu: gpu.util_pct,
    "mem": memory_pct,
    "power": lambda gpu: gpu.power_w,
    "age": lambda gpu: gpu.age_s,
    "idle": lambda gpu: gpu.idle_s,
    "job": lambda gpu: gpu.job,
}


def sorted_by(gpus: list[GpuNow], key: str, *, descending: bool = False) -> list[GpuNow]:
    """In order; what is not known comes last either way."""
    get = SORTS[key]
    known = [gpu for gpu in gpus if get(gpu) is not None]
    known.sort(key=lambda gpu: (get(gpu), gpu.host, gpu.index or 0), reverse=descending)
    return known + [gpu for gpu in gpus if get(gpu) is None]
