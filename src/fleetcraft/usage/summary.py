"""What GPUs did in a span of time: time-weighted means, hours, energy two ways, and how much of the span was seen.

Sums are kept, samples are not, so that millions of rows need little memory.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from fleetcraft.usage import holding
from fleetcraft.usage.api import Context, Gpu, Window
from fleetcraft.usage.duplicates import doubled
from fleetcraft.usage.parallel import processes_for, spread
from fleetcraft.usage.reading import HOLD, NOT_INSTALLED, ROW, HostReading, Options, Problem, by_host, finish, take_in
from fleetcraft.usage.sources import PLAIN, Source, within
from fleetcraft.usage.windows import add_up, merge, total

BY = ("gpu", "host", "job", "fleet")
HOUR_MS = 3_600_000
_GONE_MS = 24 * HOUR_MS
_MJ_PER_KWH = 3.6e9
APART = 0.10
_BYTES_PER_HOST_DAY = 5 << 20
# Forking costs some milliseconds; this many hosts are worth it.
_HOSTS_PER_PROCESS = 16
GIB = 1 << 30


@dataclass(slots=True, kw_only=True)
class Tally:
    """One GPU under one job, added up."""

    context: Context
    window: Window


@dataclass(frozen=True, slots=True, kw_only=True)
class Energy:
    """Energy by the device's counter and by holding its power, over the time in which each was known."""

    held_kwh: float | None
    held_ms: int
    counter_kwh: float | None
    counter_ms: int
    resets: int
    apart: float | None  # of the mean powers, as a share of the larger one

    @property
    def is_apart(self) -> bool:
        """True where the two differ by more than a tenth."""
        return self.apart is not None and self.apart > APART

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        return {
            "held_kwh": self.held_kwh,
            "held_s": self.held_ms / 1000,
            "counter_kwh": self.counter_kwh,
            "counter_s": self.counter_ms / 1000,
            "counter_resets": self.resets,
            "apart": self.apart,
            "flagged": self.is_apart,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the table: a GPU, a host, a job, a fleet, or everything. None is unknown, never 0."""

    name: str
    hosts: int
    gpus: int
    sums: Window

    @property
    def gpu_hours(self) -> float:
        """Time that was seen."""
        return self.sums.observed_ms / HOUR_MS

    @property
    def coverage(self) -> float | None:
        """Seen time over expected time."""
        return share(self.sums.observed_ms, self.sums.expected_ms)

    @property
    def energy(self) -> Energy:
        """Both ways."""
        return energy_of(self.sums)

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        sums = self.sums
        has_memory = bool(sums.memory_total_bytes)
        inactive_ms = sums.util_ms - sums.active_ms
        return {
            "name": self.name,
            "hosts": self.hosts,
            "gpus": self.gpus,
            "samples": sums.samples,
            "gpu_hours": self.gpu_hours,
            "coverage": self.coverage,
            "utilization_pct": share(sums.util_sum, sums.util_ms),
            "active_fraction": share(sums.active_ms, sums.util_ms),
            "active_gpu_hours": sums.active_ms / HOUR_MS if sums.util_ms else None,
            "inactive_gpu_hours": inactive_ms / HOUR_MS if sums.util_ms else None,
            "reserved_idle_gpu_hours": sums.reserved_ms / HOUR_MS if sums.util_ms and sums.memory_ms else None,
            "free_idle_gpu_hours": sums.free_ms / HOUR_MS if sums.util_ms and sums.memory_ms else None,
            "utilization_weighted_gpu_hours": sums.util_sum / 100 / HOUR_MS if sums.util_ms else None,
            "memory_mean_bytes": share(sums.memory_sum, sums.memory_ms),
            "memory_max_bytes": sums.memory_max_bytes,
            "memory_fraction": share(sums.memory_fraction_sum, sums.memory_ms) if has_memory else None,
            "power_mean_w": share(sums.power_sum, sums.power_ms),
            "energy": self.energy.as_json(),
            "sm_active_pct": share(sums.sm_active_sum, sums.sm_active_ms),
            "tensor_pct": share(sums.tensor_sum, sums.tensor_ms),
            "sm_clock_mhz": share(sums.clock_sum, sums.clock_ms),
            "unhealthy_gpu_hours": sums.bad_ms / HOUR_MS,
            "extra_samples": sums.extra_samples,
            "doubled_gpu_hours": sums.extra_ms / HOUR_MS,
            "first_utc_ms": sums.first_ms or None,
            "last_utc_ms": sums.last_ms or None,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """How much of what there is was seen: in hosts, in GPUs, and in time."""

    hosts: int
    hosts_with_data: int
    gpus: int
    gpus_with_data: int
    observed_ms: int
    expected_ms: int

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        return {
            "hosts": self.hosts,
            "hosts_with_data": self.hosts_with_data,
            "gpus": self.gpus,
            "gpus_with_data": self.gpus_with_data,
            "observed_gpu_hours": self.observed_ms / HOUR_MS,
            "expected_gpu_hours": self.expected_ms / HOUR_MS,
            "time": share(self.observed_ms, self.expected_ms),
        }


@dataclass(slots=True, kw_only=True)
class Tallied:
    """The sums of every GPU and job, and what was noticed on the way."""

    tallies: list[Tally] = field(default_factory=list)
    gpus_by_host: dict[str, int] = field(default_factory=dict)
    pieces: list[tuple[str, int, int, str]] = field(default_factory=list)  # path, start, end, digest
    problems: list[Problem] = field(default_factory=list)
    intervals_ms: set[int] = field(default_factory=set)
    votes: list[int] = field(default_factory=list)  # intervals that plain logs seem to have
    zoneless: bool = False

    def add(self, other: Tallied) -> None:
        """Take another part in."""
        self.tallies += other.tallies
        self.gpus_by_host.update(other.gpus_by_host)
        self.pieces += other.pieces
        self.problems += other.problems
        self.intervals_ms |= other.intervals_ms
        self.votes += other.votes
        self.zoneless |= other.zoneless


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """The answer: rows, their total, coverage, and what to know about it."""

    by: str
    rows: tuple[Row, ...]
    total: Row
    coverage: Coverage
    problems: tuple[Problem, ...]
    definition: str
    options: Mapping[str, Any]

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        return {
            "by": self.by,
            "rows": [row.as_json() for row in self.rows],
            "total": self.total.as_json(),
            "coverage": self.coverage.as_json(),
            "problems": [problem.as_json() for problem in self.problems],
            "definition": self.definition,
            **self.options,
        }


def share(part: float, whole: float) -> float | None:
    """A ratio, or None where there is nothing to relate to."""
    return part / whole if whole else None


def energy_of(sums: Window) -> Energy:
    """Both energies of sums, and how far their mean powers are apart."""
    held_w = share(sums.power_sum, sums.power_ms)
    counter_w = share(sums.counter_mj or 0.0, sums.counter_ms) if sums.counter_mj is not None else None
    apart = None
    if held_w is not None and counter_w is not None and max(held_w, counter_w) > 0:
        apart = abs(held_w - counter_w) / max(held_w, counter_w)
    return Energy(
        held_kwh=sums.power_sum / _MJ_PER_KWH if sums.power_ms else None,
        held_ms=sums.power_ms,
        counter_kwh=sums.counter_mj / _MJ_PER_KWH if sums.counter_mj is not None and sums.counter_ms else None,
        counter_ms=sums.counter_ms,
        resets=sums.counter_resets,
        apart=apart,
    )


def tally(sources: Sequence[Source], options: Options, expected: Mapping[str, int] | None = None) -> Tallied:
    """Add up every file. `expected` says how many GPUs hosts should have; those without a file count too."""
    options = replace(options, use_rollups=options.definition == HOLD, is_partial=options.frozen is None)
    hosts = list(by_host(sources).items())
    processes = processes_for(len(hosts), per_process=_HOSTS_PER_PROCESS)
    if options.use_rollups and not options.keep_digests and options.frozen is None and _is_worth(sources, options):
        options = replace(options, use_frames=True)
        if processes > 1:
            # Each process computes on one core; read when the library is imported, which is later.
            os.environ.setdefault("POLARS_MAX_THREADS", "1")
    # Once, before the processes part.
    if any(source.kind == PLAIN for source in sources):
        from fleetcraft.telemetry import foreign  # noqa: F401
    if any(source.rollup for source in sources):
        from fleetcraft.usage import rollups  # noqa: F401
    into = Tallied()
    waiting: list[HostReading] = []
    for part, reading in spread(hosts, lambda host: _tally_host(*host, options), processes):
        into.add(part)
        if reading is not None:
            waiting.append(reading)
    for reading in waiting:
        reading.decide(into.votes)
        _add_host(into, finish(reading, options), options)
    missing = next((one for one in into.problems if one.kind == NOT_INSTALLED), None)
    if missing is not None and not any(one.window.samples for one in into.tallies):
        from fleetcraft.usage.sealed import polars

        polars()  # nothing at all could be read: that is no answer
    for host, gpus in sorted((expected or {}).items()):
        if host not in into.gpus_by_host:
            text = f"{gpus} GPUs were held here by workers or jobs, and no sampler wrote anything"
            into.problems.append(Problem(kind="no_data", host=host, text=text))
        into.gpus_by_host[host] = max(into.gpus_by_host.get(host, 0), gpus)
    return into


def _tally_host(host: str, sources: Sequence[Source], options: Options) -> tuple[Tallied, HostReading | None]:
    """The sums of a host; or its reading, where it must wait for the others."""
    part = Tallied()
    reading = (_by_frames(host, sources, options) if options.use_frames else None) or take_in(host, sources, options)
    part.votes += reading.intervals
    if reading.waits:
        return part, reading
    _add_host(part, finish(reading, options), options)
    return part, None


def _is_worth(sources: Sequence[Source], options: Options) -> bool:
    if not any(source.kind != PLAIN and not source.rollup for source in sources):
        return False
    from fleetcraft.usage.frames import WORTH_BYTES, is_worth

    # The size of a month says nothing about its last minutes.
    if options.since_ms is not None and options.until_ms is not None:
        days = (options.until_ms - options.since_ms) / (24 * HOUR_MS)
        if days * len({source.host for source in sources}) * _BYTES_PER_HOST_DAY < WORTH_BYTES:
            return False
    return is_worth(sources)


def _by_frames(host: str, sources: Sequence[Source], options: Options) -> HostReading | None:
    """A host's sums by polars; None where its files are small, have roll-ups, or are not plain."""
    from fleetcraft.usage.frames import sum_host

    chosen = within(sources, options.since_ms, options.until_ms)
    if not chosen or any(source.kind == PLAIN or source.rollup for source in chosen):
        return None
    try:
        found = sum_host(chosen, options.since_ms, options.until_ms)
    except OSError:
        return None
    if found is None:
        return None
    reading = HostReading(host=host)
    for segment, windows, piece in found:
        reading.take_sums(segment, windows, piece)
    return reading


def _add_host(into: Tallied, reading: HostReading, options: Options) -> None:
    if not reading.facts and not reading.devices and options.is_narrow:
        return
    found: dict[tuple[Gpu, str, str], Tally] = {}
    for context, window in _sums(reading):
        key = (window.gpu, context.job, context.fleet)
        known = found.setdefault(key, Tally(context=context, window=window))
        if known.window is not window:
            merge(known.window, window)
    for (gpu, job, fleet), expected_ms in _expected(reading, options).items():
        known = found.setdefault(
            (gpu, job, fleet),
            Tally(context=Context(job=job, fleet=fleet), window=Window(gpu=gpu, start_ms=0, length_ms=0)),
        )
        known.window.expected_ms = expected_ms
    if options.since_ms is not None:
        found = {key: one for key, one in found.items() if one.window.samples or one.window.expected_ms}
    reading.problems += doubled(reading, [one.window for one in found.values()])
    into.tallies += found.values()
    known_gpus = {*reading.devices, *(facts.gpu for facts in reading.facts)}
    if options.since_ms is not None and reading.devices:
        # A span of a spool that has lived for weeks: only those count that it could have.
        known_gpus = {one.window.gpu for one in found.values() if one.window.samples or one.window.expected_ms}
        if not known_gpus:
            return
    into.gpus_by_host[reading.host] = len(known_gpus)
    into.pieces += [(one.path, one.start, one.end, reading.digests.get(one, "")) for one in reading.pieces]
    into.problems += reading.problems
    into.zoneless |= reading.zoneless
    into.intervals_ms |= {facts.interval_ms for facts in reading.facts}


def _sums(reading: HostReading) -> Iterator[tuple[Context, Window]]:
    """Windows of the roll-ups, and what was read in detail."""
    for one in reading.rolled:
        yield one.context, one.window
    for series in reading.series:
        window = add_up(series)
        window.extra_samples = series.extras()
        window.extra_ms = window.extra_samples * series.interval_ms
        yield series.context, window


def _expected(reading: HostReading, options: Options) -> dict[tuple[Gpu, str, str], int]:
    """What the span holds for each GPU: from its first sample, to the end of the span while its sampler may write.

    A sampler that never said that it stopped, and was not heard for a day, is taken for gone.
    """
    ends: dict[tuple[Gpu, str, str], tuple[int, int]] = {}
    until_ms = _earlier(options.until_ms, options.now_ms)
    newest: dict[Gpu, int] = {}
    for facts in reading.facts:
        newest[facts.gpu] = max(facts.first_ms, newest.get(facts.gpu, 0))
    for facts in reading.facts:
        first_ms, last_ms = facts.first_ms, facts.last_ms
        asked_ms = last_ms if options.since_ms is None else options.since_ms
        # One that was killed says no end; where another measures after it, it writes no more.
        is_live = facts.is_live and facts.first_ms == newest[facts.gpu]
        if is_live and until_ms is not None and options.until_ms is not None and asked_ms - last_ms < _GONE_MS:
            last_ms = max(last_ms, until_ms)
        key = (facts.gpu, facts.context.job, facts.context.fleet)
        if key in ends:
            first_ms, last_ms = min(first_ms, ends[key][0]), max(last_ms, ends[key][1])
        ends[key] = (first_ms, last_ms)
    return {
        key: max(
            0,
            (last if options.until_ms is None else min(last, options.until_ms))
            - (first if options.since_ms is None else max(first, options.since_ms)),
        )
        for key, (first, last) in ends.items()
    }


def _earlier(first: int | None, second: int | None) -> int | None:
    return min((one for one in (first, second) if one is not None), default=None)


def summarize(tallied: Tallied, *, by: str = "host", options: Options | None = None) -> Summary:
    """The table of sums."""
    options = options or Options()
    groups: dict[str, list[Tally]] = {}
    if by == "host":
        groups = {host: [] for host in tallied.gpus_by_host}
    for one in tallied.tallies:
        groups.setdefault(_name(one, by), []).append(one)
    everything = _row("all", tallied.tallies)
    with_data = [one.window.gpu for one in tallied.tallies if one.window.samples]
    coverage = Coverage(
        hosts=len(tallied.gpus_by_host),
        hosts_with_data=len({gpu.host for gpu in with_data}),
        gpus=sum(tallied.gpus_by_host.values()),
        gpus_with_data=len(set(with_data)),
        observed_ms=everything.sums.observed_ms,
        expected_ms=everything.sums.expected_ms,
    )
    return Summary(
        by=by,
        rows=tuple(_row(name, groups[name]) for name in sorted(groups)),
        total=everything,
        coverage=coverage,
        problems=tuple(tallied.problems),
        definition=definition_of(options, tallied.intervals_ms)
        + ("; stamps without a zone are read as UTC" if tallied.zoneless else ""),
        options={"since_utc_ms": options.since_ms, "until_utc_ms": options.until_ms, "rule": options.definition},
    )


def _name(one: Tally, by: str) -> str:
    gpu = one.window.gpu
    if by == "host":
        return gpu.host
    if by == "gpu":
        return f"{gpu.host}/{gpu.index}" + (f" {gpu.uuid}" if gpu.uuid else "")
    return (one.context.job if by == "job" else one.context.fleet) or f"(no {by})"


def _row(name: str, tallies: Iterable[Tally]) -> Row:
    some = [one.window for one in tallies]
    with_data = {window.gpu for window in some if window.samples}
    sums = total(some, Gpu(host="", uuid=""))
    return Row(name=name, hosts=len({gpu.host for gpu in with_data}), gpus=len(with_data), sums=sums)


def definition_of(options: Options, intervals_ms: Iterable[int]) -> str:
    """One line that says what the numbers mean."""
    intervals = ", ".join(f"{one / 1000:g}" for one in sorted(intervals_ms)) or "?"
    split = f"reserved >= {holding.RESERVED_BYTES >> 20} MiB above baseline"
    active = f"active >= {holding.ACTIVE_PCT:g} % utilization, {split}"
    if options.definition == ROW:
        return f"row: every row counts one interval of {intervals} s, second loggers too; {active}"
    assert options.definition == HOLD  # noqa: S101  there are two
    return (
        f"hold: a sample counts until the next of its GPU if that comes within {holding.CAP:g} intervals, "
        f"else one interval ({intervals} s); gaps are not filled; means are over time; {active}"
    )
