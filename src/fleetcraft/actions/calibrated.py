"""A frozen row becomes a task: the picked batch in its words, its share of a GPU, and the memory it was seen to need.

A row is used only for what was measured: the same words, the same files of code, an unedited table.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from fleetcraft.core.errors import UsageError
from fleetcraft.usage import calibration

_MIB = 1 << 20
# Above the peak that was sampled, because a sample each second can miss the highest moment.
_MARGIN_PCT = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibrated:
    """What a row says of a task."""

    command: list[str]
    gpus: float
    vram_bytes: int | None


def fill_in(command: Sequence[str], batch: int) -> list[str]:
    """The words with the batch size in the place of `{batch}`."""
    return [word.replace("{batch}", str(batch)) for word in command]


def read_table(path: str) -> list[dict[str, Any]]:
    """The rows of a table file. Raises UsageError where it cannot be read or was edited."""
    try:
        with open(path, encoding="utf-8", newline="") as source:
            text = source.read()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise UsageError(
            f"Cannot read the calibration table {path}: {why}.",
            hint="`fleetcraft task calibrate` makes one.",
        ) from error
    return calibration.decode(text, path)


def digest_now(command: Sequence[str], paths: Sequence[str]) -> str:
    """The digest of the words and of all files of code as they are now. Raises UsageError."""
    files: list[tuple[str, bytes]] = []
    for path in {os.path.abspath(path) for path in paths}:
        for one in _files(path):
            try:
                with open(one, "rb") as source:
                    files.append((one, source.read()))
            except OSError as error:
                raise UsageError(f"Cannot read the code {one}: {error.strerror}.", hint="Look at the path.") from error
    return calibration.code_digest(command, files)


def _files(path: str) -> Iterator[str]:
    if not os.path.isdir(path):
        yield path
        return
    for folder, folders, names in os.walk(path):
        # What Python itself leaves there changes without any edit.
        folders[:] = sorted(name for name in folders if name != "__pycache__" and not name.startswith("."))
        yield from (os.path.join(folder, name) for name in sorted(names) if not name.startswith("."))


def use(path: str, family: str, device: str | None, command: Sequence[str] | None) -> Calibrated:
    """The task that a table asks for; without a command it is the one that was measured. Raises UsageError."""
    row = calibration.choose(read_table(path), family, device, path)
    picked, per_gpu = row["pick"]["batch"], row["pick"]["per_gpu"]
    again = f"Measure again: fleetcraft task calibrate {family} --table {path} -- COMMAND"
    if picked is None:
        raise UsageError(f"{path}: no batch was picked for family {family!r}: {row['pick']['reason']}.", hint=again)
    if command is not None and list(command) != row["command"]:
        raise UsageError(
            f"{path}: family {family!r} was measured with another command.",
            hint="Give the same words with {batch}, or none; or measure these words.",
        )
    if digest_now(row["command"], row["code_paths"]) != row["key"]["code"]:
        raise UsageError(f"{path}: the code of family {family!r} changed since it was measured.", hint=again)
    chosen = next(one for one in row["trials"] if (one["batch"], one["per_gpu"]) == (picked, per_gpu))
    peak = max(chosen["gpu_bytes"].values()) if chosen["gpu_bytes"] else None
    return Calibrated(
        command=fill_in(row["command"], picked),
        gpus=share(per_gpu),
        vram_bytes=None if peak is None else vram_of(peak, per_gpu, row["device_bytes"]),
    )


def share(per_gpu: int) -> float:
    """The part of a GPU that lets so many run at once: rounded down, because rounded up one too few would fit."""
    return 1.0 if per_gpu == 1 else (1000 // per_gpu) / 1000


def vram_of(peak_bytes: int, per_gpu: int, device_bytes: int | None) -> int:
    """The reservation of one task, in whole MiB: its part of the peak and a margin, and no more than fits so often."""
    part = -(-peak_bytes * (100 + _MARGIN_PCT) // (100 * per_gpu * _MIB))
    return (part if device_bytes is None else min(part, device_bytes // per_gpu // _MIB)) * _MIB
