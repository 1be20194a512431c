"""The little that we read of Slurm's JSON: wrapped numbers and state lists.

The text formats are the stable ones; of JSON neither the filters nor the exit codes of older versions can be trusted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from fleetcraft.schedulers.slurm_states import StateReading, read_state


def json_number(value: Any) -> float | int | None:
    """A number, bare or wrapped as {set, infinite, number}; None for unset, unlimited and everything else."""
    if isinstance(value, Mapping):
        if not value.get("set", True) or value.get("infinite"):
            return None
        value = value.get("number")
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return value


def json_state(value: Any) -> StateReading:
    """A state as a word, as a list of base and flags, or inside `{"current": ...}`."""
    if isinstance(value, Mapping):
        value = value.get("current", "")
    if isinstance(value, (list, tuple)):
        return read_state([str(item) for item in value])
    return read_state(str(value))


def only_asked(jobs: Iterable[Mapping[str, Any]], asked: Iterable[str]) -> list[Mapping[str, Any]]:
    """The jobs that were asked for. Before 24.05 squeue answers with all jobs of the cluster."""
    wanted = set(asked)
    kept = []
    for job in jobs:
        array = json_number(job.get("array_job_id"))
        if str(job.get("job_id")) in wanted or (array and str(array) in wanted):
            kept.append(job)
    return kept
