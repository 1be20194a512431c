"""Model FLOPs utilization as three labelled numbers: estimated, measured, and estimated at the clock that was held.

Estimated: declared FLOPs over dense peak x devices x time. Measured: time with tensor pipes at work, an upper bound for
dense work at the same clock. None of them is ever put in another one's place.
"""

from __future__ import annotations

from dataclasses import dataclass

from fleetcraft.usage.peaks import Peak

SUSPICIOUS = 0.8
_ABOVE_MEASURED = 1.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Mfu:
    """Shares between 0 and 1; each absent one has its reason."""

    estimated: float | None
    estimated_reason: str = ""
    measured: float | None = None  # mean tensor activity
    measured_reason: str = ""
    at_clock: float | None = None
    at_clock_reason: str = ""
    flags: tuple[str, ...] = ()
    flops: float | None = None
    peak_tflops: float | None = None
    precision: str = "bf16"
    source: str = ""
    held_s: float = 0.0  # device-seconds in the denominator, idle ones too


NO_FLOPS = "no FLOPs were declared"
NO_TENSOR = "not available on this GPU without admin"


def reckon(
    *,
    flops: float | None,
    peak: Peak | None,
    device_name: str,
    held_s: float,
    precision: str = "bf16",
    tensor_pct: float | None = None,
    sm_clock_mhz: float | None = None,
    sparse: bool = False,
    no_tensor: str = NO_TENSOR,
) -> Mfu:
    """The three numbers over `held_s` device-seconds of one kind of device."""
    estimated, why = _estimated(flops, peak, device_name, held_s, precision)
    flags: list[str] = []
    measured = None if tensor_pct is None else tensor_pct / 100
    at_clock, clock_why = None, why
    if estimated is not None and peak is not None:
        at_clock, clock_why = _at_clock(estimated, peak, sm_clock_mhz)
        if estimated > 1 or (at_clock is not None and at_clock > 1):
            flags.append("impossible: wrong peak, token count, precision or device count")
            why = f"the estimate came out as {max(estimated, at_clock or 0):.3f}, above 1"
            estimated, at_clock, clock_why = None, None, why
        elif estimated > SUSPICIOUS:
            flags.append(f"suspicious: above {SUSPICIOUS}")
        if estimated is not None and measured is not None and not sparse and estimated > _ABOVE_MEASURED * measured:
            flags.append("the estimate exceeds the measured tensor activity, its ceiling for dense work")
    return Mfu(
        estimated=estimated,
        estimated_reason=why,
        measured=measured,
        measured_reason="" if measured is not None else no_tensor,
        at_clock=at_clock,
        at_clock_reason=clock_why,
        flags=tuple(flags),
        flops=flops,
        peak_tflops=peak.tflops.get(precision) if peak else None,
        precision=precision,
        source=peak.source if peak else "",
        held_s=held_s,
    )


def _estimated(
    flops: float | None, peak: Peak | None, device_name: str, held_s: float, precision: str
) -> tuple[float | None, str]:
    if flops is None:
        return None, NO_FLOPS
    if peak is None:
        return None, f"no peak is known for a device named {device_name or '(no name)'!r}"
    if precision not in peak.tflops:
        return None, f"{peak.label} has no dense peak for {precision}; it has {', '.join(peak.tflops)}"
    if held_s <= 0:
        return None, "no time was held"
    return flops / (peak.tflops[precision] * 1e12 * held_s), ""


def _at_clock(estimated: float, peak: Peak, sm_clock_mhz: float | None) -> tuple[float | None, str]:
    if sm_clock_mhz is None or sm_clock_mhz <= 0:
        return None, "no clock was recorded"
    if peak.boost_mhz is None:
        return None, f"the clock behind the peak of {peak.label} is not known"
    return estimated * peak.boost_mhz / sm_clock_mhz, ""
