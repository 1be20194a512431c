"""Telemetry of hosts as series: every file read, GPUs told apart, the hold rule applied, the span cut out.

A file that cannot be read, or a host that wrote nothing, is a problem with a name, and never ends the reading.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from fleetcraft.usage import holding
from fleetcraft.usage.api import Context, Gpu, Stretch, Window
from fleetcraft.usage.pieces import Part, Piece, read_all, read_lines
from fleetcraft.usage.segmentread import Segment, Statement, read_segment, stamp_of
from fleetcraft.usage.segmentread import gpu_of as gpu_of_segment
from fleetcraft.usage.series import LEVELS, Series, hold_all
from fleetcraft.usage.sources import PLAIN, SEALED, Source, within
from fleetcraft.usage.windows import cut

if TYPE_CHECKING:
    from datetime import tzinfo

    from fleetcraft.usage.rollups import Rollup

HOLD, ROW = "hold", "row"
NOT_INSTALLED = "not_installed"  # the kind of such a problem
# The longest interval of a sampler is a minute, so nothing reaches further than this.
REACH_MS = int(60_000 * holding.CAP)
DEFAULT_INTERVAL_MS = 30_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How to read. `frozen` holds the bytes of each file where an earlier reading is repeated."""

    since_ms: int | None = None
    until_ms: int | None = None
    now_ms: int | None = None
    zone: tzinfo | None = None
    interval_ms: int | None = None  # of plain logs; None: as they seem to have
    definition: str = HOLD
    one_gpu: bool = False  # plain logs that name no device are of one GPU, whatever their rows look like
    job: str | None = None
    fleet: str | None = None
    frozen: Mapping[str, Sequence[tuple[int, int]]] | None = None
    keep_digests: bool = False
    use_rollups: bool = False  # sums only: no detail of what a roll-up covers
    detailed: frozenset[str] = frozenset()  # segments whose roll-ups are passed over
    is_partial: bool = False  # what cannot be read for want of a library is a gap with a name, and no error
    keep_windows: bool = False  # with `use_rollups`: also every window of a roll-up by itself
    use_frames: bool = False  # sums by polars where files are large

    @property
    def is_narrow(self) -> bool:
        """True where one job or fleet was asked for: a host without it does not belong."""
        return self.job is not None or self.fleet is not None

    def wants(self, context: Context) -> bool:
        """True for samples of the job and fleet that were asked for."""
        return self.job in (None, context.job) and self.fleet in (None, context.fleet)


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Something that a reader of the numbers should know."""

    kind: str
    host: str
    text: str
    numbers: Mapping[str, float] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        return {"kind": self.kind, "host": self.host, "text": self.text, **self.numbers}


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What is known of a GPU beside its samples in the span: where its record begins and ends."""

    gpu: Gpu
    context: Context
    interval_ms: int
    samples: int
    first_ms: int
    last_ms: int  # where its last sample ends
    is_live: bool  # its sampler may still write


@dataclass(frozen=True, slots=True, kw_only=True)
class Rolled:
    """What the roll-up of a segment says of a GPU."""

    context: Context
    window: Window
    path: str


@dataclass(slots=True, kw_only=True)
class HostReading:
    """All that the files of one host say."""

    host: str
    series: list[Series] = field(default_factory=list)
    facts: list[Facts] = field(default_factory=list)
    devices: dict[Gpu, Context] = field(default_factory=dict)  # that a sampler listed, with samples or without
    pieces: list[Piece] = field(default_factory=list)
    digests: dict[Piece, str] = field(default_factory=dict)
    statements: list[Statement] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    rolled: list[Rolled] = field(default_factory=list)
    rolled_windows: list[Rolled] = field(default_factory=list)  # the same window by window, where that was asked for
    intervals: list[int] = field(default_factory=list)  # that plain logs seemed to have
    zoneless: bool = False  # a log names no zone, nobody else did, and it was taken for UTC

    @property
    def waits(self) -> bool:
        """True where a log is too short to tell its interval."""
        return any(series.interval_ms == 0 for series in self.series)

    def decide(self, votes: Sequence[int]) -> None:
        """Give such logs the interval that most others have."""
        common_ms = holding.most_common(votes, DEFAULT_INTERVAL_MS)
        for series in self.series:
            series.interval_ms = series.interval_ms or common_ms

    def take_sums(self, segment: Segment, windows: Mapping[Gpu, Window], piece: Piece) -> None:
        """What was added up of a segment without its samples."""
        self.pieces.append(piece)
        self.statements += segment.statements
        for number, device in segment.numbered().items():
            self.devices[gpu_of_segment(segment.host, device, number)] = segment.context
        for window in windows.values():
            self.rolled.append(Rolled(context=segment.context, window=window, path=piece.path))
            self.facts.append(_facts_of_sums(segment, window))

    def note(self, kind: str, text: str, **numbers: float) -> None:
        """Write a problem down."""
        self.problems.append(Problem(kind=kind, host=self.host, text=text, numbers=numbers))


@dataclass(slots=True, kw_only=True)
class Reading:
    """All hosts, in detail. See `summary.tally` for sums that keep no samples."""

    hosts: dict[str, HostReading]

    @property
    def series(self) -> list[Series]:
        """By GPU and time."""
        return [one for host in self.hosts.values() for one in host.series]

    @property
    def gpus(self) -> dict[Gpu, Context]:
        """Every GPU that is known, and under what it was sampled last."""
        known: dict[Gpu, Context] = {}
        for host in self.hosts.values():
            known.update(host.devices)
            known.update({one.gpu: one.context for one in host.series})
        return known

    @property
    def problems(self) -> list[Problem]:
        """Of all hosts."""
        return [problem for host in self.hosts.values() for problem in host.problems]

    @property
    def statements(self) -> list[Statement]:
        """Of all hosts."""
        return [statement for host in self.hosts.values() for statement in host.statements]

    def stretches(self, gpu: Gpu, t0_ms: int | None = None, t1_ms: int | None = None) -> Iterator[Stretch]:
        """The samples of a GPU within [t0, t1), in order of time, cut at its edges."""
        host = self.hosts.get(gpu.host)
        for series in host.series if host else []:
            if series.gpu == gpu:
                yield from series.clip(t0_ms, t1_ms).stretches()

    def windows(self, length_ms: int = holding.WINDOW_MS) -> list[Window]:
        """Sums over windows that begin on the clock, by GPU and time. Files of one window are added together.

        Where roll-ups were read, their windows must fit into these. See `read_windows`.
        """
        from fleetcraft.usage.windows import merge

        found: dict[tuple[Gpu, int], Window] = {}
        parts = [window for series in self.series for window in cut(series, length_ms)]
        rolled = [one.window for host in self.hosts.values() for one in host.rolled_windows]
        if rolled and length_ms % holding.WINDOW_MS:
            raise ValueError(f"windows of {length_ms} ms cannot be made of roll-ups of {holding.WINDOW_MS} ms")
        for part in (*parts, *rolled):
            start_ms = part.start_ms // length_ms * length_ms
            into = found.get((part.gpu, start_ms))
            if into is None:
                into = found[part.gpu, start_ms] = Window(gpu=part.gpu, start_ms=start_ms, length_ms=length_ms)
            merge(into, part)
        return [found[key] for key in sorted(found)]


def read(sources: Sequence[Source], options: Options | None = None) -> Reading:
    """Every sample of these files within the span."""
    return Reading(hosts={one.host: one for one in each_host(sources, options or Options())})


def read_windows(
    sources: Sequence[Source], options: Options | None = None, length_ms: int = holding.WINDOW_MS
) -> list[Window]:
    """The same sums as `read(...).windows(length_ms)`, from roll-ups where they cover and from samples elsewhere.

    One host after the other, so samples of a long span are neither read nor kept.
    """
    options = options or Options()
    if options.definition == HOLD and length_ms % holding.WINDOW_MS == 0:
        options = replace(options, use_rollups=True, keep_windows=True)
    found: list[Window] = []
    for host in each_host(sources, options):
        found += Reading(hosts={host.host: host}).windows(length_ms)
    return sorted(found, key=lambda window: (window.gpu, window.start_ms))


def each_host(sources: Sequence[Source], options: Options) -> Iterator[HostReading]:
    """One host after the other, so that what was added up can be forgotten. Hosts without any sample come too.

    A log too short to tell its interval waits for the others and takes the one that most of them have.
    """
    waiting: list[HostReading] = []
    votes: list[int] = []
    for host, some in by_host(sources).items():
        reading = take_in(host, some, options)
        votes += reading.intervals
        if reading.waits:
            waiting.append(reading)
        else:
            yield finish(reading, options)
    for reading in waiting:
        reading.decide(votes)
        yield finish(reading, options)


def take_in(host: str, sources: Sequence[Source], options: Options) -> HostReading:
    """Everything that the files of a host hold; `finish` makes sense of it."""
    reading = HostReading(host=host)
    chosen = within(sources, options.since_ms, options.until_ms)
    try:
        for source in chosen:
            _take_in(source, reading, options)
    except _BadRollupError as error:
        again = take_in(host, sources, replace(options, use_rollups=False))
        again.note("rollup", f"{error}; the samples were read instead")
        return again
    if len(chosen) > 1 and reading.rolled and _overlap(reading):
        # Only samples can tell how two samplers shared the time.
        return take_in(host, sources, replace(options, use_rollups=False))
    if len(chosen) > 1 and reading.rolled and (uneven := _uneven(reading)):
        return take_in(host, sources, replace(options, detailed=options.detailed | uneven))
    return reading


def _overlap(reading: HostReading) -> bool:
    """True where two segments speak of one GPU at the same time, and one of them by its roll-up."""
    spans: dict[Gpu, list[tuple[int, int, int, str]]] = {}
    for one in reading.rolled:
        reach_ms = round(one.context.interval_s * 1000)
        spans.setdefault(one.window.gpu, []).append((one.window.first_ms, one.window.last_ms, reach_ms, one.path))
    for series in reading.series:
        if series.gpu in spans and series.utc_ms:
            spans[series.gpu].append((series.utc_ms[0], series.utc_ms[-1], series.interval_ms, series.path))
    return any(
        one[3] != other[3] and other[0] < one[1] - max(one[2], other[2])
        for some in spans.values()
        for one, other in pairwise(sorted(some))
    )


def _uneven(reading: HostReading) -> frozenset[str]:
    """Segments at whose edge the last sample of one holds until the first of the next, and not for an interval.

    A roll-up was closed before there was a next one. Where that came in time with the ticks, it makes no difference.
    """
    spans: dict[Gpu, list[tuple[int, int, str, int, bool]]] = {}
    for one in reading.rolled:
        interval_ms = round(one.context.interval_s * 1000)
        window = one.window
        spans.setdefault(window.gpu, []).append((window.first_ms, window.last_ms, one.path, interval_ms, True))
    for series in reading.series:
        if series.gpu in spans and series.utc_ms:
            end_ms = series.utc_ms[-1] + series.interval_ms
            spans[series.gpu].append((series.utc_ms[0], end_ms, series.path, series.interval_ms, False))
    found: set[str] = set()
    for some in spans.values():
        for (_, end_ms, path, interval_ms, rolled), (begin_ms, _, later, _, later_rolled) in pairwise(sorted(some)):
            apart_ms = begin_ms - end_ms
            matters = -interval_ms <= apart_ms <= interval_ms * (holding.CAP - 1)
            if path != later and (rolled or later_rolled) and matters and abs(apart_ms) > interval_ms * _JITTER:
                found |= {path, later}
    return frozenset(found)


# Of an interval, by which a tick may be late or early without being another sampler's.
_JITTER = 0.02


def by_host(sources: Sequence[Source]) -> dict[str, list[Source]]:
    """The sources of each host, in the given order."""
    found: dict[str, list[Source]] = {}
    for source in sources:
        found.setdefault(source.host, []).append(source)
    return found


class _BadRollupError(Exception):
    """A roll-up holds what is no number, and was noticed only after a part of its segment had been read."""


def _take_in(source: Source, reading: HostReading, options: Options) -> None:
    """Read one file into the host's reading. Raises _BadRollupError."""
    try:
        if source.kind == PLAIN:
            _take_plain(source, reading, options)
        else:
            _take_segment(source, reading, options)
    except OSError as error:
        reading.note("unreadable", f"{source.path} cannot be read: {error.strerror}")
    except _DAMAGE as error:
        reading.note("unreadable", f"{source.path} cannot be read: {error}")


# What content that is not as it should be makes of code that takes it for what it should be.
_DAMAGE = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError)


def _take_plain(source: Source, reading: HostReading, options: Options) -> None:
    from fleetcraft.telemetry.foreign import parse_log

    data = _frozen(source.path, options) if options.frozen is not None else read_all(source.path)
    log = parse_log(data, zone=options.zone)
    _keep(reading, [Piece(path=source.path, start=0, end=len(data))], [data], options)
    findings = log.findings
    if options.one_gpu and any(one.kind == "burst" for one in findings):
        log.device = None
        log.findings = [one for one in findings if one.kind != "burst"]
    reading.zoneless |= bool(log.utc_ms) and not log.zone_known
    name = source.path.rpartition("/")[2]
    if log.malformed:
        reading.note("malformed", f"{name}: {log.malformed} lines are no row and were left out", lines=log.malformed)
    for problem in log.problems:
        reading.note("log", f"{name}: {problem}")
    columns = {name: column for name, column in log.columns.items() if name in LEVELS}
    devices = [""] if log.device is None else sorted(set(log.device))
    for device in devices if log.utc_ms else []:
        whole = Series(
            gpu=gpu_of(source.host, device), context=Context(device_name=log.names.get(device, "")), path=source.path,
            interval_ms=0, utc_ms=log.utc_ms, columns=columns,
        )  # fmt: skip
        one = whole if log.device is None else _only(whole, [mine == device for mine in log.device])
        vote = holding.interval_vote(one.utc_ms)
        if vote is not None:
            reading.intervals.append(vote)
        one.interval_ms = options.interval_ms or vote or 0
        reading.series.append(one)


def gpu_of(host: str, device: str) -> Gpu:
    """A device of a plain log: by its UUID where the log has one, else by its index; or the only one of its host."""
    return Gpu(host=host, uuid="", index=int(device)) if device.isdigit() else Gpu(host=host, uuid=device)


def _only(series: Series, mine: list[bool]) -> Series:
    from itertools import compress

    part = series.take(0, 0)
    part.utc_ms = list(compress(series.utc_ms, mine))
    part.columns = {name: list(compress(column, mine)) for name, column in series.columns.items()}
    return part


def _take_segment(source: Source, reading: HostReading, options: Options) -> None:
    """A segment, or its roll-up and the parts of it that the roll-up does not cover."""
    wanted = options.use_rollups and source.path not in options.detailed
    rolled = _rollup(source, reading, options) if wanted else None
    covered = None if rolled is None else _covered(rolled, options)
    segment = None
    for at, (since_ms, until_ms) in enumerate(_uncovered(covered, options)):
        if source.kind == SEALED:
            segment = _take_sealed(source, reading, options, since_ms, until_ms, rolled)
            continue
        # Of a segment that ended nothing is left behind its roll-up, and nobody asks how long it may still go on.
        begin = rolled.offset if rolled is not None and since_ms == rolled.until_ms and until_ms is None else 0
        segment = _take_lines(source, reading, options, since_ms, until_ms, at, begin) or segment
    if rolled is None or covered is None or segment is None:
        return
    gpus = {number: gpu_of_segment(segment.host, device, number) for number, device in segment.numbered().items()}
    if options.keep_windows:
        reading.rolled_windows += [
            Rolled(context=segment.context, window=window, path=source.path)
            for window in rolled.windows(gpus, *covered)
        ]
    try:
        sums = rolled.totals(gpus, *covered)
    except (ValueError, OverflowError) as error:
        raise _BadRollupError(f"{source.rollup} is damaged ({error})") from error
    for window in sums:
        reading.rolled.append(Rolled(context=segment.context, window=window, path=source.path))
        reading.facts.append(_facts_of_sums(segment, window))


def _covered(rolled: Rollup, options: Options) -> tuple[int | None, int] | None:
    """The whole windows of the span that a roll-up holds; None where there is none."""
    length_ms = holding.WINDOW_MS
    first_ms = None if options.since_ms is None else -(-options.since_ms // length_ms) * length_ms
    last_ms = rolled.until_ms
    if options.until_ms is not None:
        last_ms = min(last_ms, options.until_ms // length_ms * length_ms)
    return (first_ms, last_ms) if first_ms is None or first_ms < last_ms else None


def _uncovered(covered: tuple[int | None, int] | None, options: Options) -> list[tuple[int | None, int | None]]:
    """What is to be read in detail: before the windows, and behind them; the latter even where it is empty.

    The head of a segment and its last lines say which devices it has, and whether it ended.
    """
    if covered is None:
        return [(options.since_ms, options.until_ms)]
    first_ms, last_ms = covered
    behind = (last_ms, options.until_ms)
    return [behind] if first_ms == options.since_ms else [(options.since_ms, first_ms), behind]


def _rollup(source: Source, reading: HostReading, options: Options) -> Rollup | None:
    """The roll-up of a segment; None where there is none that fits."""
    if not source.rollup:
        return None
    if options.frozen is not None and source.rollup not in options.frozen:
        return None
    from fleetcraft.usage.rollups import parse

    data = _frozen(source.rollup, options) if options.frozen is not None else read_all(source.rollup)
    name = source.path.rpartition("/")[2]
    rolled = parse(data, name.removesuffix(".parquet") + ".csv" if source.kind == SEALED else name)
    if rolled is None:
        reading.note("rollup", f"{source.rollup} does not fit its segment and was passed over")
        return None
    _keep(reading, [Piece(path=source.rollup, start=0, end=len(data))], [data], options)
    return rolled


def _take_lines(
    source: Source,
    reading: HostReading,
    options: Options,
    since_ms: int | None,
    until_ms: int | None,
    at: int,
    from_byte: int = 0,
) -> Segment | None:
    """The lines of a segment that may count in [since, until), from `from_byte` on."""
    if options.frozen is None:
        early_ms = None if since_ms is None else since_ms - REACH_MS
        late_ms = None if until_ms is None else until_ms + REACH_MS
        part = read_lines(source.path, stamp_of, early_ms, late_ms, from_byte)
        chunks = [part.head, part.body]
    else:
        part, chunks = _frozen_part(source.path, options, at)
    if not part.head:
        reading.note("empty", f"{source.path} is empty")
        return None
    segment = read_segment(part.head, part.body, source.path, source.host)
    _keep(reading, part.pieces, chunks, options)
    _settle(segment, source, reading, since_ms, until_ms)
    return segment


def _settle(segment: Segment, source: Source, reading: HostReading, since_ms: int | None, until_ms: int | None) -> None:
    """Take what a segment says into the host's reading."""
    reading.statements += segment.statements
    for series in segment.series:
        # Two parts of one segment must not hold the same sample: it would be taken for a second logger's.
        near = series.near(since_ms, until_ms, REACH_MS)
        if near.utc_ms:
            near.span = (since_ms, until_ms)
            reading.series.append(near)
    for number, device in segment.numbered().items():
        reading.devices[gpu_of_segment(segment.host, device, number)] = segment.context
    if segment.malformed:
        text = f"{source.path}: {segment.malformed} lines are no row and were left out"
        reading.note("malformed", text, lines=segment.malformed)
    if segment.clock_stepped_ms:
        text = (
            f"{source.path}: the clock was set by {segment.clock_stepped_ms / 1000:+.1f} s; times follow the steady one"
        )
        reading.note("clock", text, step_ms=segment.clock_stepped_ms)


def _take_sealed(
    source: Source,
    reading: HostReading,
    options: Options,
    since_ms: int | None,
    until_ms: int | None,
    rolled: Rollup | None,
) -> Segment:
    """The same of a sealed segment, of which no sample is read where a roll-up has them all."""
    from fleetcraft.usage.sealed import PolarsMissing, head_of, read_sealed

    def fetch(path: str) -> bytes:
        data = _frozen(path, options) if options.frozen is not None else read_all(path)
        piece = Piece(path=path, start=0, end=len(data))
        if piece not in reading.pieces:
            _keep(reading, [piece], [data], options)
        return data

    told = json.loads(fetch(source.path.removesuffix(".parquet") + ".sealed.json"))
    segment = head_of(told, source.host)
    size = told.get("segment_bytes")
    if rolled is None or since_ms != rolled.until_ms or not isinstance(size, int) or rolled.offset < size:
        early_ms = None if since_ms is None else since_ms - REACH_MS
        late_ms = None if until_ms is None else until_ms + REACH_MS
        try:
            read_sealed(fetch(source.path), segment, source.path, early_ms, late_ms)
        except PolarsMissing as error:
            if not options.is_partial:
                raise
            _leave_out(segment, source, reading, error)
    _settle(segment, source, reading, since_ms, until_ms)
    return segment


def _leave_out(segment: Segment, source: Source, reading: HostReading, error: Exception) -> None:
    """Nothing of it is known but when it was written, which keeps its time in what is expected."""
    name = source.path.rpartition("/")[2]
    if not any(one.kind == NOT_INSTALLED and one.text.startswith(f"{name}:") for one in reading.problems):
        reading.note(NOT_INSTALLED, f"{name}: its samples are missing here. {error}")
    stamps = [one.utc_ms for one in segment.statements if isinstance(one.utc_ms, int)]
    if segment.began_ms is None or not stamps or max(stamps) <= segment.began_ms:
        return
    interval_ms = round(segment.context.interval_s * 1000)
    reading.facts += [
        Facts(
            gpu=gpu_of_segment(segment.host, device, number), context=segment.context, interval_ms=interval_ms,
            samples=0, first_ms=segment.began_ms, last_ms=max(stamps), is_live=False,
        )
        for number, device in segment.numbered().items()
    ]  # fmt: skip


def _frozen(path: str, options: Options) -> bytes:
    """The bytes that an earlier reading took."""
    assert options.frozen is not None  # noqa: S101  the caller looked
    data = read_all(path)
    return b"".join(data[start:end] for start, end in options.frozen.get(path, []))


def _frozen_part(path: str, options: Options, at: int) -> tuple[Part, list[bytes]]:
    """The bytes of the part number `at` that an earlier reading took of a segment: its head, and lines."""
    assert options.frozen is not None  # noqa: S101  the caller looked
    ranges = list(options.frozen.get(path, []))[2 * at : 2 * at + 2]
    data = read_all(path)
    chunks = [data[start:end] for start, end in ranges]
    pieces = [Piece(path=path, start=start, end=end) for start, end in ranges]
    head, body = chunks if len(chunks) == 2 else (b"", b"")
    return Part(head=head, body=body, pieces=pieces, size=len(data)), chunks


def _keep(reading: HostReading, pieces: list[Piece], chunks: list[bytes], options: Options) -> None:
    """Remember what was read, and its digests where evidence is wanted."""
    reading.pieces += pieces
    if options.keep_digests:
        import hashlib

        reading.digests.update(
            (piece, hashlib.sha256(chunk).hexdigest()) for piece, chunk in zip(pieces, chunks, strict=True)
        )


def finish(reading: HostReading, options: Options) -> HostReading:
    """Apply the hold rule across files, find second loggers and stamps of the future, and cut the span out."""
    parts: dict[Gpu, list[Series]] = {}
    for series in reading.series:
        parts.setdefault(series.gpu, []).append(series)
    reading.series = []
    reading.devices = {gpu: context for gpu, context in reading.devices.items() if options.wants(context)}
    reading.facts = [facts for facts in reading.facts if options.wants(facts.context)]
    reading.rolled = [one for one in reading.rolled if options.wants(one.context)]
    reading.rolled_windows = [one for one in reading.rolled_windows if options.wants(one.context)]
    for gpu in sorted(parts):
        held = [series for series in hold_all(parts[gpu]) if options.wants(series.context)]
        if held:
            _future(reading, held, options)
        for series in held:
            if options.definition == ROW:
                series.held_ms = [series.interval_ms] * len(series.utc_ms)
            reading.facts.append(_facts(series))
            cut_out = series.clip(*(series.span or (options.since_ms, options.until_ms)))
            if cut_out.utc_ms:
                reading.series.append(cut_out)
    if not reading.facts and not reading.rolled and not any(one.kind == "unreadable" for one in reading.problems):
        span = "" if options.since_ms is None and options.until_ms is None else " in that time"
        reading.note("no_data", f"no sample was written{span}")
    return reading


def _facts_of_sums(segment: Segment, window: Window) -> Facts:
    return Facts(
        gpu=window.gpu, context=segment.context, interval_ms=round(segment.context.interval_s * 1000),
        samples=window.samples, first_ms=segment.began_ms or window.first_ms, last_ms=window.last_ms,
        is_live=not segment.ended,
    )  # fmt: skip


def _facts(series: Series) -> Facts:
    first_ms = series.utc_ms[0] if series.began_ms is None else min(series.began_ms, series.utc_ms[0])
    return Facts(
        gpu=series.gpu, context=series.context, interval_ms=series.interval_ms, samples=len(series.utc_ms),
        first_ms=first_ms, last_ms=series.utc_ms[-1] + series.held_ms[-1],
        is_live=series.began_ms is not None and not series.ended,
    )  # fmt: skip


def _future(reading: HostReading, held: list[Series], options: Options) -> None:
    if options.now_ms is None:
        return
    late = sum(
        1 for one in held if one.utc_ms[-1] > options.now_ms + one.interval_ms
        for stamp in one.utc_ms if stamp > options.now_ms + one.interval_ms
    )  # fmt: skip
    if late:
        ahead_s = (max(one.utc_ms[-1] for one in held) - options.now_ms) / 1000
        text = (
            f"{late} samples lie in the future, by up to {ahead_s:.0f} s: a clock is wrong, or the zone of the log is"
        )
        reading.note("future", text, samples=late, ahead_s=ahead_s)
