"""Processes of this machine as jobs: with walltime, signals, holds and dependencies, and no scheduler installed.

A job is a folder and a small supervisor that outlives whoever submitted it. `slots` simulated nodes are shared by all
jobs of one root; a job of N nodes runs its script once and its step N times, as on a cluster.
"""

from __future__ import annotations

import os
import signal as signals
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import fleetcraft
from fleetcraft.core.clock import Clock, SystemClock
from fleetcraft.core.errors import UsageError
from fleetcraft.core.states import JobState
from fleetcraft.schedulers.api import (
    Change,
    JobRef,
    JobRequest,
    JobView,
    Limits,
    Observation,
    PartitionLimits,
    StartEstimate,
    Submission,
    SubmitOutcome,
)
from fleetcraft.schedulers.local_files import MARK, JobFolder, all_folders, folder_of, held, make
from fleetcraft.schedulers.local_job import node_name
from fleetcraft.schedulers.tokens import check_token
from fleetcraft.transports.api import Surroundings, Transport
from fleetcraft.transports.local import LocalTransport
from fleetcraft.transports.processes import Process, signal_exactly

_PARTITION = "local"
# How long `mine` shows what has ended.
_SHOWN_S = 300.0
# The supervisor finds this code wherever we were started from: a checkout, an installation or a bundle.
_START = (
    "import sys; sys.path.insert(0, sys.argv.pop(1)); "
    "from fleetcraft.schedulers.local_job import main; sys.exit(main(sys.argv[1:]))"
)
# The shell ends at once, so the supervisor is nobody's child and in nobody's way.
_DETACH = '"$@" </dev/null >>"$FLEETCRAFT_SUPERVISOR_LOG" 2>&1 &'
_REASONS = {
    "JobHeldUser": "held by its user; it starts after a release",
    "BeginTime": "waits for its begin time",
    "Dependency": "waits for other jobs to end",
    "Resources": "waits for free nodes of this machine",
    "TimeLimit": "its time limit was reached",
    "NonZeroExitCode": "its script ended with an error",
}


class LocalScheduler:
    """Jobs of one root folder on this machine."""

    kind = "local"

    def __init__(
        self,
        root: str,
        *,
        slots: int = 4,
        gpus_per_node: int | None = None,
        kill_wait_s: float = 5.0,
        transport: Transport | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._root = os.path.abspath(root)
        self._slots = slots
        self._gpus = _gpus_of_machine() if gpus_per_node is None else gpus_per_node
        self._kill_wait_s = kill_wait_s
        self._transport = transport or LocalTransport()
        self._clock = clock or SystemClock()

    def submit(self, request: JobRequest) -> Submission:
        """See `Scheduler.submit`."""
        refusal = self._refusal(request)
        if refusal is not None:
            return refusal
        try:
            os.makedirs(os.path.join(self._root, "slots"), mode=0o700, exist_ok=True)
            if request.output is not None:
                os.makedirs(os.path.dirname(os.path.abspath(request.output)), exist_ok=True)
            folder, is_new = make(
                self._root, _with_output(request), {"slots": self._slots, "kill_wait_s": self._kill_wait_s}
            )
        except OSError as error:
            return Submission(
                outcome=SubmitOutcome.NOT_SUBMITTED, code="storage", text=f"{error.filename}: {error.strerror}"
            )
        # What was found may have lost its supervisor together with whoever submitted it.
        self._mind(folder)
        return Submission(
            outcome=SubmitOutcome.SUBMITTED if is_new else SubmitOutcome.FOUND, ref=JobRef(id=folder.token)
        )

    def _refusal(self, request: JobRequest) -> Submission | None:
        check_token(request.token)
        _check_signal(request.signal)
        code, text = "", ""
        if not request.script.startswith("#!"):
            code, text = "script", "the script does not begin with #!"
        elif request.nodes < 1 or request.nodes > self._slots:
            code, text = "nodes", f"{request.nodes} nodes were asked for, and this machine plays {self._slots}"
        elif request.gpus_per_node > self._gpus:
            code, text = "gpus", f"{request.gpus_per_node} GPUs were asked for, and this machine has {self._gpus}"
        elif request.partition not in (None, _PARTITION):
            code, text = "partition", f"there is no partition {request.partition}; the only one is {_PARTITION}"
        elif request.array:
            code, text = "array", "this scheduler has no arrays"
        else:
            unknown = [ref.id for ref in request.after_any if folder_of(self._root, ref) is None]
            if unknown:
                code, text = "dependency", f"no job {', '.join(unknown)} is known"
        return Submission(outcome=SubmitOutcome.REJECTED, code=code, text=text) if code else None

    def _mind(self, folder: JobFolder) -> None:
        """Make sure that a supervisor minds the job; a second one ends at once."""
        if folder.read("ended.json") is None and not folder.is_minded():
            self._transport.run(
                ["/bin/sh", "-c", _DETACH, "sh", *_python("mind", folder.path)],
                surroundings=Surroundings(
                    drop_prefixes=("FLEETCRAFT_",), add={"FLEETCRAFT_SUPERVISOR_LOG": folder.at("supervisor.log")}
                ),
                cwd="/",
            )

    def find(self, token: str) -> Observation:
        """See `Scheduler.find`."""
        seen = self.observe([JobRef(id=check_token(token))])
        return Observation(
            at_utc=seen.at_utc, jobs=seen.jobs, answered=seen.answered, problems=seen.problems, queries=1
        )

    def observe(self, refs: Sequence[JobRef]) -> Observation:
        """See `Scheduler.observe`."""
        jobs: dict[str, JobView] = {}
        absent: list[JobRef] = []
        problems: list[str] = []
        for ref in refs:
            try:
                folder = folder_of(self._root, ref)
            except OSError as error:
                problems.append(f"{ref}: {error.strerror}")
                continue
            if folder is None:
                absent.append(ref)
            else:
                jobs[str(ref)] = self._view(folder, ref)
        return Observation(
            at_utc=self._clock.utc(),
            jobs=jobs,
            absent=tuple(absent),
            answered=not problems,
            problems=tuple(problems),
            queries=1,
        )

    def mine(self) -> Observation:
        """See `Scheduler.mine`."""
        now_utc = self._clock.utc()
        try:
            folders = all_folders(self._root)
        except OSError as error:
            return Observation(at_utc=now_utc, jobs={}, answered=False, problems=(str(error),), queries=1)
        views = [self._view(folder, JobRef(id=folder.token)) for folder in folders]
        shown = [view for view in views if view.end_utc is None or now_utc - view.end_utc <= _SHOWN_S]
        return Observation(at_utc=now_utc, jobs={str(view.ref): view for view in shown}, queries=1)

    def _view(self, folder: JobFolder, ref: JobRef) -> JobView:
        # The end is looked for first and last: its supervisor writes it and is gone.
        ended = folder.read("ended.json")
        minder, why = (None, "") if ended else folder.supervisor()
        if ended is None and minder is None:
            ended = folder.read("ended.json")
        request = folder.read("request.json") or {}
        began = folder.read("started.json") or {}
        notes: tuple[str, ...] = ()
        stale = False
        if ended is not None:
            state, reason = JobState(ended["state"]), str(ended["reason"])
        elif minder is None and (began or why.startswith("it was submitted on the host")):
            # Nobody here can say that it has ended: its processes may still run. The next supervisor settles that.
            state, reason, stale, notes = JobState.UNKNOWN, why, True, (why,)
            self._mind_again(folder, why)
        elif began:
            state, reason = (JobState.ENDING if "cancel" in folder.asks() else JobState.RUNNING), ""
        else:
            state, reason = self._waiting(folder)
            if minder is None:
                self._mind_again(folder, why)
        end = ended or {}
        nodes = int(request.get("nodes", 1))
        return JobView(
            ref=ref,
            state=state,
            raw_state=state.value,
            name=f"{request.get('name', '')}.{folder.token}",
            token=folder.token,
            reason=reason,
            reason_text=_REASONS.get(reason, reason),
            partition=_PARTITION,
            qos=str(request.get("qos") or ""),
            account=str(request.get("account") or ""),
            submit_utc=_modified_utc(folder),
            start_utc=began.get("at_utc"),
            end_utc=end.get("end_utc") if end else began.get("limit_utc"),
            nodes=tuple(node_name(number) for number in range(nodes)) if began else (),
            node_count=nodes,
            gpus=nodes * int(request.get("gpus_per_node", 0)),
            exit_code=end.get("exit_code"),
            signal=end.get("signal"),
            restarts=0,
            time_limit_s=request.get("time_limit_s"),
            source="exit_record" if end else "queue",
            stale=stale,
            notes=notes,
        )

    def _waiting(self, folder: JobFolder) -> tuple[JobState, str]:
        if "hold" in folder.asks():
            return JobState.HELD, "JobHeldUser"
        reason = str((folder.read("waits.json") or {}).get("reason", "None"))
        # The hold was taken back, and the supervisor has not looked since.
        return JobState.PENDING, "None" if reason == "JobHeldUser" else reason

    def _mind_again(self, folder: JobFolder, why: str) -> None:
        if not why.startswith("it was submitted on the host"):
            self._mind(folder)

    def cancel(self, refs: Sequence[JobRef], *, signal: str | None = None, only_waiting: bool = False) -> list[Change]:
        """See `Scheduler.cancel`."""
        _check_signal(signal)
        name = "cancel" if signal is None else f"signal.{os.urandom(6).hex()}.{signal.removeprefix('SIG')}"
        return [self._ask(ref, name, needs_start=signal is not None, needs_waiting=only_waiting) for ref in refs]

    def hold(self, refs: Sequence[JobRef]) -> list[Change]:
        """See `Scheduler.hold`."""
        return [self._ask(ref, "hold", needs_waiting=True) for ref in refs]

    def release(self, refs: Sequence[JobRef]) -> list[Change]:
        """See `Scheduler.release`."""
        return [self._ask(ref, "hold", take_back=True) for ref in refs]

    def _ask(
        self, ref: JobRef, name: str, *, needs_start: bool = False, needs_waiting: bool = False, take_back: bool = False
    ) -> Change:
        try:
            folder = folder_of(self._root, ref)
            if folder is None:
                return Change(ref=ref, asked=False, text="no such job")
            if folder.read("ended.json") is not None:
                return Change(ref=ref, asked=False, text="it has ended already")
            has_begun = folder.read("started.json") is not None
            if (needs_waiting and has_begun) or (needs_start and not has_begun):
                return Change(ref=ref, asked=False, text="it runs already" if has_begun else "it does not run yet")
            if take_back:
                folder.unask(name)
            else:
                folder.ask(name)
            minder, why = folder.supervisor()
            if minder is None:
                self._mind_again(folder, why)
            else:
                _wake(minder)
        except OSError as error:
            return Change(ref=ref, asked=False, text=f"{error.filename}: {error.strerror}")
        return Change(ref=ref, asked=True)

    def test_only(self, request: JobRequest) -> StartEstimate:
        """See `Scheduler.test_only`."""
        refusal = self._refusal(request)
        if refusal is not None:
            return StartEstimate(possible=False, partition=_PARTITION, code=refusal.code, text=refusal.text)
        now_utc = self._clock.utc()
        if self._free_slots() < request.nodes:
            return StartEstimate(possible=True, partition=_PARTITION, text="when other jobs have ended")
        return StartEstimate(
            possible=True,
            start_utc=max(now_utc, request.begin_utc or now_utc),
            nodes=tuple(node_name(number) for number in range(request.nodes)),
            partition=_PARTITION,
            text="at once",
        )

    def _free_slots(self) -> int:
        folder = os.path.join(self._root, "slots")
        os.makedirs(folder, mode=0o700, exist_ok=True)
        # Without the turn, a job that takes its nodes just now could find the one that we look at taken.
        with held(os.path.join(folder, "turn.lock"), wait=True):
            return sum(_is_free(os.path.join(folder, str(number))) for number in range(self._slots))

    def limits(self) -> Limits:
        """See `Scheduler.limits`."""
        partition = PartitionLimits(
            name=_PARTITION,
            state="UP",
            is_default=True,
            max_nodes=self._slots,
            nodes=self._slots,
            cpus_per_node=os.cpu_count(),
            memory_per_node_bytes=_memory_bytes(),
            gpus_per_node=self._gpus,
            idle_nodes=self._free_slots(),
            preemptible=False,
        )
        return Limits(
            at_utc=self._clock.utc(), partitions=(partition,), kill_wait_s=self._kill_wait_s, has_accounting=False
        )

    def version(self) -> tuple[int, ...] | None:
        """See `Scheduler.version`."""
        return tuple(int(part) for part in fleetcraft.__version__.split(".") if part.isdigit())

    def command(self, words: Sequence[str], job: JobRef | None = None) -> list[str]:
        """See `Scheduler.command`."""
        if job is not None:
            return ["env", f"{MARK}={os.path.join(self._root, 'jobs', job.id)}", *words]
        return _python("nodes", *words)

    def describe(self) -> Mapping[str, Any]:
        """See `Scheduler.describe`."""
        return {"kind": self.kind, "root": self._root, "slots": self._slots, "gpus_per_node": self._gpus}


def _python(*arguments: str) -> list[str]:
    home = os.path.dirname(os.path.dirname(os.path.abspath(fleetcraft.__file__)))
    return [sys.executable, "-c", _START, home, *arguments]


def _with_output(request: JobRequest) -> JobRequest:
    if request.output is None:
        return request
    # The two placeholders that profiles use; the rest of them means nothing without a cluster.
    output = request.output.replace("%j", request.token).replace("%x", f"{request.name}.{request.token}")
    return replace(request, output=os.path.abspath(output))


def _check_signal(name: str | None) -> None:
    if name is not None and f"SIG{name.removeprefix('SIG')}" not in signals.Signals.__members__:
        raise UsageError(f"{name!r} is not the name of a signal.")


def _wake(minder: Process) -> None:
    signal_exactly(minder, signals.SIGUSR1)


def _is_free(path: str) -> bool:
    with held(path) as mine:
        return mine


def _modified_utc(folder: JobFolder) -> float | None:
    try:
        return os.stat(folder.at("request.json")).st_mtime
    except OSError:
        return None


def _memory_bytes() -> int | None:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return None


def _gpus_of_machine() -> int:
    try:
        names: Iterable[str] = os.listdir("/dev")
    except OSError:
        return 0
    return sum(name.startswith("nvidia") and name.removeprefix("nvidia").isdigit() for name in names)
