"""The Python API: few names, listed, typed, cheap to import, and the same actions as the command line."""

from __future__ import annotations

import dataclasses
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import fleetcraft
from fleetcraft import Spool, Task, Worker
from fleetcraft.core.errors import NameTaken, SpoolError, UsageError
from fleetcraft.core.names import TaskId
from fleetcraft.core.states import TaskState
from fleetcraft.core.task import TASK_KEYS
from fleetcraft.spool.life import Life
from tests.unit.actions.handwork import succeed, work

PACKAGE = Path(fleetcraft.__file__).parent


@pytest.fixture
def spool(tmp_path):
    return Spool(tmp_path / "spool")


def described(spool):
    return [task.name for task in spool.tasks()]


def test_the_public_names_are_these():
    assert set(fleetcraft.__all__) == {"Spool", "Task", "Worker", "__version__", "progress"}
    assert all(hasattr(fleetcraft, name) for name in fleetcraft.__all__)
    assert set(fleetcraft.__all__) <= set(dir(fleetcraft))
    with pytest.raises(AttributeError, match="module 'fleetcraft' has no attribute 'Job'"):
        _ = fleetcraft.Job  # type: ignore[attr-defined]


def test_type_checkers_see_the_same_names():
    stub = (PACKAGE / "__init__.pyi").read_text()
    listed = re.search(r"__all__ = \[(.*)\]", stub)
    assert listed is not None
    assert re.findall(r'"(\w+)"', listed[1]) == fleetcraft.__all__
    for name in set(fleetcraft.__all__) - {"__version__"}:
        module = re.search(rf"from (\S+) import {name} as {name}", stub)
        assert module is not None
        assert getattr(fleetcraft, name) is getattr(sys.modules[module[1]], name)


def test_importing_the_package_imports_nothing_of_it():
    code = "import sys, fleetcraft; print([name for name in sys.modules if name.startswith('fleetcraft.')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_task_has_a_field_for_every_key():
    assert {field.name for field in dataclasses.fields(Task)} == TASK_KEYS


def test_one_task_by_command_shell_or_call(spool, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert spool.enqueue(["echo", "a"], name="a", gpus=1, retries=2) == ["a"]
    assert spool.enqueue(shell="echo b", name="b") == ["b"]
    assert spool.enqueue(call="m:f", args={"x": (1, 2)}, name="c") == ["c"]
    unnamed = spool.enqueue(["echo", "d"])
    assert spool.enqueue(["echo", "d"]) == unnamed
    assert described(spool) == ["a", "b", "c", *unnamed]
    inner = spool.open()
    inner.refresh()
    first = inner.task(TaskId(1, 0))
    assert (first["command"], first["retries"], first["cwd"]) == (["echo", "a"], 2, str(tmp_path))
    assert first["base_env"]["PATH"] == os.environ["PATH"]
    assert inner.task(TaskId(3, 0))["args"] == {"x": [1, 2]}


def test_many_tasks_in_every_form_with_shared_options(spool, tmp_path):
    names = spool.enqueue(
        tasks=[
            Task(command=("echo", "a"), name="a", cwd=tmp_path / "x", outputs="out.txt"),
            {"name": "b", "command": ["echo"], "tags": ("own",)},
            "echo c",
            *(Task(command=["x"], name=f"n{number}") for number in range(50)),
        ],
        tags=["all"],
        priority=7,
    )
    assert names[:2] == ["a", "b"]
    assert names[3:] == [f"n{number}" for number in range(50)]
    assert {task.name for task in spool.tasks(tags=["all"])} == set(names)
    assert [task.name for task in spool.tasks(tags=["own"])] == ["b"]
    assert {token.priority for token in spool.open().tokens().tokens} == {7}


@pytest.mark.parametrize(
    ("arguments", "said"),
    (
        ({"command": "echo a"}, "A shell line goes into shell="),
        ({}, "needs exactly one of command, shell, call"),
        ({"command": ["a"], "shell": "a"}, "found command and shell"),
        ({"command": ["a"], "tasks": ["b"]}, "Give tasks, or command, not both"),
        ({"command": ["a"], "retrys": 3}, "Did you mean 'retries'?"),
        ({"tasks": ["a"], "name": "x"}, "Give tasks, or name, not both"),
    ),
)
def test_wrong_arguments_are_said(spool, arguments, said):
    with pytest.raises(UsageError) as error:
        spool.enqueue(**arguments)
    assert said in str(error.value)


def test_looking_at_no_spool_makes_none(spool):
    for look in (spool.status, lambda: list(spool.tasks()), lambda: spool.cancel("a"), spool.stop):
        with pytest.raises(SpoolError, match="There is no spool"):
            look()
    assert not os.path.exists(spool.path)


def test_cancel_retry_and_status_go_together(spool):
    spool.enqueue(tasks=["true", "false"], tags="x")
    assert spool.status().as_json()["waiting"] == 2
    assert spool.cancel(tags="x", reason="oops").cancelled == 2
    work(spool.open(), Life.begin(spool.open()), succeed)
    assert spool.status().as_json()["cancelled"] == 2
    assert spool.retry(states=["cancelled"]).retried == 2
    assert [task.state for task in spool.tasks(states="waiting")] == [TaskState.WAITING] * 2
    with pytest.raises(UsageError, match="The states are held, blocked"):
        spool.retry(states=["done"])
    with pytest.raises(UsageError, match="Tasks cannot be chosen by 'tag'"):
        spool.retry(tag="x")


def test_stop_resume_limit_and_drain_are_there(spool):
    spool.enqueue(shell="true")
    spool.stop("disk")
    assert spool.status().as_json()["waiting"] == 1
    spool.resume()
    spool.limit("scratch_io", 2)
    assert spool.drain() == []


def test_a_snapshot_is_frozen(spool, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.py").write_text("print(1)\n")
    spool.enqueue(["python3", "run.py"], name="a", snapshot=[Path("run.py")])
    task = spool.open()
    task.refresh()
    line = task.task(TaskId(1, 0))
    assert line["command"][1] in line["snapshot"]
    (tmp_path / "run.py").write_text("print(2)\n")
    with pytest.raises(NameTaken):
        spool.enqueue(["python3", "run.py"], name="a", snapshot=["run.py"])


def test_a_worker_takes_the_options_of_the_command(spool):
    worker = Worker(spool.path, cpus=1, gpus="none", idle_exit_s=0.0, quiet=True)
    assert (worker.options.spool, worker.options.cpus) == (spool.path, 1)
    with pytest.raises(UsageError, match="A worker has no option 'cpu'"):
        Worker(spool.path, cpu=1)
    with pytest.raises(UsageError, match="must be a whole number from 1"):
        Worker(spool.path, cpus=0)


def test_a_whole_job_from_python(spool):
    """In a process of its own: a worker reaps every child of its process, also those of a test runner."""
    code = f"""
from fleetcraft import Spool, Task, Worker
spool = Spool({spool.path!r})
spool.enqueue(tasks=[Task(command=["sh", "-c", "exit 3"], name="bad"), "true"])
print(Worker(spool.path, cpus=1, gpus="none", idle_exit_s=0.0, quiet=True).run())
status = spool.status().as_json()
print(status["succeeded"], status["failed"])
print(spool.retry(states=["failed"]).names)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.split("\n")[:3] == ["0", "1 1", "['bad']"], done.stderr
