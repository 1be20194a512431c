"""Limits: what associations, QOS, partitions and the cluster allow, against this request and what the user has already.

A limit that only makes a job wait is told, not refused; one that it can never meet, or that rejects the submission, is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

from fleetcraft.core.decision import Decision
from fleetcraft.core.quantities import format_duration
from fleetcraft.core.states import JobState
from fleetcraft.schedulers.api import AccountLimits, JobRequest, JobView, Limits, PartitionLimits

TIME = "time limit"
# What a job holds of the limits. One that is ending holds nothing any more: Slurm gives back its place among the
# submitted ones (acct_policy_remove_job_submit) and its nodes and GPUs (acct_policy_job_fini) when the job ends, before
# its epilog is over. The same state stands for one that lost its node and is still remembered. Where it is put back
# into the queue it is submitted again, and the next look shows it as waiting.
_RELEASED = JobState.ENDING


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One limit: how high it is, what is wanted of it, what is left."""

    limit: str
    where: str
    value: float
    used: float
    wanted: float
    refuses: bool  # False: the job would only wait

    @property
    def left(self) -> float:
        """What is left before this request."""
        return self.value - self.used

    @property
    def is_met(self) -> bool:
        """True when the request fits below it."""
        return self.wanted <= self.left

    def sentence(self) -> str:
        """For a person."""
        value, left, wanted = (self._shown(number) for number in (self.value, self.left, self.wanted))
        left = f"{left} left, " if self.used else ""
        return f"{self.limit} of {self.where} is {value}, {left}{wanted} wanted"

    def _shown(self, number: float) -> str:
        return format_duration(number) if self.limit == TIME else f"{number:g}"


def decide_limits(
    request: JobRequest, limits: Limits, mine: Sequence[JobView] | None, gpus: int | None = None
) -> Decision:
    """Refuse with every limit that stands against it.

    `mine` None: the user's own jobs could not be read. `gpus`: of the whole job, where they come with the nodes.
    """
    problems = list(limits.problems)
    if not limits.answered:
        said = "; ".join(problems) or "no answer"
        return Decision.refuse(f"the site's limits could not be read: {said}", problems=problems, unanswered=said)
    if problems:
        # One of the questions has no answer, and the limit that matters may stand there.
        said = "; ".join(problems)
        return Decision.refuse(f"not every limit was told: {said}", problems=problems, unanswered=said)
    if mine is None:
        return Decision.refuse(
            "the user's own jobs could not be read, so what is left of the limits is unknown",
            unanswered="the user's own jobs were not told",
        )
    found = list(findings(request, limits, mine, gpus))
    against = [finding for finding in found if finding.refuses and not finding.is_met]
    waits = [finding for finding in found if not finding.refuses and not finding.is_met]
    facts = {
        "limits": [asdict(finding) | {"left": finding.left} for finding in found],
        "problems": problems,
        "accounting": limits.has_accounting,
    }
    if against:
        return Decision.refuse("; ".join(finding.sentence() for finding in against), **facts)
    if waits:
        return Decision.allow(
            f"it will wait: {'; '.join(finding.sentence() for finding in waits)}", waits=True, **facts
        )
    told = f"{len(found)} limits leave room" if found else "the site tells no limit"
    return Decision.allow(told, waits=False, **facts)


def findings(
    request: JobRequest, limits: Limits, mine: Sequence[JobView], gpus: int | None = None
) -> Iterator[Finding]:
    """Every limit that has a number, met or not."""
    for part in limits.partitions:
        if part.name != request.partition and not (request.partition is None and part.is_default):
            continue
        where = f"partition {part.name}"
        yield from _plain("nodes per job", where, part.max_nodes, request.nodes)
        yield from _plain(TIME, where, part.time_limit_s, request.time_limit_s)
    for account in limits.accounts:
        if _concerns(account, request):
            wanted = request.nodes * request.gpus_per_node if gpus is None else gpus
            yield from _account(account, request, _held_by(account, mine, limits.partitions), wanted)
    if request.array:
        # The cluster's number caps the index, not how many there are.
        highest = None if limits.max_array_size is None else limits.max_array_size - 1
        yield from _plain("array index", "the cluster", highest, max(request.array))
        yield from _plain("tasks of one array", "the cluster", limits.max_array_tasks, len(request.array))


def _concerns(account: AccountLimits, request: JobRequest) -> bool:
    """The limits of another QOS than the one asked for do not count; without a name any of them may."""
    return (
        _may_be(request.qos, account.qos)
        and _may_be(request.account, account.account)
        and _may_be_in(request.partition, account.partition)
    )


def _held_by(account: AccountLimits, mine: Sequence[JobView], partitions: Sequence[PartitionLimits]) -> list[JobView]:
    """The user's jobs that take something of these limits. One whose QOS, account or partition is not told does."""
    # The QOS of a partition limits every job in it, whatever the job's own QOS is.
    through = [part.name for part in partitions if account.qos and part.qos == account.qos]
    return [
        job
        for job in mine
        if not job.state.ended
        and job.state is not _RELEASED
        and (_may_be(job.qos, account.qos) or any(_may_be_in(job.partition, name) for name in through))
        and _may_be(job.account, account.account)
        and _may_be_in(job.partition, account.partition)
    ]


def _may_be(told: str | None, wanted: str) -> bool:
    # Slurm keeps these names in lower case, however they were written.
    return not told or not wanted or told.lower() == wanted.lower()


def _may_be_in(told: str | None, wanted: str) -> bool:
    # A waiting job may name several partitions and starts in any of them.
    return not told or not wanted or wanted in told.split(",")


def _account(account: AccountLimits, request: JobRequest, live: Sequence[JobView], gpus: int) -> Iterator[Finding]:
    where = account.where
    running = [job for job in live if job.state is JobState.RUNNING]
    jobs = max(1, len(request.array))
    yield from _plain("nodes per job", where, account.max_nodes_per_job, request.nodes)
    yield from _plain(TIME, where, account.max_wall_s, request.time_limit_s)
    yield from _plain("submitted jobs", where, account.max_submit, jobs, used=len(live))
    if account.gpu_minutes_left is not None and request.time_limit_s is not None:
        minutes = jobs * gpus * request.time_limit_s / 60
        yield from _plain("GPU minutes", where, account.gpu_minutes_left, minutes)
    yield from _shared("running jobs", where, account.max_jobs, jobs if not request.array else 1, len(running))
    used_nodes = sum(job.node_count or len(job.nodes) for job in running)
    yield from _shared("nodes at once", where, account.max_nodes, request.nodes, used_nodes)
    yield from _shared("GPUs at once", where, account.max_gpus, gpus, sum(job.gpus or 0 for job in running))


def _plain(limit: str, where: str, value: float | None, wanted: float | None, used: float = 0) -> Iterator[Finding]:
    if value is not None and wanted is not None:
        yield Finding(limit=limit, where=where, value=value, used=used, wanted=wanted, refuses=True)


def _shared(limit: str, where: str, value: float | None, wanted: float, used: float) -> Iterator[Finding]:
    """A limit over everything that runs: above all of it the job never starts, above what is left it waits."""
    if value is not None:
        yield Finding(limit=limit, where=where, value=value, used=used, wanted=wanted, refuses=wanted > value)
