"""The mock of the driver's library: built once a run, and driven inside this process through the real binding."""

from __future__ import annotations

import atexit
import ctypes
import functools
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from fleetcraft.telemetry.nvml import NvmlSensor

_SOURCE = Path(__file__).parents[1] / "mock_nvml" / "mock_nvml.c"
SONAME = "libnvidia-ml.so.1"


@functools.cache
def build(*defines: str) -> Path:
    """A folder with the library, for LD_LIBRARY_PATH."""
    folder = Path(tempfile.mkdtemp(prefix="fleetcraft-nvml-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    command = ["gcc", "-shared", "-fPIC", "-O1", "-Wall", "-Wextra", *(f"-D{name}" for name in defines)]
    subprocess.run(
        [*command, f"-Wl,-soname,{SONAME}", "-o", str(folder / SONAME), str(_SOURCE), "-lm"],
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )
    return folder


class MockNvml:
    """The loaded library, and what it is told."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path, *defines: str) -> None:
        import pynvml

        self._monkeypatch = monkeypatch
        self.release_file = folder / "released"
        library = ctypes.CDLL(str(build(*defines) / SONAME))
        library.mock_reset()
        monkeypatch.setattr(pynvml, "nvmlLib", library)
        monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
        for name in [name for name in os.environ if name.startswith("MOCK_")]:
            monkeypatch.delenv(name)
        monkeypatch.setenv("FLEETCRAFT_NVML", "1")
        monkeypatch.setenv("MOCK_RELEASE", str(self.release_file))

    def tell(self, **words: object) -> None:
        """Set what the library answers from now on: tell(gpus=2, fail="1:GetPowerUsage=3")."""
        for name, value in words.items():
            self._monkeypatch.setenv(f"MOCK_{name.upper()}", str(value))

    def release(self) -> None:
        """Let the calls return that block."""
        self.tell(block="")
        self.release_file.touch()

    def sensor(self, deadline_s: float = 5.0, **options) -> NvmlSensor:
        """A new sensor over it."""
        return NvmlSensor(deadline_s, **options)


def uuid(index: int, instance: int | None = None) -> str:
    """The UUID that the mock gives."""
    if instance is None:
        return f"GPU-00000000-0000-4000-8000-{index:012d}"
    return f"MIG-00000000-0000-4000-8000-{index:06d}{instance:06d}"
