"""GPUs as series of an experiment tracker, through that tracker's own library where it is installed.

Trackers keep series by name and step, so every GPU has its own names. What is not known is not sent.
"""

from __future__ import annotations

import importlib
import math
import re
from collections.abc import Mapping
from types import ModuleType
from typing import Any, Protocol

from fleetcraft.core.errors import FleetcraftError, OutOfReach, UsageError
from fleetcraft.readmodel.gpu_picture import GpusNow
from fleetcraft.surfaces.gpu_export import GPU_METRICS

_UNSAFE = re.compile(r"[^A-Za-z0-9_.-]+")


class Forwarder(Protocol):
    """Where values go."""

    def send(self, values: Mapping[str, float], step: int) -> None:
        """Hand on one picture. Raises OutOfReach."""
        ...

    def close(self) -> None:
        """Say that no more comes."""
        ...


def values_of(picture: GpusNow) -> dict[str, float]:
    """Every known number of a picture, by a name that any tracker takes."""
    found: dict[str, float] = {}
    for gpu in picture.gpus:
        where = f"{_safe(gpu.host)}/{'x' if gpu.index is None else gpu.index}"
        for metric in GPU_METRICS:
            value = metric.get(gpu) if gpu.reports or not metric.live else None
            if value is not None and math.isfinite(value):
                found[f"gpu/{where}/{metric.name}"] = float(value)
    for kind, number in picture.counts().items():
        found[f"gpus/{kind}"] = float(number)
    totals = picture.totals()
    for name in ("reporting_gpus", "gpus", "reporting_hosts", "hosts", "util_pct", "power_w"):
        if totals[name] is not None:
            found[f"totals/{name}"] = float(totals[name])
    if picture.queue is not None:
        found["queue/waiting_for_gpus"] = float(picture.queue.gpu_waiting)
    return found


def _safe(text: str) -> str:
    return _UNSAFE.sub("_", text) or "_"


def _module(name: str, package: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise UsageError(
            f"Forwarding needs the package {package}, and it cannot be imported here: {error}.",
            hint=f"Install it beside fleetcraft: `pip install {package}`.",
        ) from error


class WandbForwarder:
    """One run of a project. Offline where the library is set so."""

    def __init__(self, project: str, config: Mapping[str, Any]) -> None:
        wandb = _module("wandb", "wandb")
        try:
            self._run = wandb.init(project=project, job_type="fleetcraft-gpu", config=dict(config))
        except Exception as error:
            raise _trouble("W&B", error) from error

    def send(self, values: Mapping[str, float], step: int) -> None:
        """See `Forwarder.send`."""
        try:
            self._run.log(dict(values), step=step)
        except Exception as error:
            raise _trouble("W&B", error) from error

    def close(self) -> None:
        """See `Forwarder.close`."""
        self._run.finish()


class MlflowForwarder:
    """One run of an experiment."""

    def __init__(self, experiment: str, config: Mapping[str, Any]) -> None:
        self._mlflow = _module("mlflow", "mlflow")
        try:
            self._mlflow.set_experiment(experiment)
            self._mlflow.start_run(run_name="fleetcraft-gpu")
            self._mlflow.log_params({name: str(value) for name, value in config.items()})
        except Exception as error:
            raise _trouble("MLflow", error) from error

    def send(self, values: Mapping[str, float], step: int) -> None:
        """See `Forwarder.send`."""
        try:
            self._mlflow.log_metrics(dict(values), step=step)
        except Exception as error:
            raise _trouble("MLflow", error) from error

    def close(self) -> None:
        """See `Forwarder.close`."""
        self._mlflow.end_run()


def _trouble(name: str, error: Exception) -> FleetcraftError:
    return OutOfReach(
        f"{name} did not take it: {type(error).__name__}: {error}.", hint="See the library's own settings."
    )
