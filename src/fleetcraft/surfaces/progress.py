"""`fleetcraft.progress`: a task says how far it is, for people who look and for the FLOPs of its receipt.

It never raises into the task and never waits: what cannot be written is told once on standard error.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from fleetcraft.core.progress import VARIABLE, encode, number

# A loop may call for every step; a shared file system must not hear of each. A few at once are written as they come.
_BURST = 10.0
_PER_S = 2.0


@dataclass(slots=True)
class _Told:
    """What this process has said so far in its attempt."""

    path: str
    task: str
    attempt: str
    values: dict[str, Any] = field(default_factory=lambda: {"numbers": {}})
    room: float = _BURST
    at_mono_s: float = 0.0
    written: bool = True
    pid: int = 0  # a fork inherits what was said, and must not say it again at its end


_state: list[_Told] = []
_complained: list[str] = []


def progress(
    done: float | None = None,
    total: float | None = None,
    unit: str = "",
    flops: float | Mapping[str, Any] | None = None,
    phase: str = "",
    **numbers: float,
) -> None:
    """Say how far this task is. Outside a task of Fleetcraft nothing happens.

    `done` of `total` in `unit`; `flops` done since the attempt began, as a number or as a formula with `calls`; a
    `phase` word; any other numbers by name. What a call leaves out stays as said before. Call it in one process of
    the task only: the last one that calls is the one that is heard.
    """
    try:
        told = _told()
        if told is None:
            return
        _merge(told.values, done, total, unit, flops, phase, numbers)
        _write(told, now_s=time.monotonic(), ends=done is not None and done == total)
    except Exception as error:  # noqa: BLE001  a remark about the work must never end the work
        _complain(error)


def _told() -> _Told | None:
    path = os.environ.get(VARIABLE)
    if not path:
        return None
    task, attempt = os.environ.get("FLEETCRAFT_TASK_ID", ""), os.environ.get("FLEETCRAFT_ATTEMPT", "")
    if _state and (_state[0].path, _state[0].task, _state[0].attempt) == (path, task, attempt):
        return _state[0]
    if not _state:
        atexit.register(_flush)
    _state[:] = [_Told(path, task, attempt)]
    return _state[0]


def _merge(
    values: dict[str, Any], done: object, total: object, unit: str, flops: object, phase: str,
    numbers: Mapping[str, object],
) -> None:  # fmt: skip
    for key, value in (("done", done), ("total", total)):
        if value is not None:
            values[key] = number(value)
    if unit:
        values["unit"] = str(unit)
    if phase:
        values["phase"] = str(phase)
    values["numbers"].update((name, number(value)) for name, value in numbers.items())
    if flops is None:
        return
    if isinstance(flops, Mapping):
        from fleetcraft.actions.declared import count_flops  # most tasks give a number, or none

        flops = count_flops(flops)
    values["flops"] = number(flops)


def _write(told: _Told, *, now_s: float, ends: bool) -> None:
    told.room = min(_BURST, told.room + (now_s - told.at_mono_s) * _PER_S)
    told.at_mono_s = now_s
    told.written, told.pid = False, os.getpid()
    if told.room < 1 and not ends:
        return  # said at the end at the latest
    told.room -= 1
    data = encode(told.values, task=told.task, attempt=told.attempt, at_utc=time.time())
    folder, name = os.path.split(told.path)
    # Processes and threads of one task may call at once; each needs a file aside of its own.
    aside = os.path.join(folder, f".{name}.{os.getpid()}-{threading.get_ident()}.tmp")
    try:
        with open(aside, "wb") as target:
            target.write(data)
        os.replace(aside, told.path)
    except OSError:
        with suppress(OSError):
            os.unlink(aside)
        raise
    told.written = True


def _flush() -> None:
    for told in _state:
        if not told.written and told.pid == os.getpid():
            try:
                _write(told, now_s=time.monotonic(), ends=True)
            except Exception as error:  # noqa: BLE001  at the end of a process nobody could catch it
                _complain(error)


def _complain(error: Exception) -> None:
    if not _complained:
        _complained.append(str(error))
        with suppress(Exception):
            sys.stderr.write(f"fleetcraft.progress: {error}\n")
