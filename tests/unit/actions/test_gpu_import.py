"""Logs of other tools become segments: whole, once, with what the log could not tell."""

from __future__ import annotations

import json
import os
from zoneinfo import ZoneInfo

import pytest

from fleetcraft.actions.gpu_import import DONE, EMPTY, GREW, KEPT, UNREADABLE, Asked, import_logs
from fleetcraft.actions.gpu_seal import seal
from fleetcraft.core.errors import UsageError
from fleetcraft.telemetry.api import Reason
from fleetcraft.telemetry.segment import decode_reasons
from fleetcraft.telemetry.segment_read import Reader
from fleetcraft.usage.reading import Options, read
from fleetcraft.usage.sources import find
from fleetcraft.usage.summary import tally
from tests.support.telemetry_files import ARCHIVE, START_MS, plain_log

NOW_MS = START_MS + 10**9
ROWS = [(30 * at, 600 + at, 10 * (at % 3), 100 + at) for at in range(40)]


def run(tmp_path, *paths, **more):
    asked = Asked(paths=[str(path) for path in paths], root=str(tmp_path / "root"), **more)
    return list(import_logs(asked, now_ms=NOW_MS))


def files_under(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def sums(path):
    return [one.window for one in tally(find([str(path)]), Options()).tallies]


def test_sums_of_an_imported_log_are_those_of_the_log(tmp_path):
    log = plain_log(tmp_path / "logs" / "n1.csv", ROWS)
    (told,) = run(tmp_path, log)
    assert (told.state, told.rows, told.gpus, told.interval_s, told.lines_lost) == (DONE, 40, 1, 30.0, 0)
    assert {one["kind"] for one in told.unknown} == {"no_zone", "no_device"}
    (plain,), (segment,) = sums(log), sums(tmp_path / "root")
    for name in (
        "observed_ms",
        "util_sum",
        "active_ms",
        "memory_sum",
        "power_sum",
        "samples",
        "reserved_ms",
        "free_ms",
    ):
        assert getattr(segment, name) == pytest.approx(getattr(plain, name)), name


def test_the_same_log_again_changes_nothing(tmp_path):
    log = plain_log(tmp_path / "n1.csv", ROWS)
    run(tmp_path, log)
    before = files_under(tmp_path / "root")
    assert [one.state for one in run(tmp_path, log)] == [KEPT]
    copy = plain_log(tmp_path / "other" / "n1.csv", ROWS)
    assert [one.state for one in run(tmp_path, copy)] == [KEPT]
    assert files_under(tmp_path / "root") == before


def test_of_a_log_that_has_grown_only_the_new_rows_are_added(tmp_path):
    log = plain_log(tmp_path / "n1.csv", ROWS[:15])
    with log.open("a") as opened:
        opened.write("2027/01/15 08:07:")  # the line that was being written just then
    assert run(tmp_path, log)[0].lines_lost == 1
    plain_log(log, ROWS)
    run(tmp_path, log)  # what it began with is gone: this is another log
    log = plain_log(tmp_path / "n2.csv", ROWS[:15])
    run(tmp_path, log)
    plain_log(log, ROWS)
    assert [(one.state, one.rows) for one in run(tmp_path, log)] == [(GREW, 25)]
    assert run(tmp_path, log)[0].state == KEPT
    assert sums(tmp_path / "root" / "n2")[0].observed_ms == sums(log)[0].observed_ms


def test_a_dry_run_writes_nothing(tmp_path):
    log = plain_log(tmp_path / "n1.csv", ROWS)
    assert run(tmp_path, log, dry_run=True)[0].state == DONE
    assert not (tmp_path / "root").exists()


def test_a_host_without_rows_stays_a_host(tmp_path):
    plain_log(tmp_path / "logs" / "n1.csv", ROWS)
    plain_log(tmp_path / "logs" / "n2.csv", [])
    (tmp_path / "logs" / "n3.csv").write_bytes(b"")
    told = run(tmp_path, tmp_path / "logs")
    assert [one.state for one in told] == [DONE, EMPTY, EMPTY]
    reading = read(find([str(tmp_path / "root")]))
    assert sorted(reading.hosts) == ["n1", "n2", "n3"]
    assert [(one.host, one.kind) for one in reading.problems] == [("n2", "no_data"), ("n3", "no_data")]
    assert [one.state for one in run(tmp_path, tmp_path / "logs")] == [KEPT] * 3


def test_what_is_no_log_is_said_and_not_written(tmp_path):
    (tmp_path / "x.csv").write_text("a,b\n1,2\n")
    log = plain_log(tmp_path / "n1.csv", ROWS)
    run(tmp_path, log)
    segment = next((tmp_path / "root" / "n1").glob("*none.csv"))
    told = run(tmp_path, tmp_path / "x.csv", segment)
    assert [one.state for one in told] == [UNREADABLE, UNREADABLE]
    assert files_under(tmp_path / "root") == files_under(tmp_path / "root")
    assert not (tmp_path / "root" / "x").exists()


def test_every_empty_cell_keeps_its_reason(tmp_path):
    log = plain_log(tmp_path / "n1.csv", [(0, 5, "[N/A]", 80), (30, 5, "what", 80), (60, 5, 7, 9e12)])
    run(tmp_path, log)
    reader = Reader(str(next((tmp_path / "root" / "n1").glob("*none.csv"))))
    rows = reader.read().rows
    reasons = [decode_reasons(row[-1]) for row in rows]
    assert [told.get("util_pct") for told in reasons] == [Reason.UNSUPPORTED, Reason.PARSE, None]
    assert reasons[2]["power_w"] is Reason.IMPLAUSIBLE
    assert reasons[0]["energy_mj"] is Reason.NOT_FOUND


def test_each_gpu_of_a_log_is_a_device_of_the_segment(tmp_path):
    lines = [
        f"2027/01/15 08:{minute:02d}:00.{100 + gpu}, {gpu}, GPU-{gpu}, X, {gpu}"
        for minute in range(5) for gpu in range(3)
    ]  # fmt: skip
    head = "timestamp, index, uuid, name, utilization.gpu [%]"
    (tmp_path / "n1.log").write_text("\n".join([head, *lines, ""]))
    assert run(tmp_path, tmp_path / "n1.log", job="77")[0].gpus == 3
    reader = Reader(str(next((tmp_path / "root" / "n1").glob("*-77.csv"))))
    rows = reader.read().rows
    assert reader.header is not None
    assert [slot.device.uuid for slot in reader.header.slots] == ["GPU-0", "GPU-1", "GPU-2"]
    assert [(int(row[0]), int(row[4])) for row in rows] == [(tick, gpu) for tick in range(5) for gpu in range(3)]
    assert reader.header.job == "77"


@pytest.mark.parametrize("apart_ms", (8, 200, 10_000))
def test_gpus_that_are_stamped_apart_have_the_hours_of_their_rows(tmp_path, apart_ms):
    lines = []
    for tick in range(40):
        for gpu in range(2):
            at_ms = tick * 30_000 + gpu * apart_ms
            stamp = f"2027/01/15 08:{at_ms // 60_000:02d}:{at_ms // 1000 % 60:02d}.{at_ms % 1000:03d}"
            lines.append(f"{stamp}, {gpu}, {50 * gpu}")
    (tmp_path / "n1.log").write_text("\n".join(["timestamp, index, utilization.gpu [%]", *lines, ""]))
    run(tmp_path, tmp_path / "n1.log")
    windows = sums(tmp_path / "root")
    assert [(one.observed_ms, one.samples) for one in windows] == [(1_200_000, 40)] * 2
    assert [one.util_sum / one.util_ms for one in windows] == [0.0, 50.0]


def test_the_zone_decides_where_in_time_a_log_lies(tmp_path):
    log = plain_log(tmp_path / "n1.csv", ROWS)
    told = run(tmp_path, log, zone=ZoneInfo("America/Chicago"), zone_name="America/Chicago")[0]
    assert told.first_ms == START_MS + 6 * 3_600_000
    assert "no_zone" not in {one["kind"] for one in told.unknown}
    header = Reader(told.segment)
    header.read()
    assert header.header is not None
    assert header.header.extra["imported"]["zone"] == "America/Chicago"


def test_stamps_of_the_future_are_said(tmp_path):
    log = plain_log(tmp_path / "n1.csv", ROWS, start_ms=NOW_MS + 5000)
    assert "future" in {one["kind"] for one in run(tmp_path, log)[0].unknown}


def test_a_sealed_import_is_still_known(tmp_path):
    pytest.importorskip("polars")
    log = plain_log(tmp_path / "n1.csv", ROWS)
    run(tmp_path, log)
    done = list(seal([str(tmp_path / "root")], now_utc=NOW_MS / 1000, remove=True))
    assert [one.removed for one in done] == [True]
    assert run(tmp_path, log)[0].state == KEPT


def test_wrong_use_is_refused(tmp_path):
    log = plain_log(tmp_path / "n1.csv", ROWS)
    other = plain_log(tmp_path / "n2.csv", ROWS)
    with pytest.raises(UsageError, match="--host"):
        run(tmp_path, log, other, host="n9")
    with pytest.raises(UsageError, match="--day"):
        run(tmp_path, log, day="tomorrow")
    with pytest.raises(UsageError, match="no file"):
        run(tmp_path, tmp_path / "nothing.csv")


def test_a_segment_is_there_whole_or_not_at_all(tmp_path, monkeypatch):
    log = plain_log(tmp_path / "n1.csv", ROWS)
    from fleetcraft.store.files import Files

    class Full(Files):
        def sync(self, descriptor):
            raise OSError(28, os.strerror(28))

    asked = Asked(paths=[str(log)], root=str(tmp_path / "root"))
    with pytest.raises(Exception, match="No space"):
        list(import_logs(asked, now_ms=NOW_MS, files=Full()))
    assert files_under(tmp_path / "root") == []
    assert run(tmp_path, log)[0].state == DONE


@pytest.mark.skipif(not ARCHIVE.exists(), reason="the archive of logs is not beside this checkout")
def test_a_doubled_log_of_the_archive_keeps_its_hours(tmp_path):
    told = run(tmp_path, ARCHIVE / "host23.csv")[0]
    assert told.rows == 1201
    assert sums(tmp_path / "root")[0].observed_ms / 3.6e6 == pytest.approx(5.012, abs=0.001)
    assert json.loads(json.dumps(told.as_json()))["interval_s"] == 30.0
