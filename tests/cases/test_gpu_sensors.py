"""Cases of what GPU drivers do, as data: ours, and a handed collection where it lies beside the checkout."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.gpu_sensor_cases import KINDS, Lab, check, load
from tests.support.mock_nvml import MockNvml

pytestmark = pytest.mark.needs_command("gcc")

_OURS = load(Path(__file__).with_name("gpu_sensor_cases.jsonl"))
_HANDED = load(Path(__file__).resolve().parents[3] / "shared" / "cases" / "gpu.jsonl")


@pytest.fixture
def lab(monkeypatch, tmp_path):
    mock = MockNvml(monkeypatch, tmp_path)
    yield Lab(mock, tmp_path)
    mock.release()


@pytest.mark.parametrize("case", _OURS, ids=[case["id"] for case in _OURS])
def test_our_case(case, lab):
    check(case, lab)


@pytest.mark.skipif(not _HANDED, reason="no collection of cases lies beside the checkout")
@pytest.mark.parametrize("case", _HANDED or [{"id": "none"}], ids=[case["id"] for case in _HANDED] or ["none"])
def test_handed_case(case, lab):
    check(case, lab)


def test_our_cases_are_of_every_kind():
    assert {case["kind"] for case in _OURS} == KINDS
    assert len({case["id"] for case in _OURS}) == len(_OURS)
