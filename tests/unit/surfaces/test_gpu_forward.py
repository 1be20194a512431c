"""Trackers get known numbers by name and step, through their own library or not at all."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from fleetcraft.core.errors import OutOfReach, UsageError
from fleetcraft.surfaces.gpu_forward import MlflowForwarder, WandbForwarder, values_of
from tests.support.gpu_pictures import BUSY, picture, segment


@pytest.fixture
def seen(tmp_path):
    segment(tmp_path, "n1", BUSY, {"memory_used_bytes": 1.0})
    segment(tmp_path, "n2", BUSY, age_s=400)
    return picture(tmp_path)


def test_only_known_numbers_are_sent_under_names_that_trackers_take(seen):
    values = values_of(seen)
    assert values["gpu/n1/0/utilization_ratio"] == pytest.approx(0.95)
    assert "gpu/n1/1/utilization_ratio" not in values
    assert "gpu/n2/0/utilization_ratio" not in values
    assert values["gpus/working"] == 1
    assert all(isinstance(value, float) for value in values.values())


def test_wandb_gets_a_run_its_values_and_its_end(seen, monkeypatch):
    log: list[Any] = []
    run = SimpleNamespace(log=lambda values, step: log.append((step, values)), finish=lambda: log.append("end"))

    def init(**words):
        log.append(words)
        return run

    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=init))
    one = WandbForwarder("project", {"window_s": 300.0})
    one.send(values_of(seen), 0)
    one.close()
    assert log[0]["project"] == "project"
    assert log[0]["config"] == {"window_s": 300.0}
    assert log[1] == (0, values_of(seen))
    assert log[2] == "end"


def test_mlflow_gets_a_run_its_values_and_its_end(seen, monkeypatch):
    log: list[Any] = []
    fake = SimpleNamespace(
        set_experiment=log.append, start_run=lambda **_: log.append("run"),
        log_params=log.append, log_metrics=lambda values, step: log.append((step, values)),
        end_run=lambda: log.append("end"),
    )  # fmt: skip
    monkeypatch.setitem(sys.modules, "mlflow", fake)
    one = MlflowForwarder("mine", {"window_s": 300.0})
    one.send({"a": 1.0}, 4)
    one.close()
    assert log == ["mine", "run", {"window_s": "300.0"}, (4, {"a": 1.0}), "end"]


@pytest.mark.parametrize(("kind", "name"), ((WandbForwarder, "wandb"), (MlflowForwarder, "mlflow")))
def test_without_the_library_there_is_a_sentence(kind, name, monkeypatch):
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(UsageError, match=f"needs the package {name}"):
        kind("x", {})


def test_trouble_of_the_library_is_out_of_reach(monkeypatch):
    def fail(**_):
        raise RuntimeError("no key")

    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=fail))
    with pytest.raises(OutOfReach, match="no key"):
        WandbForwarder("x", {})
