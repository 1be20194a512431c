"""Metrics: what is known, with labels, and nothing for what is not."""

from __future__ import annotations

import re
import threading
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from fleetcraft.core.errors import OutOfReach, UsageError
from fleetcraft.surfaces import gpu_export as export
from tests.support.gpu_pictures import BUSY, picture, segment, served
from tests.unit.readmodel.test_gpu_now import node

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "gpu-metrics.md"


def samples(seen):
    """(name, labels, value) of everything, as a reader of the format sees it."""
    text = export.render(seen).decode()
    assert text.endswith("# EOF\n")
    return [
        (sample.name, sample.labels, sample.value)
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    ]


@pytest.fixture
def seen(tmp_path):
    odd = {name: value for name, value in BUSY.items() if name not in ("power_w", "util_pct")}
    segment(tmp_path, "n1", {**BUSY, "energy_mj": 5000.0}, odd)
    segment(tmp_path, "n2", BUSY, age_s=400)
    lives = [served("n1", ["GPU-n1-0", "GPU-n1-1"]), served("n2", ["GPU-n2-0"])]
    return picture(tmp_path, served=lives, nodes=[node("n3", 1, reports=False)])


def test_what_is_known_has_a_sample_with_its_labels(seen):
    found = {(name, labels["gpu"]): value for name, labels, value in samples(seen) if labels.get("host") == "n1"
             and "gpu" in labels and "class" not in labels}  # fmt: skip
    assert found["fleetcraft_gpu_utilization_ratio", "0"] == pytest.approx(0.95)
    assert found["fleetcraft_gpu_power_watts", "0"] == pytest.approx(600)
    assert found["fleetcraft_gpu_energy_joules_total", "0"] == pytest.approx(5)


def test_what_is_not_known_has_no_sample_and_never_a_zero(seen):
    here = {(name, labels.get("host"), labels.get("gpu")) for name, labels, _ in samples(seen)}
    assert ("fleetcraft_gpu_power_watts", "n1", "0") in here
    assert ("fleetcraft_gpu_power_watts", "n1", "1") not in here
    assert ("fleetcraft_gpu_utilization_ratio", "n1", "1") not in here
    # Values of a host that fell silent are not values of now.
    assert not [one for one in here if one[1] == "n2" and one[0] == "fleetcraft_gpu_utilization_ratio"]
    assert ("fleetcraft_gpu_sample_age_seconds", "n2", "0") in here
    assert ("fleetcraft_gpu_sample_age_seconds", "n3", "0") not in here


def test_every_gpu_has_one_class_and_silent_hosts_are_zero(seen):
    told = samples(seen)
    classes = [(labels["host"], labels["class"]) for name, labels, _ in told if name == "fleetcraft_gpu_class"]
    assert sorted(classes) == [("n1", "unknown"), ("n1", "working"), ("n2", "unreachable"), ("n3", "unreachable")]
    assert {labels["host"]: value for name, labels, value in told if name == "fleetcraft_host_reports"} == {
        "n1": 1, "n2": 0, "n3": 0,
    }  # fmt: skip
    assert sum(value for name, _, value in told if name == "fleetcraft_gpus") == 4


def test_the_reference_lists_every_metric(seen):
    listed = set(re.findall(r"`(fleetcraft_[a-z_]+)`", PAGE.read_text()))
    ours = {f"fleetcraft_gpu_{one.name}{'_total' if one.counter else ''}" for one in export.GPU_METRICS}
    assert ours <= listed
    assert {name for name, _, _ in samples(seen)} <= listed


def test_a_file_is_replaced_whole_and_readable_by_others(tmp_path, seen):
    path = tmp_path / "gpu.prom"
    export.write_file(str(path), seen)
    assert path.read_bytes() == export.render(seen)
    assert path.stat().st_mode & 0o777 == 0o644
    assert [one.name for one in tmp_path.iterdir() if one.name.startswith(".gpu")] == []
    with pytest.raises(UsageError, match="no folder"):
        export.write_file(str(tmp_path / "no" / "gpu.prom"), seen)


@pytest.mark.parametrize("text", ("9877", "host:", ":9", "a:b", "a:70000", "a:-1"))
def test_an_address_without_a_port_is_refused(text):
    with pytest.raises(UsageError, match="--listen"):
        export.parse_listen(text)


def test_http_answers_for_metrics_alone_and_looks_no_more_often_than_asked(seen):
    looks = []

    def look():
        looks.append(1)
        return seen

    answers = export.Served(look, 60.0)
    server = export.make_server(("127.0.0.1", 0), answers)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        address = f"http://127.0.0.1:{server.server_port}"
        for _ in range(3):
            with urllib.request.urlopen(f"{address}/metrics", timeout=5) as reply:
                assert reply.headers["Content-Type"].startswith("application/openmetrics-text")
                assert reply.read() == export.render(seen)
        assert len(looks) == 1
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(f"{address}/", timeout=5)
        with pytest.raises(OutOfReach, match="Cannot listen"):
            export.make_server(("127.0.0.1", server.server_port), answers)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_look_that_fails_is_a_failed_scrape(seen):
    def fail():
        raise OutOfReach("the storage did not answer")

    server = export.make_server(("127.0.0.1", 0), export.Served(fail, 1.0))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        with pytest.raises(urllib.error.HTTPError, match="503"):
            urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}/metrics", timeout=5)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
