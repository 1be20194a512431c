"""What the verbs of fleets share: the door to the part of the program that knows them, and words for times and costs.

Behind the door are packages that the worker's bundle does not have, and imports that would slow every start.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from fleetcraft.cli.output import Output, printable
from fleetcraft.cli.parser import is_spool_named, spool_root
from fleetcraft.core.errors import UsageError
from fleetcraft.core.quantities import format_bytes, format_duration

if TYPE_CHECKING:
    from fleetcraft.spool.spool import Spool

_BEHIND = {"Fleets": "Fleets cannot be used", "GPUs": "Telemetry of GPUs cannot be read"}
_MARKS = {True: ("allowed", ("green",)), False: ("refused", ("red",))}


@contextmanager
def whole_program(what: str = "Fleets") -> Iterator[None]:
    """Around imports of what knows fleets, or what the samples of GPUs tell (`what`).

    Raises UsageError where it cannot be, as in the bundle.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        raise UsageError(
            f"{_BEHIND[what]} here: there is no module {error.name}.",
            hint="The bundle has only the worker side; install the whole program: `pip install fleetcraft`.",
        ) from error


def open_spool(arguments: argparse.Namespace, *, create: bool = False) -> Spool:
    """The spool that was named, else the one here, else the one that the profile names."""
    from fleetcraft.spool.spool import Spool

    root = spool_root(arguments)
    if not is_spool_named(arguments) and not os.path.isdir(root):
        with whole_program():
            from fleetcraft.actions.spool_choice import spool_of_profile
        root = spool_of_profile(getattr(arguments, "profile", None)) or root
    return Spool.open(root, create=create)


def fleet_argument(parser: argparse.ArgumentParser, *, what: str = "the fleet (default: the only one)") -> None:
    """The name of one fleet."""
    parser.add_argument("fleet", metavar="FLEET", nargs="?", help=what)


def hours(value: float | None, cap: float | None = None) -> str:
    """Hours, and the cap where there is one."""
    text = "?" if value is None else f"{value:,.{_digits(value)}f}"
    return text if cap is None else f"{text} of {cap:,.{_digits(cap)}f}"


def _digits(value: float) -> int:
    return 1 if value >= 10 or value == 0 else 2


def decision_lines(decisions: Sequence[Mapping[str, Any]], output: Output) -> Iterator[str]:
    """One line for each guard."""
    width = max((len(str(one["guard"])) for one in decisions), default=0)
    for one in decisions:
        word, style = _MARKS[bool(one["allowed"])]
        if one["evidence"].get("level") == "caution":
            word, style = "caution", ("yellow",)
        guard = f"{one['guard']:<{width}}"
        yield f"  {guard}  {output.paint(f'{word:<7}', *style)}  {printable(str(one['reason']))}"
        nearest = one["evidence"].get("nearest")
        if nearest and not one["allowed"]:
            shape = ", ".join(_part(key, value) for key, value in nearest.items() if value is not None)
            yield f"  {'':<{width}}  {'':<7}  the nearest that could: {printable(shape)}"


def _part(key: str, value: Any) -> str:
    if key == "time_limit_s":
        return f"time {format_duration(value)}"
    if key == "memory_bytes":
        return f"memory {format_bytes(value)}"
    return f"{key.replace('_', ' ')} {value}"
