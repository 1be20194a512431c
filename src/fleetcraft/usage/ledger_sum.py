"""Adding up: the parts of all lines become rows, tasks and the check that nothing was lost or counted twice."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from fleetcraft.usage.holding import ACTIVE_PCT, RESERVED_BYTES
from fleetcraft.usage.ledger import GRACE_MS, PAUSE_MS, SETTLE_MS, Evidence, Part, divide, timeline
from fleetcraft.usage.ledger_api import Class, Hold, Interval, Ledger, LedgerRow, Line, Span, TaskUse
from fleetcraft.usage.ledger_profile import Profile, clip, union
from fleetcraft.usage.ledger_words import worst

GROUPINGS = ("fleet", "job", "host", "gpu", "task")
NO_TASK = "(no task)"
DEFINITION: dict[str, float | str] = {
    "active_pct": ACTIVE_PCT,
    "reserved_bytes": RESERVED_BYTES,
    "pause_s": PAUSE_MS / 1000,
    "settle_s": SETTLE_MS / 1000,
    "starting_grace_s": GRACE_MS / 1000,
    "order": "attempts, kept for a timed task, no worker, starting, no answer, drained, active, reserved, free",
}


@dataclass(slots=True)
class _Account:
    by: str
    period: Interval | None = None
    rows: dict[str, LedgerRow] = field(default_factory=dict)
    total: LedgerRow = field(default_factory=lambda: LedgerRow(key="total", label="all"))
    tasks: dict[str, TaskUse] = field(default_factory=dict)
    unknown: dict[str, int] = field(default_factory=dict)
    spans: list[Span] = field(default_factory=list)
    allocated_ms: int = 0
    _walls: set[tuple[str, int, int, int]] = field(default_factory=set)
    _known: set[tuple[str, str, str]] = field(default_factory=set)

    def row(self, key: str, label: str = "") -> LedgerRow:
        """The row of that key."""
        return self.rows.setdefault(key, LedgerRow(key=key, label=label or key))

    def take(self, evidence: Evidence) -> None:
        """Add one line."""
        line, profile = evidence.line, evidence.profile
        spans = union(line.spans) if self.period is None else clip(union(line.spans), *self.period)
        if not spans:
            return
        parts = divide(evidence, self.period)
        self.allocated_ms += line.units * sum(end - start for start, end in spans)
        self.spans += timeline(line, parts)
        here = None if self.by == "task" else self.row(*_key(line, self.by))
        for part in parts:
            self._take_part(part, line, profile, here)
        observed_ms = active_ms = 0
        if profile is not None:
            for start_ms, end_ms in spans:
                observed_ms += round(profile.integral("observed", start_ms, end_ms))
                active_ms += round(profile.integral("active", start_ms, end_ms))
        for row in (self.total, here):
            if row is not None:
                row.observed_ms += observed_ms
                row.active_ms += active_ms
                # A GPU that was allocated twice, one time after the other, is one GPU.
                known = (row.key, line.gpu.host.partition(".")[0], line.gpu.uuid)
                row.lines += not line.gpu.uuid or known not in self._known
                self._known.add(known)

    def _take_part(self, part: Part, line: Line, profile: Profile | None, here: LedgerRow | None) -> None:
        for hold, kind, amount in part.shares:
            for row in (self.total, here):
                if row is not None:
                    row.add(kind, amount)
            self._take_share(part, hold, kind, amount, line, profile, shared=len(part.shares) > 1)
        if part.rest is None:
            return
        for row in (self.total, self.row(NO_TASK) if here is None else here):
            row.add(part.rest, part.rest_amount)
        if part.rest is Class.UNKNOWN:
            self.unknown[part.why] = self.unknown.get(part.why, 0) + part.rest_amount

    def _take_share(
        self, part: Part, hold: Hold, kind: Class, amount: int, line: Line, profile: Profile | None, *, shared: bool
    ) -> None:
        if self.by == "task":
            self.row(hold.task or NO_TASK, hold.name).add(kind, amount)
        if not hold.task:
            return
        use = self.tasks.get(hold.task)
        if use is None:
            use = self.tasks[hold.task] = TaskUse(task=hold.task, name=hold.name)
        use.amounts[kind] = use.amounts.get(kind, 0) + amount
        use.shared = use.shared or (shared and line.is_gpu)
        wall = (hold.task, hold.attempt, hold.start_ms, hold.end_ms)
        if wall not in self._walls:
            self._walls.add(wall)
            for start_ms, end_ms in clip([(hold.start_ms, hold.end_ms)], *(self.period or (0, hold.end_ms))):
                use.wall_ms += end_ms - start_ms
            use.attempts += 1
        if line.is_gpu and line.gpu.uuid and line.gpu.uuid not in use.gpus:
            use.gpus = tuple(sorted((*use.gpus, line.gpu.uuid)))
        if profile is not None and amount:
            self._measure(use, part, amount, profile)

    def _measure(self, use: TaskUse, part: Part, amount: int, profile: Profile) -> None:
        low, high = part.start_ms, part.end_ms
        fraction = amount / (high - low)
        observed_ms = profile.integral("observed", low, high)
        peak = profile.peak_bytes(low, high)
        if peak is not None:
            use.memory_peak_bytes = max(peak, use.memory_peak_bytes or 0.0)
        if not observed_ms:
            return
        use.observed_ms += round(observed_ms * fraction)
        active_ms = round(profile.integral("active", low, high) * fraction)
        use.active_ms += active_ms
        if self.by == "task":
            row = self.row(use.task, use.name)
            row.observed_ms += round(observed_ms * fraction)
            row.active_ms += active_ms
        if profile.integral("power_known", low, high):
            held = profile.integral("power", low, high) * fraction / 1000
            use.joules_held = (use.joules_held or 0.0) + held
        if counted_ms := profile.integral("counter_known", low, high):
            counted = profile.integral("counter", low, high) * fraction / 1000
            use.joules_counter = (use.joules_counter or 0.0) + counted
            use.counter_ms += round(counted_ms * fraction)


def add_up(
    evidences: Iterable[Evidence], *, by: str = "fleet", unit: str = "GPU", period: Interval | None = None,
    waiting: Sequence[Interval] = (), sources: Sequence[str] = (), problems: Sequence[str] = (),
) -> Ledger:  # fmt: skip
    """The ledger over all lines, the same for any order of them."""
    listed = sorted(evidences, key=lambda one: (one.line.gpu, one.line.fleet, one.line.job, one.line.spans))
    account = _Account(by, period)
    for evidence in listed:
        account.take(evidence)
    if by == "task":
        _rest_of_samples(account)
    moments = [moment for one in listed for span in one.line.spans for moment in span]
    since_ms, until_ms = period or (min(moments, default=0), max(moments, default=0))
    tasks = tuple(sorted(account.tasks.values(), key=lambda use: (-use.held_ms, use.task)))
    order = sorted(account.rows.values(), key=lambda row: (-row.total, row.key) if by == "task" else (0, row.key))
    return Ledger(
        unit=unit, by=by, allocated_ms=account.allocated_ms, rows=tuple(order), total=account.total,
        wastes=worst(account.total, tasks, account.unknown, unit), tasks=tasks,
        spans=tuple(sorted(account.spans, key=lambda span: (span.gpu, span.start_ms, span.job))),
        since_ms=since_ms, until_ms=until_ms, unknown=account.unknown, waiting=tuple(waiting),
        sources=tuple(sources), problems=tuple(problems), definition=DEFINITION,
    )  # fmt: skip


def _rest_of_samples(account: _Account) -> None:
    """Samples of time that no task held go to the row without a task."""
    rest = account.rows.get(NO_TASK)
    if rest is not None:
        others = [row for row in account.rows.values() if row is not rest]
        rest.observed_ms = max(0, account.total.observed_ms - sum(row.observed_ms for row in others))
        rest.active_ms = max(0, account.total.active_ms - sum(row.active_ms for row in others))


def _key(line: Line, by: str) -> tuple[str, str]:
    if by == "fleet":
        return line.fleet or "(no fleet)", ""
    if by == "job":
        return line.job or "(no job)", ""
    if by == "host":
        return line.gpu.host, ""
    name = line.gpu.uuid or f"gpu {line.gpu.index}"
    return f"{line.gpu.host} {name}", ""
