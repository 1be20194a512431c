"""What a task declares about its arithmetic, checked before anything is enqueued: `flops` and `precision`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fleetcraft.core.errors import TaskInvalid, UsageError


def count_flops(declared: float | Mapping[str, Any]) -> float:
    """The number that a declaration stands for. Raises UsageError."""
    from fleetcraft.usage.flops import resolve  # most tasks declare none

    return resolve(declared)


def check_declared(line: Mapping[str, Any], where: str) -> None:
    """Refuse FLOPs that no formula gives and a precision that no peak is known for. Raises TaskInvalid."""
    if "flops" in line:
        try:
            count_flops(line["flops"])
        except UsageError as error:
            raise TaskInvalid(f"{where}: {error.message}", hint=error.hint) from error
    if "precision" in line:
        from fleetcraft.usage.peaks import PRECISIONS

        if line["precision"] not in PRECISIONS:
            raise TaskInvalid(
                f"{where}: precision {line['precision']!r} is not known.", hint=f"Known: {', '.join(PRECISIONS)}."
            )
