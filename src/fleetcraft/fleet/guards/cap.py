"""The caps of one fleet: what it spent, what its jobs may still spend, and this request stay below them."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from fleetcraft.core.decision import Decision


@dataclass(frozen=True, slots=True, kw_only=True)
class Spending:
    """Hours of one kind. None: could not be computed, and then nothing is allowed under a cap."""

    what: str  # GPU-hours or node-hours
    cap: float | None  # None: no cap
    spent: float | None = 0.0
    promised: float | None = 0.0  # what the jobs that wait or run may still use
    wanted: float | None = 0.0  # by this request, to its time limit

    @property
    def left(self) -> float | None:
        """Below the cap, before this request."""
        if self.cap is None or self.spent is None or self.promised is None:
            return None
        return self.cap - self.spent - self.promised


def decide_cap(spendings: tuple[Spending, ...]) -> Decision:
    """Refuse what could go over a cap in the worst case: every job to its time limit."""
    facts = {spending.what: asdict(spending) | {"left": spending.left} for spending in spendings}
    capped = [spending for spending in spendings if spending.cap is not None]
    if not capped:
        return Decision.allow("this fleet has no cap", **facts)
    told = []
    for spending in capped:
        left, wanted = spending.left, spending.wanted
        if left is None or wanted is None:
            return Decision.refuse(f"the {spending.what} of the fleet cannot be computed", **facts)
        if wanted > left + 1e-9:
            return Decision.refuse(
                f"{wanted:,.1f} {spending.what} are wanted and {max(0.0, left):,.1f} are left of the cap of "
                f"{spending.cap:,.1f}",
                **facts,
            )
        told.append(f"{wanted:,.1f} of {left:,.1f} {spending.what} left")
    return Decision.allow(", ".join(told), **facts)
