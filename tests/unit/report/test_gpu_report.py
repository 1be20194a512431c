"""`gpu report`: a page that needs nothing else, whose numbers are those of its document, and that keeps secrets."""

from __future__ import annotations

import io
import json
import re
from html.parser import HTMLParser
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetcraft.cli.commands import dispatch
from fleetcraft.cli.output import Output
from fleetcraft.core.errors import Refused, UsageError
from fleetcraft.report import svg
from fleetcraft.report.figures import Bars, Lines, Timeline, figures_of, ticks
from fleetcraft.report.gpu_page import fixed_text, render
from fleetcraft.usage import publish
from fleetcraft.usage.api import Gpu, Window
from fleetcraft.usage.ledger_api import Class, Span
from fleetcraft.usage.timeline import activity_cells, bins, choose_length_ms, class_cells
from tests.support.telemetry_files import ARCHIVE, START_MS, steady, write_segment

SECRETS = ("n1", "sekretfleet", "4711977", "/home/sekret/run")
VOID = {"meta", "br", "img"}


class Page(HTMLParser):
    """Holds a page to being well nested, and collects what it would load."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.loads: list[str] = []
        self.tags: set[str] = set()

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.loads += [value for name, value in attrs if name in ("src", "href", "srcset", "xlink:href")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        assert self.open
        assert self.open.pop() == tag


def parsed(text):
    page = Page()
    page.feed(text)
    page.close()
    assert page.open == []
    return page


@pytest.fixture
def root(tmp_path):
    busy = {"util_pct": 80, "power_w": 360, "memory_used_bytes": 4 << 30}
    write_segment(tmp_path / "t", "n1", steady(range(0, 600, 10), busy), fleet="sekretfleet", job="4711977")
    (tmp_path / "t" / "n2").mkdir()
    (tmp_path / "t" / "n2" / f"{START_MS}-abcdef12-7.csv").write_text("")
    return tmp_path / "t"


def report(root, out, *words):
    stream = io.StringIO()
    text = [str(root), "--output", str(out / "r.html"), "--data", str(out / "r.json"), *map(str, words)]
    code = dispatch(["gpu", "report", *text], Output(stream, stream, color=False))
    assert code == 0
    return (out / "r.html").read_text(), json.loads((out / "r.json").read_text())


def document(**changes):
    row: dict[str, object] = {
        name: 1 for name in publish._ROW if name not in ("energy", "coverage")
    }  # fmt: skip
    row |= {"coverage": None, "energy": {"held_kwh": 1.5, "counter_kwh": None}}
    return {
        "schema": "fleetcraft.gpu.report/1", "since_ms": 0, "until_ms": 600_000, "length_ms": 60_000, "mode": "ledger",
        "published": False, "definition": "hold", "total": row,
        "coverage": {"hosts": 1, "hosts_with_data": 1, "gpus": 1, "gpus_with_data": 1, "time": 1.0},
        "rows": [{"name": "n1", **row}], "bins": [],
        "timelines": [{"label": "n1 GPU 0", "host": "n1", "unit": "GPU", "cells": [[0, 60_000, "lost"]]}],
        "activity_ms": {"active": 0, "reserved": 0, "free": 0, "unclear": 0},
        "ledgers": [{
            "unit": "GPU", "allocated_ms": 600_000, "adds_up": True, "check": "classes add up", "observed_ms": 0,
            "classes_ms": {kind.value: 600_000 if kind is Class.LOST else 0 for kind in Class},
            "wastes": [{"class": "lost", "ms": 600_000, "share": 1.0, "text": "w", "remedy": "r"}],
            "tasks": [], "sources": [],
        }],
        "problems": [], "sources": [], **changes,
    }  # fmt: skip


def task(name):
    return {
        "task": "1.0", "name": name, "attempts": 1, "held_ms": 5, "observed_ms": 5, "active_ms": None,
        "memory_peak_bytes": None, "joules_held": None, "joules_counter": None, "shared": False, "gpus": ["GPU-77"],
    }  # fmt: skip


def test_the_page_is_whole_and_loads_nothing(root, tmp_path):
    text, _ = report(root, tmp_path)
    page = parsed(text)
    assert page.loads == []
    assert "script" not in page.tags
    assert "http" not in text.replace('http-equiv="Content-Security-Policy"', "")
    assert "url(" not in text.replace("url(#", "")
    assert "default-src 'none'" in text


def test_the_numbers_of_the_page_are_those_of_the_document(root, tmp_path):
    text, body = report(root, tmp_path)
    total = body["total"]
    assert total["gpu_hours"] == pytest.approx(600 / 3600)
    assert '<b id="gpu-hours">600.0</b><span>GPU-seconds' in text
    assert '<b id="energy">60.00 Wh</b>' in text
    assert sum(one["energy_kwh"] for one in body["bins"]) == pytest.approx(total["energy"]["held_kwh"])
    assert sum(one["observed_ms"] for one in body["bins"]) == sum(body["activity_ms"].values()) == 600_000
    assert "<b>Without data:</b> n2" in text
    assert all(len(one["sha256"]) == 64 for one in body["sources"])
    assert render(body) == text


@given(name=st.text(min_size=1, max_size=40))
def test_no_name_can_add_a_tag(name):
    hostile = f'{name}</svg><script>alert(1)</script><img src="x" onerror="y">'
    body = document(
        rows=[{"name": hostile, **document()["total"]}],
        timelines=[{"label": hostile, "host": hostile, "unit": "GPU", "cells": [[0, 1, "useful"]]}],
        problems=[{"kind": "doubled", "host": hostile, "text": hostile}],
        ledgers=[{**document()["ledgers"][0], "tasks": [task(hostile)]}],
    )
    page = parsed(render(body))
    assert page.loads == []
    assert not page.tags & {"script", "img"}


def test_figures_are_the_same_every_time_and_are_xml(root, tmp_path):
    _, body = report(root, tmp_path, "--figures", tmp_path / "figures")
    names = sorted(path.name for path in (tmp_path / "figures").iterdir())
    assert names == ["activity.svg", "energy.svg", "gpus.svg", "memory.svg", "power.svg", "timeline.svg",
                     "utilization.svg"]  # fmt: skip
    for figure in figures_of(body):
        drawn = svg.draw(figure, standalone=True)
        assert drawn == (tmp_path / "figures" / f"{figure.name}.svg").read_text()
        assert ET.fromstring(drawn).tag == "{http://www.w3.org/2000/svg}svg"


def test_a_gap_stays_open():
    gpu, length = Gpu(host="a", uuid=""), 1000
    seen = [Window(gpu=gpu, start_ms=at, length_ms=length, observed_ms=1000, util_sum=5e4, util_ms=1000)
            for at in (0, 1000, 5000)]  # fmt: skip
    some = bins([*seen, Window(gpu=gpu, start_ms=2000, length_ms=length)])
    assert [one.start_ms for one in some] == [0, 1000, 5000]
    assert some[0].power_w is None
    body = document(bins=[{name: getattr(one, name) for name in one.__slots__} for one in some], length_ms=length)
    lines = {figure.name: figure for figure in figures_of(body) if isinstance(figure, Lines)}
    assert [len(run) for run in lines["utilization"].runs] == [2, 1]
    assert "power" not in lines
    assert svg.draw(lines["utilization"]).count("<polyline") == 2
    assert len(activity_cells(seen)) == 2


def test_a_cell_has_the_class_of_its_largest_part_and_classes_come_with_words_and_hatching():
    gpu = Gpu(host="a", uuid="u")
    spans = [
        Span(gpu=gpu, start_ms=0, end_ms=700, kind=Class.LOST),
        Span(gpu=gpu, start_ms=700, end_ms=2000, kind=Class.FAILED),
    ]
    cells = class_cells(spans, 1000)[gpu]
    assert cells == [(0, 1000, "lost"), (1000, 2000, "failed")]
    figure = Timeline(name="t", title="t", rows=(("a", tuple(cells)),), since_ms=0, until_ms=2000)
    drawn = svg.draw(figure)
    assert "a: lost attempt" in drawn
    assert 'fill="url(#t-lost)"' in drawn
    assert 'fill="#d55e00"' in drawn


@given(since=st.integers(0, 10**13), span=st.integers(1, 10**12))
def test_any_span_has_few_bins_and_few_ticks_inside_it(since, span):
    length = choose_length_ms(since, since + span)
    assert span / length <= 500
    marks = ticks(since, since + span)
    assert len(marks) <= 10
    assert all(since <= at <= since + span for at, _ in marks)


def test_bars_of_nothing_are_not_drawn():
    body = document()
    body["ledgers"][0]["classes_ms"] = {}
    assert not [figure for figure in figures_of(body) if isinstance(figure, Bars)]


def test_a_published_report_has_numbers_for_names(root, tmp_path):
    text, body = report(root, tmp_path, "--publish", "--figures", tmp_path / "f")
    written = text + json.dumps(body) + "".join(path.read_text() for path in (tmp_path / "f").iterdir())
    for secret in ("n1", "n2", "sekretfleet", "4711977", str(tmp_path)):
        assert not re.search(rf"(?<!\w){re.escape(secret)}(?!\w)", written)
    assert "host-1" in text
    assert body["total"]["gpu_hours"] == pytest.approx(600 / 3600)
    assert [row["name"] for row in body["rows"]] == ["host-1", "host-2"]


@given(secret=st.text("abcdefghijklmnopqrstuvwxyz0123456789-_", min_size=5, max_size=20).map("qz{}".format))
def test_what_is_cleaned_never_has_a_name_of_the_input(secret):
    body = document(
        rows=[{"name": secret, **document()["total"], "account": secret}],
        timelines=[{"label": secret, "host": secret, "unit": "GPU", "cells": [[0, 60_000, "lost"]]}],
        problems=[{"kind": "doubled", "host": secret, "text": secret}],
        sources=[{"name": f"/home/{secret}/a.csv", "bytes": 3, "sha256": "0" * 64}],
        ledgers=[{**document()["ledgers"][0], "tasks": [task(secret)], "sources": [secret],
                  "wastes": [{"class": "lost", "ms": 1, "share": 1.0, "text": secret, "remedy": secret}]}],
        surprise=secret,
    )  # fmt: skip
    text = render(publish.clean(body))
    assert secret not in text + json.dumps(publish.clean(body))
    publish.check(text, [secret, f"/home/{secret}"], fixed_text())


@given(
    secret=st.sampled_from(SECRETS), before=st.text(" .,:;()[]\"'<>=", max_size=5),
    after=st.text(" ,:;()[]\"'<>=", max_size=5), upper=st.booleans(),
)  # fmt: skip
def test_a_leak_is_refused_with_its_place(secret, before, after, upper):
    word = secret if secret.startswith("/") or not upper else secret.upper()
    with pytest.raises(Refused, match="line 2, character"):
        publish.check(f"<p>fine</p>\n {before} {word} {after}\n", SECRETS, fixed_text())


def test_a_shape_and_a_measured_number_are_no_ids():
    publish.check('<rect x="4711977" width="4711977"/> 4711977.25 host 12', ["4711977", "12"], "")


def test_nothing_is_written_when_publishing_is_refused(root, tmp_path, monkeypatch):
    monkeypatch.setattr(publish, "clean", lambda document: document)
    with pytest.raises(Refused):
        report(root, tmp_path, "--publish")
    assert not (tmp_path / "r.html").exists()


def test_png_without_matplotlib_names_the_way_on(root, tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.figure", None)
    with pytest.raises(UsageError, match="matplotlib") as caught:
        report(root, tmp_path, "--figures", tmp_path / "f", "--format", "png")
    assert "fleetcraft[plot]" in caught.value.hint


@pytest.mark.skipif(not ARCHIVE.is_dir(), reason="the telemetry archive is not beside this checkout")
def test_the_archive_comes_out_of_one_command(tmp_path):
    text, body = report(ARCHIVE, tmp_path)
    assert body["total"]["gpu_hours"] == pytest.approx(1407.430, abs=0.001)
    assert body["total"]["energy"]["held_kwh"] == pytest.approx(667.960, abs=0.001)
    assert sum(one["energy_kwh"] for one in body["bins"]) == pytest.approx(667.960, abs=0.001)
    doubled = {one["host"] for one in body["problems"] if one["kind"] == "doubled"}
    assert doubled == {"host04", "host06", "host23", "host29", "host52"}
    assert "<b>Without data:</b> host76" in text
    assert len(text) < 3_000_000
