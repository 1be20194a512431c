"""The demo's own decisions: which worker runs next, when to stop waiting, and what is shown."""

import importlib.util
from pathlib import Path
from types import SimpleNamespace

import pytest

from toyvideo.metrics import METRICS

SOURCE = Path(__file__).parents[2] / "examples" / "video" / "run_demo.py"


@pytest.fixture
def demo():
    spec = importlib.util.spec_from_file_location("run_demo", SOURCE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Scene:
    """Plays back exit codes of workers and the states that the spool then shows; time passes as the demo sleeps."""

    def __init__(self, demo, monkeypatch, acts):
        self.acts, self.now_s, self.slept = list(acts), 0.0, 0
        self.states: list[str] = []
        monkeypatch.setattr(demo, "run_worker", self.run_worker)
        monkeypatch.setattr(demo, "read_tasks", lambda spool: [{"state": state} for state in self.states])
        monkeypatch.setattr(demo, "time", SimpleNamespace(monotonic=lambda: self.now_s, sleep=self.sleep))

    def run_worker(self, spool):
        code, self.states = self.acts.pop(0) if len(self.acts) > 1 else self.acts[0]
        return code

    def sleep(self, span_s):
        self.now_s += span_s
        self.slept += 1


def test_one_worker_is_enough_when_all_ends(demo, monkeypatch, tmp_path):
    scene = Scene(demo, monkeypatch, [(0, ["succeeded", "blocked", "failed"])])

    demo.run_workers(tmp_path)

    assert scene.slept == 0


def test_a_killed_worker_is_followed_by_another(demo, monkeypatch, tmp_path, capsys):
    Scene(demo, monkeypatch, [(-9, ["succeeded", "running"]), (0, ["succeeded", "succeeded"])])

    demo.run_workers(tmp_path)

    assert "the worker ended with -9; another one goes on with the 1 unfinished tasks" in capsys.readouterr().out


def test_the_demo_waits_for_the_worker_of_an_earlier_demo(demo, monkeypatch, tmp_path):
    acts = [(0, ["running", "held"]), (0, ["succeeded", "running"]), (0, ["succeeded", "succeeded"])]
    scene = Scene(demo, monkeypatch, acts)

    demo.run_workers(tmp_path)

    assert scene.slept == 2


def test_waiting_without_any_change_ends_with_the_next_command(demo, monkeypatch, tmp_path):
    scene = Scene(demo, monkeypatch, [(0, ["running"])])

    with pytest.raises(SystemExit, match=r"unfinished tasks: 1; see `fleetcraft spool status"):
        demo.run_workers(tmp_path)

    assert scene.now_s == pytest.approx(demo.PATIENCE_S, abs=2.0)


def test_workers_that_always_die_end_the_demo(demo, monkeypatch, tmp_path):
    Scene(demo, monkeypatch, [(70, ["waiting"])])

    with pytest.raises(SystemExit, match="unfinished tasks: 1"):
        demo.run_workers(tmp_path)


@pytest.mark.parametrize("text", ("", "short", "short:", "short:0", "short:-1", "a/b:5", ":5"))
def test_an_odd_arm_is_refused(demo, text, capsys):
    with pytest.raises(SystemExit) as ended:
        demo.parse_arguments(["--arms", text])

    assert ended.value.code == 2
    assert "must look like short:150" in capsys.readouterr().err


def test_the_table_has_a_line_for_each_arm_and_says_what_is_missing(demo):
    figures = {metric.key: {"value": None} for metric in METRICS}
    summary = {
        "arms": [
            {"arm": "truth", "iterations": None, "metrics": figures},
            {"arm": "short", "iterations": 150, "metrics": {**figures, "as_prompted": {"value": 0.25}}},
        ]
    }

    lines = demo.score_table(summary).splitlines()

    assert len(lines) == 3
    assert len({len(line) for line in lines}) == 1
    assert lines[1].split()[:3] == ["truth", "(drawn)", "n/a"]
    assert lines[2].split()[:4] == ["short", "150", "25", "%"]
