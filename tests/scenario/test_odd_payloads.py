"""Commands, names, paths, environments and outputs that a shell, a terminal or a scheduler would mangle."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import pytest

from fleetcraft.core.errors import TaskInvalid
from tests.support.lab import Lab

ODD = (
    "with space", "it's", 'say "x"', "line\nbreak", "tab\there", "-rf", "--help", "$(touch pwned)", "`id`", "a;b|c&d",
    "back\\slash", "50%", "Köln", "日本", "e\u0301", "é", "\u202egnp.exe",
    "*?[a]", "#no", "~", "!bang", "\x07bell", "a'b\"c`d$e\\f!",
)  # fmt: skip
WRITE_ARGV = "import json,sys; json.dump([a for a in sys.argv[2:]], open(sys.argv[1], 'w'))"


def test_odd_arguments_names_and_folders_arrive_byte_for_byte(lab: Lab):
    tasks: list[dict[str, Any]] = []
    for number, odd in enumerate(ODD):
        folder = lab.folder / f"d{number} {odd.replace('/', '_')}"
        folder.mkdir()
        tasks.append(
            {"name": odd, "command": [sys.executable, "-c", WRITE_ARGV, "argv.json", odd, f"-{odd}"],
             "cwd": str(folder), "env": {"ODD": odd}, "outputs": ["argv.json"]}
        )  # fmt: skip
    lab.enqueue(tasks)
    lab.drain()
    assert lab.counts() == {"succeeded": len(ODD)}
    for task in tasks:
        with open(os.path.join(str(task["cwd"]), "argv.json"), encoding="utf-8") as source:
            assert json.load(source) == task["command"][4:]
        assert lab.receipts(str(task["name"]))[0]["outputs"][0]["path"] == "argv.json"
    assert not (lab.folder / "pwned").exists()


def test_odd_output_paths_are_proved(lab: Lab):
    names = [odd for odd in ODD if "/" not in odd]
    write = ["sh", "-c", 'echo x > "$1"', "sh"]
    lab.enqueue([{"name": f"t{n}", "command": [*write, name], "outputs": [name]} for n, name in enumerate(names)])
    lab.drain()
    assert lab.counts() == {"succeeded": len(names)}
    assert [lab.receipts(f"t{number}")[0]["outputs"][0]["path"] for number in range(len(names))] == names


def test_a_shell_line_of_200_kilobytes_runs(lab: Lab):
    words = "x" * 200_000
    lab.enqueue([{"name": "long", "shell": f"printf %s {words} | wc -c; printf %s '{words}' > out"}])
    lab.drain()
    assert lab.output("long").split() == [b"200000"]
    assert (lab.folder / "out").read_text() == words


def test_a_long_shell_line_reads_no_script_from_its_stdin(lab: Lab):
    lab.enqueue([{"name": "long", "shell": f": {'y' * 200_000}; cat; echo code $?; ls /proc/self/fd | wc -l"}])
    lab.drain()
    lines = lab.output("long").split(b"\n")
    assert lines[0] == b"code 0"
    assert int(lines[1]) <= 5, "the descriptor of the script leaked into the commands of the line"


def test_an_argv_of_a_megabyte_in_many_arguments_runs(lab: Lab):
    arguments = [f"{number:099d}" for number in range(10_000)]
    lab.enqueue(
        [
            {
                "name": "many",
                "command": [sys.executable, "-c", "import sys; print(len(sys.argv), sys.argv[-1])", *arguments],
            }
        ]
    )
    lab.drain()
    assert lab.output("many").split() == [b"10001", arguments[-1].encode()]


def test_values_of_the_environment_arrive_unchanged(lab: Lab):
    values = {
        "A": "a,b",
        "B": "a b",
        "C": "a=b",
        "D": "a\nb",
        "E": "",
        "F": "$HOME",
        "G": "é",
        "H": "x" * 8192,
        "I": "caf\udce9",
    }
    program = "import os,json,sys; sys.stdout.write(json.dumps({k: os.environ.get(k) for k in 'ABCDEFGHI'}))"
    lab.enqueue([{"name": "env", "command": [sys.executable, "-c", program], "env": values}])
    lab.drain()
    assert json.loads(lab.output("env")) == values


def test_bytes_that_are_no_text_survive_in_arguments_and_output(lab: Lab):
    raw = os.fsdecode(b"caf\xe9 \xff")
    lab.enqueue([{"name": f"raw {raw}", "command": ["printf", "%s", raw]}])
    lab.drain()
    assert lab.output(f"raw {raw}") == b"caf\xe9 \xff"


def test_text_that_no_encoding_has_ends_no_worker(lab: Lab):
    """A lone surrogate can be written in JSON; no kernel call takes it as it is. Enqueue refuses most of them."""
    lone = "lone \ud800"
    lab.enqueue(
        [
            {"name": lone, "command": ["sh", "-c", 'printf %s "$FLEETCRAFT_TASK"'], "notify": ["true"]},
            {"name": "tagged", "command": ["true"], "tags": [lone]},
        ]
    )
    with pytest.raises(TaskInvalid, match="surrogate"):
        lab.enqueue([{"name": "argv", "command": ["printf", "%s", lone]}])
    lab.drain()
    assert lab.counts() == {"succeeded": 2}
    assert lab.output(lone) == lone.encode("utf-8", "surrogatepass")


@pytest.mark.parametrize("locale", ("C", "POSIX", ""))
def test_a_worker_in_a_bare_locale_runs_odd_names(lab: Lab, locale: str):
    lab.enqueue([{"name": odd, "command": ["printf", "%s", odd]} for odd in ("Köln", "日本", "e\u0301", "é")])
    lab.drain(env={"LC_ALL": locale, "LANG": locale, "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"})
    assert [lab.output(odd).decode() for odd in ("Köln", "日本", "e\u0301", "é")] == ["Köln", "日本", "e\u0301", "é"]


def test_a_task_reads_nothing_from_the_workers_stdin(lab: Lab):
    lab.enqueue([{"name": "reads", "command": ["sh", "-c", "cat; readlink /proc/self/fd/0"]}])
    lab.drain()
    assert lab.output("reads") == b"/dev/null\n"


def test_a_task_inherits_no_descriptor_of_the_worker(lab: Lab):
    lab.enqueue([{"name": "fds", "command": ["sh", "-c", "ls -l /proc/$$/fd"]}])
    lab.drain()
    targets = [line.split(b"-> ")[1] for line in lab.output("fds").splitlines() if b"-> " in line]
    assert sum(b"spool" in target and b"output-" not in target for target in targets) == 0, targets
    assert len(targets) <= 3 + 1, targets
