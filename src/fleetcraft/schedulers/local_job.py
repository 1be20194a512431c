"""Minds one local job from submission to its end: waits for its turn, starts it, passes signals on, and ends it.

One process per job, holding the job's lock for its whole life. It does not depend on who submitted; when it dies
itself, the next one finds that the job was begun, ends what is left of it and calls it lost.
"""

from __future__ import annotations

import fcntl
import os
import signal
import sys
from typing import Any

from fleetcraft.core.clock import Clock, SystemClock
from fleetcraft.core.states import JobState
from fleetcraft.schedulers.local_files import MARK, NODE, NODES, JobFolder, held
from fleetcraft.store.files import Files
from fleetcraft.transports.processes import marked, signal_exactly, spawn, wait_any

# Wishes are announced by SIGUSR1; this is for the announcement that was missed.
_LOOK_S = 0.5
_WAKE = {signal.SIGCHLD, signal.SIGUSR1}
_FORWARDED = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCONT}
# After KILL only the kernel can keep a process.
_KILLED_S = 10.0


class Minder:
    """The supervisor of one job."""

    def __init__(self, folder: JobFolder, clock: Clock) -> None:
        self._folder = folder
        self._clock = clock
        request = folder.read("request.json")
        if request is None:
            raise SystemExit(f"{folder.path}: request.json cannot be read")
        self._request = request
        options = request["options"]
        self._root = os.path.dirname(os.path.dirname(folder.path))
        self._slots: int = options["slots"]
        self._kill_wait_s: float = options["kill_wait_s"]
        self._taken: list[int] = []
        self._reason = ""

    def run(self) -> None:
        """Mind the job until it has ended."""
        folder = self._folder
        if folder.read("ended.json") is not None:
            return
        folder.write_supervisor()
        if Files().exists(folder.at("started.json")):
            self._end_all(0.0)
            began = folder.read("started.json") or {}
            self._ended(JobState.LOST, began.get("at_utc"), reason="its supervisor was ended while it ran")
            return
        if not self._wait_for_turn():
            self._ended(JobState.CANCELLED, None, reason="cancelled before its start")
            return
        self._run_job()

    def _wait_for_turn(self) -> bool:
        while True:
            asks = self._folder.asks()
            if "cancel" in asks:
                return False
            reason = self._what_keeps_it(asks)
            if not reason:
                return True
            if reason != self._reason:
                self._reason = reason
                self._folder.write("waits.json", {"reason": reason})
            self._pause(_LOOK_S)

    def _what_keeps_it(self, asks: list[str]) -> str:
        request = self._request
        if "hold" in asks:
            return "JobHeldUser"
        if request["begin_utc"] is not None and self._clock.utc() < request["begin_utc"]:
            return "BeginTime"
        for other in request["after_any"]:
            if JobFolder(os.path.join(self._root, "jobs", other["id"])).read("ended.json") is None:
                return "Dependency"
        return "" if self._take_slots(request["nodes"]) else "Resources"

    def _take_slots(self, count: int) -> bool:
        """All nodes or none; who holds the lock of a slot's file has that node."""
        folder = os.path.join(self._root, "slots")
        with held(os.path.join(folder, "turn.lock"), wait=True):
            for number in range(self._slots):
                descriptor = os.open(os.path.join(folder, str(number)), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    os.close(descriptor)
                    continue
                self._taken.append(descriptor)
                if len(self._taken) == count:
                    return True
            while self._taken:
                os.close(self._taken.pop())
        return False

    def _run_job(self) -> None:
        folder, request = self._folder, self._request
        began_utc = self._clock.utc()
        limit_s = request["time_limit_s"]
        end_utc = began_utc + limit_s if limit_s is not None else None
        # Written before the start: a job that may have been begun is never begun again.
        folder.write("started.json", {"at_utc": began_utc, "limit_utc": end_utc})
        env = {name: value for name, value in os.environ.items() if not name.startswith(("FLEETCRAFT_", "SLURM_"))}
        env |= request["env"] | {
            MARK: folder.path,
            NODES: str(request["nodes"]),
            "FLEETCRAFT_JOB_ID": folder.token,
            "FLEETCRAFT_JOB_NODES": str(request["nodes"]),
        }
        try:
            output = os.open(
                request["output"] or folder.at("output.log"),
                os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC,
                0o600,
            )
            try:
                pid = spawn(["/bin/bash", folder.at("script")], env=env, cwd=request["cwd"], output=output)
            finally:
                os.close(output)
        except OSError as error:
            self._ended(JobState.FAILED, began_utc, reason=f"not started: {error.filename or ''} {error.strerror}")
            return
        folder.write("started.json", {"at_utc": began_utc, "limit_utc": end_utc, "pid": pid})
        self._watch(pid, began_utc, self._clock.mono())

    def _watch(self, pid: int, began_utc: float, began_s: float) -> None:
        request = self._request
        limit_s: float | None = request["time_limit_s"]
        warn_s = limit_s - request["signal_before_s"] if limit_s is not None and request["signal"] else None
        while (code := self._code_of(pid)) is None:
            asks = self._folder.asks()
            run_s = self._clock.mono() - began_s
            if "cancel" in asks:
                self._stop(pid, JobState.CANCELLED, began_utc, "cancelled")
                return
            if limit_s is not None and run_s >= limit_s:
                self._stop(pid, JobState.TIMEOUT, began_utc, "TimeLimit")
                return
            if warn_s is not None and run_s >= warn_s:
                warn_s = None
                os.kill(pid, _number(request["signal"]))
            self._pass_signals(asks)
            due_s = min((at for at in (limit_s, warn_s) if at is not None), default=run_s + _LOOK_S)
            self._pause(min(max(due_s - run_s, 0.0), _LOOK_S))
        # Nothing of a job outlives it, so that its nodes are free when they are called free.
        self._end_all(0.0)
        state = JobState.DONE if code == 0 else JobState.FAILED
        self._ended(state, began_utc, code=code, reason="" if code == 0 else "NonZeroExitCode")

    def _pass_signals(self, asks: list[str]) -> None:
        for ask in asks:
            if ask.startswith("signal."):
                self._folder.unask(ask)
                for seen in marked(MARK, self._folder.path):
                    signal_exactly(seen, _number(ask.rsplit(".", 1)[1]))

    def _stop(self, pid: int, state: JobState, began_utc: float, reason: str) -> None:
        code = self._end_all(self._kill_wait_s, pid)
        self._ended(state, began_utc, code=code, reason=reason)

    def _end_all(self, grace_s: float, pid: int | None = None) -> int | None:
        """End every process of the job, politely while the grace lasts; the code of `pid` if it was collected."""
        code: int | None = None
        began_s = self._clock.mono()
        warned = False
        while True:
            left = marked(MARK, self._folder.path)
            passed_s = self._clock.mono() - began_s
            if not left or passed_s > grace_s + _KILLED_S:
                return code if code is not None or pid is None else self._code_of(pid)
            for seen in left:
                if passed_s >= grace_s:
                    signal_exactly(seen, signal.SIGKILL)
                elif not warned:
                    signal_exactly(seen, signal.SIGTERM)
                    signal_exactly(seen, signal.SIGCONT)
            warned = True
            self._pause(0.05)
            if code is None and pid is not None:
                code = self._code_of(pid)

    def _code_of(self, pid: int) -> int | None:
        while (ended := wait_any()) is not None:
            if ended[0] == pid:
                return ended[1]
        return None

    def _ended(self, state: JobState, began_utc: float | None, *, code: int | None = None, reason: str = "") -> None:
        self._folder.write(
            "ended.json",
            {
                "state": state.value,
                "start_utc": began_utc,
                "end_utc": self._clock.utc(),
                "exit_code": code if code is not None and code >= 0 else None,
                "signal": -code if code is not None and code < 0 else None,
                "reason": reason,
            },
        )

    def _pause(self, seconds: float) -> None:
        signal.sigtimedwait(_WAKE, seconds)


def _number(name: str) -> int:
    return signal.Signals[name if name.startswith("SIG") else f"SIG{name}"].value


def mind(path: str) -> int:
    """Mind the job in that folder, unless another process does."""
    folder = JobFolder(path)
    signal.pthread_sigmask(signal.SIG_BLOCK, _WAKE)
    with held(folder.at("supervisor.lock")) as mine:
        if mine:
            Minder(folder, SystemClock()).run()
    return 0


def on_nodes(words: list[str]) -> int:
    """Run a command once per node of this job and wait for all; the highest exit code is ours, as srun has it."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _FORWARDED | {signal.SIGCHLD})
    count = int(os.environ.get(NODES, "1"))
    running = {
        spawn(words, env={**os.environ, NODE: node_name(number), "FLEETCRAFT_NODE_RANK": str(number)}, output=1)
        for number in range(count)
    }
    worst = 0
    while running:
        while (ended := wait_any()) is not None:
            running.discard(ended[0])
            worst = max(worst, ended[1] if ended[1] >= 0 else 128 - ended[1])
        if running:
            came: Any = signal.sigtimedwait(_FORWARDED | {signal.SIGCHLD}, 1.0)
            if came is not None and came.si_signo != signal.SIGCHLD:
                for pid in running:
                    os.kill(pid, came.si_signo)
    return worst


def node_name(number: int) -> str:
    """The name of a simulated node."""
    return f"local{number}"


def main(argv: list[str]) -> int:
    """Entry: `mind FOLDER`, or `nodes WORD...`."""
    if len(argv) == 2 and argv[0] == "mind":
        return mind(argv[1])
    if len(argv) >= 2 and argv[0] == "nodes":
        return on_nodes(argv[1:])
    sys.stderr.write("usage: local_job mind FOLDER | nodes COMMAND [ARGUMENT ...]\n")
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
