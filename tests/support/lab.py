"""A spool, real processes around it, and what its files say about them.

Everything that a lab started is ended when it closes, and then no process that carries a mark of one of the
spool's lives may be left: a test that leaves one behind fails, whatever else it found.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Self

from fleetcraft.actions.enqueue import EnqueueOptions, EnqueueResult, enqueue_tasks
from fleetcraft.core.names import Token
from fleetcraft.core.outcome import Fold, Verdict
from fleetcraft.core.states import TaskState
from fleetcraft.spool import host
from fleetcraft.spool.life import HEARTBEAT, JOURNAL, find_state, read_identity, read_json
from fleetcraft.spool.reading import SpoolFold
from fleetcraft.spool.spool import Spool
from fleetcraft.store.journal import read_lines
from tests.support.waiting import wait_for

ROOT = Path(__file__).parents[2]
BASE_ENV = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LC_ALL": "C.UTF-8"}
# Quick for a test, and still one policy: nothing below depends on how quick.
QUICK: Mapping[str, Any] = {"heartbeat_s": 0.2, "kill_grace_s": 2.0, "gpus": "none", "idle_exit_s": 0.0}


class Process:
    """One process that a lab started; its stderr is kept for the message of a failing test."""

    def __init__(self, argv: list[str], stderr: Path, env: Mapping[str, str] | None = None) -> None:
        self.stderr = stderr
        with stderr.open("wb") as target:
            self.popen = subprocess.Popen(
                argv, cwd=ROOT, env=env, stdin=subprocess.DEVNULL, stdout=target, stderr=target, start_new_session=True
            )
        self.pid = self.popen.pid

    @property
    def alive(self) -> bool:
        return self.popen.poll() is None

    def send(self, number: int) -> None:
        """Signal it, unless it has ended: its pid is ours until it was collected."""
        if self.alive:
            os.kill(self.pid, number)

    def kill(self) -> int:
        """End it as a crash would."""
        self.send(signal.SIGKILL)
        return self.popen.wait()

    def wait(self, deadline_s: float = 60.0) -> int:
        """Its exit code."""
        try:
            return self.popen.wait(deadline_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(
                f"process {self.pid} did not end within {deadline_s:g} s; it said:\n{self.said()}"
            ) from None

    def said(self) -> str:
        return self.stderr.read_text(errors="replace")[-4000:]


class Lab:
    """One spool in a folder of its own; use it as a context."""

    def __init__(self, folder: Path, root: Path | None = None) -> None:
        self.folder = folder  # where tasks run, and where what the processes say is kept
        self.root = root or folder / "spool"
        self.spool = Spool.open(str(self.root), create=True)
        self.processes: list[Process] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        in_order = all(process.popen.poll() is not None and process.popen.returncode >= 0 for process in self.processes)
        for process in self.processes:
            process.kill()
        strays = self.strays()
        for pid in strays:
            with contextlib.suppress(ProcessLookupError):  # a sampler ends by itself when its worker was killed
                os.kill(pid, signal.SIGKILL)
        if in_order and strays:
            raise AssertionError(f"left behind by workers that ended in order: {strays}")

    # Work

    def enqueue(self, tasks: Iterable[dict[str, Any] | str], **defaults: Any) -> EnqueueResult:
        """Enqueue as a person would, with a small recorded environment, in the lab's folder."""
        shared = {"cwd": str(self.folder), **defaults}
        return enqueue_tasks(self.spool, tasks, EnqueueOptions(defaults=shared, base_env=BASE_ENV))

    def worker(
        self,
        *,
        fault: tuple[str, ...] = (),
        env: Mapping[str, str] | None = None,
        before: tuple[str, ...] = (),
        **options: Any,
    ) -> Process:
        """Start a worker; `before` is put in front of its command line."""
        chosen = {**QUICK, "cpus": 2, "spool": str(self.root), **options}
        argv = [*before, sys.executable, "-m", "tests.support.worker_program", json.dumps(chosen), *fault]
        return self.start(argv, env={**os.environ, **env} if env else None)

    def start(self, argv: list[str], env: Mapping[str, str] | None = None) -> Process:
        """Start any program of this lab."""
        process = Process(argv, self.folder / f"stderr-{len(self.processes)}.txt", env)
        self.processes.append(process)
        return process

    def drain(self, deadline_s: float = 60.0, **options: Any) -> Process:
        """Run one worker until there is nothing left for it; it must end with 0."""
        worker = self.worker(**options)
        code = worker.wait(deadline_s)
        assert code == 0, f"the worker ended with {code}; it said:\n{worker.said()}"
        return worker

    # Facts

    def fold(self) -> Fold:
        """What all journals say now."""
        self.spool.refresh()
        reader = SpoolFold(self.spool)
        reader.refresh()
        return reader.fold

    def verdict(self, name: str) -> Verdict:
        """What became of one task."""
        self.spool.refresh()
        task = self.spool.find(name)
        assert task is not None, f"no task is called {name!r}"
        return self.fold().verdict(task.batch, task.index)

    def state(self, name: str) -> TaskState | None:
        """The final state of a task, None while it has not ended."""
        return self.verdict(name).state

    def counts(self) -> dict[str, int]:
        """How many tasks ended in each state; only what is not zero."""
        return {state.value: count for state, count in self.fold().counts().items() if count}

    def total(self) -> int:
        self.spool.refresh()
        return self.spool.total()

    def tokens(self) -> list[Token]:
        return self.spool.tokens().tokens

    def lives(self) -> list[str]:
        return list(self.spool.lives())

    def life_of(self, process: Process, deadline_s: float = 30.0) -> str:
        """The life of a worker process, once it has begun."""

        def find() -> str | None:
            assert process.alive, (
                f"the worker ended with {process.popen.returncode} at once; it said:\n{process.said()}"
            )
            for life in self.lives():
                folder = self.spool.layout.life(life)
                identity = read_identity(self.spool.files, folder)
                # In a pid namespace of its own it has another number there; the folder is named by that one.
                if identity is not None and identity.pid == process.pid and find_state(self.spool.files, folder):
                    return life
            return None

        return wait_for(find, f"the life of process {process.pid}", deadline_s)

    def life_state(self, life: str) -> str | None:
        return find_state(self.spool.files, self.spool.layout.life(life))

    def heartbeat(self, life: str) -> dict[str, Any]:
        return read_json(self.spool.files, os.path.join(self.spool.layout.life(life), HEARTBEAT)) or {}

    def records(self, life: str | None = None) -> list[dict[str, Any]]:
        """The records of one journal, or of all; each with the life that wrote it under `by`."""
        found: list[dict[str, Any]] = []
        for name in [life] if life else self.lives():
            path = os.path.join(self.spool.layout.life(name), JOURNAL)
            try:
                found += [{**line.record, "by": name} for line in read_lines(self.spool.files, path) if line.record]
            except FileNotFoundError:
                continue
        return found

    def receipts(self, name: str) -> list[dict[str, Any]]:
        """The receipts of one task, in the order of attempts."""
        self.spool.refresh()
        task = self.spool.find(name)
        assert task is not None, f"no task is called {name!r}"
        mine = [
            record
            for record in self.records()
            if record["t"] == "receipt"
            and record["b"] == task.batch
            and record["i"] <= task.index < record["i"] + record.get("k", 1)
        ]
        return sorted(mine, key=lambda record: record["a"])

    def outcomes(self, name: str) -> list[str]:
        return [record["o"] for record in self.receipts(name)]

    def output(self, name: str) -> bytes:
        """What the last attempt of a task wrote."""
        receipt = self.receipts(name)[-1]
        file_no, start, stop = receipt["log"]
        suffix = "" if file_no == 0 else f".{file_no}"
        path = Path(self.spool.layout.life(receipt["by"])) / f"output-{receipt['s']}{suffix}.log"
        return path.read_bytes()[start:stop]

    def strays(self) -> list[int]:
        """Processes that carry the mark of any life of this spool."""
        lives = set(self.lives())
        return [pid for pid in host.all_pids() if _life_in_environment(pid) in lives]

    # Waiting

    def wait_until_ended(self, count: int, deadline_s: float = 60.0) -> dict[str, int]:
        """Wait until so many tasks ended; the counts by state."""

        def look() -> dict[str, int] | None:
            at_work = any(process.alive for process in self.processes)
            counts = self.counts()
            assert at_work or sum(counts.values()) >= count, f"nobody is left to do it: {self.picture()}"
            return counts if sum(counts.values()) >= count else None

        return wait_for(look, f"{count} tasks ended", deadline_s, self.picture)

    def wait_running(self, name: str, deadline_s: float = 30.0) -> dict[str, Any]:
        """Wait until a task runs; the `spawned` record of its newest attempt."""
        self.spool.refresh()
        task = self.spool.find(name)
        assert task is not None, f"no task is called {name!r}"

        def look() -> dict[str, Any] | None:
            assert any(process.alive for process in self.processes), f"nobody is left to run it: {self.picture()}"
            mine = [
                record for record in self.records() if (record.get("b"), record.get("i")) == (task.batch, task.index)
            ]
            spawned = [record for record in mine if record["t"] == "spawned"]
            ended = {record["a"] for record in mine if record["t"] in ("receipt", "lost")}
            return next((record for record in reversed(spawned) if record["a"] not in ended), None)

        return wait_for(look, f"{name} runs", deadline_s, self.picture)

    def picture(self) -> dict[str, Any]:
        """What the spool looks like, for the message of a failing test."""
        return {
            "total": self.total(),
            "ended": self.counts(),
            "tokens": Counter(token.form or "waiting" for token in self.tokens()),
            "lives": Counter(self.life_state(life) for life in self.lives()),
            "said": [process.said()[-600:] for process in self.processes[-3:]],
        }


def _life_in_environment(pid: int) -> str | None:
    try:
        content = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return None
    prefix = f"{host.LIFE_VARIABLE}=".encode()
    return next((entry[len(prefix) :].decode() for entry in content.split(b"\0") if entry.startswith(prefix)), None)
