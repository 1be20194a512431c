"""One task as a person describes it, checked and normalized to the form kept in a ledger line.

What decides about starting (gpus, cpus, ...), the priority and `after` select the batch; everything else
stays in the line. Checks happen here, once, so that a worker never meets a malformed task.
"""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fleetcraft.core.errors import TaskInvalid
from fleetcraft.core.names import DEFAULT_PRIORITY, MAX_PRIORITY
from fleetcraft.core.quantities import parse_duration_s
from fleetcraft.core.resources import Request, request_from_task

# The kernel's limit for one argument or variable (MAX_ARG_STRLEN, 32 pages) includes the closing zero byte.
MAX_ARGUMENT_BYTES = 131_071
# The kernel takes a quarter of the stack limit for argv and environment together; 2 MiB is the usual value.
MAX_COMMAND_BYTES = 1_900_000
MAX_NAME_BYTES = 1_024
DEFAULT_RESUME_EXIT = 75

_REQUEST_KEYS = frozenset({"gpus", "cpus", "node", "timed", "vram", "uses", "family", "needs"})
_LINE_KEYS = frozenset(
    {
        "name", "command", "shell", "call", "args", "setup", "setup_args", "python", "cwd", "env", "outputs",
        "validate", "timeout", "retries", "backoff", "tags", "checkpoint_signal", "checkpoint_grace", "resume_exit",
        "notify", "snapshot", "flops", "precision",
    }
)  # fmt: skip
_BATCH_KEYS = frozenset({"priority", "after"})
TASK_KEYS = _REQUEST_KEYS | _LINE_KEYS | _BATCH_KEYS
# Keys whose values go into the ledger as they came, so that a bulk enqueue need not write the line anew.
_PLAIN_KEYS = frozenset({"name", "command"})
_DURATIONS = ("timeout", "backoff", "checkpoint_grace")
_CALL = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A checked task on its way into a ledger."""

    name: str
    line: Mapping[str, Any]
    request: Request
    priority: int
    after: tuple[str, ...]


def is_plain(task: Mapping[str, Any]) -> bool:
    """True when the description has only a valid name and argv: the fast path of a bulk enqueue."""
    if task.keys() != _PLAIN_KEYS:
        return False
    name, command = task["name"], task["command"]
    if type(name) is not str or not 0 < len(name) <= 200 or type(command) is not list or not command:
        return False
    total = 0
    for argument in command:
        if type(argument) is not str or "\0" in argument:
            return False
        total += len(argument)
    return total < 30_000 and "\0" not in name and command[0] != ""


def draft_task(task: object, where: str, defaults: Mapping[str, Any] | None = None) -> Draft:
    """Check one description (a JSON object, or a plain line as text) and normalize it.

    `where` names the place in errors; `defaults` holds the request, priority and after of the whole enqueue.
    Raises TaskInvalid.
    """
    if isinstance(task, str):
        task = {"shell": task}
    if not isinstance(task, dict):
        raise TaskInvalid(f"{where}: a task must be a JSON object or a plain line, not {type(task).__name__}.")
    unknown = task.keys() - TASK_KEYS
    if unknown:
        raise TaskInvalid(f"{where}: unknown key {min(unknown)!r}.{_nearest(min(unknown))}")
    merged = {**(defaults or {}), **task}
    line = {key: merged[key] for key in task if key in _LINE_KEYS and merged[key] is not None}
    _check_payload(line, where)
    _check_rest(line, where)
    request = request_from_task(merged, where)
    if "call" in line and (request.exclusive or "validate" in line):
        key = "validate" if "validate" in line else "node"
        raise TaskInvalid(f"{where}: {key} goes with a command; a call runs in a resident that serves others too.")
    name = line.get("name")
    if name is None:
        name = ""
    elif not isinstance(name, str) or not name or "\0" in name:
        raise TaskInvalid(f"{where}: name {name!r} must be text without a zero byte.")
    elif len(encode_text(name)) > MAX_NAME_BYTES:
        raise TaskInvalid(f"{where}: name {name[:40]!r}... is longer than {MAX_NAME_BYTES} bytes.")
    return Draft(
        name=name, line=line, request=request, priority=check_priority(merged.get("priority"), where),
        after=check_after(merged.get("after"), where),
    )  # fmt: skip


def check_priority(value: object, where: str) -> int:
    """A priority: 0 to 999, higher first."""
    if value is None:
        return DEFAULT_PRIORITY
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MAX_PRIORITY:
        raise TaskInvalid(f"{where}: priority {value!r} must be a whole number from 0 to {MAX_PRIORITY}, higher first.")
    return value


def check_after(value: object, where: str) -> tuple[str, ...]:
    """The names (or `batch:N`) that must have succeeded first."""
    if value is None:
        return ()
    items = [value] if isinstance(value, str) else value
    if not isinstance(items, (list, tuple)) or not all(isinstance(item, str) and item for item in items):
        raise TaskInvalid(f"{where}: after must be a name or a list of names.")
    return tuple(dict.fromkeys(items))


def canonical(value: object) -> bytes:
    """One byte form for equal JSON values; text outside ASCII is escaped, so odd names survive every locale."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def encode_text(text: str) -> bytes:
    """Bytes of any Python text, also with the surrogates that stand for undecodable bytes."""
    return text.encode("utf-8", "surrogatepass")


def native_bytes(text: str) -> bytes:
    """Bytes for the kernel, the same in every locale; what stood for undecodable bytes becomes those bytes again.

    Never raises: one odd task must not end the worker that meets it.
    """
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return encode_text(text)


def _check_payload(line: dict[str, Any], where: str) -> None:
    kinds = [kind for kind in ("command", "shell", "call") if kind in line]
    if len(kinds) != 1:
        found = " and ".join(kinds) or "none"
        raise TaskInvalid(f"{where}: a task needs exactly one of command, shell, call; found {found}.")
    if "command" in line:
        check_argv(line["command"], f"{where}: command")
    elif "shell" in line:
        text = line["shell"]
        if not isinstance(text, str) or not text.strip() or "\0" in text:
            raise TaskInvalid(f"{where}: shell must be a line of text without a zero byte.")
    _check_call(line, where)


def _check_call(line: dict[str, Any], where: str) -> None:
    for key in ("call", "setup"):
        if key in line and (not isinstance(line[key], str) or not _CALL.fullmatch(line[key])):
            raise TaskInvalid(f"{where}: {key} {line[key]!r} must look like package.module:function.")
    for key in ("args", "setup_args"):
        if key in line:
            _check_arguments(line[key], f"{where}: {key}")
    for key in ("args", "setup", "setup_args"):
        if key in line and "call" not in line:
            raise TaskInvalid(f"{where}: {key} goes with call.")


def _check_arguments(value: object, what: str) -> None:
    """Refuse what a ledger cannot hold: a reader of any language must be able to parse it."""
    if not isinstance(value, dict):
        raise TaskInvalid(f"{what} must be a JSON object of keyword arguments.")
    try:
        canonical(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise TaskInvalid(f"{what} has no strict JSON form ({error}).", hint="Write NaN as a text.") from error


def check_argv(argv: object, what: str) -> None:
    """Refuse what the kernel would refuse at exec, while the person is still there. Raises TaskInvalid."""
    if not isinstance(argv, list) or not argv or not all(isinstance(item, str) for item in argv):
        raise TaskInvalid(f"{what} must be a list of texts such as ['python', 'train.py'].")
    if not argv[0]:
        raise TaskInvalid(f"{what} has an empty program name.")
    total = 0
    for position, argument in enumerate(argv):
        size = len(encode_text(argument))
        if "\0" in argument:
            raise TaskInvalid(f"{what}: argument {position} holds a zero byte.")
        if size > MAX_ARGUMENT_BYTES:
            raise TaskInvalid(
                f"{what}: argument {position} has {size} bytes; the kernel takes {MAX_ARGUMENT_BYTES}.",
                hint="Put it into a file, or enqueue it as a shell line, which has no such limit.",
            )
        total += size + 9
    if total > MAX_COMMAND_BYTES:
        raise TaskInvalid(f"{what} has {total} bytes in all; the kernel takes {MAX_COMMAND_BYTES}.")


def check_env(env: object, where: str) -> None:
    """Names as shells take them, values as texts that fit; an empty value is not an unset one. Raises TaskInvalid."""
    if not isinstance(env, dict):
        raise TaskInvalid(f"{where}: env must be an object of names and texts.")
    for name, value in env.items():
        if not _VARIABLE.fullmatch(name):
            raise TaskInvalid(f"{where}: {name!r} is not a valid variable name.")
        if not isinstance(value, str) or "\0" in value:
            raise TaskInvalid(f"{where}: variable {name} must be a text without a zero byte.")
        if len(encode_text(name)) + len(encode_text(value)) + 1 > MAX_ARGUMENT_BYTES:
            raise TaskInvalid(f"{where}: variable {name} is longer than the {MAX_ARGUMENT_BYTES} bytes of the kernel.")


def _check_rest(line: dict[str, Any], where: str) -> None:
    _check_numbers(line, where)
    _check_lists(line, where)
    if "env" in line:
        check_env(line["env"], where)
    for key in ("cwd", "python"):
        value = line.get(key, "/")
        if not isinstance(value, str) or not value.startswith("/") or "\0" in value:
            raise TaskInvalid(f"{where}: {key} {value!r} must be an absolute path.")
    if "snapshot" in line and not isinstance(line["snapshot"], dict):
        raise TaskInvalid(f"{where}: snapshot must be an object of paths and digests.")
    if not isinstance(line.get("flops", 1), (int, float, dict)):
        raise TaskInvalid(f"{where}: flops must be a number or an object with a formula.")
    if "checkpoint_signal" in line:
        line["checkpoint_signal"] = signal_name(line["checkpoint_signal"], where)


def _check_numbers(line: dict[str, Any], where: str) -> None:
    for key in _DURATIONS:
        if key in line:
            line[key] = parse_duration_s(line[key], f"{where}: {key}")
    for key, top in (("retries", 1_000_000), ("resume_exit", 255)):
        value = line.get(key, 0)
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= top:
            raise TaskInvalid(f"{where}: {key} {value!r} must be a whole number from 0 to {top}.")


def _check_lists(line: dict[str, Any], where: str) -> None:
    for key in ("outputs", "tags"):
        value = line.get(key, [])
        if isinstance(value, str):
            line[key] = value = [value]
        if not isinstance(value, list) or any(not isinstance(item, str) or not item or "\0" in item for item in value):
            raise TaskInvalid(f"{where}: {key} must be a list of texts.")
    for key in ("validate", "notify"):
        if isinstance(line.get(key), str):
            line[key] = ["/bin/sh", "-c", line[key]]
        if key in line:
            check_argv(line[key], f"{where}: {key}")


def signal_name(value: object, where: str) -> str:
    """A signal written as `USR1`, `SIGUSR1` or 10, as `SIGUSR1`. Raises TaskInvalid."""
    text = str(value).upper()
    if text.isdigit():
        try:
            text = signal.Signals(int(text)).name
        except ValueError:
            text = ""
    name = text if text.startswith("SIG") else f"SIG{text}"
    if name not in signal.Signals.__members__ or name in ("SIGKILL", "SIGSTOP"):
        raise TaskInvalid(f"{where}: {value!r} is not a signal that a task can catch, such as USR1.")
    return name


def _nearest(key: str) -> str:
    import difflib

    close = difflib.get_close_matches(key, sorted(TASK_KEYS), n=1)
    return f" Did you mean {close[0]!r}?" if close else f" Known keys: {', '.join(sorted(TASK_KEYS))}."
