"""FLOPs of attempts over the GPU time that they and everybody held: model FLOPs utilization of rows and of the whole.

FLOPs count evenly over an attempt's time, so a period gets its share of them; where attempts share a GPU, each has its
share of that GPU's time. A device without a known peak leaves every row that it is in without an estimate.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from fleetcraft.usage.api import Gpu
from fleetcraft.usage.ledger import Evidence, Part, divide
from fleetcraft.usage.ledger_api import Hold, Interval
from fleetcraft.usage.mfu import NO_TENSOR, Mfu, reckon
from fleetcraft.usage.mfu_means import UNSEEN, Device
from fleetcraft.usage.peaks import Peak, find

GROUPINGS = ("family", "task", "gpu")
WHOLE = "whole allocation, idle included"
NO_FAMILY = "(no family)"
MIXED = "mixed"
NO_NAME = "no samples tell which device it is"
NO_SAMPLES = "nothing sampled these GPUs then"
NO_ATTEMPT = "no attempt held a GPU in that time"
ROUGH = "attempts were shorter than ten samples: tensor activity and clock are rough"
_NEARLY = 0.95
_MANY_SAMPLES = 10

Key = tuple[str, int, int]  # task, attempt, when it began


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What one attempt computed, as far as anybody said so."""

    name: str = ""
    family: str = ""
    flops: float | None = None  # of the whole attempt
    reason: str = ""  # why there are none
    reported: bool = False  # by the attempt itself, not declared with the task
    precision: str = ""  # empty: as asked


@dataclass(slots=True, kw_only=True)
class MfuRow:
    """The three numbers of a family, a task, a GPU or the whole, with what they were made from."""

    key: str
    label: str
    mfu: Mfu
    held_ms: int
    work_ms: int  # of that, held by attempts
    known_ms: int  # of that, held by attempts with FLOPs
    devices: Mapping[str, int]  # by name, GPU-milliseconds
    attempts: int
    attempts_known: int
    attempts_reported: int  # of those with FLOPs; the others count as their tasks declare
    tensor_ms: float
    clock_ms: float
    sm_clock_mhz: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class MfuTable:
    """All rows of a period, and the whole allocation."""

    rows: tuple[MfuRow, ...]
    total: MfuRow
    by: str
    precision: str
    since_ms: int
    until_ms: int


@dataclass(slots=True)
class _Bin:
    label: str
    all_time: bool = False  # also what no attempt held
    flops: float = 0.0
    work_ms: int = 0
    known_ms: int = 0
    held: dict[tuple[str, str], int] = field(default_factory=dict)  # device name and precision
    clocks: dict[str, tuple[float, float]] = field(default_factory=dict)  # by device name: MHz x ms, ms
    tensor_sum: float = 0.0
    tensor_ms: float = 0.0
    reported: set[Key] = field(default_factory=set)
    works: dict[Key, str] = field(default_factory=dict)  # why it has no FLOPs; empty where it has
    shared: bool = False
    simulated: bool = False
    sample_ms: int = 0  # of the device with the longest

    def hold(self, device: Device, precision: str, part: Part, amount: int) -> None:
        """Add a stretch of a device, or a share of it."""
        at = (device.name, precision)
        self.held[at] = self.held.get(at, 0) + amount
        self.simulated = self.simulated or device.simulated
        self.sample_ms = max(self.sample_ms, device.sample_ms)
        fraction = amount / (part.end_ms - part.start_ms)
        total, known = device.over("tensor_pct", part.start_ms, part.end_ms)
        self.tensor_sum += total * fraction
        self.tensor_ms += known * fraction
        total, known = device.over("sm_clock_mhz", part.start_ms, part.end_ms)
        before = self.clocks.get(device.name, (0.0, 0.0))
        self.clocks[device.name] = (before[0] + total * fraction, before[1] + known * fraction)

    @property
    def is_rough(self) -> bool:
        """True where samples are too few to speak for the attempts themselves."""
        if self.all_time:
            return sum(self.held.values()) < _MANY_SAMPLES * self.sample_ms
        return self.work_ms < _MANY_SAMPLES * self.sample_ms * len(self.works)

    def work(self, key: Key, work: Work, flops: float | None, amount: int) -> None:
        """Add what an attempt computed in such a stretch."""
        self.works[key] = "" if flops is not None else work.reason
        self.work_ms += amount
        if flops is not None:
            self.flops += flops
            self.reported |= {key} if work.reported else set()
            self.known_ms += amount


def join(
    evidences: Iterable[Evidence], works: Mapping[Key, Work], device_of: Callable[[Gpu], Device | None], *,
    period: Interval, by: str = "family", precision: str = "bf16", peaks: tuple[Peak, ...] | None = None,
) -> MfuTable:  # fmt: skip
    """The table of a period; the same for any order of the lines."""
    listed = sorted(evidences, key=lambda one: (one.line.gpu, one.line.fleet, one.line.job, one.line.spans))
    divided = [(one, divide(one, period)) for one in listed if one.line.is_gpu]
    held: Counter[Key] = Counter()
    for _, parts in divided:
        for part in parts:
            held.update({key_of(hold): amount for hold, _, amount in part.shares if hold.task})
    whole = _Bin(WHOLE, all_time=True)
    bins: dict[str, _Bin] = {}
    for evidence, parts in divided:
        gpu = evidence.line.gpu
        device = device_of(gpu) or UNSEEN
        mine = bins.setdefault(_gpu_key(gpu), _Bin(_gpu_key(gpu), all_time=True)) if by == "gpu" else None
        for part in parts:
            for hold, _, amount in part.shares:
                work = works.get(key_of(hold)) if hold.task else None
                here = mine if mine is not None else _row_of(bins, by, hold, work)
                flops = _flops(work, hold, period, amount, held)
                for row in (whole, here):
                    if row is None or not amount:
                        continue
                    row.hold(device, (work.precision if work else "") or precision, part, amount)
                    row.shared = row.shared or (len(part.shares) > 1 and row is not whole and mine is None)
                    if work is not None:
                        row.work(key_of(hold), work, flops, amount)
            if part.rest is not None and part.rest_amount:
                for row in (whole, mine):
                    if row is not None:
                        row.hold(device, precision, part, part.rest_amount)
    rows = [_row(key, one, peaks, precision) for key, one in bins.items()]
    rows.sort(key=lambda row: (0, row.key) if by == "gpu" else (-row.held_ms, row.key))
    return MfuTable(
        rows=tuple(rows), total=_row("total", whole, peaks, precision), by=by, precision=precision,
        since_ms=period[0], until_ms=period[1],
    )  # fmt: skip


def key_of(hold: Hold) -> Key:
    """Which attempt a hold is of."""
    return hold.task, hold.attempt, hold.start_ms


def _gpu_key(gpu: Gpu) -> str:
    return f"{gpu.host} {gpu.uuid or f'gpu {gpu.index}'}"


def _row_of(bins: dict[str, _Bin], by: str, hold: Hold, work: Work | None) -> _Bin | None:
    if work is None:
        return None
    key = (work.family or NO_FAMILY) if by == "family" else hold.task
    return bins.setdefault(key, _Bin(key if by == "family" else work.name or key))


def _flops(work: Work | None, hold: Hold, period: Interval, amount: int, held: Mapping[Key, int]) -> float | None:
    """Of the attempt's FLOPs: what falls into the period, and of that the part of this stretch."""
    if work is None or work.flops is None or not amount:
        return None
    inside = min(hold.end_ms, period[1]) - max(hold.start_ms, period[0])
    return work.flops * inside / (hold.end_ms - hold.start_ms) * amount / held[key_of(hold)]


def _row(key: str, one: _Bin, peaks: tuple[Peak, ...] | None, precision: str) -> MfuRow:
    held_ms = sum(one.held.values())
    known = [why for why in one.works.values() if not why]
    flops = one.flops if known else None
    peak, told, why_not = _combined(one.held, peaks, precision)
    clock, at_peak_clock = _clocks(one, peaks, peak)
    reckoned = partial(
        reckon, flops=flops, peak=peak, device_name=" + ".join(sorted({name for name, _ in one.held})),
        held_s=held_ms / 1000, precision=told, tensor_pct=one.tensor_sum / one.tensor_ms if one.tensor_ms else None,
        no_tensor=NO_TENSOR if any(name for name, _ in one.held) else NO_SAMPLES,
    )  # fmt: skip
    found = reckoned(sm_clock_mhz=at_peak_clock)
    if found.estimated is None and one.is_rough and (plain := reckoned()).estimated is not None:
        # A sample between short attempts sees the clock of an idle GPU, which says nothing against the estimate.
        found = replace(plain, at_clock_reason="above 1 at the clock of the samples, which are too far apart for it")
    if flops is None:
        why = _reasons(one.works)
        found = replace(found, estimated_reason=why, at_clock_reason=why)
    elif why_not:
        found = replace(found, estimated_reason=why_not, at_clock_reason=why_not)
    return MfuRow(
        key=key, label=one.label, mfu=replace(found, flags=(*found.flags, *_flags(one, held_ms, len(known)))),
        held_ms=held_ms, work_ms=one.work_ms, known_ms=one.known_ms, devices=_by_name(one.held),
        attempts=len(one.works), attempts_known=len(known),
        attempts_reported=len(one.reported), tensor_ms=one.tensor_ms,
        clock_ms=sum(ms for _, ms in one.clocks.values()), sm_clock_mhz=clock,
    )  # fmt: skip


def _by_name(held: Mapping[tuple[str, str], int]) -> dict[str, int]:
    found: Counter[str] = Counter()
    for (name, _), amount in sorted(held.items()):
        found[name] += amount
    return dict(found)


def _reasons(works: Mapping[Key, str]) -> str:
    counted = Counter(works.values()).most_common()
    if not counted:
        return NO_ATTEMPT
    if len(counted) == 1:
        return counted[0][0]
    return "; ".join(f"{number} of {len(works)}: {why}" for why, number in counted)


def _flags(one: _Bin, held_ms: int, known: int) -> list[str]:
    found = []
    if known and known < len(one.works):
        found.append(
            f"FLOPs are known of {known} of {len(one.works)} attempts, {one.known_ms / one.work_ms:.1%} of the GPU "
            "time that attempts held; the estimate is a lower bound"
        )
    if one.tensor_ms and one.tensor_ms < _NEARLY * held_ms:
        found.append(f"measured over {one.tensor_ms / held_ms:.1%} of the held time")
    clock_ms = sum(ms for _, ms in one.clocks.values())
    if clock_ms and clock_ms < _NEARLY * held_ms:
        found.append(f"the clock was recorded over {clock_ms / held_ms:.1%} of the held time")
    if one.is_rough and (one.tensor_ms or clock_ms):
        found.append(ROUGH)
    if one.shared and one.tensor_ms:
        found.append("GPUs were shared: their tensor activity is of all attempts on them")
    if one.simulated:
        found.append("simulated devices: the number says nothing about real ones")
    return found


def _combined(
    held: Mapping[tuple[str, str], int], peaks: tuple[Peak, ...] | None, precision: str
) -> tuple[Peak | None, str, str]:
    """One peak for all devices of a row, each for the time that it was held; else why there is none."""
    found: list[tuple[Peak, str, int]] = []
    whole = sum(held.values())
    for (name, wanted), amount in sorted(held.items()):
        peak = find(name, peaks) if name else None
        of = "" if len(held) == 1 else f", for {amount / whole:.1%} of the held time"
        if peak is None:
            why = NO_NAME if not name else f"no peak is known for a device named {name!r}"
            return None, precision, why + of
        if wanted not in peak.tflops:
            has = ", ".join(peak.tflops)
            return None, precision, f"{peak.label} has no dense peak for {wanted}; it has {has}{of}"
        found.append((peak, wanted, amount))
    if not found:
        return None, precision, "no GPU was held in that time"
    if len(found) == 1:
        return found[0][0], found[0][1], ""
    told = found[0][1] if len({wanted for _, wanted, _ in found}) == 1 else MIXED
    weights = [peak.tflops[wanted] * amount for peak, wanted, amount in found]
    boosts = [peak.boost_mhz for peak, _, _ in found]
    known = [boost for boost in boosts if boost is not None]
    boost = None
    if len(known) == len(boosts):
        boost = round(sum(each * weight for each, weight in zip(known, weights, strict=True)) / sum(weights))
    labels = list(dict.fromkeys(peak.label for peak, _, _ in found))
    one = Peak(
        label=" + ".join(labels), names=(), tflops={told: sum(weights) / whole}, boost_mhz=boost,
        source="; ".join(dict.fromkeys(peak.source for peak, _, _ in found)),
        seen=MIXED if len({peak.seen for peak, _, _ in found}) > 1 else found[0][0].seen,
    )  # fmt: skip
    return one, told, ""


def _clocks(one: _Bin, peaks: tuple[Peak, ...] | None, peak: Peak | None) -> tuple[float | None, float | None]:
    """The mean clock, and the clock at which the row's peak is what its devices reach at theirs."""
    total, known = (sum(values) for values in zip(*one.clocks.values(), strict=True)) if one.clocks else (0.0, 0.0)
    mean = total / known if known else None
    if peak is None or peak.boost_mhz is None or len(one.held) == 1:
        return mean, mean
    full = reached = 0.0
    for (name, precision), amount in one.held.items():
        its, (clock_sum, clock_ms) = find(name, peaks), one.clocks[name]
        if its is None or its.boost_mhz is None or not clock_ms:
            return mean, None
        full += its.tflops[precision] * amount
        reached += its.tflops[precision] * amount * clock_sum / clock_ms / its.boost_mhz
    return mean, peak.boost_mhz * reached / full


def sources(table: MfuTable, peaks: tuple[Peak, ...] | None) -> list[tuple[str, Peak | None]]:
    """Every device of the table with its peak, or without one."""
    return [(name, find(name, peaks) if name else None) for name in sorted(table.total.devices)]
