"""Sealing loses nothing: what is sealed reads back the same, and an original goes only when that was proved."""

from __future__ import annotations

import hashlib
import json
import os
import random
import time
from pathlib import Path

import pytest

from fleetcraft.actions import gpu_seal
from fleetcraft.cli.main import main
from fleetcraft.core.errors import StorageFull, UsageError
from fleetcraft.store.files import Files
from fleetcraft.telemetry.api import Device, DeviceState, Reading, Reason
from fleetcraft.telemetry.fields import FIELDS, NAMES
from fleetcraft.telemetry.segment import COLUMN_LINE, Header, Slot, encode_row, statement
from fleetcraft.telemetry.segment_read import Reader, columns_of
from fleetcraft.testing.files import FullFiles

polars = pytest.importorskip("polars", reason="sealing needs polars")
_START_MS = 1_800_000_000_000
_STEM = f"{_START_MS}-abcdef01-77"


def _write(folder: Path, *, ticks: int = 20, end: bool = True, junk: bytes = b"") -> Path:
    dice = random.Random(5)
    folder.mkdir(parents=True, exist_ok=True)
    slots = tuple(Slot(n=n, device=Device(uuid=f"GPU-{n}", index=n, name="x", memory_bytes=1 << 36)) for n in (0, 1))
    lines = [Header(host="node1", job="77", slots=slots, started_utc_ms=_START_MS).line(), COLUMN_LINE]
    lines.append(statement("gap", _START_MS, why="late"))
    for tick in range(ticks):
        for n in (0, 1):
            names = dice.sample(NAMES, dice.randrange(len(NAMES)))
            decimals = {field.name: field.decimals for field in FIELDS}
            values = {name: round(dice.uniform(0, 1e6), decimals[name]) for name in names}
            reasons = {name: Reason.UNSUPPORTED for name in NAMES if name not in values}
            reading = Reading(uuid=f"GPU-{n}", values=values, reasons=reasons, state=dice.choice(list(DeviceState)))
            at = _START_MS + tick * 10_000
            lines.append(encode_row(tick, at, tick * 10_000, 10_000 if tick else None, n, reading))
    if end:
        lines.append(statement("end", _START_MS, why="rotated"))
    path = folder / f"{_STEM}.csv"
    path.write_bytes("\n".join(lines).encode() + b"\n" + junk)
    return path


def _seal(root: Path, **more) -> list[gpu_seal.Sealed]:
    return list(gpu_seal.seal([str(root)], now_utc=time.time(), **more))


def test_what_is_sealed_says_the_same_and_vouches_for_it(tmp_path: Path):
    path = _write(tmp_path / "node1")
    reader = Reader(str(path))
    piece = reader.read()
    wanted = columns_of(piece.rows, reader.columns)
    (done,) = _seal(tmp_path)
    assert (done.state, done.rows, done.removed, done.detail) == ("sealed", 40, False, "")
    assert path.exists()
    told = json.loads(path.with_suffix(".sealed.json").read_text())
    parquet = path.with_suffix(".parquet")
    assert told["segment_sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()
    assert told["parquet_sha256"] == hashlib.sha256(parquet.read_bytes()).hexdigest()
    assert (told["head"]["host"], told["rows"]) == ("node1", 40)
    assert [one["t"] for one in told["statements"]] == ["gap", "end"]
    frame = polars.read_parquet(parquet)
    assert tuple(frame.columns) == reader.columns
    for n, one in wanted.items():
        mine = frame.filter(polars.col("gpu") == n)
        assert mine["utc_ms"].to_list() == one.utc_ms
        assert mine["state"].to_list() == one.states
        assert mine["reasons"].to_list() == one.reasons
        for name, values in one.values.items():
            assert mine[name].to_list() == values, name
    assert path.with_suffix(".rollup.csv").exists()


def test_an_original_goes_only_when_asked_and_proved(tmp_path: Path):
    path = _write(tmp_path / "node1")
    (done,) = _seal(tmp_path, remove=True)
    assert done.removed
    assert not path.exists()
    assert _seal(tmp_path, remove=True) == []


def test_one_that_was_sealed_before_can_be_removed_later(tmp_path: Path):
    path = _write(tmp_path / "node1")
    _seal(tmp_path)
    (again,) = _seal(tmp_path)
    assert (again.state, again.removed, path.exists()) == ("already sealed", False, True)
    (gone,) = _seal(tmp_path, remove=True)
    assert gone.removed
    assert not path.exists()


@pytest.mark.parametrize("what", ("csv", "parquet", "sealed.json"))
def test_an_original_stays_when_anything_changed_since(tmp_path: Path, what: str):
    path = _write(tmp_path / "node1")
    _seal(tmp_path)
    changed = path.parent / f"{_STEM}.{what}"
    if what == "sealed.json":
        told = json.loads(changed.read_text())
        changed.write_text(json.dumps({**told, "segment_sha256": "0" * 64}))
    else:
        data = bytearray(changed.read_bytes())
        data[-20] ^= 1
        changed.write_bytes(data)
    (kept,) = _seal(tmp_path, remove=True)
    assert not kept.removed
    assert "the original stays" in kept.detail
    assert path.exists()


@pytest.mark.parametrize("junk", (b"no row\n", b"\0" * 50 + b"\n", b"40,1800000400000,"))
def test_one_with_damage_is_sealed_and_its_original_stays(tmp_path: Path, junk: bytes):
    path = _write(tmp_path / "node1", junk=junk)
    (done,) = _seal(tmp_path, remove=True)
    assert (done.state, done.rows, done.removed) == ("sealed", 40, False)
    assert "the original stays" in done.detail
    assert path.exists()


def test_one_that_may_still_be_written_is_left_alone(tmp_path: Path):
    path = _write(tmp_path / "node1", end=False)
    (live,) = _seal(tmp_path, remove=True)
    assert (live.state, live.removed) == ("still written", False)
    assert not path.with_suffix(".parquet").exists()
    old = time.time() - 90_000
    os.utime(path, (old, old))
    (done,) = _seal(tmp_path, remove=True)
    assert (done.state, done.removed) == ("sealed", True)


def test_a_segment_without_samples_is_left_alone(tmp_path: Path):
    path = _write(tmp_path / "node1", ticks=0)
    (done,) = _seal(tmp_path, remove=True)
    assert done.state == "without samples"
    assert path.exists()


def test_what_is_no_file_is_named_and_the_others_are_sealed(tmp_path: Path):
    path = _write(tmp_path / "node1")
    pipe, lost = path.with_name(f"{_START_MS + 1}-abcdef01-77.csv"), path.with_name(f"{_START_MS + 2}-abcdef01-77.csv")
    os.mkfifo(pipe)
    lost.symlink_to(tmp_path / "nowhere")
    found = {one.path: (one.state, one.detail) for one in _seal(tmp_path)}
    assert found == {str(path): ("sealed", ""), **dict.fromkeys((str(pipe), str(lost)), ("damaged", "it is no file"))}


@pytest.mark.parametrize("interval", ("NaN", "Infinity", "0", "-1"))
def test_an_interval_that_cannot_be_is_no_segment(tmp_path: Path, interval: str):
    path = _write(tmp_path / "node1")
    path.write_text(path.read_text().replace('"interval_s":10.0', f'"interval_s":{interval}', 1))
    (done,) = _seal(tmp_path, remove=True)
    assert done.state == "without samples"
    assert path.exists()


def test_a_full_disk_leaves_the_original_and_nothing_half_done(tmp_path: Path):
    path = _write(tmp_path / "node1")
    before = path.read_bytes()
    for spare in range(12):
        with pytest.raises(StorageFull):
            _seal(tmp_path, remove=True, files=FullFiles(Files(), spare=spare))
        assert path.read_bytes() == before
        if path.with_suffix(".sealed.json").exists():
            break
    assert [name for name in os.listdir(path.parent) if name.startswith(".")] == []
    (done,) = _seal(tmp_path, remove=True)
    assert done.removed


def test_the_verb_says_what_it_did(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    _write(tmp_path / "node1")
    assert main(["gpu", "seal", str(tmp_path), "--dry-run"]) == 0
    assert "would seal 1 segment" in capsys.readouterr().out
    assert main(["gpu", "seal", str(tmp_path), "--remove", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["segments"][0]["removed"] is True
    with pytest.raises(UsageError):
        gpu_seal.older_s(10)
