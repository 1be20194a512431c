"""Measured activity from the GPU's own counters, Hopper and later: the difference of two samples.

The sample of the tick before is kept, so that a figure covers the whole interval between two ticks and not the
fraction of a second in which somebody looked. What GPM says of PCIe and NVLink is left out: the unit in the
header and the one that large users publish differ by 2^20, and no measurement has settled it.
"""

from __future__ import annotations

import math
from typing import Any

from fleetcraft.telemetry.api import Reason
from fleetcraft.telemetry.nvml_errors import reason_of

# The driver's own advice: shorter differences say nothing.
LEAST_S = 0.1
GRAPHICS = 1
METRICS = {
    "sm_active_pct": 2,
    "sm_occupancy_pct": 3,
    "tensor_pct": 5,
    "dram_pct": 10,
    "fp64_pct": 11,
    "fp32_pct": 12,
    "fp16_pct": 13,
}
NAMES = tuple(METRICS)
# Traffic per second of PCIe and NVLink. A reading above a million cannot be the MiB/s of the header.
UNIT_UNVERIFIED = frozenset({20, 21, 60, 61, 100, 101})
_ASKED = (*METRICS.values(), GRAPHICS)
_TOLD = (*METRICS, "graphics")


def percent(value: float) -> float | Reason:
    """The figure, or why it is none: not a number, negative, or more than everything."""
    if math.isnan(value) or value < 0 or value > 101:
        return Reason.NAN
    return min(value, 100.0)  # the counters are read one after another, so a full pipe may come out a hair above


class GpmWatch:
    """The counters of one GPU, or of one MIG instance (`instance`, asked through its GPU)."""

    def __init__(self, nvml: Any, handle: Any, instance: int | None = None) -> None:
        self._nvml = nvml
        self._handle = handle
        self._instance = instance
        self._refused: Reason | None = None
        self._before: Any = None
        self._spare: Any = None
        self._before_mono = 0.0
        self._request: Any = None
        self._places: list[Any] = []
        self._looked = False

    def take(self, now_mono: float) -> dict[str, float | Reason]:
        """Figures since the sample before, by field name and `graphics`; each one may be a reason instead."""
        if not self._looked:
            self._refused = self._support()
        if self._refused is not None:
            return self._all(self._refused)
        # Too close: the older baseline stays, so that the next difference covers this time, too.
        if self._before is not None and now_mono - self._before_mono < LEAST_S:
            return self._all(Reason.TOO_SOON)
        try:
            sample = self._sample()
        except Exception as error:  # noqa: BLE001  whatever the binding raises is a reason
            return self._all(reason_of(error))
        before, self._before, self._before_mono = self._before, sample, now_mono
        if before is None:
            return self._all(Reason.TOO_SOON)
        self._spare = before
        try:
            return self._difference(before, sample)
        except Exception as error:  # noqa: BLE001  whatever the binding raises is a reason
            return self._all(reason_of(error))

    def _support(self) -> Reason | None:
        try:
            supported = self._nvml.nvmlGpmQueryDeviceSupport(self._handle).isSupportedDevice
        except Exception as error:  # noqa: BLE001  whatever the binding raises is a reason
            # Only what will not change is remembered; anything else is asked again at the next tick.
            reason = reason_of(error)
            self._looked = reason in (Reason.UNSUPPORTED, Reason.OLD_DRIVER)
            return reason
        self._looked = True
        return None if supported else Reason.UNSUPPORTED

    def _sample(self) -> Any:
        sample = self._spare if self._spare is not None else self._nvml.nvmlGpmSampleAlloc()
        self._spare = sample  # kept for the next try should this one fail
        if self._instance is None:
            self._nvml.nvmlGpmSampleGet(self._handle, sample)
        else:
            self._nvml.nvmlGpmMigSampleGet(self._handle, self._instance, sample)
        self._spare = None
        return sample

    def _difference(self, before: Any, after: Any) -> dict[str, float | Reason]:
        request = self._request
        if request is None:  # twenty kilobytes: made once per device
            request = self._request = self._nvml.c_nvmlGpmMetricsGet_t()
            request.version = self._nvml.NVML_GPM_METRICS_GET_VERSION
            request.numMetrics = len(_ASKED)
            for place, metric in enumerate(_ASKED):
                request.metrics[place].metricId = metric
            self._places = [request.metrics[place] for place in range(len(_ASKED))]
        request.sample1, request.sample2 = before, after
        self._nvml.nvmlGpmMetricsGet(request)
        # By descriptor: the binding's structures look attributes up in Python, which costs more than the call itself.
        code_of, value_of = self._nvml.c_nvmlGpmMetric_t.nvmlReturn.__get__, self._nvml.c_nvmlGpmMetric_t.value.__get__
        found: dict[str, float | Reason] = {}
        for name, metric in zip(_TOLD, self._places, strict=True):
            code = code_of(metric)
            found[name] = percent(value_of(metric)) if code == 0 else reason_of(self._nvml.NVMLError(code))
        return found

    def _all(self, reason: Reason) -> dict[str, float | Reason]:
        return dict.fromkeys(_TOLD, reason)
