"""Frozen answers: never overwritten, verified from the same bytes, and a change is named."""

from __future__ import annotations

import json
import os

import pytest

from fleetcraft.actions.gpu_summary import Asked, answer, verify
from fleetcraft.core.errors import Refused, StorageFull, UsageError
from fleetcraft.telemetry import rollup
from fleetcraft.testing.files import FullFiles
from fleetcraft.usage.evidence import write
from fleetcraft.usage.sources import find
from tests.support.telemetry_files import START_MS, steady, write_segment


@pytest.fixture
def segment(tmp_path):
    return write_segment(tmp_path / "t", "n1", steady(range(0, 6000, 10), {"util_pct": 50, "power_w": 300}))


def freeze(tmp_path, **asked):
    target = str(tmp_path / "evidence.json")
    answer(Asked(now_ms=START_MS + 10_000_000, **asked), find([str(tmp_path / "t")]), {}, target)
    return target


def test_a_frozen_answer_holds(tmp_path, segment):
    target = freeze(tmp_path)
    found = verify(target)
    assert found.holds
    assert found.bytes_read == segment.stat().st_size
    assert os.stat(target).st_mode & 0o777 == 0o444


def test_it_holds_when_the_log_grew(tmp_path, segment):
    target = freeze(tmp_path, since_ms=START_MS + 4_000_000, until_ms=START_MS + 5_000_000)
    line = segment.read_text().splitlines()[-1]
    with segment.open("a") as file:
        file.write(line.replace(f"{START_MS + 5_990_000}", f"{START_MS + 6_000_000}") + "\n")
    assert verify(target).holds


def test_it_holds_over_a_rollup(tmp_path, segment):
    rollup.refresh(str(segment), whole=False)
    target = freeze(tmp_path, since_ms=START_MS + 100_000, until_ms=START_MS + 5_900_000)
    with open(target) as file:
        read = {piece["path"] for piece in json.load(file)["read"]}
    assert len(read) == 2
    assert verify(target).holds


def test_a_changed_byte_is_named_with_what_it_changes(tmp_path, segment):
    target = freeze(tmp_path)
    text = segment.read_text().replace(",50,", ",51,", 1)
    segment.write_text(text)
    found = verify(target)
    assert not found.holds
    assert [line.endswith("other content") for line in found.changed] == [True]
    assert any(line.startswith("rows[n1].utilization_pct: 50.0 then") for line in found.differs)


def test_a_log_that_is_gone_is_named(tmp_path, segment):
    target = freeze(tmp_path)
    segment.unlink()
    found = verify(target)
    assert "cannot be read" in found.changed[0]
    assert found.differs


def test_a_changed_result_is_found(tmp_path, segment):
    target = freeze(tmp_path)
    os.chmod(target, 0o644)
    with open(target) as file:
        document = json.load(file)
    document["result"]["total"]["gpu_hours"] = 99.0
    with open(target, "w") as file:
        json.dump(document, file)
    found = verify(target)
    assert "its own digest" in found.changed[0]
    assert found.differs[0].startswith("total.gpu_hours: 99.0 then")


def test_evidence_is_never_overwritten(tmp_path, segment):
    target = freeze(tmp_path)
    with open(target, "rb") as file:
        before = file.read()
    with pytest.raises(Refused, match="never overwritten"):
        freeze(tmp_path)
    with open(target, "rb") as file:
        assert file.read() == before
    assert os.listdir(tmp_path) == ["t", "evidence.json"] or sorted(os.listdir(tmp_path)) == ["evidence.json", "t"]


def test_what_is_no_evidence_is_refused(tmp_path):
    path = tmp_path / "x.json"
    path.write_text('{"schema": "other"}')
    with pytest.raises(UsageError, match="no evidence"):
        verify(str(path))
    with pytest.raises(UsageError, match="cannot be read"):
        verify(str(tmp_path / "none"))


@pytest.mark.parametrize(
    ("key", "value"),
    (
        ("asked", {}), ("asked", {"zone": 5}), ("asked", {"now_ms": "x"}), ("asked", {"expected": None}),
        ("read", [{"path": 0, "start": 0, "end": 1, "sha256": ""}]),
        ("read", [{"path": "x", "start": 0, "end": -1, "sha256": ""}]),
        ("read", "x"), ("sources", "x"), ("sources", [{}]), ("result", []),
    ),
)  # fmt: skip
def test_what_was_put_in_its_place_is_refused_and_nothing_is_opened(tmp_path, segment, key, value):
    target = freeze(tmp_path)
    with open(target) as file:
        document = json.load(file)
    document[key] = {**document[key], **value} if isinstance(value, dict) and value else value
    changed = tmp_path / "changed.json"
    changed.write_text(json.dumps(document))
    with pytest.raises(UsageError, match=f"is damaged: {key} cannot be what was written"):
        verify(str(changed))


def test_a_range_of_more_bytes_than_there_are_is_named(tmp_path, segment):
    target = freeze(tmp_path)
    with open(target) as file:
        document = json.load(file)
    document["read"][-1]["end"] = 10**18
    changed = tmp_path / "changed.json"
    changed.write_text(json.dumps(document))
    assert any("the file is shorter now" in text for text in verify(str(changed)).changed)


def test_a_full_disk_leaves_nothing_behind(tmp_path):
    with pytest.raises(StorageFull):
        write(str(tmp_path / "evidence.json"), {"a": 1}, FullFiles(kinds=frozenset({"write"}), short_writes=True))
    assert os.listdir(tmp_path) == []
