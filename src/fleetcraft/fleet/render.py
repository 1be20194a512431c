"""One spec and one token become one request to the scheduler, with a complete script in it. Pure: nothing is read.

The script goes from its own records outward: it says that it started, sets up the environment, computes the deadline,
starts one worker on each node, passes one signal on to them, and says how it ended, whatever ended it.
Nothing of a person's text stands in a directive, and every value is quoted as one word.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fleetcraft.core.errors import UsageError
from fleetcraft.fleet.names import FleetFolder, JobFolder, is_token
from fleetcraft.fleet.quoting import comment, quote
from fleetcraft.fleet.render_setup import runtime_check, setup_lines
from fleetcraft.fleet.spec import FleetSpec
from fleetcraft.schedulers.api import JobRef, JobRequest

# Words that the script fills in when it runs; each becomes a quoted variable, never pasted text.
JOB_ID, DEADLINE = "@fleetcraft-job-id@", "@fleetcraft-deadline@"
EARLY_S = 60.0
_MOST_LOST = 0.3  # of a job's time, where its signal comes as early as it can
_VARIABLES = {JOB_ID: '"$job_id"', DEADLINE: '"$deadline"'}

Launch = Callable[[Sequence[str]], Sequence[str]]  # the argv that starts words on every node of this job


def worker_words(spec: FleetSpec, spool: str) -> list[str]:
    """The command of one worker, in its container where there is one."""
    choices = spec.worker
    words = [
        *spec.program, "worker", "run", "--spool", spool,
        "--idle-exit", "never" if spec.idle_exit_s is None else f"{spec.idle_exit_s:g}s",
        "--deadline", DEADLINE, "--drain-before", f"{spec.drain_before_s():g}s",
        "--gpus", choices.gpus, "--job-id", JOB_ID,
    ]  # fmt: skip
    if choices.cpus is not None:
        words += ["--cpus", str(choices.cpus)]
    if choices.lease_s is not None:
        words += ["--lease", f"{choices.lease_s:g}s"]
    if choices.telemetry is not None:
        words += ["--telemetry", choices.telemetry]
    for name in choices.pass_env:
        words += ["--pass-env", name]
    return contained(spec, words, spool)


def contained(spec: FleetSpec, words: Sequence[str], spool: str) -> list[str]:
    """The same command inside the container of the site, with the spool visible there."""
    container = spec.site.container
    if container is None:
        return list(words)
    if not container.image:
        raise UsageError(
            f"The profile {spec.site.profile} has a container without an image.", hint="Set container.image."
        )
    binds = [word for bind in (spool, *container.binds) for word in ("--bind", bind)]
    for bind in (spool, *container.binds):
        if "," in bind:
            raise UsageError(f"{bind!r} holds a comma; a container cannot bind it.")
    if ":" in spool:
        raise UsageError(f"The spool {spool!r} holds a colon; a container cannot bind it.")
    nvidia = ["--nv"] if spec.gpus_per_node else []
    return [container.runtime, "exec", *nvidia, *binds, *container.options, container.image, *words]


def render_work(
    spec: FleetSpec, folder: FleetFolder, token: str, launch: Launch, *, title: str = "one worker on every node"
) -> str:
    """The script of a job that serves the spool."""
    words = on_node(worker_words(spec, folder.spool), folder.job(token))
    return assemble(spec, folder, token, runtime_check(spec) + _worker_step(launch(words)), title=title)


def assemble(spec: FleetSpec, folder: FleetFolder, token: str, body: str, *, title: str) -> str:
    """Everything around `body`, which ends with the exit code of the job in `code`."""
    if not is_token(token):
        raise UsageError(f"{token!r} is no token of a job.")
    job = folder.job(token)
    return "\n".join(
        (
            "#!/bin/bash",
            f"# Fleetcraft: fleet {folder.name}, job {token}: {comment(title)}.",
            "# Made for this one job. Options stand in the submission, not here.",
            _preamble(spec, job, token),
            _records(),
            setup_lines(spec),
            _deadline(spec),
            f"export FLEETCRAFT_FLEET={quote(folder.name)}",
            _TRAPS,
            body,
            'exit "$code"',
            "",
        )
    )


def _preamble(spec: FleetSpec, job: JobFolder, token: str) -> str:
    return "\n".join(
        (
            "set -u",
            f"umask {spec.umask}",
            f"token={token}",
            f"job_dir={quote(job.root)}",
            'job_id="${SLURM_JOB_ID:-${FLEETCRAFT_JOB_ID:-$token}}"',
            "started=$(date +%s)",
            "step_pid=",
            "heard=",
            "reason=",
            "code=1",
            "# The scheduler's own pattern letters in a path of ours would send what is said elsewhere.",
            'mkdir -p -- "$job_dir" && exec >>"$job_dir/output.log" 2>&1',
            "# A step must see what is set here, whatever the submission said about the environment.",
            "unset SLURM_EXPORT_ENV SRUN_EXPORT_ENV",
        )
    )


def _records() -> str:
    """The functions that write start.json and exit.json: whole or not at all, by a rename."""
    return r"""
plain() { printf '%s' "${1//[^][A-Za-z0-9_.,:;+@%-]/}"; }
words() { printf '%s' "$1" | tr -cd 'A-Za-z0-9_.,:;+@%()=/ -'; }
fail() { reason=$1; printf '%s\n' "$1" >&2; exit 78; }
put() { printf '%s\n' "$2" >"$job_dir/.$1.$$" && mv -f -- "$job_dir/.$1.$$" "$job_dir/$1"; }
finish() {
  code=$?
  trap - EXIT
  put exit.json "{\"token\":\"$token\",\"job_id\":\"$(plain "$job_id")\",\"code\":$code,\"signal\":\"$heard\",\
\"reason\":\"$(words "$reason")\",\
\"started_utc\":$started,\"at_utc\":$(date +%s),\"restart\":\"$(plain "${SLURM_RESTART_COUNT:-0}")\"}"
  exit "$code"
}
if [ -e "$job_dir/withdrawn" ]; then
  echo "This job was given up for lost before it began; it runs nothing." >&2
  exit 0
fi
trap finish EXIT
rm -f -- "$job_dir/stop"
put start.json "{\"token\":\"$token\",\"job_id\":\"$(plain "$job_id")\",\"host\":\"$(plain "${HOSTNAME:-}")\",\
\"nodes\":\"$(plain "${SLURM_JOB_NODELIST:-}")\",\"at_utc\":$started,\
\"restart\":\"$(plain "${SLURM_RESTART_COUNT:-0}")\"}"
""".strip("\n")


def _deadline(spec: FleetSpec) -> str:
    return "\n".join(
        (
            "# The scheduler's word for the end where it gives one, else the time limit from now.",
            "end=${SLURM_JOB_END_TIME:-}",
            "case $end in",
            f"'' | *[!0-9]*) end=$((started + {int(spec.time_limit_s)})) ;;",
            "esac",
            f"deadline=$((end - {round(spec.margin_s())}))",
            'export FLEETCRAFT_DEADLINE="$deadline" FLEETCRAFT_TOKEN="$token"',
        )
    )


# A signal is passed on through a file. Sent to the step, it would reach the tasks too on some sites, and end them: the
# scheduler signals whole process trees there. The workers see the file within some seconds, and drain.
_TRAPS = r"""
on_signal() {
  [ -n "$heard" ] || { heard=$1; : >"$job_dir/stop"; }
  woken=1
}
trap 'on_signal TERM' TERM
trap 'on_signal USR1' USR1
trap 'on_signal USR2' USR2
trap 'on_signal INT' INT
run_step() {
  # A signal that came during the setup: there is nothing to drain yet.
  [ -z "$heard" ] || return 0
  "$@" &
  step_pid=$!
  while :; do
    woken=
    wait "$step_pid"
    code=$?
    [ -n "$woken" ] || break
  done
  return "$code"
}
""".strip("\n")

# On each node: start the worker, and tell it once, alone, when the file appears or a signal comes. To a worker a third
# signal means to end now, so it is told once. One that was killed is started anew: on its own host, a new life sees by
# the process table what no other node can know, and takes over what was left.
_NODE = r"""
stop=$1; shift
worker= told= sent= lives=4
send() { [ -n "$sent" ] || { sent=1; kill -s USR1 "$worker" 2>/dev/null; }; }
tell() { told=1; [ -z "$worker" ] || send; }
trap tell TERM INT USR1 USR2
while :; do
  [ -z "$told" ] || exit 0
  "$@" &
  worker=$!
  [ -z "$told" ] || send
  while kill -0 "$worker" 2>/dev/null; do
    [ ! -e "$stop" ] || tell
    sleep 5 &
    nap=$!
    # A shell that cannot wait for one of two says 2 at once.
    wait -n "$worker" "$nap" 2>/dev/null || [ $? -ne 2 ] || sleep 1
    kill "$nap" 2>/dev/null
  done
  wait "$worker"
  code=$?
  lives=$((lives - 1))
  if [ "$code" -le 128 ] || [ -n "$told" ] || [ "$lives" -le 0 ]; then exit "$code"; fi
  echo "The worker on ${HOSTNAME:-this node} was ended by signal $((code - 128)); it is started anew." >&2
  worker=
done
""".strip("\n")


def on_node(words: Sequence[str], job: JobFolder) -> list[str]:
    """The same command, watched on its node for the word to stop."""
    return ["/bin/bash", "-c", _NODE, "node", job.stop, *words]


def _worker_step(words: Sequence[str]) -> str:
    return f"run_step {script_line(words)}\ncode=$?"


def script_line(words: Sequence[str]) -> str:
    """A command of the script, with the words that it fills in. Raises UsageError where a launcher hid one of them."""
    for word in words:
        for mark in _VARIABLES:
            if mark in word and word != mark:
                raise UsageError(f"The launcher turned {mark} into {word!r}; it must stay a word of its own.")
    return " ".join(_VARIABLES.get(word) or quote(word) for word in words)


def _may_signal(spec: FleetSpec) -> bool:
    """A short job would lose much of its time: a scheduler may send the signal up to a minute too early.

    Its workers go by the deadline alone, which is exact. From ten minutes on the usual two minutes are signalled.
    """
    notice_s = spec.drain_before_s()
    return spec.signal_before_s > 0 and notice_s > 0 and notice_s + EARLY_S <= _MOST_LOST * spec.time_limit_s


def request_for(
    spec: FleetSpec, folder: FleetFolder, token: str, script: str, *,
    begin_utc: float | None = None, after: Sequence[JobRef] = (), exclude: Sequence[str] = (),
) -> JobRequest:  # fmt: skip
    """The request to the scheduler."""
    site, rules = spec.site, spec.site.scheduler
    job = folder.job(token)
    return JobRequest(
        token=token,
        name=spec.name,
        script=script,
        nodes=spec.nodes,
        tasks_per_node=1,
        cpus_per_node=spec.cpus_per_node,
        gpus_per_node=0 if rules.gpus == "node" else spec.gpus_per_node,
        gpu_type=None if rules.gpus == "node" else site.partition.gpu_type,
        memory_bytes=None if rules.memory == "site" else spec.memory_bytes,
        exclusive=rules.exclusive,
        time_limit_s=spec.time_limit_s,
        partition=site.partition.scheduler_name,
        account=site.account,
        qos=site.qos,
        reservation=site.reservation,
        constraint=site.constraint,
        nodelist=spec.nodelist,
        exclude=tuple(sorted({*spec.exclude, *exclude})),
        begin_utc=begin_utc,
        after_any=tuple(after),
        signal="USR1" if _may_signal(spec) else None,
        signal_before_s=spec.drain_before_s(),
        requeue=rules.requeue,
        output="/dev/null" if "%" in job.output or "\\" in job.output else job.output,
        cwd=job.root if spec.cwd is None else spec.cwd,
        extra=(*rules.options, *spec.options),
    )
