"""Says under which slot, devices and libraries a task ran, so that a result can be traced to them."""

from __future__ import annotations

import os
import platform
from importlib.metadata import version

_EXACT = ("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS")
_PREFIX = "FLEETCRAFT_"
_SECRET_WORDS = ("TOKEN", "SECRET", "PASSWORD", "KEY")


def collect_provenance() -> dict[str, str]:
    """Return what this process was given by its worker; on a GPU host the same names hold real device ids."""
    seen = {name: value for name, value in os.environ.items() if name in _EXACT or name.startswith(_PREFIX)}
    # The result goes into files that people share, so anything that smells of a secret stays out.
    seen = {name: value for name, value in seen.items() if not any(word in name for word in _SECRET_WORDS)}
    seen["python"] = platform.python_version()
    seen["numpy"] = version("numpy")
    seen["av"] = version("av")
    return dict(sorted(seen.items()))
