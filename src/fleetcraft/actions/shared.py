"""What all tasks of one enqueue share: the values of its options, checked once before the first line is read."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fleetcraft.actions.declared import check_declared
from fleetcraft.actions.environment import environment_digest
from fleetcraft.core.errors import TaskInvalid, UsageError
from fleetcraft.core.resources import Request
from fleetcraft.core.task import check_env, draft_task

FORMS = ("auto", "lines", "jsonl")
KINDS = frozenset({"command", "shell", "call"})
# What a task does. A default of these goes into the lines, because a line is checked and named by them.
PAYLOAD_KEYS = KINDS | {"args", "setup", "setup_args"}
# What decides about the batch of a task; these never stand in a line, except `after`.
BATCH_KEYS = frozenset({"gpus", "cpus", "node", "timed", "vram", "uses", "family", "needs", "priority", "after"})
# What belongs to one task alone.
SINGLE_KEYS = frozenset({"name", "snapshot"})


@dataclass(frozen=True, slots=True, kw_only=True)
class EnqueueOptions:
    """The options of one enqueue: values for every task that says nothing else."""

    defaults: Mapping[str, Any] = field(default_factory=dict)  # keys of a task description
    base_env: Mapping[str, str] = field(default_factory=dict)  # the recorded part of the person's environment
    snapshot: tuple[str, ...] = ()  # files to freeze
    form: str = "auto"  # of input lines: auto, lines, jsonl


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """The options, sorted by where they go."""

    deciding: Mapping[str, Any]  # handed to the check of every task
    payload: Mapping[str, Any]  # for tasks that do not say what they do
    header: Mapping[str, Any]  # stored once per batch, under every line
    request: Request
    priority: int
    after: tuple[str, ...]

    @property
    def cwd(self) -> str:
        """Where tasks run that name no folder of their own."""
        return str(self.header["cwd"])


def share(options: EnqueueOptions) -> Shared:
    """Check the options of an enqueue. Raises UsageError."""
    defaults = {key: value for key, value in options.defaults.items() if value is not None}
    if options.form not in FORMS:
        raise UsageError(f"The form {options.form!r} must be one of {', '.join(FORMS)}.")
    for key in sorted(defaults.keys() & SINGLE_KEYS):
        raise TaskInvalid(f"options: {key} belongs to one task and cannot be shared by all.")
    defaults.setdefault("cwd", _current_folder())
    payload = {key: value for key, value in defaults.items() if key in PAYLOAD_KEYS}
    deciding = {key: value for key, value in defaults.items() if key in BATCH_KEYS}
    rest = {key: value for key, value in defaults.items() if key not in PAYLOAD_KEYS and key not in BATCH_KEYS}
    # Checked as the options of a task that does nothing; unknown keys are named by the same check.
    draft = draft_task({"command": ["true"], **rest, **deciding}, "options")
    check_declared(draft.line, "options")
    header = {key: value for key, value in draft.line.items() if key != "command"}
    if options.base_env:
        check_env(dict(options.base_env), "the recorded environment")
        header["base_env"] = dict(options.base_env)
        header["env_digest"] = environment_digest(options.base_env)
    return Shared(
        deciding=deciding, payload=payload, header=header,
        request=draft.request, priority=draft.priority, after=draft.after,
    )  # fmt: skip


def _current_folder() -> str:
    try:
        return os.getcwd()
    except OSError as error:
        raise UsageError(
            f"The current directory cannot be used ({error.strerror}).",
            hint="Change to another one, or name one with --cwd.",
        ) from error
