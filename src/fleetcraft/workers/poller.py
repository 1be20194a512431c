"""The one place where a worker sleeps: until a child, a signal, a resident or the spool wakes it."""

from __future__ import annotations

import select

from fleetcraft.workers.calls import Calls
from fleetcraft.workers.resident import ResidentState


class Poller:
    """Keeps what is polled between sleeps; most sleeps poll the same descriptors as the one before."""

    def __init__(self, descriptors: list[int | None], calls: Calls) -> None:
        self._always = {descriptor: select.POLLIN for descriptor in descriptors if descriptor is not None}
        self._calls = calls
        self._poll = select.poll()
        self._registered: dict[int, int] = {}
        # What woke us last; at first everything, so that nothing from before the first sleep is overlooked.
        self.ready: set[int] = set(self._always)

    def wait(self, timeout_s: float) -> None:
        """Sleep until something happens, at longest that long."""
        wanted = dict(self._always)
        for host in self._calls.hosts.values():
            if host.resident.state is not ResidentState.ENDED:
                wanted[host.resident.reply_fd] = select.POLLIN
            if host.resident.wants_write:
                wanted[host.resident.request_fd] = select.POLLOUT
        if wanted != self._registered:
            for descriptor in self._registered.keys() - wanted.keys():
                self._poll.unregister(descriptor)
            for descriptor, events in wanted.items():
                self._poll.register(descriptor, events)
            self._registered = wanted
        self.ready = {descriptor for descriptor, _ in self._poll.poll(max(0.0, timeout_s) * 1000)}
