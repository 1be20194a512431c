"""From a request to the words of `sbatch`: long options only, the script by stdin, nothing of a person in directives.

The job's environment is closed: sbatch itself is started with exactly the variables named here, and `--export=ALL`
then carries these and no others. Of the other ways, `NONE` and a list of names make every node log the user in to
find an environment (slow, and a broken profile holds the job), `NIL` leaves not even a PATH, and a list of
`NAME=value` cannot hold a comma.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass

from fleetcraft.core.errors import UsageError
from fleetcraft.schedulers.api import JobRef, JobRequest
from fleetcraft.schedulers.hostlist import compress, expand
from fleetcraft.schedulers.slurm_ids import array_text, parse_job_id
from fleetcraft.schedulers.slurm_quantities import memory_option
from fleetcraft.schedulers.slurm_times import whole_minutes
from fleetcraft.transports.api import Surroundings

COMMENT_PREFIX = "fleetcraft:"
# Variables of the login that a job may rely on; everything else is named in the request or does not reach the job.
LOGIN_VARIABLES = ("HOME", "USER", "LOGNAME", "SHELL", "PATH", "LANG", "TZ", "SLURM_CONF")
_MAX_SCRIPT_BYTES = 4 * 1024 * 1024 - 1024
_MAX_NAME = 128
_MAX_SIGNAL_BEFORE_S = 65_535

_TOKEN = re.compile(r"[a-z0-9][a-z0-9-]{0,39}")
_OUR_TOKEN = re.compile(r".*\.(fc[a-z2-7]{10})", re.DOTALL)
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SIGNAL = re.compile(r"(?:SIG)?([A-Z][A-Z0-9]{1,9}|[0-9]{1,2})")
_GPU_TYPE = re.compile(r"[A-Za-z][A-Za-z0-9_.+-]*")
_DIRECTIVE = re.compile(r"#(?:SBATCH|PBS|BSUB)\b")
# Variables that change what the commands of Slurm do or print.
RESHAPING_PREFIXES = (
    "SBATCH_",
    "SLURM_",
    "SQUEUE_",
    "SACCT_",
    "SALLOC_",
    "SRUN_",
    "SCANCEL_",
    "SINFO_",
    "SACCTMGR_",
    "SCONTROL_",
    "SPRIO_",
    "SSHARE_",
    "SREPORT_",
)
# Whatever would take away our token, our reply or the script.
_OURS_ALONE = (
    "job-name",
    "comment",
    "parsable",
    "quiet",
    "wrap",
    "wait",
    "test-only",
    "array",
    "export",
    "export-file",
    "get-user-env",
    "help",
    "usage",
    "version",
)
_OURS_ALONE_SHORT = frozenset("JQWaHhuV")


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """What the version and the profile of a site decide about options."""

    cluster: str | None = None
    gpu_option: str = "gpus-per-node"  # or gres, where the first is too new or closed; none: nodes come with GPUs
    me_option: bool = True  # squeue --me; needs 20.02
    user: str = ""  # for squeue --user where --me is not known
    kill_on_invalid_dep: bool = False  # some sites forbid it: it made runaway jobs there


ANY_SITE = Site()


def sbatch_argv(request: JobRequest, *, now_utc: float, site: Site = ANY_SITE, test_only: bool = False) -> list[str]:
    """The words. The script goes to stdin (`script_bytes`), the environment is `sbatch_surroundings`."""
    check_request(request)
    words = ["sbatch", "--parsable"]
    if test_only:
        words.append("--test-only")
    if site.cluster:
        words.append(f"--clusters={_plain(site.cluster, 'cluster')}")
    words += [
        f"--job-name={job_name(request)}",
        f"--comment={job_comment(request.token)}",
        "--export=ALL",
        "--requeue" if request.requeue else "--no-requeue",
        # A requeued job goes on in the file that it began.
        "--open-mode=append",
    ]
    words += _shape(request, site)
    words += _place(request)
    words += _time(request, now_utc)
    if request.after_any:
        words.append("--dependency=afterany:" + ":".join(_dependency_id(ref) for ref in request.after_any))
        if site.kill_on_invalid_dep:
            words.append("--kill-on-invalid-dep=yes")
    if request.array:
        words.append(f"--array={array_text(request.array, request.array_limit)}")
    if request.output is not None:
        words.append(f"--output={request.output}")
    if request.cwd is not None:
        words.append(f"--chdir={request.cwd}")
    if request.hold:
        words.append("--hold")
    return words + list(request.extra)


def _shape(request: JobRequest, site: Site) -> list[str]:
    words = [f"--nodes={request.nodes}", f"--ntasks-per-node={request.tasks_per_node}"]
    if request.cpus_per_node is not None:
        words.append(f"--cpus-per-task={request.cpus_per_node // request.tasks_per_node}")
    if request.gpus_per_node and site.gpu_option != "none":
        kind = f"{request.gpu_type}:" if request.gpu_type else ""
        if site.gpu_option == "gres":
            words.append(f"--gres=gpu:{kind}{request.gpus_per_node}")
        else:
            words.append(f"--gpus-per-node={kind}{request.gpus_per_node}")
    if request.memory_bytes is not None:
        words.append(f"--mem={memory_option(request.memory_bytes)}")
    if request.exclusive:
        words.append("--exclusive")
    return words


def _place(request: JobRequest) -> list[str]:
    words = []
    for option in ("partition", "account", "qos", "reservation", "constraint"):
        value = getattr(request, option)
        if value is not None:
            words.append(f"--{option}={value}")
    if request.nodelist:
        words.append(f"--nodelist={compress(request.nodelist)}")
    if request.exclude:
        words.append(f"--exclude={compress(request.exclude)}")
    return words


def _time(request: JobRequest, now_utc: float) -> list[str]:
    words = []
    if request.time_limit_s is not None:
        # A number alone is minutes for sbatch, and seconds would be rounded up all the same.
        words.append(f"--time={whole_minutes(request.time_limit_s)}")
    if request.begin_utc is not None and request.begin_utc > now_utc:
        # A date would be read in the zone of the host that runs sbatch.
        words.append(f"--begin=now+{math.ceil(request.begin_utc - now_utc)}")
    if request.signal is not None:
        # B: to the batch script; without it only the steps would hear it.
        words.append(f"--signal=B:{request.signal.removeprefix('SIG')}@{math.ceil(request.signal_before_s)}")
    return words


def job_name(request: JobRequest) -> str:
    """The name with the token behind its last full stop."""
    return f"{request.name}.{request.token}"


def job_comment(token: str) -> str:
    """What the comment of the job says."""
    return COMMENT_PREFIX + token


def token_in(name: str, comment: str = "") -> str:
    """The token of a job of ours, empty for any other."""
    said = comment.strip()
    if said.startswith(COMMENT_PREFIX) and _TOKEN.fullmatch(said.removeprefix(COMMENT_PREFIX)):
        return said.removeprefix(COMMENT_PREFIX)
    match = _OUR_TOKEN.fullmatch(name.strip())
    return match[1] if match else ""


def carries(token: str, name: str, comment: str = "") -> bool:
    """True when a job carries exactly this token, in either place: sites cut names and rewrite comments."""
    return comment.strip() == COMMENT_PREFIX + token or name.strip().endswith(f".{token}")


def script_bytes(request: JobRequest) -> bytes:
    """What goes to stdin of sbatch; refused when sbatch would refuse it or read orders out of it."""
    script = request.script
    if not script.startswith("#!"):
        raise UsageError("script: the first line must start with #!, as in #!/bin/bash.")
    if "\r" in script:
        raise UsageError("script: it has carriage returns, which sbatch refuses.", hint="Write plain line ends.")
    if "\0" in script:
        raise UsageError("script: it has a null character.")
    for number, line in enumerate(script.split("\n"), 1):
        if line.strip() and not line.startswith("#"):
            break  # sbatch looks for directives only before the first command
        if _DIRECTIVE.match(line):
            raise UsageError(f"script: line {number} is a directive ({line[:40]!r}).", hint="Options go by argument.")
    try:
        data = script.encode()
    except UnicodeEncodeError as error:
        raise UsageError("script: it has characters that are not text.") from error
    if len(data) > _MAX_SCRIPT_BYTES:
        raise UsageError(f"script: it has {len(data)} bytes; Slurm takes at most 4 MiB.")
    return data


def sbatch_surroundings(request: JobRequest, *, test_only: bool = False) -> Surroundings:
    """The closed environment of a submission: it is also the job's."""
    check_request(request)
    add = dict(request.env)
    if test_only:
        # No job will see it, and the answer holds a time.
        add["SLURM_TIME_FORMAT"] = "%s"
    # Every name begins with nothing: all are dropped but the kept ones.
    return Surroundings(drop_prefixes=("",), keep=LOGIN_VARIABLES, add=add)


def check_request(request: JobRequest) -> None:
    """Raise UsageError, with the name of the field, for what must not reach a command line."""
    if not _TOKEN.fullmatch(request.token):
        raise UsageError(f"token: {request.token!r} is not 1 to 40 lower-case letters, digits and dashes.")
    if not _NAME.fullmatch(request.name) or len(request.name) > _MAX_NAME:
        raise UsageError(
            f"name: {request.name[:_MAX_NAME]!r} is not a job name.",
            hint=f"Letters, digits, dots, dashes and underscores; at most {_MAX_NAME}.",
        )
    for field in ("partition", "account", "qos", "reservation", "constraint", "output", "cwd"):
        value = getattr(request, field)
        if value is not None:
            _plain(value, field)
    if request.gpu_type is not None and not _GPU_TYPE.fullmatch(request.gpu_type):
        raise UsageError(f"gpu_type: {request.gpu_type!r} is not a kind of GPU.")
    if request.signal is not None and not _SIGNAL.fullmatch(request.signal):
        raise UsageError(f"signal: {request.signal!r} is not a signal.", hint="Write USR1, TERM or a number.")
    _check_numbers(request)
    _check_hosts(request.nodelist, "nodelist")
    _check_hosts(request.exclude, "exclude")
    for name, value in request.env.items():
        if not _VARIABLE.fullmatch(name):
            raise UsageError(f"env: {name!r} is not the name of a variable.")
        if "\0" in value:
            raise UsageError(f"env: the value of {name} has a null character.")
        if name.startswith(RESHAPING_PREFIXES) and name not in LOGIN_VARIABLES:
            raise UsageError(f"env: {name} would change what sbatch does.", hint="Set it in the script.")
    for ref in request.after_any:
        _dependency_id(ref)
    _check_extra(request.extra)


def _check_numbers(request: JobRequest) -> None:
    for field, least in (("nodes", 1), ("tasks_per_node", 1), ("gpus_per_node", 0)):
        if getattr(request, field) < least:
            raise UsageError(f"{field}: {getattr(request, field)} is less than {least}.")
    cpus = request.cpus_per_node
    if cpus is not None and (cpus < 1 or cpus % request.tasks_per_node):
        raise UsageError(f"cpus_per_node: {cpus} cannot be shared evenly by {request.tasks_per_node} tasks.")
    if request.memory_bytes is not None and request.memory_bytes < 0:
        raise UsageError(f"memory_bytes: {request.memory_bytes} is negative.")
    limit = request.time_limit_s
    # Slurm takes 0 and negative numbers for no limit at all, which nobody meant.
    if limit is not None and not (math.isfinite(limit) and limit > 0):
        raise UsageError(f"time_limit_s: {limit} is not a time over 0.")
    if request.begin_utc is not None and not math.isfinite(request.begin_utc):
        raise UsageError(f"begin_utc: {request.begin_utc} is not a time.")
    if not 0 <= request.signal_before_s <= _MAX_SIGNAL_BEFORE_S:
        raise UsageError(f"signal_before_s: {request.signal_before_s} is not between 0 and {_MAX_SIGNAL_BEFORE_S}.")
    if any(index < 0 for index in request.array):
        raise UsageError(f"array: {min(request.array)} is not an index.")
    if request.array_limit is not None and request.array_limit < 1:
        raise UsageError(f"array_limit: {request.array_limit} is less than 1.")


def _check_hosts(names: Iterable[str], field: str) -> None:
    for name in names:
        if name.startswith("-") or expand(name) != (name,):
            raise UsageError(f"{field}: {name!r} is not the name of a node.")


def _plain(value: str, field: str) -> str:
    """A value that stays one word and one line, and cannot be taken for an option."""
    if not value:
        raise UsageError(f"{field}: it is empty.")
    if value.startswith("-"):
        raise UsageError(f"{field}: {value!r} starts with a dash.")
    _printable(value, field)
    return value


def _printable(value: str, field: str) -> None:
    if not value.isprintable():
        raise UsageError(f"{field}: {value!r} has control characters or line breaks.")


def _check_extra(words: Iterable[str]) -> None:
    for word in words:
        _printable(word, "extra")
        if word.startswith("--") and len(word) > 2:
            option = word[2:].partition("=")[0]
            # A long option may be cut to what is unique: --comm is --comment.
            taken = any(name.startswith(option) for name in _OURS_ALONE)
        elif word.startswith("-") and len(word) > 1 and word[1] != "-":
            taken = word[1] in _OURS_ALONE_SHORT
        else:
            raise UsageError(f"extra: {word!r} is not an option.", hint="Write --option=value as one word.")
        if taken:
            raise UsageError(f"extra: {word!r} is set by Fleetcraft itself.")


def _dependency_id(ref: JobRef) -> str:
    job = parse_job_id(ref.id)
    if job is None or job.step is not None or job.is_list:
        raise UsageError(f"after_any: {ref.id!r} is not the id of a job.")
    return job.key
