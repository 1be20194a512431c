"""What a sampler writes when devices, drivers, clocks and disks do not do as they should."""

from __future__ import annotations

import errno
import json
import os

import pytest

from fleetcraft.core.errors import UsageError
from fleetcraft.store.files import Files
from fleetcraft.telemetry import rollup
from fleetcraft.telemetry.api import DeviceState, GpuProcess, HostState, Reading, Reason, Sweep
from fleetcraft.telemetry.fields import NAMES
from fleetcraft.telemetry.sampler import SamplerOptions, run
from fleetcraft.telemetry.sampler_lock import Place, Taken, take_place
from fleetcraft.telemetry.sampling import Labels, Sampler
from fleetcraft.telemetry.segment_read import Reader
from fleetcraft.testing.clock import ManualClock
from fleetcraft.testing.files import FaultyFiles, FullFiles
from tests.support.sensing import ScriptedSensor, device


def _loaded(*words):
    found = rollup.load(*words)
    assert found is not None
    return found


class Bench:
    """A sampler in a folder, whose time goes on by one interval for each turn."""

    def __init__(self, folder, sensor=None, files=None, interval_s=10.0, **more):
        self.folder = str(folder / "host")
        os.makedirs(self.folder, exist_ok=True)
        self.clock = ManualClock()
        self.said: list[str] = []
        self.sensor = sensor or ScriptedSensor()
        self.sampler = Sampler(
            folder=self.folder, labels=Labels(host="host", job="77"), interval_s=interval_s, sensor=self.sensor,
            clock=self.clock, files=files or Files(), boot_id=lambda: "boot-1", say=self.said.append, **more,
        )  # fmt: skip
        self.sampler.begin()

    def turn(self, count=1):
        for _ in range(count):
            self.sampler.tick()
            self.clock.advance(self.sampler.interval_s)

    def segments(self):
        names = sorted(name for name in os.listdir(self.folder) if name.endswith("-77.csv"))
        return [self.read(name) for name in names]

    def read(self, name):
        reader = Reader(os.path.join(self.folder, name))
        return reader, reader.read()

    def statements(self):
        return [(told.kind, dict(told.body)) for _, piece in self.segments() for told in piece.statements]

    def state(self):
        with open(os.path.join(self.folder, "sampler.json")) as source:
            return json.load(source)


def _ok(uuid, **values):
    return Reading(uuid=uuid, values=values)


def test_a_quiet_host_is_rows_and_nothing_else(tmp_path):
    bench = Bench(tmp_path)
    bench.turn(3)
    ((reader, piece),) = bench.segments()
    assert [(row[0], row[3], row[4]) for row in piece.rows] == [
        ("0", "", "0"), ("0", "", "1"), ("1", "10000", "0"), ("1", "10000", "1"), ("2", "10000", "0"),
        ("2", "10000", "1"),
    ]  # fmt: skip
    assert piece.statements == []
    assert piece.malformed == 0
    assert (reader.header.host, reader.header.job, reader.header.boot_id) == ("host", "77", "boot-1")
    assert {n: slot.device for n, slot in reader.devices.items()} == {0: device(0), 1: device(1)}
    assert [slot.baseline_bytes for slot in reader.header.slots] == [0, 0]
    assert bench.state()["state"] == "ok"


def test_a_hung_device_is_rows_without_values_and_two_statements(tmp_path):
    def speak(tick):
        first = _ok("GPU-00000000", util_pct=50.0)
        if tick not in (2, 3):
            return Sweep(state=HostState.OK, readings=(first, _ok("GPU-00000001", util_pct=60.0)))
        bench.clock.advance(7.0)  # the deadline of the call
        hung = Reading(
            uuid="GPU-00000001", state=DeviceState.HUNG, reasons=dict.fromkeys(NAMES, Reason.HUNG),
            notes=(f"hung_for:{tick}",),
        )  # fmt: skip
        return Sweep(state=HostState.OK, readings=(first, hung))

    bench = Bench(tmp_path, ScriptedSensor(2, speak))
    bench.turn(2)
    asked_ms = round(bench.clock.utc() * 1000)
    bench.turn(4)
    ((_, piece),) = bench.segments()
    assert [row[5] for row in piece.rows if row[4] == "1"] == ["ok", "ok", "hung", "hung", "ok", "ok"]
    assert [row[6] for row in piece.rows if row[4] == "0"] == ["50"] * 6
    assert [told for told in bench.statements() if told[0] != "gap"] == [
        ("hung", {"uuid": "GPU-00000001", "since_ms": asked_ms}),
        ("resumed", {"uuid": "GPU-00000001", "from_ms": asked_ms, "was": "hung"}),
    ]


def test_a_hung_host_keeps_its_rows_and_says_since_when(tmp_path):
    def speak(tick):
        if tick == 1:
            return Sweep(state=HostState.HUNG, reason="no answer within 10 s")
        return Sweep(state=HostState.OK, readings=bench.sensor.idle())

    bench = Bench(tmp_path, ScriptedSensor(2, speak))
    bench.turn(3)
    ((_, piece),) = bench.segments()
    assert [row[5] for row in piece.rows] == ["ok", "ok", "hung", "hung", "ok", "ok"]
    kinds = [kind for kind, _ in bench.statements()]
    assert kinds == ["host", "hung", "hung", "hung", "host", "resumed", "resumed"]


def test_a_device_that_is_left_out_is_lost_and_one_that_is_new_gets_a_number(tmp_path):
    def speak(tick):
        if tick == 1:
            return Sweep(state=HostState.OK, readings=(_ok("GPU-00000000"),))
        if tick == 2:
            bench.sensor.listed.append(device(7))
            return Sweep(state=HostState.OK, readings=tuple(_ok(one.uuid) for one in bench.sensor.listed))
        return Sweep(state=HostState.OK, readings=bench.sensor.idle())

    bench = Bench(tmp_path, ScriptedSensor(2, speak))
    bench.turn(4)
    ((reader, piece),) = bench.segments()
    assert [(row[4], row[5]) for row in piece.rows][2:7] == [
        ("0", "ok"), ("1", "lost"), ("0", "ok"), ("1", "ok"), ("2", "ok"),
    ]  # fmt: skip
    assert reader.devices[2].device == device(7)
    assert [kind for kind, _ in bench.statements()] == ["lost", "devices", "resumed"]


def test_processes_and_notes_are_said_when_they_change(tmp_path):
    def speak(tick):
        held = () if tick == 0 else (GpuProcess(pid=42, memory_bytes=1000 + tick),)
        notes = ("process_list_untrusted",) if tick >= 3 else ()
        return Sweep(
            state=HostState.OK, readings=(Reading(uuid="GPU-00000000", values={}, processes=held, notes=notes),)
        )

    bench = Bench(tmp_path, ScriptedSensor(1, speak))
    bench.turn(6)
    assert bench.statements() == [
        ("processes", {"uuid": "GPU-00000000", "pids": [[42, 1001]]}),
        ("note", {"uuid": "GPU-00000000", "notes": ["process_list_untrusted"]}),
    ]
    assert bench.sampler.describe()["notes"] == {"GPU-00000000": ["process_list_untrusted"]}


def test_a_sensor_that_raises_does_not_end_the_sampler(tmp_path):
    def speak(tick):
        if tick == 1:
            raise RuntimeError("boom")
        return Sweep(state=HostState.OK, readings=bench.sensor.idle())

    bench = Bench(tmp_path, ScriptedSensor(1, speak))
    bench.turn(3)
    ((_, piece),) = bench.segments()
    assert [row[5] for row in piece.rows] == ["ok", "broken", "ok"]
    assert "boom" in bench.statements()[0][1]["reason"]


def test_a_clock_that_never_steps_and_did_begins_a_new_segment(tmp_path):
    bench = Bench(tmp_path)
    bench.turn(2)
    bench.clock.mono_s = 5.0
    bench.sampler.boot_id = lambda: "boot-2"
    bench.turn(2)
    (first, one), (second, two) = bench.segments()
    assert (first.header.boot_id, second.header.boot_id) == ("boot-1", "boot-2")
    assert [told.kind for told in one.statements] == ["end"]
    assert two.rows[0][3] == ""


def test_a_set_wall_clock_a_sleep_and_a_late_tick_are_told_apart(tmp_path):
    bench = Bench(tmp_path)
    bench.turn(2)
    bench.clock.jump_utc(-3600)
    bench.turn(1)
    bench.clock.suspend(500)
    bench.turn(1)
    bench.clock.advance(30)
    bench.turn(1)
    told = bench.statements()
    assert [(kind, body.get("step_ms"), body.get("why")) for kind, body in told] == [
        ("clock", -3_600_000, None), ("gap", None, "the machine slept"), ("gap", None, "late"),
    ]  # fmt: skip
    assert len(bench.segments()) == 1


def test_after_a_clock_was_set_back_far_there_is_no_roll_up(tmp_path):
    bench = Bench(tmp_path)
    bench.turn(70)
    ((reader, _),) = bench.segments()
    assert os.path.exists(rollup.rollup_path(reader.path))
    bench.clock.jump_utc(-3600)
    bench.turn(70)
    assert not os.path.exists(rollup.rollup_path(reader.path))


def test_it_rotates_by_size_and_by_age(tmp_path):
    bench = Bench(tmp_path, most_bytes=4000)
    bench.turn(60)
    sized = bench.segments()
    assert len(sized) > 2
    assert sum(len(piece.rows) for _, piece in sized) == 120
    assert all(os.path.getsize(reader.path) < 4600 for reader, _ in sized)
    bench.sampler.most_bytes = 1 << 30
    bench.clock.advance(90_000)
    bench.turn(1)
    assert len(bench.segments()) == len(sized) + 1
    for reader, piece in bench.segments()[:-1]:
        assert piece.statements[-1].kind == "end"
        found = _loaded(rollup.rollup_path(reader.path), os.path.basename(reader.path))
        assert sum(one.sums["samples"] for one in found.windows) == len(piece.rows)


@pytest.mark.parametrize("short", (False, True))
def test_a_full_disk_pauses_and_the_pause_is_written_down(tmp_path, short):
    files = FullFiles(full=False, short_writes=short)
    bench = Bench(tmp_path, files=files)
    bench.turn(3)
    from_ms = round((bench.clock.utc() - 10) * 1000)
    files.full = True
    bench.turn(5)
    assert bench.sampler.state == "storage_full"
    assert len(bench.said) == 1
    assert "ENOSPC" in bench.said[0]
    files.full = False
    bench.turn(2)
    assert bench.sampler.state == "ok"
    ((_, piece),) = bench.segments()
    seqs = [int(row[0]) for row in piece.rows]
    assert set(seqs) >= {0, 1, 2, 8, 9}
    assert short or not {3, 4, 5, 6, 7} & set(seqs)
    told = bench.statements()
    assert short or len(told) == 1  # where half of a write went through, it may have said so before
    kind, body = told[-1]
    assert (kind, body["from_ms"], body["why"]) == ("gap", from_ms, "the storage was full")
    assert body["to_ms"] == from_ms + 60_000
    assert len(bench.said) == 2


def test_a_disk_that_is_full_from_the_start_leaves_no_empty_segment(tmp_path):
    files = FullFiles(kinds=frozenset({"write"}))
    bench = Bench(tmp_path, files=files)
    bench.turn(3)
    assert bench.segments() == []
    files.full = False
    bench.turn(2)
    ((_, piece),) = bench.segments()
    assert len(piece.rows) == 4


def test_a_storage_that_fails_gets_a_new_segment(tmp_path):
    failing: list[bool] = []
    files = FaultyFiles(Files(), lambda operation: errno.EIO if failing and operation.kind == "write" else None)
    bench = Bench(tmp_path, files=files)
    bench.turn(2)
    failing.append(True)
    bench.turn(2)
    failing.clear()
    bench.turn(4)
    (_, one), (_, two) = bench.segments()
    # Each failure lets the next try wait twice as long.
    assert [len(one.rows), len(two.rows)] == [4, 6]
    assert two.statements[0].kind == "gap"


def test_a_segment_that_was_removed_is_begun_anew_within_a_minute(tmp_path):
    bench = Bench(tmp_path)
    bench.turn(2)
    ((reader, _),) = bench.segments()
    os.unlink(reader.path)
    bench.turn(8)
    ((again, piece),) = bench.segments()
    assert again.path != reader.path
    assert len(piece.rows) >= 4


def test_a_roll_up_that_cannot_be_written_ends_nothing(tmp_path):
    files = FaultyFiles(
        Files(), lambda operation: errno.ENOSPC if "rollup" in operation.path and operation.kind == "write" else None
    )
    bench = Bench(tmp_path, files=files)
    bench.turn(100)
    bench.sampler.end("asked to end")
    ((reader, piece),) = bench.segments()
    assert len(piece.rows) == 200
    assert not os.path.exists(rollup.rollup_path(reader.path))
    assert sum(one.sums["samples"] for one in rollup.refresh(reader.path).windows) == 200


def test_the_roll_up_beside_is_that_of_the_samples(tmp_path):
    def speak(tick):
        return Sweep(
            state=HostState.OK,
            readings=tuple(
                _ok(
                    f"GPU-0000000{n}", util_pct=float(tick * 7 % 101), power_w=100.0 + tick, energy_mj=tick * 1000.0,
                    memory_used_bytes=float(tick % 5 << 30), memory_total_bytes=float(80 << 30), own_pids=float(n),
                )
                for n in range(2)
            ),
        )  # fmt: skip

    bench = Bench(tmp_path, ScriptedSensor(2, speak))
    bench.turn(130)
    ((reader, _),) = bench.segments()
    live = _loaded(rollup.rollup_path(reader.path))
    assert live.windows == rollup.build(reader.path, whole=False)
    assert len(live.windows) in (8, 10)


def test_devices_that_were_here_before_are_in_the_head(tmp_path):
    first = Bench(tmp_path)
    first.turn(1)
    first.sampler.end("asked to end")
    sensor = ScriptedSensor(1)
    second = Bench(tmp_path, sensor)
    assert [one.uuid for one in sensor.expected] == ["GPU-00000000", "GPU-00000001"]
    second.clock.advance(60)
    sensor.speak = lambda _tick: Sweep(
        state=HostState.OK, readings=(*sensor.idle(), Reading(uuid="GPU-00000001", state=DeviceState.LOST))
    )
    second.turn(1)
    reader, piece = second.segments()[-1]
    assert reader.header.baseline == ("GPU-00000000", "GPU-00000001")
    assert [(row[4], row[5]) for row in piece.rows] == [("0", "ok"), ("1", "lost")]
    assert reader.devices[1].device == device(1)


def test_two_samplers_of_the_same_devices_get_one_place(tmp_path):
    folder = str(tmp_path)
    first = take_place(folder, ["a", "b"], "pid 1, job 7")
    assert isinstance(first, Place)
    held = take_place(folder, ["a"], "pid 2")
    assert isinstance(held, Taken)
    assert held.holder == "pid 1, job 7"
    # It says what it measures: one of other devices has a place of its own.
    with open(tmp_path / "sampler.json", "w") as target:
        json.dump({"pid": 1, "devices": ["a", "b"]}, target)
    assert isinstance(take_place(folder, ["b"], "pid 2"), Taken)
    other = take_place(folder, ["c"], "pid 3")
    assert isinstance(other, Place)
    assert other.state_name == "sampler-1.json"
    first.release()
    again = take_place(folder, ["a"], "pid 4")
    assert isinstance(again, Place)
    assert again.number == 0
    again.release()
    other.release()


def test_another_path_of_the_same_folder_is_the_same_place(tmp_path):
    (tmp_path / "one").mkdir()
    (tmp_path / "two").symlink_to(tmp_path / "one")
    first = take_place(str(tmp_path / "one"), ["a"], "pid 1")
    held = take_place(str(tmp_path / "two"), ["a"], "pid 2")
    assert isinstance(first, Place)
    assert isinstance(held, Taken)
    assert held.holder == "pid 1"
    first.release()


def test_the_times_of_ticks_are_a_grid_that_a_late_one_does_not_move(tmp_path):
    clock, slow = ManualClock(), {3: 25.0, 5: 4.0}

    def speak(tick):
        clock.advance(slow.get(tick, 0.25))
        return Sweep(state=HostState.OK, readings=sensor.idle())

    sensor, slept = ScriptedSensor(1, speak), []

    def wait(seconds):
        slept.append(clock.mono() + seconds - 1000.0)
        clock.advance(seconds)
        return len(slept) < 7

    assert run(SamplerOptions(root=str(tmp_path), host="h"), wait=wait, sensor=sensor, clock=clock) == 0
    assert slept == pytest.approx([10, 20, 30, 60, 70, 80, 90])


@pytest.mark.parametrize(
    "options", ({"root": "", "interval_s": 10.0}, {"root": "x", "interval_s": 0.9}, {"root": "x", "interval_s": 61.0})
)
def test_options_that_cannot_be_are_named(options):
    with pytest.raises(UsageError):
        SamplerOptions(**options)


def test_a_host_without_gpus_is_said_to_have_none(tmp_path):
    with pytest.raises(UsageError, match="no GPU to measure on h"):
        run(SamplerOptions(root=str(tmp_path), host="h"), wait=lambda _s: False, sensor=ScriptedSensor(0))
    assert os.listdir(tmp_path) == []
