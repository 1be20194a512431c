"""AMD GPUs: the binding, the tools that stand in for it, and what their texts mean."""

from __future__ import annotations

import json

import pytest

from fleetcraft.telemetry.amd import AmdSensor
from fleetcraft.telemetry.amd_text import Card, EnergyWatch, cards_of_amd_smi, cards_of_rocm_smi, read, share_power
from fleetcraft.telemetry.api import HostState, Reason
from fleetcraft.transports.api import Answer
from tests.support.fake_amdsmi import FakeAmdsmi

METRIC = [
    {
        "gpu": 0, "usage": {"gfx_activity": {"value": 97, "unit": "%"}},
        "power": {"socket_power": {"value": 717, "unit": "W"}},
        "mem_usage": {"total_vram": {"value": 1024, "unit": "MB"}, "used_vram": {"value": 512, "unit": "MB"}},
        "temperature": {"edge": "N/A", "hotspot": {"value": 61, "unit": "C"}},
        "energy": {"total_energy_consumption": {"value": 12.5, "unit": "J"}},
    },
    {"gpu": 1, "usage": {"gfx_activity": "N/A"}, "power": {"socket_power": {"value": 0, "unit": "W"}}},
]  # fmt: skip


class Tool:
    """A transport on which only some programs are there."""

    name = "local"

    def __init__(self, answers):
        self.answers = answers

    def run(self, argv, **_more):
        told = self.answers.get((argv[0], argv[1]))
        if told is None:
            return Answer(argv=tuple(argv), code=None, out="", err="", took_s=0.0, problem="not found")
        return Answer(argv=tuple(argv), code=0, out=json.dumps(told), err="", took_s=0.0)


def test_without_a_binding_the_tool_is_asked():
    tool = Tool(
        {
            ("amd-smi", "metric"): METRIC,
            ("amd-smi", "list"): [{"gpu": 0, "uuid": "aa-1", "bdf": "0000:01:00.0"}, {"gpu": 1, "uuid": "aa-2"}],
            ("amd-smi", "static"): [{"gpu": at, "asic": {"market_name": "MI250X", "oam_id": 3}} for at in range(2)],
        }
    )
    sensor = AmdSensor(transport=tool, binding=lambda: None, env={})
    first, second = sensor.read().readings
    assert [device.uuid for device in sensor.devices()] == ["aa-1", "aa-2"]
    assert first.values["util_pct"] == 97
    assert first.values["memory_used_bytes"] == 512 << 20
    assert first.values["power_w"] == 717
    assert first.values["energy_mj"] == 12_500
    assert first.values["temperature_c"] == 61
    assert second.reasons["power_w"] is Reason.SHARED
    assert second.reasons["util_pct"] is Reason.UNSUPPORTED


def test_the_older_tool_is_asked_last():
    card = {"GPU use (%)": "12", "Average Graphics Package Power (W)": "94.0", "VRAM Total Memory (B)": "64",
            "VRAM Total Used Memory (B)": "32", "Unique ID": "0xab"}  # fmt: skip
    sensor = AmdSensor(transport=Tool({("rocm-smi", "--showuse"): {"card0": card}}), binding=lambda: None, env={})
    reading = sensor.read().readings[0]
    assert (reading.uuid, reading.values["power_w"], reading.values["power_averaged"]) == ("0xab", 94.0, 1)


def test_without_any_source_there_is_a_reason():
    sensor = AmdSensor(transport=Tool({}), binding=lambda: None, env={})
    assert sensor.read().state in (HostState.NO_GPU, HostState.BROKEN)
    assert "amd-smi" in sensor.reason


def test_visibility_is_applied_twice():
    sensor = AmdSensor(
        binding=lambda: FakeAmdsmi(4), env={"ROCR_VISIBLE_DEVICES": "2,3", "HIP_VISIBLE_DEVICES": "1"}
    )  # fmt: skip
    assert [device.uuid for device in sensor.devices()] == ["amd-03"]


def test_a_counter_that_stands_still_under_load_is_none():
    watch = EnergyWatch()
    assert watch.check("a", 5.0, 300.0, 0.0) == 5.0
    assert watch.check("a", 5.0, 300.0, 0.5) == 5.0
    assert watch.check("a", 5.0, 300.0, 10.0) is Reason.UNSUPPORTED
    assert watch.check("a", 6.0, 300.0, 20.0) == 6.0
    assert watch.check("b", 5.0, None, 0.0) == watch.check("b", 5.0, None, 10.0) == 5.0


def test_two_dies_that_both_tell_keep_what_they_tell():
    cards = [Card(index=0, oam="1", values={"power_w": 200.0}), Card(index=1, oam="1", values={"power_w": 90.0})]
    share_power(cards)
    assert [card.values["power_w"] for card in cards] == [200.0, 90.0]


@pytest.mark.parametrize("told", ({}, [1], "x", None, [{"gpu": "zero"}]))
def test_another_shape_is_an_error_and_no_number(told):
    with pytest.raises(ValueError, match=r"\w"):
        cards_of_amd_smi(told)
    with pytest.raises(ValueError, match=r"\w"):
        cards_of_rocm_smi(told)


@pytest.mark.parametrize(
    ("told", "value"),
    (
        ("N/A", Reason.UNSUPPORTED), (None, Reason.NOT_FOUND), ({"value": "N/A", "unit": "W"}, Reason.UNSUPPORTED),
        ([], Reason.PARSE), (True, Reason.PARSE), (101, 100.0), (65535, Reason.IMPLAUSIBLE),
    ),
)  # fmt: skip
def test_a_value_is_a_number_or_a_reason(told, value):
    assert read("util_pct", told) == value
