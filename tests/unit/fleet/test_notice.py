"""How a job is told of its end, and how its script says what was missing."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from fleetcraft.config.site import Container, Setup
from fleetcraft.core.errors import UsageError
from fleetcraft.fleet.look import ended_words
from fleetcraft.fleet.names import FleetFolder
from fleetcraft.fleet.render import render_work, request_for, worker_words
from fleetcraft.fleet.spec import WorkerChoices
from tests.support.fleets import spec

TOKEN = "fcabcdefghij"


def told(wanted):
    """(whether a signal is asked for, how long before the end, how long before the deadline the worker drains)."""
    request = request_for(wanted, FleetFolder("/s", "blue"), TOKEN, "x")
    words = worker_words(wanted, "/s")
    return request.signal, request.signal_before_s, words[words.index("--drain-before") + 1]


@pytest.mark.parametrize(
    ("profile_s", "said_s", "limit_s", "expected"),
    (
        (120.0, None, 3600.0, ("USR1", 120.0, "120s")),
        (150.0, None, 3600.0, ("USR1", 150.0, "150s")),
        (120.0, 300.0, 3600.0, ("USR1", 300.0, "300s")),  # a person's word counts for both
        (120.0, None, 600.0, ("USR1", 120.0, "120s")),
        (120.0, None, 300.0, (None, 75.0, "75s")),  # a signal that came a minute early would take half of it
        (0.0, None, 3600.0, (None, 120.0, "120s")),  # a site without signals; the deadline stays
        (120.0, 0.0, 3600.0, (None, 0.0, "0s")),
    ),
)
def test_the_signal_and_the_deadline_follow_one_time(profile_s, said_s, limit_s, expected):
    wanted = spec(
        site={"scheduler": {"signal_before_s": profile_s}}, time_limit_s=limit_s,
        worker=WorkerChoices(drain_before_s=said_s),
    )  # fmt: skip
    assert told(wanted) == expected


@pytest.mark.parametrize("value", (-1.0, float("nan"), float("inf")))
def test_a_time_that_is_none_is_refused(value):
    with pytest.raises(UsageError, match="no time"):
        spec(worker=WorkerChoices(drain_before_s=value))


def run(folder, wanted, path=None):
    os.makedirs(folder.job(TOKEN).root, exist_ok=True)
    script = render_work(wanted, folder, TOKEN, list)
    environ = {"PATH": path or os.environ["PATH"]}
    done = subprocess.run(["/bin/bash"], input=script.encode(), env=environ, check=False, timeout=60)
    return done.returncode, json.loads(Path(folder.job(TOKEN).ended).read_text())


def test_a_node_without_the_container_runtime_says_so_in_the_exit_record(tmp_path):
    wanted = spec(site={"container": Container(image="docker://x", runtime="no-such-runtime")})
    code, record = run(FleetFolder(str(tmp_path), "blue"), wanted)
    assert (code, record["code"]) == (78, 78)
    assert ended_words(record).startswith("no-such-runtime is not on this node (load it with setup.modules")


def test_an_image_that_is_not_there_is_named(tmp_path):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "apptainer").write_text("#!/bin/sh\nexit 3\n")
    (tmp_path / "bin" / "apptainer").chmod(0o755)
    folder = FleetFolder(str(tmp_path), "blue")
    path = f"{tmp_path}/bin:{os.environ['PATH']}"
    code, record = run(folder, spec(site={"container": Container(image="/no/image.sif")}), path)
    assert (code, record["reason"]) == (78, "the image /no/image.sif is not on this node")
    # With both of them there it is the runtime that says how it went.
    code, record = run(folder, spec(site={"container": Container(image=str(tmp_path / "bin"))}), path)
    assert (code, record["reason"]) == (3, "")


def test_a_failing_module_is_named_in_the_exit_record(tmp_path):
    code, record = run(FleetFolder(str(tmp_path), "blue"), spec(site={"setup": Setup(modules=('c"u\\da/12',))}))
    assert code == 78
    assert record["reason"] == "module load cuda/12 failed"


def test_the_setup_is_written_down_for_the_tasks_only_where_there_is_one(tmp_path):
    folder = FleetFolder(str(tmp_path), "blue")
    job = folder.job(TOKEN).root
    run(folder, spec(program=("/bin/true",)))
    assert not os.path.exists(f"{job}/env.before")
    show = ("/bin/sh", "-c", 'echo "setup $FLEETCRAFT_SETUP"')
    run(folder, spec(program=show, umask="007", site={"setup": Setup(env={"FROM_SITE": "yes"})}))
    assert f"setup {job}/env" in Path(folder.job(TOKEN).output).read_text()
    assert b"FROM_SITE=yes" in Path(f"{job}/env.after").read_bytes()
    assert b"FROM_SITE" not in Path(f"{job}/env.before").read_bytes()
    assert os.stat(f"{job}/env.after").st_mode & 0o077 == 0


def test_modules_of_the_host_do_not_reach_into_an_image(tmp_path):
    site = {"setup": Setup(lines=("export FROM_HOST=1",)), "container": Container(image="x", runtime="true")}
    folder = FleetFolder(str(tmp_path), "blue")
    run(folder, spec(site=site, env={"ASKED": "1"}))
    before, after = (Path(f"{folder.job(TOKEN).root}/env.{name}").read_bytes() for name in ("before", "after"))
    assert b"FROM_HOST=1" in before
    assert b"ASKED=1" not in before
    assert b"ASKED=1" in after
