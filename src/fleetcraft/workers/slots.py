"""What this worker can run at once: CPUs, GPUs by UUID and by fraction, GPU memory, and the whole node.

Memory is reserved from launch on and checked against what the device really has and what others hold, so two
tasks that both see an empty GPU cannot be started on it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from fleetcraft.core.resources import Request
from fleetcraft.telemetry.api import Device

_WHOLE = 1000  # one GPU in thousandths, so that ten tenths are exactly one
# A device on which strangers hold more than this is not free for a task that asks for a whole one.
FOREIGN_LIMIT_BYTES = 1500 * 1024**2


@dataclass(slots=True)
class Gpu:
    """One device and what of it is given out."""

    device: Device
    used_milli: int = 0
    reserved_bytes: int = 0
    families: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """What one running task holds."""

    number: int
    request: Request
    gpus: tuple[str, ...]
    vram_bytes: int


class Capacity:
    """Gives out slots. `foreign_bytes(uuid)` says what processes that are not ours hold, None when unknown."""

    def __init__(
        self, cpus: int, devices: list[Device], foreign_bytes: Callable[[str], int | None] = lambda _uuid: None
    ) -> None:
        self.cpus = cpus
        self.gpus = [Gpu(device) for device in devices]
        self.used_cpus = 0
        self.slots: dict[int, Slot] = {}
        self.families: dict[str, int] = {}
        self._free_numbers: list[int] = []
        self._next_number = 0
        self._last: dict[int, Slot] = {}
        self._foreign_bytes = foreign_bytes
        self._exclusive = False

    def could_ever(self, request: Request) -> bool:
        """True when an empty worker could run it: the shape alone decides."""
        if request.cpus > self.cpus or request.gpus > len(self.gpus):
            return False
        if request.vram_bytes is not None and request.gpus:
            roomy = sum(_total(gpu) is None or request.vram_bytes <= (_total(gpu) or 0) for gpu in self.gpus)
            return roomy >= max(1, int(request.gpus))
        return True

    def width(self, request: Request) -> int:
        """How many tasks of this request an empty worker runs at once, at least 1: no claim is worth more slots."""
        if request.exclusive:
            return 1
        fit = self.cpus // max(1, request.cpus)
        if request.gpus >= 1:
            fit = min(fit, len(self.gpus) // int(request.gpus))
        elif request.gpus:
            fit = min(fit, len(self.gpus) * int(_WHOLE // max(1, round(request.gpus * _WHOLE))))
        if request.vram_bytes and request.gpus:
            totals = [_total(gpu) for gpu in self.gpus]
            fit = min(fit, sum(fit if total is None else total // request.vram_bytes for total in totals))
        return max(1, fit)

    def has_cpus(self, request: Request) -> bool:
        """A first look, cheaper than `take`: False when it cannot fit now."""
        if request.exclusive or self._exclusive:
            return not self.slots
        return self.used_cpus + request.cpus <= self.cpus

    def take(self, request: Request, limits: Mapping[str, int], vram_bytes: int | None = None) -> Slot | None:
        """A slot for the request, or None when it does not fit now.

        `vram_bytes` overrides the request after an attempt ran out of memory.
        """
        if self._exclusive or (request.exclusive and self.slots):
            return None
        if not request.exclusive and self.used_cpus + request.cpus > self.cpus:
            return None
        limit = limits.get(f"family:{request.family}") if request.family else None
        if limit is not None and not request.gpus and self.families.get(request.family or "", 0) >= limit:
            return None
        vram = (vram_bytes if vram_bytes is not None else request.vram_bytes) or 0
        chosen = self._choose(request, vram, limit)
        if chosen is None:
            return None
        milli = _WHOLE if request.gpus >= 1 else round(request.gpus * _WHOLE)
        for gpu in chosen:
            gpu.used_milli += milli
            gpu.reserved_bytes += vram
            if request.family:
                gpu.families[request.family] = gpu.families.get(request.family, 0) + 1
        if request.family:
            self.families[request.family] = self.families.get(request.family, 0) + 1
        self.used_cpus += request.cpus
        self._exclusive = request.exclusive
        number = self._free_numbers.pop() if self._free_numbers else self._new_number()
        slot = self._reuse(number, request, tuple(gpu.device.uuid for gpu in chosen), vram)
        self.slots[number] = slot
        return slot

    def _reuse(self, number: int, request: Request, gpus: tuple[str, ...], vram_bytes: int) -> Slot:
        """The value for a slot; the same one again for the task after, as nearly always."""
        last = self._last.get(number)
        if last is None or last.request is not request or last.gpus != gpus or last.vram_bytes != vram_bytes:
            last = self._last[number] = Slot(number=number, request=request, gpus=gpus, vram_bytes=vram_bytes)
        return last

    def _new_number(self) -> int:
        self._next_number += 1
        return self._next_number - 1

    def _choose(self, request: Request, vram: int, limit: int | None) -> list[Gpu] | None:
        if request.exclusive and not request.gpus:
            return list(self.gpus)
        if not request.gpus:
            return []
        milli = _WHOLE if request.gpus >= 1 else round(request.gpus * _WHOLE)
        count = max(1, int(request.gpus))
        fitting = [gpu for gpu in self.gpus if self._fits(gpu, milli, vram, request.family, limit)]
        # Fill the fullest device first, so that whole ones stay free for those who need them whole.
        fitting.sort(key=lambda gpu: (-gpu.used_milli, gpu.device.index))
        return fitting[:count] if len(fitting) >= count else None

    def _fits(self, gpu: Gpu, milli: int, vram: int, family: str | None, limit: int | None) -> bool:
        if gpu.used_milli + milli > _WHOLE:
            return False
        if limit is not None and family is not None and gpu.families.get(family, 0) >= limit:
            return False
        foreign = self._foreign_bytes(gpu.device.uuid) or 0
        total = _total(gpu)
        if vram and total is not None:
            return gpu.reserved_bytes + vram + foreign <= total
        return milli < _WHOLE or foreign < FOREIGN_LIMIT_BYTES

    def give_back(self, slot: Slot) -> None:
        """The task's processes are gone: its share is free again."""
        del self.slots[slot.number]
        self._free_numbers.append(slot.number)
        self._free_numbers.sort(reverse=True)
        self.used_cpus -= slot.request.cpus
        self._exclusive = False
        request = slot.request
        milli = _WHOLE if request.gpus >= 1 else round(request.gpus * _WHOLE)
        for gpu in self.gpus:
            if gpu.device.uuid in slot.gpus:
                gpu.used_milli -= milli
                gpu.reserved_bytes -= slot.vram_bytes
                if request.family:
                    gpu.families[request.family] -= 1
        if request.family:
            self.families[request.family] -= 1

    @property
    def idle(self) -> bool:
        """True when nothing is given out."""
        return not self.slots

    @property
    def given_out(self) -> tuple[int, ...]:
        """How much of each kind is held; where one number falls, something may fit that did not."""
        milli, reserved = sum(gpu.used_milli for gpu in self.gpus), sum(gpu.reserved_bytes for gpu in self.gpus)
        return (len(self.slots), self.used_cpus, milli, reserved)

    def inventory(self) -> str:
        """What there is, for a person."""
        gpus = f", {len(self.gpus)} GPUs ({self.gpus[0].device.name})" if self.gpus else ""
        return f"{self.cpus} CPUs{gpus}"

    def describe(self) -> dict[str, object]:
        """The inventory, for the heartbeat."""
        return {
            "cpus": self.cpus,
            "used_cpus": self.used_cpus,
            "gpus": [
                {
                    "uuid": gpu.device.uuid,
                    "name": gpu.device.name,
                    "memory_bytes": gpu.device.memory_bytes,
                    "used": gpu.used_milli / _WHOLE,
                    "reserved_bytes": gpu.reserved_bytes,
                }
                for gpu in self.gpus
            ],
        }


def _total(gpu: Gpu) -> int | None:
    return gpu.device.memory_bytes
