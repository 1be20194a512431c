"""The node side as one file: a zip archive that any Python 3.11 runs, equal byte for byte for equal sources.

Only rooms that need nothing but the standard library go in, so a machine without an environment of ours can work.
"""

from __future__ import annotations

import hashlib
import io
import os
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files as package_files
from importlib.resources.abc import Traversable

from fleetcraft.core.errors import UsageError
from fleetcraft.store.files import Files, explain, publish_file

# What a worker, a look at a spool and a request need. The floors above them bring libraries.
ROOMS = (
    "core", "store", "transports", "config", "spool", "schedulers", "telemetry", "workers", "fleet",
    "readmodel", "actions", "cli",
)  # fmt: skip
_SHEBANG = b"#!/usr/bin/env python3\n"
_MAIN = """\
import sys

if sys.version_info < (3, 11):
    sys.exit("fleetcraft: Python 3.11 or newer is needed; this is %d.%d." % sys.version_info[:2])

from fleetcraft.cli.main import main

sys.exit(main())
"""
# The earliest time that a zip archive can say.
_TIME = (1980, 1, 1, 0, 0, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """What was written."""

    path: str
    size_bytes: int
    sha256: str
    modules: int


def build_bundle() -> tuple[bytes, int]:
    """The archive, and how many modules are in it."""
    sources = dict(_sources())
    target = io.BytesIO()
    target.write(_SHEBANG)
    with zipfile.ZipFile(target, "w", zipfile.ZIP_STORED) as archive:
        for name, content in sorted({**sources, "__main__.py": _MAIN.encode()}.items()):
            entry = zipfile.ZipInfo(name, _TIME)
            entry.create_system = 3
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, content)
    return target.getvalue(), len(sources)


def write_bundle(path: str, files: Files | None = None) -> Bundle:
    """Write the archive; it appears whole or not at all. Raises UsageError, StorageFull, OutOfReach."""
    path = os.path.abspath(path)
    if os.path.isdir(path):
        raise UsageError(f"{path} is a directory.", hint="Name a file, such as fleetcraft.pyz.")
    data, modules = build_bundle()
    try:
        publish_file(files or Files(), path, data)
        os.chmod(path, 0o755)  # noqa: S103  a program that everybody may run and only its owner may change
    except FileNotFoundError as error:
        raise UsageError(
            f"There is no directory {os.path.dirname(path)}.", hint="Make it, or name another place."
        ) from error
    except OSError as error:
        raise explain(error, f"Cannot write {path}") from error
    return Bundle(path=path, size_bytes=len(data), sha256=hashlib.sha256(data).hexdigest(), modules=modules)


def _sources() -> Iterator[tuple[str, bytes]]:
    """(name in the archive, content) of every module; works from a directory and from a bundle alike."""
    package = package_files("fleetcraft")
    yield "fleetcraft/__init__.py", (package / "__init__.py").read_bytes()
    for room in ROOMS:
        yield from _walk(package / room, f"fleetcraft/{room}")


def _walk(folder: Traversable, name: str) -> Iterator[tuple[str, bytes]]:
    for entry in folder.iterdir():
        if entry.is_dir():
            if entry.name != "__pycache__":
                yield from _walk(entry, f"{name}/{entry.name}")
        elif entry.name.endswith(".py"):
            yield f"{name}/{entry.name}", entry.read_bytes()
