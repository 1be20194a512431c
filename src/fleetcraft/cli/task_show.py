"""`task show`: what one task is, what it asks for, and each of its attempts."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from fleetcraft.cli.command import Command, Example
from fleetcraft.cli.output import Output, printable
from fleetcraft.cli.parser import spool_root
from fleetcraft.cli.tables import STATE_STYLES
from fleetcraft.core.errors import EXIT_DONE
from fleetcraft.core.quantities import format_bytes
from fleetcraft.readmodel.detail import AttemptView, TaskDetail, show_task
from fleetcraft.readmodel.words import took
from fleetcraft.spool.spool import Spool

# What a shell reads as one plain word.
_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_@%+=:,./-")
_SHOWN_APART = frozenset({"name", "command", "shell", "call", "args", "base_env", "env_digest", "after", "cwd"})


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="the task's name, or its id such as 3.17")


def _run(arguments: argparse.Namespace, output: Output) -> int:
    detail = show_task(Spool.open(spool_root(arguments)), arguments.name)
    if output.json:
        output.document(SHOW.schema, detail.as_json())
    else:
        output.lines(describe(detail, output))
    return EXIT_DONE


def describe(detail: TaskDetail, output: Output) -> Iterator[str]:
    """The task for a person."""
    state = output.paint(detail.state.value, *STATE_STYLES[detail.state.value])
    yield f"{output.paint(printable(detail.name), 'bold')}  {state}  (id {detail.id})"
    for label, text in _facts(detail):
        yield f"  {output.paint(f'{label:<10}', 'dim')} {printable(text)}"
    if not detail.attempts:
        yield "  no attempt yet"
    for view in detail.attempts:
        yield ""
        yield from _attempt(view, output)


def _facts(detail: TaskDetail) -> Iterator[tuple[str, str]]:
    task = detail.task
    yield _what(task)
    if task.get("cwd"):
        yield "in", str(task["cwd"])
    yield "asks for", ", ".join(f"{key} {value}" for key, value in detail.request.items()) or "1 cpu"
    yield "lane", f"{detail.lane}, priority {detail.priority}"
    if detail.enqueued_utc is not None:
        yield "enqueued", when(detail.enqueued_utc)
    if task.get("after"):
        yield "after", ", ".join(task["after"])
    for key in sorted(task.keys() - _SHOWN_APART):
        if task[key] not in (None, [], {}, ""):
            yield key.replace("_", " "), _short(task[key])
    if task.get("env_digest"):
        yield "env", f"{len(task.get('base_env') or {})} recorded variables (digest {task['env_digest']})"
    if detail.cancel_requested:
        yield "cancel", "a person cancelled this generation"


def _what(task: Mapping[str, Any]) -> tuple[str, str]:
    if "command" in task:
        return "command", " ".join(quote(word) for word in task["command"])
    if "shell" in task:
        return "shell", str(task["shell"])
    arguments = ", ".join(f"{key}={json.dumps(value)}" for key, value in (task.get("args") or {}).items())
    return "call", f"{task.get('call')}({arguments})"


def quote(word: str) -> str:
    """One word as a person would type it into a shell."""
    if word and all(character in _PLAIN for character in word):
        return word
    return "'" + word.replace("'", "'\"'\"'") + "'"


def _short(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def when(at_utc: float) -> str:
    """A time of day, in UTC and readable."""
    return datetime.fromtimestamp(at_utc, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _attempt(view: AttemptView, output: Output) -> Iterator[str]:
    facts = view.facts
    word = facts.get("outcome") if view.state == "ended" else view.state
    label = f"attempt {view.attempt}" + (f" (generation {view.gen})" if view.gen else "")
    yield f"  {output.paint(label, 'bold')}  {output.paint(str(word), *STATE_STYLES.get(str(word), ()))}"
    for name, text in _attempt_facts(view):
        yield f"    {output.paint(f'{name:<8}', 'dim')} {printable(text)}"


def _attempt_facts(view: AttemptView) -> Iterator[tuple[str, str]]:
    facts = view.facts
    where = view.host or "?"
    if facts.get("slot") is not None:
        where += f", slot {facts['slot']}"
    if facts.get("gpus"):
        where += f", GPUs {', '.join(facts['gpus'])}"
    yield "where", f"{where}  (worker {view.worker}{f', pid {view.pid}' if view.pid else ''})"
    if facts.get("started_utc") is not None:
        yield "started", when(facts["started_utc"])
    used = [text for text in (_used(facts, *what) for what in _USED) if text]
    if used:
        yield "used", ", ".join(used)
    for key in ("exit", "signal", "cause", "error"):
        if facts.get(key) not in (None, ""):
            yield key, str(facts[key])
    for proof in facts.get("outputs") or ():
        yield "output", _proof(proof)
    if view.progress:
        yield "progress", " ".join(_progress(view.progress))
    if facts.get("value") is not None:
        yield "value", json.dumps(facts["value"])
    if view.log is not None and view.log[2] is not None:
        shared = ", shared by its group of calls" if view.log_shared else ""
        yield "log", f"{format_bytes(view.log[2] - view.log[1])}{shared}"


def _progress(said: Mapping[str, Any]) -> Iterator[str]:
    """How far it is, in words; every part may be missing."""
    done, total, numbers = said.get("done"), said.get("total"), said.get("numbers")
    parts = []
    if done is not None:
        share = f" ({done / total:.0%})" if total else ""
        of = f"/{total:g}" if total is not None else ""
        parts.append(f"{done:g}{of} {said.get('unit', '')}".rstrip() + share)
    if said.get("phase"):
        parts.append(f"phase {said['phase']}")
    if said.get("flops") is not None:
        parts.append(f"{said['flops']:.4g} FLOPs")
    if isinstance(numbers, dict):
        parts.extend(f"{name} {value:g}" for name, value in numbers.items())
    yield ", ".join(parts)
    if said.get("at_utc") is not None:
        yield f"(said {when(said['at_utc'])})"


_USED: tuple[tuple[str, str, Callable[[float], str]], ...] = (
    ("wall_s", "wall", took),
    ("cpu_s", "CPU", took),
    ("max_rss_bytes", "memory", format_bytes),
)


def _used(facts: Mapping[str, Any], key: str, word: str, show: Callable[[float], str]) -> str:
    return "" if facts.get(key) is None else f"{show(facts[key])} {word}"


def _proof(proof: Mapping[str, Any]) -> str:
    size = proof.get("size")
    about = "folder" if size is None else f"{format_bytes(size)}, sha256 {str(proof.get('sha256'))[:12]}"
    return f"{proof.get('path')}  {about}"


SHOW = Command(
    path=("task", "show"),
    summary="what one task is, and each of its attempts",
    description="Show what a task runs, what it asks for, and what became of each attempt.",
    arguments=_arguments,
    run=_run,
    examples=(
        Example(line="fleetcraft task show train-0", what="Show the task of that name."),
        Example(line="fleetcraft task show --json 3.17", what="The task with id 3.17, as one JSON object."),
    ),
)
