"""Fills free slots from the claims in hand, best priority first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fleetcraft.core.records import scan_json
from fleetcraft.spool.permits import return_permits, take_permits
from fleetcraft.workers.book import Claim
from fleetcraft.workers.calls import Calls
from fleetcraft.workers.context import Context
from fleetcraft.workers.runner import Runner
from fleetcraft.workers.verdict import grown_vram

_NODE_PAUSE_S = 1.0


@dataclass(slots=True)
class Starter:
    """Starts tasks while slots, permits and the node allow."""

    ctx: Context
    runner: Runner
    calls: Calls
    started: int = 0
    hold_until_s: float = 0.0  # the node could not start a process: no new one until then

    def fill(self, now_s: float) -> None:
        """Start everything that can start now."""
        while now_s >= self.hold_until_s:
            for claim in self.ctx.book.by_priority():
                if self._start_from(claim, now_s):
                    break
            else:
                break
        if self.runner.spare_permits or self.calls.spare_permits:
            self.return_permits()

    @property
    def enough(self) -> bool:
        """True when as many tasks were started as the options allow."""
        most = self.ctx.options.max_tasks
        return most is not None and self.started >= most

    def _start_from(self, claim: Claim, now_s: float) -> bool:
        if self.enough or self.ctx.reserved not in (None, claim.token.lane):
            return False
        if not self.calls.hosts and not self.ctx.capacity.has_cpus(claim.request):
            return False
        due = claim.next_due(now_s)
        if due is not None:
            position, attempt = due
        else:
            first = claim.next_fresh()
            if first is None:
                return False
            position, attempt = first, claim.attempt_of(first)
        task = claim.batch.complete(position, scan_json(claim.line(position).decode(), 0)[0])
        if claim.alone and position in claim.alone:
            if not self._nothing_else_runs(task):
                return False
        elif self._one_runs_alone():
            return False
        if "call" in task:
            return self._start_call(claim, position, attempt, task, single=due is not None)
        return self._start_command(claim, position, attempt, task, now_s)

    def _start_command(self, claim: Claim, position: int, attempt: int, task: dict[str, Any], now_s: float) -> bool:
        request = claim.request
        vram = grown_vram(request.vram_bytes, claim.tallies[position]) if position in claim.tallies else None
        slot = self.ctx.capacity.take(request, self.ctx.requests.limits, vram)
        if slot is None:
            self.calls.evict()  # a resident may sit idle on the slot that this task needs
            return False
        permits = self._permits(claim)
        if permits is None:
            self.ctx.capacity.give_back(slot)
            return False
        self.started += 1
        try:
            begun = self.runner.start(claim, position, attempt, task, slot, permits)
        except OSError:
            if claim.running.get(position) != attempt:  # nothing was begun: the slot is free again
                self.ctx.capacity.give_back(slot)
                return_permits(self.ctx.spool, permits)
            raise
        if not begun:
            self.hold_until_s = now_s + _NODE_PAUSE_S
            return False
        return True

    def _start_call(self, claim: Claim, position: int, attempt: int, task: dict[str, Any], *, single: bool) -> bool:
        key = self.calls.key_of(task)
        host = self.calls.idle_host(key)
        if host is None:
            if key in self.calls.broken:
                self.started += 1
                self.calls.receipts.fail_unloaded(claim, position, attempt, self.calls.broken.pop(key))
                return True
            return self._load(claim, task, key)
        most = 1 if single else self.calls.chunk_size(claim.token.lane)
        if self.ctx.options.max_tasks is not None:
            most = max(1, min(most, self.ctx.options.max_tasks - self.started))
        permits = self._permits(claim)
        if permits is None:
            return False
        self.started += self.calls.send(host, claim, position, attempt, task, most)
        if host.chunk is not None:
            host.chunk.permits = permits
        return True

    def _load(self, claim: Claim, task: dict[str, Any], key: str) -> bool:
        """Start one more resident, while there are more calls than residents on their way."""
        if claim.unstarted() + len(claim.later) <= self.calls.loading(key):
            return False
        slot = self.ctx.capacity.take(claim.request, self.ctx.requests.limits)
        if slot is None:
            if not self.calls.loading(key):
                self.calls.evict()
            return False
        try:
            self.calls.load(task, slot, key)
        except OSError:
            self.ctx.capacity.give_back(slot)
            self.hold_until_s = self.ctx.clock.mono() + _NODE_PAUSE_S
            return False
        return True

    def _nothing_else_runs(self, task: dict[str, Any]) -> bool:
        """True when the task would have the worker to itself; the resident that it needs is no company."""
        own = self.calls.key_of(task) if "call" in task else None
        return self.calls.keep_only(own) and not self.runner.busy

    def _one_runs_alone(self) -> bool:
        for claim in self.ctx.book.claims:  # noqa: SIM110  a generator costs more than the rest, before every start
            if claim.alone and not claim.alone.isdisjoint(claim.running):
                return True
        return False

    def _permits(self, claim: Claim) -> list[str] | None:
        """Permits for named resources: those of the task before are handed on, so a run of tasks costs one rename."""
        uses = claim.request.uses
        if not uses:
            return []
        for spare in (self.runner.spare_permits, self.calls.spare_permits):
            for entry in spare:
                if entry[0] == uses:
                    spare.remove(entry)
                    return entry[1]
        return take_permits(self.ctx.spool, self.ctx.life.id, uses, self.ctx.requests.limits)

    def return_permits(self) -> None:
        """Give back permits that no task took over."""
        for spare in (self.runner.spare_permits, self.calls.spare_permits):
            for _, permits in spare:
                return_permits(self.ctx.spool, permits)
            spare.clear()
