"""`fleet submit`: declare a shape and submit its first jobs, one for each lane, with the site's pause between them.

A person's word starts what a drain had stopped. A submission of which the answer is still out comes first.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from fleetcraft.core.errors import Refused
from fleetcraft.fleet import records as kinds
from fleetcraft.fleet.handle import Fleet
from fleetcraft.fleet.plan import within_budget
from fleetcraft.fleet.records import Overtaken
from fleetcraft.fleet.resolve import resolve
from fleetcraft.fleet.spec import FleetSpec
from fleetcraft.fleet.state import WORK, FleetState
from fleetcraft.fleet.submit import DryRun, Submitted, Wish, declare, draft, dry_run, submit
from fleetcraft.schedulers.api import Limits, Observation

Wait = Callable[[float], None]
# Asked with the seconds that stand between this submission and the last one: is it waited for?
Patience = Callable[[float], bool]


@dataclass(slots=True)
class Launched:
    """What became of `fleet submit`."""

    submitted: list[Submitted] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)  # lanes that had a job already, in words

    @property
    def refused(self) -> bool:
        """True when a guard or the scheduler said no to one of them."""
        return any(one.submission is None or one.ref is None for one in self.submitted)

    def as_json(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            "submitted": [
                {**one.draft.as_json(), "job": str(one.ref) if one.ref else None, "words": one.words}
                for one in self.submitted
            ],
            "skipped": self.skipped,
        }  # fmt: skip


def preview(fleet: Fleet, spec: FleetSpec, *, why: str = "asked for", limits: Limits | None = None) -> DryRun:
    """What `launch` would submit first, with script, cost, guards and start; nothing is written."""
    state = fleet.state()
    lane = 0 if spec.lanes else None
    return dry_run(fleet, draft(fleet, state, Wish(spec=spec, why=why, lane=lane), limits=limits))


def launch(
    fleet: Fleet, spec: FleetSpec, *, why: str = "asked for", wait: Wait = time.sleep, limits: Limits | None = None,
    mine: Observation | None = None, patience: Patience = lambda _seconds: False,
) -> Launched:  # fmt: skip
    """Submit one job, or one for each lane that has none. Raises Refused, Overtaken, OutOfReach.

    `patience` decides whether the site's pause since the last submission is waited for, or is a refusal.
    """
    fleet.log.create()
    result = Launched()
    lanes: list[int | None] = list(range(spec.lanes)) if spec.lanes else [None]
    for position, lane in enumerate(lanes):
        if position and result.submitted:
            wait(spec.site.scheduler.submit_gap_s)
        outcome = _one(fleet, spec, why, lane, limits, mine, wait, patience)
        if isinstance(outcome, str):
            result.skipped.append(outcome)
            continue
        result.submitted.append(outcome)
        if outcome.ref is None:
            break  # what was refused once is not asked three times more
    return result


def _one(
    fleet: Fleet, spec: FleetSpec, why: str, lane: int | None, limits: Limits | None, mine: Observation | None,
    wait: Wait, patience: Patience,
) -> Submitted | str:  # fmt: skip
    for _ in range(fleet.policy.attempts):
        state = fleet.state()
        if state.open_intents():
            resolve(fleet, state)
            state = fleet.state()
        fleet.must_be_whole()
        taken = _taken(state, spec, lane, fleet.now())
        if taken:
            return taken
        try:
            drafted = draft(fleet, state, Wish(spec=spec, why=why, purpose=WORK, lane=lane), limits=limits, mine=mine)
            gap_s = drafted.ruling.wait_s
            if gap_s is not None and patience(gap_s):
                wait(gap_s)
                continue
            if not drafted.ruling.allowed:
                # A shape that was refused must not become the one that later passes plan with.
                return submit(fleet, drafted, spec_number=None)
            if state.drained:
                fleet.log.decide(kinds.RESUME, why=why)
            number = declare(fleet, state, spec)
            if fleet.log.last != max(number, state.last + state.drained):
                continue  # another pass wrote something beside our own records, and the guards did not see it
            return submit(fleet, drafted, spec_number=number)
        except Overtaken:
            continue
    raise Overtaken(
        f"Other passes over the fleet {fleet.name} were faster {fleet.policy.attempts} times.", hint="Run it again."
    )


def _taken(state: FleetState, spec: FleetSpec, lane: int | None, now_utc: float) -> str:
    """Words for a lane that has its job already. Raises Refused where nothing may be submitted."""
    pending = state.open_intents()
    if pending:
        raise Refused(
            f"The submission of {pending[0].token} has no answer yet.",
            hint="Run `fleetcraft fleet ensure` until it is found or given up; then submit again.",
        )
    if lane is not None:
        live = [job for job in state.lane(spec.shape, lane) if job.is_live]
        if live:
            return f"lane {lane} has {live[-1].token} already"
    allowed, said = within_budget(state, spec, spec.nodes, now_utc)
    if allowed < spec.nodes:
        raise Refused(
            f"The fleet may not grow by {spec.nodes} node{'s' * (spec.nodes != 1)}: {said}.",
            hint="Raise it with --gpu-hours or --node-hours, or ask for fewer nodes or a shorter --time.",
        )
    return ""
