"""Simulated GPUs do what attempts on them do, and nothing else."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from fleetcraft.telemetry.api import HostState, Reason
from fleetcraft.telemetry.simulated import SimulatedSensor
from fleetcraft.telemetry.simulated_load import LOAD_VARIABLE, Seen, own_processes, parse_load
from fleetcraft.testing.clock import ManualClock
from tests.support.waiting import wait_for

_GIB = 2**30


class Bench:
    def __init__(self, count=2):
        self.clock = ManualClock()
        self.running: list[Seen] = []
        self.sensor = SimulatedSensor(count, "here", clock=self.clock, processes=lambda: list(self.running))

    def run(self, pid, device=0, *, mark="a", load="", cpu_ticks=0):
        self.running.append(Seen(pid=pid, mark=mark, uuids=(f"SIM-here-{device}",), load=load, cpu_ticks=cpu_ticks))

    def values(self, device=0):
        return self.sensor.read().readings[device].values


def test_an_idle_device_draws_what_idle_devices_draw():
    values = Bench().values()
    assert (values["util_pct"], values["power_w"], values["memory_used_bytes"]) == (0.0, 80.0, 0)


def test_an_attempt_loads_its_device_by_the_default():
    bench = Bench()
    bench.run(10)
    values = bench.values()
    assert (values["util_pct"], values["memory_used_bytes"]) == (90.0, 32 * _GIB)
    assert values["power_w"] == 80 + 6.2 * 90
    assert bench.values(1)["util_pct"] == 0.0


def test_all_processes_of_an_attempt_are_one_load():
    bench = Bench()
    bench.run(10)
    bench.run(11, load="30:4")
    values = bench.values()
    # The shell knows nothing; the program below it was told.
    assert (values["util_pct"], values["memory_used_bytes"], values["own_pids"]) == (30.0, 4 * _GIB, 2)


def test_attempts_that_share_a_device_add_up_to_what_it_has():
    bench = Bench()
    bench.run(10, mark="a", load="40:10")
    bench.run(11, mark="b", load="30:20")
    assert (bench.values()["util_pct"], bench.values()["memory_used_bytes"]) == (70.0, 30 * _GIB)
    bench.run(12, mark="c")
    assert (bench.values()["util_pct"], bench.values()["memory_used_bytes"]) == (100.0, 62 * _GIB)
    bench.run(13, mark="d")
    assert bench.values()["memory_used_bytes"] == 80 * _GIB


def test_who_has_no_attempt_is_no_load():
    bench = Bench()
    bench.run(10, mark="")
    assert bench.values()["util_pct"] == 0.0
    assert bench.values()["own_pids"] == 0


def test_a_resident_holds_memory_always_and_works_only_while_its_cpus_do():
    bench = Bench()
    bench.run(10, mark="L1:resident:0:1.0", cpu_ticks=5)
    assert (bench.values()["util_pct"], bench.values()["memory_used_bytes"]) == (0.0, 32 * _GIB)
    bench.running.clear()
    bench.run(10, mark="L1:resident:0:1.0", cpu_ticks=25)
    assert bench.values()["util_pct"] == 90.0
    assert bench.values()["util_pct"] == 0.0


def test_the_counter_is_the_integral_of_the_power_that_was_told():
    bench = Bench()
    told_j, before = 0.0, bench.values()
    for step in range(6):
        bench.clock.advance(10.0)
        if step == 2:
            bench.run(10, load="50")
        if step == 4:
            bench.running.clear()
        told_j += before["power_w"] * 10.0
        before = bench.values()
        assert before["energy_mj"] == pytest.approx(told_j * 1000, abs=1)
    assert told_j == pytest.approx(4 * 800 + 2 * (80 + 310) * 10)


def test_the_same_tasks_and_the_same_clock_give_the_same_figures():
    def walk():
        bench = Bench()
        for step in range(5):
            bench.run(step, mark=str(step), load=f"{step * 10}")
            bench.clock.advance(1.0)
            yield bench.sensor.read()

    assert list(walk()) == list(walk())


def test_none_is_no_gpu_and_foreign_memory_is_what_a_test_says():
    assert SimulatedSensor(0, "here").read().state is HostState.NO_GPU
    bench = Bench()
    bench.sensor.used_bytes["SIM-here-0"] = 5 * _GIB
    values = bench.values()
    assert (values["foreign_memory_bytes"], values["own_memory_bytes"]) == (5 * _GIB, 0)
    assert bench.sensor.occupancy("SIM-here-0").used_bytes == 5 * _GIB
    assert bench.sensor.read().readings[0].reasons["xid"] is Reason.NOT_FOUND


@pytest.mark.parametrize(
    ("text", "load"),
    (("90", (90.0, None)), ("12.5:3", (12.5, 3 * _GIB)), ("250", (100.0, None)), ("-3:-1", (0.0, 0)), ("much", None),
     ("50:", None), ("nan:1", None), ("1:inf", None), ("", None)),
)  # fmt: skip
def test_a_load_is_a_percentage_and_gibibytes(text, load):
    assert parse_load(text) == load


def test_real_processes_are_found_by_what_they_were_started_with(tmp_path):
    prefix = f"SIM-test{os.getpid()}-"
    environ = {"CUDA_VISIBLE_DEVICES": f"{prefix}0,{prefix}1", "FLEETCRAFT_MARK": "a mark", LOAD_VARIABLE: "25:1"}
    environ["FLEETCRAFT_LIFE"] = "a-life"
    assert list(own_processes(prefix)) == []
    child = subprocess.Popen([sys.executable, "-c", "input()"], env={**os.environ, **environ}, stdin=subprocess.PIPE)
    try:
        # Between fork and exec it still has the environment of this process.
        wait_for(lambda: list(own_processes(prefix)), "the process shows its own environment")
        (seen,) = own_processes(prefix)
        assert (seen.pid, seen.mark, seen.uuids, seen.load) == (
            child.pid, "a mark", (f"{prefix}0", f"{prefix}1"), "25:1",
        )  # fmt: skip
        # The tasks of another spool are not done to the devices of this one.
        assert list(own_processes(prefix, str(tmp_path))) == []
        (tmp_path / "a-life").mkdir()
        assert [seen.pid for seen in own_processes(prefix, str(tmp_path))] == [child.pid]
        sensor = SimulatedSensor(3, prefix[4:-1])
        assert [reading.values["util_pct"] for reading in sensor.read().readings] == [25.0, 25.0, 0.0]
    finally:
        child.communicate(b"\n", timeout=30)
    assert list(own_processes(prefix)) == []
