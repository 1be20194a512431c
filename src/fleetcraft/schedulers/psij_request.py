"""From a request to a job of PSI/J, as far as a back end has words for it. The library itself comes as an argument."""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

from fleetcraft.core.errors import UsageError
from fleetcraft.schedulers.api import JobRequest, Submission, SubmitOutcome
from fleetcraft.schedulers.psij_records import PsijRecords

# What a request may ask for, and the attribute of PSI/J that says it; a request with anything else is refused.
ATTRIBUTES: Mapping[str, Mapping[str, str]] = {
    "slurm": {"qos": "slurm.qos", "constraint": "slurm.constraint"},
    "pbs": {},
    "pbs_classic": {},
    "lsf": {},
    "flux": {},
    "local": {},
}
_NEVER = (
    "array",
    "array_limit",
    "nodelist",
    "exclude",
    "begin_utc",
    "after_any",
    "signal",
    "extra",
    "gpu_type",
    "hold",
)


def refusal(executor: str, request: JobRequest) -> Submission | None:
    """Why this back end cannot take the request: what cannot be said is refused, never left out."""
    said = ATTRIBUTES[executor]
    asked = [name for name in _NEVER if getattr(request, name)]
    asked += [name for name in ("qos", "constraint") if getattr(request, name) and name not in said]
    if executor == "local" and request.nodes > 1:
        asked.append("nodes")
    if asked:
        text = f"PSI/J's back end {executor} cannot say: {', '.join(asked)}"
        return Submission(outcome=SubmitOutcome.REJECTED, code="unsupported", text=text)
    if not request.script.startswith("#!"):
        return Submission(outcome=SubmitOutcome.REJECTED, code="script", text="the script does not begin with #!")
    # PSI/J writes these into directives.
    for name in ("partition", "account", "qos", "reservation", "constraint", "name", "cwd"):
        value = getattr(request, name)
        if value is not None and (not value.isprintable() or any(mark in value for mark in "\"'\\`$ ")):
            raise UsageError(f"{name}: {value!r} cannot be written into a directive.")
    return None


def job_of(psij: Any, executor: str, request: JobRequest, records: PsijRecords) -> Any:
    """The request as a job of that library."""
    limit = {} if request.time_limit_s is None else {"duration": timedelta(seconds=request.time_limit_s)}
    custom = {word: getattr(request, field) for field, word in ATTRIBUTES[executor].items() if getattr(request, field)}
    if executor == "slurm":
        custom["slurm.comment"] = f"fleetcraft:{request.token}"
        custom["slurm.requeue" if request.requeue else "slurm.no-requeue"] = ""
        custom = {word: value for word, value in custom.items() if value}
    # Flux refuses to be told how many of its processes share a node.
    shape = (
        {"process_count": request.nodes * request.tasks_per_node}
        if executor == "flux"
        else {"processes_per_node": request.tasks_per_node}
    )
    resources = psij.ResourceSpecV1(
        node_count=request.nodes,
        cpu_cores_per_process=(request.cpus_per_node or request.tasks_per_node) // request.tasks_per_node,
        gpu_cores_per_process=request.gpus_per_node // request.tasks_per_node,
        exclusive_node_use=request.exclusive,
        memory=request.memory_bytes or None,
        **shape,
    )
    output = Path(request.output) if request.output else Path(records.at(request.token, "output"))
    output.parent.mkdir(parents=True, exist_ok=True)
    spec = psij.JobSpec(
        executable="/bin/sh",
        arguments=[records.at(request.token, "run"), os.path.join(records.folder, request.token)],
        name=f"{request.name}.{request.token}",
        directory=Path(request.cwd) if request.cwd else None,
        environment=dict(request.env),
        stdout_path=output,
        stderr_path=output.with_name(output.name + ".err"),
        resources=resources,
        launcher="single",
        attributes=psij.JobAttributes(
            **limit,
            queue_name=request.partition,
            account=request.account,
            reservation_id=request.reservation,
            custom_attributes=custom or None,
        ),
    )
    return psij.Job(spec)
