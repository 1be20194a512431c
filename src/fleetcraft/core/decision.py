"""One value for guards, retries, caches and gates: allowed or not, why, and the evidence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What was decided; journaled by whoever acts on it and printed by `fleetcraft why`."""

    allowed: bool
    reason: str
    evidence: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def allow(cls, reason: str = "", **evidence: object) -> Decision:
        """Go ahead."""
        return cls(allowed=True, reason=reason, evidence=evidence)

    @classmethod
    def refuse(cls, reason: str, **evidence: object) -> Decision:
        """Do not; the reason is a sentence for a person."""
        return cls(allowed=False, reason=reason, evidence=evidence)

    def as_json(self) -> dict[str, Any]:
        """The form kept in a journal."""
        return {"allowed": self.allowed, "reason": self.reason, "evidence": dict(self.evidence)}
