"""Xid errors as the driver sends them: a set of changes, since a second equal one shows in no gauge."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

from fleetcraft.telemetry.api import Reason
from fleetcraft.telemetry.nvml_errors import TIMEOUT, code_of, reason_of

_XID = 8
# An error storm must not keep a tick from its end; the rest comes with the next one.
_MOST = 256


@dataclass(slots=True)
class XidCount:
    """What was seen of one GPU since the events were registered."""

    last: int | None = None
    events: int = 0


class XidWatch:
    """The event set of all GPUs. It is asked in the host's thread and never waits for an event."""

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml
        self._set: Any = None
        self._uuids: dict[int | None, str] = {}
        self._refused: dict[str, Reason] = {}
        self.counts: dict[str, XidCount] = {}

    def register(self, handles: dict[str, Any]) -> None:
        """Follow these GPUs. A driver that sends no events is remembered with its reason."""
        nvml = self._nvml
        try:
            if self._set is None:
                self._set = nvml.nvmlEventSetCreate()
        except Exception as error:  # noqa: BLE001  whatever the binding raises is a reason
            self._refused = dict.fromkeys(handles, reason_of(error))
            return
        for uuid, handle in handles.items():
            if _address(handle) in self._uuids:
                continue
            try:
                nvml.nvmlDeviceRegisterEvents(handle, _XID, self._set)
            except Exception as error:  # noqa: BLE001  whatever the binding raises is a reason
                self._refused[uuid] = reason_of(error)
                continue
            self._refused.pop(uuid, None)
            self._uuids[_address(handle)] = uuid
            self.counts.setdefault(uuid, XidCount())

    def forget_handles(self) -> None:
        """After the library was opened anew; the counts go on."""
        self._set = None
        self._uuids = {}

    def poll(self) -> None:
        """Take what has come since the last poll. Raises what the binding raises, but for there being none."""
        if self._set is None:
            return
        for _ in range(_MOST):
            try:
                event = self._nvml.nvmlEventSetWait_v2(self._set, 0)
            except Exception as error:
                if code_of(error) == TIMEOUT:
                    return
                raise
            if not event.eventType & _XID:
                continue
            # By address: a GPU that fell off the bus, which is what these events are for, tells its UUID no more.
            count = self.counts.get(self._uuids.get(_address(event.device), ""))
            if count is not None:
                count.last = int(event.eventData)
                count.events += 1

    def fields(self, uuid: str) -> dict[str, float | Reason]:
        """`xid` and `xid_events` of a GPU."""
        count = self.counts.get(uuid)
        if count is None:
            return dict.fromkeys(("xid", "xid_events"), self._refused.get(uuid, Reason.UNSUPPORTED))
        return {"xid": Reason.NOT_FOUND if count.last is None else count.last, "xid_events": count.events}


def _address(handle: Any) -> int | None:
    return ctypes.cast(handle, ctypes.c_void_p).value
