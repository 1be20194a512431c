"""Answers the cases about sensors (errors of the driver, MIG, power, energy, utilization) with the real binding.

A case is {"id", "kind", "input", "expected"}; which question it asks shows in the names of its input.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fleetcraft.core.errors import UsageError
from fleetcraft.telemetry import energy, gpm
from fleetcraft.telemetry.api import DeviceState, HostState, Reading, Reason
from fleetcraft.telemetry.fields import NAMES
from fleetcraft.telemetry.interval import SHORTEST_S, check_interval_s
from fleetcraft.telemetry.nvml import NvmlSensor
from fleetcraft.telemetry.nvml_power import plausible
from fleetcraft.telemetry.rollup import Roller
from fleetcraft.testing.clock import ManualClock
from tests.support.mock_nvml import MockNvml, uuid

KINDS = frozenset({"nvml_error", "mig", "energy", "util", "power"})
_GIB, _MIB = 2**30, 2**20
_CODES = {"NVML_ERROR_NOT_SUPPORTED": 3, "NOT_SUPPORTED": 3, "NVML_ERROR_UNKNOWN": 999, "NO_PERMISSION": 4,
          "NVML_ERROR_GPU_IS_LOST": 15, "NVML_ERROR_LIBRARY_NOT_FOUND(12)": 12,
          "NVML_ERROR_LIB_RM_VERSION_MISMATCH(18)": 18}  # fmt: skip


def load(path: Path) -> list[dict[str, Any]]:
    """The cases of a file that are about sensors."""
    if not path.exists():
        return []
    cases = [json.loads(line) for line in path.read_text().splitlines() if line.strip()]
    return [case for case in cases if case["kind"] in KINDS]


class Lab:
    """The mock, a clock, and what is asked of them."""

    def __init__(self, mock: MockNvml, folder: Path) -> None:
        self.mock = mock
        self.folder = folder
        self.clock = ManualClock()

    def sensor(self, **options: Any) -> NvmlSensor:
        return self.mock.sensor(0.5, clock=self.clock, own=lambda pid: pid == 10, **options)

    def twice(self, sensor: NvmlSensor | None = None, passed_s: float = 30.0) -> tuple[Reading, ...]:
        sensor = sensor or self.sensor()
        sensor.read()
        self.clock.advance(passed_s)
        return sensor.read().readings


def told(reading: Reading, name: str) -> Any:
    """The number, or the reason why there is none; every field has one of them."""
    return reading.values[name] if name in reading.values else reading.reasons[name]


def check(case: dict[str, Any], lab: Lab) -> None:
    """Assert that our answer is the expected one."""
    given, expected = case["input"], case["expected"]
    fitting = [question for names, question in _QUESTIONS if names <= set(given)]
    assert len(fitting) == 1, f"{case['id']}: no question fits {sorted(given)}"
    fitting[0](lab, given, expected)


def _kernel_active(lab: Lab, given: Any, expected: Any) -> None:
    lab.mock.tell(util=f"0:{given['nvml_util']}", gpm=f"2:{given['gpm_sm_util']},5:{given['gpm_tensor']}")
    reading = lab.twice()[0]
    assert reading.values["util_pct"] == given["nvml_util"]
    assert reading.values["sm_active_pct"] == expected["sm_active"]
    # The two have names of their own: that a kernel was there is never called what it did.
    assert reading.values["tensor_pct"] == given["gpm_tensor"]


def _sample_hole(lab: Lab, given: Any, expected: Any) -> None:
    assert round(given["nvml_window_s"] / given["interval_s"], 4) == expected["observed_fraction_of_time"]
    # One look would see the end of the interval only; the driver's samples cover it.
    lab.mock.tell(util="0:100", samples="0:0,0:0,0:0,0:100")
    assert lab.twice(passed_s=given["interval_s"])[0].values["util_pct"] == 25.0


def _gpm_window(lab: Lab, given: Any, expected: Any) -> None:
    assert round(given["gpm_window_s"] / given["period_s"], 4) == expected["coverage_peer"]
    lab.mock.tell(gpm="2:40")
    sensor = lab.sensor()
    sensor.read()
    (watch,) = [group.gpu.gpm for group in sensor._groups.values()]
    assert watch is not None
    began = watch._before_mono
    lab.clock.advance(given["period_s"])
    sensor.read()
    assert (watch._before_mono - began) / given["period_s"] == expected["coverage_ours"]


def _gpm_too_close(lab: Lab, given: Any, expected: Any) -> None:
    lab.mock.tell(gpm="2:40")
    reading = lab.twice(passed_s=given["dt_ms"] / 1000)[0]
    assert reading.values.get("sm_active_pct") is expected["value"]
    assert told(reading, "sm_active_pct") == expected["reason"]


def _own_memory(lab: Lab, given: Any, expected: Any) -> None:
    device, ours = given["device_used_gib"], given["our_pid_used_gib"]
    lab.mock.tell(memory=f"0:{device * 1024}", procs=f"0:10:{ours * _GIB}")
    reading = lab.twice()[0]
    assert reading.values["own_memory_bytes"] == expected["process_mem_gib"] * _GIB
    assert reading.values["memory_used_bytes"] == expected["device_mem_gib"] * _GIB


def _reserved(lab: Lab, given: Any, expected: Any) -> None:
    lab.mock.tell(driver=given["driver"])
    reading = lab.twice()[0]
    assert reading.values["memory_used_bytes"] == expected["mem_used_mib"] * _MIB
    assert reading.values["memory_reserved_bytes"] == expected["mem_reserved_mib"] * _MIB
    assert reading.values["own_pids"] == len(given["processes"])


def _no_memory_info(lab: Lab, given: Any, expected: Any) -> None:
    lab.mock.tell(name=given["name"], fail=f"0:GetMemoryInfo={_CODES[given['nvmlDeviceGetMemoryInfo']]}")
    sensor = lab.sensor()
    reading = lab.twice(sensor)[0]
    assert sensor.devices()[0].memory_bytes is expected["mem_total"] is None
    assert told(reading, "memory_total_bytes") == expected.get("label", expected.get("reason"))
    assert ("unified_memory" in reading.notes) is (expected.get("label") == "unified_memory")


def _numa_memory(lab: Lab, given: Any, expected: Any) -> None:
    lab.mock.tell(name=given["name"], memory=f"0:{given['mem_used_mib_idle']}")
    reading = lab.twice()[0]
    # The class is decided elsewhere; what it needs is here: pages, and that no process holds them.
    assert reading.values["memory_used_bytes"] == given["mem_used_mib_idle"] * _MIB
    assert (reading.values["own_pids"], reading.processes) == (len(given["processes"]), ())


def _all_ones(lab: Lab, given: Any, expected: Any) -> None:
    assert given["usedGpuMemory"] == 2**64 - 1
    lab.mock.tell(procs="0:10:-1")
    reading = lab.twice()[0]
    assert reading.processes is not None
    assert reading.processes[0].memory_bytes is expected["process_mem"]
    assert "own_memory_bytes" not in reading.values


def _lost(lab: Lab, given: Any, expected: Any) -> None:
    count, lost = given["gpus"], {int(index): code for index, code in given["handle_by_index"].items()}
    lab.mock.tell(gpus=count)
    before = lab.sensor().devices()
    lab.mock.tell(fail=",".join(f"{index}:GetHandleByIndex={_CODES[code]}" for index, code in lost.items()))
    sensor = lab.sensor()
    sensor.expect(before)
    readings = lab.twice(sensor)
    assert [reading.uuid for reading in readings] == [uuid(index) for index in range(expected["gpus_listed"])]
    for index, reading in enumerate(readings):
        assert reading.state == (expected[f"gpu{index}_state"] if index in lost else "ok")


def _count_drops(lab: Lab, given: Any, expected: Any) -> None:
    lab.mock.tell(gpus=given["baseline_uuids"])
    before = lab.sensor().devices()
    lab.mock.tell(absent=2)
    sensor = lab.sensor()
    sensor.expect(before)
    assert len(sensor.devices()) == given["now_uuids"]
    readings = {reading.uuid: reading for reading in lab.twice(sensor)}
    missing = [key for key, reading in readings.items() if "missing" in reading.notes]
    assert missing == [uuid(2)]
    assert len(missing) == expected["missing"]
    assert readings[uuid(2)].state is DeviceState.LOST
    assert readings[uuid(3)].values["temperature_c"] == 44  # its own figure, though it has another index now


def _hang(lab: Lab, given: Any, expected: Any) -> None:
    lab.mock.tell(gpus=2, block=f"1:{given['call'].removeprefix('nvmlDevice')}")
    sensor = lab.sensor()
    well, hung = lab.twice(sensor)
    assert hung.state == expected["gpu_state"]
    assert well.state is DeviceState.OK
    lab.clock.advance(given["blocked_s"])
    assert [reading.state for reading in sensor.read().readings] == [DeviceState.OK, DeviceState.HUNG]


def _no_start(lab: Lab, given: Any, expected: Any) -> None:
    has_driver = given.get("proc_driver_nvidia", False)
    lab.mock.tell(init=_CODES[given["nvmlInit"]])
    sweep = lab.sensor(signs=(str(lab.folder if has_driver else lab.folder / "none"),)).read()
    assert sweep.state == HostState(expected["host_state"])
    assert sweep.reason
    if "reason" in expected:
        assert expected["reason"] in sweep.reason


def _process_struct(lab: Lab, given: Any, expected: Any) -> None:
    lab.mock.tell(driver=given["driver"], procs="0:10:1000")
    reading = lab.twice()[0]
    assert told(reading, "own_pids") is Reason.UNTRUSTED
    assert reading.processes is None
    assert "process_list_untrusted" in reading.notes
    assert reading.state == expected["device_metrics"]


def _mig_utilization(lab: Lab, given: Any, expected: Any) -> None:
    lab.mock.tell(mig="0:2", gpm="1:35,2:20")
    parent, child, _other = lab.twice()
    assert parent.values.get("util_pct") is expected["util_pct"]
    assert told(parent, "util_pct") == expected["label"].lower()
    assert child.values["util_pct"] == 35.0
    lab.mock.tell(gpm="")
    parent, child, _other = lab.twice(lab.sensor())
    assert (told(parent, "util_pct"), told(child, "util_pct")) == (Reason.MIG, Reason.MIG)


def _mig_memory(lab: Lab, given: Any, expected: Any) -> None:
    code = _CODES[given["nvmlDeviceGetMemoryInfo(parent)"]]
    lab.mock.tell(mig=f"0:{given['mig_children']}", fail=f"0:GetMemoryInfo={code}")
    parent, *children = lab.twice()
    assert parent.values.get("memory_used_bytes") is expected["parent_mem"]
    assert told(parent, "memory_used_bytes") == expected["reason"]
    assert len(children) == given["mig_children"]
    assert all("memory_used_bytes" in child.values for child in children)


def _module_power(lab: Lab, given: Any, expected: Any) -> None:
    refused, milliwatts = given["NVML_POWER_SCOPE_MODULE"]
    assert (given["NVML_POWER_SCOPE_GPU"], refused) == ("NOT_SUPPORTED", 0)
    lab.mock.tell(name=given["name"], scope=f"0:185:1:{milliwatts}")
    reading = lab.twice()[0]
    assert reading.values["power_w"] == expected["power_w"]
    assert {1: "module(cpu+gpu)", 0: "gpu"}[int(reading.values["power_scope"])] == expected["scope"]


def _reset(lab: Lab, given: Any, expected: Any) -> None:
    roller = Roller(10_000)
    for place, counter in enumerate(given["mj"]):
        roller.add(0, place * 10_000, "ok", {"energy_mj": counter}, place)
    (window,) = roller.close(len(given["mj"]))
    assert (window.sums["counter_mj"], window.sums["counter_resets"]) == (expected["energy_mj"], expected["resets"])
    # What was used over the reset is no part of the time that the sum is said to cover.
    assert window.sums["counter_ms"] == (len(given["mj"]) - 1 - expected["resets"]) * 10_000


def _resolution(lab: Lab, given: Any, expected: Any) -> None:
    assert expected["energy_j"] is None
    assert given["delta_mj"] == 0
    # The counter stands still for up to 100 ms; samples are never that close, so no such difference comes to be.
    with pytest.raises(UsageError, match="must be from 1s"):
        check_interval_s(given["window_s"])
    assert SHORTEST_S >= 0.1 * 10


def _host_energy(lab: Lab, given: Any, expected: Any) -> None:
    def refuse(_path: str) -> str:
        raise PermissionError(13, given["open energy_uj"])

    assert expected["cpu_energy"] is None
    assert energy.host_energy_uj(refuse) == expected["reason"]
    assert energy.host_energy_uj(lambda _path: "12345\n") == 12345


def _spike(lab: Lab, given: Any, expected: Any) -> None:
    found = [power if plausible(power, given["limit_w"]) else None for power in given["power_w"]]
    assert found == expected["power_w"]
    assert expected["flag"] == Reason.IMPLAUSIBLE
    lab.mock.tell(power="0:4000000")
    assert told(lab.twice()[0], "power_w") is Reason.IMPLAUSIBLE


def _wire_unit(lab: Lab, given: Any, expected: Any) -> None:
    assert expected["unit"] == "unverified"
    assert {20, 21, 60, 61} <= gpm.UNIT_UNVERIFIED
    assert not gpm.UNIT_UNVERIFIED & set(gpm.METRICS.values())
    assert not [name for name in NAMES if "per_s" in name or name.endswith(("_tx", "_rx"))]


_QUESTIONS: tuple[tuple[frozenset[str], Callable[[Lab, Any, Any], None]], ...] = tuple(
    (frozenset(names.split("|")), question)
    for names, question in (
        ("nvml_util|gpm_sm_util", _kernel_active),
        ("nvml_window_s", _sample_hole),
        ("gpm_window_s", _gpm_window),
        ("dt_ms", _gpm_too_close),
        ("device_used_gib", _own_memory),
        ("nvmlDeviceGetMemoryInfo_v1_used_mib", _reserved),
        ("nvmlDeviceGetMemoryInfo", _no_memory_info),
        ("mem_used_mib_idle", _numa_memory),
        ("usedGpuMemory", _all_ones),
        ("handle_by_index", _lost),
        ("baseline_uuids", _count_drops),
        ("blocked_s", _hang),
        ("nvmlInit", _no_start),
        ("driver|api", _process_struct),
        ("mig|nvmlDeviceGetUtilizationRates", _mig_utilization),
        ("nvmlDeviceGetMemoryInfo(parent)", _mig_memory),
        ("NVML_POWER_SCOPE_MODULE", _module_power),
        ("mj", _reset),
        ("delta_mj", _resolution),
        ("open energy_uj", _host_energy),
        ("power_w|limit_w", _spike),
        ("gpm_pcie_tx", _wire_unit),
    )
)
