"""Which hosts should have telemetry, and of how many GPUs: nodes that the jobs of fleets had, and hosts of workers.

What a scheduler gave counts although nothing ever came from there, so that silence stays in the denominators.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fleetcraft.core.clock import SystemClock
from fleetcraft.fleet.names import FleetFolder
from fleetcraft.fleet.records import RecordLog, list_fleets
from fleetcraft.fleet.state import FleetState, Job, fold
from fleetcraft.fleet.tail import job_ids
from fleetcraft.store.files import Files

# Clocks of nodes and of a scheduler differ by a little.
_CLOCKS_MS = 60_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Whose hosts, and of which time in UTC milliseconds. None is all of it."""

    fleet: str | None = None
    job: str | None = None
    since_ms: int | None = None
    until_ms: int | None = None

    def overlaps(self, start_utc: float, end_utc: float | None) -> bool:
        """True where something of that stay lies in the time; without an end it goes on."""
        if self.until_ms is not None and start_utc * 1000 >= self.until_ms + _CLOCKS_MS:
            return False
        return self.since_ms is None or end_utc is None or end_utc * 1000 > self.since_ms


def expected_hosts(spool_root: str, wanted: Wanted | None = None) -> dict[str, int]:
    """How many GPUs each host should show. A host is called as its worker calls it, or as the scheduler does.

    Raises OutOfReach.
    """
    wanted = wanted or Wanted()
    jobs = [
        job
        for name, state in states_of(spool_root).items()
        if wanted.fleet in (None, name)
        for job in state.jobs.values()
        if wanted.job is None or wanted.job in job_ids(job)
    ]
    found = _of_workers(spool_root, wanted, jobs)
    called = {host.partition(".")[0]: host for host in found}
    for job in jobs:
        if job.gpus_per_node and any(wanted.overlaps(run.start_utc, run.end_utc) for run in job.runs):
            for node in job.node_names:
                host = called.setdefault(node.partition(".")[0], node)
                found[host] = max(found.get(host, 0), job.gpus_per_node)
    return found


def states_of(spool_root: str) -> dict[str, FleetState]:
    """What the records of every fleet say. Raises OutOfReach."""
    found, files, clock = {}, Files(), SystemClock()
    for name in list_fleets(files, spool_root):
        log = RecordLog(files, clock, FleetFolder(spool_root, name))
        log.refresh()
        found[name] = fold(log.records)
    return found


def _of_workers(spool_root: str, wanted: Wanted, jobs: list[Job]) -> dict[str, int]:
    """The GPUs that worker lives held, by host."""
    folder = os.path.join(spool_root, "workers")
    is_narrow = wanted.fleet is not None or wanted.job is not None
    ids = {one for job in jobs for one in job_ids(job)}
    if wanted.fleet is None and wanted.job is not None:
        ids.add(wanted.job)  # a worker in a job that no fleet submitted
    held: dict[str, set[str]] = {}
    try:
        lives = os.listdir(folder)
    except OSError:
        return {}
    for life in lives:
        identity = _document(os.path.join(folder, life, "identity.json"))
        host, begun_utc = identity.get("host"), identity.get("created_utc")
        if identity.get("kind") != "worker" or not isinstance(host, str):
            continue
        if is_narrow and identity.get("job_id") not in ids:
            continue
        beat = _document(os.path.join(folder, life, "heartbeat.json"))
        heard_utc = beat.get("at_utc")
        start_utc = float(begun_utc) if isinstance(begun_utc, (int, float)) else 0.0
        if not wanted.overlaps(start_utc, float(heard_utc) if isinstance(heard_utc, (int, float)) else None):
            continue
        capacity = beat.get("capacity")
        gpus = capacity.get("gpus") if isinstance(capacity, Mapping) else None
        if isinstance(gpus, list) and gpus:
            # Jobs of one host may have GPUs of their own; a later life of the same ones names them again.
            held.setdefault(host, set()).update(_name(gpu, place) for place, gpu in enumerate(gpus))
    return {host: len(gpus) for host, gpus in held.items()}


def _name(gpu: object, place: int) -> str:
    uuid = gpu.get("uuid") if isinstance(gpu, Mapping) else None
    return uuid if isinstance(uuid, str) else f"#{place}"


def _document(path: str) -> dict[str, Any]:
    try:
        with open(path, encoding="utf-8") as file:
            value = json.load(file)
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}
