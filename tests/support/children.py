"""A supervisor for tests: it waits on the wake-up descriptor with a deadline, and says what it last saw."""

from __future__ import annotations

import itertools
import os
import select
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fleetcraft.core.clock import SystemClock
from fleetcraft.spool import host
from fleetcraft.workers.child import Child, Ended, Graces, Launch, Supervisor

# Marks are unique for ever: tests that run beside this one end processes by theirs.
LIFE = f"life-of-a-test-{os.getpid()}"
_NUMBERS = itertools.count(1)


def new_mark() -> str:
    return f"{LIFE}.{next(_NUMBERS)}"


PATH = {b"PATH": os.fsencode(os.environ["PATH"])}


def until(fact: Callable[[], Any], what: str, within_s: float = 20.0) -> Any:
    """Wait until `fact()` is true; fails with the last answer."""
    deadline = time.monotonic() + within_s
    while not (seen := fact()):
        assert time.monotonic() < deadline, f"{what}: not within {within_s:g} s, last seen {seen!r}"
        select.select([], [], [], 0.005)
    return seen


def is_gone(pid: int) -> bool:
    seen = host.process(pid)
    return seen is None or seen.is_gone


class Ward:
    """A supervisor, its log, and marks that never repeat."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self.folder = folder
        self.log = folder / "output.log"
        self.output = os.open(self.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC)
        options.setdefault("graces", Graces(settle_s=0.05, sweep_s=0.3, declare_s=5.0))
        self.supervisor = Supervisor(SystemClock(), LIFE, **options)
        self.closed = False
        self.ended: dict[str, Ended] = {}

    def start(self, *argv: str, **options: Any) -> Child:
        usual: dict[str, Any] = {"cwd": str(self.folder), "env": PATH, "output": self.output}
        usual["mark"] = new_mark()
        return self.supervisor.spawn(Launch(argv=list(argv), **usual | options))

    def shell(self, line: str, **options: Any) -> Child:
        return self.start("/bin/sh", "-c", line, **options)

    def turn(self, longest_s: float = 0.05) -> list[Ended]:
        """One round of a worker's loop."""
        due_s = self.supervisor.next_deadline_s()
        wait_s = longest_s if due_s is None else min(max(due_s - time.monotonic(), 0.0), longest_s)
        select.select([self.supervisor.wake_fd], [], [], wait_s)
        ended = self.supervisor.collect()
        self.ended.update((one.child.mark, one) for one in ended)
        return ended

    def wait(self, child: Child, within_s: float = 20.0) -> Ended:
        deadline = time.monotonic() + within_s
        while child.mark not in self.ended:
            assert time.monotonic() < deadline, f"{child} has not ended within {within_s:g} s: {child.end}"
            self.turn()
        return self.ended[child.mark]

    def said(self, text: str, within_s: float = 20.0) -> str:
        """The log, as soon as it contains `text`; the loop goes on meanwhile."""
        deadline = time.monotonic() + within_s
        while text not in (seen := self.log.read_text(errors="replace")):
            assert time.monotonic() < deadline, f"no {text!r} within {within_s:g} s in {seen[-500:]!r}"
            self.turn(0.005)
        return seen

    def pid_in(self, name: str) -> int:
        """A pid that a child writes to a file."""
        path = self.folder / name
        deadline = time.monotonic() + 20
        while not path.exists() or not path.read_text().endswith("\n"):
            assert time.monotonic() < deadline, f"nobody wrote {path}"
            self.turn(0.005)
        return int(path.read_text())

    def close(self, grace_s: float = 0.0) -> list[tuple[int, str]]:
        if self.closed:
            return []
        self.closed = True
        os.close(self.output)
        return self.supervisor.close(grace_s)


def open_descriptors() -> set[str]:
    return set(os.listdir("/proc/self/fd"))
