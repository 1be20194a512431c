"""What a program does with a spool: the same actions as the command line, with Python values in and out."""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fleetcraft.actions.enqueue import EnqueueOptions, EnqueueResult, enqueue_tasks
from fleetcraft.actions.environment import record_environment
from fleetcraft.core.errors import UsageError
from fleetcraft.core.states import TaskState
from fleetcraft.spool.spool import Spool

if TYPE_CHECKING:
    from fleetcraft.actions.requests import CancelResult, RetryResult
    from fleetcraft.actions.selection import Selection
    from fleetcraft.workers.options import WorkerOptions

Path = str | os.PathLike[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One task to enqueue: exactly one of command, shell and call, and whatever else it needs.

    The fields are the keys of a JSON line; None leaves a value to the options of the enqueue.
    """

    command: Sequence[str] | None = None
    shell: str | None = None
    call: str | None = None  # package.module:function
    args: Mapping[str, Any] | None = None
    setup: str | None = None
    setup_args: Mapping[str, Any] | None = None
    python: Path | None = None
    name: str | None = None
    gpus: float | None = None
    cpus: int | None = None
    node: bool | None = None
    timed: bool | None = None
    vram: str | int | None = None
    uses: Mapping[str, int] | Sequence[str] | str | None = None
    family: str | None = None
    needs: str | float | None = None
    priority: int | None = None
    after: Sequence[str] | str | None = None
    timeout: str | float | None = None
    retries: int | None = None
    backoff: str | float | None = None
    cwd: Path | None = None
    env: Mapping[str, str] | None = None
    outputs: Sequence[str] | str | None = None
    validate: Sequence[str] | str | None = None
    tags: Sequence[str] | str | None = None
    checkpoint_signal: str | int | None = None
    checkpoint_grace: str | float | None = None
    resume_exit: int | None = None
    notify: Sequence[str] | str | None = None
    flops: float | Mapping[str, Any] | None = None  # of one successful attempt, or {"formula": NAME, ...}
    precision: str | None = None  # of those FLOPs; bf16 when nothing is said
    snapshot: Mapping[str, str] | None = None  # paths of frozen files and their digests

    def as_dict(self) -> dict[str, Any]:
        """The description as JSON has it."""
        values = ((field.name, getattr(self, field.name)) for field in dataclasses.fields(self))
        return {key: _plain(value) for key, value in values if value is not None}


def _plain(value: Any) -> Any:
    """Python values in the forms of JSON, as deep as descriptions go."""
    if isinstance(value, os.PathLike):
        return os.path.abspath(os.fspath(value))
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value


class SpoolActions:
    """The acting half of `fleetcraft.Spool`."""

    def __init__(self, path: Path, *, group: bool = False) -> None:
        self.path = os.path.abspath(os.fspath(path))
        self._group = group
        self._spool: Spool | None = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.path!r})"

    def open(self, *, create: bool = False) -> Spool:
        """The opened spool. Raises SpoolError when there is none and `create` is not given."""
        if self._spool is None:
            self._spool = Spool.open(self.path, create=create, group=self._group)
        return self._spool

    def enqueue(
        self,
        command: Sequence[str] | None = None,
        *,
        shell: str | None = None,
        call: str | None = None,
        tasks: Iterable[Task | Mapping[str, Any] | str] | None = None,
        name: str | None = None,
        snapshot: Sequence[Path] = (),
        progress: Callable[[int], None] | None = None,
        **options: Any,
    ) -> list[str]:
        """Enqueue one task (command, shell or call) or many, and return their names in order.

        `options` are the keys of a task; with `tasks` they hold for every task that says nothing else. A text in
        `tasks` is a shell line. Tasks that are there already with the same content are returned as well.
        """
        if isinstance(command, str):
            raise UsageError(
                "command must be a list such as ['python', 'train.py'].", hint="A shell line goes into shell=."
            )
        single = {"command": command, "shell": shell, "call": call, "name": name}
        given = {key: value for key, value in single.items() if value is not None}
        if tasks is None:
            tasks, options = [{**given, **options}], {}
        elif given:
            raise UsageError(f"Give tasks, or {' and '.join(given)}, not both.")
        return self._enqueue(tasks, options, snapshot, progress).names

    def _enqueue(
        self,
        tasks: Iterable[Task | Mapping[str, Any] | str],
        options: Mapping[str, Any],
        snapshot: Sequence[Path],
        progress: Callable[[int], None] | None,
    ) -> EnqueueResult:
        choices = EnqueueOptions(
            defaults={key: _absolute(key, _plain(value)) for key, value in options.items()},
            base_env=record_environment(os.environ),
            snapshot=tuple(os.fspath(path) for path in snapshot),
        )
        described = (task if isinstance(task, str) else _described(task) for task in tasks)
        return enqueue_tasks(self.open(create=True), described, choices, progress=progress, keep_names=sys.maxsize)

    def cancel(self, *names: str, reason: str = "", **selection: Any) -> CancelResult:
        """Cancel tasks by name, or by states, tags, batches, pattern, everything."""
        from fleetcraft.actions.requests import cancel

        return cancel(self.open(), _selection(names, selection), reason=reason)

    def retry(self, *names: str, succeeded: bool = False, **selection: Any) -> RetryResult:
        """Run ended tasks again with full budgets; the tasks are chosen as in `cancel`."""
        from fleetcraft.actions.requests import retry

        return retry(self.open(), _selection(names, selection), succeeded=succeeded)

    def stop(self, reason: str = "") -> None:
        """No worker starts anything more until `resume`."""
        from fleetcraft.actions.requests import stop

        stop(self.open(), reason=reason)

    def resume(self) -> None:
        """Take back the last stop."""
        from fleetcraft.actions.requests import resume

        resume(self.open())

    def drain(self, *workers: str) -> list[str]:
        """Ask workers (all, when none is named) to leave once what they run has ended."""
        from fleetcraft.actions.requests import drain

        return drain(self.open(), workers)

    def limit(self, name: str, ceiling: int) -> None:
        """Set how many tasks may hold a named resource at once."""
        from fleetcraft.actions.requests import limit

        limit(self.open(), name, ceiling)


def _described(task: Task | Mapping[str, Any]) -> dict[str, Any]:
    described = task.as_dict() if isinstance(task, Task) else {key: _plain(value) for key, value in task.items()}
    return {key: _absolute(key, value) for key, value in described.items()}


def _absolute(key: str, value: Any) -> Any:
    """Relative folders mean what they mean here and now."""
    return os.path.abspath(value) if key == "cwd" and isinstance(value, str) and value else value


def _selection(names: Sequence[str], choices: Mapping[str, Any]) -> Selection:
    from fleetcraft.actions.selection import Selection

    known = {"states", "tags", "batches", "pattern", "everything"}
    if choices.keys() - known:
        raise UsageError(
            f"Tasks cannot be chosen by {min(choices.keys() - known)!r}.",
            hint=f"Use names or {', '.join(sorted(known))}.",
        )
    return Selection(
        names=tuple(names),
        states=states_of(choices.get("states", ())),
        tags=frozenset(_words(choices.get("tags", ()))),
        batches=tuple(choices.get("batches", ())),
        pattern=choices.get("pattern"),
        everything=bool(choices.get("everything", False)),
    )


def _words(value: Collection[str]) -> Collection[str]:
    return [value] if isinstance(value, str) else value


def states_of(words: Collection[str]) -> frozenset[TaskState]:
    """State words as states. Raises UsageError for a word that is none."""
    try:
        return frozenset(TaskState(word) for word in _words(words))
    except ValueError as error:
        raise UsageError(f"{error}.", hint=f"The states are {', '.join(TaskState)}.") from None


class Worker:
    """One worker on this machine; `run` returns its exit code when it has nothing more to do.

    The options are those of `fleetcraft worker run`: cpus, gpus, idle_exit_s, deadline_utc, max_tasks and so on.
    """

    def __init__(self, spool: Path, **options: Any) -> None:
        from fleetcraft.workers.options import WorkerOptions

        known = {field.name for field in dataclasses.fields(WorkerOptions)} - {"spool"}
        if options.keys() - known:
            raise UsageError(
                f"A worker has no option {min(options.keys() - known)!r}.", hint=f"It has {', '.join(sorted(known))}."
            )
        self.options: WorkerOptions = WorkerOptions(spool=os.path.abspath(os.fspath(spool)), **options)

    def run(self) -> int:
        """Run tasks in this process's children. Raises SpoolError, OutOfReach."""
        from fleetcraft.workers.worker import run_worker

        return run_worker(self.options)
