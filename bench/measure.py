"""Runs commands and says what they cost: wall time, processor time, memory, and how clean the machine was.

The harness is a child subreaper, so that the processor time of daemons and orphans is counted too.
A run whose count of finished tasks is not the asked one is invalid and never reaches a table.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import select
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

PR_SET_CHILD_SUBREAPER = 36
CLEAN_FOREIGN_SHARE = 0.10
SAMPLE_PERIOD_S = 0.05
STRAY_DEADLINE_S = 10.0


class BenchError(Exception):
    """A run that cannot be counted, with the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One measured run of one system."""

    system: str
    tasks: int
    wall_s: float
    cpu_s: float
    foreign_share: float
    peak_rss_kib: int
    output: str = field(repr=False)
    returncode: int = 0

    @property
    def rate(self) -> float:
        return self.tasks / self.wall_s

    @property
    def cpu_ms_per_task(self) -> float:
        return 1000 * self.cpu_s / max(self.tasks, 1)

    @property
    def is_clean(self) -> bool:
        return self.foreign_share <= CLEAN_FOREIGN_SHARE

    def as_json(self) -> dict[str, object]:
        return {
            "system": self.system,
            "tasks": self.tasks,
            "wall_s": round(self.wall_s, 4),
            "cpu_s": round(self.cpu_s, 4),
            "rate_per_s": round(self.rate, 1),
            "foreign_share": round(self.foreign_share, 3),
            "peak_rss_kib": self.peak_rss_kib,
            "clean": self.is_clean,
        }


def become_subreaper() -> None:
    """Adopt orphans, so that their processor time comes home to RUSAGE_CHILDREN."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise BenchError(f"prctl(PR_SET_CHILD_SUBREAPER) failed: {os.strerror(ctypes.get_errno())}")


def run_measured(
    system: str,
    commands: Sequence[Sequence[str]],
    *,
    tasks: int,
    directory: Path,
    env: Mapping[str, str] | None = None,
    stdin: Path | None = None,
    timeout_s: float = 600.0,
    expect_success: bool = True,
    ended_at: Callable[[], float] | None = None,
) -> Run:
    """Start all `commands` at once in `directory`, wait for all, and return what the whole tree cost.

    No other child of the harness may be alive: strays are awaited, then ended.
    `ended_at` may name an earlier end (epoch seconds) for a system that notices its own end late.
    """
    outputs = [directory / f"bench-output-{index}" for index in range(len(commands))]
    busy_before_s, own_before_s = _machine_busy_s(), _own_cpu_s()
    children_before_s = _children_cpu_s()
    started_epoch_s, started_s = time.time(), time.monotonic()
    processes = [
        _start(command, output, directory, env, stdin) for command, output in zip(commands, outputs, strict=True)
    ]
    with _PeakMemory([process.pid for process in processes]) as sampled:
        peak_kib = _wait_all(processes, deadline_s=started_s + timeout_s, system=system)
    wall_s = time.monotonic() - started_s
    _reap_strays()
    span_s = time.monotonic() - started_s
    cpu_s = _children_cpu_s() - children_before_s
    foreign_s = (_machine_busy_s() - busy_before_s) - cpu_s - (_own_cpu_s() - own_before_s)
    text = "".join(output.read_text(errors="replace") for output in outputs)
    returncode = next((process.returncode for process in processes if process.returncode), 0)
    if expect_success and returncode != 0:
        raise BenchError(f"{system} ended with {returncode}; last output: {text[-400:]!r}")
    if ended_at is not None:
        wall_s = ended_at() - started_epoch_s
    return Run(
        system=system,
        tasks=tasks,
        wall_s=wall_s,
        cpu_s=cpu_s,
        foreign_share=max(0.0, foreign_s) / (span_s * (os.cpu_count() or 1)),
        # What exec hands on from the harness would be taken for the child's own peak.
        peak_rss_kib=peak_kib if peak_kib > peak_rss_kib(os.getpid()) else sampled.kib,
        output=text,
        returncode=returncode,
    )


def check_complete(system: str, done: int, asked: int) -> None:
    if done != asked:
        raise BenchError(f"{system} finished {done} of {asked} tasks; the run does not count")


def last_json(text: str) -> dict[str, object]:
    """The last line of a program's output that is a JSON object."""
    for line in reversed(text.splitlines()):
        if line.startswith("{"):
            with suppress(json.JSONDecodeError):
                return dict(json.loads(line))
    raise BenchError(f"no JSON line in the output: {text[-400:]!r}")


def wall_of(command: Sequence[str], *, directory: Path, env: Mapping[str, str] | None = None) -> float:
    """Wall time in seconds of one short command that must succeed."""
    started_s = time.monotonic()
    done = subprocess.run(command, cwd=directory, env=env, capture_output=True, timeout=120, check=False)
    wall_s = time.monotonic() - started_s
    if done.returncode != 0:
        raise BenchError(f"{' '.join(command)[:200]} ended with {done.returncode}: {done.stderr[-400:]!r}")
    return wall_s


def end_process(process: subprocess.Popen[bytes]) -> None:
    """End a process that this harness started, with its session: politely, then not."""
    if process.poll() is not None:
        return
    process.terminate()
    try:
        process.wait(timeout=10)
    except subprocess.TimeoutExpired:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(timeout=10)


def _start(
    command: Sequence[str], output: Path, directory: Path, env: Mapping[str, str] | None, stdin: Path | None
) -> subprocess.Popen[bytes]:
    # A file, not a pipe: nobody has to read while the run is measured.
    with output.open("wb") as out, (stdin or Path(os.devnull)).open("rb") as source:
        return subprocess.Popen(
            command, cwd=directory, env=env, stdin=source, stdout=out, stderr=subprocess.STDOUT, start_new_session=True
        )


def _wait_all(processes: Sequence[subprocess.Popen[bytes]], *, deadline_s: float, system: str) -> int:
    """Wait for all; the largest ru_maxrss among them, in KiB."""
    peak_kib = 0
    for process in processes:
        descriptor = os.pidfd_open(process.pid)
        try:
            left_s = max(0.1, deadline_s - time.monotonic())
            if not select.select([descriptor], [], [], left_s)[0]:
                for other in processes:
                    end_process(other)
                raise BenchError(f"{system} did not end within its time and was ended")
        finally:
            os.close(descriptor)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        peak_kib = max(peak_kib, usage.ru_maxrss)
    return peak_kib


def _reap_strays() -> None:
    """Wait for orphans that came home; end those that stay, because they would disturb the next run."""
    deadline_s = time.monotonic() + STRAY_DEADLINE_S
    while True:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid:
            continue
        if time.monotonic() > deadline_s:
            for stray in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split():
                with suppress(ProcessLookupError):
                    os.kill(int(stray), signal.SIGKILL)
            deadline_s += STRAY_DEADLINE_S
        time.sleep(0.01)


class _PeakMemory:
    """Samples VmHWM of the started processes, for those smaller than the harness: exec hands on the harness's peak."""

    def __init__(self, pids: Sequence[int]) -> None:
        self.kib = 0
        self._pids = pids
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _sample(self) -> None:
        while not self._stop.wait(SAMPLE_PERIOD_S):
            self.kib = max(self.kib, *(peak_rss_kib(pid) for pid in self._pids))


def peak_rss_kib(pid: int) -> int:
    """VmHWM of a live process; 0 once it is gone."""
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1])
    return 0


def _machine_busy_s() -> float:
    ticks = [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]
    user, nice, system, _idle, _iowait, irq, softirq, steal = ticks[:8]
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def _own_cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def _children_cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime
