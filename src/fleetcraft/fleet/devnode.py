"""A node held for a person: it says when it is ready, beats while it is held, and goes back when it is let go.

The node is let go by a cancel, by leaving the command that holds it, or by its time limit.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fleetcraft.core.errors import OutOfReach
from fleetcraft.fleet import records as kinds
from fleetcraft.fleet.handle import Fleet
from fleetcraft.fleet.look import look, read_file
from fleetcraft.fleet.records import Overtaken
from fleetcraft.fleet.render import assemble, contained, script_line
from fleetcraft.fleet.spec import DEVNODE, FleetSpec
from fleetcraft.fleet.state import HOLD, Job
from fleetcraft.fleet.submit import Draft, Submitted, Wish, declare, draft, submit

Wait = Callable[[float], None]
_BEAT_S = 30

# What the GPUs say is kept as text, cut to harmless characters; a node without the tool says why there is nothing.
_BODY = r"""
gpus() {
  if command -v nvidia-smi >/dev/null 2>&1; then
    timeout 10 nvidia-smi --query-gpu=index,utilization.gpu,memory.used,memory.total --format=csv,noheader,nounits \
      2>/dev/null | tr '\n' ';' | tr -cd '0-9,;. '
  else
    printf 'no nvidia-smi'
  fi
}
put ready.json "{\"token\":\"$token\",\"job_id\":\"$(plain "$job_id")\",\"host\":\"$(plain "${HOSTNAME:-}")\",\
\"at_utc\":$(date +%s),\"deadline_utc\":$deadline}"
@sampler@
beats=0
while [ -z "$heard" ] && [ "$(date +%s)" -lt "$deadline" ]; do
  beats=$((beats + 1))
  put beat.json "{\"sequence\":$beats,\"at_utc\":$(date +%s),\"gpus\":\"$(gpus)\"}"
  sleep @beat@ &
  wait $!
done
if [ -n "$sampler" ]; then
  @end@
fi
code=0
""".strip("\n")
# The GPUs are measured as a worker would do it. A node without the program is held all the same.
_SAMPLER = r"""
@words@ </dev/null >>"$job_dir/sampler.log" 2>&1 &
sampler=$!
""".strip("\n")
_END_HERE = 'kill "$sampler" 2>/dev/null'
# A launcher that is asked to end kills its step at once, so each node is told by the file, and a while is waited.
_END_EVERYWHERE = r"""
: >"$job_dir/stop"
  for _ in 1 2 3 4 5 6 7 8 9 10; do
    kill -0 "$sampler" 2>/dev/null || break
    sleep 1
  done
  kill "$sampler" 2>/dev/null
""".strip("\n")
# On each of several nodes: measure until the file appears. The sampler ends with this shell, however that ends.
_ON_NODE = r"""
stop=$1; shift
trap : TERM INT USR1 USR2
"$@" &
sampler=$!
while kill -0 "$sampler" 2>/dev/null; do
  [ ! -e "$stop" ] || kill "$sampler" 2>/dev/null
  sleep 2 &
  wait $!
done
wait "$sampler"
""".strip("\n")


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """A held node as it was last seen."""

    token: str
    job: str | None
    state: str  # the job's, or open or rejected
    host: str | None = None
    reason: str = ""
    beat: Mapping[str, Any] | None = None

    @property
    def is_ready(self) -> bool:
        """True when a person may attach."""
        return self.host is not None and self.state == "running"


def hold_draft(fleet: Fleet, spec: FleetSpec, why: str = "a node for a person") -> Draft:
    """What would be submitted."""
    spec = replace(spec, shape=DEVNODE, lanes=0, min_nodes=0)
    wish = Wish(spec=spec, why=why, purpose=HOLD)
    return draft(
        fleet, fleet.state(), wish,
        script_for=lambda token: assemble(
            spec, fleet.folder, token, _body(fleet, spec, token), title="a node held for a person"
        ),
    )  # fmt: skip


def _body(fleet: Fleet, spec: FleetSpec, token: str) -> str:
    sampler = _sampler_words(fleet, spec, token)
    start = "sampler=" if sampler is None else _SAMPLER.replace("@words@", script_line(sampler))
    end = _END_HERE if spec.nodes == 1 else _END_EVERYWHERE
    return _BODY.replace("@beat@", str(_BEAT_S)).replace("@end@", end).replace("@sampler@", start)


def _sampler_words(fleet: Fleet, spec: FleetSpec, token: str) -> list[str] | None:
    """What measures the GPUs of every node; None where there are none, or nobody wants it."""
    told, spool = spec.worker.telemetry, fleet.folder.spool
    if not spec.gpus_per_node or spec.worker.gpus in ("none", "0") or told == "off":
        return None
    words = [*spec.program, "gpu", "sample", "--spool", spool, "--gpus", spec.worker.gpus, "--minded"]
    if told is not None and told != "on":
        words += ["--interval", told]
    words = contained(spec, words, spool)
    if spec.nodes == 1:
        return words  # the script runs on the node itself
    words = ["/bin/bash", "-c", _ON_NODE, "node", fleet.folder.job(token).stop, *words]
    # What a person starts on the nodes must not wait for this step, nor this step for a person.
    return ["env", "SLURM_OVERLAP=1", *fleet.launch()(words)]


def submit_hold(fleet: Fleet, spec: FleetSpec, why: str = "a node for a person") -> Submitted:
    """Ask for the node. Raises Overtaken after too many races."""
    fleet.log.create()
    spec = replace(spec, shape=DEVNODE, lanes=0, min_nodes=0)
    for _ in range(fleet.policy.attempts):
        try:
            number = declare(fleet, fleet.state(), spec)
            return submit(fleet, hold_draft(fleet, spec, why), spec_number=number)
        except Overtaken:
            continue
    raise Overtaken(f"Other passes over the fleet {fleet.name} were faster.", hint="Run it again.")


def held(fleet: Fleet, token: str, *, ask: bool = True) -> Held:
    """How the held node stands now; `ask` asks the scheduler first."""
    if ask:
        look(fleet, fleet.state())
    job = fleet.state().jobs.get(token)
    if job is None:
        return Held(token=token, job=None, state="unknown")
    folder = fleet.folder.job(token)
    ready = read_file(fleet, folder.ready)
    return Held(
        token=token, job=str(job.ref) if job.ref else None, state=_word(job),
        reason=job.reason or job.cause or job.text,
        host=str(ready.get("host")) if ready else None, beat=read_file(fleet, folder.beat),
    )  # fmt: skip


def _word(job: Job) -> str:
    if job.state is not None:
        return job.state.value
    return "pending" if job.ref is not None else job.phase.value


def let_go(fleet: Fleet, token: str, why: str = "let go") -> list[str]:
    """Give the node back; returns what went wrong, in words."""
    job = fleet.state().jobs.get(token)
    if job is None or not job.is_live:
        return []
    fleet.log.state_fact(kinds.CANCEL, tokens=[token], why=why)
    return fleet.cancel_refs(([job.ref] if job.ref else []) + job.extra_refs)


def hold(
    fleet: Fleet, token: str, *, on_change: Callable[[Held], None],
    on_release: Callable[[Sequence[str]], None] = lambda _problems: None,
    poll_s: float = 30.0, wait: Wait = time.sleep,
) -> Held:  # fmt: skip
    """Follow a held node until its job ends; whatever ends this call, Ctrl-C included, gives the node back.

    `on_release` is called after a node that was still held was given back, with what went wrong.
    """
    last: Held | None = None
    try:
        while True:
            try:
                now = held(fleet, token)
            except OutOfReach:
                wait(poll_s)
                continue
            if last is None or (now.state, now.host, now.reason) != (last.state, last.host, last.reason):
                on_change(now)
            last = now
            job = fleet.state().jobs.get(token)
            if job is None or not job.is_live:
                return now
            wait(poll_s)
    finally:
        job = fleet.state().jobs.get(token)
        if job is not None and job.is_live:
            on_release(_let_go_now(fleet, token))


def _let_go_now(fleet: Fleet, token: str) -> list[str]:
    try:
        return let_go(fleet, token, "whoever held it left")
    except OutOfReach as error:
        return [str(error)]
