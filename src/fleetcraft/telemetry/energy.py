"""The energy counter of the host's processors, where it may be read; nothing is put in its place."""

from __future__ import annotations

import os
from collections.abc import Callable

from fleetcraft.telemetry.api import Reason

_RAPL = "/sys/class/powercap/intel-rapl:0/energy_uj"


def _read(path: str) -> str:
    with open(path, encoding="ascii") as source:
        return source.read()


def host_energy_uj(read: Callable[[str], str] = _read, path: str = _RAPL) -> int | Reason:
    """Microjoules of the first processor, or why they are not told: kernels of today keep them for root."""
    try:
        return int(read(path))
    except PermissionError:
        return Reason.NO_PERMISSION
    except OSError:
        return Reason.ERROR if os.path.exists(path) else Reason.UNSUPPORTED
    except ValueError:
        return Reason.PARSE
