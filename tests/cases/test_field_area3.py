"""Recorded cases of area 3, task definitions and shards; each test is named by its case."""

from __future__ import annotations

import io
import itertools
import json
import os
import resource
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from fleetcraft.actions.enqueue import EnqueueOptions, enqueue_stream
from fleetcraft.actions.environment import environment_digest, record_environment
from fleetcraft.core.errors import NameTaken, TaskInvalid
from fleetcraft.core.task import MAX_ARGUMENT_BYTES
from tests.support.lab import BASE_ENV, ROOT, Lab
from tests.support.seeds import seeded


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    with Lab(tmp_path) as one:
        yield one


def fleetcraft(
    *arguments: str, env: Mapping[str, str] | None = None, cwd: Path | None = None, stdin: bytes = b""
) -> subprocess.CompletedProcess[bytes]:
    """The installed command, in an environment of its own."""
    return subprocess.run(
        [sys.executable, "-m", "fleetcraft", *arguments], env={**BASE_ENV, **(env or {})}, cwd=cwd or ROOT, input=stdin,
        capture_output=True, check=False, timeout=60,
    )  # fmt: skip


# F3-01: too long


def test_f3_01_one_byte_more_than_the_kernel_takes_is_refused_by_name_and_one_less_runs(lab: Lab):
    lab.enqueue([{"name": "fits", "command": ["sh", "-c", 'printf %s "$1" | wc -c', "sh", "a" * MAX_ARGUMENT_BYTES]}])
    with pytest.raises(TaskInvalid, match="argument 1 has 131072 bytes"):
        lab.enqueue([{"name": "long", "command": ["true", "a" * (MAX_ARGUMENT_BYTES + 1)]}])
    lab.drain()
    assert lab.output("fits").split() == [b"131071"]
    assert lab.total() == 1


def test_f3_01_a_variable_that_is_too_long_is_refused_by_name(lab: Lab):
    with pytest.raises(TaskInvalid, match="BIG is longer"):
        lab.enqueue([{"name": "long", "command": ["true"], "env": {"BIG": "x" * 200_000}}])


def test_f3_01_an_argv_that_is_too_long_in_all_is_refused_and_the_largest_accepted_one_runs(lab: Lab):
    soft = resource.getrlimit(resource.RLIMIT_STACK)[0]
    if soft != resource.RLIM_INFINITY and soft < 8 << 20:
        pytest.skip("the stack limit is smaller than usual, and with it what exec takes")
    piece = "b" * 1000
    with pytest.raises(TaskInvalid, match="bytes in all"):
        lab.enqueue([{"name": "long", "command": ["true", *[piece] * 2000]}])
    lab.enqueue(
        [{"name": "fits", "command": [sys.executable, "-c", "import sys; print(len(sys.argv))", *[piece] * 1880]}]
    )
    lab.drain()
    assert lab.output("fits").split() == [b"1881"]


def test_f3_01_a_shell_line_has_no_such_limit_whatever_carries_it(lab: Lab):
    """The line crosses the ledger, the worker and the shell by files; only its own commands meet the kernel's limit."""
    line = "true " + " ".join(f"word{number}" for number in range(300_000))
    lab.enqueue([{"name": "huge", "shell": f": {line}; echo ran"}])
    lab.drain()
    assert lab.output("huge") == b"ran\n"


# F3-02: many inputs


def test_f3_02_what_is_handed_to_a_process_does_not_grow_with_the_number_of_tasks(lab: Lab):
    program = (
        "import os\n"
        "print(sum(len(k) + len(v) for k, v in os.environb.items()) + len(open('/proc/self/cmdline').read()))"
    )
    lab.enqueue([{"name": "first", "command": [sys.executable, "-c", program]}])
    lab.drain()
    many = b"".join(b'{"name": "t%d", "command": ["true"]}\n' % number for number in range(150_000))
    enqueue_stream(lab.spool, io.BytesIO(many), "list", EnqueueOptions(defaults={"cwd": "/", "priority": 1}))
    lab.enqueue([{"name": "last", "command": [sys.executable, "-c", program]}], priority=900)
    lab.drain(max_tasks=1)
    assert abs(int(lab.output("last")) - int(lab.output("first"))) < 64


# F3-04, F3-06, F3-09: characters that a shell or a scheduler would alter

AWKWARD = ("!", "\\", "`", "$", '"')


def test_f3_04_every_pair_of_awkward_characters_arrives_byte_for_byte(lab: Lab):
    pairs = ["".join(pair) for pair in itertools.product(AWKWARD, repeat=2)]
    values = [f"a{pair}b{pair}" for pair in pairs] + pairs
    lab.enqueue(
        [
            {"name": f"argv{number}", "command": ["printf", "%s", value], "env": {"V": value}}
            for number, value in enumerate(values)
        ]
    )
    lab.enqueue(
        [
            {"name": f"env{number}", "shell": 'printf %s "$V"', "env": {"V": value}}
            for number, value in enumerate(values)
        ]
    )
    lab.drain()
    for number, value in enumerate(values):
        assert lab.output(f"argv{number}") == lab.output(f"env{number}") == value.encode()


def test_f3_04_a_shell_line_from_a_file_is_not_touched(lab: Lab):
    lines = [f"printf %s 'x{a}{b}y'" for a, b in itertools.product(AWKWARD, repeat=2)]
    options = EnqueueOptions(defaults={"cwd": str(lab.folder)}, base_env=BASE_ENV)
    result = enqueue_stream(lab.spool, io.BytesIO("\n".join(lines).encode()), "list", options, keep_names=100)
    lab.drain()
    assert [lab.output(name).decode() for name in result.names] == [line.split("'")[1] for line in lines]


@pytest.mark.parametrize("name", ('we"ird dir', "$(touch injected)", "é", "a b'c", "-n", "x;y", "new\nline"))
def test_f3_06_a_task_starts_in_exactly_its_folder(lab: Lab, name: str):
    folder = lab.folder / name / "deep"
    folder.mkdir(parents=True)
    lab.enqueue([{"name": "where", "command": ["/bin/pwd"], "cwd": str(folder)}])
    lab.drain()
    assert lab.output("where") == os.fsencode(f"{folder}\n")
    assert not list(lab.folder.rglob("injected"))


def test_f3_09_values_of_the_environment_arrive_and_odd_names_are_refused(lab: Lab):
    values = {
        "COMMA": "a,b",
        "SPACE": "a b",
        "EQUALS": "a=b",
        "LINES": "a\nb",
        "EMPTY": "",
        "DOLLAR": "$HOME",
        "TEXT": "é",
        "LONG": "x" * 8192,
    }
    lab.enqueue([{"name": "env", "command": ["env", "-0"], "env": values}])
    lab.drain()
    found = dict(entry.split(b"=", 1) for entry in lab.output("env").split(b"\0") if entry)
    assert {name: found.get(name.encode(), b"(unset)").decode() for name in values} == values
    for name in ("A-B", "1A", "", "A B", "A=B"):
        with pytest.raises(TaskInvalid, match="not a valid variable name"):
            lab.enqueue([{"name": "bad", "command": ["true"], "env": {name: "x"}}])


# F3-07: line ends


def test_f3_07_crlf_and_a_byte_order_mark_are_stripped_and_mentioned(lab: Lab):
    text = b'\xef\xbb\xbfprintf %s one\r\n{"name": "two", "command": ["printf", "%s", "two"]}\r\nprintf %s three'
    options = EnqueueOptions(defaults={"cwd": str(lab.folder)}, base_env=BASE_ENV)
    result = enqueue_stream(lab.spool, io.BytesIO(text), "list", options)
    assert result.added == 3, "a last line without its end counts too"
    assert any("CRLF" in note for note in result.notes)
    assert any("byte order mark" in note for note in result.notes)
    lab.drain()
    assert {lab.output(name) for name in result.names} == {b"one", b"two", b"three"}


def test_f3_07_a_cr_in_the_middle_of_a_line_is_kept_and_mentioned(lab: Lab):
    options = EnqueueOptions(defaults={"cwd": str(lab.folder)}, base_env=BASE_ENV)
    result = enqueue_stream(lab.spool, io.BytesIO(b"printf %s 'a\rb'\n"), "list", options)
    assert any("CR that is no part of a line end" in note for note in result.notes)
    lab.drain()
    assert lab.output(result.names[0]) == b"a\rb"


@pytest.mark.parametrize("first", (b"#!/bin/sh\r\n", b"\xef\xbb\xbf#!/bin/sh\n"))
def test_f3_07_a_script_that_no_kernel_would_start_is_refused_before_it_is_queued(lab: Lab, first: bytes):
    script = lab.folder / "job.sh"
    script.write_bytes(first + b"echo hi\n")
    script.chmod(0o755)
    done = fleetcraft(
        "task", "enqueue", "--spool", str(lab.root), "--name", "job", "--snapshot", str(script), "--", str(script)
    )
    assert done.returncode == 2, done
    assert b"line 1" in done.stderr
    assert lab.total() == 0


# F3-10: the environment policy


def test_f3_10_only_the_recorded_part_of_a_shell_reaches_a_task_and_its_digest_tells_shells_apart(lab: Lab):
    shell = {"FOO": "secret", "CONDA_PREFIX": "/opt/conda", "API_TOKEN": "x", "OMP_NUM_THREADS": "4"}
    done = fleetcraft("task", "enqueue", "--spool", str(lab.root), "--name", "env", "--", "env", "-0", env=shell)
    assert done.returncode == 0, done
    lab.drain(env={"FOO": "from the node", "CONDA_PREFIX": "/other", "OMP_NUM_THREADS": "64"})
    found = dict(entry.split(b"=", 1) for entry in lab.output("env").split(b"\0") if entry)
    assert found[b"CONDA_PREFIX"] == b"/opt/conda"
    assert found[b"OMP_NUM_THREADS"] == b"4"
    assert b"FOO" not in found
    assert b"API_TOKEN" not in found
    task = lab.spool.find("env")
    assert task is not None
    kept = lab.spool.task(task)
    assert kept is not None
    assert kept["env_digest"] == environment_digest(record_environment({**BASE_ENV, **shell}))
    assert kept["env_digest"] != environment_digest(record_environment({**BASE_ENV, **shell, "CONDA_PREFIX": "/old"}))


# F3-12: text that is not ASCII


@pytest.mark.parametrize(
    "locale", ({"LC_ALL": "C"}, {"LC_ALL": "C.UTF-8"}, {"LC_ALL": "", "LANG": ""}, {"LC_ALL": "C", "PYTHONUTF8": "0"})
)
def test_f3_12_odd_names_work_the_same_in_every_locale(lab: Lab, locale: dict[str, str]):
    names = ["Köln", "日本", "e\u0301", "é", "\u202egnp.exe"]
    tasks = "".join(json.dumps({"name": name, "command": ["printf", "%s", name]}) + "\n" for name in names)
    spool = ("--spool", str(lab.root))
    done = fleetcraft("task", "enqueue", *spool, "--from", "-", env=locale, cwd=lab.folder, stdin=tasks.encode())
    assert done.returncode == 0, done
    done = fleetcraft("worker", "run", *spool, "--cpus", "1", "--gpus", "none", "--idle-exit", "0s", env=locale)
    assert done.returncode == 0, done
    listed = fleetcraft("task", "list", *spool, "--json", env=locale)
    assert listed.returncode == 0, listed
    found = [task["name"] for task in json.loads(listed.stdout)["tasks"]]
    assert found == names
    assert fleetcraft("task", "list", *spool, env=locale).returncode == 0
    for name in names:
        shown = fleetcraft("task", "show", *spool, name, "--json", env=locale)
        assert shown.returncode == 0, shown
    assert [lab.output(name).decode() for name in names] == names


def test_f3_12_bytes_that_are_no_utf8_survive_from_the_command_line_to_the_task(lab: Lab):
    raw = b"caf\xe9"
    done = subprocess.run(
        [os.fsencode(sys.executable), b"-m", b"fleetcraft", b"task", b"enqueue", b"--spool", os.fsencode(lab.root),
         b"--name", raw, b"--", b"printf", b"%s", raw],
        env=BASE_ENV, cwd=lab.folder, capture_output=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done
    lab.drain()
    assert lab.output(os.fsdecode(raw)) == raw
    listed = fleetcraft("task", "list", "--spool", str(lab.root), "--json")
    assert listed.returncode == 0, listed
    assert [os.fsencode(task["name"]) for task in json.loads(listed.stdout)["tasks"]] == [raw]


# F3-16, F3-17: resuming

ITEM = 'test -e "in-$1" && cat "in-$1" >> all'


def test_f3_16_a_list_cut_otherwise_never_repeats_or_skips_an_item(lab: Lab):
    """Items are tasks and shards are workers: eight, a crash, then three others do the rest, each item once."""
    dice = seeded()
    for number in range(300):
        (lab.folder / f"in-{number}").write_text(f"{number}\n")
    items = [{"name": f"item{number}", "command": ["sh", "-c", ITEM, "sh", str(number)]} for number in range(300)]
    lab.enqueue(items)
    eight = [lab.worker(cpus=1) for _ in range(8)]
    lab.wait_until_ended(dice.randrange(100, 200))
    for worker in eight:
        worker.kill()
    three = [lab.worker(cpus=2) for _ in range(3)]
    assert [worker.wait() for worker in three] == [0, 0, 0]
    lab.drain()
    assert lab.counts() == {"succeeded": 300}
    written = Counter((lab.folder / "all").read_text().split())
    assert len(written) == 300
    # An item that was in progress at the crash may have written its line before, and says so by its attempt.
    for item, times in written.items():
        assert times <= lab.verdict(f"item{item}").attempt
    assert lab.enqueue(items).added == 0, "the same list again adds nothing"


def test_f3_16_the_same_name_with_other_content_is_refused_with_the_first_one_named(lab: Lab):
    lab.enqueue([{"name": "shard", "command": ["process", "--of", "8"]}])
    with pytest.raises(NameTaken, match="shard"):
        lab.enqueue([{"name": "shard", "command": ["process", "--of", "10"]}])
    assert lab.total() == 1


def test_f3_17_a_success_vouches_for_the_bytes_that_it_saw(lab: Lab):
    lab.enqueue([{"name": "writes", "command": ["sh", "-c", "printf whole > data"], "outputs": ["data"]}])
    lab.drain()
    proof = lab.receipts("writes")[0]["outputs"][0]
    assert proof["size"] == 5
    spool = ("--spool", str(lab.root))
    assert fleetcraft("task", "verify", *spool, "writes").returncode == 0
    (lab.folder / "data").write_text("other")
    changed = fleetcraft("task", "verify", *spool, "writes")
    assert changed.returncode == 1
    assert b"data" in changed.stdout + changed.stderr


@pytest.mark.parametrize("when", ("before the data", "in the data", "after the data"))
def test_f3_17_a_kill_at_any_point_leaves_old_new_or_to_be_done(lab: Lab, when: str):
    steps = {
        "before the data": "pause; printf whole > data",
        "in the data": "printf wh > data; pause; printf ole >> data",
        "after the data": "printf whole > data; pause",
    }
    script = (
        "pause() { if [ ! -e second ]; then touch second; while :; do sleep 0.02; done; fi; }; : > data; " + steps[when]
    )
    lab.enqueue([{"name": "writes", "command": ["sh", "-c", script], "outputs": ["data"]}])
    worker = lab.worker()
    lab.wait_running("writes")
    worker.kill()
    assert lab.state("writes") is None, "no success without a receipt"
    lab.drain()
    assert lab.state("writes") == "succeeded"
    assert (lab.folder / "data").read_text() == "whole"
    assert lab.receipts("writes")[-1]["outputs"][0]["size"] == 5
