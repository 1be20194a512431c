"""Trials of a command over batch sizes: real workers in a private spool, and what their records say of each point.

Nothing is estimated: a trial is whole runs, its time is from the receipts, its memory from samples within that time.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fleetcraft.actions.calibrated import digest_now, fill_in, read_table, share
from fleetcraft.actions.enqueue import EnqueueOptions, enqueue_tasks
from fleetcraft.actions.files_out import replace_file
from fleetcraft.core.errors import UsageError
from fleetcraft.core.names import TaskId
from fleetcraft.core.records import RECEIPT, STARTED
from fleetcraft.spool.life import JOURNAL
from fleetcraft.spool.spool import Spool
from fleetcraft.store.journal import read_lines
from fleetcraft.telemetry.segment_read import Reader
from fleetcraft.transports.api import Answer, Transport
from fleetcraft.transports.local import LocalTransport
from fleetcraft.usage import calibration
from fleetcraft.usage.calibration import FAILED, OUT_OF_MEMORY, STABLE, Trial
from fleetcraft.usage.sources import SEGMENT, in_root

LEAST_CYCLES = 2
MOST_AT_ONCE = 16
WHOLE = "whole"
_NO_SAMPLE = "no sample of it shows memory in use; runs of less than 2 s may have none"
_NO_HOST = "no run used more memory than its worker does"
_KIB = 1024
# For the start and the end of a worker, beside what its tasks may take.
_AROUND_S = 300.0
_REAP_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What is to be tried."""

    family: str
    command: Sequence[str]
    batches: Sequence[int]
    per_gpu: Sequence[int] = (1,)
    cycles: int = LEAST_CYCLES
    headroom_pct: float = 10.0
    gpus: str = "1"
    code: Sequence[str] = ()
    parameters: Mapping[str, str]
    timeout_s: float = 3600.0
    env: Mapping[str, str]
    cwd: str
    table: str
    replaces: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The device of the trials, as its samples name it; None where no sample did."""

    device: str | None = None
    driver: str | None = None
    memory_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """Memory of the device at one time, all commands together."""

    utc_s: float
    used_bytes: int


def check(asked: Asked) -> None:
    """Raises UsageError for what cannot be tried."""
    if not asked.command:
        raise UsageError("There is no command after --.", hint="Write: fleetcraft task calibrate NAME -- python run.py")
    if not any("{batch}" in word for word in asked.command):
        raise UsageError("No word of the command has {batch}.", hint="Write it where the batch size belongs.")
    if asked.cycles < LEAST_CYCLES:
        raise UsageError(f"--cycles {asked.cycles} shows nothing stable; at least {LEAST_CYCLES} are run.")
    if asked.gpus not in ("1", "simulated:1"):
        raise UsageError(
            f"--gpus {asked.gpus!r} must be 1 or simulated:1: a trial is about one GPU.",
            hint="CUDA_VISIBLE_DEVICES says which one.",
        )
    if not 0 <= asked.headroom_pct < 100:
        raise UsageError(f"--headroom {asked.headroom_pct:g} must be a percentage from 0 to below 100.")
    if max(asked.per_gpu) > MOST_AT_ONCE:
        raise UsageError(f"--per-gpu goes up to {MOST_AT_ONCE}.")


def calibrate(
    asked: Asked,
    folder: str,
    *,
    transport: Transport | None = None,
    told: Callable[[Trial], None] = lambda _trial: None,
    at_utc: float,
) -> tuple[dict[str, Any], bool]:
    """Try every point below `folder` and freeze the row where one was picked: the row, and whether it was frozen.

    Raises UsageError, and Refused where the table has such a row already, as soon as the device is known.
    """
    check(asked)
    rows = _rows(asked.table)
    code = digest_now(asked.command, asked.code)
    trials: list[Trial] = []
    machine = Machine()
    row = _row(asked, code, machine, trials, at_utc)
    for per_gpu in sorted(set(asked.per_gpu)):
        for batch in sorted(set(asked.batches)):
            trial, seen = _try(asked, batch, per_gpu, folder, transport or LocalTransport())
            trials.append(trial)
            told(trial)
            machine = seen if machine.device is None else machine
            # Hours of trials must not end in a refusal that could be known after the first.
            row = _row(asked, code, machine, trials, at_utc)
            calibration.add(rows, row, replaces=asked.replaces, place=asked.table)
            if trial.state == OUT_OF_MEMORY:
                break  # a larger batch needs no less
    if row["pick"]["batch"] is None:
        return row, False
    # Read again: other families may have been added meanwhile.
    frozen = calibration.add(_rows(asked.table), row, replaces=asked.replaces, place=asked.table)
    replace_file(asked.table, calibration.encode(frozen).encode())
    return next(one for one in frozen if one["key"] == row["key"]), True


def _rows(path: str) -> list[dict[str, Any]]:
    return read_table(path) if os.path.exists(path) else []


def _row(asked: Asked, code: str, machine: Machine, trials: Sequence[Trial], at_utc: float) -> dict[str, Any]:
    key = {
        "family": asked.family, "device": machine.device, "driver": machine.driver, "code": code,
        "parameters": dict(asked.parameters),
    }  # fmt: skip
    return calibration.make_row(
        key, command=asked.command, code_paths=[os.path.abspath(path) for path in asked.code],
        device_bytes=machine.memory_bytes, headroom_pct=asked.headroom_pct, trials=trials, at_utc=at_utc,
    )  # fmt: skip


def _try(asked: Asked, batch: int, per_gpu: int, folder: str, transport: Transport) -> tuple[Trial, Machine]:
    root = os.path.join(folder, f"{per_gpu}x{batch}")
    spool = Spool.open(root, create=True)
    task = {"command": fill_in(asked.command, batch)}
    wanted = per_gpu * asked.cycles
    defaults = {
        "cwd": asked.cwd, "gpus": share(per_gpu), "cpus": 1, "retries": 0, "timeout": asked.timeout_s,
        "family": asked.family,
    }  # fmt: skip
    enqueue_tasks(
        spool,
        [{**task, "name": f"run-{number}"} for number in range(wanted)],
        EnqueueOptions(defaults=defaults, base_env=asked.env),
    )
    answer = _work(root, asked, per_gpu, transport)
    records = _records(spool)
    receipts = [one for one in records if one["t"] == RECEIPT]
    given = {str(uuid) for one in records if one["t"] == STARTED for uuid in one.get("gpus", ())}
    samples, machine = _samples(root, given)
    return judge(receipts, samples, batch=batch, per_gpu=per_gpu, cycles=asked.cycles, worker=answer), machine


def _work(root: str, asked: Asked, per_gpu: int, transport: Transport) -> Answer:
    argv = [
        sys.executable, "-m", "fleetcraft", "worker", "run", "--spool", root, "--gpus", asked.gpus,
        "--cpus", str(per_gpu), "--telemetry", "1s", "--idle-exit", "1s", "--quiet",
    ]  # fmt: skip
    try:
        # The worker ends its tasks by their own timeout; ended from outside, it could not.
        answer = transport.run(argv, timeout_s=asked.cycles * asked.timeout_s + _AROUND_S)
    except BaseException:
        _end_tasks(root, transport)
        raise
    if not answer.answered:
        _end_tasks(root, transport)
    return answer


def _end_tasks(root: str, transport: Transport) -> None:
    """Tasks have sessions of their own, and a worker that was killed leaves them running."""
    transport.run([sys.executable, "-m", "fleetcraft", "spool", "reap", "--spool", root], timeout_s=_REAP_S)


def _records(spool: Spool) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for life in spool.lives():
        records = (line.record for line in read_lines(spool.files, os.path.join(spool.layout.life(life), JOURNAL)))
        found += [record for record in records if record is not None]
    return found


def _samples(root: str, given: Collection[str]) -> tuple[list[Sample], Machine]:
    """What was seen on the device that the runs were given; a sampler may measure others beside it."""
    samples: list[Sample] = []
    machine = Machine()
    for source in in_root(os.path.join(root, "telemetry")):
        if source.kind != SEGMENT:
            continue
        reader = Reader(source.path)
        piece = reader.read()
        mine = {n: slot.device for n, slot in reader.devices.items() if slot.device.uuid in given}
        if reader.header is None or not mine:
            continue
        device = next(iter(mine.values()))
        driver = next((str(one.body.get("driver")) for one in piece.statements if one.kind == "driver"), "")
        machine = Machine(
            device=device.name or None, driver=reader.header.driver or driver or None, memory_bytes=device.memory_bytes
        )
        samples += _sampled([row for row in piece.rows if int(row[4]) in mine], reader.columns)
    return samples, machine


def _sampled(rows: Sequence[Sequence[str]], columns: Sequence[str]) -> Iterator[Sample]:
    place = {name: at for at, name in enumerate(columns)}
    for row in rows:
        # Where the driver does not say whose memory it is, all that is in use counts.
        told = [row[place[name]] for name in ("own_memory_bytes", "memory_used_bytes") if name in place]
        used = next((cell for cell in told if cell), "")
        if used:
            yield Sample(utc_s=int(row[1]) / 1000, used_bytes=int(float(used)))


def judge(
    receipts: Sequence[Mapping[str, Any]], samples: Sequence[Sample], *, batch: int, per_gpu: int, cycles: int,
    worker: Answer,
) -> Trial:  # fmt: skip
    """What one point showed. A point that is not stable has no time, so no throughput can be made of it."""
    state, error = _outcome(receipts, per_gpu, per_gpu * cycles, worker)
    peaks = _peaks(receipts, samples)
    kept = [int(one["rss_kib"]) * _KIB for one in receipts if one.get("rss_kib")]
    wall_s = None
    if state == STABLE:
        wall_s = max(one["end"] for one in receipts) - min(one["at"] for one in receipts)
    return Trial(
        batch=batch, per_gpu=per_gpu, cycles=cycles, state=state, wall_s=wall_s, gpu_bytes=peaks or None,
        gpu_reason=None if peaks else _NO_SAMPLE, host_bytes=max(kept, default=None),
        host_reason=None if kept else _NO_HOST, error=error,
    )  # fmt: skip


def _outcome(
    receipts: Sequence[Mapping[str, Any]], per_gpu: int, wanted: int, worker: Answer
) -> tuple[str, str | None]:
    bad = [one for one in receipts if one["o"] != "succeeded"]
    memory = [one for one in bad if one["o"] == "out_of_memory"]
    if memory:
        return OUT_OF_MEMORY, str(memory[0].get("error") or "a run was out of memory")
    if bad:
        one = bad[0]
        told = one.get("error") or (f"exit {one['exit']}" if one.get("exit") is not None else "")
        name = f"{TaskId(one['b'], one['i'])}"
        return FAILED, f"run {name}: {one['o']}" + (f", {told}" if told else "")
    if len(receipts) < wanted:
        why = worker.problem or worker.err.strip()[-400:] or f"the worker ended with {worker.code}"
        return FAILED, f"{len(receipts)} of {wanted} runs came to an end: {why}"
    together = most_at_once([(one["at"], one["end"]) for one in receipts])
    if together < per_gpu:
        return FAILED, f"only {together} of {per_gpu} ran at once"
    return STABLE, None


def most_at_once(spans: Sequence[tuple[float, float]]) -> int:
    """The largest number of spans that share a moment; one that ends where another begins does not share it."""
    changes = sorted([(start, 1) for start, _ in spans] + [(end, -1) for _, end in spans])
    now = most = 0
    for _, change in changes:
        now += change
        most = max(most, now)
    return most


def _peaks(receipts: Sequence[Mapping[str, Any]], samples: Sequence[Sample]) -> dict[str, int]:
    """The peak of all runs, and that of each last phase: of earlier phases a receipt does not say when they were."""
    peaks: dict[str, int] = {}

    def see(name: str, since: float, until: float) -> None:
        values = [one.used_bytes for one in samples if one.used_bytes and since <= one.utc_s <= until]
        if values:
            peaks[name] = max(peaks.get(name, 0), *values)

    for one in receipts:
        see(WHOLE, one["at"], one["end"])
        progress = one.get("progress") or {}
        if progress.get("phase") and progress.get("at_utc") is not None:
            see(str(progress["phase"]), progress["at_utc"], one["end"])
    return peaks


def parse_parameters(words: Sequence[str]) -> dict[str, str]:
    """`name=value` words. Raises UsageError."""
    found: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name or name in found:
            raise UsageError(f"--param {word!r} must be NAME=VALUE, each name once.")
        found[name] = value
    return found
