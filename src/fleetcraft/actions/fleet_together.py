"""Ask for several fleets at once: those of one site share one question and its answer.

Questions to a site are seconds apart, so one fleet after the other would get an answer for the first only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

from fleetcraft.config.site import ResolvedSite
from fleetcraft.core.errors import FleetcraftError
from fleetcraft.fleet.handle import Fleet
from fleetcraft.fleet.look import Look, look
from fleetcraft.schedulers.api import JobRef, Observation, Scheduler


@dataclass(slots=True)
class _Together:
    """A scheduler that hears first what all fleets want to know, and then answers all of them at once."""

    scheduler: Scheduler
    refs: list[JobRef] = field(default_factory=list)
    answer: Observation | None = None
    is_gathering: bool = True

    def __getattr__(self, name: str) -> Any:
        return getattr(self.scheduler, name)

    def observe(self, refs: Sequence[JobRef]) -> Observation:
        """See `Scheduler.observe`; while it gathers, nothing is answered."""
        if self.is_gathering:
            self.refs += refs
            return Observation(at_utc=0.0, jobs={}, answered=False)
        if self.answer is None:
            self.answer = self.scheduler.observe(list(dict.fromkeys(self.refs)))
            return self.answer
        return replace(self.answer, queries=0)  # it was asked once, whoever counts the questions


def by_site(fleets: Sequence[tuple[ResolvedSite, Fleet]]) -> list[list[Fleet]]:
    """The fleets of each site, in the given order."""
    groups: list[tuple[ResolvedSite, list[Fleet]]] = []
    for site, fleet in fleets:
        mine = next((some for known, some in groups if _is_same(known, site)), None)
        if mine is None:
            groups.append((site, [fleet]))
        else:
            mine.append(fleet)
    return [some for _, some in groups]


def _is_same(one: ResolvedSite, other: ResolvedSite) -> bool:
    return (one.profile, one.scheduler) == (other.profile, other.scheduler)


def look_together(fleets: Sequence[Fleet]) -> Mapping[str, Look | FleetcraftError | OSError]:
    """One look at each of these fleets of one site, by name; where a look failed, why."""
    if len(fleets) == 1:
        return {fleets[0].name: _look(fleets[0])}
    together = _Together(fleets[0].scheduler)
    shared = [replace(fleet, scheduler=cast(Scheduler, together)) for fleet in fleets]
    for fleet in shared:
        _look(fleet)
    together.is_gathering = False
    return {fleet.name: _look(fleet) for fleet in shared}


def _look(fleet: Fleet) -> Look | FleetcraftError | OSError:
    try:
        return look(fleet, fleet.state())
    except (FleetcraftError, OSError) as error:
        return error
