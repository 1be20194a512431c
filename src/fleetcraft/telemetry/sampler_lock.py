"""One sampler for each device of a host under a telemetry root.

What excludes a second one is a name that the kernel of this host gives to one process and takes back at any death,
so nothing is locked on the storage, which may know no locks or hang on them. The file beside it only says who that is.
Jobs that share a host may see different devices, so there are a few places to take: a sampler stands back only when
those who hold one already measure everything that it would.
"""

from __future__ import annotations

import errno
import json
import os
import socket
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from fleetcraft.store.files import Files

PLACES = 9


@dataclass(slots=True)
class Place:
    """What was taken. Holding it is having `descriptor` open."""

    number: int
    descriptor: int
    state_name: str

    def release(self) -> None:
        """Let the next one in."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


@dataclass(frozen=True, slots=True)
class Taken:
    """Who measures these devices already, in words."""

    path: str
    holder: str


def _name(number: int, ending: str) -> str:
    return f"sampler{f'-{number}' if number else ''}.{ending}"


def take_place(folder: str, devices: Collection[str], who: str, *, shared: bool = False) -> Place | Taken:
    """The first place that is free, unless others measure all these devices. Raises OSError of the storage."""
    covered: set[str] = set()
    for number in range(PLACES):
        held = _hold(folder, number, who, shared=shared)
        if isinstance(held, int):
            return Place(number, held, _name(number, "json"))
        state = read_state(folder, _name(number, "json"))
        told = state.get("devices") if state else None
        # A holder that has not said yet what it measures may be about to measure everything.
        covered |= set(told) if isinstance(told, list) and state.get("pid") else set(devices)
        if covered.issuperset(devices):
            return Taken(os.path.join(folder, _name(number, "lock")), held)
    return Taken(os.path.join(folder, _name(PLACES - 1, "lock")), f"{PLACES} samplers measure on this host already")


def _hold(folder: str, number: int, who: str, *, shared: bool) -> int | str:
    """The descriptor that holds the place, or who holds it."""
    path = os.path.join(folder, _name(number, "lock"))
    there = os.stat(folder)
    # The folder may have another path in a container of this host; its identity is the same.
    name = f"\0fleetcraft-sampler-{there.st_dev:x}-{there.st_ino:x}-{number}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as door:
        try:
            door.bind(name)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return _holder(path)
            raise
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            if shared and os.fstat(descriptor).st_uid == os.getuid():
                os.fchmod(descriptor, 0o660)  # whatever the umask says: the group of the spool was asked for
            os.write(descriptor, who.encode("utf-8", "replace")[:500] + b"\n")
        finally:
            os.close(descriptor)
        return door.detach()


def _holder(path: str) -> str:
    try:
        with open(path, "rb") as source:
            text = source.read(512).decode("utf-8", "replace").strip()
    except OSError:
        text = ""
    return text or "a process that did not say who it is"


def read_state(folder: str, name: str) -> dict[str, Any]:
    """What a sampler last said of itself; empty where it said nothing that can be read."""
    try:
        with open(os.path.join(folder, name), "rb") as source:
            told = json.loads(source.read())
    except (OSError, ValueError):
        return {}
    return told if isinstance(told, dict) else {}


def make_host_folder(files: Files, root: str, host_part: str) -> str:
    """The folder of this host under the root, made where it is not there. Raises OSError."""
    folder = os.path.join(root, host_part)
    for path in (root, folder):
        try:
            files.make_folder(path)
        except FileExistsError:
            continue
        except FileNotFoundError:
            os.makedirs(path, mode=0o700, exist_ok=True)
    return folder
