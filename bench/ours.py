"""Calls Fleetcraft as a person would: the installed command, its documented options and its JSON."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from measure import BenchError, Run, check_complete, run_measured

BENCH = Path(__file__).resolve().parent
NOOP_CALL = "noop_module:noop"
TRUE_COMMAND = ("/bin/true",)


def find_command() -> Path | None:
    """The installed command: what FLEETCRAFT_BENCH_COMMAND names, else the one in the checkout's .venv."""
    named = os.environ.get("FLEETCRAFT_BENCH_COMMAND")
    path = Path(named) if named else BENCH.parent / ".venv" / "bin" / "fleetcraft"
    return path if os.access(path, os.X_OK) else None


def environment() -> dict[str, str]:
    """The environment of every run of ours: resident functions are found next to this file."""
    return os.environ | {"PYTHONPATH": str(BENCH), "NO_COLOR": "1"}


def write_commands(path: Path, count: int, command: Sequence[str] = TRUE_COMMAND) -> Path:
    """JSONL with `count` equal commands under names of their own."""
    words = json.dumps(list(command))
    return _write_lines(path, count, f'"command": {words}')


def write_calls(path: Path, count: int) -> Path:
    """JSONL with `count` calls of the resident function that does nothing."""
    return _write_lines(path, count, f'"call": "{NOOP_CALL}", "args": {{}}')


def _write_lines(path: Path, count: int, body: str) -> Path:
    with path.open("w") as out:
        out.writelines(f'{{"name": "t{index:07d}", {body}}}\n' for index in range(count))
    return path


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleetcraft:
    """The product under test."""

    command: Path

    def version(self) -> str:
        return self._text("--version")

    def enqueue_command(self, spool: Path, tasks: Path) -> list[str]:
        return [str(self.command), "task", "enqueue", "--spool", str(spool), "--from", str(tasks)]

    def worker_command(self, spool: Path, cpus: int, *options: str, idle_exit: str = "0s") -> list[str]:
        words = [str(self.command), "worker", "run", "--spool", str(spool), "--cpus", str(cpus)]
        return [*words, "--idle-exit", idle_exit, *options]

    def status_command(self, spool: Path) -> list[str]:
        return [str(self.command), "spool", "status", "--spool", str(spool), "--json"]

    def enqueue(self, spool: Path, tasks: Path, count: int) -> Run:
        """Enqueue a file of `count` tasks, measured, and see that they are all there."""
        run = run_measured(
            "fleetcraft enqueue",
            [self.enqueue_command(spool, tasks)],
            tasks=count,
            directory=tasks.parent,
            env=environment(),
        )
        check_complete("fleetcraft enqueue", self.count(spool, "total"), count)
        return run

    def drain(
        self,
        spool: Path,
        *,
        tasks: int,
        cpus: int = 2,
        workers: int = 1,
        options: Sequence[str] = (),
        system: str = "fleetcraft",
        timeout_s: float = 600.0,
    ) -> Run:
        """Run workers until they end by themselves; exactly `tasks` more must then have succeeded.

        With `--max-tasks` among the options a worker may finish what was already in its slots, so more is right too.
        """
        before = self.count(spool, "succeeded")
        run = run_measured(
            system,
            [self.worker_command(spool, cpus, *options) for _ in range(workers)],
            tasks=tasks,
            directory=spool.parent,
            env=environment(),
            timeout_s=timeout_s,
        )
        done = self.count(spool, "succeeded") - before
        if "--max-tasks" in options and done >= tasks:
            return replace(run, tasks=done)
        check_complete(system, done, tasks)
        return run

    def enqueue_and_drain(
        self, directory: Path, *, tasks: int, command: Sequence[str], cpus: int = 2, workers: int = 1, system: str
    ) -> tuple[Run, Run]:
        """A new spool in `directory`, filled and drained: (the worker alone, end to end with the enqueue)."""
        spool = directory / "spool"
        enqueued = self.enqueue(spool, write_commands(directory / "tasks.jsonl", tasks, command), tasks)
        drained = self.drain(spool, tasks=tasks, cpus=cpus, workers=workers, system=system)
        whole = replace(
            drained,
            system=f"{system} with enqueue",
            wall_s=drained.wall_s + enqueued.wall_s,
            cpu_s=drained.cpu_s + enqueued.cpu_s,
            foreign_share=max(drained.foreign_share, enqueued.foreign_share),
        )
        return drained, whole

    def count(self, spool: Path, key: str) -> int:
        status = json.loads(self._text(*self.status_command(spool)[1:]))
        if key not in status:
            raise BenchError(f"`spool status --json` has no {key!r}; it has {sorted(status)}")
        return int(status[key])

    def _text(self, *words: str) -> str:
        done = subprocess.run(
            [str(self.command), *words], env=environment(), capture_output=True, text=True, timeout=300, check=False
        )
        if done.returncode != 0:
            raise BenchError(f"fleetcraft {' '.join(words)} ended with {done.returncode}: {done.stderr[-400:]!r}")
        return done.stdout.strip()


def count_entries(spool: Path) -> tuple[int, int]:
    """(files, directories) under a spool, its own directory included."""
    files = directories = 0
    for _, _, names in os.walk(spool):
        directories += 1
        files += len(names)
    return files, directories
