"""From descriptions to ledger lines: each task is checked, named and put into its group.

A description that holds only a name and a command goes into the ledger byte for byte. That is the fast path of
a bulk enqueue, and everything that it skips was shown not to matter for such a line.
"""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from json.encoder import JSONEncoder, encode_basestring_ascii
from typing import Any

from fleetcraft.actions.declared import check_declared
from fleetcraft.actions.edges import Edges
from fleetcraft.actions.groups import Group, Groups
from fleetcraft.actions.naming import Namer
from fleetcraft.actions.shared import KINDS, EnqueueOptions, share
from fleetcraft.actions.snapshots import check_script, freeze_all
from fleetcraft.core.errors import TaskInvalid
from fleetcraft.core.resources import Request
from fleetcraft.core.task import Draft, canonical, draft_task, is_plain
from fleetcraft.spool.spool import Spool

_CALL_KEYS = frozenset({"name", "call", "args"})
# What differs from task to task in most lists; all other keys are looked at once for each way they are written.
_OWN_KEYS = ("name", "command", "args", "outputs")
_MAX_KNOWN = 4096
# Numbers that JSON does not have; the careful way refuses them.
_NO_NUMBERS = (b"NaN", b"Infinity")
# Texts that the kernel gets as bytes.
_EXEC_KEYS = ("command", "shell", "validate", "notify", "env", "cwd", "python", "outputs")
# Stands for a text that differs from line to line; no text of a person is likely to hold it, and it needs no escape.
_HOLE = "fleetcraft-hole-5b1f6a0c"

# Writes like `core.task.canonical`, made once because it writes every line.
_encode = JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False).encode


@dataclass(frozen=True, slots=True, kw_only=True)
class Mold:
    """What checked tasks of one kind have in common: most lines of a list differ only in their own parts."""

    line: Mapping[str, Any]
    request: Request
    after: tuple[str, ...]
    group: Group


class Assembly:
    """The tasks of one enqueue, collected."""

    def __init__(self, spool: Spool, options: EnqueueOptions, place: Callable[[int], str], keep_names: int) -> None:
        self._spool = spool
        self._place = place
        self.shared = share(options)
        self.groups = Groups(spool, self.shared, place, keep_names)
        self.edges = Edges(self.shared.after, place)
        self._snapshots = freeze_all(spool, options.snapshot, self.shared.cwd)
        self._namer = Namer(self.shared.header)
        self._programs: set[str] = set()
        self._molds: dict[str, Mold] = {}
        self._calls: set[str] = set()
        self._decomposed: list[tuple[int, str]] = []
        self._decomposed_count = 0
        self.plain = self.groups.group(self.shared.request, self.shared.priority, bool(self.shared.after))
        self._after_tail = _after_tail(self.shared.after)
        # Lines may pass untouched only where the options add nothing to them.
        self._fast = self._snapshots is None and not self.shared.payload
        self._shell = self._shell_parts()

    def take_if_plain(self, task: Any, raw: bytes, number: int) -> bool:
        """Put a line into the ledger as it is, if it is a JSON object that needs no work. Raises OSError.

        `raw` is the whole line, ends with the closing brace, and holds only ASCII.
        """
        if not self._fast or type(task) is not dict:
            return False
        if is_plain(task):
            if task["command"][0] not in self._programs:
                self._check_program(task, number)
        elif not self._is_plain_call(task, raw):
            return self._take_molded(task, raw, number)
        if self._after_tail:
            raw = raw[:-1] + self._after_tail
        self.plain.add(task["name"], raw, number)
        return True

    def _is_plain_call(self, task: Mapping[str, Any], raw: bytes) -> bool:
        name = task.get("name")
        return (
            task.keys() == _CALL_KEYS
            and task["call"] in self._calls
            and type(task["args"]) is dict
            and type(name) is str
            and 0 < len(name) <= 200
            and "\0" not in name
            and not any(word in raw for word in _NO_NUMBERS)
        )

    def _take_molded(self, task: Mapping[str, Any], raw: bytes, number: int) -> bool:
        """Take a task that differs only in its own parts from one that was checked before. Raises OSError."""
        mold = self._molds.get(_mold_key(task))
        if mold is None or not _is_molded(task, raw):
            return False
        if "command" in task and task["command"][0] not in self._programs:
            self._check_program(task, number)
        line = {**mold.line, **{key: task[key] for key in _OWN_KEYS if key in task}}
        name = task.get("name") or self._namer.name(self._namer.content(line, mold.request))
        line["name"] = name
        self.edges.note(name, mold.after, number)
        mold.group.add(name, _encode(line).encode(), number)
        return True

    def _keep_mold(self, task: object, line: Mapping[str, Any], draft: Draft, group: Group) -> None:
        if self._fast and isinstance(task, dict) and len(self._molds) < _MAX_KNOWN:
            rest = {key: value for key, value in line.items() if key not in _OWN_KEYS}
            self._molds[_mold_key(task)] = Mold(line=rest, request=draft.request, after=draft.after, group=group)

    def add(self, task: object, number: int) -> None:
        """Check one description and take it. Raises TaskInvalid, OSError."""
        where = self._place(number)
        if self.shared.payload and isinstance(task, dict):
            given = self.shared.payload
            if task.keys() & KINDS:
                given = {key: value for key, value in given.items() if key not in KINDS}
            task = {**given, **task}
        draft = draft_task(task, where, self.shared.deciding)
        check_declared(draft.line, where)
        line = self._with_shared(draft.line)
        _check_texts(line, where)
        self._check_program(line, number)
        if self._snapshots is not None:
            self._snapshots.apply(line, where)
        if draft.after:
            line["after"] = list(draft.after)
        try:
            name = draft.name or self._namer.name(self._namer.content(line, draft.request))
            raw = canonical({**line, "name": name})
        except (TypeError, ValueError, RecursionError) as error:
            raise TaskInvalid(
                f"{where}: the task has no JSON form ({error}).", hint="Write NaN and infinity as texts."
            ) from error
        self._note_spelling(name, number)
        self.edges.note(name, draft.after, number)
        group = self.groups.group(draft.request, draft.priority, bool(draft.after))
        group.add(name, raw, number)
        self._keep_mold(task, line, draft, group)
        # Checked together with these resources: a call cannot hold a node.
        if "call" in line and draft.request == self.shared.request and len(self._calls) < _MAX_KNOWN:
            self._calls.add(line["call"])

    def _with_shared(self, line: Mapping[str, Any]) -> dict[str, Any]:
        """A line lies over the shared values key by key; variables and tags of both count."""
        header = self.shared.header
        full = dict(line)
        if "env" in line and "env" in header:
            full["env"] = {**header["env"], **line["env"]}
        if "tags" in line and "tags" in header:
            full["tags"] = list(dict.fromkeys([*header["tags"], *line["tags"]]))
        return full

    def add_shell(self, text: str, number: int) -> None:
        """Take one plain line. Raises TaskInvalid, OSError."""
        if self._shell is None or _HOLE in text:
            self.add({"shell": text}, number)
            return
        before, after, line_tail = self._shell
        written = encode_basestring_ascii(text)
        name = self._namer.name(f"{before}{written}{after}".encode())
        self.plain.add(name, f'{line_tail[0]}"name":"{name}","shell":{written}{line_tail[1]}'.encode(), number)

    def _shell_parts(self) -> tuple[str, str, tuple[str, str]] | None:
        """What stands around the text in the digested content and in the ledger line of a plain line."""
        if not self._fast:
            return None
        line: dict[str, Any] = {"shell": _HOLE}
        if self.shared.after:
            line["after"] = list(self.shared.after)
        content = self._namer.content(line, self.shared.request).decode()
        before, hole, after = content.partition(f'"{_HOLE}"')
        whole = canonical({**line, "name": _HOLE}).decode()
        head, name_hole, tail = whole.partition(f'"name":"{_HOLE}","shell":"{_HOLE}"')
        if not hole or not name_hole or _HOLE in after:
            return None
        return before, after, (head, tail)

    def _check_program(self, line: Mapping[str, Any], number: int) -> None:
        command = line.get("command")
        if not command or command[0] in self._programs:
            return
        # A name without a slash is looked up where the task runs; only a path can be looked at here.
        if "/" in command[0]:
            check_script(
                os.path.join(str(line.get("cwd", self.shared.cwd)), command[0]), self._place(number), command[0]
            )
        if len(self._programs) < _MAX_KNOWN and ("cwd" not in line or command[0].startswith("/")):
            self._programs.add(command[0])

    def _note_spelling(self, name: str, number: int) -> None:
        if not name.isascii() and not unicodedata.is_normalized("NFC", name):
            self._decomposed_count += 1
            if len(self._decomposed) < 3:
                self._decomposed.append((number, name))

    def finish(self) -> None:
        """Check what can be checked only with all tasks there. Raises TaskInvalid."""
        if self._snapshots is not None:
            self._snapshots.check_used()
        self._spool.refresh()
        self.edges.check(self._spool, self.groups.writers())

    def notes(self) -> list[str]:
        """What a person should know about these tasks."""
        found = []
        if self._decomposed:
            shown = ", ".join(f"{name!r} at {self._place(number)}" for number, name in self._decomposed)
            found.append(
                f"{self._decomposed_count} names are spelled with combining marks and differ from the composed "
                f"spelling that looks the same; they were kept as they are ({shown})"
            )
        batches = len(self.groups.writers())
        if batches > 50:
            found.append(
                f"the tasks differ so much in resources and priority that they make {batches} batches; "
                "fewer different values are faster"
            )
        return found


def _mold_key(task: Mapping[str, Any]) -> str:
    """Equal for tasks whose shared parts are written alike; `repr` tells 1, 1.0 and true apart."""
    return repr([(key, value) for key, value in task.items() if key not in _OWN_KEYS])


def _is_molded(task: Mapping[str, Any], raw: bytes) -> bool:
    """Whether the own parts of a task are as plain as can be; the careful way looks at all others."""
    own = {"name": task.get("name", "unnamed"), "command": task.get("command", ["call"])}
    if not is_plain(own) or ("command" in task) == ("call" in task):
        return False
    outputs = task.get("outputs", [])
    if type(outputs) is not list or any(type(path) is not str or not path or "\0" in path for path in outputs):
        return False
    if "args" in task:
        return "call" in task and type(task["args"]) is dict and not any(word in raw for word in _NO_NUMBERS)
    return True


def _after_tail(after: tuple[str, ...]) -> bytes:
    return b',"after":%b}' % canonical(list(after)) if after else b""


def _check_texts(line: Mapping[str, Any], where: str) -> None:
    """Refuse text that no byte string stands for: half of a surrogate pair can be written in JSON, not executed."""
    for key in _EXEC_KEYS:
        value = line.get(key)
        if value is None:
            continue
        texts = value if isinstance(value, list) else [*value, *value.values()] if isinstance(value, dict) else [value]
        for text in texts:
            if not text.isascii():
                try:
                    text.encode("utf-8", "surrogateescape")
                except UnicodeEncodeError:
                    raise TaskInvalid(
                        f"{where}: {key} holds half of a surrogate pair ({text[:40]!r}), which is no text.",
                        hint="A character beyond U+FFFF takes both halves in JSON, or the character itself.",
                    ) from None
