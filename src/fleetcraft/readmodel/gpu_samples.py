"""What was sampled of each device of a host, read once and asked by device, whatever a host calls itself."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from fleetcraft.readmodel.gpu_allocations import same_host
from fleetcraft.usage.ledger_api import Interval
from fleetcraft.usage.ledger_profile import Profile, clip, union
from fleetcraft.usage.reading import Options, read
from fleetcraft.usage.series import Series
from fleetcraft.usage.sources import Source

# A host that wrote nothing shows in the coverage.
_NOTHING_WRONG = frozenset({"no_data", "empty"})


@dataclass(slots=True)
class Samples:
    """What was sampled of each device; a device without samples has no profile."""

    series: dict[tuple[str, str], list[Series]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)  # what of the files cannot be read or believed
    _profiles: dict[tuple[str, str], Profile] = field(default_factory=dict)

    @classmethod
    def of(cls, sources: Sequence[Source], since_ms: int | None, until_ms: int | None, now_ms: int) -> Samples:
        """Read these files within a span."""
        found = cls()
        if sources:
            reading = read(sources, Options(since_ms=since_ms, until_ms=until_ms, now_ms=now_ms))
            found.problems = [f"{one.host}: {one.text}" for one in reading.problems if one.kind not in _NOTHING_WRONG]
            for one in reading.series:
                found.series.setdefault((one.gpu.host, one.gpu.uuid or f"#{one.gpu.index}"), []).append(one)
        return found

    def profile(self, host: str, uuid: str) -> Profile | None:
        """The samples of one device, wherever its host's name has a domain."""
        key = next((key for key in self.series if key[1] == uuid and same_host(key[0], host)), None)
        if key is None:
            return None
        if key not in self._profiles:
            some = self.series[key]
            stretches = (stretch for one in some for stretch in one.stretches())
            self._profiles[key] = Profile.of(stretches, some[0].baseline_bytes)
        return self._profiles[key]

    def devices(self, host: str, span: Interval) -> dict[str, list[Interval]]:
        """What was sampled on a host within a span, and when."""
        found: dict[str, list[Interval]] = {}
        for (told, uuid), some in self.series.items():
            if same_host(told, host):
                seen = clip(union(times(some)), *span)
                if seen:
                    found[uuid] = seen
        return found


def times(some: Iterable[Series]) -> Iterable[Interval]:
    """When each sample holds."""
    return (
        (start_ms, start_ms + held_ms)
        for one in some
        for start_ms, held_ms in zip(one.utc_ms, one.held_ms, strict=True)
    )
