"""The worker: one process per node that claims tasks, runs them, and lets go of everything it holds.

A single-threaded loop over child exits, signals, pipes and a timer. A life goes: health check, up, a drain (idle,
stop, deadline, signal, request), the end of every child, the return of every claim, a last heartbeat. Dying at
any point is allowed: what it held is taken over by evidence, not by its farewell.
"""

from __future__ import annotations

import os
import select
import signal
from dataclasses import dataclass

from fleetcraft import __version__
from fleetcraft.core.clock import Clock, SystemClock
from fleetcraft.core.errors import EXIT_DONE, EXIT_FAILED, EXIT_TRY_AGAIN, LifeEnded, OutOfReach
from fleetcraft.core.names import CLAIM, HELD, WAITING
from fleetcraft.core.quantities import format_duration
from fleetcraft.core.states import LossCause, Outcome, WorkerState
from fleetcraft.spool.evidence import ReapPolicy
from fleetcraft.spool.held import Upstream
from fleetcraft.spool.life import Life
from fleetcraft.spool.reap import Reaper
from fleetcraft.spool.requests import RequestLog
from fleetcraft.spool.spool import Spool
from fleetcraft.store.files import Files, explain
from fleetcraft.store.journal import JournalEnded, is_storage_full
from fleetcraft.workers.beat import compose
from fleetcraft.workers.black_hole import BlackHole, Finding
from fleetcraft.workers.calls import Calls
from fleetcraft.workers.child import Supervisor
from fleetcraft.workers.claimer import Claimer
from fleetcraft.workers.context import Context
from fleetcraft.workers.devices import DeviceWatch, ForeignMemory, open_sensor
from fleetcraft.workers.ears import Ears
from fleetcraft.workers.health import check_health
from fleetcraft.workers.logs import SlotLogs
from fleetcraft.workers.options import WorkerOptions
from fleetcraft.workers.resident import ResidentState
from fleetcraft.workers.runner import ANNOUNCE_AFTER_S, Concluded, Runner
from fleetcraft.workers.sink import Sink
from fleetcraft.workers.slots import Capacity
from fleetcraft.workers.starter import Starter
from fleetcraft.workers.watch import LIST_EVERY_S, STAT_EVERY_S, Watch

# Receipts are durable at latest this long after they were written.
SYNC_EVERY_S = 0.9
REAP_EVERY_S = 5.0
REQUESTS_EVERY_S = 1.0
SHARE_EVERY_S = 1.0
HELD_EVERY_S = 2.0
FLUSH_EVERY_S = 1.0
PROBE_EVERY_S = 0.5
LIST_AT_MOST_EVERY_S = 0.01
# Without a lease nobody takes a silent worker of another host for dead; still look after so long a pause.
_PAUSE_LIMIT_S = 30.0
_FULL_LIMIT_S = 30.0


@dataclass(slots=True)
class Timer:
    """Something done every so often."""

    every_s: float
    next_s: float = 0.0

    def due(self, now_s: float) -> bool:
        """True when it is time; the next time is then set."""
        if now_s < self.next_s:
            return False
        self.next_s = now_s + self.every_s
        return True


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
        self._poller = select.poll()
        self._polled: dict[int, int] = {}
        self._signals = 0
        self._reaped = False
        self._looked_alive_boot_s = 0.0
        self._said_full = False
        self._must_list = True
        self._others_may_share = False
        self._held_seen = False  # some task waits for others: an end of ours may be what it waits for
        self._listed_s = -1.0
        self._tokens_seen_ns = -1
        self._quiet_looks = 0
        self._quiet_since_s: float | None = None
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
        except (JournalEnded, LifeEnded, OSError) as error:
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
        self.life = Life.begin(self.spool, job_id=options.job_id or os.environ.get("SLURM_JOB_ID"))
        self.sink = Sink(self.life)
        now = clock.mono()
        self.ctx = Context(
            options, clock, self.spool, self.life, self.sink, capacity, RequestLog(self.spool),
            None if options.deadline_utc is None else now + options.deadline_utc - clock.utc(),
        )  # fmt: skip
        self.supervisor = Supervisor(clock, self.life.id)
        self.logs = SlotLogs(self.spool.files, self.life.folder)
        pace, life = self.ctx.pace, self.life.id
        self.runner = Runner(
            clock, self.sink, self.supervisor, capacity, self.logs, pace, life, options.pass_env,
            options.deadline_utc, self.ears.wake, DeviceWatch(self.sensor).lingers, options.kill_grace_s,
        )  # fmt: skip
        self.calls = Calls(
            clock, self.sink, self.supervisor, capacity, self.logs, pace, life, options.pass_env,
            options.deadline_utc, options.kill_grace_s,
        )  # fmt: skip
        self.claimer = Claimer(self.ctx, Upstream(self.spool), self.calls.idle_lanes)
        self.starter = Starter(self.ctx, self.runner, self.calls)
        self.reaper = Reaper(self.life, self.ctx.reader, ReapPolicy(lease_s=options.lease_s))
        self.black_hole = BlackHole(self.spool, life)
        layout = self.spool.layout
        self.watch = Watch([layout.tokens, layout.requests], poll_only=options.watch == "poll")
        self.beat_timer, self.request_timer = Timer(options.heartbeat_s), Timer(REQUESTS_EVERY_S)
        self.reap_timer, self.share_timer = Timer(REAP_EVERY_S), Timer(SHARE_EVERY_S, now + SHARE_EVERY_S)
        self.held_timer, self.flush_timer = Timer(HELD_EVERY_S), Timer(FLUSH_EVERY_S)
        self.probe_timer = Timer(PROBE_EVERY_S)
        self.announce_timer = Timer(ANNOUNCE_AFTER_S, now + ANNOUNCE_AFTER_S)
        self.stat_timer, self.list_timer = Timer(STAT_EVERY_S), Timer(LIST_EVERY_S)
        self._look_before_claiming()

    def _look_before_claiming(self) -> None:
        health = check_health(self.spool, self.sensor)
        self.life.note("up", capacity=self.ctx.capacity.describe(), health=health.as_json(), version=__version__)
        self.state = WorkerState.UP
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
        now_s, limit_s = self.clock.boot(), (self.options.lease_s or 2 * _PAUSE_LIMIT_S) / 2
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
        for concluded in (*self.runner.finished, *self.calls.receipts.finished):
            self._count(concluded)
            self._must_list = self._must_list or self._held_seen
        self.runner.finished.clear()
        self.calls.receipts.finished.clear()

    def _settle(self) -> None:
        """Write the receipts that were put off while slots were filled, then release what is done."""
        self.sink.flush_later()
        if self.black_hole.found and self.black_hole.streak:
            # What was still running when the node was found out failed for the same reason.
            late = list(self.black_hole.streak)
            self.black_hole.streak.clear()
            self._take_back(late, "failed on this node, which is a black hole")
        for claim in [claim for claim in self.ctx.book if claim.done]:
            self.claimer.release(claim)

    def _count(self, concluded: Concluded) -> None:
        self.counts[concluded.ruling.outcome.value] += concluded.count
        self.black_hole.observe(concluded)

    def _probe(self, now: float) -> bool:
        """Settle whether failures are this node's or the tasks'; True while that is open, and nothing is started."""
        hole = self.black_hole
        if hole.probe is None and not hole.suspects():
            return False
        if hole.probe is None:
            self.ctx.say("tasks fail here while others succeed elsewhere; one of them is offered again as a probe")
            self.claimer.give_back_unstarted()
            self._take_back([hole.begin(now)], "offered again, to see whether it fails elsewhere too")
            self.probe_timer.next_s = now + self.probe_timer.every_s
        for claim in [claim for claim in self.ctx.book if not claim.running and not claim.done]:
            self.claimer.let_go(claim)
        if not self.probe_timer.due(now):
            return True
        finding = hole.look(self.ctx.read_everything(), now)
        if finding is Finding.NODE:
            self._leave_black_hole()
        return finding is Finding.OPEN

    def _leave_black_hole(self) -> None:
        count = len(self.black_hole.streak) + 1
        reason = f"{count} tasks failed on this node while they succeed elsewhere"
        self._take_back(list(self.black_hole.streak), reason)
        self.black_hole.streak.clear()
        self.exit_code = EXIT_FAILED
        self._drain(LossCause.BLACK_HOLE, reason)

    def _take_back(self, failures: list[Concluded], reason: str) -> None:
        """The failures of this node are its own, not the tasks'."""
        for entry in failures:
            self.sink.record(
                {
                    "t": "receipt", "b": entry.id.batch, "i": entry.id.index, "g": entry.claim.token.gen,
                    "a": entry.attempt, "o": Outcome.LOST.value, "cause": LossCause.BLACK_HOLE.value, "error": reason,
                    "end": round(self.clock.utc(), 3),
                }
            )  # fmt: skip
        self.sink.sync()
        for entry in failures:
            if entry.ruling.final is not None:
                self.claimer.revive(entry.claim, entry.position, entry.attempt + 1)

    def _hear(self, now: float) -> None:
        if self.watch.drain():
            self._must_list = True
            self.request_timer.next_s = 0.0
        for number in self.ears.take():
            self._on_signal(signal.Signals(number).name)
        left = self.ctx.left_s()
        if left is not None and left <= 0 and self.state is WorkerState.UP:
            self._drain(LossCause.WALLTIME, "the deadline is near", stop=True)
        if self.request_timer.due(now) and self.ctx.read_requests():
            self._on_requests()

    def _on_signal(self, name: str) -> None:
        """The first stop signal begins one drain, a second changes nothing, a third ends the grace."""
        self._signals += 1
        self.sink.record({"t": "note", "what": "signal", "name": name, "at": round(self.clock.utc(), 3)})
        self.sink.sync()
        if self._signals == 1:
            cause = LossCause.PREEMPTED if "SLURM_JOB_ID" in os.environ else LossCause.DRAINED
            self._drain(cause, f"signal {name}", stop=True)
        elif self._signals >= 3:
            for child in self.supervisor.running():
                self.supervisor.force(child)

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
        if self.beat_timer.due(now):
            self._beat()
        if self.announce_timer.due(now):
            self.runner.announce(now)
        self.runner.check_timeouts(now)
        self.calls.check_timeouts(now)
        if self.state is WorkerState.UP:
            if self.share_timer.due(now):
                self.claimer.share()
            if self.reap_timer.due(now):
                self._reap()

    def _beat(self) -> None:
        state = WorkerState.STORAGE_FULL if self.sink.storage_full else self.state
        content = compose(
            state, self.reason, self.ctx.capacity, self.ctx.book, self.runner, self.calls, self.counts, self._rate()
        )
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

    def _reap(self) -> bool:
        """Look after dead lives; True while something is still being taken over."""
        reports = self.reaper.step()
        for report in reports:
            if report.state == "dead":
                self._must_list = True
                self.ctx.say(f"took over {report.life}: {report.returned} tokens returned, {report.lost} attempts lost")
        if any(report.state == "dead" for report in reports):
            self.ctx.keep_shortcut()
        if self.reaper.busy:
            self.reap_timer.next_s = min(self.reap_timer.next_s, self.clock.mono() + 0.05)
        return self.reaper.busy or any(report.state in ("reaping", "fenced") for report in reports)

    # Work

    def _feed(self, now: float) -> None:
        """Start what can start; claim more when little is left in hand."""
        if self._probe(now):
            return
        self.starter.fill(now)
        if self.starter.enough:
            self._drain(LossCause.DRAINED, f"as many tasks were started as asked for ({self.starter.started})")
        elif self._has_room() and self._spool_may_have_changed(now) and self._claim(now):
            self.starter.fill(now)

    def _has_room(self) -> bool:
        """True when a slot is free, or will soon be with nothing to start on it."""
        capacity = self.ctx.capacity
        return capacity.used_cpus < capacity.cpus or self.claimer.is_low()

    def _spool_may_have_changed(self, now: float) -> bool:
        """True when a listing may show something new: we were told, the folder's time moved, or it is time to look."""
        if now - self._listed_s < LIST_AT_MOST_EVERY_S:
            return False  # many renames a second wake us as often; one look serves for all
        if self._must_list or self.list_timer.due(now):
            return True
        if not self.stat_timer.due(now):
            return False
        return self.spool.files.modified_ns(self.spool.layout.tokens) != self._tokens_seen_ns

    def _claim(self, now: float) -> int:
        self._tokens_seen_ns = self.spool.files.modified_ns(self.spool.layout.tokens)
        tokens = self.spool.tokens().tokens
        self._listed_s = now
        self._held_seen = any(token.form == HELD for token in tokens)
        self.claimer.adopt_late(tokens)
        released = 0
        if self.held_timer.due(now):
            released = self.claimer.release_held(tokens)
        made = self.claimer.claim(tokens)
        # While claims are made there may be more; after an empty look only a change is worth another.
        self._must_list = bool(made or released)
        self.list_timer.next_s = now + LIST_EVERY_S
        if (
            not made
            and self.calls.hosts
            and any(token.form == WAITING and self.claimer.could_ever(token) for token in tokens)
        ):
            self.calls.evict()  # a resident sits idle where something else could run
        return made

    def _drain(self, cause: LossCause, reason: str, *, stop: bool = False) -> None:
        """Take nothing new and leave; with `stop` what runs is asked to end, by its checkpoint signal first."""
        if self.state is WorkerState.DRAINING:
            return
        self.state, self.reason = WorkerState.DRAINING, reason
        self.ctx.say(f"drains: {reason}")
        self.sink.record({"t": "note", "what": "drain", "cause": cause.value, "reason": reason})
        if stop:
            self.runner.drain_cause = self.calls.receipts.drain_cause = cause
            self.runner.stop_all("drain")
        self.calls.stop_all("drain", only_idle=not stop)
        self.claimer.give_back_unstarted()
        self._beat()

    # Leaving

    def _finished(self, now: float) -> bool:
        if self.runner.busy or self.calls.busy:
            self._quiet_looks = 0
            return False
        if self.state is WorkerState.DRAINING:
            return True
        if self.sink.storage_full:
            return self._full_for_too_long(now)
        if len(self.ctx.book) or self.black_hole.probe is not None or self._something_for_us(now):
            self._quiet_looks = 0
            return False
        if self._quiet_looks == 0:
            self._quiet_since_s = now
        self._quiet_looks += 1
        idle_exit, since = self.options.idle_exit_s, self._quiet_since_s or now
        # Never on one listing: two looks, each with a pass over dead lives.
        if idle_exit is None or self._quiet_looks < 2 or now - since < idle_exit:
            return False
        if self._others_may_share and now - since < 2 * SHARE_EVERY_S:
            return False
        self.reason = f"nothing to do for {format_duration(now - since)}"
        return True

    def _something_for_us(self, now: float) -> bool:
        """True when a token waits that this worker could run, now or once its slots are free."""
        if self._quiet_looks >= 2 and not self._must_list and not self.list_timer.due(now):
            return False
        self._must_list = False
        busy = self._reap()
        tokens = self.spool.tokens().tokens
        if busy or self.claimer.release_held(tokens):
            return True
        found = any(token.form == WAITING and self.claimer.could_ever(token) for token in tokens)
        # Another worker that holds more than it runs gives some back within moments: leaving now would leave it alone.
        self._others_may_share = any(
            token.form == CLAIM and token.count > 1 and self.claimer.could_ever(token) for token in tokens
        )
        self._must_list = self._must_list or found
        return found

    def _full_for_too_long(self, now: float) -> bool:
        if self._quiet_looks == 0:
            self._quiet_looks, self._quiet_since_s = 1, now
        idle_exit = self.options.idle_exit_s
        if idle_exit is None or now - (self._quiet_since_s or now) < max(idle_exit, _FULL_LIMIT_S):
            return False
        self.exit_code, self.reason = EXIT_TRY_AGAIN, "the storage is full"
        return True

    def _wait(self, now: float) -> None:
        # Only what is looked at in this state may set the time: a moment that stays in the past is a busy loop.
        moments = [self.beat_timer.next_s, self.request_timer.next_s]
        moments.append(self.sink.last_sync_s + SYNC_EVERY_S if self.sink.clear else self.flush_timer.next_s)
        if self.sink.storage_full:
            moments.append(self.flush_timer.next_s)
        if self.state is WorkerState.UP:
            moments.append(self.reap_timer.next_s)
            if not self.sink.storage_full and self._has_room():
                moments.append(max(self.stat_timer.next_s, self._listed_s + LIST_AT_MOST_EVERY_S))
        left = self.ctx.left_s()
        may_list = self._must_list and self.state is WorkerState.UP and self._has_room()
        moments += [
            moment
            for moment in (
            self.ctx.book.next_due_s(), self.runner.check_timeouts(now), self.calls.check_timeouts(now),
            self.supervisor.next_deadline_s(), None if left is None or left < 0 else now + left,
            self.starter.hold_until_s if self.starter.hold_until_s > now else None,
            now + 0.02 if self._quiet_looks == 1 else None,
            now + 0.25 if self.runner.lingering else None,
            self.probe_timer.next_s if self.black_hole.probe is not None else None,
            now + LIST_AT_MOST_EVERY_S if may_list else None,
            )
            if moment is not None
        ]  # fmt: skip
        self._poll(max(0.0, min(moments) - self.clock.mono()))

    def _poll(self, timeout_s: float) -> None:
        """Sleep until a child, a signal, a resident or a change in the spool wakes us, or the time is over."""
        wanted = {self.ears.descriptor: select.POLLIN, self.supervisor.wake_fd: select.POLLIN}
        if self.watch.descriptor is not None:
            wanted[self.watch.descriptor] = select.POLLIN
        for host in self.calls.hosts.values():
            if host.resident.state is not ResidentState.ENDED:
                wanted[host.resident.reply_fd] = select.POLLIN
            if host.resident.wants_write:
                wanted[host.resident.request_fd] = select.POLLOUT
        if wanted != self._polled:
            for descriptor in self._polled.keys() - wanted.keys():
                self._poller.unregister(descriptor)
            for descriptor, events in wanted.items():
                self._poller.register(descriptor, events)
            self._polled = wanted
        self._poller.poll(timeout_s * 1000)

    # Death

    def _abandon(self, error: Exception) -> None:
        """The storage or a reaper ended this life: start nothing, own nothing new, say why."""
        self.exit_code, self.reason = EXIT_TRY_AGAIN, str(error)
        self._reaped = isinstance(error, LifeEnded)
        self.state = WorkerState.DRAINING
        self.runner.drain_cause = self.calls.receipts.drain_cause = LossCause.DRAINED
        self.ctx.say(f"stops: {error}")
        if self._reaped:
            try:
                self._record_abandoned()
            except (OSError, OutOfReach) as failed:
                self.ctx.say(f"could not write down what was abandoned: {failed}")

    def _record_abandoned(self) -> None:
        """What ran while we were taken for dead is written down with its cost; it is never counted."""
        for running in self.runner.running.values():
            self.sink.record(
                {
                    "t": "receipt", "b": running.id.batch, "i": running.id.index, "g": running.claim.token.gen,
                    "a": running.attempt, "o": Outcome.ABANDONED.value, "s": running.slot.number,
                    "at": round(running.at_utc, 3), "end": round(self.clock.utc(), 3),
                    "wall": round(self.clock.mono() - running.at_mono_s, 3), "error": self.reason,
                }
            )  # fmt: skip
        for host in self.calls.hosts.values():
            if host.chunk is not None:
                self.sink.record(self.calls.receipts.abandoned(host, host.chunk, self.reason))
        self.sink.sync()

    def _end(self) -> None:
        for step in (self._end_children, self._end_claims, self._end_life):
            try:
                step()
            except (JournalEnded, LifeEnded, OutOfReach, OSError) as error:
                self.exit_code = self.exit_code or EXIT_TRY_AGAIN
                self.ctx.say(f"could not end in order: {error}")
        self.watch.close()
        self.logs.close()
        self.ears.close()

    def _end_children(self) -> None:
        """Nothing is left behind on the node: the process ends only with an empty tree under it."""
        self.runner.stop_all("drain")
        self.calls.stop_all("drain")
        while len(self.supervisor) or self.runner.busy:
            if self._reaped or self.life.journal.ended:
                break  # their ends are not ours to record any more
            self._collect()
            self._settle()
            if len(self.supervisor) or self.runner.busy:
                self._wait(self.clock.mono())
        self.supervisor.close(self.options.kill_grace_s)

    def _end_claims(self) -> None:
        if self._reaped or self.life.journal.ended:
            return  # whoever finds the claims decides, by evidence
        if not self.sink.flush():
            self.exit_code = self.exit_code or EXIT_TRY_AGAIN
            self.ctx.say("the storage is full: what this worker held goes back when another one looks after it")
            return
        self.life.check_live()
        for claim in list(self.ctx.book):
            if not claim.running:
                self.claimer.let_go(claim)
        self.starter.return_permits()

    def _end_life(self) -> None:
        self.state = WorkerState.STOPPED
        if self._reaped or self.life.journal.ended or not self.sink.clear:
            return
        self.sink.sync()
        self._beat()
        self.life.close()
