"""How GPUs look in `gpu top`: cells, bars, the line of a host and the header, as rich texts for table and screen."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from rich.table import Table
from rich.text import Text

from fleetcraft.cli.gpu_classify import age_text
from fleetcraft.cli.output import count, printable
from fleetcraft.core.quantities import format_duration
from fleetcraft.readmodel.gpu_filter import Filter, memory_pct, sorted_by
from fleetcraft.readmodel.gpu_picture import GpuNow, GpusNow, HostNow
from fleetcraft.usage.classify import Class

HEADS = ("HOST", "GPU", "CLASS", "UTIL", "MEMORY", "POWER", "TEMP", "IDLE", "AGE", "JOB", "TASK")
STYLES: Mapping[Class, str] = {
    Class.WORKING: "green",
    Class.WAITING: "cyan",
    Class.STARTING: "cyan",
    Class.RESERVED_IDLE: "yellow",
    Class.FREE_IDLE: "red",
    Class.UNKNOWN: "magenta",
    Class.UNREACHABLE: "bold red",
    Class.BROKEN: "bold red",
    Class.LOST: "bold red",
    Class.HUNG: "bold red",
}
# Columns whose cells have a known size.
WIDTHS = {"GPU": 3, "CLASS": 16, "UTIL": 14, "MEMORY": 18, "POWER": 15, "TEMP": 5, "IDLE": 7, "AGE": 7}
_GIVES_WAY = ("TEMP", "IDLE", "JOB", "POWER", "MEMORY")
_LEAST_LAST = 12
_BAR = 8
_EIGHTHS = " ▏▎▍▌▋▊▉█"


@dataclass(frozen=True, slots=True)
class Line:
    """One line: of a host, or of a GPU. `key` stays the same from look to look."""

    key: str
    cells: tuple[Text, ...]
    gpu: GpuNow | None = None
    host: HostNow | None = None


def bar(percent: float | None, text: str, style: str = "green") -> Text:
    """A bar with its number; without a share no bar, so that 0 and unknown look different."""
    if percent is None:
        return Text(" " * (_BAR + 1) + text if text else "-", style="dim")
    share = max(0.0, min(100.0, percent)) / 100
    eighths = round(share * _BAR * 8)
    full, rest = divmod(eighths, 8)
    drawn = "█" * full + (_EIGHTHS[rest] if rest else "")
    return Text.assemble((drawn.ljust(_BAR, "·"), style), " ", text)


def lines(picture: GpusNow, wanted: Filter, sort: str = "host", *, descending: bool = False) -> list[Line]:
    """What is shown, in order. By host there is a line for each host ahead of its GPUs."""
    if sort != "host":
        gpus = sorted_by([gpu for gpu in picture.gpus if wanted.holds(gpu)], sort, descending=descending)
        return [gpu_line(gpu, show_host=True) for gpu in gpus]
    found: list[Line] = []
    hosts = sorted(picture.hosts, key=lambda host: host.host, reverse=descending)
    for host in hosts:
        gpus = [gpu for gpu in host.gpus if wanted.holds(gpu)]
        if gpus or (not host.gpus and not wanted.terms):
            found.append(host_line(host))
            found += [gpu_line(gpu) for gpu in gpus]
    return found


def host_line(host: HostNow) -> Line:
    """A host: how it stands, and since when it is silent."""
    kinds = [gpu.kind for gpu in host.gpus]
    counts = ", ".join(f"{kinds.count(kind)} {kind.value}" for kind in Class if kind in kinds)
    jobs = ",".join(host.jobs)
    about, state = Text(f"{count(len(host.gpus), 'GPU')}: {counts}", style="dim"), Text("")
    if not host.reports:
        about, state = Text(printable(host.reason), style="red"), Text("SILENT", style="bold red")
    age = Text(age_text(host.age_s), style="" if host.reports else "bold red")
    cells = (
        Text(printable(host.host), style="bold"), Text(""), state, *[Text("")] * 5, age, Text(printable(jobs)), about,
    )  # fmt: skip
    return Line(f"host:{host.host}", cells, host=host)


def gpu_line(gpu: GpuNow, *, show_host: bool = False) -> Line:
    """One GPU."""
    live = gpu.reports
    style = STYLES[gpu.kind]
    low = f" {gpu.verdict.label}" if gpu.verdict.label else ""
    power_pct = 100 * gpu.power_w / gpu.power_limit_w if gpu.power_w is not None and gpu.power_limit_w else None
    memory = "-" if gpu.memory_bytes is None else f"{gpu.memory_bytes / (1 << 30):.0f}G"
    total = "" if not gpu.memory_total_bytes else f"/{gpu.memory_total_bytes / (1 << 30):.0f}G"
    temperature = gpu.values.get("temperature_c")
    cells = (
        Text(printable(gpu.host) if show_host else ""),
        Text("?" if gpu.index is None else str(gpu.index)),
        Text(f"{gpu.kind.value}{low}", style=style),
        bar(gpu.util_pct if live else None, "" if gpu.util_pct is None or not live else f"{gpu.util_pct:3.0f} %"),
        bar(memory_pct(gpu) if live else None, f"{memory}{total}" if live else "", "blue"),
        bar(power_pct if live else None, "" if gpu.power_w is None or not live else f"{gpu.power_w:.0f} W", "yellow"),
        Text("-" if temperature is None or not live else f"{temperature:.0f} C"),
        Text("" if not gpu.idle_s or gpu.kind is Class.WORKING else format_duration(gpu.idle_s)),
        Text(age_text(gpu.age_s), style="" if live else "bold red"),
        Text(printable(gpu.job)),
        Text(printable(", ".join(gpu.tasks)) if gpu.tasks else why(gpu), style="" if gpu.tasks else "dim"),
    )
    return Line(f"gpu:{gpu.key}", cells, gpu=gpu)


def why(gpu: GpuNow) -> str:
    """The reason in a few words."""
    if gpu.kind is Class.WORKING:
        return ""
    return gpu.verdict.cause.value.replace("_", " ") or printable(gpu.verdict.text)


def header(picture: GpusNow, notes: Sequence[str] = ()) -> Text:
    """Totals, classes, queue, and what is wrong with the picture itself."""
    totals = picture.totals()
    util = "-" if totals["util_pct"] is None else f"{totals['util_pct']:.0f} %"
    power = "-" if totals["power_w"] is None else f"{totals['power_w'] / 1000:,.1f} kW"
    said = (
        f"{totals['reporting_gpus']} of {count(totals['gpus'], 'GPU')} on {totals['reporting_hosts']} of "
        f"{count(totals['hosts'], 'host')} report · util {util} · {power} · {count(totals['tasks'], 'task')} run"
    )
    parts: list[str | tuple[str, str]] = [
        ("fleetcraft gpu top  ", "bold"),
        said,
    ]
    if picture.queue is not None:
        parts.append(f" · {picture.queue.gpu_waiting:,} wait for GPUs")
    parts.append("\n")
    kinds = picture.counts()
    for kind in Class:
        if kinds[kind.value]:
            parts += [(f"{kinds[kind.value]} {kind.value}", STYLES[kind]), "  "]
    for text in [*notes, *_doubts(picture)]:
        parts += ["\n", ("! ", "bold yellow"), printable(text)]
    return Text.assemble(*parts)


def _doubts(picture: GpusNow) -> Iterator[str]:
    if picture.scheduler_answered is False:
        yield "the scheduler did not answer; jobs are as they are on record"
    elif picture.scheduler_age_s is not None and picture.scheduler_age_s > 600:
        yield f"the scheduler's answer is {format_duration(picture.scheduler_age_s)} old"
    yield from picture.problems[:3]


def details(line: Line) -> str:
    """Everything about one line that has no column."""
    if line.gpu is not None:
        gpu, verdict = line.gpu, line.gpu.verdict
        seen = "-" if gpu.coverage is None else f"{100 * gpu.coverage:.0f} %"
        by = f"rule {verdict.rule}{f', {verdict.cause.value}' if verdict.cause else ''}"
        return printable(
            f"{gpu.host} GPU {gpu.index} {gpu.name} {gpu.uuid} · {verdict.kind.value} ({by}): {verdict.text}"
            f" · seen {seen}{f' · worker {gpu.worker}' if gpu.worker else ''}{' · simulated' if gpu.simulated else ''}"
        )
    host = line.host
    assert host is not None  # noqa: S101  a line is of one or the other
    sampler = f" · sampler {host.sampler.get('state', 'unknown')}" if host.sampler else ""
    return printable(
        f"{host.host} · jobs {', '.join(host.jobs) or 'none'}{sampler}{f' · {host.reason}' if host.reason else ''}"
    )


def rich_table(shown: Sequence[Line], width: int) -> Table:
    """The lines as one table; on a narrow terminal whole columns give way, so that no number is cut."""
    widths = [max([len(head), *(line.cells[at].cell_len for line in shown)]) for at, head in enumerate(HEADS)]
    places = list(range(len(HEADS)))
    for head in _GIVES_WAY:
        if sum(widths[at] + 2 for at in places[:-1]) + _LEAST_LAST > width:
            places.remove(HEADS.index(head))
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    left = max(_LEAST_LAST, width - sum(widths[at] + 2 for at in places[:-1]))
    for at in places:
        size = min(widths[at], left) if at == places[-1] else widths[at]
        table.add_column(HEADS[at], no_wrap=True, overflow="ellipsis", width=size)
    for line in shown:
        table.add_row(*(line.cells[at] for at in places))
    return table
