"""The command as a process: exit codes, pipes, locales, faults, and what each start imports."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fleetcraft.cli import commands
from fleetcraft.cli.command import Command, Example
from fleetcraft.cli.main import EXIT_PIPE_CLOSED, main
from fleetcraft.cli.output import Output, printable
from fleetcraft.core.errors import EXIT_OURS
from fleetcraft.spool.life import Life
from tests.unit.readmodel.building import make_spool, publish, receipt

FLEETCRAFT = [sys.executable, "-m", "fleetcraft"]


def run(*words, cwd, env=None, **settings):
    surroundings = {**os.environ, **(env or {})}
    return subprocess.run(
        [*FLEETCRAFT, *words], cwd=cwd, env=surroundings, capture_output=True, check=False, timeout=60, **settings
    )


def spools_made(folder: Path) -> bool:
    return (folder / ".fleetcraft").exists()


def test_the_version_is_one_line(tmp_path):
    done = run("--version", cwd=tmp_path)
    assert done.stdout == b"fleetcraft 0.1.0\n"
    assert done.returncode == 0


def test_the_version_imports_nothing_heavy(tmp_path):
    code = "import sys; from fleetcraft.cli.main import main; main(['--version']); print(*sorted(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", f"import sys; sys.path.insert(0, {str(source_root())!r}); {code}"],
        capture_output=True,
        check=True,
    )
    loaded = set(done.stdout.split(b"\n", 1)[1].decode().split())
    assert not loaded & {
        "argparse",
        "json",
        "dataclasses",
        "typing",
        "inspect",
        "fleetcraft.spool",
        "fleetcraft.cli.output",
    }


@pytest.mark.parametrize(
    ("words", "absent"),
    (
        (
            ("task", "enqueue", "--", "true"),
            {"rich", "argcomplete", "fleetcraft.readmodel", "fleetcraft.workers"},
        ),
        (("spool", "status"), {"rich", "argcomplete", "fleetcraft.actions", "fleetcraft.workers.worker"}),
    ),
)
def test_a_verb_imports_only_what_it_needs(words, absent, tmp_path):
    assert run("task", "enqueue", "--name", "first", "--", "true", cwd=tmp_path).returncode == 0
    call = f"main({list(words)!r}); print('MODULES', *sorted(sys.modules))"
    code = f"import sys; from fleetcraft.cli.main import main; {call}"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, check=True)
    loaded = set(done.stdout.decode().split("MODULES ")[1].split())
    assert not loaded & absent


def source_root() -> Path:
    return Path(commands.__file__).parents[2]


def test_the_spool_is_the_one_that_was_named(tmp_path):
    named = tmp_path / "named"
    assert run("task", "enqueue", "--spool", str(named), "--", "true", cwd=tmp_path).returncode == 0
    assert not spools_made(tmp_path)
    assert run("task", "enqueue", "--", "true", cwd=tmp_path, env={"FLEETCRAFT_SPOOL": str(named)}).returncode == 0
    assert not spools_made(tmp_path)
    assert run("task", "enqueue", "--", "true", cwd=tmp_path).returncode == 0
    assert spools_made(tmp_path)


ODD_NAMES = [
    b"plain",
    b"with space",
    b"quote'\"",
    b"new\nline",
    b"\xff\xfe",
    "Größe-漢字".encode(),
    b"-dash",
    b"tab\tescape\x1b[31m",
]
LOCALES = (
    {"LC_ALL": "C"},
    {"LC_ALL": "C.UTF-8"},
    # Neither coercion nor UTF-8 mode: Python then starts with ASCII, as it does with an ISO locale.
    {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
)


@pytest.mark.parametrize("locale", LOCALES, ids=("C", "utf8", "ascii"))
def test_any_name_and_argument_comes_out_as_it_went_in(locale, tmp_path):
    for name in ODD_NAMES:
        done = run("task", "enqueue", b"--name=" + name, "--", "printf", b"%s|", name, cwd=tmp_path, env=locale)
        assert done.returncode == 0, done.stderr
    listed = json.loads(run("task", "list", "--json", cwd=tmp_path, env=locale).stdout)
    assert [task["name"].encode("utf-8", "surrogateescape") for task in listed["tasks"]] == ODD_NAMES
    for name in ODD_NAMES[3:7]:
        shown = run("task", "show", "--json", "--", name, cwd=tmp_path, env=locale)
        assert shown.returncode == 0, shown.stderr
        assert json.loads(shown.stdout)["task"]["command"][2].encode("utf-8", "surrogateescape") == name
    text = run("task", "list", cwd=tmp_path, env=locale).stdout
    assert b"\xff\xfe" in text
    assert "Größe-漢字".encode() in text
    assert b"new\\nline" in text
    assert b"\x1b" not in text
    assert len(text.splitlines()) == 1 + len(ODD_NAMES)


def test_a_closed_pipe_is_no_fault(tmp_path):
    run("task", "enqueue", "--from", "-", cwd=tmp_path, input=b"".join(b"echo %d\n" % number for number in range(5000)))
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [*FLEETCRAFT, "task", "list", "--limit", "0", "--brief"],
        cwd=tmp_path,
        stdout=writer,
        stderr=subprocess.PIPE,
        check=False,
    )
    os.close(writer)
    assert done.returncode == EXIT_PIPE_CLOSED
    assert done.stderr == b""


def test_interrupt_is_130_and_one_word(tmp_path):
    run("task", "enqueue", "--", "true", cwd=tmp_path)
    process = subprocess.Popen(
        [*FLEETCRAFT, "spool", "status", "--watch"], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    assert b"1" in process.stdout.readline()  # it has drawn once, so it is past its start
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=30)
    assert process.returncode == 130
    assert error == b"fleetcraft: interrupted\n"


def broken(_arguments, _output):
    raise RuntimeError("this was never thought of")


BROKEN = Command(path=("doctor",), summary="", run=broken, examples=(Example(line="", what=""),))


def test_a_fault_of_ours_keeps_its_traceback_in_a_file(monkeypatch, capsys):
    monkeypatch.setattr(commands, "load", lambda _noun, _verb: BROKEN)
    assert main(["doctor"]) == EXIT_OURS
    error = capsys.readouterr().err
    assert error.startswith("fleetcraft: A fault of ours: RuntimeError: this was never thought of")
    path = error.split("The traceback is in ")[1].split(";")[0]
    try:
        assert "in broken" in Path(path).read_text()
    finally:
        os.unlink(path)
    assert main(["doctor", "--json"]) == EXIT_OURS
    document = json.loads(capsys.readouterr().out)
    assert (document["error"]["code"], document["error"]["exit"]) == ("internal", EXIT_OURS)
    os.unlink(document["error"]["hint"].split("The traceback is in ")[1].split(";")[0])
    monkeypatch.setenv("FLEETCRAFT_DEBUG", "1")
    with pytest.raises(RuntimeError):
        main(["doctor"])


@pytest.mark.parametrize(
    ("raised", "code", "said"),
    (
        (PermissionError(13, "Permission denied", "/x/y"), 2, "/x/y: Permission denied"),
        (OSError(5, "Input/output error", "/x/y"), 75, "/x/y: Input/output error"),
    ),
)
def test_errors_of_the_storage_are_told_in_one_sentence(raised, code, said, monkeypatch, capsys):
    def run_(_arguments, _output):
        raise raised

    command = Command(path=("doctor",), summary="", run=run_, examples=BROKEN.examples)
    monkeypatch.setattr(commands, "load", lambda _noun, _verb: command)
    assert main(["doctor"]) == code
    assert said in capsys.readouterr().err


def test_colors_only_where_they_are_wanted(monkeypatch, capsys):
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    assert not Output.for_streams().color
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert Output.for_streams().color
    monkeypatch.setenv("NO_COLOR", "1")
    assert not Output.for_streams().color


def test_what_is_shown_never_steers_the_terminal():
    assert printable("a\x1b[31mb\r\n\x9b\u202ec") == "a\\x1b[31mb\\r\\n\\x9b\\u202ec"
    assert printable("Größe 漢字 \udcff") == "Größe 漢字 \udcff"


def test_completion_answers_a_shell(tmp_path):
    line = "fleetcraft task en"
    env = {
        "_ARGCOMPLETE": "1",
        "COMP_LINE": line,
        "COMP_POINT": str(len(line)),
        "_ARGCOMPLETE_STDOUT_FILENAME": str(tmp_path / "out"),
        "COMP_TYPE": "9",
    }
    done = run(cwd=tmp_path, env=env)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out").read_text().strip() == "enqueue"


@pytest.mark.parametrize("shell", ("bash", "zsh", "fish"))
def test_completion_prints_a_script(shell, capsys):
    assert main(["completion", shell]) == 0
    assert "fleetcraft" in capsys.readouterr().out


def test_logs_can_be_had_byte_for_byte(tmp_path):
    spool = make_spool(tmp_path)
    batch = publish(spool, ["a"])
    life = Life.begin(spool)
    (Path(life.folder) / "output-0.log").write_bytes(b"one\xff\0\n")
    receipt(life, batch, 0, log=[0, 0, 6])
    done = run("task", "logs", "a", "--bytes", "--spool", spool.layout.root, cwd=tmp_path)
    assert done.stdout == b"one\xff\0\n"
