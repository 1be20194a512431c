"""The worker: one process per node that claims tasks, runs them, and lets go of everything it holds.

A single-threaded loop over child exits, signals, pipes and a timer. A life goes: health check, up, a drain (idle,
stop, deadline, signal, request), the end of every child, the return of every claim, a last heartbeat. Dying at
any point is allowed: what it held is taken over by evidence, not by its farewell.
"""

from __future__ import annotations

import os
import signal

from fleetcraft import __version__
from fleetcraft.core.clock import Clock, SystemClock
from fleetcraft.core.errors import EXIT_DONE, EXIT_FAILED, EXIT_TRY_AGAIN, LifeEnded, OutOfReach
from fleetcraft.core.states import LossCause, Outcome, WorkerState
from fleetcraft.spool.claims import CoverUnknown
from fleetcraft.spool.evidence import ReapPolicy
from fleetcraft.spool.held import Upstream
from fleetcraft.spool.life import Life
from fleetcraft.spool.reap import Reaper
from fleetcraft.spool.requests import RequestLog
from fleetcraft.spool.spool import Spool
from fleetcraft.store.files import Files, explain
from fleetcraft.store.journal import is_storage_full
from fleetcraft.workers.attempt import Concluded
from fleetcraft.workers.beat import compose
from fleetcraft.workers.black_hole import BlackHole
from fleetcraft.workers.calls import Calls
from fleetcraft.workers.child import Supervisor
from fleetcraft.workers.claimer import Claimer
from fleetcraft.workers.context import Context
from fleetcraft.workers.devices import DeviceWatch, ForeignMemory, open_sensor
from fleetcraft.workers.ears import Ears
from fleetcraft.workers.farewell import Farewell
from fleetcraft.workers.health import check_health
from fleetcraft.workers.jobs import open_job_word, restarts_of_this_job
from fleetcraft.workers.logs import SlotLogs
from fleetcraft.workers.lookout import Lookout
from fleetcraft.workers.options import WorkerOptions
from fleetcraft.workers.poller import Poller
from fleetcraft.workers.progress import ProgressFiles
from fleetcraft.workers.runner import ANNOUNCE_AFTER_S, Runner
from fleetcraft.workers.sampling import SamplerChild
from fleetcraft.workers.sink import Sink
from fleetcraft.workers.slots import Capacity
from fleetcraft.workers.starter import Starter
from fleetcraft.workers.suspicion import Suspicion
from fleetcraft.workers.timing import (
    EARLY_SIGNAL_S,
    FLUSH_EVERY_S,
    FULL_LIMIT_S,
    PAUSE_LIMIT_S,
    REQUESTS_EVERY_S,
    SHARE_EVERY_S,
    SYNC_EVERY_S,
    Timer,
)
from fleetcraft.workers.watch import Watch


def run_worker(options: WorkerOptions, *, files: Files | None = None, clock: Clock | None = None) -> int:
    """Run one worker life in this process. Returns its exit code.

    Raises SpoolError when the spool cannot be used, OutOfReach when the storage does not let a worker begin.
    """
    return Worker(options, files=files, clock=clock).run()


class Worker:
    """One life of one worker process."""

    def __init__(self, options: WorkerOptions, *, files: Files | None = None, clock: Clock | None = None) -> None:
        self.options = options
        self.clock = clock or SystemClock()
        self.spool = Spool.open(options.spool, files=files, clock=self.clock)
        self.state = WorkerState.STARTING
        self.reason = ""
        self.exit_code = EXIT_DONE
        self.counts: dict[str, int] = dict.fromkeys((outcome.value for outcome in Outcome), 0)
        self._signals = 0
        self._stopping = False
        self._looked_alive_boot_s = 0.0
        self._said_full = False
        self._full_since_s: float | None = None
        self._rate_from: tuple[float, int] | None = None

    def run(self) -> int:
        """Live until there is nothing to do, or until told to stop."""
        self.ears = Ears()
        try:
            self._begin()
        except BaseException as error:
            self.ears.close()
            if isinstance(error, OSError):
                raise explain(error, f"A worker cannot begin in {self.options.spool}") from error
            raise
        try:
            self._loop()
        except (OutOfReach, LifeEnded, OSError) as error:
            self._abandon(error)
        finally:
            self._end()
        return self.exit_code

    # Birth

    def _begin(self) -> None:
        options, clock = self.options, self.clock
        self.sensor = open_sensor(options.gpus)
        cpus = options.cpus if options.cpus is not None else len(os.sched_getaffinity(0))
        capacity = Capacity(cpus, self.sensor.devices(), ForeignMemory(self.sensor, clock))
        self.spool.refresh()
        job_id = options.job_id or os.environ.get("SLURM_JOB_ID")
        self.life = Life.begin(self.spool, job_id=job_id, job_restarts=restarts_of_this_job(os.environ))
        self.sink = Sink(self.life)
        now = clock.mono()
        self.ctx = Context(
            options, clock, self.spool, self.life, self.sink, capacity, RequestLog(self.spool),
            None if options.deadline_utc is None else now + options.deadline_utc - clock.utc(),
        )  # fmt: skip
        self.supervisor = Supervisor(clock, self.life.id)
        self.sampler = SamplerChild(
            self.supervisor, clock, self.spool, options, self.life.id, self.life.identity.host, job_id or "",
            bool(capacity.gpus),
        )  # fmt: skip
        self.logs = SlotLogs(self.spool.files, self.life.folder)
        pace, life = self.ctx.pace, self.life.id
        self.runner = Runner(
            clock, self.sink, self.supervisor, capacity, self.logs, pace, life, options.pass_env,
            options.deadline_utc, self.ears.wake, DeviceWatch(self.sensor).lingers,
            ProgressFiles(self.spool.files, self.life.folder), options.kill_grace_s,
        )  # fmt: skip
        self.calls = Calls(
            clock, self.sink, self.supervisor, capacity, self.logs, pace, life, options.pass_env,
            options.deadline_utc, options.kill_grace_s,
        )  # fmt: skip
        self.claimer = Claimer(self.ctx, Upstream(self.spool), self.calls.idle_lanes)
        self.starter = Starter(self.ctx, self.runner, self.calls)
        self.job_word = open_job_word(clock, own=self.life.identity, every_s=2 * options.job_grace_s)
        policy = ReapPolicy(
            lease_s=options.lease_s, job_word=self.job_word,
            job_ask_after_s=options.job_grace_s, job_grace_s=options.job_grace_s,
        )  # fmt: skip
        reaper = Reaper(self.life, self.ctx.reader, policy)
        self.lookout = Lookout(self.ctx, self.claimer, self.calls, reaper)
        self.suspicion = Suspicion(self.ctx, self.claimer, BlackHole(self.spool, life))
        self.farewell = Farewell(
            self.ctx, self.runner, self.calls, self.supervisor, self.claimer, self.starter,
            self._turn_without_starting, self._last_beat,
        )  # fmt: skip
        layout = self.spool.layout
        self.watch = Watch([layout.tokens, layout.requests], poll_only=options.watch == "poll")
        self.sink.open_now = lambda: self.runner.open_now() + self.calls.open_now()
        self.poller = Poller([self.ears.descriptor, self.supervisor.wake_fd, self.watch.descriptor], self.calls)
        self.beat_timer, self.request_timer = Timer(options.heartbeat_s), Timer(REQUESTS_EVERY_S)
        self.share_timer = Timer(SHARE_EVERY_S, now + SHARE_EVERY_S)
        self.announce_timer = Timer(ANNOUNCE_AFTER_S, now + ANNOUNCE_AFTER_S)
        self.flush_timer = Timer(FLUSH_EVERY_S)
        self._look_before_claiming()

    def _look_before_claiming(self) -> None:
        health = check_health(self.spool, self.sensor)
        self.life.note("up", capacity=self.ctx.capacity.describe(), health=health.as_json(), version=__version__)
        self.state = WorkerState.UP
        self.ctx.say(f"is up on {self.life.identity.host} with {self.ctx.capacity.inventory()}")
        if not health.allowed:
            self._drain(LossCause.BLACK_HOLE, health.reason)
            self.exit_code = EXIT_FAILED

    # The loop

    def _loop(self) -> None:
        while True:
            now = self.clock.mono()
            try:
                self._notice_pause()
                self._collect()
                self._hear(now)
                self._tick(now)
                if self.state is WorkerState.UP and not self.sink.storage_full:
                    self._feed(now)
                self._settle()
                if self.sink.storage_full and not self._said_full:
                    self._on_storage_full()
                if self._finished(now):
                    return
            except OSError as error:
                # Every step can be done again; what could not be written now is written when there is space.
                if not is_storage_full(error):
                    raise
                self._on_storage_full()
            self._wait(now)

    def _notice_pause(self) -> None:
        """After a pause nothing may be recorded as ours before we know that no reaper took us for dead."""
        now_s, limit_s = self.clock.boot(), (self.options.lease_s or 2 * PAUSE_LIMIT_S) / 2
        if now_s - max(self.life.last_good_boot_s, self._looked_alive_boot_s) > limit_s:
            self.life.check_live()
            self._looked_alive_boot_s = now_s

    def _collect(self) -> None:
        """Take what ended: children, calls, proofs; release claims that are done."""
        for ended in self.supervisor.collect():
            if not self.runner.on_ended(ended):
                self.calls.on_ended(ended)
        if self.runner.proving:
            self.runner.collect_proofs()
        if self.runner.lingering:
            self.runner.sweep_lingering()
        for host in list(self.calls.hosts.values()):
            self.calls.receive(host)
        if self.runner.successes:
            self.counts[Outcome.SUCCEEDED.value] += self.runner.successes
            self.runner.successes = 0
            self.suspicion.hole.note_success()
            self.lookout.must_list = self.lookout.must_list or self.lookout.held_seen
        for concluded in (*self.runner.finished, *self.calls.receipts.finished):
            self._count(concluded)
            self.lookout.must_list = self.lookout.must_list or self.lookout.held_seen
        self.runner.finished.clear()
        self.calls.receipts.finished.clear()

    def _settle(self) -> None:
        """Write the receipts that were put off while slots were filled, then release what is done."""
        self.sink.flush_later()
        if self.suspicion.verdict is not None:
            self.suspicion.take_back_streak()
        for claim in [claim for claim in self.ctx.book if claim.done]:
            self.claimer.release(claim)

    def _count(self, concluded: Concluded) -> None:
        self.counts[concluded.ruling.outcome.value] += concluded.count
        self.suspicion.hole.observe(concluded)

    def _hear(self, now: float) -> None:
        if self.watch.descriptor in self.poller.ready and self.watch.drain():
            self.lookout.must_list = True
            self.request_timer.next_s = 0.0
        for number in self.ears.take() if self.ears.descriptor in self.poller.ready else ():
            self._on_signal(signal.Signals(number).name)
        left = self.ctx.left_s()
        if left is not None and left <= 0 and not self._stopping:
            self._drain(LossCause.WALLTIME, "the deadline is near", stop=True)
        if self.request_timer.due(now) and self.ctx.read_requests():
            self._on_requests()

    def _on_signal(self, name: str) -> None:
        """The first stop signal begins one drain, a second changes nothing, a third ends the grace."""
        self._signals += 1
        self.sink.record({"t": "note", "what": "signal", "name": name, "at": round(self.clock.utc(), 3)})
        self.sink.sync()
        if self._signals == 1:
            self._drain(self._cause_of_signal(), f"signal {name}", stop=True)
        elif self._signals >= 3:
            for child in self.supervisor.running():
                self.supervisor.force(child)

    def _cause_of_signal(self) -> LossCause:
        if "SLURM_JOB_ID" not in os.environ:
            return LossCause.DRAINED
        left_s = None if self.options.deadline_utc is None else self.options.deadline_utc - self.clock.utc()
        # A scheduler announces the time limit up to a minute too early.
        if left_s is not None and left_s < self.options.drain_before_s + EARLY_SIGNAL_S:
            return LossCause.WALLTIME
        return LossCause.PREEMPTED

    def _on_requests(self) -> None:
        ctx = self.ctx
        if ctx.requests.stopped:
            why = f": {ctx.requests.stop_reason}" if ctx.requests.stop_reason else ""
            self._drain(LossCause.DRAINED, f"the spool was stopped{why}")
        elif self.life.id in ctx.requests.drained:
            self._drain(LossCause.DRAINED, "asked to drain")
        for running in list(self.runner.running.values()):
            if ctx.asked.is_cancelled(running.id.batch, running.id.index, running.claim.token.gen):
                self.runner.stop(running, "cancelled")
        self.calls.cancel(ctx.asked)
        for claim in list(ctx.book):
            self.claimer.drop_cancelled(claim)

    def _tick(self, now: float) -> None:
        if self.sink.storage_full:
            # Trying is the only way to know: numbers of free space decide nothing.
            if self.flush_timer.due(now):
                self._try_storage()
        elif now - self.sink.last_sync_s >= SYNC_EVERY_S:
            self.sink.sync()
        if (said := self.sampler.step(now)) is not None:
            self.ctx.say(said)
        if self.beat_timer.due(now):
            self._beat()
        if self.announce_timer.due(now):
            self.runner.announce(now)
        self.runner.check_timeouts(now)
        self.calls.check_timeouts(now)
        if self.state is WorkerState.UP:
            if self.share_timer.due(now):
                self.claimer.share()
            if self.lookout.reap_timer.due(now):
                self.lookout.reap()

    def _beat(self) -> None:
        state = WorkerState.STORAGE_FULL if self.sink.storage_full else self.state
        content = compose(
            state, self.reason, self.ctx.capacity, self.ctx.book, self.runner, self.calls, self.counts, self._rate(),
            self.sampler.describe(),
        )  # fmt: skip
        try:
            self.life.beat(content)
            self.sink.summarize(force=self.state is WorkerState.STOPPED)
        except OSError as error:
            if not is_storage_full(error):
                raise
            self._on_storage_full()

    def _try_storage(self) -> None:
        """A record needs space and a heartbeat needs a new file: both must be possible again."""
        if self.sink.flush():
            self._beat()
        if not self.sink.storage_full:
            self._said_full = False
            self.ctx.say("the storage takes records again")

    def _on_storage_full(self) -> None:
        if not self._said_full:
            self._said_full = True
            self.ctx.say("the storage is full: nothing is started until there is space")
        self.sink.storage_full = True
        self.flush_timer.next_s = self.clock.mono() + FLUSH_EVERY_S

    def _rate(self) -> float | None:
        """Ended attempts per second since the last heartbeat."""
        now, ended = self.clock.mono(), sum(self.counts.values())
        before, self._rate_from = self._rate_from, (now, ended)
        if before is None or now <= before[0]:
            return None
        return (ended - before[1]) / (now - before[0])

    # Work

    def _feed(self, now: float) -> None:
        """Start what can start; claim more when little is left in hand."""
        if self.suspicion.settle(now):
            return
        if self.suspicion.verdict is not None:
            self.exit_code = EXIT_FAILED
            self._drain(LossCause.BLACK_HOLE, self.suspicion.verdict)
            return
        self.starter.fill(now)
        if self.starter.enough:
            self._drain(LossCause.DRAINED, f"as many tasks were started as asked for ({self.starter.started})")
        elif self.lookout.claim_if_worthwhile(now):
            self.starter.fill(now)

    def _drain(self, cause: LossCause, reason: str, *, stop: bool = False) -> None:
        """Take nothing new and leave; with `stop` what runs is asked to end, by its checkpoint signal first."""
        is_new = self.state is not WorkerState.DRAINING
        if not is_new and (self._stopping or not stop):
            return
        # A drain that let tasks finish becomes one that does not, when the node is about to be taken away.
        self.state, self.reason, self._stopping = WorkerState.DRAINING, reason, stop
        self.ctx.say(f"drains: {reason}")
        at = round(self.clock.utc(), 3)
        self.sink.record({"t": "note", "what": "drain", "cause": cause.value, "reason": reason, "at": at})
        if stop:
            self.runner.drain_cause = self.calls.receipts.drain_cause = cause
            self.runner.stop_all("drain")
        self.calls.stop_all("drain", only_idle=not stop)
        if is_new:
            self.claimer.give_back_unstarted()
        self._beat()

    def _finished(self, now: float) -> bool:
        if self.runner.busy or self.calls.busy:
            self.lookout.not_quiet()
            return False
        if self.state is WorkerState.DRAINING:
            return True
        if self.sink.storage_full:
            return self._full_for_too_long(now)
        self._full_since_s = None
        if len(self.ctx.book) or self.suspicion.is_open:
            self.lookout.not_quiet()
            return False
        reason = self.lookout.nothing_left(now)
        self.reason = reason or self.reason
        return reason is not None

    def _full_for_too_long(self, now: float) -> bool:
        if self._full_since_s is None:
            self._full_since_s = now
        idle_exit = self.options.idle_exit_s
        if idle_exit is None or now - self._full_since_s < max(idle_exit, FULL_LIMIT_S):
            return False
        self.exit_code, self.reason = EXIT_TRY_AGAIN, "the storage is full"
        return True

    def _wait(self, now: float) -> None:
        # Only what is looked at in this state may set the time: a moment that stays in the past is a busy loop.
        full = self.sink.storage_full or not self.sink.clear
        moments = [self.beat_timer.next_s, self.request_timer.next_s, self.sampler.next_s]
        moments.append(self.flush_timer.next_s if full else self.sink.last_sync_s + SYNC_EVERY_S)
        if self.state is WorkerState.UP and not self.sink.storage_full:
            moments += [self.suspicion.timer.next_s] if self.suspicion.is_open else self.lookout.next_look_s(now)
        left, due = self.ctx.left_s(), self.ctx.book.next_due_s()
        possible = [
            # One that is due already waits for a slot, and the end that frees it wakes us.
            due if due is not None and due > now else None,
            self.runner.check_timeouts(now),
            self.calls.check_timeouts(now),
            self.supervisor.next_deadline_s(),
            None if left is None or left < 0 else now + left,
            self.starter.hold_until_s if self.starter.hold_until_s > now else None,
            now + 0.25 if self.runner.lingering else None,
        ]
        moments += [moment for moment in possible if moment is not None]
        self.poller.wait(min(moments) - self.clock.mono())

    def _turn_without_starting(self) -> None:
        self._collect()
        self._settle()
        if len(self.supervisor) or self.runner.busy:
            self._wait(self.clock.mono())

    def _abandon(self, error: Exception) -> None:
        """The storage or a reaper ended this life: start nothing, own nothing new, say why."""
        self.exit_code, self.reason = EXIT_TRY_AGAIN, str(error)
        self.state = WorkerState.DRAINING
        self.runner.drain_cause = self.calls.receipts.drain_cause = LossCause.DRAINED
        self.ctx.say(f"stops: {error}")
        # Where the storage did not say what covers our tasks, touching a claim could cover them twice.
        self.farewell.silent = isinstance(error, (LifeEnded, CoverUnknown))
        if isinstance(error, LifeEnded):
            try:
                self.farewell.record_abandoned(self.reason)
            except (OSError, OutOfReach) as failed:
                self.ctx.say(f"could not write down what was abandoned: {failed}")

    def _last_beat(self) -> None:
        self.state = WorkerState.STOPPED
        self._beat()

    def _end(self) -> None:
        self.exit_code = self.farewell.say_goodbye(self.exit_code)
        self.sampler.close()
        ended = ", ".join(f"{count} {name}" for name, count in self.counts.items() if count) or "nothing run"
        self.ctx.say(f"ended ({self.reason or 'done'}): {ended}")
        if self.job_word is not None:
            self.job_word.close()
        self.watch.close()
        self.logs.close()
        self.ears.close()
