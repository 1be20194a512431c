"""Installs the peers into a cache of the benchmark's own and runs them on equal commands.

Each peer runs in the way that is fastest for it and still lets us count finished tasks.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from measure import BenchError, Run, check_complete, last_json, run_measured

PROGRAMS = Path(__file__).resolve().parent / "programs"
HYPERQUEUE, DISBATCH = "hyperqueue==0.27.0", "disbatch==3.0"
APT_LOCK_WAIT_S = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Peers:
    """Where the peers' programs are; a missing one comes with its reason."""

    hyperqueue_python: Path | None = None
    parallel: Path | None = None
    disbatch: Path | None = None
    c_floor: Path | None = None
    missing: tuple[str, ...] = ()

    def versions(self) -> dict[str, str]:
        found = {"python": sys.version.split()[0]}
        if self.hyperqueue_python:
            found["hyperqueue"] = HYPERQUEUE.split("==")[1]
        if self.disbatch:
            found["disbatch"] = DISBATCH.split("==")[1]
        if self.parallel:
            text = subprocess.run([self.parallel, "--version"], capture_output=True, text=True, check=False).stdout
            found["parallel"] = text.split("\n", 1)[0].removeprefix("GNU parallel ")
        return found


def default_cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "fleetcraft-bench"


def prepare(cache: Path, *, with_peers: bool = True) -> Peers:
    """Install what is missing. A peer that cannot be installed is left out, and the reason is kept."""
    cache.mkdir(parents=True, exist_ok=True)
    missing: list[str] = []

    def attempt(name: str, install: Callable[[], Path]) -> Path | None:
        try:
            return install()
        except (BenchError, OSError, subprocess.SubprocessError) as error:
            missing.append(f"{name}: {error}")
            return None

    c_floor = attempt("C floor", lambda: _compile_floor(cache))
    if not with_peers:
        return Peers(c_floor=c_floor, missing=(*missing, "peers: left out on request"))
    return Peers(
        hyperqueue_python=attempt("HyperQueue", lambda: _environment(cache / "hyperqueue", HYPERQUEUE, "python")),
        parallel=attempt("GNU parallel", lambda: _apt_parallel(cache)),
        disbatch=attempt("disBatch", lambda: _environment(cache / "disbatch", DISBATCH, "disbatch")),
        c_floor=c_floor,
        missing=tuple(missing),
    )


def run_floor(directory: Path, tasks: int, slots: int, command: Sequence[str]) -> Run:
    """`slots` Python processes, each looping posix_spawn and wait."""
    words = [sys.executable, "-I", str(PROGRAMS / "floor.py")]
    return _run_loops("floor", words, directory, tasks, slots, command)


def run_c_floor(program: Path, directory: Path, tasks: int, slots: int, command: Sequence[str]) -> Run:
    return _run_loops("floor in C", [str(program)], directory, tasks, slots, command)


def run_hyperqueue(
    python: Path, directory: Path, tasks: int, slots: int, command: Sequence[str], *, output: bool = False
) -> Run:
    """HyperQueue's LocalCluster; its end is the time of a last task, because its own wait asks once a second."""
    marker = directory / "end"
    words = [str(python), str(PROGRAMS / "hyperqueue_run.py"), "--output" if output else "--no-output"]
    run = run_measured(
        "HyperQueue, output files" if output else "HyperQueue",
        [[*words, str(tasks), str(slots), str(directory), str(marker), *command]],
        tasks=tasks,
        directory=directory,
        ended_at=lambda: marker.stat().st_mtime,
    )
    check_complete(run.system, int(str(last_json(run.output)["done"])), tasks)
    return run


def run_parallel(program: Path, directory: Path, tasks: int, slots: int, command: Sequence[str]) -> Run:
    """GNU parallel with its job log, which is how it can resume."""
    lines, log = _task_lines(directory, tasks, command), directory / "joblog"
    run = run_measured(
        "GNU parallel",
        [[str(program), "--will-cite", f"-j{slots}", "--joblog", str(log)]],
        tasks=tasks,
        directory=directory,
        env=os.environ | {"PARALLEL_HOME": str(directory)},
        stdin=lines,
    )
    rows = [line.split("\t") for line in log.read_text().splitlines()[1:]]
    check_complete("GNU parallel", sum(row[6] == "0" for row in rows), tasks)
    return run


def run_disbatch(program: Path, directory: Path, tasks: int, slots: int, command: Sequence[str]) -> Run:
    """Run disBatch on this host only."""
    lines = _task_lines(directory, tasks, command)
    run = run_measured(
        "disBatch",
        [[str(program), "-s", f"localhost:{slots}", "-p", f"{directory}/", str(lines)]],
        tasks=tasks,
        directory=directory,
        # It starts its helpers by name.
        env=os.environ | {"PATH": f"{program.parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"},
    )
    status = next(directory.glob("*_status.txt"))
    rows = [line.split("\t") for line in status.read_text().splitlines()]
    check_complete("disBatch", sum(len(row) > 6 and row[6] == "0" for row in rows), tasks)
    return run


def _run_loops(
    system: str, words: Sequence[str], directory: Path, tasks: int, slots: int, command: Sequence[str]
) -> Run:
    shares = [tasks // slots + (index < tasks % slots) for index in range(slots)]
    run = run_measured(
        system, [[*words, str(share), *command] for share in shares if share], tasks=tasks, directory=directory
    )
    done = sum(int(str(last_json(line)["done"])) for line in run.output.splitlines())
    check_complete(system, done, tasks)
    return run


def _task_lines(directory: Path, tasks: int, command: Sequence[str]) -> Path:
    path = directory / "tasks"
    path.write_text((" ".join(command) + "\n") * tasks)
    return path


def _environment(directory: Path, requirement: str, program: str) -> Path:
    """A virtual environment with one peer, made once per version."""
    done = directory / "installed"
    if not (done.is_file() and done.read_text() == requirement):
        _quiet([sys.executable, "-m", "venv", "--clear", str(directory)])
        _quiet([str(directory / "bin" / "pip"), "install", "--quiet", requirement])
        done.write_text(requirement)
    return directory / "bin" / program


def _apt_parallel(cache: Path) -> Path:
    found = shutil.which("parallel")
    if found is None:
        sudo = [] if os.geteuid() == 0 else ["sudo", "-n"]
        wait = f"DPkg::Lock::Timeout={APT_LOCK_WAIT_S}"
        _quiet([*sudo, "apt-get", "install", "--yes", "--no-install-recommends", "-o", wait, "parallel"])
        found = shutil.which("parallel")
    # Another program of this name exists (moreutils).
    text = subprocess.run([found or "parallel", "--version"], cwd=cache, capture_output=True, text=True, check=False)
    if found is None or not text.stdout.startswith("GNU parallel"):
        raise BenchError("the `parallel` on PATH is not GNU parallel; install the Debian package `parallel`")
    return Path(found)


def _compile_floor(cache: Path) -> Path:
    compiler, program = shutil.which("cc") or shutil.which("gcc"), cache / "floor"
    if compiler is None:
        raise BenchError("no C compiler")
    _quiet([compiler, "-O2", "-o", str(program), str(PROGRAMS / "floor.c")])
    return program


def _quiet(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    if done.returncode != 0:
        raise BenchError(f"`{' '.join(command)}` ended with {done.returncode}: {done.stderr[-300:].strip()}")
