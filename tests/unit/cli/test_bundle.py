"""The bundle: equal bytes for equal sources, and a worker that needs nothing but a bare Python."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile

import pytest

from fleetcraft.actions.bundle import ROOMS, build_bundle, write_bundle
from fleetcraft.cli.main import main

# The interpreter itself, so that neither an environment nor a user's packages are there.
BARE = [getattr(sys, "_base_executable", sys.executable), "-I", "-S"]


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    return write_bundle(str(tmp_path_factory.mktemp("bundle") / "fleetcraft.pyz"))


# Runs the bundle as Python would, and tells at the end what was imported by then.
LISTING = """
import atexit, runpy, sys
sys.argv = sys.argv[1:]
atexit.register(lambda: open("modules.txt", "w").write("\\n".join(sys.modules)))
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def run_bare(bundle, *words, cwd, listing=False):
    command = [*BARE, *(["-c", LISTING] if listing else []), bundle.path, *words]
    return subprocess.run(command, cwd=cwd, env={}, capture_output=True, text=True, check=False, timeout=60)


def test_equal_sources_make_equal_bytes():
    assert build_bundle() == build_bundle()


def test_the_bundle_holds_the_node_side_and_nothing_else(bundle):
    with zipfile.ZipFile(bundle.path) as archive:
        names = archive.namelist()
    assert names == sorted(names)
    rooms = {name.split("/")[1] for name in names if name.count("/") > 1}
    assert rooms == set(ROOMS)
    assert not [name for name in names if not name.endswith(".py")]


def test_a_bundle_makes_the_same_bundle(bundle, tmp_path):
    done = run_bare(bundle, "bundle", "--output", "again.pyz", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["sha256"] == bundle.sha256


def test_a_place_that_cannot_be_is_wrong_usage(tmp_path, capsys):
    assert main(["bundle", "--output", str(tmp_path / "no" / "such" / "x.pyz")]) == 2
    assert main(["bundle", "--output", str(tmp_path)]) == 2
    assert str(tmp_path) in capsys.readouterr().err


def test_a_worker_runs_from_it_with_an_empty_environment(bundle, tmp_path):
    """Commands and calls; and what it imports is the standard library and ourselves."""
    module = tmp_path / "calls.py"
    module.write_text("def double(number):\n    return 2 * number\n")
    lines: list[dict[str, object]] = [
        {"name": f"t{number}", "command": ["/bin/sh", "-c", f"echo {number}"]} for number in range(3)
    ]
    lines.append({"name": "call", "call": "calls:double", "args": {"number": 21}, "env": {"PYTHONPATH": str(tmp_path)}})
    (tmp_path / "tasks.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    enqueued = run_bare(bundle, "task", "enqueue", "--spool", "spool", "--from", "tasks.jsonl", cwd=tmp_path)
    assert enqueued.returncode == 0, enqueued.stderr
    words = ("--spool", "spool", "--cpus", "2", "--idle-exit", "0s")
    worked = run_bare(bundle, "worker", "run", *words, cwd=tmp_path, listing=True)
    assert worked.returncode == 0, worked.stderr
    status = json.loads(run_bare(bundle, "spool", "status", "--spool", "spool", "--json", cwd=tmp_path).stdout)
    why = run_bare(bundle, "why", "task", "call", "--spool", "spool", cwd=tmp_path).stdout
    assert (status["total"], status["succeeded"]) == (4, 4), why
    imported = {name.split(".")[0] for name in (tmp_path / "modules.txt").read_text().split()}
    assert "fleetcraft" in imported
    assert not imported - sys.stdlib_module_names - {"fleetcraft", "__main__"}


OF_SAMPLES = ("summary", "classify", "top", "watch", "export", "report", "ledger", "import", "seal")


@pytest.mark.parametrize("verb", OF_SAMPLES)
def test_what_it_does_not_hold_is_called_by_its_name(bundle, tmp_path, verb):
    words = {"import": ["log.csv", "--to", "t", "--zone", "UTC"], "seal": ["t"], "export": ["--to", "metrics.prom"]}
    answer = run_bare(bundle, "gpu", verb, *words.get(verb, ()), cwd=tmp_path)
    assert answer.returncode == 2, answer.stderr
    assert answer.stderr.startswith("fleetcraft: Telemetry ")
    assert "there is no module fleetcraft." in answer.stderr
    assert "pip install" in answer.stderr
