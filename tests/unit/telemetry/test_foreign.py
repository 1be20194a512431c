"""Logs of other tools: what is clean is read fast, what is not is read line by line, and both say the same."""

from __future__ import annotations

import random
from zoneinfo import ZoneInfo

import pytest

from fleetcraft.telemetry import foreign
from fleetcraft.telemetry.api import Reason
from fleetcraft.telemetry.foreign import is_log, parse_log
from fleetcraft.telemetry.foreign_bursts import interval_of
from tests.support.telemetry_files import ARCHIVE

HEAD = "timestamp,mem_used_mib,mem_total_mib,util_pct,power_w\n"
MIB = 1 << 20


def row(second: int, rest: str = "5,97871,0,84.96") -> str:
    return f"2026/07/19 22:{second // 60:02d}:{second % 60:02d}.250,{rest}\n"


def kinds(log) -> set[str]:
    return {one.kind for one in log.findings}


def test_a_clean_log_is_in_our_units_and_in_utc():
    log = parse_log((HEAD + row(0) + row(30, "2684,97871,100,130.16")).encode())
    assert log.is_fast
    assert log.utc_ms == [1784498400250, 1784498430250]
    assert log.columns == {
        "memory_used_bytes": [5 * MIB, 2684 * MIB], "memory_total_bytes": [97871 * MIB] * 2,
        "util_pct": [0.0, 100.0], "power_w": [84.96, 130.16],
    }  # fmt: skip
    assert (log.device, log.malformed, log.cut_tail, log.zone_known) == (None, 0, False, False)
    assert kinds(log) == {"no_zone", "no_device"}
    assert log.problems == ()


@pytest.mark.parametrize(
    ("text", "rows", "malformed", "kind"),
    (
        ("", 0, 0, None),
        (HEAD, 0, 0, None),
        (HEAD + row(0) + "2026/07/19 22:00:30.250,5,978", 1, 0, "cut_tail"),
        (HEAD + row(0) + "garbage\n" + row(30), 2, 1, None),
        (HEAD + row(0) + "2026/07/19 22:00:30.250,5,978\n" + row(60), 2, 1, None),
        (HEAD + row(0) + "\0" * 40 + "\n" + row(30), 2, 0, "nul_run"),
        (HEAD + row(0) + "\0" * 40 + row(30) + row(60), 2, 1, "nul_run"),
        (HEAD + row(0) + HEAD + row(30), 2, 0, "headers"),
        (row(0) + row(30), 2, 0, "no_header"),
        ("a,b\n1,2\n", 0, 2, "no_header"),
        (HEAD + "Failed to initialize NVML: Driver/library version mismatch\n" + row(0), 1, 1, "tool_error"),
        (HEAD + row(0) + "2026/02/30 22:00:00.000,5,97871,0,84\n", 1, 1, None),
        (HEAD + row(0) + "2026/07/19 22:00:3٣.000,5,97871,0,84\n", 1, 1, None),
        (HEAD.replace("\n", "\r\n") + row(0).replace("\n", "\r\n"), 1, 0, None),
    ),
    ids=["empty", "head", "cut", "garbage", "short", "nul", "nul-head", "twice", "bare", "unknown", "error", "day",
         "digits", "crlf"],
)  # fmt: skip
def test_damage_is_counted_and_costs_no_other_row(text, rows, malformed, kind):
    log = parse_log(text.encode())
    assert (len(log.utc_ms), log.malformed) == (rows, malformed)
    assert all(len(column) == rows for column in log.columns.values())
    assert kind is None or kind in kinds(log)


def test_a_line_broken_in_two_does_not_become_a_row():
    log = parse_log((HEAD + row(0) + row(30).replace(",0,", "\n,0,") + row(60)).encode())
    assert (len(log.utc_ms), log.malformed) == (2, 2)


def test_a_cell_that_is_no_number_keeps_its_row_and_has_a_reason():
    cells = ["[N/A]", "N/A", "[Insufficient Permissions]", "what", "nan", "104", "9223372036854775807"]
    text = HEAD + "".join(row(30 * at, f"5,97871,{cell},80") for at, cell in enumerate(cells))
    log = parse_log(text.encode())
    assert len(log.utc_ms) == len(cells)
    assert log.columns["util_pct"] == [None, None, None, None, None, 100.0, None]
    assert log.reasons["util_pct"] == {
        Reason.UNSUPPORTED: 2, Reason.NO_PERMISSION: 1, Reason.PARSE: 1, Reason.NAN: 1, Reason.BLANK: 1
    }  # fmt: skip
    assert log.absent["util_pct"][3] is Reason.PARSE
    assert "clamped" in kinds(log)


@pytest.mark.parametrize("power", ("3690000000000.0", "-1", "inf", "1e400", "5001"))
def test_power_that_no_board_draws_is_no_number(power):
    log = parse_log((HEAD + row(0, f"5,97871,0,{power}") + row(30)).encode())
    assert log.columns["power_w"] == [None, 84.96]


def test_units_and_names_of_nvidia_smi_are_known():
    text = (
        "timestamp, index, uuid, name, utilization.gpu [%], memory.used [MiB], power.draw [W], pstate\n"
        "2026/07/19 22:00:00.250, 0, GPU-a, NVIDIA X, 7 %, 5 MiB, 84.96 W, P8\n"
        "2026/07/19 22:00:00.260, 1, GPU-b, NVIDIA Y, Rev 2, 8 %, 6 MiB, [N/A], P0\n"
    )
    log = parse_log(text.encode())
    assert log.device == ["GPU-a", "GPU-b"]
    assert log.names == {"GPU-a": "NVIDIA X", "GPU-b": "NVIDIA Y, Rev 2"}
    assert log.columns["memory_used_bytes"] == [5 * MIB, 6 * MIB]
    assert log.columns["power_w"] == [84.96, None]
    assert log.columns["performance_state"] == [8.0, 0.0]
    assert "no_device" not in kinds(log)


def test_a_later_header_may_have_other_columns():
    text = (
        "timestamp,util_pct\n2026/07/19 22:00:00.000,5\ntimestamp,util_pct,energy_mj\n2026/07/19 22:00:30.000,6,700\n"
    )
    log = parse_log(text.encode())
    assert log.columns == {"util_pct": [5.0, 6.0], "energy_mj": [None, 700.0]}
    assert log.reasons["energy_mj"] == {Reason.NOT_FOUND: 1}


def test_dmon_is_read_with_its_repeated_header():
    head = "#Date     Time      gpu  pwr  gtemp  sm  mem  fb\n#YYYYMMDD HH:MM:SS  Idx  W    C      %   %    MB\n"
    rows = " 20260719 23:59:58  0    71   30     45  10   600\n 20260719 23:59:58  1    72   31     -   10   700\n"
    log = parse_log((head + rows + head + rows.replace("58", "59")).encode())
    assert log.device == ["0", "1", "0", "1"]
    assert log.columns["util_pct"] == [45.0, None, 45.0, None]
    assert log.columns["memory_used_bytes"][0] == 600 * MIB
    assert log.columns["power_w"] == [71.0, 72.0, 71.0, 72.0]
    assert log.malformed == 0


def test_times_of_day_without_a_day_are_left_out_and_said():
    text = "#Time gpu pwr sm\n#HH:MM:SS Idx W %\n 23:59:58 0 71 45\n 00:00:08 0 71 45\n"
    log = parse_log(text.encode())
    assert log.utc_ms == []
    assert "no_date" in kinds(log)
    log = parse_log(text.encode(), day="2026-07-19")
    assert log.utc_ms[1] - log.utc_ms[0] == 10_000


def test_dmon_without_any_time_cannot_be_placed():
    log = parse_log(b"# gpu pwr sm\n# Idx W %\n 0 71 45\n", day="2026-07-19")
    assert log.utc_ms == []
    assert "no_date" in kinds(log)


def test_several_gpus_without_a_name_are_told_by_their_place_and_it_is_said():
    text = HEAD + "".join(
        f"2026/07/19 22:{tick:02d}:00.{100 + 9 * gpu},5,97871,{gpu},80\n" for tick in range(5) for gpu in range(4)
    )
    log = parse_log(text.encode())
    assert log.device == ["0", "1", "2", "3"] * 5
    assert next(one for one in log.findings if one.kind == "burst").count == 4
    assert log.interval_ms == 60_000
    assert log.problems


def test_a_second_logger_is_found_and_is_no_second_gpu():
    rows = [row(second) for second in range(0, 300, 30)]
    both = sorted([*rows[1:], *(one.replace(".250", ".640") for one in rows)])
    log = parse_log((HEAD + "".join(both)).encode())
    assert log.device is None
    assert log.interval_ms == 30_000
    assert next(one for one in log.findings if one.kind == "second_logger").count == 9


@pytest.mark.parametrize("apart", (1, 11_000, 14_000))
def test_the_interval_is_that_of_one_logger(apart):
    one = list(range(0, 3_000_000, 30_000))
    assert interval_of(sorted([*one, *(stamp + apart for stamp in one)])) == 30_000
    assert interval_of([5]) is None


def test_a_clock_that_steps_back_is_said():
    log = parse_log((HEAD + row(50) + row(49) + row(80)).encode())
    finding = next(one for one in log.findings if one.kind == "backward")
    assert (finding.count, "1000 ms" in finding.text) == (1, True)


def test_a_step_back_by_an_hour_asks_for_the_zone():
    rows = "2026/11/01 01:59:50.000,5,97871,0,8\n2026/11/01 01:00:20.000,5,97871,0,8\n"
    assert "no_zone_hour" in kinds(parse_log((HEAD + rows).encode()))
    log = parse_log((HEAD + rows).encode(), zone=ZoneInfo("America/Chicago"))
    assert log.utc_ms[1] - log.utc_ms[0] == 30_000


def test_a_stamp_alone_in_the_hour_that_comes_twice_is_ambiguous():
    rows = "2026/11/01 01:30:00.000,5,97871,0,8\n"
    assert "ambiguous" in kinds(parse_log((HEAD + rows).encode(), zone=ZoneInfo("America/Chicago")))


def test_an_hour_that_never_was_is_said():
    rows = "2026/03/08 02:30:00.000,5,97871,0,8\n"
    assert "missing_hour" in kinds(parse_log((HEAD + rows).encode(), zone=ZoneInfo("America/Chicago")))


@pytest.mark.parametrize(
    ("stamp", "utc_ms"),
    (
        ("2026-07-19T22:00:00Z", 1784498400000), ("2026-07-19 22:00:00.5+02:00", 1784491200500),
        ("1784498400", 1784498400000), ("1784498400.25", 1784498400250), ("1784498400000", 1784498400000),
    ),
)  # fmt: skip
def test_a_stamp_that_tells_its_zone_needs_none(stamp, utc_ms):
    log = parse_log(f"timestamp,util_pct\n{stamp},5\n".encode(), zone=ZoneInfo("Asia/Kathmandu"))
    assert (log.utc_ms, log.zone_known) == ([utc_ms], True)


def test_semicolons_and_decimal_commas_of_a_spreadsheet():
    log = parse_log(b"timestamp;mem_used_mib;power_w\n2026/07/19 22:00:00.250;5;285,50\n")
    assert log.columns["power_w"] == [285.5]
    assert "decimal_comma" in kinds(log)


def test_what_is_a_log_is_seen_from_its_head():
    assert is_log((HEAD + row(0)).encode())
    assert is_log(row(0).encode())
    assert not is_log(b"\x7fELF\x02\x01")
    assert not is_log(b"a,b,c\n1,2,3\n")


@pytest.mark.parametrize("seed", range(20))
def test_both_paths_say_the_same(monkeypatch, seed):
    rng = random.Random(seed)
    words = ["0", "5", "100", "101", " 7", "N/A", "", "1_0", "nan", "-", "3e2", "0x1", "+4"]
    lines = [row(30 * at, f"{rng.choice(words)},97871,{rng.choice(words)},{rng.choice(words)}") for at in range(30)]
    data = (HEAD + "".join(lines)).encode()
    zone = rng.choice([None, ZoneInfo("America/Chicago")])
    usual = parse_log(data, zone=zone)
    monkeypatch.setattr(foreign, "read_clean", lambda text, zone: None)
    careful = parse_log(data, zone=zone)
    assert (usual.utc_ms, usual.columns, usual.reasons) == (careful.utc_ms, careful.columns, careful.reasons)
    assert (usual.absent, usual.malformed, usual.zone_known) == (careful.absent, careful.malformed, careful.zone_known)


@pytest.mark.skipif(not ARCHIVE.exists(), reason="the archive of logs is not beside this checkout")
def test_every_row_of_the_archive_is_read_on_the_fast_path():
    logs = {path.stem: parse_log(path.read_bytes()) for path in sorted(ARCHIVE.glob("*.csv"))}
    assert all(log.is_fast for log in logs.values())
    assert sum(len(log.utc_ms) for log in logs.values()) == 177_887
    assert sum(log.malformed for log in logs.values()) == 0
    doubled = {host for host, log in logs.items() if "second_logger" in kinds(log)}
    assert doubled == {"host04", "host06", "host23", "host29", "host52"}
    assert {log.interval_ms for log in logs.values()} == {None, 30_000}
    assert sum(one.count for log in logs.values() for one in log.findings if one.kind == "backward") == 18
