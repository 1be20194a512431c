"""The words of every other command of Slurm, and the environment in which they are asked.

`SQUEUE_PARTITION` in somebody's profile empties a listing with exit code 0: whatever could reshape an answer is
dropped, and times come as numbers without a zone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from fleetcraft.core.errors import UsageError
from fleetcraft.schedulers.api import JobRef
from fleetcraft.schedulers.slurm_accounting import ACCOUNT_FIELDS, ACCOUNT_FIND_FIELDS, SEPARATOR
from fleetcraft.schedulers.slurm_args import ANY_SITE, RESHAPING_PREFIXES, Site
from fleetcraft.schedulers.slurm_ids import JobId, parse_job_id
from fleetcraft.schedulers.slurm_rows import QUEUE_HOT, squeue_format
from fleetcraft.transports.api import Surroundings

# More ids in one call, and the command line may become too long for a site's wrapper.
CHUNK = 200
# Functions that a profile exports under the name of a command, and other languages, go too.
DROPPED_PREFIXES = (*RESHAPING_PREFIXES, "BASH_FUNC_", "LC_", "LANGUAGE")
_USER = re.compile(r"[A-Za-z_][A-Za-z0-9_.@-]{0,63}")
_SIGNAL = re.compile(r"(?:SIG)?([A-Z][A-Z0-9]{1,9}|[0-9]{1,2})")
_CLUSTER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")


def query_surroundings() -> Surroundings:
    """For every command but sbatch. SLURM_BITSTR_LEN=0 keeps long lists of array elements whole."""
    return Surroundings(
        drop_prefixes=DROPPED_PREFIXES,
        keep=("SLURM_CONF",),
        add={"SLURM_BITSTR_LEN": "0", "SLURM_TIME_FORMAT": "%s", "LC_ALL": "C"},
    )


def step_surroundings() -> Surroundings:
    """For srun: the variables of the job it runs in stay, they say where it is."""
    return Surroundings(drop_prefixes=("SRUN_", "SLURM_EXPORT_ENV"))


def base_ids(refs: Iterable[JobRef]) -> list[str]:
    """Each job once; the elements of an array are asked for by its base id."""
    found: dict[str, None] = {}
    for ref in refs:
        found[_job(ref).base] = None
    return list(found)


def chunks(ids: Sequence[str], size: int = CHUNK) -> list[list[str]]:
    """Pieces of at most `size` ids."""
    return [list(ids[start : start + size]) for start in range(0, len(ids), size)]


def squeue_argv(fields: Sequence[str] = QUEUE_HOT, site: Site = ANY_SITE, *, everybody: bool = False) -> list[str]:
    """All jobs of this user, whatever their state: never by partition or id, since jobs are moved and ids purged."""
    words = ["squeue", *_cluster(site)]
    if not everybody:
        words.append("--me" if site.me_option else f"--user={_user(site.user)}")
    return [*words, "--noheader", "--states=all", f"--format={squeue_format(fields)}"]


def sacct_argv(
    ids: Sequence[str], *, fields: Sequence[str] = ACCOUNT_FIELDS, site: Site = ANY_SITE, steps: bool = False
) -> list[str]:
    """Every attempt of these jobs. With ids there is no window of time that could hide one."""
    if not ids or len(ids) > CHUNK:
        raise UsageError(f"ids: sacct is asked for 1 to {CHUNK} ids at once, not for {len(ids)}.")
    words = ["sacct", *_cluster(site)]
    if not steps:
        words.append("--allocations")
    asked = ",".join(_job(JobRef(id=job)).key for job in ids)
    return [*words, *_SACCT_FORM, "--duplicates", f"--jobs={asked}", f"--format={','.join(fields)}"]


_SACCT_FORM = ("--noheader", "--parsable2", f"--delimiter={SEPARATOR}")


def sacct_find_argv(
    *, user: str, window_s: float, name: str = "", fields: Sequence[str] = ACCOUNT_FIND_FIELDS, site: Site = ANY_SITE
) -> list[str]:
    """The jobs of a user since some time ago, or those of one exact name; the token is looked for in the names."""
    words = ["sacct", *_cluster(site), "--allocations", *_SACCT_FORM, "--duplicates", f"--user={_user(user)}"]
    # Relative: a date would be read in the zone of that host.
    words.append(f"--starttime=now-{max(1, int(window_s // 60) + 1)}minutes")
    if name:
        _word(name, "name")
        words.append(f"--name={name}")
    return [*words, f"--format={','.join(fields)}"]


def scancel_argv(
    refs: Sequence[JobRef], *, signal: str | None = None, only_waiting: bool = False, site: Site = ANY_SITE
) -> list[str]:
    """End jobs, or send a signal to all of their processes and the batch script."""
    words = ["scancel", *_cluster(site)]
    if signal is not None:
        words += [f"--signal={_signal(signal)}", "--full"]
    if only_waiting:
        words.append("--state=PENDING")
    return [*words, *_ids(refs)]


def hold_argv(refs: Sequence[JobRef]) -> list[str]:
    """Keep waiting jobs from starting."""
    return ["scontrol", "hold", ",".join(_ids(refs))]


def release_argv(refs: Sequence[JobRef]) -> list[str]:
    """Let held jobs start."""
    return ["scontrol", "release", ",".join(_ids(refs))]


def requeue_argv(refs: Sequence[JobRef]) -> list[str]:
    """Put running or ended jobs back into the queue."""
    return ["scontrol", "requeue", ",".join(_ids(refs))]


def srun_argv(
    words: Sequence[str],
    *,
    nodes: int | None = None,
    job: JobRef | None = None,
    cpus_per_task: int | None = None,
    overlap: bool = False,
    pty: bool = False,
    node: str | None = None,
) -> list[str]:
    """A step with one process per node: in the job that runs it, or in another one that is running.

    A process that ends badly does not end those of the other nodes, and each has all CPUs of its node: the worker
    shares them out. `--export=ALL` because a batch job hands its own setting on to its steps.
    """
    if not words:
        raise UsageError("command: it is empty.")
    argv = ["srun"]
    if job is not None:
        argv.append(f"--jobid={_job(job).key}")
    if node is not None:
        argv += ["--nodes=1", "--ntasks=1", f"--nodelist={_word(node, 'node')}"]
    elif nodes is not None:
        argv += [f"--nodes={nodes}", f"--ntasks={nodes}", "--ntasks-per-node=1"]
    if cpus_per_task is not None:
        # Since 22.05 a step does not inherit it.
        argv.append(f"--cpus-per-task={cpus_per_task}")
    argv += ["--export=ALL", "--cpu-bind=none", "--mpi=none", "--kill-on-bad-exit=0", "--wait=0"]
    if overlap:
        argv.append("--overlap")
    if pty:
        argv.append("--pty")
    return [*argv, *words]


def version_argv() -> list[str]:
    """Asks no daemon."""
    return ["sbatch", "--version"]


def show_config_argv() -> list[str]:
    return ["scontrol", "show", "config"]


def show_partition_argv() -> list[str]:
    return ["scontrol", "--oneliner", "--all", "show", "partition"]


def show_node_argv(names: Sequence[str] = ()) -> list[str]:
    """Of all nodes, or of these."""
    return ["scontrol", "--oneliner", "show", "node", *([",".join(names)] if names else [])]


def helpformat_argv() -> list[str]:
    """Which columns this sacct has."""
    return ["sacct", "--helpformat"]


SINFO_FIELDS = ("partition", "availability", "limit", "node_count", "state", "cpus", "memory", "gres", "nodes")
_SINFO_FORMAT = SEPARATOR.join(("%R", "%a", "%l", "%D", "%T", "%c", "%m", "%G", "%N"))


def sinfo_argv(site: Site = ANY_SITE) -> list[str]:
    """One row for each kind of node and state in each partition."""
    return ["sinfo", *_cluster(site), "--noheader", f"--format={_SINFO_FORMAT}"]


ASSOCIATION_FIELDS = (
    "Cluster",
    "Account",
    "User",
    "Partition",
    "QOS",
    "DefaultQOS",
    "MaxJobs",
    "MaxSubmit",
    "MaxTRES",
    "MaxWall",
    "GrpTRES",
    "GrpTRESMins",
    "GrpJobs",
    "GrpSubmit",
)
QOS_FIELDS = (
    "Name",
    "Flags",
    "MaxJobsPU",
    "MaxSubmitPU",
    "MaxTRESPU",
    "MaxTRES",
    "MaxWall",
    "GrpTRES",
    "GrpTRESMins",
    "GrpJobs",
    "GrpSubmit",
    "PreemptMode",
)


def associations_argv(user: str) -> list[str]:
    """The accounts of a user, with what each allows."""
    fields = ",".join(ASSOCIATION_FIELDS)
    return ["sacctmgr", *_SACCTMGR_FORM, "show", "associations", "where", f"user={_user(user)}", f"format={fields}"]


_SACCTMGR_FORM = ("--noheader", "--parsable2", "--readonly")


def qos_argv() -> list[str]:
    """Every QOS, with what it allows."""
    return ["sacctmgr", *_SACCTMGR_FORM, "show", "qos", f"format={','.join(QOS_FIELDS)}"]


def _cluster(site: Site) -> list[str]:
    if site.cluster is None:
        return []
    if not _CLUSTER.fullmatch(site.cluster):
        raise UsageError(f"cluster: {site.cluster!r} is not the name of a cluster.")
    return [f"--clusters={site.cluster}"]


def _job(ref: JobRef) -> JobId:
    job = parse_job_id(ref.id)
    if job is None or job.step is not None or job.truncated:
        raise UsageError(f"job: {ref.id!r} is not the id of a job.")
    return job


def _ids(refs: Sequence[JobRef]) -> list[str]:
    if not refs:
        raise UsageError("job: none is named.")
    found: dict[str, None] = {}
    for ref in refs:
        job = _job(ref)
        # The list of a pending array is a word of its own for scancel and scontrol.
        found[ref.id.strip().partition(";")[0] if job.is_list else job.key] = None
    return list(found)


def _user(user: str) -> str:
    if not _USER.fullmatch(user):
        raise UsageError(f"user: {user!r} is not the name of a user.")
    return user


def _signal(signal: str) -> str:
    match = _SIGNAL.fullmatch(signal)
    if not match:
        raise UsageError(f"signal: {signal!r} is not a signal.", hint="Write USR1, TERM or a number.")
    return match[1]


def _word(value: str, field: str) -> str:
    if not value or value.startswith("-") or not value.isprintable() or "," in value:
        raise UsageError(f"{field}: {value!r} cannot stand on a command line.")
    return value
