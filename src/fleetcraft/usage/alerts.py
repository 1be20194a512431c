"""When a finding becomes an alert, and when that alert is over: each is told once, and its end once.

A finding must hold for its time before it is told, and be gone for a time before its end is, so that a value that
swings around a threshold does not ring all night. The book is plain data: it is kept in a file between looks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

SCHEMA = "fleetcraft.gpu.alerts/1"
BEGIN, END = "begin", "end"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Something that holds at one look. `key` names it for as long as it lasts."""

    key: str
    kind: str
    subject: str
    text: str
    hold_s: float = 0.0  # how long it must hold before it is told
    since_utc: float | None = None  # when it began by the records, which may be long before the first look
    numbers: Mapping[str, Any] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class Entry:
    """What the book knows of one finding."""

    kind: str
    subject: str
    text: str
    since_utc: float
    seen_utc: float
    told_utc: float | None = None
    numbers: dict[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """For the file."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """What is told: the begin of an alert, or its end."""

    what: str
    key: str
    kind: str
    subject: str
    text: str
    since_utc: float
    at_utc: float
    numbers: Mapping[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """For commands and webhooks."""
        return {**{name: getattr(self, name) for name in self.__slots__}, "numbers": dict(self.numbers)}


@dataclass(slots=True, kw_only=True)
class AlertBook:
    """All findings that hold or held a moment ago, and counters of the last look."""

    entries: dict[str, Entry] = field(default_factory=dict)
    counters: dict[str, dict[str, float]] = field(default_factory=dict)
    warnings: dict[str, list[float]] = field(default_factory=dict)  # by job: when it was warned of its release

    def look(
        self, findings: Iterable[Finding], now_utc: float, *, clear_s: float, blind: Iterable[str] = ()
    ) -> list[Event]:
        """Take in what holds now. Returns what is to be told.

        `blind` are subjects about which this look says nothing: what was known of them stays as it was.
        """
        events: list[Event] = []
        present: set[str] = set()
        for finding in findings:
            present.add(finding.key)
            events += self._hold(finding, now_utc)
        unseen = set(blind)
        for key in [key for key in self.entries if key not in present]:
            entry = self.entries[key]
            if entry.subject in unseen:
                entry.seen_utc = now_utc
                continue
            if entry.told_utc is None:
                # Not told yet: it was a blip, unless it comes back within the time to clear.
                if now_utc - entry.seen_utc >= clear_s:
                    del self.entries[key]
                continue
            if now_utc - entry.seen_utc >= clear_s:
                del self.entries[key]
                events.append(_event(END, key, entry, now_utc))
        return events

    def _hold(self, finding: Finding, now_utc: float) -> list[Event]:
        entry = self.entries.get(finding.key)
        # A begin in the future is a clock that differs; it must not keep an alert from being told.
        since = now_utc if finding.since_utc is None else min(finding.since_utc, now_utc)
        if entry is None:
            entry = self.entries[finding.key] = Entry(
                kind=finding.kind, subject=finding.subject, text=finding.text, since_utc=since, seen_utc=now_utc
            )
        entry.since_utc = min(entry.since_utc, since)
        entry.seen_utc, entry.text, entry.numbers = now_utc, finding.text, dict(finding.numbers)
        if entry.told_utc is not None or now_utc - entry.since_utc < finding.hold_s:
            return []
        entry.told_utc = now_utc
        return [_event(BEGIN, finding.key, entry, now_utc)]

    def growth(self, subject: str, counters: Mapping[str, float | None]) -> dict[str, float]:
        """By how much counters grew since the last look. A first look and a new begin say nothing."""
        known = self.counters.setdefault(subject, {})
        grown = {}
        for name, value in counters.items():
            if value is None:
                continue
            before = known.get(name)
            if before is not None and value > before:
                grown[name] = value - before
            known[name] = value
        return grown

    def active(self) -> list[tuple[str, Entry]]:
        """Alerts that were told and are not over, the oldest first."""
        told = [(key, entry) for key, entry in self.entries.items() if entry.told_utc is not None]
        return sorted(told, key=lambda pair: (pair[1].since_utc, pair[0]))

    def as_json(self) -> dict[str, Any]:
        """For the file between looks."""
        return {
            "schema": SCHEMA,
            "entries": {key: entry.as_json() for key, entry in self.entries.items()},
            "counters": self.counters,
            "warnings": self.warnings,
        }

    @classmethod
    def from_json(cls, told: Any) -> AlertBook:
        """What a file says; whatever is damaged is left out: then an alert may be told twice, and none is lost."""
        book = cls()
        if not isinstance(told, dict) or told.get("schema") != SCHEMA:
            return book
        for key, body in _mapping(told.get("entries")).items():
            try:
                book.entries[key] = Entry(
                    kind=str(body["kind"]), subject=str(body["subject"]), text=str(body["text"]),
                    since_utc=float(body["since_utc"]), seen_utc=float(body["seen_utc"]),
                    told_utc=None if body.get("told_utc") is None else float(body["told_utc"]),
                    numbers=dict(body.get("numbers") or {}),
                )  # fmt: skip
            except (KeyError, TypeError, ValueError):
                continue
        for subject, counters in _mapping(told.get("counters")).items():
            known = {name: float(value) for name, value in _mapping(counters).items() if _is_number(value)}
            book.counters[subject] = known
        for job, times in _mapping(told.get("warnings")).items():
            if isinstance(times, list):
                book.warnings[job] = [float(value) for value in times if _is_number(value)]
        return book


def _event(what: str, key: str, entry: Entry, now_utc: float) -> Event:
    return Event(
        what=what, key=key, kind=entry.kind, subject=entry.subject, text=entry.text, since_utc=entry.since_utc,
        at_utc=now_utc, numbers=dict(entry.numbers),
    )  # fmt: skip


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
