"""A sensor together with the hand that moves what it measures."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from fleetcraft.telemetry.api import Sensor, Sweep


def _cannot(*_args: object) -> None:
    raise AssertionError("this rig cannot do that: its name is not in `can`")


@dataclass(kw_only=True)
class Rig:
    """`can` names what the rig can do: load, energy, lose, hang, fail, break. There are at least two devices."""

    name: str
    sensor: Sensor
    can: frozenset[str]
    advance: Callable[[float], None]  # let seconds pass
    load: Callable[[str], None] = _cannot  # a program of ours works on that device
    lose: Callable[[str], None] = _cannot  # it falls off the bus
    hang: Callable[[str], None] = _cannot  # questions about it do not return
    back: Callable[[], None] = _cannot  # whatever hung returns
    fail: Callable[[str], None] = _cannot  # its power cannot be read, by lack of permission
    break_host: Callable[[], None] = _cannot  # no question is answered any more, and a new sensor finds that out
    again: Callable[[], Sensor] = field(default=_cannot)  # type: ignore[assignment]

    def sweeps(self) -> tuple[Sweep, Sweep]:
        """Two, with time between them."""
        first = self.sensor.read()
        self.advance(10.0)
        return first, self.sensor.read()
