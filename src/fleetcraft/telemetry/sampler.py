"""The sampler as a process of its own: `python -m fleetcraft.telemetry.sampler JSON`.

A driver that hangs takes this process with it and never the worker. It ends with whoever started it: the other end
of its standard input is open as long as that one lives. It imports as little as it can, since it is on every node.
"""

from __future__ import annotations

import os
import select
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

from fleetcraft.core.clock import Clock, SystemClock
from fleetcraft.core.errors import EXIT_DONE, EXIT_TRY_AGAIN, EXIT_USAGE, FleetcraftError, UsageError
from fleetcraft.store.files import Files
from fleetcraft.telemetry.api import Sensor
from fleetcraft.telemetry.interval import check_interval_s
from fleetcraft.telemetry.sampler_lock import Place, Taken, make_host_folder, take_place
from fleetcraft.telemetry.sampling import Labels, Sampler
from fleetcraft.telemetry.segment import harmless

DEFAULT_INTERVAL_S = 10.0
# A job's signals go to every process of its step on some sites; who is minded by a worker ends with the worker.
_OVERHEARD = ("SIGHUP", "SIGINT", "SIGUSR1", "SIGUSR2", "SIGXCPU", "SIGPIPE")
_PARENT_EVERY_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplerOptions:
    """How one sampler is to run. Raises UsageError where a choice cannot be."""

    root: str
    interval_s: float = DEFAULT_INTERVAL_S
    gpus: str = "auto"
    host: str = ""  # empty: the kernel's name for this machine
    job: str = ""
    step: str = ""
    fleet: str = ""
    spool: str = ""
    life: str = ""
    minded: bool = False  # ends when standard input does, or with its parent
    shared: bool = False  # what is made is for the group of the spool too
    deadline_s: float = 10.0  # a device that has not answered by then is hung
    wait: bool = False  # stand by while another sampler measures the same devices

    def __post_init__(self) -> None:
        if not self.root:
            raise UsageError("A sampler needs a place to write to.", hint="Name it with --to.")
        check_interval_s(self.interval_s)


class Waiter:
    """Sleeps until a signal, the end of the parent, or a time."""

    def __init__(self, *, minded: bool, mind_input: bool = True) -> None:
        self.over = ""  # why there is nothing more to do
        self._parent = os.getppid() if minded else 0
        self._terms = 0
        self._minded = minded
        self._is_patient = minded and mind_input
        self._reader, self._writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._poll = select.poll()
        self._poll.register(self._reader, select.POLLIN)
        if minded and mind_input:
            self._poll.register(0, select.POLLIN)
        self._wake_before = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        self._before: dict[int, Any] = {}
        for name in _OVERHEARD:
            is_deaf = minded or name == "SIGPIPE"
            self._listen(getattr(signal, name), signal.SIG_IGN if is_deaf else self._on_signal)
        self._listen(signal.SIGTERM, self._on_signal)

    def _listen(self, number: int, handler: Any) -> None:
        self._before[number] = signal.signal(number, handler)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def _on_signal(self, number: int, _frame: object) -> None:
        self._terms += 1
        # Whole process trees are asked to end at a job's end, and the worker goes on until its tasks have saved
        # their state. What the GPUs do until then is part of the account.
        if not self._is_patient or self._terms > 1:
            self.over = f"signal {signal.Signals(number).name}"

    def __call__(self, seconds: float) -> bool:
        """Sleep; False when the sampler is to end."""
        while not self.over:
            step_s = min(max(0.0, seconds), _PARENT_EVERY_S) if self._minded else max(0.0, seconds)
            ready = dict(self._poll.poll(step_s * 1000))
            if self._reader in ready:
                _drain(self._reader)
            if 0 in ready and _is_at_end(0):
                self.over = "its parent ended"
            if self._minded and os.getppid() != self._parent:
                self.over = "its parent ended"
            seconds -= step_s
            if seconds <= 0 or (ready and not self.over):
                break
        return not self.over

    def close(self) -> None:
        """Give the descriptors back, and the signals to whom they belonged."""
        for number, handler in self._before.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)
        signal.set_wakeup_fd(self._wake_before)
        os.close(self._reader)
        os.close(self._writer)


def _drain(descriptor: int) -> None:
    try:
        os.read(descriptor, 4096)
    except BlockingIOError:
        return


def _is_at_end(descriptor: int) -> bool:
    try:
        return not os.read(descriptor, 4096)
    except BlockingIOError:
        return False
    except OSError:
        return True


def boot_id() -> str:
    """Id of this boot of this kernel; empty where it is not told."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as source:
            return source.readline().strip()
    except (OSError, ValueError):
        return ""


def run(
    options: SamplerOptions,
    *,
    wait: Callable[[float], bool],
    sensor: Sensor | None = None,
    clock: Clock | None = None,
    files: Files | None = None,
    say: Callable[[str], None] | None = None,
    on_tick: Callable[[Sampler], None] | None = None,
    why_over: Callable[[], str] = lambda: "asked to end",
) -> int:
    """Measure until `wait` says that it is over. Returns the exit code; 75: another sampler measures these devices.

    Raises UsageError where the GPUs that were asked for are not there.
    """
    clock, files, say = clock or SystemClock(), files or Files(), say or _say
    files.shared = files.shared or options.shared
    opened = sensor is None
    if sensor is None:
        from fleetcraft.telemetry.open import open_sensor

        lives = os.path.join(os.path.dirname(os.path.abspath(options.root)), "workers") if options.spool else ""
        sensor = open_sensor(options.gpus, clock=clock, deadline_s=options.deadline_s, lives=lives)
    host = options.host or os.uname().nodename
    devices = [device.uuid for device in sensor.inventory()]
    if not devices:
        raise UsageError(
            f"There is no GPU to measure on {host}{f': {sensor.reason}' if sensor.reason else ''}.",
            hint="Try it out with --gpus simulated:2; `fleetcraft doctor` looks closer.",
        )
    place = _enter(options, host, devices, wait, files, say)
    if place is None:
        return EXIT_DONE if options.wait else EXIT_TRY_AGAIN
    sampler = Sampler(
        folder=os.path.join(options.root, harmless(host, "host")), labels=_labels(options, host),
        interval_s=options.interval_s, sensor=sensor, clock=clock, files=files, state_name=place.state_name,
        boot_id=boot_id, say=say,
    )  # fmt: skip
    try:
        sampler.begin()
        if opened:
            _give_back_memory()
        _loop(sampler, wait, on_tick)
        sampler.end(why_over())
    finally:
        place.release()
    return EXIT_DONE


def _give_back_memory() -> None:
    """Loading the driver's binding takes some 15 MiB for a moment, and it is on every node for as long as a job."""
    import ctypes
    import gc

    gc.collect()
    gc.freeze()  # what is loaded stays: no later collection has to look at it
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (OSError, AttributeError):
        return  # another C library


def _labels(options: SamplerOptions, host: str) -> Labels:
    from fleetcraft import __version__

    return Labels(
        host=host, job=options.job, step=options.step, fleet=options.fleet, spool=options.spool, life=options.life,
        version=__version__,
    )  # fmt: skip


def _enter(
    options: SamplerOptions, host: str, devices: list[str], wait: Callable[[float], bool], files: Files,
    say: Callable[[str], None],
) -> Place | None:  # fmt: skip
    """The lock; None where another sampler has it and this one does not wait, or waited to its end."""
    who = f"pid {os.getpid()} on {host}" + (f", job {options.job}" if options.job else "")
    who += f", worker {options.life}" if options.life else ""
    said = ""
    while True:
        try:
            folder = make_host_folder(files, options.root, harmless(host, "host"))
            place = take_place(folder, devices, who, shared=files.shared)
        except OSError as error:
            if not options.wait:
                from fleetcraft.store.files import explain

                raise explain(error, f"Cannot write telemetry to {options.root}") from error
            text = f"cannot write telemetry to {options.root}: {error}"
        else:
            if isinstance(place, Place):
                return place
            text = _taken(place)
        if text != said:
            say(text)
            said = text
        if not options.wait or not wait(options.interval_s):
            return None


def _taken(taken: Taken) -> str:
    return f"these GPUs are measured already by {taken.holder}, which holds {taken.path}"


def _loop(sampler: Sampler, wait: Callable[[float], bool], on_tick: Callable[[Sampler], None] | None) -> None:
    """One tick each interval on a grid of its own: a late one is not made up for by a burst."""
    clock, interval_s = sampler.clock, sampler.interval_s
    began_s = clock.mono()
    while True:
        sampler.tick()
        if on_tick is not None:
            on_tick(sampler)
        now_s = clock.mono()
        began_s = min(began_s, now_s)
        turns = int((now_s - began_s) / interval_s) + 1
        due_s = began_s + turns * interval_s
        while (left_s := due_s - clock.mono()) > 0:
            if not wait(left_s):
                return
            if clock.mono() < now_s:
                break


def _say(text: str) -> None:
    try:
        sys.stderr.write(f"sampler: {text}\n")
        sys.stderr.flush()
    except OSError:
        return  # whoever listened is gone


def options_from(told: dict[str, Any]) -> SamplerOptions:
    """The options from the JSON of the command line. Raises UsageError."""
    try:
        return SamplerOptions(**told)
    except TypeError as error:
        raise UsageError(f"These are no options of a sampler: {error}.") from error


def main(arguments: list[str]) -> int:
    """The entry of the process."""
    import json

    try:
        told = json.loads(arguments[0]) if len(arguments) == 1 else None
    except ValueError:
        told = None
    if not isinstance(told, dict):
        _say("its one argument is a JSON object; for people there is `fleetcraft gpu sample`")
        return EXIT_USAGE
    try:
        options = options_from(told)
        with Waiter(minded=options.minded) as waiter:
            return run(options, wait=waiter, why_over=lambda: waiter.over or "asked to end")
    except FleetcraftError as error:
        _say(str(error))
        return error.exit_code


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stderr.flush()
    # A driver's thread that hangs must not keep a sampler that was told to end.
    os._exit(code)
