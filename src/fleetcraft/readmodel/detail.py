"""Everything that is known about one task: what was asked for, and each attempt with what became of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fleetcraft.core.errors import UsageError
from fleetcraft.core.names import TaskId, parse_task_id
from fleetcraft.core.outcome import Verdict
from fleetcraft.core.states import TaskState
from fleetcraft.readmodel.picture import Picture, take_picture
from fleetcraft.readmodel.records import host_of, scan, speaks_of, task_needles
from fleetcraft.readmodel.tasks import attempt_facts
from fleetcraft.spool.reading import SpoolFold
from fleetcraft.spool.spool import Spool


class TaskUnknown(UsageError):
    """No task of that name is in the spool."""

    code = "task_unknown"


@dataclass(slots=True, kw_only=True)
class AttemptView:
    """One attempt by one worker life."""

    gen: int
    attempt: int
    worker: str
    host: str | None = None
    how: str = "s"
    group: int = 1  # how many calls were started together
    pid: int | None = None
    state: str = "running"  # running, ended, or open: nobody knows yet how it ended
    final: str = ""
    counted: bool = False
    log: tuple[int, int, int | None] | None = None  # file number, first byte, end (None while it runs)
    log_shared: bool = False  # the bytes belong to the whole group
    traceback: str | None = None
    evidence: Any = None
    left_background: Any = None
    progress: Mapping[str, Any] | None = None  # its last word; of a running one, as of the last heartbeat
    facts: dict[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """For the JSON document."""
        body = {name: getattr(self, name) for name in self.__slots__ if name != "facts"}
        return {**body, **self.facts, "log": list(self.log) if self.log else None}


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskDetail:
    """One task with its history."""

    id: TaskId
    name: str
    state: TaskState
    task: Mapping[str, Any]
    request: Mapping[str, Any]
    lane: str
    priority: int
    publication: str
    enqueued_utc: float | None
    verdict: Verdict
    cancel_requested: bool
    attempts: tuple[AttemptView, ...]
    picture: Picture

    def as_json(self) -> dict[str, Any]:
        """The JSON document, without its schema."""
        task = {key: value for key, value in self.task.items() if key not in ("name", "base_env")}
        return {
            "id": str(self.id),
            "name": self.name,
            "state": self.state.value,
            "generation": self.verdict.gen,
            "attempt": self.verdict.attempt,
            "cancel_requested": self.cancel_requested,
            "enqueued_utc": self.enqueued_utc,
            "lane": self.lane,
            "priority": self.priority,
            "request": dict(self.request),
            "task": task,
            "base_env_variables": len(self.task.get("base_env") or {}),
            "charged": {
                "failures": self.verdict.failures,
                "timeouts": self.verdict.timeouts,
                "out_of_memory": self.verdict.memory,
                "output_invalid": self.verdict.invalid,
                "losses": self.verdict.losses,
            },
            "attempts": [attempt.as_json() for attempt in self.attempts],
        }


def find_task(spool: Spool, name: str) -> TaskId:
    """The id of a task from its name, or from `BATCH.INDEX` where no task has that name. Raises TaskUnknown."""
    spool.refresh()
    found = spool.find(name)
    if found is None:
        found = parse_task_id(name)
        if found is None or spool.locate(found) is None:
            raise TaskUnknown(
                f"There is no task {name!r} in {spool.layout.root}.",
                hint=f"See `fleetcraft task list --spool {spool.layout.root}`.",
            )
    return found


def show_task(spool: Spool, name: str, reader: SpoolFold | None = None) -> TaskDetail:
    """Read one task and its history. Raises TaskUnknown, OSError."""
    return detail_of(spool, find_task(spool, name), reader)


def detail_of(spool: Spool, task_id: TaskId, reader: SpoolFold | None = None) -> TaskDetail:
    """The same for a task that was found already. Raises OSError."""
    picture = take_picture(spool, reader)
    located = spool.locate(task_id)
    assert located is not None  # noqa: S101  find_task saw it, and batches only grow
    batch, position = located
    task = batch.task(position)
    fold = picture.reader.fold
    verdict = fold.verdict(task_id.batch, task_id.index)
    attempts = _attempts(picture, task_id)
    return TaskDetail(
        id=task_id,
        name=str(task["name"]),
        state=picture.state(task_id.batch, task_id.index),
        task=task,
        request=batch.request.as_json(),
        lane=batch.lane,
        priority=batch.priority,
        publication=batch.publication,
        enqueued_utc=batch.header.get("created_utc"),
        verdict=verdict,
        cancel_requested=fold.is_cancelled(task_id.batch, task_id.index, verdict.gen),
        attempts=tuple(attempts),
        picture=picture,
    )


def _attempts(picture: Picture, task: TaskId) -> list[AttemptView]:
    found: dict[tuple[int, int, str], AttemptView] = {}
    last: dict[tuple[str, int], AttemptView] = {}
    for life, record in scan(picture.spool, task_needles(task.index)):
        if not speaks_of(record, task.batch, task.index):
            continue
        kind = record.get("t")
        if kind == "spawned":
            # It names no generation; within one journal it follows its own `started`.
            started = last.get((life, record["a"]))
            if started is not None:
                started.pid = record.get("pid")
            continue
        owner = str(record.get("life", life)) if kind == "lost" else life
        key = (int(record.get("g", 0)), int(record.get("a", 1)), owner)
        view = found.get(key)
        if view is None:
            view = found[key] = AttemptView(
                gen=key[0], attempt=key[1], worker=owner, host=host_of(picture.reader, owner)
            )
        last[owner, key[1]] = view
        _take(view, record, task.index)
    _take_heartbeats(found.values(), picture, task)
    alive = {worker.life for worker in picture.workers if worker.is_running}
    for view in found.values():
        if view.state == "running" and view.worker not in alive:
            view.state = "open"
    return sorted(found.values(), key=lambda view: (view.gen, view.attempt, view.facts.get("started_utc") or 0.0))


def _take_heartbeats(views: Iterable[AttemptView], picture: Picture, task: TaskId) -> None:
    """What the last heartbeat says of attempts that have no receipt: they run, or were lost with their worker."""
    for view in views:
        reading = picture.reader.lives.get(view.worker)
        beat = reading.heartbeat if reading is not None else None
        running = beat.get("running") if beat is not None else None
        if view.progress is not None or not isinstance(running, list):
            continue
        for entry in running:
            if isinstance(entry, dict) and (entry.get("task"), entry.get("g"), entry.get("a")) == (
                str(task), view.gen, view.attempt,
            ):  # fmt: skip
                view.progress = told_progress(entry)


def told_progress(record: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The progress in a receipt or in a heartbeat's entry, None where there is none."""
    said = record.get("progress")
    return said if isinstance(said, dict) else None


def _take(view: AttemptView, record: Mapping[str, Any], index: int) -> None:
    facts = attempt_facts(record, index)
    kind = record.get("t")
    if kind == "started":
        view.how = str(record.get("how", "s"))
        view.group = int(record.get("k", 1))
        log = record.get("log")
        if view.log is None and isinstance(log, list) and len(log) >= 2:
            view.log = (int(log[0]), int(log[1]), None)
        # Another life may have told of its end already; journals come in no order.
        view.facts = _filled(view.facts, facts)
        return
    if view.state == "ended" and kind == "lost":
        return  # the life's own receipt says more than its reaper
    view.state = "ended"
    view.final = str(record.get("final", ""))
    view.counted = bool(record.get("counted", False))
    log = record.get("log")
    if isinstance(log, list) and len(log) == 3:
        view.log = (int(log[0]), int(log[1]), int(log[2]))
        view.log_shared = int(record.get("k", 1)) > 1
    view.traceback = record.get("traceback")
    view.evidence = record.get("evidence")
    view.left_background = record.get("left_background")
    view.progress = told_progress(record)
    # A `lost` record knows neither slot nor time; what `started` said of them stays.
    view.facts = _filled(facts, view.facts)


def _filled(facts: Mapping[str, Any], rest: Mapping[str, Any]) -> dict[str, Any]:
    """`facts`, and what they do not say from `rest`."""
    return {name: rest.get(name, value) if value in (None, ()) else value for name, value in {**rest, **facts}.items()}
