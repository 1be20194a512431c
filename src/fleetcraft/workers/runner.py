"""Runs command tasks: start, watch, prove, record. One `Running` per slot; the journal before and after each.

The order for every attempt is fixed: `started` (synced first when the task was lost before), exec, `spawned`,
outputs proved, receipt. A slot is free when the whole process tree is gone.
"""

from __future__ import annotations

import errno
import os
import signal
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from fleetcraft.core.clock import Clock
from fleetcraft.core.outcome import Start
from fleetcraft.core.records import spawned_body, started_body, success_body
from fleetcraft.core.states import LossCause, Outcome, TaskState
from fleetcraft.core.task import native_bytes
from fleetcraft.workers.attempt import Concluded, Running, end_of, how, receipt_details, spawn_problem
from fleetcraft.workers.book import Claim, Pace
from fleetcraft.workers.cgroup import oom_kills
from fleetcraft.workers.child import Ended, Launch, Supervisor
from fleetcraft.workers.logs import SlotLogs
from fleetcraft.workers.payload import (
    Place,
    attempt_environment,
    base_environment,
    check_snapshot,
    command_of,
    heavy_outputs,
    prove_outputs,
    slot_environment,
)
from fleetcraft.workers.progress import ProgressFiles
from fleetcraft.workers.sink import Facts, Sink
from fleetcraft.workers.slots import Capacity, Slot
from fleetcraft.workers.verdict import End, Ruling, Tally, memory_evidence, rule

_NODE_TROUBLE = frozenset({errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE})
_INLINE_PROOF_BYTES = 32 * 1024**2
DEFAULT_GRACE_S = 10.0
ANNOUNCE_AFTER_S = 1.0
_NOTHING: dict[str, Any] = {"t": "spawned"}  # nothing that a fold needs
_LINGER_S = 30.0
_SUCCESS = Ruling(outcome=Outcome.SUCCEEDED, final=TaskState.SUCCEEDED)
_NEVER_A_SUCCESS = frozenset({"timeout", "cancelled"})
_PROVED = frozenset({"outputs", "validate", "notify"})
_ENVIRONMENTS_KEPT = 256


@dataclass(slots=True)
class Runner:
    """All command tasks of one worker."""

    clock: Clock
    sink: Sink
    supervisor: Supervisor
    capacity: Capacity
    logs: SlotLogs
    pace: Pace
    life: str
    pass_env: tuple[str, ...]
    deadline_utc: float | None
    wake: Callable[[], None]
    lingers: Callable[[tuple[str, ...]], bool]
    progress: ProgressFiles
    kill_grace_s: float = DEFAULT_GRACE_S
    lingering: list[tuple[Slot, float]] = field(default_factory=list)
    drain_cause: LossCause | None = None
    running: dict[int, Running] = field(default_factory=dict)  # by pid
    proving: list[tuple[Running, Ended, list[tuple[list[dict[str, Any]], str | None]]]] = field(default_factory=list)
    spare_permits: list[tuple[tuple[tuple[str, int], ...], list[str]]] = field(default_factory=list)
    finished: list[Concluded] = field(default_factory=list)  # plain successes are only counted
    successes: int = 0
    _environments: dict[tuple[int, int, int, tuple[str, ...]], dict[bytes, bytes]] = field(default_factory=dict)
    _oom_kills: int | None = field(default_factory=oom_kills)

    def start(
        self, claim: Claim, position: int, attempt: int, task: Mapping[str, Any], slot: Slot, permits: list[str]
    ) -> bool:
        """Start one attempt; False when the node could not start a process (the task stays ours). Raises OSError."""
        owner = claim.batch.origin(position)
        careful = position in claim.careful
        how = Start.ALONE if position in claim.alone else Start.SINGLE
        descriptor, file_no, offset = self.logs.begin(slot.number)
        claim.begin(position, attempt)
        running = Running(
            claim, position, owner, attempt, task, slot, (file_no, offset), self.clock.utc(), self.clock.mono(),
            permits=permits, how=how,
        )  # fmt: skip
        self._record_started(running)
        if careful or attempt > 1:
            # A task that takes its node down must be counted: its start is durable before it runs.
            self.sink.sync()
        problem = check_snapshot(task) if "snapshot" in task else None
        if problem is None:
            try:
                self._launch(running, descriptor, command_of(task))
            except OSError as error:
                if error.errno in _NODE_TROUBLE:
                    self._undo(running, error)
                    return False
                problem = spawn_problem(error, task)
        if problem is not None:
            self._conclude(running, End(error=problem), None)
        return True

    def _record_started(self, running: Running) -> None:
        task, gen, attempt = running.id, running.claim.token.gen, running.attempt
        slot, at, how = running.slot.number, running.at_utc, running.how
        if how == Start.SINGLE and not running.slot.gpus:
            self.sink.put(lambda number: started_body(number, task.batch, task.index, gen, attempt, slot, at), None)
        else:
            body: dict[str, Any] = {
                "t": "started", "b": task.batch, "i": task.index, "g": gen, "a": attempt, "how": how, "s": slot,
                "at": round(at, 3), "log": [running.log[0], running.log[1]],
            }  # fmt: skip
            if running.slot.gpus:
                body["gpus"] = list(running.slot.gpus)
            self.sink.record(body)

    def _launch(self, running: Running, output: int, command: tuple[list[str], bytes | None]) -> None:
        task = running.task
        task_id = f"{running.id.batch}.{running.id.index}"
        mark = f"{self.life}:{task_id}:{running.claim.token.gen}:{running.attempt}"
        env = attempt_environment(task, self._shared_environment(running), task_id, running.attempt, mark)
        child = self.supervisor.spawn(
            Launch(
                argv=command[0],
                cwd=task.get("cwd", "/"),
                env=env,
                output=output,
                mark=mark,
                script=command[1],
            )
        )
        running.child = child
        self.running[child.pid] = running
        timeout = task.get("timeout")
        if timeout is not None and running.deadline_s is None:
            running.deadline_s = running.at_mono_s + float(timeout)

    def _shared_environment(self, running: Running) -> dict[bytes, bytes]:
        batch, slot = running.claim.batch, running.slot
        folded = batch.folded_at(running.position)
        key = (batch.number, folded.defaults if folded else 0, slot.number, slot.gpus)
        shared = self._environments.get(key)
        if shared is None:
            if len(self._environments) >= _ENVIRONMENTS_KEPT:
                self._environments.clear()
            place = Place(
                life=self.life, slot=slot.number, gpus=slot.gpus, deadline_utc=self.deadline_utc,
                progress=self.progress.path(slot.number),
            )  # fmt: skip
            base = base_environment(running.task, os.environ, self.pass_env)
            shared = self._environments[key] = slot_environment(base, place)
        return shared

    def announce(self, now_s: float) -> None:
        """Write down the process of every attempt that has lived for a while.

        Before that it is found by its mark alone; writing it for each short task would cost more than it tells.
        """
        for running in self.running.values():
            child = running.child
            if running.announced or child is None or now_s - running.at_mono_s < ANNOUNCE_AFTER_S:
                continue
            running.announced = True
            task, attempt, pid, boot = running.id, running.attempt, child.pid, child.started_boot_s
            self.sink.put(
                partial(spawned_body, batch=task.batch, index=task.index, attempt=attempt, pid=pid, boot_s=boot),
                _NOTHING,
            )

    def _undo(self, running: Running, error: OSError) -> None:
        """The node has no process, memory or descriptor left: not the task's fault; it runs again here soon."""
        text = f"this node could not start a process: {os.strerror(error.errno or 0)}"
        tally = running.claim.tallies.get(running.position, Tally())
        ruling = Ruling(
            outcome=Outcome.LOST, final=None, cause=LossCause.DRAINED, error=text, retry_in_s=1.0, tally=tally
        )
        self._settle(running, ruling, None)

    def on_ended(self, ended: Ended) -> bool:
        """Take one ended process tree; False when it is none of ours."""
        running = self.running.pop(ended.child.pid, None)
        if running is None:
            return False
        if running.stage == "validate":
            problem = None
            if ended.exit_code != 0:
                problem = f"the validator ended with {how(ended)}"
            self._conclude(running, end_of(running.first or ended, problem, self.drain_cause), running.first or ended)
            return True
        if ended.exit_code == 0 and ended.stop_reason not in _NEVER_A_SUCCESS:
            if _PROVED.isdisjoint(running.task):
                self._settle(running, _SUCCESS, ended)
            else:
                self._prove(running, ended)
        else:
            self._conclude(running, self._explain(running, ended), ended)
        return True

    def _prove(self, running: Running, ended: Ended) -> None:
        task = running.task
        if "outputs" not in task:
            self._validate(running, ended, [], None)
        elif heavy_outputs(task, _INLINE_PROOF_BYTES):
            # Hashing gigabytes must not hold up heartbeats and other slots.
            answer: list[tuple[list[dict[str, Any]], str | None]] = []
            self.proving.append((running, ended, answer))
            wake = self.wake

            def work() -> None:
                answer.append(prove_outputs(task))
                wake()

            threading.Thread(target=work, daemon=True, name="prove").start()
        else:
            self._validate(running, ended, *prove_outputs(task))

    def collect_proofs(self) -> None:
        """Go on with attempts whose outputs were hashed in the background."""
        for entry in [entry for entry in self.proving if entry[2]]:
            self.proving.remove(entry)
            running, ended, answer = entry
            self._validate(running, ended, *answer[0])

    def _validate(self, running: Running, ended: Ended, proofs: list[dict[str, Any]], problem: str | None) -> None:
        running.proofs = proofs
        validator = running.task.get("validate")
        if validator is None or problem is not None:
            self._conclude(running, end_of(ended, problem, self.drain_cause), ended)
            return
        running.stage, running.first = "validate", ended
        try:
            self._launch(running, self.logs.begin(running.slot.number)[0], (list(validator), None))
        except OSError as error:
            problem = f"the validator could not be started: {spawn_problem(error, {'command': validator})}"
            self._conclude(running, end_of(ended, problem, self.drain_cause), ended)

    def _explain(self, running: Running, ended: Ended) -> End:
        end = end_of(ended, None, self.drain_cause)
        if ended.stop_reason is not None:
            return end
        before, self._oom_kills = self._oom_kills, oom_kills()
        delta = self._oom_kills - before if self._oom_kills is not None and before is not None else None
        tail = self.logs.tail(running.slot.number, running.log[1])
        return replace(end, memory_evidence=memory_evidence(ended.exit_code, ended.signal, tail, delta))

    def _conclude(self, running: Running, end: End, ended: Ended | None) -> None:
        tally = running.claim.tallies.get(running.position, Tally())
        self._settle(running, rule(end, running.task, tally), ended)

    def _settle(self, running: Running, ruling: Ruling, ended: Ended | None) -> None:
        """Write the receipt, free the slot, and decide where the task goes."""
        wall_s = ended.wall_s if ended is not None else 0.0
        self._receipt(running, ruling, ended)
        claim, position = running.claim, running.position
        if ruling.final is not None:
            claim.end(position)
            if claim.tallies:
                claim.tallies.pop(position, None)
                claim.attempts.pop(position, None)
        else:
            due = None if ruling.retry_in_s is None else self.clock.mono() + ruling.retry_in_s
            claim.put_back(position, running.attempt + 1, due, ruling.tally)
        if ruling.outcome in (Outcome.SUCCEEDED, Outcome.FAILED):
            self.pace.observe(claim.token.lane, max(wall_s, 1e-6))
        if running.permits:
            self.spare_permits.append((claim.request.uses, running.permits))
        self._free(running.slot)
        if ruling is _SUCCESS:
            self.successes += 1
        else:
            self.finished.append(
                Concluded(
                    id=running.id, ruling=ruling, wall_s=wall_s, claim=claim, position=position, attempt=running.attempt
                )
            )
        if ruling.final is not None and "notify" in running.task:
            self._notify(running, ruling)

    def _free(self, slot: Slot) -> None:
        """Free a slot; one whose GPU still lists a process that is gone is kept until the driver has let go."""
        if slot.gpus and self.lingers(slot.gpus):
            self.lingering.append((slot, self.clock.mono() + _LINGER_S))
        else:
            self.capacity.give_back(slot)

    def sweep_lingering(self) -> None:
        """Free the slots whose GPUs are clear by now, and after a bounded time those whose driver never says so."""
        for entry in list(self.lingering):
            slot, until_s = entry
            late = self.clock.mono() >= until_s
            if late or not self.lingers(slot.gpus):
                self.lingering.remove(entry)
                self.capacity.give_back(slot)
                if late:
                    self.sink.record({"t": "note", "what": "lingering", "s": slot.number, "gpus": list(slot.gpus)})

    def _receipt(self, running: Running, ruling: Ruling, ended: Ended | None) -> None:
        task, gen, attempt, slot = running.id, running.claim.token.gen, running.attempt, running.slot.number
        end_utc = self.clock.utc()
        log = (running.log[0], running.log[1], self.logs.end(slot))
        progress = None
        if ended is not None:
            progress = self.progress.take(slot, str(task), attempt, wall_s=ended.wall_s, now_s=self.clock.mono())
        if ruling is _SUCCESS and progress is None and ended is not None and self._is_plain(running, ended):
            at, wall, cpu, rss = running.at_utc, ended.wall_s, ended.cpu_s, ended.rss_kib
            first = (task.batch, task.index) if gen == 0 and attempt == 1 else None
            facts: Facts = first or {
                "t": "receipt", "b": task.batch, "i": task.index, "g": gen, "a": attempt, "o": "succeeded",
                "final": "succeeded",
            }  # fmt: skip
            self.sink.put_later(
                lambda number: success_body(
                    number, task.batch, task.index, gen, attempt, slot, at, end_utc, wall, cpu, rss, log
                ),
                facts,
            )
            return
        body: dict[str, Any] = {
            "t": "receipt", "b": task.batch, "i": task.index, "g": gen, "a": attempt, "o": ruling.outcome.value,
        }  # fmt: skip
        if ruling.final is not None:
            body["final"] = ruling.final.value
        body.update(receipt_details(running, ruling, ended, end_utc, log))
        if progress is not None:
            body["progress"] = progress
        self.sink.record(body)

    @staticmethod
    def _is_plain(running: Running, ended: Ended) -> bool:
        """True when there is nothing to say but that it succeeded and what it cost."""
        return running.how == Start.SINGLE and not running.slot.gpus and not ended.left_background

    def open_now(self) -> list[list[Any]]:
        """Attempts in progress, in the form of a summary."""
        attempts = [*self.running.values(), *(entry[0] for entry in self.proving)]
        return [
            [
                self.life, running.id.batch, running.claim.token.gen, running.attempt, running.how.value,
                [[running.id.index, running.id.index + 1]],
            ]
            for running in attempts
        ]  # fmt: skip

    def _notify(self, running: Running, ruling: Ruling) -> None:
        """Run the person's command about the end of a task; it holds no slot and its failure changes nothing."""
        env = {
            **base_environment(running.task, os.environ, self.pass_env),
            b"FLEETCRAFT_TASK": native_bytes(str(running.task["name"])),
            b"FLEETCRAFT_STATE": str(ruling.final).encode(),
            b"FLEETCRAFT_OUTCOME": ruling.outcome.value.encode(),
        }
        try:
            output = self.logs.begin(running.slot.number)[0]
            launch = Launch(
                argv=list(running.task["notify"]),
                cwd="/",
                env=env,
                output=output,
                mark=f"{self.life}:notify:{running.id}",
            )
            self.supervisor.spawn(launch)
        except OSError as error:
            self.sink.record({"t": "note", "what": "notify", "task": str(running.id), "error": str(error)})

    def stop_all(self, reason: str, grace_s: float | None = None) -> None:
        """Begin to end every attempt: its own checkpoint signal and grace first, where it has one."""
        for running in self.running.values():
            self.stop(running, reason, grace_s)

    def stop(self, running: Running, reason: str, grace_s: float | None = None) -> None:
        """Begin to end one attempt."""
        if running.child is None:
            return
        name = running.task.get("checkpoint_signal") if reason == "drain" else None
        first = signal.Signals[name] if name else signal.SIGTERM
        grace = running.task.get("checkpoint_grace") if reason == "drain" else None
        if grace is None:
            grace = self.kill_grace_s
        if grace_s is not None:
            grace = min(float(grace), grace_s)
        self.supervisor.stop(running.child, reason, first=first, grace_s=float(grace))

    def check_timeouts(self, now_s: float) -> float | None:
        """End what ran too long; returns when the next timeout is due."""
        nearest: float | None = None
        for running in self.running.values():
            if running.deadline_s is None or running.child is None or running.child.stop_reason is not None:
                continue
            if now_s >= running.deadline_s:
                self.stop(running, "timeout")
            elif nearest is None or running.deadline_s < nearest:
                nearest = running.deadline_s
        return nearest

    @property
    def busy(self) -> bool:
        """True while an attempt is in progress."""
        return bool(self.running or self.proving)
