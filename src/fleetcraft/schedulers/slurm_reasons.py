"""Why a job waits: Slurm's reasons folded into five classes, each with a sentence for people.

There are more than two hundred of them, and sites and versions add theirs: an unknown one is a reason to wait, and its
text is kept.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

WAIT = "wait"
BLOCKED = "blocked"
HELD = "held"
MAINTENANCE = "maintenance"
DEAD = "dead"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasonReading:
    """What a reason means: wait, blocked (will not start as asked), held, maintenance or dead (can never start)."""

    reason: str  # the word alone
    cls: str
    sentence: str
    advice: str = ""  # what to do about it, in a word or two
    text: str = ""  # all of it, as it came
    nodes: str = ""  # the nodes that are not available


_EXACT: dict[str, tuple[str, str, str]] = {
    "None": (WAIT, "", "It has not been looked at yet."),
    "Priority": (WAIT, "", "Other jobs come first."),
    "Resources": (WAIT, "", "It is next, and waits for nodes to become free."),
    "Licenses": (WAIT, "", "It waits for a licence."),
    "Reservation": (WAIT, "", "It waits for its reservation to begin."),
    "Prolog": (WAIT, "", "The nodes are being prepared for it."),
    "Cleaning": (WAIT, "", "It was requeued, and its last run is still being cleaned up."),
    "BeginTime": (WAIT, "", "Its begin time has not come yet; after a requeue this takes some minutes."),
    "Dependency": (WAIT, "", "It waits for another job."),
    "JobArrayTaskLimit": (WAIT, "", "As many elements of its array run as it allows itself."),
    "SchedDefer": (WAIT, "", "The scheduler puts off new jobs for a moment."),
    "FedJobLock": (WAIT, "", "The clusters of the federation agree on who runs it."),
    "NodeDown": (WAIT, "", "A node that it needs is down."),
    "PartitionTimeLimit": (
        BLOCKED,
        "ask less time or other partition",
        "It asks for more time than its partition gives.",
    ),
    "PartitionNodeLimit": (
        BLOCKED,
        "ask fewer nodes or other partition",
        "It asks for more or fewer nodes than its partition gives.",
    ),
    "PartitionConfig": (BLOCKED, "other partition", "Its partition does not allow what it asks for."),
    "MaxMemPerLimit": (BLOCKED, "ask less memory", "It asks for more memory than is allowed."),
    "BadConstraints": (BLOCKED, "impossible constraint", "No node has all that it asks for."),
    "InvalidAccount": (BLOCKED, "account", "Its account is not valid."),
    "InvalidQOS": (BLOCKED, "qos", "Its QOS is not valid."),
    "AssociationTimeLimit": (BLOCKED, "ask less time", "It asks for more time than its account gives."),
    "QOSTimeLimit": (BLOCKED, "ask less time", "It asks for more time than its QOS gives."),
    "JobHeldUser": (HELD, "scontrol release", "Its owner holds it."),
    "JobHeldAdmin": (HELD, "ask the site, then scontrol release", "An administrator holds it."),
    "JobHoldMaxRequeue": (HELD, "scontrol release", "It was requeued too often and is held."),
    "PartitionDown": (MAINTENANCE, "", "Its partition takes jobs but starts none."),
    "PartitionInactive": (MAINTENANCE, "", "Its partition is switched off."),
    "ReqNodeNotAvail": (
        MAINTENANCE,
        "ask less time, or wait",
        "Nodes that it needs are down or reserved, often for maintenance; less time may let it start before.",
    ),
    "DependencyNeverSatisfied": (DEAD, "cancel it", "What it waits for can no longer come true: it never starts."),
}
# In order: the first that fits decides.
_PATTERNS: tuple[tuple[re.Pattern[str], str, str, str], ...] = tuple(
    (re.compile(pattern), cls, advice, sentence)
    for pattern, cls, advice, sentence in (
        # What jobs that run now may use together: it frees itself as they run on.
        (r"\w*Grp\w*RunMinutes\w*", WAIT, "", "Jobs that run now use up the limit of its account or QOS."),
        (r"\w*Grp\w*(Minutes|Wall)\w*", BLOCKED, "allocation exhausted", "The balance of its account is spent."),
        (r"\w*MaxWall\w*PerJob\w*", BLOCKED, "ask less time", "It asks for more time than its account or QOS gives."),
        (
            r"\w*Max\w*(Minutes|Mins)\w*PerJob\w*",
            BLOCKED,
            "ask less time or fewer nodes",
            "It would use more than one job may.",
        ),
        (
            r"\w*Max(GRES|Gres|gres)\w*Per(Job|Node)\w*",
            BLOCKED,
            "ask fewer GPUs",
            "It asks for more GPUs than one job may have.",
        ),
        (
            r"\w*Max(Mem|Memory)\w*Per(Job|Node|CPU)\w*",
            BLOCKED,
            "ask less memory",
            "It asks for more memory than one job may have.",
        ),
        (
            r"\w*Max(Cpu|CPU)s?\w*Per(Job|Node)\w*",
            BLOCKED,
            "ask fewer CPUs",
            "It asks for more CPUs than one job may have.",
        ),
        (
            r"\w*MaxNodes?\w*PerJob\w*",
            BLOCKED,
            "ask fewer nodes",
            "It asks for more nodes than one job may have.",
        ),
        (r"\w*Max\w*Per(Job|Node)\w*", BLOCKED, "ask less", "It asks for more than one job may have."),
        (r"\w*Min(Cpu|CPU|GRES|Mem|Node|BB|Billing|License|Energy)\w*", BLOCKED, "ask more", "It asks for too little."),
        (r"Account\w*NotAllowed", BLOCKED, "account/partition", "Its account may not use its partition."),
        (r"(QOS|Qos)\w*NotAllowed", BLOCKED, "qos", "Its QOS may not be used here."),
        (r"\w+NotAllowed", BLOCKED, "not allowed", "It asks for something that is not allowed."),
        (r"\w*BurstBuffer\w*", WAIT, "", "Its data is being staged."),
        (r"\w*JobsLimit|\w*MaxJobs\w*|\w*JobLimit", WAIT, "", "As many jobs run as its account or QOS allows."),
        (r"\w*Grp\w*", WAIT, "", "The jobs of its account or QOS use all that they may have together."),
        (r"\w*Max\w*Per(User|Account)\w*", WAIT, "", "The jobs of its owner use all that they may have together."),
        (r"Reservation\w+", MAINTENANCE, "other reservation", "Its reservation is gone or not usable."),
    )
)
_HELD_TEXT = re.compile(r".*\b(?:requeued held|in held state)\b.*", re.IGNORECASE | re.DOTALL)
_NODES = re.compile(r"UnavailableNodes:([^\s)]+)")
_WORD = re.compile(r"[A-Za-z][A-Za-z0-9_]*")


@lru_cache(maxsize=1024)
def read_reason(raw: str) -> ReasonReading:
    """The meaning of a reason, with or without what follows its comma."""
    text = raw.strip()
    if text.startswith("(") and text.endswith(")"):
        text = text[1:-1]
    text = text or "None"
    # scontrol prints the spaces of a free text as underscores.
    spaced = text.replace("_", " ")
    if _HELD_TEXT.fullmatch(spaced):
        sentence = "It was requeued and is held."
        return ReasonReading(reason=text, cls=HELD, sentence=sentence, advice="scontrol release", text=text)
    if " " in spaced.partition(",")[0].strip():
        return ReasonReading(reason=text, cls=WAIT, sentence=f"{spaced.rstrip('.')}.", text=text)
    word = _WORD.match(text)
    reason = word.group().rstrip("_") if word else text
    nodes = _NODES.search(text)
    cls, advice, sentence = _classify(reason)
    return ReasonReading(
        reason=reason,
        cls=cls,
        advice=advice,
        sentence=sentence or f"Slurm says: {spaced}.",
        text=text,
        nodes=nodes[1].rstrip(",") if nodes else "",
    )


def _classify(reason: str) -> tuple[str, str, str]:
    if reason in _EXACT:
        return _EXACT[reason]
    for pattern, cls, advice, sentence in _PATTERNS:
        if pattern.fullmatch(reason):
            return cls, advice, sentence
    return WAIT, "", ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dependency:
    """One thing that a job waits for."""

    type: str
    job: str | None
    status: str = ""


_DEPENDENCY = re.compile(r"([A-Za-z]+)((?::[0-9A-Za-z_+*\[\]-]+)*)(?:\(([^)]*)\))?")


@lru_cache(maxsize=1024)
def read_dependency(text: str) -> tuple[Dependency, ...]:
    """What stands behind `Dependency=`: `afterok:65(failed),singleton(unfulfilled)`.

    Pieces that fit nothing are left out.
    """
    found: list[Dependency] = []
    for piece in re.split(r"[,?]", text.strip()):
        match = _DEPENDENCY.fullmatch(piece.strip())
        if not match:
            continue
        kind, jobs, status = match[1], match[2], match[3] or ""
        names = [job.removesuffix("_*") for job in jobs.split(":")[1:]]
        found += [Dependency(type=kind, job=job, status=status) for job in names or [None]]
    return tuple(found)


def failed_parents(text: str) -> tuple[str, ...]:
    """The jobs whose end made a dependency impossible."""
    return tuple(item.job for item in read_dependency(text) if item.job and item.status == "failed")
