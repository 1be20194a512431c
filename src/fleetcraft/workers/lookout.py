"""When a worker looks at the spool, what it takes from a look, and when it may conclude that nothing is left."""

from __future__ import annotations

from dataclasses import dataclass, field
from operator import lt

from fleetcraft.core.names import CLAIM, DRAFT, FENCED, HELD, WAITING, Token
from fleetcraft.core.quantities import format_duration
from fleetcraft.spool.maintenance import finish_drafts, settle_folded
from fleetcraft.spool.reap import Reaper
from fleetcraft.workers.calls import Calls
from fleetcraft.workers.claimer import Claimer
from fleetcraft.workers.context import Context
from fleetcraft.workers.timing import (
    HELD_EVERY_S,
    LIST_AT_MOST_EVERY_S,
    REAP_EVERY_S,
    SECOND_LOOK_S,
    SHARE_EVERY_S,
    Timer,
)
from fleetcraft.workers.watch import LIST_EVERY_S, STAT_EVERY_S


@dataclass(slots=True)
class Lookout:
    """Looks at tokens/ as rarely as it can, and at dead lives every few seconds."""

    ctx: Context
    claimer: Claimer
    calls: Calls
    reaper: Reaper
    must_list: bool = True
    held_seen: bool = False  # some task waits for others: an end of ours may be what it waits for
    others_may_share: bool = False
    quiet_looks: int = 0
    quiet_since_s: float = 0.0
    reap_timer: Timer = field(default_factory=lambda: Timer(REAP_EVERY_S))
    _held_timer: Timer = field(default_factory=lambda: Timer(HELD_EVERY_S))
    _stat_timer: Timer = field(default_factory=lambda: Timer(STAT_EVERY_S))
    _list_timer: Timer = field(default_factory=lambda: Timer(LIST_EVERY_S))
    _listed_s: float = -1.0
    _seen_ns: int = -1
    # What was given out when a look found work that did not fit beside it; None when no look did.
    _kept_out_by: tuple[int, ...] | None = None

    def claim_if_worthwhile(self, now_s: float) -> int:
        """Look, and claim, when there is room and a look may show something new; returns how many claims were made."""
        if not self._may_show_news(now_s) or not self._has_room():
            return 0
        tokens = self._list(now_s)
        self.claimer.adopt_late(tokens)
        released = self.claimer.release_held(tokens) if self._held_timer.due(now_s) else 0
        made = self.claimer.claim(tokens)
        # While claims are made there may be more; after an empty look only a change is worth another.
        self.must_list = bool(made or released)
        self._kept_out_by = self.ctx.capacity.given_out if not made and self._any_for_us(tokens) else None
        if self._kept_out_by is not None and self.calls.hosts:
            self.calls.evict()  # a resident sits idle where something else could run
        return made

    def _has_room(self) -> bool:
        """True when a slot is free, or will soon be with nothing to start on it."""
        capacity = self.ctx.capacity
        return capacity.used_cpus < capacity.cpus or self.claimer.is_low()

    def _room_was_made(self) -> bool:
        """True when less is given out than when work was seen that did not fit.

        The end of a task that will be tried again changes nothing in tokens/, so no other sign would come.
        """
        return self._kept_out_by is not None and any(map(lt, self.ctx.capacity.given_out, self._kept_out_by))

    def _may_show_news(self, now_s: float) -> bool:
        if now_s - self._listed_s < LIST_AT_MOST_EVERY_S:
            return False  # many renames a second wake us as often; one look serves for all
        if self.must_list or self._room_was_made() or self._list_timer.due(now_s):
            return True
        if not self._stat_timer.due(now_s):
            return False
        return self.ctx.spool.files.modified_ns(self.ctx.spool.layout.tokens) != self._seen_ns

    def _list(self, now_s: float) -> list[Token]:
        # The time before the list: what comes in between shows as a change at the next look.
        self._seen_ns = self.ctx.spool.files.modified_ns(self.ctx.spool.layout.tokens)
        tokens = self.ctx.spool.tokens().tokens
        self._listed_s = now_s
        self._list_timer.next_s = now_s + LIST_EVERY_S
        self.held_seen = any(token.form == HELD for token in tokens)
        return tokens

    def _any_for_us(self, tokens: list[Token]) -> bool:
        return any(token.form == WAITING and self.claimer.could_ever(token) for token in tokens)

    def reap(self) -> bool:
        """Look after dead lives; True while something is still being taken over."""
        reports = self.reaper.step()
        dead = [report for report in reports if report.state == "dead"]
        for report in dead:
            self.must_list = True
            self.ctx.say(f"took over {report.life}: {report.returned} tokens returned, {report.lost} attempts lost")
        if dead:
            self.ctx.keep_shortcut()
        if self.reaper.busy:
            self.reap_timer.next_s = min(self.reap_timer.next_s, self.ctx.clock.mono() + 0.05)
        unfinished = any(report.state in ("reaping", "fenced") for report in reports)
        return self.reaper.busy or self.reaper.awaits_word or unfinished

    def not_quiet(self) -> None:
        """Something runs or is in hand: begin anew to count the looks that find nothing."""
        self.quiet_looks = 0

    def nothing_left(self, now_s: float) -> str | None:
        """Why the worker may leave, or None. Never on one listing: two looks, each with a pass over dead lives."""
        if self._something_for_us(now_s):
            self.quiet_looks = 0
            return None
        if self.quiet_looks == 0:
            self.quiet_since_s = now_s
        self.quiet_looks += 1
        idle_exit, quiet_s = self.ctx.options.idle_exit_s, now_s - self.quiet_since_s
        if idle_exit is None or self.quiet_looks < 2 or quiet_s < idle_exit:
            return None
        if self.others_may_share and quiet_s < 2 * SHARE_EVERY_S:
            return None
        return f"nothing to do for {format_duration(quiet_s)}"

    def _something_for_us(self, now_s: float) -> bool:
        """True when a token waits that this worker could run, now or once its slots are free."""
        if self.quiet_looks >= 2 and not self.must_list and not self._list_timer.due(now_s):
            return False
        self.must_list = False
        busy = self.reap()
        tokens = self._list(now_s)
        if busy or self._finish_for_the_dead(tokens) or self.claimer.release_held(tokens):
            return True
        # What is on its way between two names, or held by a worker that has more than it runs, is on offer within
        # moments: leaving now would leave that worker alone.
        self.others_may_share = any(
            (token.form in (DRAFT, FENCED) or (token.form == CLAIM and token.count > 1))
            and self.claimer.could_ever(token)
            for token in tokens
        )
        found = self._any_for_us(tokens)
        self.must_list = self.must_list or found
        return found

    def _finish_for_the_dead(self, tokens: list[Token]) -> bool:
        """Offer what a publisher or a retry committed and did not live to offer; True when there was such a thing."""
        spool, requests = self.ctx.spool, self.ctx.requests
        if not any(token.form == DRAFT or (not token.life and spool.is_folded(token.batch)) for token in tokens):
            return False
        spool.refresh()
        requests.refresh(force=True)
        finished = finish_drafts(spool, tokens, requests.owners)
        moved, _ = settle_folded(spool, tokens)
        return bool(finished or moved)

    def next_look_s(self, now_s: float) -> list[float]:
        """The moments at which a look may be due."""
        moments = [self.reap_timer.next_s]
        if self._has_room():
            # One that lies in the past would make the worker spin: never sooner than the next look is allowed.
            soonest_s = self._listed_s + LIST_AT_MOST_EVERY_S
            at_once = self.must_list or self._room_was_made()
            moments.append(max(now_s if at_once else self._stat_timer.next_s, soonest_s))
        if self.quiet_looks == 1:
            moments.append(now_s + SECOND_LOOK_S)
        return moments
