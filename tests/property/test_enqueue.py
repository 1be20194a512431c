"""What goes into a spool comes out of it, and comes in only once."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleetcraft.actions.enqueue import EnqueueOptions, enqueue_tasks
from fleetcraft.core.errors import NameTaken, TaskInvalid
from fleetcraft.spool.spool import Spool
from tests.support.enqueuing import PLAIN, batches, cover, find, leftovers, make_spool, names, options, stream, tasks

# Everything that text can be in JSON, also what no file name can hold; a zero byte is refused elsewhere.
ANY_TEXT = st.text(st.characters(exclude_characters="\0"), min_size=1, max_size=30)
ODD = st.sampled_from(
    (
        *("it's", '"q"', "a b", "new\nline", "tab\t", "-n", "--name", "1.0", "batch:1", "*", "%s", "{}", "a\rb"),
        *("K\u00f6ln", "\u65e5\u672c", "e\u0301", "\u00e9", "\u202egnp", "caf\udce9", "\ud800"),
        *("\u2028", "\u2029", "\u0085", "\ufeffx"),
    )
)
NAMES = st.lists(
    st.one_of(ODD, ANY_TEXT, st.text("ab-.0", min_size=1, max_size=6)), unique=True, min_size=1, max_size=40
)
# Text that can be given to a program: bytes, decoded as file names are.
ARGUMENT = st.binary(max_size=20).map(lambda raw: raw.replace(b"\0", b"").decode("utf-8", "surrogateescape"))


@given(wanted=NAMES, data=st.data())
@settings(max_examples=60)
def test_any_mix_of_names_is_found_again_with_its_own_command(wanted, data):
    described = []
    for number, name in enumerate(wanted):
        arguments = data.draw(st.lists(ARGUMENT, max_size=3))
        described.append({"name": name, "command": ["/bin/echo", str(number), *arguments]})
    with TemporaryDirectory() as folder:
        spool = make_spool(Path(folder))
        result = stream(spool, described)
        assert (result.added, result.existing) == (len(wanted), 0)
        assert names(spool) == wanted
        for task in described:
            assert find(spool, task["name"])["command"] == task["command"]
        again = stream(spool, described)
        assert (again.added, again.existing, again.batches) == (0, len(wanted), [])
        assert set(cover(spool).values()) == {1}
        assert leftovers(spool) == []


@given(lines=st.lists(st.binary(min_size=1, max_size=30), min_size=1, max_size=20))
@settings(max_examples=60)
def test_plain_lines_keep_every_byte_and_enqueue_once(lines):
    lines = [line.translate(None, b"\0\n\r") for line in lines]
    kept = [line for line in lines if line.strip() and not line.lstrip().startswith(b"#")]
    # A byte order mark at the start of a line is an editor's, not the person's.
    shown = [line.removeprefix(b"\xef\xbb\xbf") for line in kept]
    if b"\n".join(lines).startswith((b"\xfe\xff", b"\xff\xfe")):
        return  # the mark of UTF-16, which is refused
    if any(not line.strip() or line.lstrip().startswith(b"#") for line in shown):
        return
    with TemporaryDirectory() as folder:
        spool = make_spool(Path(folder))
        result = stream(spool, b"\n".join(lines), options("lines"))
        assert result.added == len(shown)
        assert [task["shell"].encode("utf-8", "surrogateescape") for task in tasks(spool)] == shown
        assert stream(spool, b"\n".join(lines) + b"\n", options("lines")).added == 0


@pytest.mark.parametrize("pair", list(product('!\\`$"', repeat=2)), ids="".join)
def test_pairs_of_shell_marks_arrive_as_they_are_in_every_form(tmp_path, pair):
    text = "a" + "".join(pair) + "b"
    spool = make_spool(tmp_path)
    stream(spool, f"echo {text}", options("lines"))
    stream(spool, [{"name": text, "command": ["echo", text], "env": {"X": text}, "cwd": f"/{text}", "outputs": [text]}])
    assert tasks(spool)[0]["shell"] == f"echo {text}"
    found = find(spool, text)
    assert (found["command"][1], found["env"], found["cwd"], found["outputs"]) == (
        text,
        {"X": text},
        f"/{text}",
        [text],
    )


ENV_VALUES = ("a,b", "a b", "a=b", "a\nb", "", "$HOME", "\u00e9", "x" * 8192, " lead", "trail ", "'", "caf\udce9")


@pytest.mark.parametrize("value", ENV_VALUES)
def test_values_of_variables_are_stored_as_they_are(tmp_path, value):
    spool = make_spool(tmp_path)
    stream(spool, [{"name": "t", "command": ["env"], "env": {"X": value}}])
    assert find(spool, "t")["env"] == {"X": value}


def test_a_variable_with_a_name_that_shells_cannot_write_is_refused(tmp_path):
    with pytest.raises(TaskInvalid, match="list:1: 'A-B' is not a valid variable name"):
        stream(make_spool(tmp_path), [{"name": "t", "command": ["env"], "env": {"A-B": "x"}}])


@given(
    contents=st.lists(st.sampled_from(["true", "false", "echo a", "echo b"]), min_size=1, max_size=12),
    split=st.integers(0, 12),
)
@settings(max_examples=40)
def test_unnamed_tasks_are_numbered_among_equals(contents, split):
    """A list that grew at its end adds just its new lines."""
    with TemporaryDirectory() as folder:
        spool = make_spool(Path(folder))
        first = stream(spool, "\n".join(contents[:split]), options())
        second = stream(spool, "\n".join(contents), options())
        assert first.added == min(split, len(contents))
        assert first.added + second.added == len(contents)
        assert sorted(task["shell"] for task in tasks(spool)) == sorted(contents)


@given(values=st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3), max_leaves=8,
))  # fmt: skip
@settings(max_examples=150)
def test_descriptions_of_any_shape_are_taken_or_refused_by_line(values):
    with TemporaryDirectory() as folder:
        spool = make_spool(Path(folder))
        good = {"name": "good", "command": ["true"]}
        try:
            stream(spool, [good, values])
        except TaskInvalid as error:
            assert str(error).startswith("list:2: ")  # noqa: PT017  to be taken is as good an answer
            assert batches(spool) == []
        else:
            assert "good" in names(spool)


@given(raw=st.binary(max_size=80))
@settings(max_examples=150)
def test_input_of_any_bytes_is_taken_or_refused_by_line(raw):
    with TemporaryDirectory() as folder:
        spool = make_spool(Path(folder))
        try:
            stream(spool, raw)
        except (TaskInvalid, NameTaken) as error:
            assert str(error).startswith("list:")  # noqa: PT017  to be taken is as good an answer
            assert batches(spool) == []
        assert leftovers(spool) == []


@given(data=st.data(), count=st.integers(1, 30))
@settings(max_examples=40)
def test_resources_decide_the_batch_and_every_task_has_what_it_asked_for(data, count):
    shapes = st.sampled_from(
        [{}, {"gpus": 1}, {"gpus": 0.25, "vram": "8G"}, {"cpus": 4, "priority": 900}, {"timed": True}]
    )
    described = [{"name": f"t{place}", "command": ["true"], **data.draw(shapes)} for place in range(count)]
    with TemporaryDirectory() as folder:
        spool = make_spool(Path(folder))
        enqueue_tasks(spool, described, PLAIN)
        assert len(batches(spool)) == len({json.dumps({**task, "name": ""}) for task in described})
        for task in described:
            task_id = spool.find(task["name"])
            assert task_id is not None
            request = next(batch for batch in spool.batches() if batch.number == task_id.batch)
            assert request.request.gpus == task.get("gpus", 0)
            assert request.request.cpus == task.get("cpus", 1)
            assert request.request.timed == task.get("timed", False)
            assert request.priority == task.get("priority", 500)
        assert set(cover(spool).values()) == {1}
        assert sum(cover(spool).values()) == count


VALUES: dict[str, list[Any]] = {
    "name": ["a", "b", "c", "d", "\u00e9", "", None, 3, "x" * 300],
    "command": [["true"], ["echo", "x"], ["./no-such"], [], "true", ["e", "\u00e9"]],
    "call": ["m:f", "m:g", "no call"],
    "args": [{}, {"x": 1}, {"x": [1.5, None]}, 3, None],
    "outputs": [["o"], [], "o", ["o", "p"], [""], None],
    "retries": [0, 1, True, 1.0],
    "gpus": [0, 1, 1.0, "1", 0.5, 1.5],
    "timeout": ["5m", 300, None],
    "env": [{"A": "1"}, {"B": "2"}],
    "tags": [["t"], "t"],
    "after": ["up", ["up"], []],
    "priority": [500, 7],
}


def _mostly_good(all_of: list[Any]) -> st.SearchStrategy[Any]:
    """The good values stand first."""
    return st.one_of(*[st.sampled_from(all_of[:2])] * 7, st.sampled_from(all_of))


@st.composite
def described_tasks(draw: st.DrawFn) -> list[dict[str, Any]]:
    keys = st.lists(st.sampled_from(sorted(VALUES)), unique=True, max_size=4)
    value = {key: _mostly_good(all_of) for key, all_of in VALUES.items()}
    return [
        {key: draw(value[key]) for key in {"command", *draw(keys)} - ({"command"} if number % 4 == 3 else set())}
        for number in range(draw(st.integers(1, 12)))
    ]


def _until_taken(spool: Spool, listed: list[dict[str, Any]], shared: EnqueueOptions) -> Iterator[str]:
    """What is said about each refused line, which is then left out."""
    while True:
        try:
            stream(spool, listed, shared)
        except (TaskInvalid, NameTaken) as error:
            yield str(error)
            place = re.match(r"list:(\d+): ", str(error))
            assert place is not None
            del listed[int(place[1]) - 1]
        else:
            return


@given(listed=described_tasks(), shared=st.sampled_from([{}, {"env": {"A": "0"}, "tags": ["s"]}, {"after": "up"}]))
@settings(max_examples=60)
def test_the_quick_ways_write_what_the_careful_way_writes(listed, shared):
    """Lines that look like earlier ones are not checked as a whole again; nothing may come of that."""
    written: list[Any] = []
    for known in (4096, 0):
        with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
            spool = make_spool(Path(folder))
            stream(spool, [{"name": "up", "command": ["true"]}])
            patch.setattr("fleetcraft.actions.assembly._MAX_KNOWN", known)
            if not known:
                patch.setattr("fleetcraft.actions.assembly.is_plain", lambda _task: False)
            written.append([*_until_taken(spool, list(listed), options(**shared)), *tasks(spool)])
    assert written[0] == written[1]
