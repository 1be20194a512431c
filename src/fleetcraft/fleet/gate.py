"""What is laid before every guard, and how their answers count: one refusal is a refusal, and so is a broken guard."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from fleetcraft.core.decision import Decision
from fleetcraft.fleet.spec import FleetSpec
from fleetcraft.fleet.state import FleetState
from fleetcraft.schedulers.api import JobRequest, Limits, Observation


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """One submission before it is made."""

    spec: FleetSpec
    request: JobRequest
    state: FleetState
    now_utc: float
    why: str = ""
    limits: Limits | None = None  # None: nobody asked yet
    mine: Observation | None = None  # every job of this user; None: nobody asked yet
    gpu_hours: float = 0.0  # to the time limit
    node_hours: float = 0.0
    units: float | None = None  # SU; None: the site names no rate


class Guard(Protocol):
    """One rule that is asked before every submission."""

    @property
    def name(self) -> str:
        """A word for records and for people."""
        ...

    def check(self, proposal: Proposal) -> Decision:
        """May it be submitted? Refuses what it cannot read."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Ruling:
    """All answers to one proposal."""

    decisions: tuple[tuple[str, Decision], ...] = ()
    refused: tuple[str, ...] = field(default=())

    @property
    def allowed(self) -> bool:
        """True when no guard refused."""
        return not self.refused

    @property
    def reason(self) -> str:
        """Every refusal in a sentence."""
        return "; ".join(f"{name}: {one.reason}" for name, one in self.decisions if not one.allowed)

    @property
    def wait_s(self) -> float | None:
        """After so long nothing would stand against it any more; None where something else does, or nothing."""
        waits = [one.evidence.get("wait_s") for _, one in self.decisions if not one.allowed]
        known = [float(wait) for wait in waits if isinstance(wait, (int, float))]
        return max(known) if known and len(known) == len(waits) else None

    @property
    def unanswered(self) -> str:
        """What was wrong with the question where only a missing answer stands against it; else empty."""
        said = [one.evidence.get("unanswered") for _, one in self.decisions if not one.allowed]
        return str(said[0]) if said and all(said) else ""

    def as_json(self) -> list[dict[str, Any]]:
        """For the record of an intent or of a refusal."""
        return [{"guard": name, **decision.as_json()} for name, decision in self.decisions]


def ask_guards(guards: Sequence[Guard], proposal: Proposal) -> Ruling:
    """Ask every guard, also after a refusal, so that a person sees everything at once."""
    answers: list[tuple[str, Decision]] = []
    for guard in guards:
        try:
            answers.append((guard.name, guard.check(proposal)))
        except Exception as error:  # noqa: BLE001  a guard that fails must close the gate, whatever broke it
            answers.append(
                (guard.name, Decision.refuse(f"the guard itself failed: {type(error).__name__}: {error}", broken=True))
            )
    return Ruling(decisions=tuple(answers), refused=tuple(name for name, decision in answers if not decision.allowed))
