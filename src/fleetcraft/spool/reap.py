"""Taking over what a dead life left: any number of reapers, dying anywhere, finish it once.

`.live` to `.reaping`: its claims become fenced (`!W`), its drafts too unless they are void. `.reaping` to
`.fenced`: no name of the dead life can come back. Then its journal is read, losses are written down, and every
fenced token becomes a waiting one with a higher attempt. A reaper owns no names, so a dead reaper needs none.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from fleetcraft.core.names import CLAIM, DRAFT, FENCED, Token
from fleetcraft.core.outcome import Start
from fleetcraft.core.ranges import RangeSet
from fleetcraft.core.states import LossCause
from fleetcraft.spool import host
from fleetcraft.spool.cover import highest_attempt, remaining
from fleetcraft.spool.evidence import Evidence, Liveness, ReapPolicy, Watch, judge
from fleetcraft.spool.host import Identity, Process
from fleetcraft.spool.life import (
    DEAD,
    FENCED_STATE,
    HEARTBEAT,
    JOURNAL,
    LIVE,
    REAPING,
    Life,
    find_state,
    read_identity,
    read_json,
    state_path,
)
from fleetcraft.spool.maintenance import close_folds, moved_into_fold
from fleetcraft.spool.permits import give_back_permits
from fleetcraft.spool.reading import SpoolFold
from fleetcraft.spool.tokens import Moved, move
from fleetcraft.store.files import GONE
from fleetcraft.store.journal import read_lines

_LISTINGS = 50
# An operation that takes more than this share of the lease (one in four) is slow.
_SLOW_SHARE = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What one pass found about one life."""

    life: str
    state: str
    evidence: Evidence | None
    returned: int = 0  # tokens made waiting again
    lost: int = 0  # attempts written down as lost
    ended_children: tuple[int, ...] = ()


@dataclass(slots=True)
class _Dying:
    """Children of a dead life that are being ended."""

    since_s: float
    killed: bool = False
    pids: tuple[int, ...] = ()


class Judge(Protocol):
    """How a life is judged: see `evidence.judge`."""

    def __call__(
        self, identity: Identity, watch: Watch, now_s: float, policy: ReapPolicy, *, degraded: bool = False
    ) -> Evidence: ...


@dataclass(slots=True)
class Reaper:
    """Looks at every other life once per pass; keeps what it saw between passes."""

    life: Life
    reader: SpoolFold  # durable: coverage is dropped only for what no crash can take back
    policy: ReapPolicy = field(default_factory=ReapPolicy)
    degraded: bool = False
    judge: Judge = judge
    done: set[str] = field(default_factory=set)
    watches: dict[str, Watch] = field(default_factory=dict)
    dying: dict[str, _Dying] = field(default_factory=dict)
    proved_s: dict[str, float] = field(default_factory=dict)  # since when a dead life has no children any more

    def step(self) -> list[Report]:
        """One pass over all lives; cheap when all are alive or done. Raises OSError."""
        reports: list[Report] = []
        began = self.life.spool.clock.mono()
        self._mind_delay(self.life.beat_took_s)
        self.done.update(name for name, seen in self.reader.lives.items() if seen.complete and seen.state == DEAD)
        for name in self.life.spool.lives():
            if name != self.life.id and name not in self.done:
                report = self._look(name)
                if report is not None:
                    reports.append(report)
        reports.extend(self._take_late())
        self._mind_delay(self.life.spool.clock.mono() - began)
        return reports

    @property
    def busy(self) -> bool:
        """True while a dead life waits for the end of its children, or for listings to be fresh."""
        return bool(self.dying or self.proved_s)

    @property
    def awaits_word(self) -> bool:
        """True while the scheduler said once that a silent life's job ended, and must say it again."""
        return any(
            watch.job_ended_since_s is not None and name not in self.done for name, watch in self.watches.items()
        )

    def _look(self, name: str) -> Report | None:
        files, folder = self.life.files, self.life.spool.layout.life(name)
        state = find_state(files, folder)
        if state == DEAD:
            self.done.add(name)
            return None
        identity = read_identity(files, folder)
        if state is None or identity is None:
            return None
        if state != LIVE:
            # Somebody began with evidence; going on needs none, only the order of steps.
            return self._take(name, identity, state, None)
        evidence = self._weigh(name, identity, folder)
        if evidence.liveness is not Liveness.DEAD:
            self.proved_s.pop(name, None)
            return Report(life=name, state=state, evidence=evidence)
        left = self._end_children(name, identity)
        if left:
            return Report(life=name, state=state, evidence=evidence, ended_children=left)
        # What it did last may be missing from a listing that this host keeps: wait until none is that old.
        now = self.life.spool.clock.mono()
        if now - self.proved_s.setdefault(name, now) < self.policy.cache_limit_s:
            return Report(life=name, state=state, evidence=evidence)
        del self.proved_s[name]
        pids = self.dying.pop(name).pids if name in self.dying else ()
        self.life.note("reap", life=name, reason=evidence.reason, facts=dict(evidence.facts))
        if move(files, state_path(folder, LIVE), state_path(folder, REAPING)) is Moved.YES:
            found: str | None = REAPING
        else:
            found = find_state(files, folder)  # another reaper may be further: a fenced life is not fenced again
        if found is None or found == LIVE:
            return None
        report = self._take(name, identity, found, evidence)
        return replace(report, ended_children=pids)

    def _weigh(self, name: str, identity: Identity, folder: str) -> Evidence:
        began = self.life.spool.clock.mono()
        beat = read_json(self.life.files, os.path.join(folder, HEARTBEAT)) or {}
        now = self.life.spool.clock.mono()
        self._mind_delay(now - began)
        sequence = int(beat.get("sequence", 0))
        watch = self.watches.get(name)
        if watch is None or watch.sequence != sequence:
            watch = self.watches[name] = Watch(sequence, now)
        return self.judge(identity, watch, now, self.policy, degraded=self.degraded)

    def _mind_delay(self, took_s: float) -> None:
        """While our own storage is slow, a heartbeat that stands still proves nothing: every watch begins anew."""
        if self.policy.lease_s is not None and took_s * _SLOW_SHARE > self.policy.lease_s:
            now = self.life.spool.clock.mono()
            for watch in self.watches.values():
                watch.since_s = now

    def _end_children(self, name: str, identity: Identity) -> tuple[int, ...]:
        """End the processes that the dead life left on this host; returns those still there."""
        if identity.boot_id != host.boot_id() or identity.host != host.host_name():
            return ()
        ours = _self_and_ancestors()
        found = [seen for seen in host.processes_marked(host.LIFE_VARIABLE, name) if seen.pid not in ours]
        if not found:
            return ()
        now = self.life.spool.clock.mono()
        dying = self.dying.setdefault(name, _Dying(now))
        dying.pids = tuple(sorted({*dying.pids, *(seen.pid for seen in found)}))
        late = now - dying.since_s >= self.policy.kill_grace_s
        for seen in found:
            _signal(seen, signal.SIGKILL if late else signal.SIGTERM)
        return tuple(seen.pid for seen in found)

    def _take(self, name: str, identity: Identity, state: str, evidence: Evidence | None) -> Report:
        files, folder = self.life.files, self.life.spool.layout.life(name)
        returned = lost = 0
        if state == REAPING and self._fence(name):
            # Before any claim or permit goes back: an unfinished fold of this life must not be committed later.
            close_folds(self.life.spool, name)
            give_back_permits(self.life.spool, name)
            moved = move(files, state_path(folder, REAPING), state_path(folder, FENCED_STATE))
            # Nothing that is fenced may go before the state says so; when the reply does not, the look-up does.
            state = FENCED_STATE if moved is Moved.YES else find_state(files, folder) or REAPING
        if state == FENCED_STATE:
            cause = evidence.cause if evidence is not None else LossCause.WORKER_GONE
            self._fence_late(name)
            returned, lost = self._settle(name, identity, cause)
            if self._bury(name):
                state = DEAD
        if state == DEAD:
            self.done.add(name)
        return Report(life=name, state=state, evidence=evidence, returned=returned, lost=lost)

    def _take_late(self) -> list[Report]:
        """Tokens that a life claimed after its death: it was paused between its last look and the rename.

        Nobody else looks after them, and the life itself starts nothing: its state is not `.live`.
        """
        tokens = self.life.spool.tokens().tokens
        owners = {token.life for token in tokens if token.form in (CLAIM, FENCED)}
        reports: list[Report] = []
        for name in sorted(owners & self.done):
            identity = read_identity(self.life.files, self.life.spool.layout.life(name))
            if identity is not None:
                self._fence_late(name)
                returned, lost = self._settle(name, identity, LossCause.WORKER_GONE, late=True)
                reports.append(Report(life=name, state=DEAD, evidence=None, returned=returned, lost=lost))
        strays = [token for token in tokens if token.form == DRAFT and token.life in self.done]
        if strays:
            self._remove_strays(strays)
        return reports

    def _remove_strays(self, strays: list[Token]) -> None:
        """Drafts of a life that woke after its death and died before it saw that: they offer nothing.

        Removed only where everything under them has ended or is covered by another name. A listing that hid a draft
        from the reaper may have hidden a committed one, and then it is all the cover that its tasks have.
        """
        spool = self.life.spool
        spool.refresh()
        self.reader.refresh()
        others = [token for token in spool.tokens().tokens if token.form != DRAFT]
        for stray in strays:
            batch = None if spool.is_folded(stray.batch) else spool.batch(stray.batch)
            if batch is None:
                continue  # check looks at those
            left = remaining(spool, batch, stray, self.reader.fold)
            for other in others:
                if (other.batch, other.gen) == (stray.batch, stray.gen):
                    left.remove(other.start, other.stop)
            if not left:
                self._unlink(stray)

    def _fence_late(self, name: str) -> None:
        for claim in self._owned(name, CLAIM):
            self._rename(claim, claim.owned(FENCED, name))

    def _owned(self, name: str, *forms: str) -> list[Token]:
        return [token for token in self.life.spool.tokens().tokens if token.life == name and token.form in forms]

    def _rename(self, source: Token, target: Token) -> None:
        layout = self.life.spool.layout
        move(self.life.files, layout.token(source.name), layout.token(target.name))

    def _unlink(self, token: Token) -> None:
        try:
            self.life.files.unlink(self.life.spool.layout.token(token.name))
        except OSError as error:
            if error.errno not in GONE:
                raise

    def _fence(self, name: str) -> bool:
        """Claims first, then drafts: void ones go, the rest is fenced. True when no name of the life is left.

        Two listings without a claim go before the first look at a draft, and what makes it void is taken from
        that same listing: while another reaper renames a claim, one listing may show neither of its names.
        """
        quiet = 0
        for _ in range(_LISTINGS):
            mine = self._owned(name, CLAIM, DRAFT, FENCED)
            claims = [token for token in mine if token.form == CLAIM]
            drafts = [token for token in mine if token.form == DRAFT]
            fenced = [token for token in mine if token.form == FENCED]
            for claim in claims:
                self._rename(claim, claim.owned(FENCED, name))
            quiet = 0 if claims else quiet + 1
            if quiet < 2:
                continue
            if not drafts:
                self.life.files.sync_folder(self.life.spool.layout.tokens)
                return True
            if find_state(self.life.files, self.life.spool.layout.life(name)) != REAPING:
                # Another reaper went on. What is still a draft was made by a life that woke after its death; its tasks
                # were offered again from the claim, and the burial removes it.
                return False
            for draft in drafts:
                if any(_makes_void(wide, draft) for wide in fenced):
                    self._unlink(draft)
                else:
                    self._rename(draft, draft.owned(FENCED, name))
        return False

    def _settle(self, name: str, identity: Identity, cause: LossCause, *, late: bool = False) -> tuple[int, int]:
        """Write down what was lost, then offer what is unfinished; the records are durable before any rename."""
        spool = self.life.spool
        spool.refresh()
        self.reader.refresh()
        fenced = self._owned(name, FENCED)
        if identity.boot_id != host.boot_id():
            self._adopt(name, fenced)
        lost = self._write_lost(name, cause)
        self.life.journal.sync()
        returned = 0
        for token in fenced:
            place = token
            if spool.is_folded(token.batch):
                # The batch that folds it offers its tasks, but not what a person opened again.
                moved = moved_into_fold(spool, token) if token.gen else None
                if moved is None:
                    self._unlink(token)
                    continue
                place = moved
            batch = spool.batch(place.batch)
            if batch is None:
                continue  # not visible yet; the token stays fenced, and the next pass looks again
            left = remaining(spool, batch, place, self.reader.fold)
            if late:
                self._leave_to_newer(place, left)
            if not left:
                self._unlink(token)
                continue
            ranges = list(left)
            attempt = 1 + highest_attempt(batch, place, self.reader.fold)
            self._rename(token, place.part(ranges[0][0], ranges[-1][1], attempt).waiting())
            returned += 1
        spool.files.sync_folder(spool.layout.tokens)
        return returned, lost

    def _leave_to_newer(self, token: Token, left: RangeSet) -> None:
        """A repair may have offered these tasks anew, with a higher attempt, before the late claim was seen."""
        for other in self.life.spool.tokens().tokens:
            if (other.batch, other.gen) == (token.batch, token.gen) and other.attempt > token.attempt:
                left.remove(other.start, other.stop)

    def _write_lost(self, name: str, cause: LossCause) -> int:
        count = 0
        for (life, batch, gen, attempt, how), ranges in list(self.reader.fold.open.items()):
            if life != name:
                continue
            for start, stop in list(ranges):
                body: dict[str, Any] = {
                    "t": "lost", "b": batch, "i": start, "g": gen, "a": attempt, "life": name, "cause": cause.value,
                    "counted": how != Start.GROUP and not cause.explained, "alone": how == Start.ALONE,
                }  # fmt: skip
                if stop - start > 1:
                    body["k"] = stop - start
                self.reader.fold.add(self.life.id, self.life.record(body))
                count += stop - start
        return count

    def _adopt(self, name: str, fenced: Iterable[Token]) -> None:
        """Copy receipts of a life of another machine: whether its disk kept them cannot be known from here."""
        spool = self.life.spool
        wanted: dict[int, RangeSet] = {}
        for token in fenced:
            batch = spool.batch(token.batch)
            for number, first, last, _ in batch.origins(token.start, token.stop) if batch else ():
                wanted.setdefault(number, RangeSet()).add(first, last)
        path = os.path.join(spool.layout.life(name), JOURNAL)
        for line in read_lines(spool.files, path):
            record = line.record
            if record is None:
                continue
            if record.get("t") == "receipt" and any(
                wanted.get(record["b"], RangeSet()).within(record["i"], record["i"] + record.get("k", 1))
            ):
                copy = self.life.record({"t": "adopted", "life": name, "rec": record})
                self.reader.fold.add(self.life.id, copy)
            elif record.get("t") == "started":
                self.reader.fold.add(name, record)

    def _bury(self, name: str) -> bool:
        files, folder = self.life.files, self.life.spool.layout.life(name)
        if self._owned(name, CLAIM, FENCED) or self._owned(name, CLAIM, FENCED):
            return False
        if move(files, state_path(folder, FENCED_STATE), state_path(folder, DEAD)) is Moved.UNKNOWN:
            return False
        for stray in self._owned(name, DRAFT):
            self._unlink(stray)  # made after the claim that it came from was fenced: never committed
        return True


def _makes_void(wide: Token, draft: Token) -> bool:
    return wide.covers(draft) and (wide.count > draft.count or wide.attempt < draft.attempt)


def _self_and_ancestors() -> set[int]:
    pids: set[int] = set()
    pid = os.getpid()
    while pid > 1 and pid not in pids:
        pids.add(pid)
        seen = host.process(pid)
        if seen is None:
            break
        pid = seen.parent
    return pids


def _signal(seen: Process, number: signal.Signals) -> None:
    """Signal exactly the process that was seen: a pid whose start time differs is somebody else."""
    now = host.process(seen.pid)
    if now is None or now.start_ticks != seen.start_ticks:
        return
    try:
        os.kill(seen.pid, number)
    except ProcessLookupError:
        return
