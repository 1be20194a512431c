"""Balance: whether the account holds enough for this request, with everything already promised taken off.

A scheduler reserves nodes x time limit when a job is submitted, so what waits and what runs counts in full.
SU = nodes x hours x rate. No balance, or a promise that cannot be computed: refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field

from fleetcraft.core.decision import Decision
from fleetcraft.core.states import JobState
from fleetcraft.schedulers.api import JobRequest, JobView, Limits

_STARTED = (JobState.RUNNING, JobState.ENDING)


@dataclass(frozen=True, slots=True, kw_only=True)
class Charges:
    """How a site charges, and where we stop."""

    rates: Mapping[str, float] = field(default_factory=dict)  # units per node and hour, by the scheduler's partition
    rate: float | None = None  # of the partition asked for; None: the profile does not say
    unit: str = "SU"
    floor: float = 0.0  # what must be left after everything that is promised
    burn_stop: float | None = None  # with no more than this on the account, nothing new is submitted


@dataclass(frozen=True, slots=True, kw_only=True)
class Balance:
    """What a provider answered. `total` is None when it gave no answer; `problem` says why."""

    total: float | None
    unit: str = "SU"
    account: str | None = None
    at_utc: float | None = None
    source: str = ""
    includes_running: bool = False  # what running jobs reserve is taken off already
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """What one job of this user reserves."""

    job: str
    units: float
    running: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Promises:
    """All of them, or the reason why they cannot be added up."""

    items: tuple[Promise, ...] = ()
    problem: str = ""

    def total(self, *, running: bool = True) -> float:
        """Units reserved; without `running`, only by what still waits."""
        return sum(item.units for item in self.items if running or not item.running)


def price(request: JobRequest, charges: Charges) -> float | None:
    """Units that this request reserves; None when its rate or its time limit is not known."""
    if request.time_limit_s is None or charges.rate is None:
        return None
    return max(1, len(request.array)) * request.nodes * request.time_limit_s / 3600 * charges.rate


def promises(jobs: Sequence[JobView], request: JobRequest, charges: Charges, limits: Limits | None) -> Promises:
    """What the jobs that wait or run reserve: all of their time, since sites charge at the end."""
    longest = {part.name: part.time_limit_s for part in limits.partitions} if limits is not None else {}
    found: list[Promise] = []
    for job in jobs:
        if job.state.ended:
            continue
        limit_s = _time_limit_s(job, longest)
        nodes = job.node_count or len(job.nodes) or None
        rate = charges.rate if job.partition in ("", request.partition) else charges.rates.get(job.partition)
        for what, value in (("time limit", limit_s), ("number of nodes", nodes), ("rate of the partition", rate)):
            if value is None:
                return Promises(problem=f"the {what} of job {job.ref} is not known, so what it reserves is not either")
        units = (nodes or 0) * (limit_s or 0.0) / 3600 * (rate or 0.0)
        found.append(Promise(job=str(job.ref), units=units, running=job.state in _STARTED))
    return Promises(items=tuple(found))


def _time_limit_s(job: JobView, longest: Mapping[str, float | None]) -> float | None:
    if job.time_limit_s is not None:
        return job.time_limit_s
    if job.state in _STARTED and job.start_utc is not None and job.end_utc is not None:
        return job.end_utc - job.start_utc
    return longest.get(job.partition)


def decide_balance(request: JobRequest, charges: Charges, balance: Balance, promised: Promises) -> Decision:
    """Refuse when the account would fall below the floor, or when any number is missing."""
    cost = price(request, charges)
    facts: dict[str, object] = {"charges": asdict(charges), "balance": asdict(balance), "cost": cost}
    if balance.total is None:
        return Decision.refuse(f"the balance cannot be read: {balance.problem or 'no reason given'}", **facts)
    if balance.unit != charges.unit:
        return Decision.refuse(f"the balance is in {balance.unit}, the rate in {charges.unit}", **facts)
    if charges.rate is None:
        return Decision.refuse(
            f"the profile names no rate (su_rate) for partition {request.partition or 'of the site'}", **facts
        )
    if promised.problem:
        return Decision.refuse(promised.problem, **facts)
    if cost is None:
        return Decision.refuse("without a time limit nobody can say what this request costs", **facts)
    reserved = promised.total(running=not balance.includes_running)
    left = balance.total - reserved - cost
    facts.update(reserved=reserved, left=left, jobs=[asdict(item) for item in promised.items])
    unit = charges.unit
    if charges.burn_stop is not None and balance.total <= charges.burn_stop:
        return Decision.refuse(
            f"{balance.total:,.1f} {unit} are left and new work stops at {charges.burn_stop:,.1f}", **facts
        )
    if left < charges.floor:
        return Decision.refuse(
            f"{balance.total:,.1f} {unit} less {reserved:,.1f} promised and {cost:,.1f} for this request leave "
            f"{left:,.1f}, below the floor of {charges.floor:,.1f}",
            **facts,
        )
    return Decision.allow(
        f"{cost:,.1f} {unit} for this request; {left:,.1f} stay after {reserved:,.1f} promised", **facts
    )
