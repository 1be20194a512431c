"""A parser of strange texts answers to every text, and no line of a log is passed over unsaid."""

from __future__ import annotations

from math import isfinite

from hypothesis import example, given
from hypothesis import strategies as st

from fleetcraft.telemetry.api import Device, Reason
from fleetcraft.telemetry.foreign import is_log, parse_log
from fleetcraft.telemetry.foreign_scan import scan
from fleetcraft.telemetry.smi_text import processes_of, rows_of, trouble_of
from fleetcraft.telemetry.values import field_of
from fleetcraft.telemetry.visibility import slurm_indices, visible_amd, visible_devices

HEADS = (
    "timestamp,mem_used_mib,mem_total_mib,util_pct,power_w",
    "timestamp, index, name, utilization.gpu [%]",
    "# Time gpu pwr sm",
    "#Date Time gpu sm",
)
_ROW = st.builds(
    "2026/07/{:02d} {:02d}:{:02d}:{:02d}.{:03d},{},{},{},{}".format,
    st.integers(1, 31), st.integers(0, 24), st.integers(0, 60), st.integers(0, 60), st.integers(0, 999),
    st.integers(0, 10**6), st.just(97871), st.integers(-1, 300), st.floats(0, 6000).map(lambda watts: f"{watts:.2f}"),
)  # fmt: skip
_LINES = st.lists(
    st.one_of(_ROW, st.text(max_size=30), st.sampled_from([*HEADS, "\0" * 9, "", "N/A,N/A"])), max_size=12
)
_NUMBERS = st.one_of(st.integers(), st.floats(), st.text(max_size=12)).map(str)


@given(st.binary(max_size=400))
@example(b"\xff\xfe\0\0")
@example(b"timestamp\n")
def test_any_bytes_have_an_answer(data):
    is_log(data)
    log = parse_log(data, day="2026-07-19")
    assert all(len(column) == len(log.utc_ms) for column in log.columns.values())


@given(_LINES, st.sampled_from(HEADS), st.booleans())
def test_every_line_is_a_row_or_is_counted(lines, head, ends):
    text = "\n".join([head, *lines]) + ("\n" if ends else "")
    log = parse_log(text.encode())
    seen = scan(text)
    counted = seen.blank + seen.zero_lines + seen.headers + seen.said + seen.bad_lines + seen.rows
    assert counted == seen.lines == len(text.replace("\r\n", "\n").replace("\r", "\n").split("\n")) - 1
    left_out = sum(one.count for one in log.findings if one.kind == "no_date")
    assert len(log.utc_ms) + log.malformed + left_out == seen.rows + seen.bad_lines
    for name, column in log.columns.items():
        absent = sum(value is None for value in column)
        assert absent == sum(log.reasons.get(name, {}).values()) == len(log.absent.get(name, {}))
        assert all(isfinite(value) for value in column if value is not None)


@given(st.sampled_from(["util_pct", "power_w", "memory_used_bytes", "energy_mj"]), _NUMBERS, st.sampled_from(",;\t"))
def test_a_cell_is_a_possible_number_or_a_reason(name, text, delimiter):
    cell = field_of(name, text, delimiter=delimiter)
    assert (cell.value is None) == isinstance(cell.reason, Reason)
    if cell.value is not None:
        assert isfinite(cell.value)
        assert cell.value >= 0
        assert name != "util_pct" or cell.value <= 100


@given(st.text(max_size=200))
def test_any_output_of_the_tool_has_an_answer(text):
    rows, bad = rows_of(text, ("uuid", "index", "name"))
    assert len(rows) + len(bad) == sum(bool(line.strip()) for line in text.replace("\r", "").split("\n"))
    processes_of(text)
    trouble_of(text, has_driver=True)


@given(st.text(alphabet="0123456789,-GPUMIabcdef/ ", max_size=40))
def test_what_is_visible_is_a_part_of_what_is_there(text):
    there = [Device(uuid=f"GPU-{letter * 8}", index=at, name="", memory_bytes=None) for at, letter in enumerate("abc")]
    for chosen in (visible_devices(there, text), visible_amd(there, {"ROCR_VISIBLE_DEVICES": text})):
        assert len(set(chosen)) == len(chosen)
        assert set(chosen) <= set(there)
    slurm_indices({"SLURM_JOB_GPUS": text})
