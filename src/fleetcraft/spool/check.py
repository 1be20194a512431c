"""Check: is every unfinished task offered exactly once? And repair of what is not.

Ledgers and receipts are the truth, tokens are only scheduling. Nothing is decided on one listing: a task counts as
uncovered, and two covers as two, only when three listings in a row say so. Repair works under a permit, so two
repairs never offer one task twice, and it looks whether its life is still live between making a draft and offering it.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fleetcraft.core.clock import Clock, stamp_utc
from fleetcraft.core.errors import EXIT_DONE, EXIT_FAILED, LifeEnded
from fleetcraft.core.names import DRAFT, HELD, WAITING, Token
from fleetcraft.core.ranges import RangeSet
from fleetcraft.spool.checkfiles import Finding, check_ledgers, check_lives, check_requests
from fleetcraft.spool.coverage import Coverage, gen_stretches, survey
from fleetcraft.spool.evidence import ReapPolicy
from fleetcraft.spool.leftovers import LISTINGS, check_batches_folder, check_permits, check_segments
from fleetcraft.spool.life import Life
from fleetcraft.spool.maintenance import (
    CHECKING,
    finish_drafts,
    folding_life,
    remove,
    return_permit,
    settle_folded,
    take_permit,
)
from fleetcraft.spool.reading import SpoolFold
from fleetcraft.spool.spool import Spool
from fleetcraft.spool.tokens import move


@dataclass(slots=True)
class CheckReport:
    """What check found; `problems` are the findings that are still there."""

    spool: str
    at_utc: float
    repair: bool
    batches: int = 0
    tasks: int = 0
    unfinished: int = 0
    tokens: int = 0
    lives: int = 0
    foreign: int = 0
    findings: list[Finding] = field(default_factory=list)

    @property
    def problems(self) -> list[Finding]:
        """Serious findings that were not repaired."""
        return [finding for finding in self.findings if finding.serious and not finding.repaired]

    @property
    def exit_code(self) -> int:
        """0 when nothing serious is left."""
        return EXIT_FAILED if self.problems else EXIT_DONE

    def count(self, kind: str) -> int:
        """How many findings of one kind."""
        return sum(finding.kind == kind for finding in self.findings)

    def as_json(self) -> dict[str, Any]:
        """For `spool check --json`."""
        plain = {name: getattr(self, name) for name in self.__slots__ if name != "findings"}
        return {
            **plain,
            "ok": not self.problems,
            "problems": len(self.problems),
            "findings": [finding.as_json() for finding in self.findings],
        }


def check(
    life: Life | None, spool: Spool, *, repair: bool = False, clock: Clock | None = None,
    policy: ReapPolicy | None = None, pause: Callable[[float], None] = time.sleep,
) -> CheckReport:  # fmt: skip
    """Look at the whole spool, and with `repair` put right what can be put right.

    A repair owns something for a moment: it does so as `life`, or as a maintenance life of its own. `policy` says how
    long a listing may be stale here; the listings are spread over twice that time. Raises OSError, LifeEnded.
    """
    clock = clock or spool.clock
    checker = _Checker(
        spool=spool, limit_s=(policy or ReapPolicy()).cache_limit_s, pause=pause,
        report=CheckReport(spool.layout.root, stamp_utc(clock.utc()), repair),
    )  # fmt: skip
    if not repair:
        checker.run(None)
        return checker.report
    owner = life or Life.begin(spool, kind="maintenance")
    try:
        if take_permit(owner, CHECKING):
            try:
                checker.run(owner)
            finally:
                return_permit(owner, CHECKING)
        else:
            checker.report.repair = False
            checker.note("busy", spool.layout.uses, "Another check repairs now, or one that died was not reaped yet.")
            checker.run(None)
    except LifeEnded:
        if life is None:
            owner.journal.close()
        raise
    if life is None:
        owner.close()
    return checker.report


@dataclass(slots=True, kw_only=True)
class _Checker:
    spool: Spool
    limit_s: float
    pause: Callable[[float], None]
    report: CheckReport
    life: Life | None = None
    reader: SpoolFold = field(init=False)

    def __post_init__(self) -> None:
        # Shortcuts are not trusted here: everything is read from the journals and segments themselves.
        self.reader = SpoolFold(self.spool, shortcuts=False)

    def note(
        self, kind: str, place: str, detail: str, *, serious: bool = False, repaired: bool = False, **facts: Any
    ) -> None:
        """Add a finding."""
        self.report.findings.append(
            Finding(kind=kind, place=place, detail=detail, serious=serious, repaired=repaired, facts=facts)
        )

    def run(self, life: Life | None) -> None:
        """Everything; repairs only where a life is given."""
        self.life = life
        spool, add = self.spool, self.report.findings.append
        spool.refresh()
        if not check_segments(spool, add, repair=life is not None):
            return  # what ended is not known, so nothing else can be judged
        self.reader.refresh()
        check_ledgers(spool, add, repair=life is not None)
        check_lives(spool, add, repair=life is not None)
        check_requests(spool, add)
        check_permits(spool, self.reader.requests.limits, add, repair=life is not None, again=self._again)
        self._finish_drafts()
        first, uncovered, doubles = self._look()
        check_batches_folder(spool, add, repair=life is not None)
        self._count(first)
        for (one, other), count in sorted(doubles.items()):
            self.note("double_cover", one, f"{count} tasks are offered by {other} too.", serious=True, other=other)
        self._remove_void(first)
        self._open_drafts(first)
        for batch, ranges in sorted(uncovered.items()):
            self._uncovered(batch, ranges, first)

    def _again(self) -> None:
        """Before a further listing: what a directory cache hides now shows then."""
        self.pause(self.limit_s)

    def _finish_drafts(self) -> None:
        """Before anything is called uncovered: what was committed is offered by its own last step."""
        spool = self.spool
        tokens = spool.tokens().tokens
        spool.refresh()
        self.reader.requests.refresh(force=True)
        if self.life is not None:
            finished = finish_drafts(spool, tokens, self.reader.requests.owners)
            if finished:
                detail = f"{finished} committed publications or retries had not been offered."
                self.note("draft_committed", spool.layout.tokens, detail, repaired=True)
            moved, removed = settle_folded(spool, tokens)
            if moved or removed:
                detail = f"{moved} tokens of folded batches were moved along, {removed} old ones removed."
                self.note("folded_token", spool.layout.tokens, detail, repaired=True)

    def _look(self) -> tuple[Coverage, dict[int, RangeSet], dict[tuple[str, str], int]]:
        """The listings: what every one of them says is uncovered or covered twice."""
        first: Coverage | None = None
        uncovered: dict[int, RangeSet] = {}
        doubles: dict[tuple[str, str], int] = {}
        for turn in range(LISTINGS):
            if turn:
                if not uncovered and not doubles:
                    break
                self._again()
            seen = survey(self.spool, self.reader)
            if first is None:
                first, uncovered, doubles = seen, seen.uncovered, seen.doubles
                continue
            uncovered = _common(uncovered, seen.uncovered)
            doubles = {pair: count for pair, count in seen.doubles.items() if pair in doubles}
            first.highest.update({key: max(number, first.highest.get(key, 0)) for key, number in seen.highest.items()})
            first.moving = first.moving or seen.moving
        assert first is not None  # noqa: S101  the loop runs
        return first, uncovered, doubles

    def _count(self, seen: Coverage) -> None:
        report, spool = self.report, self.spool
        report.batches, report.tasks = len(spool.batches()), spool.total()
        report.unfinished = seen.unfinished
        report.tokens, report.foreign = seen.tokens, seen.foreign
        report.lives = len(self.reader.lives)
        if seen.foreign:
            self.note(
                "foreign", spool.layout.tokens, f"{seen.foreign} names that are not tokens; they are never opened."
            )
        for name in seen.strangers:
            self.note("token_stranger", name, "No batch has these tasks.", serious=True)

    def _remove_void(self, seen: Coverage) -> None:
        for token in seen.void:
            repaired = False
            if self.life is not None and (not token.life or seen.is_gone(token.life)):
                repaired = remove(self.spool, self.spool.layout.token(token.name))
            self.note("void", token.name, seen.void[token], repaired=repaired)

    def _open_drafts(self, seen: Coverage) -> None:
        """Drafts of what never committed: removed only where it provably never will."""
        for token in seen.pending:
            dead = self._never_commits(token, seen)
            repaired = dead and self.life is not None and remove(self.spool, self.spool.layout.token(token.name))
            word = "never will commit" if dead else "has not committed"
            detail = f"A draft of {token.life}, which {word}; it offers nothing."
            self.note("draft_open", token.name, detail, repaired=repaired)

    def _never_commits(self, token: Token, seen: Coverage) -> bool:
        folder = folding_life(token.life)
        if folder is not None:
            return seen.is_gone(folder)
        batch = self.spool.batch(token.batch)
        if batch is None:
            return False
        if not token.gen:
            return batch.publication != token.life
        # A retry opens a generation; this one was opened by somebody else.
        fold = self.reader.fold
        return all(
            fold.generation(number, index) >= token.gen
            for number, first, last, _ in batch.origins(token.start, token.stop)
            for index in range(first, last)
        )

    def _uncovered(self, number: int, ranges: RangeSet, seen: Coverage) -> None:
        place = self.spool.places().get(number)
        if place is None:
            return
        for gen, start, stop in gen_stretches(self.reader.fold, number, ranges):
            where = f"{number}.{start}" if stop - start == 1 else f"{number}.{start} to {number}.{stop - 1}"
            low, high = place.offset + start, place.offset + stop
            attempt = 1 + seen.highest_attempt(place.cover, low, high, gen, self.reader.fold)
            token = Token(
                lane=place.cover.lane, priority=place.cover.priority, batch=place.cover.number,
                start=low, stop=high, gen=gen, attempt=attempt, form=HELD if place.cover.held else WAITING,
            )  # fmt: skip
            detail = f"{stop - start} unfinished tasks of batch {number} are offered by nothing."
            repaired = False
            if seen.moving:
                detail += f" {seen.moving} is being reaped; run `fleetcraft spool reap` first."
            elif self.life is not None:
                repaired = self._offer(self.life, token)
            else:
                detail += " Run `fleetcraft spool check --repair`."
            self.note("uncovered", where, detail, serious=True, repaired=repaired, token=token.name, tasks=stop - start)

    def _offer(self, life: Life, token: Token) -> bool:
        """Draft, a look at our own state, then the rename. A reaper of this life would find the draft."""
        files, layout = self.spool.files, self.spool.layout
        if files.exists(layout.token(token.waiting().name)) or files.exists(layout.token(token.held().name)):
            return False
        draft = token.owned(DRAFT, life.id)
        files.create(layout.token(draft.name))
        files.sync_folder(layout.tokens)
        life.note("repair", token=token.name)
        life.check_live()
        move(files, layout.token(draft.name), layout.token(token.name))
        files.sync_folder(layout.tokens)
        return True


def _common(one: Mapping[int, RangeSet], other: Mapping[int, RangeSet]) -> dict[int, RangeSet]:
    """What is in both."""
    both: dict[int, RangeSet] = defaultdict(RangeSet)
    for batch in one.keys() & other.keys():
        for start, stop in one[batch]:
            for low, high in other[batch].within(start, stop):
                both[batch].add(low, high)
    return dict(both)
