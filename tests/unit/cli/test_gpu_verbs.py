"""`gpu classify`, `top`, `watch` and `export` as typed."""

from __future__ import annotations

import io
import json
import os
import sys

import pytest

from fleetcraft.cli.main import main
from tests.support.gpu_pictures import BUSY, FREE, segment
from tests.unit.readmodel.building import make_spool


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    segment(tmp_path / "t", "n1", BUSY, FREE)
    segment(tmp_path / "t", "n2", FREE, age_s=400)
    return "t"


def ask(capsys, *words):
    code = main([*words, "--json"])
    return code, json.loads(capsys.readouterr().out)


def say(capsys, *words):
    code = main(list(words))
    told = capsys.readouterr()
    return code, told.out + told.err


def test_classify_names_classes_thresholds_and_silence(folder, capsys):
    code, document = ask(capsys, "gpu", "classify", folder, "--threshold", "active_pct=50")
    assert (code, document["schema"]) == (0, "fleetcraft.gpu.classify/1")
    assert [gpu["class"] for host in document["hosts"] for gpu in host["gpus"]] == ["working", "free-idle", "unknown"]
    assert document["thresholds"]["active_pct"] == 50
    code, text = say(capsys, "gpu", "classify", folder)
    assert "thresholds  window 300 s, active >= 5 %, reserved >= 500 MiB" in text
    assert "1 of 2 hosts, 2 of 3 GPUs report" in text
    assert "sampler_silent" in text


def test_classify_fails_where_asked_when_a_gpu_cannot_be_trusted(folder, capsys, tmp_path):
    assert say(capsys, "gpu", "classify", folder, "--exit-code")[0] == 0
    segment(tmp_path / "t", "n3", BUSY, lost=range(360))
    assert say(capsys, "gpu", "classify", folder, "--exit-code")[0] == 1


def test_an_unknown_threshold_and_a_folder_that_is_none_are_named(folder, capsys):
    code, text = say(capsys, "gpu", "classify", folder, "--threshold", "colour=1")
    assert code == 2
    assert "There is no threshold 'colour'" in text
    code, text = say(capsys, "gpu", "classify", "nowhere")
    assert code == 2
    assert "nowhere is not a telemetry folder" in text


def test_a_spool_without_workers_says_that_there_is_nothing(tmp_path, capsys, monkeypatch):
    make_spool(tmp_path)
    code, text = say(capsys, "gpu", "classify", "--spool", str(tmp_path / "spool"))
    assert code == 0
    assert "no GPU is expected, and none reports" in text
    assert say(capsys, "gpu", "top", "--spool", str(tmp_path / "spool"))[0] == 0


def test_looking_changes_nothing(folder, capsys, tmp_path):
    def files():
        return {
            path: (path.stat().st_mtime_ns, path.read_bytes()) for path in (tmp_path / "t").rglob("*") if path.is_file()
        }

    before = files()
    for words in (("classify",), ("top", "--once"), ("export",)):
        say(capsys, "gpu", words[0], folder, *words[1:])
    assert files() == before


def test_top_without_a_terminal_is_one_table_and_loads_no_screen(folder, capsys):
    sys.modules.pop("textual", None)
    code, text = say(capsys, "gpu", "top", folder, "--filter", "class=working,unknown")
    assert code == 0
    assert "2 of 3 GPUs on 1 of 2 hosts report" in text
    classes = [line.split()[1] for line in text.partition("HOST")[2].splitlines() if line.strip()[:1].isdigit()]
    assert classes == ["working", "unknown"]
    assert "SILENT" in text
    assert "95 %" in text
    assert "textual" not in sys.modules
    code, document = ask(capsys, "gpu", "top", folder, "--filter", "class=working")
    assert (document["schema"], document["totals"]["gpus"]) == ("fleetcraft.gpu.top/1", 1)
    assert say(capsys, "gpu", "top", folder, "--filter", "colour=red")[0] == 2


def test_watch_once_tells_once_and_ends_with_1_while_an_alert_holds(folder, capsys):
    code, text = say(capsys, "gpu", "watch", folder, "--once")
    assert code == 1
    assert "ALERT  free_idle: n1" in text
    assert "ALERT  silent: n2" in text
    code, text = say(capsys, "gpu", "watch", folder, "--once")
    assert code == 1
    assert "ALERT" not in text
    assert "told before  free_idle" in text
    code, document = ask(capsys, "gpu", "watch", folder, "--once", "--state", "other/book.json")
    assert {event["kind"] for event in document["events"]} == {"free_idle", "silent"}
    assert os.path.exists("other/book.json")


@pytest.mark.parametrize(
    ("words", "said"),
    (
        (("watch", "t", "--release"), "--release needs a spool"),
        (("watch", "t", "--webhook", "ftp://x"), "--webhook"),
        (("watch", "t", "--interval", "0.1s"), "at least 1s"),
        (("export", "t", "--to", "a", "--listen", "b:1"), "two places"),
        (("export", "t", "--listen", "b"), "no address and port"),
        (("top", "t", "--interval", "0.1s"), "at least 1s"),
    ),
)
def test_what_cannot_be_is_refused(folder, capsys, words, said):
    code, text = say(capsys, "gpu", *words)
    assert code == 2
    assert said in text


def test_export_prints_or_writes_the_same(folder, capsys):
    code, text = say(capsys, "gpu", "export", folder)
    assert code == 0
    assert text.endswith("# EOF\n")
    assert say(capsys, "gpu", "export", folder, "--to", "gpu.prom")[0] == 0
    with open("gpu.prom") as file:
        written = file.read()
    # Ages differ by the time between the two looks.
    assert [line.rpartition(" ")[0] for line in written.splitlines()] == [
        line.rpartition(" ")[0] for line in text.splitlines()
    ]


def test_a_narrow_table_loses_columns_and_no_number(tmp_path):
    from rich.console import Console

    from fleetcraft.cli.gpu_top_view import lines, rich_table
    from fleetcraft.readmodel.gpu_filter import parse_filter
    from tests.support.gpu_pictures import picture

    segment(tmp_path / "t", "n1", BUSY, FREE)
    shown = lines(picture(tmp_path / "t"), parse_filter(""))
    for width in (60, 80, 100, 200):
        console = Console(width=width, record=True, file=io.StringIO())
        console.print(rich_table(shown, width))
        text = console.export_text()
        assert max(map(len, text.splitlines())) <= width
        assert "95 %" in text
        assert "working" in text
        assert ("TEMP" in text) == (width == 200)
