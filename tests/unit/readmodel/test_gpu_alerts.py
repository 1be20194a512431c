"""What is worth a word: one finding for each host and kind, with the GPUs that it is about."""

from __future__ import annotations

from fleetcraft.core.resources import Request
from fleetcraft.readmodel.gpu_alerts import Disk, blind_subjects, find_alerts, gpus_of, read_disk
from fleetcraft.readmodel.gpu_queue import LaneNow
from fleetcraft.usage.alerts import AlertBook
from tests.support.gpu_pictures import BUSY, FREE, HELD, host, picture, queue_of, segment, served


def found(seen, book=None, disks=()):
    return {finding.kind: finding for finding in find_alerts(seen, book or AlertBook(), disks)}


def test_nothing_is_said_of_gpus_that_work(tmp_path):
    segment(tmp_path, "n1", BUSY, BUSY)
    assert found(picture(tmp_path)) == {}


def test_idle_gpus_are_told_after_their_limits_free_ones_sooner(tmp_path):
    segment(tmp_path, "n1", FREE, HELD, seconds=range(0, 1200, 10))
    assert set(found(picture(tmp_path))) == {"free_idle"}
    segment(tmp_path, "n1", FREE, HELD, seconds=range(0, 3700, 10))
    seen = found(picture(tmp_path, deep_s=3700))
    assert set(seen) == {"free_idle", "reserved_idle"}
    assert seen["free_idle"].numbers["gpus"] == 1
    assert "GPU 0 free-idle" in seen["free_idle"].text


def test_a_gpu_that_worked_once_and_idles_since_is_not_immune(tmp_path):
    """An average over the whole job would hide hours of idleness."""
    rows = [(second, 0, BUSY if second < 600 else FREE) for second in range(0, 3600, 10)]
    path = segment(tmp_path, "n1", FREE)
    from tests.support.telemetry_files import write_segment

    write_segment(tmp_path, "n1", rows)
    import os

    os.utime(path)
    seen = picture(tmp_path)
    assert [gpu.kind.value for gpu in seen.gpus] == ["free-idle"]
    assert "free_idle" in found(seen)


def test_work_that_waits_beside_idle_gpus_is_its_own_alert(tmp_path):
    segment(tmp_path, "n1", FREE, seconds=range(0, 700, 10))
    one = served("n1", ["GPU-n1-0"])
    seen = picture(tmp_path, served=[one], queue=queue_of(LaneNow("g1", Request(gpus=1), waiting=5), served=[one]))
    finding = found(seen)["idle_while_work_waits"]
    assert finding.hold_s == 120
    assert "5 tasks" in finding.text


def test_a_silent_host_is_told_and_blinds_only_its_gpus(tmp_path):
    segment(tmp_path, "n1", BUSY, age_s=400)
    seen = picture(tmp_path, served=[served("n1", ["GPU-n1-0"]), served("n2", ["GPU-n2-0"])])
    silent = [finding for finding in find_alerts(seen, AlertBook()) if finding.kind == "silent"]
    assert {(finding.subject, finding.hold_s) for finding in silent} == {("n1", 0.0), ("n2", 90.0)}
    assert blind_subjects(seen) == {gpus_of(host(seen, "n1")), gpus_of(host(seen, "n2"))}


def test_a_host_that_is_not_to_be_measured_rings_no_alarm(tmp_path):
    (tmp_path / "n1").mkdir()
    seen = picture(tmp_path, served=[served("n1", ["GPU-n1-0"], telemetry={"state": "off"})])
    (gpu,) = seen.gpus
    assert (gpu.kind.value, gpu.verdict.cause.value) == ("unreachable", "not_measured")
    assert "told to measure nothing" in gpu.verdict.text
    assert found(seen) == {}


def test_trouble_of_devices_has_its_kinds(tmp_path):
    segment(tmp_path, "lost", BUSY, lost=range(360))
    segment(tmp_path, "slow", {**BUSY, "throttle_mask": float(0x40)})
    segment(tmp_path, "capped", {**BUSY, "throttle_mask": float(0x04)})  # at its power limit, as it should be
    segment(tmp_path, "hot", {**BUSY, "temperature_c": 95.0})
    seen = {(finding.kind, finding.key.partition(":")[2]) for finding in find_alerts(picture(tmp_path), AlertBook())}
    assert seen == {("lost", "lost"), ("throttled", "slow"), ("hot", "hot")}


def test_errors_are_told_when_they_grow(tmp_path):
    book = AlertBook()
    segment(tmp_path, "n1", {**BUSY, "xid_events": 1.0, "ecc_uncorrected": 0.0})
    assert found(picture(tmp_path), book) == {}
    assert found(picture(tmp_path), book) == {}
    segment(tmp_path, "n1", {**BUSY, "xid_events": 2.0, "xid": 79.0, "ecc_uncorrected": 3.0})
    finding = found(picture(tmp_path), book)["errors"]
    assert "1 new Xid events, 3 new uncorrected memory errors (the last Xid is 79)" in finding.text
    assert found(picture(tmp_path), book) == {}


def test_memory_rows_that_wait_for_a_reset_are_told_until_they_are_replaced(tmp_path):
    path = segment(tmp_path, "n1", BUSY, BUSY)
    (path.parent / "sampler-1.json").write_text('{"state": "ok", "notes": {"GPU-n1-1": ["row_remap_pending"]}}')
    (path.parent / "sampler.json").write_text('{"state": "ok", "notes": {"GPU-n1-0": ["unified_memory"]}}')
    (finding,) = find_alerts(picture(tmp_path), AlertBook())
    assert finding.kind == "row_remap"
    assert finding.text == "n1: GPU 1 waits for a reset to replace bad memory rows; tell the site"
    (path.parent / "sampler-1.json").write_text('{"state": "ok", "notes": {}}')
    assert found(picture(tmp_path)) == {}


def test_a_disk_must_become_clearly_better_before_it_is_over(tmp_path):
    seen, book = picture(tmp_path / "nothing"), AlertBook()

    def look(used: float, now: float) -> list[str]:
        disk = Disk(path="/x", what="the spool", used=used, used_inodes=0.1, free_bytes=1 << 30)
        return [event.what for event in book.look(find_alerts(seen, book, [disk]), now, clear_s=60)]

    assert look(0.91, 0) == []
    assert look(0.92, 10) == ["begin"]
    assert look(0.905, 500) == []
    assert look(0.89, 600) == ["end"]


def test_inodes_fill_a_disk_too(tmp_path):
    disk = Disk(path="/x", what="the spool", used=0.1, used_inodes=0.99, free_bytes=1 << 30)
    assert "inodes" in found(picture(tmp_path / "nothing"), disks=[disk])["disk"].text
    real = read_disk(str(tmp_path), "here")
    assert real is not None
    assert real.used is not None
    assert 0 <= real.used <= 1
    assert read_disk(str(tmp_path / "gone"), "there") is None
