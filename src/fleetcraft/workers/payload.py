"""From a task to what is launched: argv, environment, working directory; and from its outputs to a proof."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fleetcraft.core.progress import VARIABLE as PROGRESS_VARIABLE
from fleetcraft.core.task import MAX_ARGUMENT_BYTES, native_bytes
from fleetcraft.spool.host import LIFE_VARIABLE, MARK_VARIABLE
from fleetcraft.workers.setup import setup_of

# What a task gets of the worker's own environment. Never SLURM_* of the job: torchrun and MPI would be misled.
PASSED_ON = ("TMPDIR", "XDG_RUNTIME_DIR", "CUDA_DEVICE_MAX_CONNECTIONS")
_LIFE, _MARK = LIFE_VARIABLE.encode(), MARK_VARIABLE.encode()
_PROGRESS = PROGRESS_VARIABLE.encode()
_HASH_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where an attempt runs."""

    life: str
    slot: int
    gpus: tuple[str, ...]
    deadline_utc: float | None
    progress: str = ""  # the file for its progress; empty where one process serves many tasks


def command_of(task: Mapping[str, Any]) -> tuple[list[str], bytes | None]:
    """The argv, and a script to hand over as a file when a shell line is too long for an argument."""
    if "command" in task:
        return list(task["command"]), None
    line = str(task["shell"])
    raw = native_bytes(line)
    if len(raw) > MAX_ARGUMENT_BYTES - 64:
        return ["/bin/sh"], raw
    return ["/bin/sh", "-c", line], None


def base_environment(
    task: Mapping[str, Any], worker_environ: Mapping[str, str], pass_on: Sequence[str]
) -> dict[bytes, bytes]:
    """What every task of an enqueue shares: the recorded clean list, a few variables of this node, and its setup."""
    merged = {name: worker_environ[name] for name in (*PASSED_ON, *pass_on) if name in worker_environ}
    merged.update(task.get("base_env", {}))
    merged.setdefault("PATH", "/usr/local/bin:/usr/bin:/bin")
    merged = setup_of(worker_environ).applied(merged)
    return {native_bytes(name): native_bytes(value) for name, value in merged.items()}


def slot_environment(base: Mapping[bytes, bytes], place: Place) -> dict[bytes, bytes]:
    """What every attempt of one enqueue on one slot shares; made once, since it is copied before every exec."""
    env = dict(base)
    env[_LIFE] = place.life.encode()
    env[b"FLEETCRAFT_SLOT"] = b"%d" % place.slot
    env[b"FLEETCRAFT_STREAM_ID"] = b"%s-s%d" % (place.life.encode(), place.slot)
    if place.progress:
        env[_PROGRESS] = native_bytes(place.progress)
    else:
        env.pop(_PROGRESS, None)
    if place.deadline_utc is not None:
        env[b"FLEETCRAFT_DEADLINE"] = b"%.0f" % place.deadline_utc
    # UUIDs, never indexes: another order of devices must not move a task to another GPU. Empty hides them all.
    env[b"CUDA_VISIBLE_DEVICES"] = ",".join(place.gpus).encode()
    env[b"CUDA_DEVICE_ORDER"] = b"PCI_BUS_ID"
    return env


def attempt_environment(
    task: Mapping[str, Any], shared: Mapping[bytes, bytes], task_id: str, attempt: int, mark: str
) -> dict[bytes, bytes]:
    """The whole environment of one attempt. What a task declares never overrides how its processes are found."""
    env = dict(shared)
    if "env" in task:
        for name, value in task["env"].items():
            env[native_bytes(name)] = native_bytes(value)
        env[_LIFE] = shared[_LIFE]
    env[_MARK] = mark.encode()
    env[b"FLEETCRAFT_TASK"] = native_bytes(task["name"])
    env[b"FLEETCRAFT_TASK_ID"] = task_id.encode()
    env[b"FLEETCRAFT_ATTEMPT"] = b"%d" % attempt
    return env


def check_snapshot(task: Mapping[str, Any]) -> str | None:
    """Why a frozen script is not what was enqueued, or None."""
    for path, digest in task.get("snapshot", {}).items():
        try:
            found = digest_file(native_bytes(path))[1]
        except OSError as error:
            return f"the frozen script {path} cannot be read: {error.strerror}"
        if found != digest:
            return f"the frozen script {path} was changed: sha256 {found[:12]} is not {digest[:12]}"
    return None


def digest_file(path: str | bytes) -> tuple[int, str]:
    """Size in bytes and sha256 of a file. Raises OSError."""
    digest, size = hashlib.sha256(), 0
    with open(path, "rb") as source:
        while chunk := source.read(_HASH_CHUNK_BYTES):
            digest.update(chunk)
            size += len(chunk)
    return size, digest.hexdigest()


def output_paths(task: Mapping[str, Any]) -> list[tuple[str, bytes]]:
    """(as declared, absolute and as the kernel takes it) of each declared output."""
    cwd = str(task.get("cwd", "/"))
    return [(path, native_bytes(os.path.join(cwd, path))) for path in task.get("outputs", ())]


def prove_outputs(task: Mapping[str, Any]) -> tuple[list[dict[str, Any]], str | None]:
    """Size and digest of every declared output, and what is wrong with the first that is wrong.

    A declared folder counts when it exists; its files are not hashed.
    """
    proofs: list[dict[str, Any]] = []
    for declared, path in output_paths(task):
        try:
            if os.path.isdir(path):
                proofs.append({"path": declared, "size": None, "sha256": None})
                continue
            size, digest = digest_file(path)
        except OSError as error:
            return proofs, f"declared output {declared!r} cannot be read: {error.strerror}"
        if size == 0:
            return proofs, f"declared output {declared!r} is empty"
        proofs.append({"path": declared, "size": size, "sha256": digest})
    return proofs, None


def heavy_outputs(task: Mapping[str, Any], limit_bytes: int) -> bool:
    """True when proving the outputs would hold the worker's loop for long."""
    total = 0
    for _, path in output_paths(task):
        try:
            total += os.stat(path).st_size
        except OSError:
            continue
    return total > limit_bytes
