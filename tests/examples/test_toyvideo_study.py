"""The toy study as tasks: stable names, an order that can run, and every output that was declared."""

import importlib
import json
from pathlib import Path

import pytest

from toyvideo import generate
from toyvideo.report import Study, build_report
from toyvideo.tasks import Plan, kind_of, study_tasks


@pytest.fixture
def plan(tmp_path):
    return Plan(folder=tmp_path / "results")


def run_here(task):
    """Run one task in this process, as its worker would in a child."""
    if "call" in task:
        state = generate.setup(**task["setup_args"])
        return generate.generate(state, **task["args"])
    _, flag, module, *arguments = task["command"]
    assert flag == "-m"
    assert importlib.import_module(module).main(arguments) == 0
    return None


def test_the_study_is_83_tasks_with_names_that_stay(plan):
    tasks = study_tasks(plan)

    assert len(tasks) == 83
    assert len({task["name"] for task in tasks}) == 83
    assert study_tasks(plan) == tasks
    assert json.loads(json.dumps(tasks)) == tasks


def test_every_task_comes_after_those_that_it_waits_for(plan):
    seen: set[str] = set()
    for task in study_tasks(plan):
        assert set(task.get("after", ())) <= seen
        seen.add(task["name"])


def test_no_two_tasks_write_one_file(plan):
    outputs = [path for task in study_tasks(plan) for path in task["outputs"]]

    assert len(outputs) == len(set(outputs))
    assert all(Path(path).is_absolute() for path in outputs)


def test_each_kind_of_task_is_known_by_its_name(plan):
    kinds = [kind_of(task["name"]) for task in study_tasks(plan)]

    assert {kind: kinds.count(kind) for kind in kinds} == {
        "prepare": 2,
        "train": 3,
        "generate": 72,
        "score": 4,
        "summarize": 2,
    }


def test_only_generation_asks_for_a_gpu(plan):
    asking = {kind_of(task["name"]) for task in study_tasks(plan) if task.get("gpus")}

    assert asking == {"generate"}


def test_a_small_study_runs_in_order_and_leaves_all_that_it_declared(tmp_path):
    plan = Plan(folder=tmp_path / "results", arms={"tiny": 30, "small": 150}, seeds=1, fit_clips_per_prompt=8)

    for task in study_tasks(plan):
        run_here(task)
        assert all(Path(path).stat().st_size > 0 for path in task["outputs"]), task["name"]

    summary = json.loads((plan.folder / "summary" / "summary.json").read_text())
    assert [(arm["arm"], arm["iterations"]) for arm in summary["arms"]] == [
        ("truth", None),
        ("tiny", 30),
        ("small", 150),
    ]
    tiny, small = (arm["metrics"]["frechet"]["value"] for arm in summary["arms"][1:])
    assert summary["arms"][0]["metrics"]["as_prompted"]["value"] == 1.0
    assert summary["arms"][0]["metrics"]["frechet"]["value"] < small < tiny
    assert not list(plan.folder.rglob("*.part"))
    page = build_report(
        Study(
            summary=summary,
            clips=plan.folder / "clips",
            plots=plan.folder / "plots",
            contact_sheet=plan.folder / "summary" / "contact-sheet.png",
        )
    )
    assert page.count("<video") == 3 * 12
