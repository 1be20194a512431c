"""What the tasks of this user do to simulated devices, told by their environments as /proc shows them.

A process counts when its environment was made for an attempt and names the device in CUDA_VISIBLE_DEVICES. A
worker, a sampler, or a shell in which somebody set the variable has no such mark, and never counts.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

UTIL_PCT = 90.0
MEMORY_SHARE = 0.4
LOAD_VARIABLE = "FLEETCRAFT_SIMULATED_LOAD"
_MARK, _LIFE = "FLEETCRAFT_MARK", "FLEETCRAFT_LIFE"
_VISIBLE = "CUDA_VISIBLE_DEVICES"
_GIB = 1024**3


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """One living process: only what says which devices it was given, and how long its CPUs worked."""

    pid: int
    mark: str
    uuids: tuple[str, ...]
    load: str = ""
    cpu_ticks: int = 0
    life: str = ""


@dataclass(slots=True)
class Load:
    """What an attempt does to each of its devices."""

    util_pct: float
    memory_bytes: int
    pids: tuple[int, ...]


def own_processes(prefix: str, lives: str = "") -> Iterator[Seen]:
    """Every process of this user whose environment names a device that begins with the prefix.

    `lives` is the folder of a spool's worker lives: simulated devices have the same names in every spool of a host, so
    what the workers of another spool do is not done to these.
    """
    mine = os.getuid()
    wanted = prefix.encode()
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            if os.stat(f"/proc/{name}").st_uid != mine:
                continue
            with open(f"/proc/{name}/environ", "rb") as source:
                content = source.read()
            if wanted not in content:
                continue
            with open(f"/proc/{name}/stat", "rb") as source:
                stat = source.read()
        except OSError:
            continue  # it ended between list and look, or may not be looked at
        seen = _seen(int(name), content, stat)
        if seen is not None and (not lives or _is_of(seen.life, lives)):
            yield seen


def _is_of(life: str, lives: str) -> bool:
    return bool(life) and "/" not in life and os.path.isdir(os.path.join(lives, life))


def _seen(pid: int, content: bytes, stat: bytes) -> Seen | None:
    variables = dict(
        entry.split("=", 1) for entry in content.decode("utf-8", "surrogateescape").split("\0") if "=" in entry
    )
    # The name of the command may hold spaces and parentheses; what follows the last one is plain.
    fields = stat[stat.rindex(b")") + 2 :].split()
    if fields[0] in (b"Z", b"X", b"x"):
        return None
    return Seen(
        pid=pid,
        mark=variables.get(_MARK, ""),
        uuids=tuple(part for part in variables.get(_VISIBLE, "").split(",") if part),
        load=variables.get(LOAD_VARIABLE, ""),
        life=variables.get(_LIFE, ""),
        cpu_ticks=int(fields[11]) + int(fields[12]),
    )


def parse_load(text: str) -> tuple[float, int | None] | None:
    """Percent, and bytes where told: `90` or `90:12.5` (GiB). None for anything else."""
    percent, colon, memory = text.partition(":")
    try:
        told = float(percent)
        if told != told:  # noqa: PLR0124  not a number
            return None
        return min(max(told, 0.0), 100.0), max(0, round(float(memory) * _GIB)) if colon else None
    except (ValueError, OverflowError):
        return None


class Loads:
    """The loads of now. A resident holds its memory all the time, and works only while its CPUs do."""

    def __init__(self, memory_bytes: int, processes: Callable[[], Iterable[Seen]]) -> None:
        self._memory_bytes = memory_bytes
        self._processes = processes
        self._ticks: dict[str, int] = {}

    def now(self) -> dict[str, list[Load]]:
        """By device, one entry per attempt or resident."""
        attempts: dict[str, list[Seen]] = {}
        for seen in self._processes():
            if seen.mark:
                attempts.setdefault(seen.mark, []).append(seen)
        ticks = {mark: sum(seen.cpu_ticks for seen in family) for mark, family in attempts.items()}
        found: dict[str, list[Load]] = {}
        for mark in sorted(attempts):
            family = sorted(attempts[mark], key=lambda seen: seen.pid)
            load = self._of(family, works=":resident:" not in mark or ticks[mark] > self._ticks.get(mark, ticks[mark]))
            for uuid in dict.fromkeys(uuid for seen in family for uuid in seen.uuids):
                found.setdefault(uuid, []).append(load)
        self._ticks = ticks
        return found

    def _of(self, family: list[Seen], *, works: bool) -> Load:
        # A task's shell has the default, and the program in it what it was told: what was told wins.
        told = [load for seen in family if seen.load and (load := parse_load(seen.load)) is not None]
        util, memory = max(told, key=lambda load: load[0]) if told else (UTIL_PCT, None)
        return Load(
            util if works else 0.0,
            round(self._memory_bytes * MEMORY_SHARE) if memory is None else memory,
            tuple(seen.pid for seen in family),
        )
