"""GPUs as metrics: in a file that a node exporter picks up, or over HTTP where a port was asked for.

A value that is not known has no sample: a 0 would be a lie that dashboards add up.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.openmetrics.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import CollectorRegistry

from fleetcraft.actions.files_out import replace_file
from fleetcraft.core.clock import Clock, SystemClock
from fleetcraft.core.errors import FleetcraftError, OutOfReach, UsageError
from fleetcraft.readmodel.gpu_picture import GpuNow, GpusNow

LABELS = ("host", "gpu", "uuid", "job", "fleet")


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuMetric:
    """One value of a GPU. `get` returns None where it is not known."""

    name: str
    what: str
    get: Callable[[GpuNow], float | None]
    counter: bool = False
    live: bool = True  # only while its host reports: an old value is not one of now


def _last(name: str, factor: float = 1.0) -> Callable[[GpuNow], float | None]:
    def get(gpu: GpuNow) -> float | None:
        value = gpu.values.get(name)
        return None if value is None else value * factor

    return get


# The reference of metrics lists these; a test keeps the two together.
GPU_METRICS = (
    GpuMetric(
        name="utilization_ratio", get=lambda gpu: _ratio(gpu.util_pct),
        what="Mean of the window: time with any kernel on the device.",
    ),
    GpuMetric(
        name="active_ratio", get=lambda gpu: gpu.active_fraction,
        what="Share of the window with utilization at or above the threshold.",
    ),
    GpuMetric(
        name="sm_active_ratio", get=lambda gpu: _ratio(gpu.sm_active_pct),
        what="Mean of the window: time with a warp on a multiprocessor.",
    ),
    GpuMetric(
        name="tensor_active_ratio", get=_last("tensor_pct", 0.01),
        what="Last sample: time with tensor pipes at work.",
    ),
    GpuMetric(
        name="dram_active_ratio", get=_last("dram_pct", 0.01),
        what="Last sample: share of the memory bandwidth in use.",
    ),
    GpuMetric(
        name="memory_used_bytes", get=_last("memory_used_bytes"),
        what="Last sample: memory in use.",
    ),
    GpuMetric(
        name="memory_total_bytes", get=lambda gpu: gpu.memory_total_bytes, live=False,
        what="Memory of the device.",
    ),
    GpuMetric(
        name="own_memory_bytes", get=_last("own_memory_bytes"),
        what="Last sample: memory that processes of yours hold.",
    ),
    GpuMetric(
        name="power_watts", get=lambda gpu: gpu.power_w,
        what="Mean of the window: power as the device tells it.",
    ),
    GpuMetric(
        name="temperature_celsius", get=_last("temperature_c"),
        what="Last sample: temperature of the GPU.",
    ),
    GpuMetric(
        name="sm_clock_hertz", get=_last("sm_clock_mhz", 1e6),
        what="Last sample: clock of the multiprocessors.",
    ),
    GpuMetric(
        name="throttle_mask", get=_last("throttle_mask"),
        what="Last sample: why the clock is lowered, as the driver's bits.",
    ),
    GpuMetric(
        name="energy_joules", get=_last("energy_mj", 1e-3), counter=True,
        what="Energy since the driver was loaded.",
    ),
    GpuMetric(
        name="ecc_corrected", get=_last("ecc_corrected"), counter=True,
        what="Corrected memory errors since the driver was loaded.",
    ),
    GpuMetric(
        name="ecc_uncorrected", get=_last("ecc_uncorrected"), counter=True,
        what="Memory errors that could not be corrected, since the driver was loaded.",
    ),
    GpuMetric(
        name="remapped_rows", get=_last("remapped_rows"), counter=True,
        what="Memory rows replaced after errors.",
    ),
    GpuMetric(
        name="xid_events", get=_last("xid_events"), counter=True,
        what="Xid events since the sampler began.",
    ),
    GpuMetric(
        name="coverage_ratio", get=lambda gpu: gpu.coverage,
        what="Share of the window that was seen.",
    ),
    GpuMetric(
        name="idle_seconds", get=lambda gpu: gpu.idle_s,
        what="Time without activity, as far back as was read.",
    ),
    GpuMetric(
        name="sample_age_seconds", get=lambda gpu: gpu.age_s, live=False,
        what="Age of the last sample by the file server's clock.",
    ),
    GpuMetric(
        name="tasks", get=lambda gpu: float(len(gpu.tasks)) if gpu.worker else None,
        what="Tasks that run on it.",
    ),
)  # fmt: skip


def _ratio(percent: float | None) -> float | None:
    return None if percent is None else percent / 100


def families(picture: GpusNow) -> Iterator[Metric]:
    """Every metric of a picture."""
    gpus = picture.gpus
    for metric in GPU_METRICS:
        name = f"fleetcraft_gpu_{metric.name}"
        kind = CounterMetricFamily if metric.counter else GaugeMetricFamily
        family = kind(name, metric.what, labels=LABELS)
        for gpu in gpus:
            value = metric.get(gpu) if gpu.reports or not metric.live else None
            if value is not None:
                family.add_metric(_labels(gpu), value)
        if family.samples:
            yield family
    yield from _classes(picture)
    yield from _hosts(picture)
    yield from _rest(picture)


def _labels(gpu: GpuNow) -> list[str]:
    return [gpu.host, "" if gpu.index is None else str(gpu.index), gpu.uuid, gpu.job, gpu.fleet]


def _classes(picture: GpusNow) -> Iterator[Metric]:
    one = GaugeMetricFamily(
        "fleetcraft_gpu_class",
        "1 for the class that a GPU is in now, with its cause.",
        labels=(*LABELS, "class", "cause"),
    )
    about = GaugeMetricFamily("fleetcraft_gpu_info", "1, with what the GPU is.", labels=(*LABELS, "name", "simulated"))
    for gpu in picture.gpus:
        one.add_metric([*_labels(gpu), gpu.kind.value, gpu.verdict.cause.value], 1)
        about.add_metric([*_labels(gpu), gpu.name, str(gpu.simulated).lower()], 1)
    total = GaugeMetricFamily("fleetcraft_gpus", "GPUs by class; each is in exactly one.", labels=("class",))
    for kind, number in picture.counts().items():
        total.add_metric([kind], number)
    yield from (one, about, total)


def _hosts(picture: GpusNow) -> Iterator[Metric]:
    up = GaugeMetricFamily(
        "fleetcraft_host_reports", "1 while a host that is expected reports, else 0.", labels=("host",)
    )
    age = GaugeMetricFamily("fleetcraft_host_age_seconds", "Age of the newest sample of a host.", labels=("host",))
    for host in picture.hosts:
        up.add_metric([host.host], 1 if host.reports else 0)
        if host.age_s is not None:
            age.add_metric([host.host], host.age_s)
    yield from (up, age)


def _rest(picture: GpusNow) -> Iterator[Metric]:
    if picture.queue is not None:
        waiting = GaugeMetricFamily(
            "fleetcraft_queue_waiting_tasks", "Tasks free to be claimed, by lane.", labels=("lane", "needs_gpu")
        )
        for lane in picture.queue.lanes.values():
            waiting.add_metric([lane.lane, str(bool(lane.request.gpus)).lower()], lane.waiting)
        yield waiting
    if picture.scheduler_answered is not None:
        yield GaugeMetricFamily(
            "fleetcraft_scheduler_answered", "1 if the last question to the scheduler was answered.",
            value=1 if picture.scheduler_answered else 0,
        )  # fmt: skip
    yield GaugeMetricFamily("fleetcraft_picture_timestamp_seconds", "When all of this was read.", value=picture.at_utc)


@dataclass(slots=True, eq=False)
class _Fixed:
    """Hands out one picture."""

    picture: GpusNow

    def collect(self) -> Iterator[Metric]:
        return families(self.picture)


def render(picture: GpusNow) -> bytes:
    """The picture as OpenMetrics text."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Fixed(picture))
    return bytes(generate_latest(registry))  # type: ignore[no-untyped-call]


def write_file(path: str, picture: GpusNow) -> None:
    """Put the text where it is picked up, whole or not at all. Raises UsageError, StorageFull, OutOfReach."""
    replace_file(path, render(picture))


def parse_listen(text: str) -> tuple[str, int]:
    """An address and a port. Raises UsageError."""
    host, colon, port = text.rpartition(":")
    host = host.strip("[]")
    if not colon or not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise UsageError(f"--listen {text!r} is no address and port.", hint="Write --listen 127.0.0.1:9877.")
    return host, int(port)


@dataclass(slots=True)
class Served:
    """Looks at most once in `fresh_s`, however often it is scraped."""

    look: Callable[[], GpusNow]
    fresh_s: float
    clock: Clock = field(default_factory=SystemClock)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _text: bytes = b""
    _until_s: float = 0.0

    def text(self) -> bytes:
        """The newest text. Raises FleetcraftError, OSError."""
        with self._lock:
            if not self._text or self.clock.mono() >= self._until_s:
                self._text = render(self.look())
                self._until_s = self.clock.mono() + self.fresh_s
            return self._text


def make_server(address: tuple[str, int], served: Served) -> ThreadingHTTPServer:
    """A server that answers for /metrics alone. Raises OutOfReach where the port cannot be had."""

    class Handler(BaseHTTPRequestHandler):
        """Answers GET."""

        def do_GET(self) -> None:
            if self.path.partition("?")[0] != "/metrics":
                self.send_error(HTTPStatus.NOT_FOUND, explain="See /metrics.")
                return
            try:
                body = served.text()
            except (FleetcraftError, OSError) as error:
                # A scrape that failed is seen as one; old values would look alive.
                self.send_error(HTTPStatus.SERVICE_UNAVAILABLE, explain=str(error))
                return
            self.send_response(HTTPStatus.OK)
            self.send_header("Content-Type", CONTENT_TYPE_LATEST)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_arguments: Any) -> None:
            """Scrapes are not told one by one."""

    try:
        return ThreadingHTTPServer(address, Handler)
    except OSError as error:
        raise OutOfReach(
            f"Cannot listen on {address[0]}:{address[1]}: {error.strerror or error}.", hint="Choose another port."
        ) from error
