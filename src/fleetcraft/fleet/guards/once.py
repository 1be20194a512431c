"""One submission per pass, and none while an earlier one is unresolved: two passes must never both add a job."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

from fleetcraft.core.decision import Decision

# Sites ask for a pause between submissions of one user.
DEFAULT_GAP_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class OnceEvidence:
    """What the fleet's records say. `problem`: they could not be read."""

    submitted_this_pass: int = 0
    unresolved: tuple[str, ...] = ()  # tokens of intents whose end nobody knows
    last_submitted_utc: float | None = None
    problem: str = ""


def decide_once(evidence: OnceEvidence, now_utc: float, gap_s: float = DEFAULT_GAP_S) -> Decision:
    """Refuse a second submission, a guess about an open one, and one right behind another."""
    facts = {**asdict(evidence), "now_utc": now_utc, "gap_s": gap_s}
    if evidence.problem:
        return Decision.refuse(f"the fleet's records cannot be read: {evidence.problem}", **facts)
    if evidence.submitted_this_pass:
        return Decision.refuse("this pass has submitted a job already; the next pass may submit another", **facts)
    if evidence.unresolved:
        return Decision.refuse(
            f"what became of {', '.join(evidence.unresolved)} is not known yet, so nothing is submitted beside it",
            **facts,
        )
    if evidence.last_submitted_utc is not None:
        # A record from the future is another host's clock, and no reason to wait for hours.
        since_s = now_utc - evidence.last_submitted_utc
        if 0 <= since_s < gap_s:
            wait_s = gap_s - since_s
            since_s = math.floor(since_s * 10) / 10  # never rounded up to the gap itself
            return Decision.refuse(
                f"the last submission was {since_s:.1f} s ago, and {gap_s:g} s are kept between two; "
                f"submit again in {math.ceil(wait_s)} s",
                wait_s=wait_s,
                **facts,
            )
    return Decision.allow("nothing was submitted in this pass, and nothing is open", **facts)
