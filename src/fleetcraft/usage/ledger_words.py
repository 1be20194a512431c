"""The largest wastes in words, each with the command or the setting that makes it smaller."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fleetcraft.usage.ledger_api import NO_WASTE, TEXT, Class, LedgerRow, TaskUse, Waste

MOST = 3
_WHAT: Mapping[Class, str] = {
    Class.LOADING: "tasks and residents loaded before their GPU was first active",
    Class.STARTING: "nodes were held before a worker was up",
    Class.FAILED: "attempts failed, and their time with them",
    Class.LOST: "attempts were lost by no fault of their task",
    Class.DISCARDED: "attempts were cancelled or came second",
    Class.HELD: "{unit}s were kept empty beside tasks that had a node to themselves",
    Class.RESERVED: "memory was held, or a task ran, and nothing was computed",
    Class.FREE_WAITING: "{unit}s were free while work that fits them waited",
    Class.FREE: "{unit}s were free and no work was known",
    Class.TAIL: "jobs held nodes on after their workers had no more to do",
    Class.UNKNOWN: "nothing tells what became of it",
}
_REMEDY: Mapping[Class, str] = {
    Class.LOADING: "load once and call often: tasks with `--call` and `--setup` keep their resident loaded",
    Class.STARTING: "fewer and longer jobs (`fleet submit --time`), and a shorter [setup] in the profile",
    Class.FAILED: "look at `{task}`; give `--timeout` or fewer `--retries` to what fails late",
    Class.LOST: "`{why}` says what ended it; `--checkpoint-signal` lets an attempt save its work",
    Class.DISCARDED: "cancel before tasks start (`fleetcraft task cancel`); fixed names keep work from being run twice",
    Class.HELD: "give `--timed` only to tasks that are measured, and run them on nodes with few GPUs",
    Class.RESERVED: "let tasks share a GPU (`--gpus 0.5`), or enqueue what computes elsewhere without `--gpus`",
    Class.FREE_WAITING: "`fleetcraft why task` on one that waits; see `fleetcraft spool limit`, `--vram` and `--cpus`",
    Class.FREE: "a shorter `--idle-exit`, or `fleetcraft fleet drain` when the work is done",
    Class.TAIL: "single-node jobs (`fleetcraft fleet submit --lanes N --nodes 1`) give each node back when it is done",
    Class.UNKNOWN: "run work through workers of a spool, whose receipts and samplers tell",
}


def worst(
    total: LedgerRow, tasks: Sequence[TaskUse], unknown: Mapping[str, int], unit: str = "GPU"
) -> tuple[Waste, ...]:
    """The three largest, largest first."""
    found = [
        (-amount, place, kind)
        for place, kind in enumerate(Class)
        if kind not in NO_WASTE and (amount := total.amounts.get(kind, 0)) > 0
    ]
    return tuple(
        _waste(kind, -negative, total.total, tasks, unknown, unit) for negative, _, kind in sorted(found)[:MOST]
    )


def _waste(
    kind: Class, amount: int, whole: int, tasks: Sequence[TaskUse], unknown: Mapping[str, int], unit: str
) -> Waste:
    text = _WHAT[kind].format(unit="GPU" if unit == "GPU" else "slot")
    worst_task = max(tasks, key=lambda use: use.amounts.get(kind, 0), default=None)
    words = {"task": "fleetcraft task list --state failed", "why": "fleetcraft why task"}
    if worst_task is not None and worst_task.amounts.get(kind, 0):
        name = worst_task.name or worst_task.task
        words = {"task": f"fleetcraft task logs {name}", "why": f"fleetcraft why task {name}"}
        text += f" (most of it in {name})" if len(tasks) > 1 else f" ({name})"
    if kind is Class.UNKNOWN and unknown:
        text += f" ({max(sorted(unknown), key=lambda why: unknown[why])})"
    remedy = _REMEDY[kind].format(**words)
    return Waste(
        kind=kind, ms=amount, share=amount / whole if whole else 0.0, text=f"{TEXT[kind]}: {text}", remedy=remedy
    )
