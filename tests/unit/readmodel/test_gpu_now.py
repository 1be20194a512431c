"""One picture of every GPU: what must exist is shown, and silence has an age and a reason."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from fleetcraft.core.resources import Request
from fleetcraft.core.states import WorkerState
from fleetcraft.readmodel.fleet_gpus import GpuState, GpuView, NodeView, told_by, with_telemetry
from fleetcraft.readmodel.gpu_now import measured
from fleetcraft.readmodel.gpu_queue import LaneNow, Served
from fleetcraft.usage.classify import Cause, Class
from tests.support.gpu_pictures import BUSY, FREE, GIB, HELD, HOUR, host, kinds, picture, queue_of, segment, served


def node(name: str, gpus: int | None, *, job: str = "7", reports: bool = True, reason: str = "") -> NodeView:
    return NodeView(
        node=name, job=job, partition="gpu", worker=None, reports=reports, reason=reason, expected_gpus=gpus, gpus=()
    )


def test_each_gpu_has_its_class_and_its_numbers(tmp_path):
    segment(tmp_path, "n1", BUSY, HELD, FREE)
    seen = picture(tmp_path, served=[served("n1", [f"GPU-n1-{n}" for n in range(3)])])
    assert kinds(seen) == ["working", "reserved-idle", "free-idle"]
    busy, held, free = seen.gpus
    assert (busy.util_pct, busy.power_w, busy.memory_bytes) == (95.0, 600.0, 60.0 * GIB)
    assert busy.coverage == pytest.approx(1.0)
    assert held.idle_s == pytest.approx(3592, abs=20)
    assert held.free_s is None
    assert free.free_s == pytest.approx(3592, abs=20)
    assert seen.totals()["util_pct"] == pytest.approx(95 / 3)
    assert sum(seen.counts().values()) == 3


def test_a_silent_host_keeps_its_gpus_with_age_and_cause(tmp_path):
    segment(tmp_path, "n1", BUSY, BUSY, age_s=400)
    segment(tmp_path, "n2", BUSY)
    seen = picture(tmp_path, served=[served("n1", ["GPU-n1-0", "GPU-n1-1"]), served("n2", ["GPU-n2-0"])])
    assert kinds(seen) == ["unreachable", "unreachable", "working"]
    silent = host(seen, "n1")
    assert not silent.reports
    assert silent.age_s == pytest.approx(400, abs=5)
    assert silent.gpus[0].verdict.cause is Cause.SAMPLER_SILENT
    assert seen.totals()["gpus"] == 3
    assert seen.totals()["reporting_gpus"] == 1
    # Old load is not load of now.
    assert seen.totals()["util_pct"] == 95.0


def test_silence_is_explained_by_what_is_known(tmp_path):
    segment(tmp_path, "ended", BUSY, age_s=400, end="drained")
    segment(tmp_path, "full", BUSY, age_s=400)
    (tmp_path / "full" / "sampler.json").write_text(json.dumps({"state": "storage_full"}))
    segment(tmp_path, "dead", BUSY, age_s=400)
    lives = [
        served("ended", ["GPU-ended-0"]),
        served("full", ["GPU-full-0"]),
        served("dead", ["GPU-dead-0"], state=WorkerState.STALE, reason="no heartbeat for 300 s"),
        served("never", ["GPU-never-0"]),
    ]
    seen = picture(tmp_path, served=lives)
    assert {one.host: one.gpus[0].verdict.cause.value for one in seen.hosts} == {
        "ended": "sampler_ended", "full": "storage_full", "dead": "worker_lost", "never": "no_sampler",
    }  # fmt: skip
    assert set(kinds(seen)) == {"unreachable"}


@pytest.mark.parametrize(
    ("told", "cause", "says"),
    (
        (
            {"state": "starting", "reason": "was ended by signal 9", "starts": 3},
            Cause.NO_SAMPLER,
            "signal 9, and is st",
        ),
        ({"state": "failed", "reason": "cannot be started"}, Cause.NO_SAMPLER, "is not started any more"),
        ({"state": "off"}, Cause.NOT_MEASURED, "measure nothing"),
        ({"state": "on", "pid": 7}, Cause.SAMPLER_SILENT, "without a word"),
        (None, Cause.SAMPLER_SILENT, "without a word"),
    ),
)
def test_a_worker_tells_whether_its_sampler_runs(tmp_path, told, cause, says):
    segment(tmp_path, "n1", BUSY, age_s=400)
    verdict = picture(tmp_path, served=[served("n1", ["GPU-n1-0"], telemetry=told)]).gpus[0].verdict
    assert (verdict.kind, verdict.cause) == (Class.UNREACHABLE, cause)
    assert says in verdict.text
    assert "400 s old" in verdict.text


def test_a_node_that_the_scheduler_calls_down_says_so_and_a_host_that_reports_does_not(tmp_path):
    segment(tmp_path, "n1.site.example", BUSY, age_s=400)
    segment(tmp_path, "n2", BUSY)
    lives = [served("n1.site.example", ["GPU-n1.site.example-0"], state=WorkerState.LOST), served("n2", ["GPU-n2-0"])]
    seen = picture(tmp_path, served=lives, down={"n1": "down: no power", "n2": "down", "n3": "down"})
    assert [one.host for one in seen.hosts if one.gpus[0].verdict.cause is Cause.NODE_DOWN] == ["n1.site.example"]
    assert kinds(seen) == ["unreachable", "working"]
    assert "down: no power; the last sample is 400 s old" in seen.gpus[0].verdict.text


def test_a_node_of_a_job_that_nobody_told_about_is_there_with_all_its_gpus(tmp_path):
    seen = picture(tmp_path, nodes=[node("n9", 4, reports=False, reason="no worker of this spool told about it")])
    assert kinds(seen) == ["unreachable"] * 4
    assert "no worker" in host(seen, "n9").reason
    unknown = picture(tmp_path, nodes=[node("n9", None, reports=False, reason="nobody")])
    assert [one.host for one in unknown.hosts] == ["n9"]
    assert unknown.totals()["reporting_hosts"] == 0


def test_a_gpu_fewer_than_allocated_is_missed(tmp_path):
    segment(tmp_path, "n1", BUSY)
    seen = picture(tmp_path, served=[served("n1", ["GPU-n1-0"])], nodes=[node("n1.site.example", 2)])
    assert [one.host for one in seen.hosts] == ["n1"]
    assert kinds(seen) == ["working", "unreachable"]


def test_what_was_sampled_under_a_job_that_is_over_is_not_shown(tmp_path):
    segment(tmp_path, "n1", BUSY, age_s=900, end="drained", job="6")
    segment(tmp_path, "n2", BUSY, age_s=7 * 3600)
    segment(tmp_path, "n3", BUSY, age_s=900)  # fell silent without a word: worth a line
    seen = picture(tmp_path)
    assert [one.host for one in seen.hosts] == ["n3"]
    assert kinds(seen) == ["unknown"]


def test_a_lost_gpu_is_lost_and_the_others_go_on(tmp_path):
    rows = len(HOUR) * 2
    segment(tmp_path, "n1", BUSY, BUSY, lost=range(1, rows, 2))
    assert kinds(picture(tmp_path)) == ["working", "lost"]


def test_an_unknown_utilization_is_not_idleness(tmp_path):
    """MIG and some drivers tell none; a card of which 70 GiB are held for ten minutes is not idle for that."""
    told = {name: value for name, value in HELD.items() if name != "util_pct"} | {"memory_used_bytes": 70.0 * GIB}
    segment(tmp_path, "n1", told, {**told, "sm_active_pct": 40.0})
    seen = picture(tmp_path)
    assert kinds(seen) == ["unknown", "working"]
    assert seen.gpus[0].verdict.cause is Cause.NO_UTILIZATION
    assert seen.gpus[0].util_pct is None
    assert "util_pct" not in seen.gpus[0].values


def test_a_host_with_a_wrong_clock_is_judged_by_its_own_stamps(tmp_path):
    for name, shift_ms in (("ahead", 7_200_000), ("behind", -7_200_000)):
        segment(tmp_path, name, BUSY, start_ms=1_800_000_000_000 + shift_ms)
    assert kinds(picture(tmp_path)) == ["working", "working"]


def test_gaps_are_not_filled(tmp_path):
    """Two samples of the last five minutes of an hour: no verdict."""
    path = segment(tmp_path, "n1", FREE, seconds=range(0, 3000, 10))
    first = path.read_text().splitlines()
    late = segment(tmp_path, "n1", FREE, seconds=range(3590, 3610, 10))
    path.write_text("\n".join([*first, *late.read_text().splitlines()[2:]]) + "\n")
    seen = picture(tmp_path)
    assert kinds(seen) == ["unknown"]
    assert seen.gpus[0].coverage == pytest.approx(0.05, abs=0.03)


def test_a_sampler_that_began_a_minute_ago_is_judged_by_that_minute(tmp_path):
    segment(tmp_path, "n1", FREE, BUSY, seconds=range(0, 60, 10))
    assert kinds(picture(tmp_path)) == ["starting", "working"]


def test_order_of_devices_may_change_and_series_stay_with_their_uuid(tmp_path):
    segment(tmp_path, "n1", BUSY, FREE, seconds=range(0, 200, 10))
    swapped = segment(tmp_path, "n1", FREE, BUSY, seconds=range(0, 400, 10), start_ms=1_800_000_210_000)
    text = swapped.read_text().replace("GPU-n1-0", "GPU-x").replace("GPU-n1-1", "GPU-n1-0").replace("GPU-x", "GPU-n1-1")
    swapped.write_text(text)
    seen = picture(tmp_path)
    assert {gpu.uuid: gpu.kind.value for gpu in seen.gpus} == {"GPU-n1-0": "working", "GPU-n1-1": "starting"}
    assert [gpu.index for gpu in seen.gpus] == [0, 1]


def test_an_idle_gpu_has_its_reason_from_the_queue(tmp_path):
    segment(tmp_path, "n1", FREE, HELD)
    one = served("n1", ["GPU-n1-0", "GPU-n1-1"])
    waiting = LaneNow("g1", Request(gpus=1), waiting=3)
    seen = picture(tmp_path, served=[one], queue=queue_of(waiting, served=[one]))
    assert [gpu.verdict.cause for gpu in seen.gpus] == [Cause.WORK_WAITS] * 2
    busy = served(
        "n1", ["GPU-n1-0", "GPU-n1-1"], used=1.0, running=[{"task": "1.0", "gpus": ["GPU-n1-1"]}], residents=1
    )
    seen = picture(tmp_path, served=[busy], queue=queue_of(waiting, served=[busy]))
    assert [(gpu.kind, gpu.verdict.cause) for gpu in seen.gpus] == [
        (Class.WAITING, Cause.RESIDENT), (Class.WAITING, Cause.TASK),
    ]  # fmt: skip
    assert seen.gpus[1].tasks == ("1.0",)


def test_the_document_holds_thresholds_and_every_class(tmp_path):
    segment(tmp_path, "n1", BUSY)
    document = picture(tmp_path).as_json()
    json.dumps(document, allow_nan=False)
    assert document["thresholds"]["window_s"] == 300
    assert set(document["classes"]) == {kind.value for kind in Class}
    assert document["hosts"][0]["gpus"][0]["class"] == "working"


def test_telemetry_says_what_it_can_judge_and_heartbeats_the_rest(tmp_path):
    segment(tmp_path, "n1", BUSY, HELD, FREE)
    segment(tmp_path, "n2", BUSY, age_s=400)
    lives = [served("n1", [f"GPU-n1-{n}" for n in range(3)]), served("n2", ["GPU-n2-0"])]
    told = measured(str(tmp_path), lives)
    assert {uuid: one.state.value for uuid, one in told.items()} == {
        "GPU-n1-0": "working", "GPU-n1-1": "reserved", "GPU-n1-2": "free",
    }  # fmt: skip
    view = GpuView(index=0, uuid="GPU-n1-0", name=None, memory_bytes=None, state=GpuState.FREE)
    other = replace(view, uuid="GPU-n2-0", state=GpuState.WORKING)
    nodes = with_telemetry([replace(node("n1", 2), gpus=(view, other))], told)
    assert [(gpu.state.value, gpu.measured) for gpu in nodes[0].gpus] == [("working", True), ("working", False)]
    assert told_by(nodes) == "telemetry and worker heartbeats"
    assert told_by([]) == "worker heartbeats"
    assert measured(str(tmp_path / "none"), lives) == {}


def test_a_worker_that_died_is_shown_until_it_is_buried_or_replaced(tmp_path):
    segment(tmp_path, "n1", BUSY, age_s=400, end="the worker is gone")
    dead = served(
        "n1", ["GPU-n1-0"], state=WorkerState.LOST, reason="it died", running=[{"task": "1", "gpus": ["GPU-n1-0"]}]
    )
    seen = picture(tmp_path, served=[dead])
    assert [(gpu.kind, gpu.verdict.cause, gpu.tasks) for gpu in seen.gpus] == [
        (Class.UNREACHABLE, Cause.WORKER_LOST, ())
    ]
    buried = Served(worker=replace(dead.worker, buried=True), beat=dead.beat)
    assert kinds(picture(tmp_path, served=[buried])) == []
    segment(tmp_path, "n1", BUSY)
    after = served("n1", ["GPU-n1-0"], running=[{"task": "2", "gpus": ["GPU-n1-0"]}])
    seen = picture(tmp_path, served=[after, dead])
    assert [(gpu.kind, gpu.tasks) for gpu in seen.gpus] == [(Class.WORKING, ("2",))]


def test_a_hung_driver_is_hung_with_its_age_and_not_silent(tmp_path):
    rows = len(HOUR)
    path = segment(tmp_path, "n1", BUSY, lost=range(rows - 30, rows))
    path.write_text(path.read_text().replace(",lost,", ",hung,"))
    seen = picture(tmp_path)
    assert kinds(seen) == ["hung"]
    assert host(seen, "n1").reports
    assert "for at least" in seen.gpus[0].verdict.text
    assert seen.gpus[0].util_pct is None


def test_a_gpu_that_was_cut_into_instances_is_not_one_itself(tmp_path):
    path = segment(tmp_path, "n1", BUSY, BUSY, BUSY)
    lines = path.read_text().split("\n")
    head = json.loads(lines[0].partition(" ")[2])
    head["devices"][1]["parent"] = head["devices"][2]["parent"] = head["devices"][0]["uuid"]
    path.write_text("\n".join([f"{lines[0].partition(' ')[0]} {json.dumps(head)}", *lines[1:]]))
    assert [gpu.uuid for gpu in picture(tmp_path).gpus] == ["GPU-n1-1", "GPU-n1-2"]
