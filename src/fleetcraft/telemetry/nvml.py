"""NVIDIA GPUs through the driver's own library: identity by UUID, memory in use, and who holds it.

NVML can hang for minutes on a sick GPU. Every reading runs in a thread with a deadline; a late answer is
reported as `hung`, and the worker goes on without it.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from fleetcraft.telemetry.api import Device, Occupancy

T = TypeVar("T")
_DEADLINE_S = 10.0
# A loaded driver, or the bridge device of WSL; FLEETCRAFT_NVML=1 says that a library is there all the same.
_DRIVER_SIGNS = ("/dev/nvidiactl", "/proc/driver/nvidia", "/dev/dxg")


class NvmlSensor:
    """Reads through `pynvml` where it is installed; `reason` says why not otherwise."""

    name = "nvml"

    def __init__(self, deadline_s: float = _DEADLINE_S) -> None:
        self.reason = ""
        self._deadline_s = deadline_s
        self._nvml: Any = None
        self._hung = False
        if not os.environ.get("FLEETCRAFT_NVML") and not any(os.path.exists(path) for path in _DRIVER_SIGNS):
            self.reason = "no NVIDIA driver is loaded on this host"
            return  # the binding alone costs megabytes of memory
        try:
            import pynvml
        except ImportError:
            self.reason = "the package nvidia-ml-py is not installed"
            return
        if self._ask(lambda: pynvml.nvmlInit() or True) is None:
            self.reason = self.reason or "the NVIDIA driver does not answer"
            return
        self._nvml = pynvml

    def _ask(self, question: Callable[[], T]) -> T | None:
        """The answer, or None with `reason` set: an error, or no answer within the deadline."""
        if self._hung:
            return None
        answers: queue.Queue[tuple[bool, Any]] = queue.Queue(1)

        def work() -> None:
            try:
                answers.put((True, question()))
            except Exception as error:  # noqa: BLE001  the driver's own error class is known only when it is installed
                answers.put((False, error))

        threading.Thread(target=work, daemon=True, name="nvml").start()
        try:
            good, value = answers.get(timeout=self._deadline_s)
        except queue.Empty:
            self._hung = True
            self.reason = f"hung: no answer within {self._deadline_s:.0f} s"
            return None
        if not good:
            self.reason = str(value)
            return None
        answer: T = value
        return answer

    def devices(self) -> list[Device]:
        """See `Sensor.devices`; `CUDA_VISIBLE_DEVICES` is respected, by index and by UUID."""
        if self._nvml is None:
            return []
        found = self._ask(self._list_devices) or []
        return visible_devices(found, os.environ.get("CUDA_VISIBLE_DEVICES"))

    def _list_devices(self) -> list[Device]:
        nvml = self._nvml
        devices = []
        for index in range(nvml.nvmlDeviceGetCount()):
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            try:
                memory: int | None = int(nvml.nvmlDeviceGetMemoryInfo(handle).total)
            except nvml.NVMLError:
                memory = None  # unified memory: the device has none of its own to report
            devices.append(
                Device(
                    uuid=_text(nvml.nvmlDeviceGetUUID(handle)),
                    index=index,
                    name=_text(nvml.nvmlDeviceGetName(handle)),
                    memory_bytes=memory,
                )
            )
        return devices

    def occupancy(self, uuid: str) -> Occupancy:
        """See `Sensor.occupancy`."""
        if self._nvml is None:
            return Occupancy(used_bytes=None, pids=None, reason=self.reason)
        found = self._ask(lambda: self._read(uuid))
        return found or Occupancy(used_bytes=None, pids=None, reason=self.reason)

    def _read(self, uuid: str) -> Occupancy:
        nvml = self._nvml
        handle = nvml.nvmlDeviceGetHandleByUUID(uuid.encode())
        used: int | None
        try:
            used = int(nvml.nvmlDeviceGetMemoryInfo(handle).used)
        except nvml.NVMLError:
            used = None
        try:
            pids: tuple[int, ...] | None = tuple(
                int(process.pid) for process in nvml.nvmlDeviceGetComputeRunningProcesses(handle)
            )
        except nvml.NVMLError:
            pids = None
        return Occupancy(used_bytes=used, pids=pids, reason="" if used is not None else "not reported by the driver")


def _text(value: object) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def visible_devices(devices: list[Device], visible: str | None) -> list[Device]:
    """Apply `CUDA_VISIBLE_DEVICES`: None means all; the list ends at the first entry that names nothing."""
    if visible is None:
        return devices
    chosen: list[Device] = []
    for entry in (part.strip() for part in visible.split(",")):
        match = [
            device
            for device in devices
            if (entry.isdigit() and device.index == int(entry)) or (len(entry) > 4 and device.uuid.startswith(entry))
        ]
        if len(match) != 1 or match[0] in chosen:
            break
        chosen.append(match[0])
    return chosen
