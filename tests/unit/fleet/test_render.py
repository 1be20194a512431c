"""The script of a job, run by a real bash: what it writes, what it passes on, and that no value can break out of it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleetcraft.config.site import Container, Setup
from fleetcraft.core.errors import UsageError
from fleetcraft.fleet.names import FleetFolder
from fleetcraft.fleet.quoting import quote
from fleetcraft.fleet.render import JOB_ID, render_work, request_for, script_line, worker_words
from fleetcraft.fleet.spec import from_json
from tests.support.fleets import spec

TOKEN = "fcabcdefghij"


def _run(folder: FleetFolder, script: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[bytes]:
    os.makedirs(folder.job(TOKEN).root, exist_ok=True)
    path = Path(folder.root) / "script.sh"
    path.write_bytes(script.encode("utf-8", "surrogateescape"))
    return subprocess.run(
        ["/bin/bash", os.fsencode(path)], env={"PATH": os.environ["PATH"], **(env or {})}, capture_output=True,
        timeout=60, check=False,
    )  # fmt: skip


def _ended(folder: FleetFolder) -> dict[str, object]:
    with open(folder.job(TOKEN).ended, encoding="utf-8") as source:
        record: dict[str, object] = json.load(source)
    return record


def _said(folder: FleetFolder) -> str:
    return Path(folder.job(TOKEN).output).read_text(encoding="utf-8", errors="surrogateescape")


def _same(words):
    return list(words)


def _printing(changes):
    """A worker that only prints its words, one a line, each in repr."""
    return spec(program=(sys.executable, "-c", "import sys; print(*map(ascii, sys.argv[1:]), sep='\\n')"), **changes)


def test_a_job_says_that_it_started_and_how_it_ended(tmp_path):
    folder = FleetFolder(str(tmp_path), "blue")
    done = _run(folder, render_work(spec(program=("/bin/sh", "-c", "exit 7")), folder, TOKEN, _same))
    assert done.returncode == 7
    assert _ended(folder)["code"] == 7
    assert _ended(folder)["token"] == TOKEN
    with open(folder.job(TOKEN).started, encoding="utf-8") as source:
        assert json.load(source)["token"] == TOKEN


def test_the_deadline_is_the_schedulers_word_or_the_time_limit(tmp_path):
    folder = FleetFolder(str(tmp_path), "blue")
    script = render_work(_printing({"time_limit_s": 1000.0}), folder, TOKEN, _same)
    before = int(time.time())
    _run(folder, script)
    words = _said(folder).splitlines()
    deadline = int(words[words.index("'--deadline'") + 1].strip("'"))
    assert before + 970 <= deadline <= int(time.time()) + 970
    _run(folder, script, {"SLURM_JOB_END_TIME": "2000000000", "SLURM_JOB_ID": "17"})
    words = _said(folder).splitlines()[len(words) :]
    assert words[words.index("'--deadline'") + 1] == "'1999999970'"
    assert words[words.index("'--job-id'") + 1] == "'17'"


def test_a_withdrawn_job_runs_nothing(tmp_path):
    folder = FleetFolder(str(tmp_path), "blue")
    os.makedirs(folder.job(TOKEN).root)
    Path(folder.job(TOKEN).withdrawn).touch()
    done = _run(folder, render_work(spec(program=("/bin/sh", "-c", "touch ran")), folder, TOKEN, _same))
    assert done.returncode == 0
    assert not os.path.exists(folder.job(TOKEN).root + "/ran")
    assert not os.path.exists(folder.job(TOKEN).started)


@pytest.mark.parametrize("number", (signal.SIGTERM, signal.SIGUSR1))
def test_a_signal_reaches_the_workers_once_as_usr1_and_the_job_waits_for_them(tmp_path, number):
    folder = FleetFolder(str(tmp_path), "blue")
    os.makedirs(folder.job(TOKEN).root)
    worker = (
        "import signal, sys, time\n"
        "heard = []\n"
        "signal.signal(signal.SIGUSR1, lambda n, f: heard.append(n))\n"
        "open('ready', 'w').close()\n"
        "while not heard: signal.sigtimedwait([], 0.05)\n"
        "signal.sigtimedwait([], 0.3)\n"
        "print('heard', len(heard)); sys.exit(5)\n"
    )
    script = render_work(spec(program=(sys.executable, "-c", worker)), folder, TOKEN, _same)
    path = tmp_path / "script.sh"
    path.write_text(script, encoding="utf-8")
    process = subprocess.Popen(["/bin/bash", str(path)])
    give_up = time.monotonic() + 30
    while not os.path.exists(folder.job(TOKEN).root + "/ready"):
        assert time.monotonic() < give_up, "the worker did not start"
        time.sleep(0.02)
    process.send_signal(number)
    process.send_signal(signal.SIGUSR1)
    assert process.wait(timeout=30) == 5
    assert "heard 1" in _said(folder)
    assert _ended(folder)["code"] == 5


def test_a_failing_module_line_ends_the_job_with_its_record(tmp_path):
    folder = FleetFolder(str(tmp_path), "blue")
    wanted = spec(site={"setup": Setup(modules=("cuda/12",), lines=("export FROM_SITE=yes",))})
    done = _run(folder, render_work(wanted, folder, TOKEN, _same))
    assert done.returncode == 78
    assert _ended(folder)["code"] == 78
    assert "module load cuda/12 failed" in _said(folder)


def test_a_container_wraps_the_worker_and_binds_the_spool(tmp_path):
    folder = FleetFolder(str(tmp_path), "blue")
    wanted = spec(site={"container": Container(image="/i/x.sif", binds=("/data",), options=("--cleanenv",))})
    words = worker_words(wanted, folder.spool)
    assert words[:3] == ["apptainer", "exec", "--nv"]
    assert words[3:7] == ["--bind", str(tmp_path), "--bind", "/data"]
    assert words[7:12] == ["--cleanenv", "/i/x.sif", "python3", "-m", "fleetcraft"]


@pytest.mark.parametrize("spool", ("/a,b", "/a:b"))
def test_a_spool_that_no_container_can_bind_is_refused(spool):
    with pytest.raises(UsageError):
        worker_words(spec(site={"container": Container(image="x")}), spool)


def test_a_setup_line_with_a_line_end_is_refused(tmp_path):
    with pytest.raises(UsageError, match="line end"):
        render_work(spec(site={"setup": Setup(lines=("a\nb",))}), FleetFolder(str(tmp_path), "blue"), TOKEN, _same)


def test_a_launcher_that_hides_a_word_is_refused():
    with pytest.raises(UsageError, match="word of its own"):
        script_line(["sh", "-c", f"worker --job-id {JOB_ID}"])


def test_nothing_of_a_person_stands_in_a_directive(tmp_path):
    script = render_work(spec(env={"A": "#SBATCH --nodes=99"}), FleetFolder(str(tmp_path), "blue"), TOKEN, _same)
    assert "\n#SBATCH" not in script
    assert script.startswith("#!/bin/bash\n")


def test_the_request_follows_the_rules_of_the_site(tmp_path):
    folder = FleetFolder(str(tmp_path), "blue")
    wanted = spec(
        site={"scheduler": {"gpus": "node", "memory": "site", "exclusive": True}}, memory_bytes=5, exclude=("b",)
    )
    request = request_for(wanted, folder, TOKEN, "x", exclude=["a"])
    assert (request.gpus_per_node, request.memory_bytes, request.exclusive) == (0, None, True)
    assert request.exclude == ("a", "b")
    assert request.name == "blue"
    assert request.signal == "USR1"
    assert from_json(json.loads(json.dumps(wanted.as_json()))) == wanted


def test_a_path_with_pattern_letters_is_not_given_to_the_scheduler():
    assert request_for(spec(), FleetFolder("/a%j", "blue"), TOKEN, "x").output == "/dev/null"


@pytest.mark.skipif(
    shutil.which("shellcheck") is None, reason="shellcheck is not on the PATH (apt-get install shellcheck)"
)
def test_the_script_is_clean_to_a_linter(tmp_path):
    wanted = spec(env={"A": "it's"}, site={"setup": Setup(modules=("cuda",), lines=("ulimit -c 0",), unset=("B",))})
    path = tmp_path / "script.sh"
    path.write_text(render_work(wanted, FleetFolder(str(tmp_path), "blue"), TOKEN, _same), encoding="utf-8")
    done = subprocess.run(["shellcheck", "-e", "SC2317", str(path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


# Every byte but zero, also such that are no UTF-8.
_TEXT = st.binary(max_size=24).map(lambda raw: os.fsdecode(raw.replace(b"\0", b"0")))


@settings(max_examples=60)
@given(_TEXT)
def test_a_quoted_word_is_that_word_on_one_line(word):
    quoted = quote(word)
    assert "\n" not in quoted
    assert "\r" not in quoted
    quoted.encode()  # no encoder stumbles
    done = subprocess.run(["/bin/bash", "-c", f"printf %s {quoted}"], capture_output=True, check=True, env={})
    assert done.stdout == os.fsencode(word)


@settings(max_examples=15)
@given(value=_TEXT, name=_TEXT.map(lambda text: text.replace("/", "_")), data=st.data())
def test_any_path_and_any_value_arrive_as_they_are(tmp_path_factory, value, name, data):
    root = tmp_path_factory.mktemp("spool") / f"s{name}"[:100]
    os.makedirs(root)
    folder = FleetFolder(str(root), "blue")
    worker = "import os, sys; print(ascii(os.environ['VALUE']), ascii(sys.argv[sys.argv.index('--spool') + 1]))"
    wanted = spec(program=(sys.executable, "-c", worker), env={"VALUE": value})
    script = render_work(wanted, folder, TOKEN, _same)
    checked = subprocess.run(["/bin/bash", "-n"], input=script.encode(), capture_output=True, check=False)
    assert checked.returncode == 0, checked.stderr
    done = _run(folder, script, {"LC_ALL": "C.UTF-8"})
    assert done.returncode == 0, _said(folder)
    assert _said(folder).strip() == f"{value!a} {str(root)!a}"
