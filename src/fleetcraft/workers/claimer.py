"""Which tokens a worker takes, how much of them it keeps, and what it gives back."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from fleetcraft.core.errors import StorageFull
from fleetcraft.core.names import CLAIM, DRAFT, HELD, WAITING, Token
from fleetcraft.core.ranges import RangeSet
from fleetcraft.core.states import Outcome, TaskState
from fleetcraft.spool.claims import Piece, release, return_whole, split, take
from fleetcraft.spool.cover import remaining
from fleetcraft.spool.held import Due, Upstream, judge_token, release_due
from fleetcraft.spool.ledger import Batch
from fleetcraft.spool.tokens import move
from fleetcraft.store.journal import is_storage_full
from fleetcraft.workers.book import CLAIM_WORK_S, Claim, shed
from fleetcraft.workers.context import Context
from fleetcraft.workers.verdict import Tally

# With this much work left in hand the next claim is made, so that slots do not wait for the file system.
LOW_WATER_S = 0.05
MAX_TOKENS_AT_ONCE = 16
# A task that does not fit beside what runs waits this long before the worker makes room for it.
PATIENCE_S = 30.0
SHORT_TASK_S = 60.0
_UNKNOWN_TASK_S = 3600.0


@dataclass(slots=True)
class Claimer:
    """Takes tokens and lets go of them, for one worker life."""

    ctx: Context
    upstream: Upstream
    # Without these the next call would end the resident that could take it, and load its model anew.
    idle_lanes: Callable[[], Collection[str]] = tuple
    # Tokens that this worker gave back because it can never run them; by name, so a changed one is looked at anew.
    avoid: set[str] = field(default_factory=set)
    kept_out_since_s: dict[str, float] = field(default_factory=dict)

    def could_ever(self, token: Token) -> bool:
        """True when this worker could run the lane with all its slots free and the time it has left."""
        ctx = self.ctx
        request = ctx.lanes.get(token.lane)
        if request is None:
            batch = ctx.spool.batch(token.batch)
            if batch is None:
                return False
            request = ctx.lanes[token.lane] = batch.request
        if token.name in self.avoid or not ctx.capacity.could_ever(request):
            return False
        left = ctx.left_s()
        return request.needs_s is None or left is None or request.needs_s <= left

    def fits_now(self, token: Token) -> bool:
        """True when a slot for the lane is free, or held by a resident that waits for a call of that lane."""
        if token.lane in self.idle_lanes():
            return True
        request = self.ctx.lanes[token.lane]
        slot = self.ctx.capacity.take(request, self.ctx.requests.limits)
        if slot is None:
            return False
        self.ctx.capacity.give_back(slot)
        return True

    def is_low(self) -> bool:
        """True when so little is left to start that a slot may soon have nothing."""
        missing_s = LOW_WATER_S * max(1, self.ctx.capacity.cpus)
        means = self.ctx.pace.means_s
        for claim in self.ctx.book.claims:
            missing_s -= len(claim.fresh) * means.get(claim.token.lane, _UNKNOWN_TASK_S)
            if missing_s <= 0:
                return False
        return True

    def claim(self, tokens: list[Token]) -> int:
        """Take what can start now, best priority first; returns how many claims were made.

        At most half of what is on offer is taken at once: the others have slots too.
        """
        possible = [token for token in tokens if token.form == WAITING and self.could_ever(token)]
        startable = [token for token in possible if self.fits_now(token)]
        best = max((token.priority for token in startable), default=-1)
        if self._must_make_room(possible, best) or not startable:
            return 0
        startable = [token for token in startable if token.priority == best]
        random.shuffle(startable)
        most = min(MAX_TOKENS_AT_ONCE, (len(startable) + 1) // 2)
        made = 0
        for token in startable:
            if made >= most or (made and not self.is_low()):
                break
            made += self._take(token)
        return made

    def _must_make_room(self, possible: list[Token], best: int) -> bool:
        """Decide whether to start nothing else until a large task fits that small ones keep out.

        Only where what runs is short: holding slots idle behind hours of work would cost more than it gives.
        """
        ctx, now = self.ctx, self.ctx.clock.mono()
        kept_out = {token.name: token for token in possible if token.priority >= best and not self.fits_now(token)}
        self.kept_out_since_s = {name: self.kept_out_since_s.get(name, now) for name in kept_out}
        means = ctx.pace.means_s
        short = all(means.get(claim.token.lane, 0.0) < SHORT_TASK_S for claim in ctx.book if claim.running)
        ctx.reserved = None
        if short and not ctx.capacity.idle:
            for name, token in kept_out.items():
                patience_s = PATIENCE_S if token.priority == best else 0.0
                if now - self.kept_out_since_s[name] >= patience_s:
                    ctx.reserved = token.lane
        return ctx.reserved is not None

    def adopt_late(self, tokens: list[Token]) -> None:
        """A claim of ours that we do not know came from a rename whose reply was lost: it is ours."""
        ctx = self.ctx
        for token in tokens:
            if token.form == CLAIM and token.life == ctx.life.id and ctx.book.find(token.name) is None:
                batch = ctx.spool.batch(token.batch)
                if batch is not None:
                    self._admit(token, batch)

    def _take(self, token: Token) -> int:
        taken = take(self.ctx.life, token)
        if taken is None:
            return 0
        claim = self._admit(*taken)
        if claim is None:
            return 0
        keep = self.ctx.pace.tasks_worth(token.lane, CLAIM_WORK_S, self._room_for(claim))
        if claim.unstarted() > keep:
            self.shed(claim, keep)
        return 1

    def _room_for(self, claim: Claim) -> int:
        """Slots that count for a claim: of short tasks all, since they come free soon; of others those free now.

        What is kept beyond them would wait here for hours while another worker has nothing.
        """
        capacity, width = self.ctx.capacity, self.ctx.capacity.width(claim.request)
        mean_s = self.ctx.pace.means_s.get(claim.token.lane)
        if mean_s is not None and mean_s < CLAIM_WORK_S:
            return width
        spoken_for = sum(other.request.cpus * len(other.fresh) for other in self.ctx.book.claims if other is not claim)
        free_cpus = capacity.cpus - capacity.used_cpus - spoken_for
        return max(1, min(width, free_cpus // max(1, claim.request.cpus)))

    def _admit(self, token: Token, batch: Batch) -> Claim | None:
        """Enter a claim in the book: left out are tasks that ended, were cancelled, or are not due."""
        ctx = self.ctx
        ctx.lanes[token.lane] = batch.request
        claim = Claim(token, batch, batch.request, RangeSet([(token.start, token.stop)]))
        ctx.book.claims.append(claim)
        if token.attempt > 1 or token.gen > 0 or batch.held:
            self._examine(claim)
        elif ctx.spool.is_folded(token.batch):
            claim.fresh = RangeSet()
        ctx.read_requests()
        self.drop_cancelled(claim)
        if claim.done:
            self.release(claim)
            return None
        if batch.held and self._return_undue(claim):
            return None
        return claim

    def _examine(self, claim: Claim) -> None:
        """Read what is known of tasks that ran before: the ended are skipped, the lost are treated with care."""
        ctx, token = self.ctx, claim.token
        fold = ctx.read_everything()
        claim.fresh = remaining(ctx.spool, claim.batch, token, fold)
        for number, first, last, position in claim.batch.origins(token.start, token.stop):
            for batch, index in list(fold.irregular_within(number, first, last)):
                if index + position - first in claim.fresh:
                    self._examine_task(claim, index + position - first, batch, index)

    def _examine_task(self, claim: Claim, place: int, batch: int, index: int) -> None:
        ctx = self.ctx
        verdict = ctx.reader.fold.verdict(batch, index)
        if verdict.gen != claim.token.gen:
            return
        claim.tallies[place] = Tally(
            failures=verdict.failures, timeouts=verdict.timeouts, memory=verdict.memory, invalid=verdict.invalid,
            losses=verdict.losses, resumed=verdict.resumed,
        )  # fmt: skip
        if verdict.losses or verdict.resumed:
            claim.careful.add(place)
        if verdict.losses < ctx.options.crash_limit:
            return
        if not verdict.lost_alone:
            claim.alone.add(place)
            return
        ctx.sink.record(
            {
                "t": "receipt", "b": batch, "i": index, "g": claim.token.gen, "a": claim.attempt_of(place),
                "o": Outcome.LOST.value, "final": TaskState.QUARANTINED.value, "counted": False,
                "end": round(ctx.clock.utc(), 3),
                "error": f"its worker died {verdict.losses} times while it ran, at last with nothing else running",
            }
        )  # fmt: skip
        claim.fresh.remove(place, place + 1)

    def _return_undue(self, claim: Claim) -> bool:
        """A token of tasks that wait for others may have come back by a reaper before they were due."""
        found = judge_token(self.upstream, claim.batch, claim.token, self.ctx.reader.fold)
        if not found[Due.PENDING] and not found[Due.BLOCKED]:
            return False
        pieces = [
            Piece(low, high, claim.token.attempt, held=due is not Due.DUE)
            for due, ranges in found.items()
            for start, stop in ranges
            for low, high in claim.fresh.within(start, stop)
        ]
        split(self.ctx.life, claim.token, None, pieces)
        self.ctx.book.claims.remove(claim)
        return True

    def release_held(self, tokens: list[Token]) -> int:
        """Make waiting what has become due; returns how many tasks."""
        if not any(token.form == HELD for token in tokens):
            return 0
        fold = self.ctx.read_everything()
        return release_due(self.ctx.life, tokens, self.upstream, fold)

    def drop_cancelled(self, claim: Claim) -> None:
        """Cancelled tasks that were not started end here; so does the cover of an older generation."""
        asked, token = self.ctx.asked, claim.token
        for number, first, last, position in list(claim.batch.origins(token.start, token.stop)):
            shift = position - first
            cancelled = asked.cancelled.get((number, token.gen))
            for low, high in list(cancelled.within(first, last)) if cancelled is not None else ():
                self._cancel_unstarted(claim, number, shift, low, high)
            for (batch, index), gen in list(asked.generations.items()):
                if batch == number and first <= index < last and gen > token.gen:
                    claim.fresh.remove(index + shift, index + shift + 1)

    def _cancel_unstarted(self, claim: Claim, number: int, shift: int, low: int, high: int) -> None:
        for start, stop in list(claim.fresh.within(low + shift, high + shift)):
            self._record_cancelled(claim, number, start - shift, stop - shift)
            claim.fresh.remove(start, stop)
        for _, position, _ in list(claim.later):
            if low + shift <= position < high + shift:
                self._record_cancelled(claim, number, position - shift, position - shift + 1)
                claim.later = [entry for entry in claim.later if entry[1] != position]

    def _record_cancelled(self, claim: Claim, number: int, start: int, stop: int) -> None:
        body = {
            "t": "receipt", "b": number, "i": start, "g": claim.token.gen, "a": claim.token.attempt,
            "o": Outcome.CANCELLED.value, "final": TaskState.CANCELLED.value,
            "end": round(self.ctx.clock.utc(), 3),
        }  # fmt: skip
        self.ctx.sink.record(body if stop - start == 1 else {**body, "k": stop - start})

    def release(self, claim: Claim) -> None:
        """Let go of a claim whose tasks have all ended; not while records wait for the storage."""
        self.ctx.sink.flush_later()
        if self.ctx.sink.clear:
            release(self.ctx.life, claim.token)
            self.ctx.book.claims.remove(claim)

    def shed(self, claim: Claim, keep: int) -> bool:
        """Give back what was not started beyond `keep` tasks; False when nothing could go."""
        leaving = shed(claim, keep)
        self.ctx.sink.flush_later()
        if leaving is None:
            return False
        (start, stop), pieces = leaving
        try:
            kept = split(self.ctx.life, claim.token, (start, stop), pieces)
        except (StorageFull, OSError) as error:
            if isinstance(error, OSError) and not is_storage_full(error):
                raise
            self.ctx.sink.storage_full = True  # the claim is whole; nothing was lost
            return False
        if kept is not None:
            claim.token = kept
            claim.fresh.remove(stop, max(piece.stop for piece in pieces))
        return True

    def let_go(self, claim: Claim) -> None:
        """Return everything under a claim of which nothing runs."""
        self.ctx.sink.flush_later()
        pieces = claim.leaving()
        whole = len(pieces) == 1 and (pieces[0].start, pieces[0].stop) == (claim.token.start, claim.token.stop)
        if whole and pieces[0].attempt == claim.token.attempt:
            return_whole(self.ctx.life, claim.token)
        elif pieces:
            split(self.ctx.life, claim.token, None, pieces)
        else:
            release(self.ctx.life, claim.token)
        self.ctx.book.claims.remove(claim)

    def give_back_unstarted(self) -> None:
        """Untouched work goes back at once; what runs keeps its cover until it has ended."""
        for claim in list(self.ctx.book):
            if claim.running:
                self.shed(claim, 0)
            elif not claim.done and self.ctx.sink.clear:
                self.let_go(claim)

    def share(self) -> None:
        """While no token waits, give back part of what is not started: somebody may be idle."""
        width, means = self.ctx.capacity.width, self.ctx.pace.means_s
        spare = [claim for claim in self.ctx.book if claim.unstarted() > 2 * width(claim.request)]
        if not spare:
            return
        claim = max(spare, key=lambda claim: claim.unstarted() * means.get(claim.token.lane, 1.0))
        work_s = claim.unstarted() * means.get(claim.token.lane, 1.0) / width(claim.request)
        if work_s >= 1.0 and not any(token.form == WAITING for token in self.ctx.spool.tokens().tokens):
            self.shed(claim, claim.unstarted() // 2)

    def revive(self, claim: Claim, position: int, attempt: int) -> None:
        """Cover a task anew whose failure was taken back: in its claim while that is ours, else by a new token."""
        if claim in self.ctx.book.claims:
            claim.attempts[position] = attempt
            claim.fresh.add(position, position + 1)
            return
        life, layout = self.ctx.life, self.ctx.spool.layout
        draft = claim.token.part(position, position + 1, attempt).owned(DRAFT, life.id)
        life.files.create(layout.token(draft.name))
        move(life.files, layout.token(draft.name), layout.token(draft.waiting().name))
