"""The demo's own decisions: which worker runs next, when to stop waiting, and what is shown."""

import importlib.util
import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from toyvideo.metrics import METRICS
from toyvideo.timeline import timeline_svg

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


def attempt(**changes):
    plain = {
        "name": "clip-short-red-left-0",
        "worker": "w1",
        "slot": 2,
        "gpus": [],
        "started_utc": 1000.0,
        "ended_utc": 1003.0,
        "wall_s": None,
        "outcome": "succeeded",
        "value": None,
    }
    return {**plain, **changes}


def test_the_timeline_names_gpus_and_slots(demo):
    real, simulated = "GPU-8f3a2c11-aa07", "SIM-myhost-1"
    entries = demo.timeline_of([attempt(gpus=[simulated]), attempt(gpus=[real]), attempt(name="score-short")])

    assert [entry["slot"] for entry in entries] == ["simulated GPU 1", "GPU aa07", "slot 2"]
    assert [entry["kind"] for entry in entries] == ["generate", "generate", "score"]
    assert entries[0]["start_utc"] == "1970-01-01T00:16:40.000+00:00"


def test_calls_that_were_given_together_follow_one_another(demo):
    together = [attempt(wall_s=0.5), attempt(wall_s=1.5), attempt(wall_s=1.0), attempt(slot=3, wall_s=3.0)]

    entries = demo.timeline_of(together)

    spans = [(entry["start_utc"][17:23], entry["end_utc"][17:23]) for entry in entries]
    assert spans == [("40.000", "40.500"), ("40.500", "42.000"), ("42.000", "43.000"), ("40.000", "43.000")]


def test_a_lost_attempt_is_shown_without_a_made_up_end(demo):
    entries = demo.timeline_of([attempt(outcome="lost", ended_utc=None)])

    assert (entries[0]["outcome"], entries[0]["end_utc"]) == ("lost", None)
    assert "lost, its end is not known" in timeline_svg(entries)


def test_a_checkpoint_load_is_counted_once_for_each_resident(demo):
    def value(pid):
        return {"resident": {"pid": pid}}

    attempts = [attempt(value=value(7)), attempt(value=value(7)), attempt(value=value(8)), attempt()]

    assert demo.count_loads([*attempts, attempt(worker="w2", value=value(7))]) == 3


def test_earlier_attempts_are_asked_for_only_where_there_were_several(demo, monkeypatch, tmp_path):
    asked = []

    def fleetcraft(*arguments):
        asked.append(arguments[4])
        running = attempt(outcome=None, ended_utc=None)
        return json.dumps({"attempts": [attempt(outcome="lost", ended_utc=None), attempt(), running]})

    monkeypatch.setattr(demo, "fleetcraft", fleetcraft)
    tasks = [{**attempt(name="a"), "attempts": 1}, {**attempt(name="b"), "attempts": 3}]

    attempts = demo.read_attempts(tmp_path, tasks)

    assert asked == ["b"]
    assert [(one["name"], one["outcome"]) for one in attempts] == [
        ("a", "succeeded"),
        ("b", "lost"),
        ("b", "succeeded"),
    ]
