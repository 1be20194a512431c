"""The driver's library on this host: how it is opened, tried again, and asked which GPUs there are.

Its calls run in a thread of their own, so that a start that hangs holds nothing; a library that serves no more is
opened anew, and what was known of its GPUs stays.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable
from typing import Any

from fleetcraft.core.clock import Clock
from fleetcraft.telemetry.api import Device, HostState, Reason
from fleetcraft.telemetry.deadline import Answer, Reader
from fleetcraft.telemetry.nvml_errors import code_of, host_state, reason_of
from fleetcraft.telemetry.nvml_events import XidWatch
from fleetcraft.telemetry.nvml_inventory import Group, Listing, list_gpus, merge
from fleetcraft.telemetry.nvml_processes import sees_all_pids

# How often a driver that does not serve us is tried again, and how often GPUs are listed anew.
_RETRY_S = 60.0
_LIST_S = 300.0
# A loaded driver, or the bridge device of WSL; FLEETCRAFT_NVML=1 says that a library is there all the same.
DRIVER_SIGNS = ("/dev/nvidiactl", "/proc/driver/nvidia", "/dev/dxg")
# What a healthy GPU takes for all questions is a tenth of this.
PATIENCE_S = 0.05
LATE = Answer(late=True)
PENDING = Answer(late=True)


class BindingError(Exception):
    """There is no usable binding; the sentence says why."""


class NvmlHost:
    """What a sensor over the library stands on: its state, and the groups of devices."""

    def __init__(
        self,
        deadline_s: float,
        *,
        clock: Clock,
        own: Callable[[int], bool | None],
        signs: tuple[str, ...],
        binding: Callable[[], Any],
    ) -> None:
        self.reason = ""
        self.state = HostState.NO_GPU
        self.driver = ""
        self.lacks_binding = False  # there is a driver, and only the package to ask it is missing
        self._deadline_s = deadline_s
        self._clock = clock
        self._own = own
        self._signs = signs
        self._binding = binding
        self._all_pids = sees_all_pids()
        self._nvml: Any = None
        self._serves = False
        self._blame = Reason.NO_DRIVER  # what stands at every field while it does not serve
        self._stale = False
        self._groups: dict[str, Group] = {}
        self._expected: dict[str, Device] = {}
        self._host = Reader("nvml", self._clock)
        self._xids: XidWatch | None = None
        self._tried_mono = self._clock.mono()
        self._open()

    def _has_driver(self) -> bool:
        return any(os.path.exists(path) for path in self._signs)

    def _open(self) -> None:
        """Load the binding, start the library and list what there is; sets state and reason."""
        self._tried_mono = self._clock.mono()
        if self._nvml is None:
            if not os.environ.get("FLEETCRAFT_NVML") and not self._has_driver():
                self._refuse(HostState.NO_GPU, "no NVIDIA driver is loaded on this host")
                return  # the binding alone costs megabytes of memory
            try:
                self._nvml = self._binding()
            except BindingError as error:
                self.lacks_binding = True
                self._refuse(HostState.BROKEN, str(error))
                return
            self._xids = XidWatch(self._nvml)
        anew = not self._serves
        answer = self._host.call(functools.partial(self._start, anew=anew), self._deadline_s)
        if not anew and (answer.late or answer.error is not None):
            return  # only the list is old; each device speaks for itself
        if answer.late:
            self._refuse(HostState.HUNG, self._hung(), Reason.HUNG)
        elif answer.error is not None:
            code = code_of(answer.error)
            state, why = host_state(code, has_driver=self._has_driver())
            why = why or f"the NVIDIA driver does not serve us: {answer.error}"
            self._refuse(state, why, reason_of(answer.error))
        else:
            self._take(answer.value)
            if anew:
                self._describe()

    def _start(self, *, anew: bool) -> Listing:
        """In the host's thread."""
        nvml = self._nvml
        if anew:
            nvml.nvmlInit()
        listing = list_gpus(nvml, is_new=anew)
        if self._xids is not None:
            if anew:
                self._xids.forget_handles()
            self._xids.register({found.uuid: found.handle for found in listing.found if found.handle is not None})
        return listing

    def _take(self, listing: Listing) -> None:
        self.driver = listing.driver
        self._serves, self._stale = True, False
        self._groups = merge(self._groups, listing, self._expected, self._new_group)
        self.state = HostState.OK if self._groups else HostState.NO_GPU
        self.reason = "" if self._groups else "the NVIDIA driver shows no GPU to this process"

    def _new_group(self, device: Device, handle: Any) -> Group:
        reader = Reader(f"nvml-{device.index}", self._clock)
        return Group(
            nvml=self._nvml, device=device, handle=handle, reader=reader, own=self._own, all_pids=self._all_pids
        )

    def _describe(self) -> None:
        """What does not change, each device in its own thread, all within one deadline."""
        until = self._clock.mono() + self._deadline_s
        asked = [
            group
            for group in self._groups.values()
            if group.gpu.handle is not None and not group.gpu.described and self._ask(group, group.describe, until)
        ]
        for group in asked:
            self._collect(group, until)

    def _refuse(self, state: HostState, reason: str, blame: Reason = Reason.NO_DRIVER) -> None:
        self.state, self.reason, self._blame, self._serves = state, reason, blame, False

    def _hung(self) -> str:
        return f"hung: no answer within {self._deadline_s:g} s"

    def _ask(self, group: Group, question: Callable[[], Any], until: float) -> bool:
        return group.reader.ask(question, max(0.0, until - self._clock.mono()))

    def _collect(self, group: Group, until: float) -> Answer:
        return group.reader.collect(max(0.0, until - self._clock.mono()))

    def _refresh(self) -> None:
        """Open or list anew where it is time; a call of the host that is out is left alone."""
        if self._host.is_out():
            return
        waited = self._clock.mono() - self._tried_mono
        if self.state is HostState.HUNG and not self._serves:
            self._open()  # the call that was out came back
        elif not self._serves or self._stale:
            if waited >= _RETRY_S:
                self._serves = False
                self._open()
        elif waited >= _LIST_S:
            self._open()

    def expect(self, devices: Iterable[Device]) -> None:
        """See `Sensor.expect`."""
        self._expected.update((device.uuid, device) for device in devices if not device.parent)
        if self._serves:
            here = Listing(driver=self.driver, found=tuple(group.found() for group in self._groups.values()))
            self._groups = merge(self._groups, here, self._expected, self._new_group)

    def _poll_events(self, until: float) -> Answer:
        """Take the Xid events that have come. The host's thread may hang as any other."""
        if self._xids is None or not self._host.ask(self._xids.poll, max(0.0, until - self._clock.mono())):
            return LATE
        return self._host.look(PATIENCE_S) or PENDING

    def _xid_fields(self, uuid: str, events: Answer) -> dict[str, float | Reason]:
        told: dict[str, float | Reason] = {} if self._xids is None else self._xids.fields(uuid)
        if events.late:
            return dict.fromkeys(told, Reason.HUNG)
        return told if events.error is None else dict.fromkeys(told, reason_of(events.error))
