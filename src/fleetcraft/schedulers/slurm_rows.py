"""Rows of squeue: which fields are asked for, and what each row and each refusal means.

A row that cannot be read is reported as a problem and never dropped without a word, and a query that failed says
nothing about any job.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from fleetcraft.schedulers.slurm_ids import JobId, parse_job_id
from fleetcraft.schedulers.slurm_lines import told, whole_lines
from fleetcraft.schedulers.slurm_reasons import DEAD, ReasonReading, failed_parents, read_reason
from fleetcraft.schedulers.slurm_states import StateReading, read_state
from fleetcraft.schedulers.slurm_times import duration_s, epoch_utc

SEPARATOR = "\x1f"
_LETTERS = {
    "id": "%i",
    "state": "%T",
    "submit": "%V",
    "start": "%S",
    "end": "%e",
    "limit": "%l",
    "partition": "%P",
    "node_count": "%D",
    "nodes": "%N",
    "reason": "%r",
    "gres": "%b",
    "dependency": "%E",
    "user": "%u",
    "account": "%a",
    "qos": "%q",
    "comment": "%k",
    "name": "%j",
}
# The last field may hold whatever a person wrote; it takes all that is left of its row.
QUEUE_HOT = ("id", "state", "submit", "start", "end", "limit", "partition", "node_count", "nodes", "reason")
# Ids are used again: only a row that tells whose job it is may speak for one.
QUEUE_LOOK = (*QUEUE_HOT, "account", "qos", "comment", "name")
QUEUE_WIDE = (*QUEUE_HOT, "gres", "dependency", "account", "qos", "comment", "name")
# At most this much of what cannot be read is shown.
_SHOWN = 120


def squeue_format(fields: Sequence[str]) -> str:
    """The word for `--format=`."""
    return SEPARATOR.join(_LETTERS[field] for field in fields)


@dataclass(frozen=True, slots=True)
class QueueRow:
    """One row of squeue. `start_utc` of a waiting job is a guess of the scheduler."""

    id: JobId
    state: StateReading
    submit_utc: float | None = None
    start_utc: float | None = None
    end_utc: float | None = None
    time_limit_s: float | None = None
    partition: str = ""
    node_count: int | None = None
    nodes_text: str = ""
    reason: str = ""
    gres: str = ""
    dependency: str = ""
    user: str = ""
    account: str = ""
    qos: str = ""
    comment: str = ""
    name: str = ""

    @property
    def reading(self) -> ReasonReading:
        """What its reason means."""
        return read_reason(self.reason)

    @property
    def never_had_nodes(self) -> bool:
        """True for one that ended without a start."""
        return self.state.outcome is not None and not self.nodes_text

    @property
    def refused(self) -> bool:
        """True for the trace of a submission that sbatch refused: it used up an id, and was never a job."""
        return self.never_had_nodes and self.state.outcome == "failed"

    @property
    def dead(self) -> bool:
        """True when it waits for something that can no longer come true."""
        return self.reading.cls == DEAD

    @property
    def failed_parents(self) -> tuple[str, ...]:
        """The jobs that it waits for in vain."""
        return failed_parents(self.dependency)


OK = "ok"
FAILED = "failed"
UNSUPPORTED = "unsupported_option"


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueAnswer:
    """What one squeue call told. `present` and `absent` speak of the ids asked for; None when the query failed."""

    query: str  # ok, failed or unsupported_option
    rows: tuple[QueueRow, ...] = ()
    present: tuple[str, ...] | None = None
    absent: tuple[str, ...] | None = None
    retry: bool = False
    cluster: str | None = None
    problems: tuple[str, ...] = ()
    text: str = ""

    index: RowIndex = field(default_factory=lambda: RowIndex(()), compare=False, repr=False)

    def of(self, key: str) -> QueueRow | None:
        """The row of a job or of an array element; a row that stands for many elements stands for each."""
        return self.index.find(key)


class RowIndex:
    """Finds the row that speaks for a key without looking at all of them."""

    __slots__ = ("_first", "_lists", "_own")

    def __init__(self, rows: Sequence[QueueRow]) -> None:
        self._own: dict[str, QueueRow] = {}
        self._first: dict[str, QueueRow] = {}
        self._lists: dict[str, list[QueueRow]] = {}
        for row in rows:
            job = row.id
            if job.is_list:
                self._lists.setdefault(job.base, []).append(row)
            else:
                self._own.setdefault(job.key, row)
            self._first.setdefault(job.base, row)

    def find(self, key: str) -> QueueRow | None:
        """Its own row, or the one of the array that still holds the element; an element speaks for its array."""
        own = self._own.get(key)
        if own is not None:
            return own
        base, _, task = key.partition("_")
        if not task:
            return self._first.get(key)
        if not (task.isascii() and task.isdigit() and len(task) <= 18):
            return None
        return next((row for row in self._lists.get(base, ()) if row.id.covers(int(task))), None)


# The id that was asked for is not known any more: an answer, although the exit code says otherwise.
_PURGED = re.compile(r"Invalid job id specified", re.IGNORECASE)
_UNSUPPORTED = re.compile(r"unrecognized option|unrecognised option|invalid option|unknown option", re.IGNORECASE)
_CLUSTER = re.compile(r"CLUSTER:\s*(\S+)\s*")


def read_squeue(
    out: str,
    err: str,
    code: int | None,
    *,
    asked: Collection[str] = (),
    fields: Sequence[str] = QUEUE_HOT,
    separator: str = SEPARATOR,
    problem: str = "",
) -> QueueAnswer:
    """What an answer of squeue is worth. `code` None: there was none."""
    said = " ".join((problem or err.strip() or out.strip()).split())[:_SHOWN]
    if code is None:
        return QueueAnswer(query=FAILED, retry=True, text=said)
    if code != 0 and not (_PURGED.search(err) and len(set(asked)) <= 1):
        if _UNSUPPORTED.search(err) or _UNSUPPORTED.search(out):
            return QueueAnswer(query=UNSUPPORTED, text=said)
        return QueueAnswer(query=FAILED, retry=True, text=said)
    rows, problems, cluster = _rows(out, fields, separator)
    index = RowIndex(rows)
    there = {key: index.find(key) is not None for key in asked}
    return QueueAnswer(
        query=OK,
        rows=rows,
        present=tuple(key for key, found in there.items() if found),
        absent=tuple(key for key, found in there.items() if not found),
        cluster=cluster,
        problems=problems,
        text=said,
        index=index,
    )


def _rows(out: str, fields: Sequence[str], separator: str) -> tuple[tuple[QueueRow, ...], tuple[str, ...], str | None]:
    rows: list[QueueRow] = []
    problems: list[str] = []
    clusters: dict[str, None] = {}
    build = _builder(tuple(fields))
    cuts = len(fields) - 1
    lines, torn = whole_lines(out, separator, names_last=fields[-1] in ("name", "comment"))
    for line in lines:
        if not line[:1].isdigit():
            named = _CLUSTER.fullmatch(line)
            if named:
                clusters[named[1]] = None
            elif line.strip() and not line.startswith("JOBID"):
                problems.append(f"not a row of squeue: {line[:_SHOWN]!r}")
            continue
        cells = line.split(separator, cuts)
        if len(cells) <= cuts:
            problems.append(f"a row of squeue with {len(cells)} of {cuts + 1} columns: {line[:_SHOWN]!r}")
            continue
        row = build(cells)
        if row is None:
            problems.append(f"a row of squeue with an id that is none: {line[:_SHOWN]!r}")
        else:
            rows.append(row)
    if torn:
        problems.append(f"the answer of squeue is cut off: {torn[:_SHOWN]!r}")
    if len(clusters) > 1:
        problems.append(f"squeue answered for several clusters: {', '.join(clusters)}")
    return tuple(rows), tuple(problems), next(iter(clusters), None)


@lru_cache(maxsize=64)
def _builder(fields: tuple[str, ...]) -> Callable[[Sequence[str]], QueueRow | None]:
    """A function from cells to a row. The places are looked up once, not once for each of ten thousand rows."""
    place = {name: number for number, name in enumerate(fields)}
    blank = len(fields)
    at = [place.get(name, blank) for name in _LETTERS]
    (i_id, i_state, i_submit, i_start, i_end, i_limit, i_part, i_count) = at[:8]
    (i_nodes, i_reason, i_gres, i_dep, i_user, i_account, i_qos, i_comment, i_name) = at[8:]

    def build(cells: Sequence[str]) -> QueueRow | None:
        cells = [*cells, ""]
        job = parse_job_id(cells[i_id])
        if job is None:
            return None
        return QueueRow(
            job,
            read_state(cells[i_state]),
            epoch_utc(cells[i_submit]),
            epoch_utc(cells[i_start]),
            epoch_utc(cells[i_end]),
            _limit_s(cells[i_limit]),
            cells[i_part],
            int(cells[i_count]) if cells[i_count].isascii() and cells[i_count].isdigit() else None,
            cells[i_nodes],
            cells[i_reason],
            cells[i_gres],
            cells[i_dep],
            cells[i_user],
            told(cells[i_account]),
            told(cells[i_qos]),
            cells[i_comment],
            cells[i_name],
        )

    return build


@lru_cache(maxsize=1024)
def _limit_s(text: str) -> float | None:
    return duration_s(text)
