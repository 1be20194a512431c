"""The guards that stand before every submission, in a fixed order, each gathering its own evidence.

None is left out after a refusal: a person sees them all. What a guard cannot read it refuses.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from fleetcraft.core.clock import Clock
from fleetcraft.core.decision import Decision
from fleetcraft.fleet.gate import Guard, Proposal, ask_guards
from fleetcraft.fleet.guards import providers
from fleetcraft.fleet.guards.balance import decide_balance, promises
from fleetcraft.fleet.guards.cap import Spending, decide_cap
from fleetcraft.fleet.guards.census import census
from fleetcraft.fleet.guards.limits import decide_limits
from fleetcraft.fleet.guards.login import LoginEvidence, decide_login
from fleetcraft.fleet.guards.once import OnceEvidence, decide_once
from fleetcraft.fleet.guards.poll import PollEvidence, tell_poll
from fleetcraft.fleet.guards.profile import charges_of, from_profile, provider_of, with_profile
from fleetcraft.fleet.guards.shape import decide_shape
from fleetcraft.schedulers.api import Limits, Observation, Scheduler
from fleetcraft.transports.api import Transport

ReadPoll = Callable[[], PollEvidence]
ReadLogin = Callable[[], LoginEvidence]


@dataclass(slots=True)
class Asked:
    """What the scheduler says for one proposal: what the proposal brings, else one question that all guards share."""

    scheduler: Scheduler | None = None
    _about: Proposal | None = None
    _limits: Limits | None = None
    _mine: Observation | None = None

    def _turn_to(self, proposal: Proposal) -> None:
        if self._about is not proposal:
            self._about, self._limits, self._mine = proposal, proposal.limits, proposal.mine

    def limits(self, proposal: Proposal) -> Limits | None:
        """None: nobody could be asked."""
        self._turn_to(proposal)
        if self._limits is None and self.scheduler is not None:
            self._limits = self.scheduler.limits()
        if self._limits is None or self._limits.answered or not self._is_mute(proposal):
            return self._limits
        return from_profile(proposal.spec.site, proposal.request, proposal.now_utc)

    def _is_mute(self, proposal: Proposal) -> bool:
        """PSI/J has no question for it, so what the profile says is all that anybody can know."""
        return proposal.spec.site.scheduler.kind == "psij"

    def mine(self, proposal: Proposal) -> Observation | None:
        """Every job of this user. None: nobody could be asked."""
        self._turn_to(proposal)
        if self._mine is None and self.scheduler is not None:
            self._mine = self.scheduler.mine()
        return self._mine


def standard_guards(
    transport: Transport,
    clock: Clock,
    scheduler: Scheduler | None = None,
    *,
    read_poll: ReadPoll | None = None,
    read_login: ReadLogin = census,
) -> list[Guard]:
    """Every guard of a submission. `transport` reaches the host where the site's balance tool runs."""
    asked = Asked(scheduler)
    guards: list[Guard] = [OnceGuard(asked)]
    if read_poll is not None:
        guards.append(PollGuard(read_poll))
    return [
        *guards,
        LoginGuard(read_login),
        ShapeGuard(asked),
        LimitsGuard(asked),
        CapGuard(),
        BalanceGuard(asked, transport, clock),
    ]


def run_guards(guards: list[Guard], proposal: Proposal) -> list[tuple[str, Decision]]:
    """Every guard's name and decision, in their order; one that breaks has refused."""
    return list(ask_guards(guards, proposal).decisions)


@dataclass(frozen=True, slots=True)
class OnceGuard:
    """See `once`. The records of the fleet are the evidence; the queue tells of the user's other fleets."""

    asked: Asked = field(default_factory=Asked)
    name: str = "once"

    def check(self, proposal: Proposal) -> Decision:
        """See `Guard.check`."""
        state, mine = proposal.state, self.asked.mine(proposal)
        stamps = [job.intent_utc for job in state.jobs.values() if job.intent_utc is not None]
        stamps += [
            job.submit_utc
            for job in (mine.jobs.values() if mine is not None else ())
            # Our own submissions stand in the records, by our clock.
            if job.token and job.token not in state.jobs and job.submit_utc is not None
        ]
        past = [stamp for stamp in stamps if stamp <= proposal.now_utc]
        evidence = OnceEvidence(
            unresolved=tuple(job.token for job in state.open_intents()),
            last_submitted_utc=max(past, default=None),
        )
        return decide_once(evidence, proposal.now_utc, proposal.spec.site.scheduler.submit_gap_s)


@dataclass(frozen=True, slots=True)
class PollGuard:
    """See `poll`."""

    read: ReadPoll
    name: str = "poll"

    def check(self, proposal: Proposal) -> Decision:
        """See `Guard.check`."""
        return tell_poll(self.read(), proposal.now_utc, proposal.spec.site.scheduler.poll_floor_s)


@dataclass(frozen=True, slots=True)
class LoginGuard:
    """See `login`."""

    read: ReadLogin = census
    name: str = "login"

    def check(self, proposal: Proposal) -> Decision:
        """See `Guard.check`."""
        return decide_login(proposal.spec.site.login, self.read())


@dataclass(frozen=True, slots=True)
class ShapeGuard:
    """See `shape`."""

    asked: Asked = field(default_factory=Asked)
    name: str = "shape"

    def check(self, proposal: Proposal) -> Decision:
        """See `Guard.check`."""
        limits = self.asked.limits(proposal)
        if limits is None:
            return Decision.refuse("the site was not asked for its partitions")
        return decide_shape(proposal.request, with_profile(limits, proposal.spec.site, proposal.request))


@dataclass(frozen=True, slots=True)
class LimitsGuard:
    """See `limits`."""

    asked: Asked = field(default_factory=Asked)
    name: str = "limits"

    def check(self, proposal: Proposal) -> Decision:
        """See `Guard.check`."""
        told = self.asked.limits(proposal)
        if told is None:
            return Decision.refuse("the site was not asked for its limits")
        limits = with_profile(told, proposal.spec.site, proposal.request)
        gpus = proposal.request.nodes * proposal.spec.gpus_per_node
        mine = self.asked.mine(proposal)
        jobs = list(mine.jobs.values()) if mine is not None and mine.answered else None
        return decide_limits(proposal.request, limits, jobs, gpus)


@dataclass(frozen=True, slots=True)
class CapGuard:
    """See `cap`."""

    name: str = "cap"

    def check(self, proposal: Proposal) -> Decision:
        """See `Guard.check`."""
        spec, state, now_utc = proposal.spec, proposal.state, proposal.now_utc
        # A job whose intent is damaged has no size, so what it used cannot be added up.
        unknown = any(job.number == 0 for job in state.jobs.values())
        gpu = (state.gpu_seconds(now_utc) / 3600, state.reserved_gpu_seconds(now_utc) / 3600)
        node = (state.node_seconds(now_utc) / 3600, state.reserved_node_seconds(now_utc) / 3600)
        hours = proposal.request.nodes * (proposal.request.time_limit_s or spec.time_limit_s) / 3600
        return decide_cap(
            (
                Spending(
                    what="GPU-hours",
                    cap=spec.gpu_hour_cap,
                    spent=None if unknown else gpu[0],
                    promised=gpu[1],
                    wanted=hours * spec.gpus_per_node,
                ),
                Spending(
                    what="node-hours",
                    cap=spec.node_hour_cap,
                    spent=None if unknown else node[0],
                    promised=node[1],
                    wanted=hours,
                ),
            )
        )


@dataclass(frozen=True, slots=True)
class BalanceGuard:
    """See `balance`."""

    asked: Asked
    transport: Transport
    clock: Clock
    name: str = "balance"

    def check(self, proposal: Proposal) -> Decision:
        """See `Guard.check`."""
        site = proposal.spec.site
        provider = provider_of(site)
        if provider is None:
            return Decision.allow("the profile names no balance provider: nothing is charged that we know of")
        mine = self.asked.mine(proposal)
        if mine is None or not mine.answered:
            return Decision.refuse(
                "the user's own jobs could not be read, so what is promised already is unknown",
                unanswered="the user's own jobs were not told",
            )
        charges = charges_of(site)
        promised = promises(list(mine.jobs.values()), proposal.request, charges, self.asked.limits(proposal))
        return decide_balance(proposal.request, charges, providers.ask(provider, self.transport, self.clock), promised)
