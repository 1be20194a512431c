"""Which of a host's devices are for this process, by what the environment says; nothing is opened or started.

An index counts in the driver's order of what the process can see. CUDA stops at the first entry that names nothing
and keeps what came before; so does this.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fleetcraft.telemetry.api import Device

CUDA, HIP, ROCR = "CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"
# What Slurm says that a step or a job got on this node, as the driver's indices; a step's own word goes first.
_SLURM = ("SLURM_STEP_GPUS", "SLURM_JOB_GPUS")
_LEGACY = re.compile(r"MIG-(GPU-[0-9A-Fa-f-]+)/(\d+)/(\d+)", re.ASCII)
_INDEX = re.compile(r"\d{1,6}", re.ASCII)
_SHORTEST_PREFIX = len("GPU-") + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class LegacyMig:
    """The older name of an instance: the GPU it is cut from, its GPU instance, and its compute instance."""

    parent: str
    gpu_instance: int
    compute_instance: int


def legacy_mig(entry: str) -> LegacyMig | None:
    """Read `MIG-GPU-<uuid>/<gi>/<ci>`; None for any other form."""
    match = _LEGACY.fullmatch(entry.strip())
    if match is None:
        return None
    return LegacyMig(parent=match.group(1), gpu_instance=int(match.group(2)), compute_instance=int(match.group(3)))


def visible_devices(
    devices: list[Device], visible: str | None, instances: Mapping[str, tuple[int, int]] | None = None
) -> list[Device]:
    """Apply `CUDA_VISIBLE_DEVICES`: None means all; the list ends at the first entry that names nothing.

    `instances` has the GPU and compute instance of each MIG device, by UUID, for names of the older form.
    """
    if visible is None:
        return devices
    chosen: list[Device] = []
    for entry in (part.strip() for part in visible.split(",")):
        match = _named(devices, entry, instances or {})
        if match is None or match in chosen:
            break
        chosen.append(match)
    return chosen


def _named(devices: Sequence[Device], entry: str, instances: Mapping[str, tuple[int, int]]) -> Device | None:
    """The one device that an entry names; None where it is none, or could be several."""
    legacy = legacy_mig(entry)
    if legacy is not None:
        mine = [device for device in devices if device.parent == legacy.parent]
        wanted = (legacy.gpu_instance, legacy.compute_instance)
        told = [device for device in mine if instances.get(device.uuid) == wanted]
        # Where nobody knows the instances, the only one of that GPU is it.
        found = told or ([] if any(device.uuid in instances for device in mine) else mine)
    elif _INDEX.fullmatch(entry):
        found = [device for device in devices if device.index == int(entry)]
    elif len(entry) >= _SHORTEST_PREFIX:
        found = [device for device in devices if device.uuid.lower().startswith(entry.lower())]
    else:
        found = []
    return found[0] if len(found) == 1 else None


def usable_devices(
    devices: list[Device], env: Mapping[str, str], instances: Mapping[str, tuple[int, int]] | None = None
) -> list[Device]:
    """The devices that are for this process.

    `CUDA_VISIBLE_DEVICES` says it where it is set. Where it is not and Slurm named some, those are ours if more can be
    seen than were named: then nothing holds us from the others, and they are somebody else's.
    """
    if CUDA in env:
        return visible_devices(devices, env[CUDA], instances)
    named = slurm_indices(env)
    if named is None:
        return devices
    whole = {device.parent or device.uuid for device in devices}
    mine = [device for device in devices if device.index in named and not device.parent]
    # With a cgroup the indices are those of the node and not of what is seen here.
    return mine if len(whole) > len(named) and len(mine) == len(named) else devices


def slurm_indices(env: Mapping[str, str]) -> list[int] | None:
    """The indices that Slurm gave to this step or job; None where it does not say."""
    text = next((env[name] for name in _SLURM if env.get(name)), None)
    if text is None:
        return None
    found: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not _INDEX.fullmatch(first) or (dash and not _INDEX.fullmatch(last)):
            return None
        end = int(last) if dash else int(first)
        if end - int(first) > 1024:
            return None
        found += range(int(first), end + 1)
    return sorted(set(found))


def visible_amd(devices: list[Device], env: Mapping[str, str]) -> list[Device]:
    """Apply `ROCR_VISIBLE_DEVICES`, and `HIP_VISIBLE_DEVICES` to what it leaves: HIP counts anew from 0.

    HIP reads `CUDA_VISIBLE_DEVICES` where its own variable is not set.
    """
    chosen = _counted(devices, env.get(ROCR))
    return _counted(chosen, env.get(HIP, env.get(CUDA)))


def _counted(devices: list[Device], visible: str | None) -> list[Device]:
    """As `visible_devices`, where an index is the place in the list."""
    if visible is None:
        return devices
    chosen: list[Device] = []
    for entry in (part.strip() for part in visible.split(",")):
        if _INDEX.fullmatch(entry):
            match = devices[int(entry)] if int(entry) < len(devices) else None
        else:
            match = _named(devices, entry, {})
        if match is None or match in chosen:
            break
        chosen.append(match)
    return chosen
