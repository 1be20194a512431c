"""What was allocated: stays of jobs on nodes by the scheduler's records; worker lives where there is no scheduler."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from fleetcraft.core.quantities import format_duration
from fleetcraft.fleet.state import FleetState, Job, Run
from fleetcraft.fleet.tail import job_ids
from fleetcraft.readmodel.gpu_attempts import LifeFacts
from fleetcraft.usage.api import Gpu
from fleetcraft.usage.ledger_api import Interval, Line
from fleetcraft.usage.ledger_profile import union

# Clocks of a scheduler and of its nodes differ, and a worker may be seen a moment before its job.
_CLOCKS_MS = 60_000
# The scheduler was not asked for so long: whether a job still runs is a guess.
_STALE_S = 600.0


@dataclass(slots=True, kw_only=True)
class Stay:
    """One node in one run of a job, or one host with its worker lives."""

    host: str
    span: Interval
    gpus: int | None  # None: as many as the workers list
    job: str = ""
    fleet: str = ""
    slots: int | None = None
    is_open: bool = False
    lives: list[LifeFacts] = field(default_factory=list)

    @property
    def devices(self) -> dict[str, int | None]:
        """UUID and memory of every GPU that a worker listed there."""
        return {uuid: memory for life in self.lives for uuid, memory in life.devices}


@dataclass(slots=True)
class Allocations:
    """All stays, and what does not fit together."""

    stays: list[Stay] = field(default_factory=list)
    jobs: int = 0  # of the scheduler
    problems: list[str] = field(default_factory=list)


def read_allocations(
    states: Mapping[str, FleetState], lives: Iterable[LifeFacts], now_ms: int, *,
    fleet: str | None = None, job: str | None = None,
) -> Allocations:  # fmt: skip
    """Every stay of the fleets' jobs, then lives that belong to none of them."""
    found = Allocations()
    left = {life.life: life for life in lives}
    for name, state in sorted(states.items()):
        for one in state.jobs.values():
            mine = [life for life in left.values() if _belongs(life, one)]
            for life in mine:
                del left[life.life]
            wanted = fleet in (None, name) and (job is None or job in job_ids(one))
            if wanted and one.runs:
                found.jobs += 1
                found.stays += _of_job(name, state, one, mine, now_ms, found.problems)
    if fleet is None:
        found.stays += _of_lives([life for life in left.values() if job in (None, life.job)])
    return found


def _belongs(life: LifeFacts, job: Job) -> bool:
    return life.job in job_ids(job) and life.start_ms >= round((job.intent_utc or 0) * 1000) - _CLOCKS_MS


def _of_job(
    fleet: str, state: FleetState, job: Job, lives: Sequence[LifeFacts], now_ms: int, problems: list[str]
) -> Iterator[Stay]:  # fmt: skip
    spec = state.spec_of(job)
    slots = spec.worker.cpus if spec is not None else None
    name = str(job.ref) if job.ref is not None else job.token
    for place, run in enumerate(job.runs):
        is_open = run.end_utc is None
        span = (round(run.start_utc * 1000), now_ms if run.end_utc is None else round(run.end_utc * 1000))
        mine = [life for life in lives if _run_of(life, job.runs) == place]
        last = place == len(job.runs) - 1
        hosts, unplaced = _hosts(job.node_names if last else (), mine, run.nodes)
        age_s = now_ms / 1000 - (job.seen_utc or run.start_utc)
        if is_open and age_s > _STALE_S:
            problems.append(f"job {name}: last seen running {format_duration(age_s)} ago; it counts up to now")
        if unplaced:
            problems.append(f"job {name}: workers told from {', '.join(unplaced)}, which the scheduler does not name")
        for host in hosts:
            here = [life for life in mine if same_host(life.host, host)]
            yield Stay(
                host=here[0].host if here else host, span=(span[0], max(span)), gpus=job.gpus_per_node or None,
                job=name, fleet=fleet, is_open=is_open, lives=here, slots=slots,
            )  # fmt: skip


def _run_of(life: LifeFacts, runs: Sequence[Run]) -> int:
    """The stay in which a life was born: the last that had begun by then, whatever the clocks."""
    begun = [place for place, run in enumerate(runs) if round(run.start_utc * 1000) - _CLOCKS_MS // 60 <= life.start_ms]
    return begun[-1] if begun else 0


def _hosts(names: Sequence[str], lives: Sequence[LifeFacts], nodes: int) -> tuple[list[str], list[str]]:
    """As many hosts as the scheduler counts, named as far as anybody told."""
    hosts = list(dict.fromkeys(names))
    unplaced = []
    for told in dict.fromkeys(life.host for life in lives):
        if any(same_host(told, host) for host in hosts):
            continue
        if len(hosts) < nodes:
            hosts.append(told)
        elif nodes == 1 and len(hosts) == 1 and not any(same_host(life.host, hosts[0]) for life in lives):
            hosts = [told]  # one node and one host: they are the same, whatever they call themselves
        else:
            unplaced.append(told)
    hosts += [f"(node {number + 1})" for number in range(len(hosts), nodes)]
    return hosts[:nodes], unplaced


def same_host(told: str, name: str) -> bool:
    """True where two names mean one host, with a domain or without."""
    return told == name or told.partition(".")[0] == name.partition(".")[0]


def _of_lives(lives: Sequence[LifeFacts]) -> Iterator[Stay]:
    """Lives of one job on one host together; without a scheduler they are all that is known of an allocation."""
    groups: dict[tuple[str, str], list[LifeFacts]] = {}
    for life in lives:
        groups.setdefault((life.job, life.host), []).append(life)
    for (job, host), mine in sorted(groups.items()):
        spans = union((life.start_ms, life.end_ms) for life in mine)
        for start_ms, end_ms in spans:
            here = [life for life in mine if life.start_ms < end_ms and life.end_ms > start_ms]
            alive = any(life.alive for life in here)
            yield Stay(host=host, span=(start_ms, end_ms), gpus=None, job=job, is_open=alive, lives=here)


def lines_of(stay: Stay, problems: list[str]) -> list[Line]:
    """A line for each GPU of a stay, or one for its slots where it has no GPU."""
    devices = list(stay.devices)  # as the worker lists them, which is by index
    wanted = len(devices) if stay.gpus is None else stay.gpus
    if not wanted:
        cpus = max((life.cpus for life in stay.lives if life.cpus), default=stay.slots or 1)
        return [_line(Gpu(host=stay.host, uuid="", index=0), stay, units=cpus, is_gpu=False)]
    if len(devices) > wanted:
        problems.append(
            f"{stay.host}: workers listed {len(devices)} GPUs, and job {stay.job} had {wanted} there; "
            "those beyond were not allocated and are not in the ledger"
        )
    named = [_line(Gpu(host=stay.host, uuid=uuid, index=index), stay) for index, uuid in enumerate(devices[:wanted])]
    rest = range(len(named), wanted)
    return named + [_line(Gpu(host=stay.host, uuid="", index=index), stay, named=False) for index in rest]


def _line(gpu: Gpu, stay: Stay, *, units: int = 1, is_gpu: bool = True, named: bool = True) -> Line:
    return Line(
        gpu=gpu, spans=(stay.span,), job=stay.job, fleet=stay.fleet, units=units, is_gpu=is_gpu, is_open=stay.is_open,
        named=named,
    )  # fmt: skip
