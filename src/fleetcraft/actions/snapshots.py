"""Scripts frozen by their digest, so that an edit after the enqueue cannot change queued work.

A frozen file stands at `snapshots/<sha256>/<its name>`. A task that runs one records path and digest, and the
worker compares them before each start.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fleetcraft.core.errors import SpoolDamaged, TaskInvalid, UsageError
from fleetcraft.spool.spool import Spool
from fleetcraft.store.files import Files, ensure_folder, explain, write_all

_CHUNK_BYTES = 1 << 20
_BOM = b"\xef\xbb\xbf"
_MAX_SHEBANG_BYTES = 4096
# A word of a shell line: pieces in quotes, escaped letters, and everything that does not end a word.
_WORD = re.compile(r"""(?:'[^']*'|"(?:\\.|[^"\\])*"|\\.|[^\s;|&()<>'"\\])+""", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Frozen:
    """One file as it was."""

    source: str  # absolute
    path: str  # of the frozen copy
    sha256: str
    size_bytes: int


def freeze(spool: Spool, path: str) -> Frozen:
    """Copy a file into the spool under its digest; the same content is copied once.

    Raises UsageError when it is not a readable file, TaskInvalid when the kernel could not run it, StorageFull
    or OutOfReach when the copy could not be written.
    """
    source = os.path.abspath(path)
    check_script(source, shown=path)
    aside = os.path.join(spool.layout.snapshots, f".{os.urandom(8).hex()}.tmp")
    try:
        digest, size = _copy(spool.files, source, aside, path)
        target = _place(spool, aside, digest, os.path.basename(source))
    except OSError as error:
        _forget(spool.files, aside)
        raise explain(error, f"Cannot freeze {path} into {spool.layout.snapshots}") from error
    if _digest(target) != digest:
        raise SpoolDamaged(
            f"The frozen copy {target} was changed after it was made.",
            hint=f"Remove the folder {os.path.dirname(target)} and enqueue again; tasks that name it fail until then.",
        )
    return Frozen(source=source, path=target, sha256=digest, size_bytes=size)


def _copy(files: Files, source: str, aside: str, shown: str) -> tuple[str, int]:
    """Copy and digest what is read, so that the digest is of the copy even while somebody edits the source."""
    try:
        reader = open(source, "rb")  # noqa: SIM115  closed below; its errors are the person's, later ones the storage's
    except OSError as error:
        raise UsageError(f"Cannot read {shown}: {error.strerror}.", hint="--snapshot takes a file.") from error
    digest, size = hashlib.sha256(), 0
    with reader:
        mode = os.fstat(reader.fileno()).st_mode
        if not stat.S_ISREG(mode):
            raise UsageError(f"{shown} is not a regular file.", hint="--snapshot takes single files; name each script.")
        descriptor = files.open_new(aside)
        try:
            while chunk := reader.read(_CHUNK_BYTES):
                digest.update(chunk)
                size += len(chunk)
                write_all(files, descriptor, chunk)
            # Read-only: an edit of the copy should need intent. It can still be run when the source can.
            os.fchmod(descriptor, 0o400 | (mode & 0o100))
            files.sync(descriptor)
        finally:
            os.close(descriptor)
    return digest.hexdigest(), size


def _place(spool: Spool, aside: str, digest: str, name: str) -> str:
    files, folder = spool.files, os.path.join(spool.layout.snapshots, digest)
    target = os.path.join(folder, name)
    if files.exists(target):
        _forget(files, aside)
        return target
    ensure_folder(files, folder)
    files.sync_folder(spool.layout.snapshots)
    files.rename(aside, target)
    files.sync_folder(folder)
    return target


def _forget(files: Files, path: str) -> None:
    try:
        files.unlink(path)
    except OSError:
        return  # never made, or stray under a name that no task has


def _digest(path: str) -> str:
    with open(path, "rb") as source:
        return hashlib.file_digest(source, "sha256").hexdigest()


def check_script(path: str, where: str = "", shown: str = "") -> None:
    """Refuse a script whose first line the kernel would misread, while the person is still there.

    A file that cannot be read here is left alone: it may exist only where the task runs. Raises TaskInvalid.
    """
    try:
        with open(path, "rb") as source:
            first = source.readline(_MAX_SHEBANG_BYTES)
    except (OSError, ValueError):
        return
    name = shown or path
    prefix = f"{where}: " if where else ""
    if first.startswith(_BOM + b"#!"):
        raise TaskInvalid(
            f"{prefix}{name}: line 1 begins with a byte order mark before #!, so the kernel finds no interpreter.",
            hint=f"Remove it: `sed -i '1s/^\\xEF\\xBB\\xBF//' {shlex.quote(name)}`.",
        )
    if first.startswith(b"#!") and b"\r" in first:
        raise TaskInvalid(
            f"{prefix}{name}: line 1 has a CR, so the kernel would look for an interpreter whose name ends in CR.",
            hint=f"Remove the CRs: `sed -i 's/\\r$//' {shlex.quote(name)}`.",
        )


@dataclass(slots=True)
class Snapshots:
    """The frozen files of one enqueue, and which of them some task really runs."""

    cwd: str
    frozen: Mapping[str, Frozen]  # by the path as the person gave it
    used: set[str] = field(default_factory=set)

    def apply(self, line: dict[str, Any], where: str) -> None:
        """Point a task at the frozen copies and record their digests. Raises TaskInvalid."""
        forms = self._forms(line.get("cwd", self.cwd))
        taken: dict[str, str] = {}
        for key in ("command", "validate"):
            if key in line:
                line[key] = [self._swap(word, forms, taken) for word in line[key]]
        if "shell" in line:
            line["shell"] = self._swap_words(line["shell"], forms, taken, where)
        if taken:
            line["snapshot"] = {**line.get("snapshot", {}), **taken}

    def _forms(self, cwd: str) -> dict[str, Frozen]:
        """Every word that would name one of the files when a task runs in `cwd`."""
        forms: dict[str, Frozen] = {}
        for given, frozen in self.frozen.items():
            forms[frozen.source] = frozen
            beside = os.path.relpath(frozen.source, cwd)
            forms[beside] = forms[os.path.join(".", beside)] = frozen
            if os.path.normpath(os.path.join(cwd, given)) == frozen.source:
                forms[given] = frozen
        return forms

    def _swap(self, word: str, forms: Mapping[str, Frozen], taken: dict[str, str]) -> str:
        frozen = forms.get(word)
        if frozen is None:
            return word
        self.used.add(frozen.source)
        taken[frozen.path] = frozen.sha256
        return frozen.path

    def _swap_words(self, text: str, forms: Mapping[str, Frozen], taken: dict[str, str], where: str) -> str:
        def swap(match: re.Match[str]) -> str:
            word = _plain_word(match[0])
            if word not in forms:
                return match[0]
            return shlex.quote(self._swap(word, forms, taken))

        swapped = _WORD.sub(swap, text)
        rest = _WORD.sub(lambda match: "" if _plain_word(match[0]) in forms else match[0], text)
        for form, frozen in forms.items():
            if re.search(rf"(?<![\w/.-]){re.escape(form)}(?![\w/.-])", rest):
                raise TaskInvalid(
                    f"{where}: the shell line names {form!r} where it cannot be frozen.",
                    hint=f"Let it be a word of its own, without quotes, or give a command (JSONL): {frozen.source}.",
                )
        return swapped

    def check_used(self) -> None:
        """Raise TaskInvalid for a file that no task names: freezing it would protect nothing."""
        for given, frozen in self.frozen.items():
            if frozen.source not in self.used:
                raise TaskInvalid(
                    f"--snapshot {given}: no task's command has it as a word, so it would freeze nothing.",
                    hint="Name the scripts that the commands run; a module that a script imports is not one of them.",
                )


def _plain_word(raw: str) -> str:
    """The text of a shell word, or nothing when the shell would change it."""
    if "$" in raw or "`" in raw:
        return ""
    try:
        parts: Sequence[str] = shlex.split(raw)
    except ValueError:
        return ""
    return parts[0] if len(parts) == 1 else ""


def freeze_all(spool: Spool, paths: Sequence[str], cwd: str) -> Snapshots | None:
    """Freeze the files of one enqueue whose tasks run in `cwd`; None when there are none."""
    if not paths:
        return None
    return Snapshots(cwd, {path: freeze(spool, path) for path in paths})
