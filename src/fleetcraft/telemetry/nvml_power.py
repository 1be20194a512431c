"""Power with its meaning: averaged or instant, and of the GPU or of the whole module.

Newer drivers say which one they tell; the old call does not, and differs between generations.
"""

from __future__ import annotations

from typing import Any

from fleetcraft.telemetry.api import Reason
from fleetcraft.telemetry.nvml_errors import is_blank, reason_of

_AVERAGE, _INSTANT = 185, 186
_GPU, _MODULE = 0, 1
_ASKED = [(_AVERAGE, _GPU), (_INSTANT, _GPU), (_AVERAGE, _MODULE), (_INSTANT, _MODULE)]
# Spikes of a broken sensor: more than this is not drawn by any board that is sold.
_MOST_W = 5000.0
_TIMES_LIMIT = 3.0

Power = dict[str, float | Reason]


def plausible(power_w: float, limit_w: float | None) -> bool:
    """False for what no board of that limit draws; such a value must not reach an integral."""
    return 0 <= power_w <= (limit_w * _TIMES_LIMIT if limit_w else _MOST_W)


def read_power(nvml: Any, handle: Any, limit_w: float | None) -> Power:
    """`power_w` with `power_averaged` and `power_scope`, and `module_power_w`; each one may be a reason instead."""
    scoped, refused = _scoped(nvml, handle)
    module = next((scoped[key] for key in _ASKED[2:] if key in scoped), None)
    found: Power = {"module_power_w": refused if module is None else _checked(module, None)}
    for metric, scope in _ASKED:
        value = scoped.get((metric, scope))
        if value is not None:
            found["power_w"] = _checked(value, limit_w if scope == _GPU else None)
            found["power_averaged"] = int(metric == _AVERAGE)
            found["power_scope"] = scope
            return found
    try:
        value = nvml.nvmlDeviceGetPowerUsage(handle)
    except Exception as error:  # noqa: BLE001  whatever the binding raises is a reason
        return found | dict.fromkeys(("power_w", "power_averaged", "power_scope"), reason_of(error))
    found["power_w"] = Reason.BLANK if is_blank(value) else _checked(value / 1000, limit_w)
    # This call is an average on some generations and an instant on others, and nothing tells which.
    found["power_averaged"] = Reason.UNSUPPORTED
    found["power_scope"] = _GPU
    return found


def _checked(power_w: float, limit_w: float | None) -> float | Reason:
    return power_w if plausible(power_w, limit_w) else Reason.IMPLAUSIBLE


def _scoped(nvml: Any, handle: Any) -> tuple[dict[tuple[int, int], float], Reason]:
    """What the field values say, in watts, and why the rest is not said."""
    try:
        values = nvml.nvmlDeviceGetFieldValues(handle, _ASKED)
    except Exception as error:  # noqa: BLE001  whatever the binding raises is a reason
        return {}, reason_of(error)
    found: dict[tuple[int, int], float] = {}
    refused = Reason.UNSUPPORTED
    for key, value in zip(_ASKED, values, strict=True):
        if value.nvmlReturn == 0 and not is_blank(value.value.uiVal):
            found[key] = value.value.uiVal / 1000
        elif value.nvmlReturn:
            refused = reason_of(nvml.NVMLError(value.nvmlReturn))
    return found, refused
