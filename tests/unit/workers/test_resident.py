"""A resident: loads once, answers in order, and survives or explains everything that a function can do."""

from __future__ import annotations

import ast
import importlib.util
import json
import math
import os
import signal
import subprocess
import sys
import textwrap
import time
import zipfile
from pathlib import Path
from typing import Any

import pytest

from fleetcraft.workers import resident_main as far
from fleetcraft.workers.resident import MOST_CALLS, Block, InFlight, Resident, ResidentState
from tests.support.children import PATH, Ward, is_gone, new_mark, until

ROOT = Path(__file__).parents[3]

FUNCTIONS = """
    import ctypes, os, signal, subprocess, sys, time

    def nothing(**args): pass
    def echo(value=None, **rest): return value
    def add(a, b=1): return a + b
    def cwd(): return [os.getcwd(), sys.path[0], os.environ.get("WHO")]
    def fail(**args): raise ValueError("no such luck")
    def leave(code): sys.exit(code)
    def crash(at=None, n=None):
        if at == n: os._exit(42)
    def mixed(n):
        if n == 5: os._exit(1)
        return n if n > 2 else None
    def fault(): os.kill(os.getpid(), signal.SIGSEGV)
    def memory(kind):
        if kind == "python": raise MemoryError
        class OutOfMemoryError(RuntimeError): pass
        if kind == "torch": raise OutOfMemoryError("tried to allocate 20 GiB")
        raise RuntimeError("CUDA out of memory. Tried to allocate 20.00 GiB")
    def say(text=None, err=None, low=None):
        if text: print(text)
        if err: print(err, file=sys.stderr, end="")
        if low: os.write(1, low.encode())
    def shell(line): return subprocess.run(line, shell=True).returncode
    def weird(what):
        if what == "set": return {1}
        if what == "bytes": return {"deep": [b"x"]}
        if what == "key": return {1: 2}
        if what == "object": return object()
        if what == "circle":
            a = []; a.append(a); return a
        if what == "interrupt": raise KeyboardInterrupt
        class Mute(Exception):
            def __str__(self): raise RuntimeError
        raise Mute
    def numbers(): return [float("nan"), float("inf"), float("-inf"), 1.5, True, None, {"x": (1, 2)}]
    def wait(s=0.0): time.sleep(s)
    def close_output(): sys.stdout.close(); os.close(1)
    def numpy_values():
        import numpy
        return [numpy.float32(0.5), numpy.int64(7), numpy.bool_(True), numpy.array(3.0), numpy.float64("nan")]
    def numpy_array():
        import numpy
        return numpy.zeros(3)
    def children_of_mine(): return subprocess.run(["sleep", "0"], close_fds=False).returncode
    class Model:
        def load(path, scale=1): print("loading"); return {"path": path, "scale": scale, "calls": 0}
        def use(state, n=0): state["calls"] += 1; return [state["path"], state["calls"], n * state["scale"]]
        def broken(**args): raise RuntimeError("no checkpoint here")
        def quits(): raise SystemExit(4)
"""


class Pair:
    """A resident and the loop that a worker would run around it."""

    def __init__(self, ward: Ward, call: str, setup: str | None = None, setup_args=None, **options) -> None:
        self.ward = ward
        usual: dict[str, Any] = {"python": sys.executable, "cwd": str(ward.folder), "env": PATH, "output": ward.output}
        self.resident = Resident.start(
            ward.supervisor,
            call=call,
            setup=setup,
            setup_args=setup_args,
            mark=new_mark(),
            **(usual | options),
        )

    def turn(self) -> list[Block]:
        self.ward.turn(0.002)
        self.resident.flush()
        return self.resident.receive()

    def ready(self) -> Pair:
        until(lambda: self.turn() or self.resident.state is not ResidentState.LOADING, "the function is loaded")
        assert self.resident.state is ResidentState.READY, (self.resident.setup_error, self.ward.log.read_text())
        return self

    def ask(self, *calls: dict) -> list[Block]:
        self.resident.send([json.dumps(call).encode() for call in calls])
        return self.answers()

    def answers(self) -> list[Block]:
        blocks: list[Block] = []

        def is_answered() -> bool:
            blocks.extend(self.turn())
            return self.resident.state is not ResidentState.BUSY

        until(is_answered, "the chunk is answered")
        return blocks

    def works_on(self, position: int) -> InFlight:
        """The call in flight, as soon as it is that one."""

        def is_there() -> bool:
            self.turn()
            now = self.resident.in_flight()
            return now is not None and now.position == position

        until(is_there, f"call {position} runs")
        found = self.resident.in_flight()
        assert found is not None
        return found

    def end(self):
        return self.ward.wait(self.resident.child)

    def close(self) -> None:
        self.resident.close()


@pytest.fixture
def ward(tmp_path):
    (tmp_path / "functions.py").write_text(textwrap.dedent(FUNCTIONS))
    found = Ward(tmp_path)
    yield found
    assert found.close() == []


@pytest.fixture
def pair(ward):
    made: list[Pair] = []

    def make(*args, **options):
        made.append(Pair(ward, *args, **options))
        return made[-1]

    yield make
    for one in made:
        if one.resident.request_fd >= 0:
            one.close()


def test_calls_are_answered_in_order_as_one_block(pair):
    one = pair("functions:nothing").ready()
    (block,) = one.ask(*[{}] * 500)
    assert (block.first, block.calls, block.ok, block.value, block.last) == (0, 500, True, None, True)
    assert all(0 <= wall_us < 1_000_000 for wall_us in block.walls_us)
    assert block.cpu_s >= 0
    assert block.output is None


def test_values_come_back_each_at_its_place(pair):
    one = pair("functions:echo").ready()
    values = [None, 1, None, "ü\n", [1, {"a": None}], None, 2.5, False]
    (block,) = one.ask(*[{"value": value} for value in values])
    assert block.value == values


def test_one_resident_takes_many_chunks(pair):
    one = pair("functions:add").ready()
    for number in range(5):
        blocks = one.ask(*[{"a": number, "b": item} for item in range(10)])
        assert [value for block in blocks for value in block.value] == [number + item for item in range(10)]
        assert one.resident.state is ResidentState.READY


def test_a_setup_is_called_once_and_its_state_is_the_first_argument(pair, ward):
    one = pair("functions:Model.use", "functions:Model.load", {"path": "w.pt", "scale": 3}).ready()
    assert one.ask({"n": 1})[0].value == [["w.pt", 1, 3]]
    assert one.ask({"n": 2}, {})[0].value == [["w.pt", 2, 6], ["w.pt", 3, 0]]
    assert ward.log.read_text() == "loading\n"
    assert one.resident.load_s is not None
    assert one.resident.load_s >= 0
    assert one.resident.python == sys.version.split()[0]


@pytest.mark.parametrize(
    ("call", "setup", "kind", "words"),
    (
        ("functions:Model.use", "functions:Model.broken", "RuntimeError", "no checkpoint here"),
        ("functions:Model.use", "functions:Model.quits", "SystemExit", "exit code 4"),
        ("no_such_module:f", None, "ModuleNotFoundError", "no_such_module"),
        ("functions:no_such", None, "AttributeError", "no_such"),
    ),
)
def test_what_goes_wrong_while_loading_is_told_and_the_resident_ends(pair, call, setup, kind, words):
    one = pair(call, setup)
    until(lambda: one.turn() or one.resident.state is ResidentState.ENDED, "loading ended")
    error = one.resident.setup_error
    assert (error["type"], error["kind"]) == (kind, "exception")
    assert words in error["message"]
    assert kind in error["traceback"]
    assert one.end().exit_code == 1


def test_a_program_that_is_no_python_ends_without_an_answer(pair):
    one = pair("functions:nothing", python="/bin/false")
    assert one.end().exit_code == 1
    one.turn()
    assert one.resident.state is ResidentState.ENDED
    assert one.resident.setup_error is None


def test_a_missing_python_is_an_error_of_the_start(pair, ward):
    with pytest.raises(FileNotFoundError, match="no-such-python"):
        pair("functions:nothing", python="no-such-python")
    assert len(ward.supervisor) == 0


def test_the_tasks_folder_and_environment_decide_what_is_imported(pair, ward, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "functions.py").write_text("def cwd(): return 'elsewhere'\n")
    env = PATH | {b"WHO": b"me", b"PYTHONPATH": os.fsencode(tmp_path)}
    assert pair("functions:cwd", env=env).ready().ask({})[0].value == [[str(tmp_path), str(tmp_path), "me"]]
    assert pair("functions:cwd", env=env, cwd=str(tmp_path / "elsewhere")).ready().ask({})[0].value == ["elsewhere"]
    (tmp_path / "empty").mkdir()
    found = pair("functions:cwd", env=env, cwd=str(tmp_path / "empty")).ready().ask({})[0].value
    assert found == [[str(tmp_path / "empty"), str(tmp_path / "empty"), "me"]]


def test_an_exception_is_one_calls_answer(pair):
    one = pair("functions:add").ready()
    blocks = one.ask({"a": 1}, {"a": 2}, {"a": "x"}, {"wrong": 1}, {"a": 3}, {"a": 4})
    assert [(block.first, block.calls, block.ok) for block in blocks] == [
        (0, 2, True), (2, 1, False), (3, 1, False), (4, 2, True),
    ]  # fmt: skip
    assert [block.last for block in blocks] == [False, False, False, True]
    error = blocks[1].error
    assert (error["type"], error["kind"]) == ("TypeError", "exception")
    assert "in add" in error["traceback"]
    assert "runner" not in error["traceback"].lower()
    assert "wrong" in blocks[2].error["message"]
    assert blocks[3].value == [4, 5]


def test_a_chunk_that_ends_with_a_failure_is_finished(pair):
    one = pair("functions:fail").ready()
    blocks = one.ask({}, {})
    assert [(block.first, block.ok, block.last) for block in blocks] == [(0, False, False), (1, False, True)]


@pytest.mark.parametrize("kind", ("python", "torch", "cuda"))
def test_running_out_of_memory_is_told_apart(pair, kind):
    assert pair("functions:memory").ready().ask({"kind": kind})[0].error["kind"] == "memory"


@pytest.mark.parametrize(("code", "exit_code"), ((3, 3), (0, 0), (None, 0), ("text", 1)))
def test_a_call_that_ends_itself_fails_and_the_resident_goes_on(pair, code, exit_code):
    one = pair("functions:leave").ready()
    (block,) = one.ask({"code": code})
    assert (block.ok, block.error["type"], block.error["exit"]) == (False, "SystemExit", exit_code)
    assert one.ask({"code": 1})[0].error["exit"] == 1


@pytest.mark.parametrize(
    ("what", "words"),
    (
        ("set", "the type set"),
        ("bytes", "the type bytes"),
        ("key", "a key of type int"),
        ("object", "the type object"),
        ("circle", "recursion"),
        ("interrupt", ""),
        ("mute", "could not be had"),
    ),
)
def test_what_json_cannot_say_fails_that_call_with_the_name_of_the_type(pair, what, words):
    one = pair("functions:weird").ready()
    (block,) = one.ask({"what": what})
    assert not block.ok
    assert words in block.error["message"]
    assert one.resident.state is ResidentState.READY


def test_numbers_without_a_json_form_become_words(pair):
    expected = ["NaN", "Infinity", "-Infinity", 1.5, True, None, {"x": [1, 2]}]
    assert pair("functions:numbers").ready().ask({})[0].value == [expected]


@pytest.mark.skipif(importlib.util.find_spec("numpy") is None, reason="numpy is not installed here")
def test_numpy_scalars_are_numbers_and_arrays_are_not(pair):
    assert pair("functions:numpy_values").ready().ask({})[0].value == [[0.5, 7, True, 3.0, "NaN"]]
    assert "numpy.ndarray" in pair("functions:numpy_array").ready().ask({})[0].error["message"]


def test_what_a_call_prints_is_found_by_its_offsets(pair, ward):
    one = pair("functions:say").ready()
    blocks = one.ask({}, {"text": "first"}, {}, {}, {"err": "second"}, {"low": "third", "text": "too"})
    assert [(block.first, block.calls) for block in blocks] == [(0, 1), (1, 1), (2, 2), (4, 1), (5, 1)]
    content = ward.log.read_bytes()
    said = [content[slice(*block.output)] if block.output else None for block in blocks]
    assert said == [None, b"first\n", None, b"second", b"thirdtoo\n"]


def test_output_of_processes_that_a_call_starts_is_found_too(pair, ward):
    one = pair("functions:shell").ready()
    (block,) = one.ask({"line": "echo inner; exit 3"})
    assert block.value == [3]
    assert ward.log.read_bytes()[slice(*block.output)] == b"inner\n"


def test_processes_that_a_call_starts_hold_none_of_our_pipes(pair, ward):
    one = pair("functions:shell").ready()
    one.ask({"line": "ls -l /proc/self/fd"})
    assert "pipe:" not in ward.log.read_text()
    assert "memfd" not in ward.log.read_text()
    assert pair("functions:children_of_mine").ready().ask({})[0].value == [0]


def test_a_function_that_closes_its_output_disturbs_nothing(pair):
    one = pair("functions:close_output").ready()
    assert [block.ok for block in one.ask({})] == [True]
    assert one.ask({})[0].error["type"] == "OSError"  # descriptor 1 is closed already


def test_a_crash_names_its_call_and_loses_none_before_it(pair):
    one = pair("functions:crash").ready()
    one.resident.send([json.dumps({"at": 300, "n": n}).encode() for n in range(1000)])
    blocks = one.answers()
    ended = one.end()
    assert (ended.exit_code, ended.signal) == (42, None)
    blocks += one.turn()
    saved = one.resident.salvage()
    told = sum(block.calls for block in blocks)
    assert told + (saved.calls if saved else 0) == 300
    if saved:
        assert (saved.first, saved.ok, saved.last) == (told, True, False)
    assert one.resident.in_flight().position == 300
    assert one.resident.salvage() is None


def test_a_segmentation_fault_is_a_signal(pair):
    one = pair("functions:fault").ready()
    one.ask({})
    assert one.end().signal == signal.SIGSEGV
    assert one.resident.in_flight().position == 0


def test_values_that_were_not_told_before_a_crash_are_not_invented(pair, ward):
    one = pair("functions:mixed").ready()
    one.resident.send([b'{"n":%d}' % n for n in range(9)])
    assert one.answers() == []
    one.end()
    one.turn()
    assert one.resident.salvage().calls == 3
    assert one.resident.in_flight().position == 5


def test_the_call_in_flight_is_known_while_it_runs(pair):
    one = pair("functions:wait").ready()
    assert one.resident.in_flight() is None
    one.resident.send([b"{}", b"{}", b'{"s":0.4}', b"{}"])
    seen = one.works_on(2)
    assert 0 <= time.monotonic() - seen.since_mono_s < 5
    one.answers()
    assert one.resident.in_flight() is None


def test_long_calls_are_told_one_by_one(pair):
    one = pair("functions:wait").ready()
    blocks = one.ask(*[{"s": 0.03}] * 5)
    assert [block.calls for block in blocks] == [1] * 5
    assert all(block.walls_us[0] >= 29_000 for block in blocks)


def test_many_short_calls_are_told_after_50_ms_at_the_latest(pair):
    one = pair("functions:wait").ready()
    blocks = one.ask(*[{"s": 0.004}] * 60)
    assert len(blocks) >= 3
    assert max(sum(block.walls_us) for block in blocks) < 200_000


def test_a_chunk_larger_than_the_pipe_is_finished_by_polling(pair):
    one = pair("functions:echo").ready()
    big = "x" * 1000
    one.resident.send([json.dumps({"value": big}).encode()] * 2000)
    assert one.resident.wants_write
    blocks = one.answers()
    assert not one.resident.wants_write
    assert [value for block in blocks for value in block.value] == [big] * 2000


def test_a_resident_takes_a_chunk_only_when_it_is_ready(pair):
    one = pair("functions:wait")
    with pytest.raises(ValueError, match="loading"):
        one.resident.send([b"{}"])
    one.ready()
    for calls in ([], [b"{}"] * (MOST_CALLS + 1)):
        with pytest.raises(ValueError, match="was given"):
            one.resident.send(calls)
    one.resident.send([b'{"s":0.2}'])
    with pytest.raises(ValueError, match="busy"):
        one.resident.send([b"{}"])


def test_a_resident_that_is_let_go_ends_by_itself(pair):
    one = pair("functions:nothing").ready()
    one.close()
    assert one.end().exit_code == 0


def test_a_resident_is_ended_like_any_child(pair, ward):
    one = pair("functions:wait").ready()
    one.resident.send([b'{"s":300}'])
    one.works_on(0)
    ward.supervisor.stop(one.resident.child, "timeout", grace_s=5)
    assert one.end().signal == signal.SIGTERM


def test_an_interrupt_from_the_terminal_does_not_reach_a_call(pair):
    one = pair("functions:wait").ready()
    one.resident.send([b'{"s":0.2}'])
    one.works_on(0)
    os.kill(one.resident.child.pid, signal.SIGINT)
    assert [block.ok for block in one.answers()] == [True]


def test_an_answer_that_makes_no_sense_is_a_fault(pair, ward):
    (ward.folder / "liar.py").write_text("import os\ndef f(): os.write(4, b'{\"first\":7}\\nnot json\\n')\n")
    one = pair("liar:f").ready()
    assert one.ask({}) == []
    assert one.resident.state is ResidentState.ENDED
    assert "cannot be read" in one.resident.fault
    ward.supervisor.force(one.resident.child)
    assert one.end().signal == signal.SIGKILL


DYING = """
import sys, time
from pathlib import Path
from tests.support.children import PATH, Ward, new_mark
from fleetcraft.workers.resident import Resident, ResidentState
ward = Ward(Path(sys.argv[1]))
one = Resident.start(ward.supervisor, python=sys.executable, call="functions:wait", setup=None, setup_args=None,
                     cwd=sys.argv[1], env=PATH, output=ward.output, mark=new_mark())
while one.state is ResidentState.LOADING:
    ward.turn(0.01)
    one.receive()
if sys.argv[2] == "busy":
    one.send([b'{"s":300}'])
    while one.in_flight() is None:
        time.sleep(0.001)
print(one.child.pid, flush=True)
time.sleep(300)
"""


@pytest.mark.parametrize("how", ("idle", "busy"))
def test_a_resident_ends_with_its_worker(ward, how):
    worker = subprocess.Popen(
        [sys.executable, "-c", DYING, str(ward.folder), how],
        env={"PYTHONPATH": f"{ROOT}:{ROOT / 'src'}", "PATH": os.environ["PATH"]},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert worker.stdout is not None
    try:
        pid = int(worker.stdout.readline())
        assert not is_gone(pid)
    finally:
        worker.kill()
        worker.stdout.close()
    until(lambda: is_gone(pid), "the resident is gone", within_s=10)
    until(lambda: ward.turn() or worker.poll() is not None, "the worker was collected")


def test_the_program_is_found_in_a_zipapp_too(ward, tmp_path):
    archive = tmp_path / "node.pyz"
    with zipfile.ZipFile(archive, "w") as packed:
        for path in sorted((ROOT / "src" / "fleetcraft").rglob("*.py")):
            packed.write(path, path.relative_to(ROOT / "src"))
    code = "import fleetcraft.workers.resident as r; print(r.__file__, 'def main' in r._program())"
    env = {"PYTHONPATH": str(archive)}
    done = subprocess.run([sys.executable, "-c", code], env=env, cwd="/", capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(archive / "fleetcraft" / "workers" / "resident.py"), "True"]


def test_the_program_needs_nothing_of_ours_and_no_new_python():
    source = Path(far.__file__).read_text()
    ast.parse(source, feature_version=(3, 8))
    imported = {
        name.split(".")[0]
        for node in ast.walk(ast.parse(source))
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    }
    assert imported <= sys.stdlib_module_names
    assert len(source.encode()) < 100_000  # it travels as one argument


@pytest.mark.parametrize("value", (1, "x", None, True, 1.5, [1, [2]], {"a": {"b": 1}}))
def test_plain_values_stay_as_they_are(value):
    assert far.plain(value) == value


def test_subclasses_of_plain_types_become_plain():
    class Text(str):
        __slots__ = ()

    class Number(float):
        pass

    found = far.plain([Text("a"), Number("nan"), math.pi])
    assert found == ["a", "NaN", math.pi]
    assert type(found[0]) is str


def test_the_end_of_a_long_traceback_is_kept():
    def deep(level):
        if level:
            deep(level - 1)
        raise ValueError("ü" * 5000)

    with pytest.raises(ValueError, match="ü") as caught:
        deep(200)
    told = far.describe(caught.value)
    assert len(told["traceback"].encode()) <= far.TRACEBACK_BYTES
    assert len(told["message"]) <= far.TRACEBACK_BYTES
    assert told["traceback"].endswith("ü\n")
