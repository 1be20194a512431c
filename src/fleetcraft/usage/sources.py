"""Which files hold telemetry: segments with their roll-ups, sealed segments, and plain logs; nothing is opened here.

A telemetry root has a folder for each host. The name of a segment says when it began, so that an old one is passed
over without a look at it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from fleetcraft.core.errors import UsageError

SEGMENT, SEALED, PLAIN = "segment", "sealed", "plain"
_ROLLUP = ".rollup.csv"
_SKEW_MS = 600_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One file. `start_ms` is when a segment began, by its name; a plain log does not say."""

    path: str
    kind: str
    host: str
    start_ms: int | None = None
    job: str = ""
    rollup: str = ""
    root: str = ""


def find(paths: Sequence[str]) -> list[Source]:
    """Every telemetry file under these files and folders, by host and time. Raises UsageError for a path without any.

    An empty file is one too: its host wrote nothing, and that is worth a line.
    """
    found: dict[str, Source] = {}
    for path in paths:
        some = list(_under(path))
        if not some:
            raise UsageError(
                f"There is no telemetry in {path}.",
                hint="Name a CSV log, a folder of logs, or a telemetry folder (<spool>/telemetry).",
            )
        # Two names of one place count once; a look at every file would cost more than reading them.
        known = os.path.realpath(path)
        for one in some:
            found[one.path if known == path else os.path.join(known, os.path.relpath(one.path, path))] = one
    return sorted(found.values(), key=lambda source: (source.host, source.start_ms or 0, source.path))


def in_root(root: str, hosts: Iterable[str] | None = None) -> Iterator[Source]:
    """The segments of a telemetry root, of all hosts or of these."""
    try:
        with os.scandir(root) as entries:
            folders = sorted(entry.name for entry in entries if entry.is_dir())
    except FileNotFoundError:
        return
    wanted = None if hosts is None else set(hosts)
    for host in folders:
        if wanted is None or host in wanted:
            yield from _of_host(os.path.join(root, host), host, root)


def _under(path: str) -> Iterator[Source]:
    if not os.path.isdir(path):
        if not os.path.exists(path):
            raise UsageError(f"There is no file or folder {path}.", hint="Look at the path.")
        yield _one(path)
        return
    with os.scandir(path) as entries:
        listed = sorted((entry.name, entry.is_dir()) for entry in entries)
    names = [name for name, is_folder in listed if not is_folder]
    if any(_stem(name) is not None for name in names):
        yield from _of_host(path, os.path.basename(os.path.normpath(path)), os.path.dirname(os.path.normpath(path)))
        return
    for name in names:
        if name.endswith(".csv"):
            yield _plain(os.path.join(path, name))
    for name, is_folder in listed:
        if is_folder:
            yield from _of_host(os.path.join(path, name), name, path)


def _one(path: str) -> Source:
    folder, name = os.path.split(os.path.abspath(path))
    if _stem(name) is None:
        return _plain(path)
    host = os.path.basename(folder)
    return next(one for one in _of_host(folder, host, os.path.dirname(folder)) if os.path.basename(one.path) == name)


def _plain(path: str) -> Source:
    return Source(path=path, kind=PLAIN, host=os.path.splitext(os.path.basename(path))[0])


def _of_host(folder: str, host: str, root: str) -> list[Source]:
    """The segments of one host, the sealed form where there is one."""
    try:
        names = set(os.listdir(folder))
    except PermissionError:
        # Whoever reads it says so, and goes on with the other hosts.
        return [Source(path=folder, kind=SEGMENT, host=host, root=root)]
    sources = []
    for name in sorted(names):
        stem = _stem(name)
        if stem is None or (name.endswith(".csv") and f"{stem}.parquet" in names and f"{stem}.sealed.json" in names):
            continue
        if name.endswith(".parquet") and f"{stem}.sealed.json" not in names:
            continue  # the sealing did not come to its end; the segment is still there
        start, _boot, *job = stem.split("-", 2)
        sources.append(
            Source(
                path=os.path.join(folder, name),
                kind=SEGMENT if name.endswith(".csv") else SEALED,
                host=host,
                start_ms=int(start),
                job="" if not job or job[0] == "none" else job[0],
                rollup=os.path.join(folder, stem + _ROLLUP) if stem + _ROLLUP in names else "",
                root=root,
            )
        )
    return sources


def _stem(name: str) -> str | None:
    """The name of a segment without its ending; None for any other file."""
    if name.endswith(_ROLLUP):
        return None
    stem, ending = os.path.splitext(name)
    parts = stem.split("-", 2)
    if ending not in (".csv", ".parquet") or len(parts) < 3 or not (parts[0].isascii() and parts[0].isdigit()):
        return None
    return stem if len(parts[0]) >= 12 else None


def within(sources: Sequence[Source], since_ms: int | None, until_ms: int | None) -> list[Source]:
    """Those of one host that may hold something in [since, until), by their names, and where needed by their age.

    A segment ends where the next one of its job begins. The newest one is always among them: it says how long the
    host has been silent.
    """
    if since_ms is None and until_ms is None:
        return list(sources)
    chosen = [source for source in sources if source.start_ms is None or until_ms is None or source.start_ms < until_ms]
    if since_ms is None:
        return chosen
    newest = max((source.start_ms for source in chosen if source.start_ms is not None), default=None)
    begins = _begins(chosen)
    return [
        source
        for source in chosen
        if source.start_ms is None
        or source.start_ms == newest
        or not (_is_followed(source, begins, since_ms) or _is_old(source.path, since_ms))
    ]


def _begins(sources: Sequence[Source]) -> dict[tuple[str, str], list[int]]:
    found: dict[tuple[str, str], list[int]] = {}
    for source in sources:
        if source.start_ms is not None:
            found.setdefault((source.root, source.job), []).append(source.start_ms)
    return found


def _is_followed(source: Source, begins: dict[tuple[str, str], list[int]], since_ms: int) -> bool:
    """True where a later segment of the same job began before the span. Without a job there may be two samplers."""
    if not source.job or source.start_ms is None:
        return False
    return any(source.start_ms < start <= since_ms - _SKEW_MS for start in begins[source.root, source.job])


def _is_old(path: str, since_ms: int) -> bool:
    """True where nobody wrote to it since then; clocks of hosts may differ by a little."""
    try:
        return os.stat(path).st_mtime_ns // 1_000_000 < since_ms - _SKEW_MS
    except OSError:
        return False
