"""The types of a picture of all GPUs: one GPU, one host, and everything, dated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fleetcraft.readmodel.gpu_queue import QueueNow
from fleetcraft.usage.classify import Class, Verdict
from fleetcraft.usage.thresholds import Thresholds


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuNow:
    """One GPU. None is not known; `values` are the last sample's, by the names of telemetry.fields."""

    host: str
    uuid: str
    index: int | None
    name: str
    job: str
    fleet: str
    worker: str
    tasks: tuple[str, ...]
    verdict: Verdict
    age_s: float | None
    coverage: float | None
    active_fraction: float | None
    util_pct: float | None  # mean of the window, as the next three
    sm_active_pct: float | None
    power_w: float | None
    memory_bytes: float | None
    idle_s: float | None  # at least so long, as far back as was read
    free_s: float | None  # neither active nor held, the same way
    deep_coverage: float | None  # of all that was read back
    memory_total_bytes: float | None
    power_limit_w: float | None
    interval_s: float | None
    simulated: bool
    values: Mapping[str, float] = field(default_factory=dict)
    reasons: Mapping[str, str] = field(default_factory=dict)

    @property
    def kind(self) -> Class:
        """Its class."""
        return self.verdict.kind

    @property
    def reports(self) -> bool:
        """True where its sampler is heard, whatever it says."""
        return self.kind is not Class.UNREACHABLE and self.age_s is not None and self.verdict.rule != 1

    @property
    def key(self) -> str:
        """Its name in alerts and filters."""
        return f"{self.host}/{self.uuid or self.index}"

    def as_json(self) -> dict[str, Any]:
        """For the JSON document."""
        plain = {name: getattr(self, name) for name in self.__slots__ if name not in ("verdict", "values", "reasons")}
        plain["tasks"] = list(self.tasks)
        verdict = self.verdict
        return {
            **plain,
            "class": verdict.kind.value,
            "label": verdict.label or None,
            "cause": verdict.cause.value or None,
            "text": verdict.text,
            "rule": verdict.rule,
            "never": "cancel" if verdict.is_nudged_only else None,
            "last": dict(self.values),
            "absent": dict(self.reasons),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class HostNow:
    """One host that is expected or reports."""

    host: str
    jobs: tuple[str, ...]
    age_s: float | None
    reports: bool
    reason: str
    sampler: Mapping[str, Any]
    gpus: tuple[GpuNow, ...]

    def as_json(self) -> dict[str, Any]:
        """For the JSON document."""
        return {
            "host": self.host, "jobs": list(self.jobs), "age_s": self.age_s, "reports": self.reports,
            "reason": self.reason or None, "sampler": self.sampler.get("state"),
            "gpus": [gpu.as_json() for gpu in self.gpus],
        }  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class GpusNow:
    """All of it, dated."""

    at_utc: float
    clock: str  # whose clock ages are told by
    hosts: tuple[HostNow, ...]
    queue: QueueNow | None
    thresholds: Thresholds
    scheduler_age_s: float | None  # None: the scheduler was not asked, or never answered
    scheduler_answered: bool | None
    problems: tuple[str, ...]

    @property
    def gpus(self) -> list[GpuNow]:
        """Of all hosts."""
        return [gpu for host in self.hosts for gpu in host.gpus]

    def counts(self) -> dict[str, int]:
        """How many GPUs are in each class."""
        kinds = [gpu.kind for gpu in self.gpus]
        return {kind.value: kinds.count(kind) for kind in Class}

    def totals(self) -> dict[str, Any]:
        """What a header shows. Means are over the GPUs that tell; None where none does."""
        gpus = self.gpus
        utils = [gpu.util_pct for gpu in gpus if gpu.util_pct is not None and gpu.reports]
        powers = [gpu.power_w for gpu in gpus if gpu.power_w is not None and gpu.reports]
        return {
            "hosts": len(self.hosts),
            "reporting_hosts": sum(host.reports for host in self.hosts),
            "gpus": len(gpus),
            "reporting_gpus": sum(gpu.reports for gpu in gpus),
            "util_pct": sum(utils) / len(utils) if utils else None,
            "power_w": sum(powers) if powers else None,
            "tasks": len({(gpu.worker, task) for gpu in gpus for task in gpu.tasks}),
        }

    def as_json(self) -> dict[str, Any]:
        """The JSON document, without its schema."""
        return {
            "at_utc": round(self.at_utc, 3),
            "clock": self.clock,
            "totals": self.totals(),
            "classes": self.counts(),
            "hosts": [host.as_json() for host in self.hosts],
            "queue": None if self.queue is None else self.queue.as_json(),
            "thresholds": self.thresholds.as_json(),
            "scheduler": {"answered": self.scheduler_answered, "age_s": self.scheduler_age_s},
            "problems": list(self.problems),
        }
