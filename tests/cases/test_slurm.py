"""Cases of Slurm's behaviour as data: ours, and a handed collection where it lies beside the checkout."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.slurm_cases import KINDS, check, load

_OURS = load(Path(__file__).with_name("slurm_cases.jsonl"))
_HANDED = load(Path(__file__).resolve().parents[3] / "shared" / "cases" / "slurm.jsonl")


@pytest.mark.parametrize("case", _OURS, ids=[case["id"] for case in _OURS])
def test_our_case(case):
    check(case)


@pytest.mark.skipif(not _HANDED, reason="no collection of cases lies beside the checkout")
@pytest.mark.parametrize("case", _HANDED or [{"id": "none"}], ids=[case["id"] for case in _HANDED] or ["none"])
def test_handed_case(case):
    check(case)


def test_our_cases_are_of_every_kind():
    assert {case["kind"] for case in _OURS} == KINDS
    assert len({case["id"] for case in _OURS}) == len(_OURS)
