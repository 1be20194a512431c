"""What every test relies on: a clean environment, honest skips, and Hypothesis without a clock."""

from __future__ import annotations

import functools
import os
import shutil

import pytest
from hypothesis import HealthCheck, settings

from tests.cluster import machine

# Deadlines measure the machine, not the code; a slow shared core must not turn a property red.
settings.register_profile("default", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
# The same examples in every run, so that a red run can be looked at again.
settings.register_profile("ci", settings.get_profile("default"), derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "default")

# What a person or a scheduler may have set around the test run must not reach the code under test.
_FOREIGN_PREFIXES = ("FLEETCRAFT_", "SLURM_", "CUDA_VISIBLE_DEVICES")

# The Debian package that brings a command, where the names differ.
_PACKAGES = {"gcc": "gcc libc6-dev"}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--real-timers",
        action="store_true",
        help="clusters of the tests wait as long as a real site does (requeue delay, silent nodes, purged jobs)",
    )


def pytest_configure() -> None:
    for name in [name for name in os.environ if name.startswith(_FOREIGN_PREFIXES)]:
        del os.environ[name]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        for reason in _what_is_missing(item):
            item.add_marker(pytest.mark.skip(reason=reason))


@functools.cache
def _why_no_cluster() -> str | None:
    return machine.why_not()


def _what_is_missing(item: pytest.Item) -> list[str]:
    missing = [
        f"{name} is not on the PATH (apt-get install {_PACKAGES.get(name, name)})"
        for mark in item.iter_markers("needs_command")
        for name in mark.args
        if shutil.which(name) is None
    ]
    if item.get_closest_marker("needs_root") and os.geteuid() != 0:
        missing.append("needs root")
    if item.get_closest_marker("needs_slurm") and (reason := _why_no_cluster()) is not None:
        missing.append(reason)
    if item.get_closest_marker("needs_gpu") and not os.path.exists("/dev/nvidiactl"):
        missing.append("there is no NVIDIA GPU here (/dev/nvidiactl)")
    return missing
