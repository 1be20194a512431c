"""Summaries of telemetry: what is asked, read and added up; frozen as evidence, and proved again from it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from fleetcraft.core.errors import UsageError
from fleetcraft.usage.reading import HOLD, NOT_INSTALLED, Options
from fleetcraft.usage.sources import Source
from fleetcraft.usage.summary import Summary, Tallied, summarize, tally

if TYPE_CHECKING:
    from datetime import tzinfo


_TIMES = "Write 6h for that long ago, or a date or time such as 2031-05-04 or 2031-05-04T12:00+02:00."


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a person asked for. Times are in UTC milliseconds; `zone` is that of stamps without one."""

    fleet: str | None = None
    job: str | None = None
    since_ms: int | None = None
    until_ms: int | None = None
    now_ms: int
    by: str = "host"
    rule: str = HOLD
    zone: str = "UTC"
    interval_ms: int | None = None
    one_gpu: bool = False

    def options(self) -> Options:
        """How to read. Raises UsageError for an unknown zone."""
        return Options(
            since_ms=self.since_ms,
            until_ms=self.until_ms,
            now_ms=self.now_ms,
            zone=zone_of(self.zone),
            interval_ms=self.interval_ms,
            one_gpu=self.one_gpu,
            definition=self.rule,
            job=self.job,
            fleet=self.fleet,
        )

    def as_json(self) -> dict[str, Any]:
        """What a frozen answer needs to be computed again."""
        names = ("fleet", "job", "since_ms", "until_ms", "now_ms", "by", "rule", "zone", "interval_ms", "one_gpu")
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """What came of reading again: nothing, or what differs."""

    changed: list[str]  # bytes that are not what they were
    differs: list[str]  # numbers that do not come out again
    bytes_read: int
    files: int

    @property
    def holds(self) -> bool:
        """True where all is as it was."""
        return not self.changed and not self.differs


def zone_of(name: str) -> tzinfo | None:
    """A time zone; None for UTC. Raises UsageError."""
    if name.upper() == "UTC":
        return None
    import zoneinfo

    try:
        return zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        raise UsageError(
            f"There is no time zone {name!r} here.", hint="Write UTC, or a name such as US/Central."
        ) from None


def moment_ms(text: str, now_ms: int, zone: str, option: str) -> int:
    """A moment from a time span before now (`6h`), or an ISO date or time, in `zone` unless it names one.

    Raises UsageError.
    """
    raw = text.strip()
    if len(raw) >= 10 and raw[:4].isdigit() and raw[4] == "-":
        from datetime import UTC, datetime

        try:
            found = datetime.fromisoformat(raw)
            found = found if found.tzinfo else found.replace(tzinfo=zone_of(zone) or UTC)
            return round(found.timestamp() * 1000)
        except (ValueError, OverflowError):
            raise UsageError(f"{option} {text!r} is not a time.", hint=_TIMES) from None
    from fleetcraft.core.quantities import parse_duration_s

    try:
        return now_ms - round(parse_duration_s(raw, option) * 1000)
    except UsageError:
        raise UsageError(f"{option} {text!r} is not a time.", hint=_TIMES) from None


def answer(asked: Asked, sources: Sequence[Source], expected: Mapping[str, int], output: str | None = None) -> Summary:
    """Read, add up, and freeze the answer in `output` where one is named. Raises UsageError, Refused.

    `expected` says how many GPUs hosts should have, by other knowledge than telemetry.
    """
    options = asked.options()
    if output is None:
        return summarize(tally(sources, options, expected), by=asked.by, options=options)
    from fleetcraft.usage import evidence

    if os.path.lexists(output):
        raise evidence.taken(output)  # before the work, not behind it
    sources = [replace(source, path=os.path.abspath(source.path)) for source in sources]
    tallied = tally(sources, replace(options, keep_digests=True), expected)
    if any(problem.kind == NOT_INSTALLED for problem in tallied.problems):
        raise UsageError(
            "An answer with a part missing is not frozen.",
            hint="Install `fleetcraft[analysis]` to read sealed telemetry.",
        )
    found = summarize(tallied, by=asked.by, options=options)
    request = {**asked.as_json(), "expected": dict(expected)}
    document = evidence.compose(sources, tallied, request, found.as_json(), asked.now_ms / 1000)
    evidence.write(output, document)
    return found


def verify(path: str) -> Verified:
    """Read the same bytes again, and compute the same numbers. Raises UsageError for a file that is no evidence."""
    from fleetcraft.usage import evidence

    document = evidence.load(path)
    try:
        request = dict(document["asked"])
        expected: Mapping[str, int] = request.pop("expected")
        asked = Asked(**request)
        sources: list[Source] = evidence.sources_of(document)
        ranges = evidence.ranges_of(document)
        size = sum(piece["end"] - piece["start"] for piece in document["read"])
        changed = evidence.changed_bytes(document)
    except (LookupError, TypeError, AttributeError) as error:
        raise UsageError(f"{path} is damaged: {error}.", hint="Take the file from where it was kept.") from error
    options = replace(asked.options(), frozen=ranges, keep_digests=True)
    tallied: Tallied = tally(sources, options, expected)
    again = summarize(tallied, by=asked.by, options=options).as_json()
    return Verified(
        changed=changed, differs=evidence.differences(document["result"], again), bytes_read=size, files=len(ranges)
    )
