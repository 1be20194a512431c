"""The decision: every millisecond of an allocated GPU goes to exactly one class, by rules in a fixed order.

1. Attempts that hold it, by how they ended. 2. Kept empty for a timed task. 3. Without a worker: starting before the
first, drained tail after the last that ended in order, else unknown. 4. With one: starting until it is up; then what
samples and the queue say. Evidence only reaches as far as it goes; what no rule decides is unknown.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from fleetcraft.usage.ledger_api import Class, Hold, Interval, Line, Presence, Span, share
from fleetcraft.usage.ledger_profile import Cover, Profile, union

# A pause of a done attempt that is this long is an idle GPU, not a part of its work.
PAUSE_MS = 300_000
# A sample that is taken so soon after an attempt still tells of it.
SETTLE_MS = 2_000
# So long a job without a worker is taken for one that starts.
GRACE_MS = 600_000

NO_WORKER = "no worker told about it"
WORKER_GONE = "its worker was gone without a word"
UNNAMED = "the scheduler counts it, and no worker listed it"
NOT_OURS = "active, and no attempt on record held it"


@dataclass(slots=True, kw_only=True)
class Evidence:
    """All that is known about one line."""

    line: Line
    presences: Sequence[Presence] = ()
    holds: Sequence[Hold] = ()
    kept: Sequence[Interval] = ()  # kept empty beside a timed task
    waiting: Sequence[Interval] = ()  # compatible work waited
    profile: Profile | None = None


@dataclass(slots=True)
class Part:
    """A stretch of one line in which nothing changed."""

    start_ms: int
    end_ms: int
    shares: list[tuple[Hold, Class, int]]  # who held it, as what, and how much of it
    rest: Class | None  # what became of what nobody held
    rest_amount: int
    why: str  # for what is unknown

    @property
    def leading(self) -> tuple[Class, str]:
        """Class and task of the largest part."""
        best = max(self.shares, key=lambda one: one[2], default=None)
        if best is None or (self.rest is not None and self.rest_amount > best[2]):
            return self.rest or Class.UNKNOWN, ""
        return best[1], best[0].task


def divide(evidence: Evidence, period: Interval | None = None) -> list[Part]:
    """The line, or what of it lies in a period, as parts in order of time; their amounts add up to the allocation."""
    return _Divider(evidence).parts(period)


@dataclass(slots=True)
class _Divider:
    evidence: Evidence
    inner: dict[int, tuple[int, Cover]] = field(default_factory=dict)  # hold place: end of its loading, its pauses
    layers: dict[str, Cover] = field(default_factory=dict)
    cuts: set[int] = field(default_factory=set)

    def parts(self, period: Interval | None) -> list[Part]:
        """See `divide`."""
        line = self.evidence.line
        holds = sorted((hold for hold in self.evidence.holds if hold.start_ms < hold.end_ms), key=lambda one: one.key)
        self._look_inside(holds)
        self._lay(holds)
        presences = sorted(self.evidence.presences, key=lambda one: (one.start_ms, one.end_ms))
        for one in presences:
            self.cuts |= {one.start_ms, one.end_ms, one.up_ms or one.start_ms, one.drain_ms or one.end_ms}
        by_start = sorted(range(len(holds)), key=lambda place: holds[place].start_ms)
        spans = union(line.spans)
        if line.is_open:
            self.cuts |= {start_ms + GRACE_MS for start_ms, _ in spans}
        cuts = sorted(self.cuts)
        found: list[Part] = []
        for start_ms, end_ms in spans:
            # What decides may lie before the period: a worker that left then still explains the time within.
            here = _Presences(presences, (start_ms, end_ms), is_open=line.is_open, last_hold_ms=_last(holds, end_ms))
            low_ms, high_ms = (
                (start_ms, end_ms) if period is None else (max(start_ms, period[0]), min(end_ms, period[1]))
            )
            if low_ms >= high_ms:
                continue
            edges = [low_ms, *cuts[bisect_right(cuts, low_ms) : bisect_left(cuts, high_ms)], high_ms]
            running: list[int] = []
            upcoming = 0
            for low, high in pairwise(edges):
                while upcoming < len(by_start) and holds[by_start[upcoming]].start_ms <= low:
                    running.append(by_start[upcoming])
                    upcoming += 1
                running = [place for place in running if holds[place].end_ms > low]
                found.append(self._part(low, high, [(place, holds[place]) for place in sorted(running)], here))
        return found

    def _look_inside(self, holds: Sequence[Hold]) -> None:
        profile = self.evidence.profile
        if profile is None:
            return
        for place, hold in enumerate(holds):
            if hold.kind is Class.USEFUL:
                loaded_ms, pauses = look_inside(profile, hold.start_ms, hold.end_ms)
                self.inner[place] = (loaded_ms, Cover(pauses))
                self.cuts.add(loaded_ms)
                self.cuts.update(moment for pair in pauses for moment in pair)

    def _lay(self, holds: Sequence[Hold]) -> None:
        evidence, profile = self.evidence, self.evidence.profile
        self.layers = {"kept": Cover(union(evidence.kept)), "waiting": Cover(union(evidence.waiting))}
        if profile is not None:
            held = union((hold.start_ms, hold.end_ms) for hold in holds)
            flags: dict[str, Sequence[bool | None]] = {
                "active": profile.active, "reserved": profile.reserved,
            }  # fmt: skip
            # A GPU that does not answer tells nothing of an attempt before, so no time is given to settle.
            self.layers["bad"] = Cover(profile.pick([not good for good in profile.good], (), 0))
            for name, flag in flags.items():
                self.layers[name] = Cover(profile.pick(flag, held, SETTLE_MS))
        for layer in self.layers.values():
            self.cuts.update(moment for pair in layer.intervals for moment in pair)
        for hold in holds:
            self.cuts |= {hold.start_ms, hold.end_ms}

    def _part(self, low: int, high: int, running: Sequence[tuple[int, Hold]], here: _Presences) -> Part:
        line, length = self.evidence.line, high - low
        whole = length * line.units
        weights = [hold.weight for _, hold in running]
        taken = whole if line.is_gpu and running else min(whole, length * sum(weights))
        amounts = share(taken, weights) if running and taken else [0] * len(running)
        shares = [
            (hold, self._inside(place, hold, low), amount)
            for (place, hold), amount in zip(running, amounts, strict=True)
        ]
        if taken == whole:
            return Part(low, high, shares, None, 0, "")
        rest, why = self._rest(low, here)
        return Part(low, high, shares, rest, whole - taken, why)

    def _inside(self, place: int, hold: Hold, moment_ms: int) -> Class:
        known = self.inner.get(place)
        if known is None:
            return hold.kind
        if moment_ms < known[0]:
            return Class.LOADING
        return Class.RESERVED if known[1].holds(moment_ms) else hold.kind

    def _rest(self, moment_ms: int, here: _Presences) -> tuple[Class, str]:
        layers = self.layers
        if layers["kept"].holds(moment_ms):
            return Class.HELD, ""
        decided = here.without_worker(moment_ms)
        if decided is not None:
            return decided
        if not self.evidence.line.named:
            return Class.UNKNOWN, UNNAMED
        if here.is_starting(moment_ms):
            return Class.STARTING, ""
        if "bad" in layers and layers["bad"].holds(moment_ms):
            return Class.UNKNOWN, "the GPU did not answer"
        if here.is_drained(moment_ms):
            return Class.TAIL, ""
        if "active" in layers and layers["active"].holds(moment_ms):
            return Class.UNKNOWN, NOT_OURS
        if "reserved" in layers and layers["reserved"].holds(moment_ms):
            return Class.RESERVED, ""
        return (Class.FREE_WAITING if layers["waiting"].holds(moment_ms) else Class.FREE), ""


def look_inside(profile: Profile, start_ms: int, end_ms: int) -> tuple[int, list[Interval]]:
    """Of an attempt that counts: when its loading ended, and its long pauses.

    Only samples taken while it ran count, and loading needs one that saw the GPU idle before one saw it active. One
    that was never seen active has no loading; if it was long enough, all of it that was seen is a pause.
    """
    first_active: int | None = None
    seen_idle = False
    quiet: list[Interval] = []
    for begin, end, active in profile.taken(start_ms, end_ms):
        if active is None:
            continue
        if active:
            first_active = begin if first_active is None else first_active
        else:
            seen_idle = seen_idle or first_active is None
            quiet.append((begin, end))
    loaded_ms = start_ms
    if first_active is not None and seen_idle:
        loaded_ms = first_active
    pauses = [pair for pair in union(quiet) if pair[0] >= loaded_ms and pair[1] - pair[0] >= PAUSE_MS]
    return loaded_ms, pauses


def _last(holds: Iterable[Hold], before_ms: int) -> int:
    return max((hold.end_ms for hold in holds if hold.start_ms < before_ms), default=0)


@dataclass(slots=True)
class _Presences:
    """The workers beside one stay of a line on its node."""

    listed: Sequence[Presence]
    span: Interval
    is_open: bool
    last_hold_ms: int  # when the last attempt there ended: a drained worker starts nothing more after it

    def __post_init__(self) -> None:
        start_ms, end_ms = self.span
        self.listed = [one for one in self.listed if one.start_ms < end_ms and one.end_ms > start_ms]

    def _now(self, moment_ms: int) -> list[Presence]:
        return [one for one in self.listed if one.start_ms <= moment_ms < one.end_ms]

    def without_worker(self, moment_ms: int) -> tuple[Class, str] | None:
        """What became of a moment without a worker; None where there is one."""
        if self._now(moment_ms):
            return None
        before = [one for one in self.listed if one.end_ms <= moment_ms]
        later = any(one.start_ms > moment_ms for one in self.listed)
        if not before:
            young = self.is_open and not later and moment_ms - self.span[0] < GRACE_MS
            return (Class.STARTING, "") if later or young else (Class.UNKNOWN, NO_WORKER)
        if not max(before, key=lambda one: one.end_ms).orderly:
            return Class.UNKNOWN, WORKER_GONE
        return (Class.STARTING if later else Class.TAIL), ""

    def is_starting(self, moment_ms: int) -> bool:
        """True while none of the workers there is up."""
        return all(one.up_ms is None or moment_ms < one.up_ms for one in self._now(moment_ms))

    def is_drained(self, moment_ms: int) -> bool:
        """True when every worker there takes nothing more, and the last attempt is over."""
        now = self._now(moment_ms)
        return moment_ms >= min(self.last_hold_ms, self.span[1]) and all(
            one.drain_ms is not None and moment_ms >= one.drain_ms for one in now
        )


def timeline(line: Line, parts: Sequence[Part]) -> list[Span]:
    """The parts as few spans for drawing."""
    spans: list[Span] = []
    kinds = ((part, *part.leading) for part in parts)
    open_part: tuple[int, int, Class, str] | None = None
    for part, kind, task in kinds:
        if open_part is not None and open_part[1] == part.start_ms and open_part[2:] == (kind, task):
            open_part = (open_part[0], part.end_ms, kind, task)
            continue
        if open_part is not None:
            spans.append(_span(line, *open_part))
        open_part = (part.start_ms, part.end_ms, kind, task)
    if open_part is not None:
        spans.append(_span(line, *open_part))
    return spans


def _span(line: Line, start_ms: int, end_ms: int, kind: Class, task: str) -> Span:
    return Span(gpu=line.gpu, start_ms=start_ms, end_ms=end_ms, kind=kind, job=line.job, task=task)
