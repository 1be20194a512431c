"""What sbatch's reply is worth: submitted, refused and why, never sent, or nobody knows.

Only a reply that proves that nothing was delivered allows to send the request again; everything else is looked up by
the token first.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from fleetcraft.schedulers.api import JobRef, Retry, StartEstimate, Submission, SubmitOutcome
from fleetcraft.schedulers.hostlist import expand
from fleetcraft.schedulers.slurm_times import epoch_utc

_PHRASE = re.compile(r"[ \t]*Submitted batch job ([0-9]{1,18})(?: on cluster ([A-Za-z0-9_.-]{1,64}))?[ \t\r]*")
_PARSABLE = re.compile(r"[ \t]*([0-9]{1,18})(?:;([A-Za-z0-9_.-]{1,64}))?[ \t\r]*")
_PREFIX = re.compile(r"^\s*(?:sbatch|srun|salloc):\s*(?:error|fatal|warning|info)?:?\s*", re.IGNORECASE)
_FAILED = re.compile(r"^(?:Batch job submission failed|allocation failure):\s*", re.IGNORECASE)
_LIMIT = re.compile(r"\b(?:QOS|Assoc)\w*(?:Limit|Per\w+)\b")
_LONGEST_TEXT = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rule:
    pattern: re.Pattern[str]
    outcome: SubmitOutcome
    code: str
    retry: Retry
    hint: str


def _rule(pattern: str, outcome: SubmitOutcome, code: str, retry: Retry, hint: str) -> _Rule:
    return _Rule(pattern=re.compile(pattern, re.IGNORECASE), outcome=outcome, code=code, retry=retry, hint=hint)


_NO, _NOT_SENT, _LOST = SubmitOutcome.REJECTED, SubmitOutcome.NOT_SUBMITTED, SubmitOutcome.AMBIGUOUS
_LOOK_UP_HINT = "The job may exist: it is looked up by its token before anything is sent again."
# The first rule that fits decides: what may have been delivered comes before what surely was not.
_RULES = (
    _rule(
        r"timed out on send/recv|Zero Bytes were transmitted|Unexpected message received|Transport endpoint"
        r"|controller \((?:receive|send|shutdown) failure\)|Connection reset by peer|Broken pipe|"
        r"Message receive failure|Communication connection failure after",
        _LOST,
        "reply_lost",
        Retry.LOOK_UP,
        _LOOK_UP_HINT,
    ),
    _rule(
        r"problem talking to (?:the )?database",
        _NOT_SENT,
        "database",
        Retry.TRANSIENT,
        "The accounting database does not answer; drop --clusters, and the local cluster can be reached without it.",
    ),
    _rule(
        r"munge.*(?:encode|socket|daemon)|Munge encode failed|If munged is up",
        _NOT_SENT,
        "authentication",
        Retry.TRANSIENT,
        "The munge daemon of this host does not answer.",
    ),
    _rule(
        r"\(connect failure\)|Connection refused|Unable to contact slurm controller|backup controller in standby"
        r"|Unable to resolve|Host is unreachable|No route to host",
        _NOT_SENT,
        "controller",
        Retry.TRANSIENT,
        "The controller cannot be reached; nothing was sent. Try again later.",
    ),
    _rule(
        r"temporarily unable to accept job|Resource temporarily unavailable|maximum number of jobs|MaxJobCount",
        _NOT_SENT,
        "busy",
        Retry.TRANSIENT,
        "The controller takes no more jobs for now. Try again later.",
    ),
    _rule(
        # Older versions name no limit: waiting for a place is the harmless reading.
        r"\w*(?:Max|Grp)Submit\w*|submit limit reached"
        r"|(?s:\A(?!.*\b(?:QOS|Assoc)\w+).*Job violates accounting/QOS policy)",
        _NO,
        "submit_limit",
        Retry.WHEN_QUEUE_DRAINS,
        "As many jobs as allowed are queued; it waits for a free place.",
    ),
    _rule(
        r"Job violates accounting/QOS policy",
        _NO,
        "policy",
        Retry.NEVER,
        "It asks for more than its account or QOS allows.",
    ),
    _rule(
        r"Invalid job array specification",
        _NO,
        "array_spec",
        Retry.CHUNK,
        "An index of the array is at or over MaxArraySize (the limit is on the index), or the list is malformed.",
    ),
    _rule(
        r"Invalid partition|invalid partition specified|partition .*not (?:found|exist)",
        _NO,
        "partition",
        Retry.NEVER,
        "There is no such partition; `sinfo --summarize` lists them.",
    ),
    _rule(
        r"Invalid qos|qos .*not permitted",
        _NO,
        "qos",
        Retry.NEVER,
        "There is no such QOS, or it is not this account's.",
    ),
    _rule(
        r"Invalid account|account.*(?:not permitted|required)|Invalid wckey|must specify an account",
        _NO,
        "account",
        Retry.NEVER,
        "The account is not known, or may not use this partition; `sacctmgr show associations` lists yours.",
    ),
    _rule(
        r"time limit is invalid|Requested time limit|exceeds? .*time limit|time limit .*exceed",
        _NO,
        "time_limit",
        Retry.NEVER,
        "It asks for more time than the partition or the account gives.",
    ),
    _rule(
        r"Invalid generic resource|Invalid GRES|Invalid Trackable RESource|invalid tres",
        _NO,
        "gres",
        Retry.NEVER,
        "The site has no GPUs of this kind under this name; `sinfo --format='%R %G'` shows what there is.",
    ),
    _rule(
        r"DOS line breaks|does not look like a batch script|first line must start with|script is empty"
        r"|Batch script (?:contains|is empty)|script.*too large|parameter too long",
        _NO,
        "script",
        Retry.NEVER,
        "The script is not one that sbatch takes: it begins with #! and has plain line ends.",
    ),
    _rule(
        r"dependency problem|Invalid job dependency",
        _NO,
        "dependency",
        Retry.NEVER,
        "A job that it waits for is not known any more.",
    ),
    _rule(
        r"(?:Requested|Invalid) reservation|reservation .*(?:invalid|not found|denied)",
        _NO,
        "reservation",
        Retry.NEVER,
        "The reservation is not known, or not yours.",
    ),
    _rule(
        r"Invalid (?:feature|constraint)|invalid prefer", _NO, "constraint", Retry.NEVER, "No node has such a feature."
    ),
    _rule(
        r"Invalid node name|invalid host|Invalid hostlist",
        _NO,
        "nodelist",
        Retry.NEVER,
        "A node of the list is not known.",
    ),
    _rule(
        r"Access/permission denied|User not (?:permitted|allowed)|Group not permitted|Invalid user id|not authorized",
        _NO,
        "permission",
        Retry.NEVER,
        "The site does not let this user submit it.",
    ),
    _rule(
        r"Requested partition configuration not available now|partition not available|node not available"
        r"|partition is in (?:inactive|down|drain)",
        _NO,
        "unavailable",
        Retry.TRANSIENT,
        "The partition or its nodes are down or drained for now.",
    ),
    _rule(
        r"node configuration is not available|Memory specification can not|Node count specification|More processors"
        r"|Unable to allocate resources|CPU count|Task count|Requested .* exceeds|Job size specification",
        _NO,
        "resources",
        Retry.NEVER,
        "No node, or not enough of them, has what it asks for.",
    ),
    _rule(
        r"unrecognized option|unrecognised option|ambiguous option|option .*(?:requires|doesn't allow) an? argument"
        r"|Invalid --?[\w-]+ specification|Invalid numeric value|invalid option|Invalid .*specification",
        _NO,
        "bad_option",
        Retry.NEVER,
        "sbatch of this site does not take an option or its value.",
    ),
)


def read_sbatch(out: str, err: str, code: int | None, problem: str = "") -> Submission:
    """What became of a submission. `code` None: there was no answer, and `problem` says why."""
    if code is None:
        if problem.startswith("not found"):
            return _no_command(problem)
        return _unknown(problem or "no answer")
    ref = _find_id(out)
    # Notes on stderr do not unmake a job: sbatch tries by itself again and says so.
    if code == 0 and ref is not None:
        return Submission(outcome=SubmitOutcome.SUBMITTED, ref=ref, text=_cleaned(err))
    text = _cleaned(err) or _cleaned(out)
    if code == 127 and re.search(r"not found", text):
        return _no_command(text)
    if code == 0:
        return _unknown(text or "sbatch gave no id")
    if code > 128 and code != 255:
        return _unknown(text or f"sbatch was ended by signal {code - 128}")
    refused = _refusal(err or out, text, code)
    if ref is not None and refused.outcome is SubmitOutcome.NOT_SUBMITTED:
        # A line that looks like an id beside an error of the network: it may be one.
        return _unknown(text)
    return refused


def _refusal(said: str, text: str, code: int) -> Submission:
    for rule in _RULES:
        if rule.pattern.search(said):
            limit = _LIMIT.search(said) if rule.code in ("submit_limit", "policy") else None
            hint = f"{rule.hint} ({limit[0]})" if limit else rule.hint
            return Submission(outcome=rule.outcome, code=rule.code, retry=rule.retry, text=text, hint=hint)
    if re.search(r"submission failed|sbatch: (?:error|fatal)", said, re.IGNORECASE):
        return Submission(
            outcome=SubmitOutcome.REJECTED,
            code="other",
            retry=Retry.NEVER,
            text=text,
            hint="The site refused it in words of its own.",
        )
    return _unknown(text or f"sbatch ended with code {code} and said nothing")


def _no_command(text: str) -> Submission:
    return Submission(
        outcome=SubmitOutcome.NOT_SUBMITTED,
        code="no_command",
        retry=Retry.NEVER,
        text=text,
        hint="There is no sbatch on the PATH of this host; load the site's module, or run this on a login node.",
    )


def _unknown(text: str) -> Submission:
    return Submission(
        outcome=SubmitOutcome.AMBIGUOUS, code="reply_lost", retry=Retry.LOOK_UP, text=text, hint=_LOOK_UP_HINT
    )


def _find_id(out: str) -> JobRef | None:
    """The id: the sentence of sbatch, or else the last line that is an id and nothing else.

    Banners and filters of a site print digits too; no other line is looked at.
    """
    lines = out.split("\n")
    for pattern in (_PHRASE, _PARSABLE):
        for line in reversed(lines):
            match = pattern.fullmatch(line)
            if match and int(match[1]) > 0:
                return JobRef(id=match[1], cluster=match[2])
    return None


def _cleaned(text: str) -> str:
    """The lines without the program's name and without what all of them begin with; the useful cause comes first."""
    lines = []
    for line in text.split("\n"):
        said = _FAILED.sub("", _PREFIX.sub("", line)).strip()
        if said and said not in lines:
            lines.append(said)
    return "; ".join(lines)[:_LONGEST_TEXT]


_START = re.compile(
    r"Job (?P<id>[0-9]{1,18}) to start at (?P<start>\S+)(?P<more>.*?) using (?P<processors>[0-9]{1,9}) processors"
    r"(?: on nodes (?P<nodes>\S+))?(?: in partition (?P<partition>\S+))?"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TestOnly:
    """What `sbatch --test-only` said. Its job id was used up for nothing and names no job."""

    __test__ = False  # not a test, whatever its name says to a collector

    ok: bool | None  # None: no answer
    start: str = ""
    start_utc: float | None = None
    processors: int | None = None
    nodes: str = ""
    partition: str = ""
    code: str = ""
    text: str = ""

    def estimate(self) -> StartEstimate:
        """The same as the seam speaks of it."""
        return StartEstimate(
            possible=self.ok,
            start_utc=self.start_utc,
            nodes=expand(self.nodes) or (),
            partition=self.partition,
            code=self.code,
            text=self.text,
        )


def read_test_only(
    out: str, err: str, code: int | None, problem: str = "", utc_offset_s: float | None = None
) -> TestOnly:
    """What would happen. Slurm says it on stderr, and the exit code is 0 only when it could start."""
    if code is None:
        return TestOnly(ok=None, text=problem or "no answer")
    said = f"{err}\n{out}"
    match = _START.search(said)
    if match and code == 0:
        start = match["start"]
        return TestOnly(
            ok=True,
            start=start,
            start_utc=epoch_utc(start, utc_offset_s),
            processors=int(match["processors"]),
            nodes=match["nodes"] or "",
            partition=match["partition"] or "",
            text=_cleaned(err),
        )
    refused = _refusal(said, _cleaned(said), code)
    if code == 0 or refused.outcome is not SubmitOutcome.REJECTED:
        return TestOnly(ok=None, code=refused.code, text=refused.text)
    return TestOnly(ok=False, code=refused.code, text=refused.text)
