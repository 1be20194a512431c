"""Shape: a request that can never start is refused before it is sent, with the nearest one that could.

A scheduler may accept such a job and let it wait for ever, so its word is not enough.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from fleetcraft.core.decision import Decision
from fleetcraft.core.quantities import format_bytes, format_duration
from fleetcraft.schedulers.api import JobRequest, Limits, PartitionLimits

_DOWN = ("down", "drain", "inact")


@dataclass(frozen=True, slots=True, kw_only=True)
class Misfit:
    """One thing that a partition cannot give."""

    what: str
    wanted: Any
    most: Any
    sentence: str


def decide_shape(request: JobRequest, limits: Limits) -> Decision:
    """Refuse what no node of the partition can ever run."""
    if not limits.answered:
        said = "; ".join(limits.problems) or "no answer"
        return Decision.refuse(
            f"the site's partitions could not be read: {said}", problems=list(limits.problems), unanswered=said
        )
    chosen = _chosen(request, limits)
    if chosen is None:
        names = [part.name for part in limits.partitions]
        if request.partition is None:
            return Decision.refuse(
                "no partition was named and the site has no default one", known=names, nearest=_nearest(request, limits)
            )
        return Decision.refuse(
            f"there is no partition {request.partition}; the site has: {', '.join(names) or 'none'}",
            known=names,
            nearest=_nearest(request, limits),
        )
    misfits = list(misfits_of(request, chosen))
    facts = {"partition": asdict(chosen), "wanted": _wanted(request)}
    if not misfits:
        return Decision.allow(f"partition {chosen.name} has nodes of this shape", **facts)
    return Decision.refuse(
        f"this could never start on {chosen.name}: {'; '.join(misfit.sentence for misfit in misfits)}",
        misfits=[asdict(misfit) for misfit in misfits],
        nearest=_nearest(request, limits),
        **facts,
    )


def _chosen(request: JobRequest, limits: Limits) -> PartitionLimits | None:
    for part in limits.partitions:
        if part.name == request.partition or (request.partition is None and part.is_default):
            return part
    return None


def misfits_of(request: JobRequest, part: PartitionLimits) -> Iterator[Misfit]:
    """Everything that stands against it; what the partition does not tell stands against nothing."""
    if part.state.lower().startswith(_DOWN):
        yield Misfit(what="state", wanted="up", most=part.state, sentence=f"it is {part.state.lower()}")
    yield from _over("gpus_per_node", request.gpus_per_node, part.gpus_per_node, "{} GPUs per node, its nodes have {}")
    if request.gpus_per_node and request.gpu_type and part.gpu_types and not _has_type(request.gpu_type, part):
        types = ", ".join(part.gpu_types)
        yield Misfit(
            what="gpu_type", wanted=request.gpu_type, most=list(part.gpu_types),
            sentence=f"GPUs of type {request.gpu_type}, its nodes have {types}",
        )  # fmt: skip
    yield from _over("cpus_per_node", request.cpus_per_node, part.cpus_per_node, "{} CPUs per node, its nodes have {}")
    if request.memory_bytes and part.memory_per_node_bytes and request.memory_bytes > part.memory_per_node_bytes:
        has, wants = format_bytes(part.memory_per_node_bytes), format_bytes(request.memory_bytes)
        yield Misfit(
            what="memory_bytes", wanted=request.memory_bytes, most=part.memory_per_node_bytes,
            sentence=f"{wants} per node, its nodes have {has}",
        )  # fmt: skip
    smallest = min((most for most in (part.nodes, part.max_nodes) if most is not None), default=None)
    yield from _over("nodes", request.nodes, smallest, "{} nodes, a job there gets at most {}")
    if request.time_limit_s and part.time_limit_s and request.time_limit_s > part.time_limit_s:
        has, wants = format_duration(part.time_limit_s), format_duration(request.time_limit_s)
        yield Misfit(
            what="time_limit_s", wanted=request.time_limit_s, most=part.time_limit_s,
            sentence=f"a time limit of {wants}, it allows {has}",
        )  # fmt: skip


def _over(what: str, wanted: int | None, most: int | None, sentence: str) -> Iterator[Misfit]:
    if wanted is not None and most is not None and wanted > most:
        yield Misfit(what=what, wanted=wanted, most=most, sentence=sentence.format(wanted, most or "none"))


def _has_type(wanted: str, part: PartitionLimits) -> bool:
    return wanted.lower() in (name.lower() for name in part.gpu_types)


def _wanted(request: JobRequest) -> dict[str, Any]:
    return {
        "partition": request.partition,
        "nodes": request.nodes,
        "gpus_per_node": request.gpus_per_node,
        "gpu_type": request.gpu_type,
        "cpus_per_node": request.cpus_per_node,
        "memory_bytes": request.memory_bytes,
        "time_limit_s": request.time_limit_s,
    }


def _nearest(request: JobRequest, limits: Limits) -> dict[str, Any] | None:
    """The shape with the fewest changes that could start: the same partition first, then the others."""
    best: tuple[int, int, dict[str, Any]] | None = None
    for place, part in enumerate(limits.partitions):
        misfits = list(misfits_of(request, part))
        if any(misfit.what == "state" or not misfit.most for misfit in misfits):
            continue  # nothing runs there, or it has none of what was asked for
        is_other = part.name != request.partition
        shape = _wanted(request) | {"partition": part.name}
        for misfit in misfits:
            shape[misfit.what] = misfit.most[0] if misfit.what == "gpu_type" else misfit.most
        candidate = (len(misfits) + is_other, place, shape)
        if best is None or candidate[:2] < best[:2]:
            best = candidate
    return best[2] if best else None
