"""Which GPUs there are, joined by UUID with those that were there before.

Indices shift when a GPU falls off the bus, so nothing is ever joined by index alone: an index is taken for a known
UUID only while the driver still counts a GPU there that it cannot open.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from fleetcraft.telemetry.api import Device, Reason
from fleetcraft.telemetry.deadline import Reader
from fleetcraft.telemetry.gpm import GpmWatch
from fleetcraft.telemetry.nvml_device import Known, describe, instances_of, text
from fleetcraft.telemetry.nvml_errors import reason_of
from fleetcraft.telemetry.nvml_processes import Owners


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """One place in the driver's list: a GPU, or why there is none to be opened."""

    index: int
    uuid: str = ""
    handle: Any = None
    reason: Reason | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """The driver's list."""

    driver: str
    found: tuple[Found, ...]
    is_new: bool = False  # the library was opened anew, and no handle or sample from before is good


class Group:
    """A GPU with its MIG instances: one thread asks all of them, because they hang together."""

    def __init__(
        self,
        *,
        nvml: Any,
        device: Device,
        handle: Any,
        reader: Reader,
        own: Callable[[int], bool | None],
        all_pids: bool,
    ) -> None:
        self._nvml = nvml
        self._own = own
        self._all_pids = all_pids
        self.reader = reader
        self.gpu = self._known(handle, device)
        self.instances: list[Known] = []
        self.is_listed = True

    def _known(self, handle: Any, device: Device) -> Known:
        return Known(device=device, handle=handle, owners=Owners(self._own, all_pids=self._all_pids))

    def take(self, found: Found, *, is_new: bool) -> None:
        """What the new list says of it. Another handle is another life of the device, and its samples begin anew."""
        device = replace(self.gpu.device, index=found.index)
        if found.handle is None or is_new or _address(found.handle) != _address(self.gpu.handle):
            self.gpu = self._known(found.handle, device)
        else:
            self.gpu.device, self.gpu.described = device, False
        self.gpu.missing = found.reason
        for known in self.instances if found.handle is None else ():
            known.handle, known.missing = None, found.reason

    def describe(self) -> None:
        """In the device's own thread."""
        describe(self._nvml, self.gpu)
        before = {} if self.gpu.gpm is None else {known.device.uuid: known for known in self.instances}
        if self.gpu.gpm is None:
            self.gpu.gpm = GpmWatch(self._nvml, self.gpu.handle)
        now = instances_of(self._nvml, self.gpu, self._known)
        for known in now:
            old = before.get(known.device.uuid)
            if old is not None and old.instance == known.instance:
                known.gpm, known.owners = old.gpm, old.owners
        self.instances = now

    def all(self) -> Iterator[Known]:
        """The GPU, then its instances."""
        yield self.gpu
        yield from self.instances

    def uuids(self) -> set[str]:
        """Of the GPU and its instances."""
        return {known.device.uuid for known in self.all()}

    def find(self, uuid: str) -> Known | None:
        """The device of that UUID."""
        return next((known for known in self.all() if known.device.uuid == uuid), None)

    def found(self) -> Found:
        """Itself as a place of the list that it came from."""
        return Found(
            index=self.gpu.device.index, uuid=self.gpu.device.uuid, handle=self.gpu.handle, reason=self.gpu.missing
        )

    def notes(self) -> tuple[str, ...]:
        """What to say of a GPU that cannot be opened."""
        return ("unidentified",) if is_unidentified(self.gpu.device) else () if self.is_listed else ("missing",)


def _address(handle: Any) -> int | None:
    return None if handle is None else ctypes.cast(handle, ctypes.c_void_p).value


def is_unidentified(device: Device) -> bool:
    """Whether its UUID was never told."""
    return device.uuid.startswith("unidentified-")


def list_gpus(nvml: Any, *, is_new: bool) -> Listing:
    """The driver's list, in the host's thread. Raises what the binding raises when there is no list at all."""
    driver = text(nvml.nvmlSystemGetDriverVersion())
    found = []
    for index in range(nvml.nvmlDeviceGetCount()):
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            found.append(Found(index=index, uuid=text(nvml.nvmlDeviceGetUUID(handle)), handle=handle))
        except Exception as error:  # noqa: BLE001  one bad GPU does not end the list
            found.append(Found(index=index, reason=reason_of(error)))
    return Listing(driver=driver, found=tuple(found), is_new=is_new)


def merge(
    before: Mapping[str, Group],
    listing: Listing,
    expected: Mapping[str, Device],
    make: Callable[[Device, Any], Group],
) -> dict[str, Group]:
    """The groups of now: those of the list in its order, then those that are missing from it."""
    shut = _who_is_shut(listing, before, expected)
    groups: dict[str, Group] = {}
    for found in listing.found:
        device = Device(uuid=found.uuid, index=found.index, name="", memory_bytes=None)
        if found.handle is None:
            nobody = Device(uuid=f"unidentified-{found.index}", index=found.index, name="", memory_bytes=None)
            device = shut.get(found.index, nobody)
        group = before.get(device.uuid)
        if group is None:
            group = make(expected.get(device.uuid, device) if found.handle is None else device, found.handle)
            group.gpu.missing = found.reason
        elif listing.is_new or group.gpu.handle is not found.handle:
            group.take(found, is_new=listing.is_new)
        group.is_listed = True
        groups[device.uuid] = group
    for uuid, device in {**expected, **{uuid: group.gpu.device for uuid, group in before.items()}}.items():
        if uuid in groups or is_unidentified(device):
            continue
        group = before.get(uuid)
        if group is None:
            group = make(device, None)
        group.take(Found(index=device.index, uuid=uuid, reason=Reason.LOST), is_new=listing.is_new)
        group.is_listed = False
        groups[uuid] = group
    return groups


def _who_is_shut(listing: Listing, before: Mapping[str, Group], expected: Mapping[str, Device]) -> dict[int, Device]:
    """Which known GPU stands at a place that cannot be opened, by index.

    While more are unaccounted for than places are shut, GPUs were taken from the list and indices have shifted:
    then nobody knows which is which.
    """
    named = {found.uuid for found in listing.found if found.handle is not None}
    known = {**expected, **{uuid: group.gpu.device for uuid, group in before.items()}}
    away = [device for uuid, device in known.items() if uuid not in named and not is_unidentified(device)]
    shut = {found.index for found in listing.found if found.handle is None}
    if len(away) > len(shut):
        return {}
    return {device.index: device for device in away if device.index in shut}
