"""TOML text of a profile to its tables, with every mistake told at its line and with what could have been meant."""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from fleetcraft.config.lines import Path, key_lines, line_of, spelled
from fleetcraft.config.model import FORMAT, ProfileFile
from fleetcraft.config.problems import Problem, Weight

_RESERVED = {
    "host": "Clusters that are reached over SSH are not supported yet; run this on the cluster's login node.",
    "extends": "A profile stands alone; copy the one that you start from: `fleetcraft config show NAME --toml`.",
}
_ALLOWED = {
    "bool_type": "true or false",
    "int_type": "a whole number",
    "dict_type": "a table",
    "model_type": "a table",
    "model_attributes_type": "a table",
}
_LIMITS = {
    "greater_than_equal": ("ge", "at least {}"),
    "greater_than": ("gt", "more than {}"),
    "less_than_equal": ("le", "at most {}"),
}


def read(text: str, file: str) -> tuple[ProfileFile | None, list[Problem], dict[Path, int]]:
    """The tables, or what is wrong with them; and the line of every key."""
    lines = key_lines(text)
    try:
        data = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        # Numbers too long to be read and brackets too deep are not named as mistakes of TOML.
        return None, [_syntax(error, file)], lines
    if "format" not in data:
        hint = f"Begin the file with `format = {FORMAT}`."
        missing = Problem(weight=Weight.ERROR, key="format", message="the key format is missing.", hint=hint, file=file)
        return None, [missing], lines
    try:
        return ProfileFile.model_validate(data), [], lines
    except ValidationError as error:
        problems = [_translate(found, data, lines, file) for found in error.errors(include_url=False)]
        return None, sorted(problems, key=lambda problem: problem.line or 0), lines


def _syntax(error: Exception, file: str) -> Problem:
    words = str(error)
    at = re.search(r"\(at line (\d+), column \d+\)", words)
    return Problem(
        weight=Weight.ERROR,
        key="",
        message=f"this is not TOML: {words}.",
        hint="Texts stand in quotes, lists in brackets.",
        file=file,
        line=int(at[1]) if at else None,
    )


def _translate(found: Any, data: Mapping[str, Any], lines: dict[Path, int], file: str) -> Problem:
    # A union adds a name of pydantic's own to the place, and a wrong key of a table adds "[key]".
    path = [part for part in found["loc"] if part != "[key]"]
    while len(path) > 1 and not _exists(data, path) and found["type"] != "missing":
        path.pop()
    message, hint = _say(found, path)
    return Problem(
        weight=Weight.ERROR, key=spelled(path), message=message, hint=hint, file=file, line=line_of(lines, path)
    )


def _say(found: Any, path: Sequence[str | int]) -> tuple[str, str]:
    kind, key = found["type"], spelled(path)
    context = found.get("ctx", {})
    if kind == "extra_forbidden":
        return f"there is no key {key}.", _nearest(path)
    if kind == "missing":
        return f"the key {key} is missing.", ""
    value = _shown(found["input"])
    if kind == "literal_error":
        return f"{key} = {value} is none of its values.", f"It can be {context['expected']}."
    if kind in _LIMITS:
        name, words = _LIMITS[kind]
        limit = context[name]
        return f"{key} = {value} is out of range.", f"It takes {words.format(f'{limit:g}')}."
    if kind == "value_error":
        words = str(context["error"])
        return f"{key} = {value} cannot be used.", f"It {words}."
    allowed = _ALLOWED.get(kind)
    return f"{key} = {value} cannot be used.", f"It takes {allowed}." if allowed else f"{found['msg']}."


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (dict, list, tuple)):
        return "a table" if isinstance(value, dict) else "a list"
    # An unquoted time or date is a value of its own kind in TOML.
    text = repr(value) if isinstance(value, (str, int, float)) else str(value)
    return text if len(text) <= 60 else f"{text[:59]}…"


def _nearest(path: Sequence[str | int]) -> str:
    word = str(path[-1])
    if len(path) == 1 and word in _RESERVED:
        return _RESERVED[word]
    table = _table_at(path[:-1])
    keys = list(_keys(table)) if table else []
    close = difflib.get_close_matches(word, keys, n=1, cutoff=0.5)
    if close:
        return f"Did you mean {close[0]}?"
    elsewhere = [f"{name}.{word}" for name, kind in _tables().items() if word in _keys(kind)]
    if elsewhere:
        return f"Did you mean {elsewhere[0]}?"
    return f"There are: {', '.join(sorted(keys))}." if keys else ""


def _keys(table: type[BaseModel]) -> Iterator[str]:
    for name, part in table.model_fields.items():
        yield part.alias or name


def _tables() -> dict[str, type[BaseModel]]:
    found = {}
    for name in ProfileFile.model_fields:
        kind = _table_at((name, "NAME") if name == "partitions" else (name,))
        if kind is not None:
            found["partitions.NAME" if name == "partitions" else name] = kind
    return found


def _table_at(path: Sequence[str | int]) -> type[BaseModel] | None:
    if not path:
        return ProfileFile
    part = ProfileFile.model_fields.get(str(path[0]))
    if part is None:
        return None
    kinds = [part.annotation, *get_args(part.annotation)]
    tables = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)]
    # A map of tables (partitions) needs one name more than a table.
    depth = 2 if str(path[0]) == "partitions" else 1
    return tables[0] if tables and len(path) == depth else None


def _exists(data: Any, path: Sequence[str | int]) -> bool:
    for part in path:
        is_item = isinstance(data, list) and isinstance(part, int) and part < len(data)
        if not is_item and not (isinstance(data, Mapping) and part in data):
            return False
        data = data[part]
    return True
