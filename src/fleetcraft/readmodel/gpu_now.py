"""One picture of every GPU now: what must exist by scheduler and workers, what reports by its telemetry, and why.

A GPU that must exist never disappears: without a report it has a row with the age and the reason of its silence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from fleetcraft.core.states import WorkerState
from fleetcraft.readmodel.fleet_gpus import GpuState, Measured, NodeView
from fleetcraft.readmodel.gpu_picture import GpuNow, GpusNow, HostNow
from fleetcraft.readmodel.gpu_queue import QueueNow, Served
from fleetcraft.readmodel.gpu_rows import (
    Place,
    Row,
    deep_coverage,
    ever_active,
    free_s,
    held_bytes,
    host_state,
    is_unified,
    job_age_s,
    own_pids,
    silence_of,
    state_text,
)
from fleetcraft.usage.classify import BLIND, Cause, Class, Evidence, classify, from_window
from fleetcraft.usage.tails import HostTail, Tails, server_now
from fleetcraft.usage.thresholds import Thresholds

# A sampler that fell silent without a word and that nobody expects is shown this long.
_REMEMBERED_S = 6 * 3600.0
Signs = Callable[[str, str], float | None]


# Classes that telemetry alone can tell; of the others a worker's heartbeat knows more.
_MEASURED = {
    Class.WORKING: GpuState.WORKING,
    Class.WAITING: GpuState.RESERVED,
    Class.RESERVED_IDLE: GpuState.RESERVED,
    Class.FREE_IDLE: GpuState.FREE,
    Class.LOST: GpuState.UNKNOWN,
    Class.HUNG: GpuState.UNKNOWN,
    Class.BROKEN: GpuState.UNKNOWN,
}


def measured(root: str, served: Sequence[Served], thresholds: Thresholds | None = None) -> dict[str, Measured]:
    """What the telemetry in a folder says of the GPUs of these workers, by UUID."""
    limits = thresholds or Thresholds()
    now = server_now(root)
    tails = Tails(max(limits.window_s, limits.grace_s)).read(root, now)
    picture = read_now(tails, limits, at_utc=now.utc_s, served=served, queue=QueueNow(served=served))
    return {
        gpu.uuid: Measured(state=_MEASURED[gpu.kind], reason=gpu.verdict.text)
        for gpu in picture.gpus
        if gpu.uuid and gpu.kind in _MEASURED
    }


def read_now(  # noqa: PLR0913  one argument for each kind of evidence
    tails: Mapping[str, HostTail],
    thresholds: Thresholds,
    *,
    at_utc: float,
    clock: str = "file_server",
    served: Sequence[Served] = (),
    nodes: Sequence[NodeView] = (),
    queue: QueueNow | None = None,
    signs: Signs | None = None,
    deep_s: float = 0.0,
    down: Mapping[str, str] | None = None,
    scheduler_answered: bool | None = None,
    scheduler_age_s: float | None = None,
    problems: Iterable[str] = (),
) -> GpusNow:
    """Join everything.

    `signs` tells the age of an application's heartbeat on a host and job; `down` what a scheduler says of nodes that
    are down;
    `deep_s` over how long coverage is told beside that of the window.
    """
    places: dict[str, Place] = {}
    for host, tail in tails.items():
        _add_tail(_place(places, host), tail)
    # One that died is shown until it is buried; a worker that took its place comes after it and counts.
    for one in sorted(served, key=lambda one: one.worker.is_running):
        there = one.worker.is_running or (one.worker.state is WorkerState.LOST and not one.worker.buried)
        if there and one.worker.host is not None and one.gpus:
            _add_worker(_place(places, one.worker.host), one)
    for node in nodes:
        _add_node(_place(places, node.node), node)
    for name, words in (down or {}).items():
        if name.partition(".")[0] in places:
            _place(places, name).down = words
    hosts = []
    for place in places.values():
        _drop_past(place, thresholds)
        if place.rows or place.expected:
            hosts.append(_host(place, thresholds, queue, signs, deep_s))
    trouble = [*problems, *(text for tail in tails.values() for text in tail.problems)]
    return GpusNow(
        at_utc=at_utc, clock=clock, hosts=tuple(sorted(hosts, key=lambda host: host.host)), queue=queue,
        thresholds=thresholds, scheduler_answered=scheduler_answered, scheduler_age_s=scheduler_age_s,
        problems=tuple(dict.fromkeys(trouble)),
    )  # fmt: skip


def _place(places: dict[str, Place], host: str) -> Place:
    # A scheduler says n1 where the host calls itself n1.site.example.
    return places.setdefault(host.partition(".")[0], Place(host=host))


def _add_tail(place: Place, tail: HostTail) -> None:
    place.tail = tail
    parents = {gpu.parent for gpu in tail.gpus.values() if gpu.parent}
    for gpu, one in tail.gpus.items():
        if gpu.uuid in parents:
            continue  # its instances are the GPUs
        name = one.context.device_name
        place.rows[gpu.uuid] = Row(
            host=place.host, uuid=gpu.uuid, index=gpu.index, name=name, job=one.context.job, tail=one
        )


def _add_worker(place: Place, served: Served) -> None:
    place.served.append(served)
    place.expected = True
    job = served.worker.job_id or ""
    if job and job not in place.jobs:
        place.jobs.append(job)
    for index, gpu in enumerate(served.gpus):
        uuid = gpu.get("uuid")
        if not isinstance(uuid, str):
            continue
        row = place.rows.setdefault(uuid, Row(host=place.host, uuid=uuid, index=index))
        row.expected, row.served = True, served
        row.job = job or row.job
        row.name = row.name or str(gpu.get("name") or "")
        size = gpu.get("memory_bytes")
        row.memory_bytes = size if isinstance(size, int) else row.memory_bytes


def _add_node(place: Place, node: NodeView) -> None:
    place.expected = True
    if node.job not in place.jobs and not any(is_same_job(node.job, job) for job in place.jobs):
        place.jobs.append(node.job)
    place.silence = place.silence or ("" if node.reports else node.reason)
    mine = {uuid for uuid, row in place.rows.items() if not row.job or is_same_job(node.job, row.job)}
    for gpu in node.gpus:
        if gpu.uuid is None:
            continue
        mine.add(gpu.uuid)
        if gpu.uuid not in place.rows:
            place.rows[gpu.uuid] = Row(
                host=place.host, uuid=gpu.uuid, index=gpu.index, name=gpu.name or "", memory_bytes=gpu.memory_bytes
            )
    for uuid in mine:
        row = place.rows[uuid]
        row.expected, row.job = True, row.job or node.job
        row.silence = row.silence or ("" if node.reports else node.reason)
    for number in range(len(mine), node.expected_gpus or 0):
        place.rows[f"?{node.job}/{number}"] = Row(
            host=place.host, uuid="", index=number, job=node.job, expected=True,
            silence=node.reason or "its worker does not list it",
        )  # fmt: skip


def is_same_job(one: str, other: str) -> bool:
    """A job id with the cluster before it, or a part behind it, is the same job."""
    return one == other or one.rpartition(":")[2].partition("@")[0] == other.rpartition(":")[2].partition("@")[0]


def _drop_past(place: Place, thresholds: Thresholds) -> None:
    """Take away what was sampled under jobs that are over: nobody expects it any more."""
    for uuid, row in list(place.rows.items()):
        if row.expected or row.tail is None:
            continue
        silent = row.tail.age_s > thresholds.silent_after_s(row.tail.interval_s)
        if row.tail.ended or (silent and row.tail.age_s > _REMEMBERED_S):
            del place.rows[uuid]


def _host(place: Place, thresholds: Thresholds, queue: QueueNow | None, signs: Signs | None, deep_s: float) -> HostNow:
    gpus = sorted(
        (_gpu(row, place, thresholds, queue, signs, deep_s) for row in place.rows.values()),
        key=lambda gpu: (gpu.index is None, gpu.index or 0, gpu.uuid),
    )
    reports = any(gpu.reports for gpu in gpus)
    age_s = min((gpu.age_s for gpu in gpus if gpu.age_s is not None), default=None)
    reason = "" if reports else next((gpu.verdict.text for gpu in gpus), place.silence or "nothing of it is known")
    jobs = place.jobs or sorted({gpu.job for gpu in gpus if gpu.job})
    return HostNow(
        host=place.host, jobs=tuple(jobs), age_s=age_s, reports=reports, reason=reason,
        sampler=place.tail.sampler if place.tail is not None else {}, gpus=tuple(gpus),
    )  # fmt: skip


def _gpu(
    row: Row, place: Place, thresholds: Thresholds, queue: QueueNow | None, signs: Signs | None, deep_s: float
) -> GpuNow:
    tail, served = row.tail, row.served
    window = tail.window(thresholds.window_s) if tail is not None else None
    told: dict[str, Any] = from_window(window) if window is not None else {}
    if tail is not None:
        active_ms, known_ms = tail.active_ms(thresholds.window_s, thresholds.active_pct)
        told["active_fraction"] = active_ms / known_ms if known_ms else None
    cause, text = queue.why(served, row.uuid) if queue is not None else (Cause.NONE, "")
    evidence = Evidence(
        expected=row.expected,
        age_s=None if tail is None or tail.latest is None else tail.age_s,
        interval_s=tail.interval_s if tail is not None else 10.0,
        silence=(silence := silence_of(row, place))[0],
        silence_text=silence[1],
        state=tail.latest.state if tail is not None and tail.latest is not None else host_state(place),
        state_text=state_text(tail, place),
        job_age_s=(age_s := job_age_s(tail, served)),
        # Looked at only where it decides: it reads further back.
        ever_active=ever_active(tail, thresholds) if age_s is None or age_s < thresholds.grace_s else None,
        own_pids=None if tail is None else own_pids(tail),
        held_bytes=None if tail is None else held_bytes(tail, thresholds),
        unified=is_unified(tail, row.name),
        queue=cause,
        queue_text=text,
        heartbeat_age_s=signs(row.host, row.job) if signs is not None else None,
        **told,
    )
    verdict = classify(evidence, thresholds)
    latest = tail.latest if tail is not None else None
    values = dict(latest.values) if latest is not None else {}
    live = verdict.rule > 2  # what a silent or broken one did before is not what it does now
    return GpuNow(
        host=row.host, uuid=row.uuid, index=row.index, name=row.name, job=row.job,
        fleet=tail.context.fleet if tail is not None else "",
        worker=served.worker.life if served is not None else tail.context.life if tail is not None else "",
        tasks=tuple(served.on_gpu(row.uuid)) if served is not None and row.uuid and served.worker.is_running else (),
        verdict=verdict, age_s=evidence.age_s,
        coverage=evidence.coverage, active_fraction=evidence.active_fraction if live else None,
        util_pct=evidence.util_pct if live else None, sm_active_pct=evidence.sm_active_pct if live else None,
        power_w=window.power_sum / window.power_ms if live and window is not None and window.power_ms else None,
        memory_bytes=window.memory_sum / window.memory_ms if live and window is not None and window.memory_ms else None,
        idle_s=tail.idle_s(thresholds.active_pct) if tail is not None and verdict.kind not in BLIND else None,
        free_s=free_s(tail, thresholds, verdict), deep_coverage=deep_coverage(tail, thresholds, deep_s),
        memory_total_bytes=values.get("memory_total_bytes", row.memory_bytes),
        power_limit_w=tail.power_limit_w if tail is not None else None,
        interval_s=tail.interval_s if tail is not None else None,
        simulated=tail is not None and tail.context.simulated,
        values=values, reasons=dict(latest.reasons) if latest is not None else {},
    )  # fmt: skip
