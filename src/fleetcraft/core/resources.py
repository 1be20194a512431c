"""What a task asks for, and the lane that stands for it in a token's name.

A worker decides from the lane alone whether it could start a task now, so everything that decides
about starting is part of the lane: a readable shape (`g1c4`), and a digest for the rest.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fleetcraft.core.errors import TaskInvalid
from fleetcraft.core.quantities import parse_duration_s, parse_size_bytes

_USE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")
_COUNT = re.compile(r"[0-9]{1,9}")
_MILLI = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """The resources of one task; `gpus` may be a fraction below one, or a whole number."""

    gpus: float = 0.0
    cpus: int = 1
    node: bool = False
    timed: bool = False
    vram_bytes: int | None = None
    uses: tuple[tuple[str, int], ...] = ()
    family: str | None = None
    needs_s: float | None = None

    @property
    def exclusive(self) -> bool:
        """True when nothing else may run on the node meanwhile."""
        return self.node or self.timed

    @property
    def lane(self) -> str:
        """The lane name: letters, digits and dashes, equal for equal requests and for no others."""
        shape = "timed" * self.timed + "node" * self.node
        if self.cpus != 1 or not (shape or self.gpus):
            shape += f"c{self.cpus}"
        if self.gpus:
            shape = f"g{self.gpus:g}".replace(".", "-") + shape
        extras = {key: value for key, value in self.as_json().items() if key in _EXTRAS}
        if not extras:
            return shape
        digest = hashlib.blake2b(json.dumps(extras, sort_keys=True).encode(), digest_size=6).hexdigest()
        return f"{shape}-x{digest}"

    def as_json(self) -> dict[str, Any]:
        """Only what differs from the default, so that the ledger header stays readable."""
        full: dict[str, Any] = {
            "gpus": self.gpus,
            "cpus": self.cpus,
            "node": self.node,
            "timed": self.timed,
            "vram_bytes": self.vram_bytes,
            "uses": dict(self.uses),
            "family": self.family,
            "needs_s": self.needs_s,
        }
        default = {"cpus": 1}
        return {key: value for key, value in full.items() if value and value != default.get(key)} | (
            {"cpus": 0} if self.cpus == 0 else {}
        )

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Request:
        """Read what `as_json` wrote."""
        return cls(
            gpus=float(data.get("gpus", 0.0)),
            cpus=int(data.get("cpus", 1)),
            node=bool(data.get("node", False)),
            timed=bool(data.get("timed", False)),
            vram_bytes=data.get("vram_bytes"),
            uses=tuple(sorted(data.get("uses", {}).items())),
            family=data.get("family"),
            needs_s=data.get("needs_s"),
        )


_EXTRAS = frozenset({"vram_bytes", "uses", "family", "needs_s"})


def request_from_task(task: Mapping[str, Any], where: str) -> Request:
    """Build a request from the keys of a task description.

    Raises TaskInvalid naming `where` and the key.
    """
    gpus = _gpus(task.get("gpus", 0), where)
    cpus = task.get("cpus", 1)
    if not isinstance(cpus, int) or isinstance(cpus, bool) or not 0 <= cpus <= 100_000:
        raise TaskInvalid(f"{where}: cpus is {cpus!r}; it must be a whole number of zero or more.")
    vram = task.get("vram")
    needs = task.get("needs")
    family = task.get("family")
    if family is not None and (not isinstance(family, str) or not _USE.fullmatch(family)):
        raise TaskInvalid(f"{where}: family {family!r} must be letters, digits, dots, dashes and underscores.")
    return Request(
        gpus=gpus,
        cpus=cpus,
        node=_flag(task, "node", where),
        timed=_flag(task, "timed", where),
        vram_bytes=(None if vram is None else parse_size_bytes(vram, f"{where}: vram")) or None,
        uses=_uses(task.get("uses"), where),
        family=family,
        needs_s=(None if needs is None else parse_duration_s(needs, f"{where}: needs")) or None,
    )


def _gpus(value: object, where: str) -> float:
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            raise TaskInvalid(f"{where}: gpus {value!r} is not a number.") from None
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 <= value <= 1024:
        raise TaskInvalid(f"{where}: gpus {value!r} must be between 0 and 1024.")
    rounded = round(value * _MILLI) / _MILLI
    if value and not rounded:
        raise TaskInvalid(f"{where}: gpus {value!r} is less than a thousandth of a GPU.")
    if rounded > 1 and rounded != int(rounded):
        raise TaskInvalid(f"{where}: gpus {value!r} must be a fraction below one, or a whole number.")
    return float(rounded)


def _flag(task: Mapping[str, Any], key: str, where: str) -> bool:
    value = task.get(key, False)
    if not isinstance(value, bool):
        raise TaskInvalid(f"{where}: {key} is {value!r}; it must be true or false.")
    return value


def _uses(value: object, where: str) -> tuple[tuple[str, int], ...]:
    if value is None:
        return ()
    if isinstance(value, str):
        value = [value]
    if isinstance(value, list):
        pairs: dict[str, Any] = {}
        for item in value:
            name, _, number = str(item).partition(":")
            pairs[name] = int(number) if _COUNT.fullmatch(number) else (number or 1)
        value = pairs
    if not isinstance(value, dict):
        raise TaskInvalid(f"{where}: uses must look like scratch_io:1.")
    for name, number in value.items():
        if (
            not isinstance(name, str)
            or not _USE.fullmatch(name)
            or not isinstance(number, int)
            or isinstance(number, bool)
            or number < 1
        ):
            raise TaskInvalid(f"{where}: uses {name!r}:{number!r} must be a name and a whole number of one or more.")
    return tuple(sorted(value.items()))
