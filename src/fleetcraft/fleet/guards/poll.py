"""Poll rate: all processes of a user together ask the scheduler no more often than the site tolerates."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from fleetcraft.core.decision import Decision

FLOOR_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PollEvidence:
    """What the shared record of questions says. `problem`: it could not be read."""

    last_asked_utc: float | None = None
    last_took_s: float = 0.0
    problem: str = ""


def pause_s(evidence: PollEvidence, floor_s: float) -> float:
    """Seconds between two questions: the site's floor, never below ours, and more when answers are slow."""
    return max(FLOOR_S, floor_s, 5 * evidence.last_took_s)


def decide_poll(evidence: PollEvidence, now_utc: float, floor_s: float = FLOOR_S) -> Decision:
    """Whether the scheduler may be asked now; refused is not answered: what is known stays and grows older."""
    pause = pause_s(evidence, floor_s)
    facts = {**asdict(evidence), "now_utc": now_utc, "pause_s": pause}
    if evidence.problem:
        return Decision.refuse(f"the record of questions cannot be read: {evidence.problem}", **facts)
    if evidence.last_asked_utc is None:
        return Decision.allow("the scheduler was not asked lately", **facts)
    since_s = now_utc - evidence.last_asked_utc
    if 0 <= since_s < pause:
        return Decision.refuse(
            f"the scheduler was asked {since_s:.0f} s ago; {pause:.0f} s are kept between two questions",
            next_utc=evidence.last_asked_utc + pause,
            **facts,
        )
    return Decision.allow(f"the scheduler was asked {since_s:.0f} s ago", **facts)


def tell_poll(evidence: PollEvidence, now_utc: float, floor_s: float = FLOOR_S) -> Decision:
    """For a submission: the pace must be kept track of; whether a question is due now does not matter to it."""
    asked = decide_poll(evidence, now_utc, floor_s)
    if evidence.problem:
        return asked
    pace = f"questions are kept {pause_s(evidence, floor_s):.0f} s apart; {asked.reason}"
    return Decision.allow(pace, **asked.evidence)
