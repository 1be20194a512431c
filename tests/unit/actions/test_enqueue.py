"""Enqueue: forms of input, notes, names, shared values, and errors that name their line and leave nothing behind."""

from __future__ import annotations

import io
import json
import os

import pytest

from fleetcraft.actions import enqueue as module
from fleetcraft.actions.assembly import Assembly
from fleetcraft.actions.enqueue import EnqueueOptions, enqueue_tasks
from fleetcraft.actions.shared import BATCH_KEYS, PAYLOAD_KEYS, SINGLE_KEYS, share
from fleetcraft.core.errors import NameTaken, OutOfReach, StorageFull, TaskInvalid, UsageError
from fleetcraft.core.task import TASK_KEYS
from fleetcraft.testing.files import FullFiles
from tests.support.enqueuing import (
    PLAIN,
    batches,
    cover,
    find,
    leftovers,
    make_spool,
    names,
    options,
    stream,
    tasks,
    tokens,
)


@pytest.fixture
def spool(tmp_path):
    return make_spool(tmp_path)


def refused(spool, text, options=PLAIN, kind=TaskInvalid):
    """The message of a refusal that left the spool as it was."""
    before = [batch.number for batch in batches(spool)]
    with pytest.raises(kind) as error:
        stream(spool, text, options)
    assert [batch.number for batch in batches(spool)] == before
    assert leftovers(spool) == []
    return str(error.value)


def test_plain_json_lines_stand_in_the_ledger_byte_for_byte(spool):
    raw = b'{"command":  ["echo", "x"],\t"name": "a"}'
    stream(spool, raw + b"\n" + b'{"name": "b", "command": ["echo"]}  \r\n')
    assert batches(spool)[0].lines(0, 1) == [raw]
    assert find(spool, "b")["command"] == ["echo"]


def test_lines_are_json_where_they_begin_with_a_brace_and_shell_lines_elsewhere(spool):
    result = stream(spool, '\n  {"name": "j", "command": ["a"]}\n# no task\ntrue\n  echo "x"\n[ -f x ]\n"a b" c\n3\n')
    assert result.added == 6
    assert result.notes == ["1 line that began with # was skipped"]
    assert [task["shell"] for task in tasks(spool) if "shell" in task] == [
        "true",
        '  echo "x"',
        "[ -f x ]",
        '"a b" c',
        "3",
    ]


def test_a_shell_group_needs_the_form_of_lines(spool):
    assert "list:2: not valid JSON" in refused(spool, "true\n{ echo a; }")
    assert "--form lines" in refused(spool, "{ echo a; }")
    assert stream(spool, "{ echo a; }\n{}\n", options("lines")).added == 2


@pytest.mark.parametrize("line", ("true", "[1]", '"text"', "3", "null", "# note", "{"))
def test_the_form_of_json_lines_takes_objects_only(spool, line):
    said = refused(spool, f'{{"name": "a", "command": ["a"]}}\n\n{line}\n', options("jsonl"))
    assert said.startswith("list:3: ")
    assert "--form" not in said


def test_an_unknown_form_is_refused(spool):
    assert "must be one of auto, lines, jsonl" in refused(spool, "true", EnqueueOptions(form="csv"), UsageError)


def test_json_that_is_not_utf8_is_refused_with_its_byte(spool):
    said = refused(spool, b'{"name": "a", "command": ["a"]}\n{"name": "caf\xe9", "command": ["a"]}\n')
    assert said.startswith("list:2: byte 14 of the line (0xe9) is not UTF-8")


def test_text_that_no_program_can_be_given_is_refused(spool):
    said = refused(spool, r'{"name": "a", "command": ["echo", "\ud800"]}')
    assert "list:1: command holds half of a surrogate pair" in said
    assert stream(spool, r'{"name": "\ud800", "command": ["echo", "\ud83d\ude00", "\udce9"]}').added == 1
    assert find(spool, "\ud800")["command"] == ["echo", "\U0001f600", "\udce9"]


@pytest.mark.parametrize(
    ("task", "said"),
    (
        ({"name": "a"}, "needs exactly one of command, shell, call; found none"),
        ({"command": ["a"], "shell": "a"}, "found command and shell"),
        ({"comand": ["a"]}, "unknown key 'comand'. Did you mean 'command'?"),
        ({"command": []}, "must be a list of texts"),
        ({"command": ["x" * 131_072]}, "argument 0 has 131072 bytes; the kernel takes 131071"),
        ({"command": ["x"] + ["y" * 100_000] * 20}, "bytes in all; the kernel takes"),
        ({"command": ["x"], "env": {"A": "y" * 200_000}}, "variable A is longer than the 131071 bytes"),
        ({"command": ["x"], "gpus": -1}, "gpus -1 must be between 0 and 1024"),
        ({"command": ["x"], "cwd": "relative"}, "cwd 'relative' must be an absolute path"),
        ({"command": ["x"], "name": ""}, "name '' must be text"),
        ({"call": "m:f", "args": {"x": float("nan")}}, "no strict JSON form"),
    ),
)
def test_a_task_that_cannot_run_is_refused_with_its_line(spool, task, said):
    message = refused(spool, [{"name": "good", "command": ["true"]}, task])
    assert message.startswith("list:2: ")
    assert said in message


def test_the_largest_argument_that_the_kernel_takes_is_taken(spool):
    stream(spool, [{"name": "a", "command": ["x", "y" * 131_071]}])
    assert len(find(spool, "a")["command"][1]) == 131_071


def test_a_description_from_python_that_is_no_json_is_refused(spool):
    with pytest.raises(TaskInvalid, match="task 2: "):
        enqueue_tasks(spool, [{"command": ["a"]}, {"call": "m:f", "args": {"x": object()}}], PLAIN)


def test_crlf_lists_run_without_cr_and_say_so(spool):
    result = stream(spool, b"\xef\xbb\xbfecho a\r\necho b\r\n")
    assert [task["shell"] for task in tasks(spool)] == ["echo a", "echo b"]
    assert result.notes == ["2 lines ended in CRLF; the CR was stripped", "a byte order mark was stripped at line 1"]


@pytest.mark.parametrize("mark", ("\u2028", "\u2029", "\u0085"))
def test_what_other_readers_take_for_line_ends_stays_inside(spool, mark):
    stream(spool, f'{{"name": "a{mark}b", "command": ["echo", "{mark}"]}}\n')
    assert find(spool, f"a{mark}b")["command"] == ["echo", mark]
    assert batches(spool)[0].count == 1


def test_names_that_only_look_alike_are_two_tasks_and_are_flagged(spool):
    result = stream(spool, [{"name": "e\u0301", "command": ["a"]}, {"name": "\u00e9", "command": ["b"]}])
    assert (find(spool, "e\u0301")["command"], find(spool, "\u00e9")["command"]) == (["a"], ["b"])
    assert len(result.notes) == 1
    assert "list:1" in result.notes[0]


def test_a_name_twice_in_one_list_with_the_same_content_counts_once(spool):
    task = {"name": "a", "command": ["true"]}
    result = stream(spool, [task, {"name": "b", "command": ["true"]}, task, task])
    assert (result.added, result.existing) == (2, 2)
    assert names(spool) == ["a", "b"]


def test_a_name_twice_in_one_list_with_other_content_names_both_lines(spool):
    listed = "\n\n".join(json.dumps({"name": name, "command": [name, str(n)]}) for n, name in enumerate("abca"))
    said = refused(spool, listed, kind=NameTaken)
    assert said.startswith("list:7: the name 'a' stands at list:1 with other content")


def test_a_name_twice_with_other_resources_names_both_lines_before_anything_is_published(spool):
    said = refused(
        spool, [{"name": "a", "command": ["true"]}, {"name": "a", "command": ["true"], "gpus": 1}], kind=NameTaken
    )
    assert said.startswith("list:2: the name 'a' stands at list:1")


def test_a_name_that_exists_with_other_content_says_what_differs_and_where_the_first_is(spool):
    stream(spool, [{"name": "x", "command": ["true"]}, {"name": "it's", "command": ["true"], "timeout": 5}])
    said = refused(
        spool, [{"name": "b", "command": ["b"]}, {"name": "it's", "command": ["true"], "timeout": "6s"}], kind=NameTaken
    )
    assert said.startswith('list:2: the name "it\'s" exists already with other content (timeout differ)')
    assert "the first is task 1.1" in said
    assert "fleetcraft task show 'it'\"'\"'s'" in said


def test_with_some_known_and_one_taken_the_line_is_still_right(spool):
    """Leaving known tasks out moves positions, not lines."""
    stream(spool, [{"name": f"t{n}", "command": ["a"]} for n in range(5)])
    fresh = make_taken_later(spool)
    with pytest.raises(NameTaken, match=r"^list:8: "):
        stream(fresh, [{"name": f"t{n}", "command": ["a"]} for n in range(10)])


def make_taken_later(spool):
    """The same spool, in which a name is taken only after the first look at it."""
    from fleetcraft.spool.spool import Spool

    class Late(Spool):
        looks = 0

        def refresh(self):
            Late.looks += 1
            if Late.looks == 3:
                stream(spool, [{"name": "t7", "command": ["other"]}])
            super().refresh()

    return Late.open(spool.layout.root)


def test_what_is_no_content_may_change(spool):
    stream(spool, [{"name": "a", "command": ["true"]}], options(tags=["one"]))
    again = stream(
        spool, [{"name": "a", "command": ["true"], "priority": 900, "notify": "mail me"}],
        EnqueueOptions(defaults={"cwd": "/", "tags": ["two"]}, base_env={"PATH": "/other"}),
    )  # fmt: skip
    assert (again.added, again.existing) == (0, 1)


@pytest.mark.parametrize(
    "change", ({"cwd": "/tmp"}, {"timeout": 3}, {"env": {"A": "1"}}, {"gpus": 1}, {"outputs": "x"})
)
def test_shared_values_are_content(spool, change):
    stream(spool, [{"name": "a", "command": ["true"]}])
    with pytest.raises(NameTaken):
        stream(spool, [{"name": "a", "command": ["true"]}], options(**change))
    unnamed = stream(spool, "true", options())
    assert stream(spool, "true", options(**change)).added == unnamed.added == 1


def test_unnamed_tasks_get_a_name_from_what_they_do(spool):
    result = stream(spool, "echo a\necho b\necho a\n" + '{"command": ["a"]}\n{"shell": "echo a"}\n')
    assert [name.rpartition("-")[2] for name in result.names] == ["0", "0", "1", "0", "2"]
    assert all(len(name) == 15 and name[0] == "t" for name in result.names)
    assert result.names[0].rpartition("-")[0] == result.names[4].rpartition("-")[0]
    assert stream(spool, '{"command": ["a"]}\n').existing == 1


def test_a_plain_line_is_named_like_the_same_line_in_json(tmp_path):
    """The quick way of plain lines and the careful one must agree, or enqueuing again would double tasks."""
    texts = ["echo a", 'echo "q" \\ \u00e9 \udce9 \x01', "x" * 500]
    quick = stream(make_spool(tmp_path / "one"), "\n".join(texts), options("lines", tags=["x"], after=None))
    careful = stream(make_spool(tmp_path / "two"), [{"shell": text} for text in texts], options(tags=["x"]))
    assert quick.names == careful.names


def test_shared_values_lie_under_every_task(spool):
    shared = EnqueueOptions(
        defaults={
            "cwd": "/data",
            "timeout": "2m",
            "retries": 3,
            "env": {"A": "1", "B": "1"},
            "tags": ["all"],
            "gpus": 1,
        },
        base_env={"PATH": "/bin"},
    )
    stream(spool, [{"name": "a", "command": ["x"]}, {"name": "b", "command": ["x"], "retries": 0, "cwd": "/other",
           "env": {"B": "2"}, "tags": ["own"], "gpus": 0}], shared)  # fmt: skip
    first, second = find(spool, "a"), find(spool, "b")
    assert (first["cwd"], first["timeout"], first["retries"], first["tags"]) == ("/data", 120.0, 3, ["all"])
    assert (second["cwd"], second["timeout"], second["retries"]) == ("/other", 120.0, 0)
    assert second["env"] == {"A": "1", "B": "2"}
    assert second["tags"] == ["all", "own"]
    assert first["base_env"] == {"PATH": "/bin"}
    assert len(first["env_digest"]) == 16
    assert [batch.lane for batch in batches(spool)] == ["g1", "c1"]


def test_the_current_directory_is_recorded_where_none_is_named(spool, tmp_path, monkeypatch):
    odd = tmp_path / 'we"ird dir' / "$(x)" / "\u00e9"
    odd.mkdir(parents=True)
    monkeypatch.chdir(odd)
    stream(spool, "true", EnqueueOptions())
    assert tasks(spool)[0]["cwd"] == str(odd)


def test_a_current_directory_that_is_gone_is_said(spool, tmp_path, monkeypatch):
    folder = tmp_path / "gone"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    assert "--cwd" in refused(spool, "true", EnqueueOptions(), UsageError)


@pytest.mark.parametrize(
    ("defaults", "said"),
    (
        ({"name": "x"}, "name belongs to one task"),
        ({"retrys": 1}, "options: unknown key 'retrys'. Did you mean 'retries'?"),
        ({"timeout": "soon"}, "options: timeout 'soon' is not a time"),
        ({"priority": 1000}, "options: priority 1000"),
        ({"env": {"A-B": "1"}}, "options: 'A-B' is not a valid variable name"),
    ),
)
def test_options_are_checked_before_the_first_line(spool, defaults, said):
    assert said in refused(spool, "true", options(**defaults), UsageError)


def test_options_may_say_what_lines_leave_open(spool):
    shared = options(call="m:f", setup="m:load", args={"x": 1}, python="/usr/bin/python3")
    stream(spool, [{"name": "a", "args": {"x": 2}}, {"name": "b"}, {"name": "c", "call": "m:g"}], shared)
    assert [(task["call"], task["args"], task["setup"]) for task in tasks(spool)] == [
        ("m:f", {"x": 2}, "m:load"), ("m:f", {"x": 1}, "m:load"), ("m:g", {"x": 1}, "m:load"),
    ]  # fmt: skip
    assert tasks(spool)[0]["python"] == "/usr/bin/python3"
    assert "args goes with call" in refused(spool, [{"command": ["x"]}], options(args={"x": 1}))


def test_every_key_of_a_task_has_one_place():
    """A new key must be thought of here, too."""
    header = share(options(timeout=1)).header
    assert TASK_KEYS >= PAYLOAD_KEYS | BATCH_KEYS | SINGLE_KEYS
    assert not header.keys() & (PAYLOAD_KEYS | BATCH_KEYS | SINGLE_KEYS)


def test_calls_take_the_quick_way_once_their_function_was_checked(spool, monkeypatch):
    slow: list[object] = []
    add = Assembly.add

    def count(self, task, number):
        slow.append(task)
        add(self, task, number)

    monkeypatch.setattr(Assembly, "add", count)
    listed = [{"name": f"c{n}", "call": "m:f", "args": {"n": n}} for n in range(5)]
    stream(spool, [*listed, {"name": "nan", "call": "m:f", "args": {"n": 1e308}}])
    assert len(slow) == 1
    assert [task["args"] for task in tasks(spool)][:5] == [{"n": n} for n in range(5)]
    assert "has no strict JSON form" in refused(spool, '{"name": "x", "call": "m:f", "args": {"n": NaN}}')


def test_a_call_that_was_checked_with_other_resources_is_checked_again(spool):
    call = {"call": "m:f", "args": {}}
    said = refused(spool, [{"name": "a", **call, "timed": False}, {"name": "b", **call}], options(timed=True))
    assert said.startswith("list:2: node goes with a command")


def test_a_hundred_thousand_tasks_of_three_shapes_make_three_batches(spool):
    def lines():
        for number in range(100_000):
            shape = ("", ', "gpus": 1', ', "cpus": 4')[number % 3]
            yield b'{"name": "t%d", "command": ["true", "%d"]%b}\n' % (number, number, shape.encode())

    result = module.enqueue_stream(spool, io.BytesIO(b"".join(lines())), "big", PLAIN)
    assert (result.added, result.batches) == (100_000, [1, 2, 3])
    assert sorted((batch.lane, batch.count) for batch in batches(spool)) == [
        ("c1", 33_334), ("c4", 33_333), ("g1", 33_333),
    ]  # fmt: skip
    for number in (0, 1, 2, 50_000, 99_999):
        assert find(spool, f"t{number}")["command"] == ["true", str(number)]
    assert sum(cover(spool).values()) == 100_000
    assert leftovers(spool) == []


def test_the_first_names_are_shown_in_the_order_of_the_input(spool):
    listed = [{"name": f"t{n}", "command": ["a"], "gpus": n % 3} for n in range(30)]
    assert stream(spool, listed).names == [f"t{n}" for n in range(20)]
    assert enqueue_tasks(spool, listed, PLAIN, keep_names=30).names == [f"t{n}" for n in range(30)]


def test_many_shapes_are_many_batches_and_said(spool):
    result = stream(spool, [{"name": f"t{n}", "command": ["a"], "needs": 60 + n} for n in range(60)])
    assert len(result.batches) == 60
    assert "make 60 batches" in result.notes[0]


def test_a_full_batch_is_followed_by_another(spool, monkeypatch):
    monkeypatch.setattr("fleetcraft.actions.groups.MAX_BATCH_TASKS", 10)
    result = stream(spool, [{"name": f"t{n}", "command": ["a"]} for n in range(25)])
    assert result.batches == [1, 2, 3]
    with pytest.raises(NameTaken, match=r"list:14: .*\(command differ\)"):
        stream(spool, [{"name": f"t{n}", "command": ["a"] if n != 13 else ["b"]} for n in range(25)])


def test_progress_is_told_how_many_were_taken(spool):
    told: list[int] = []
    stream(spool, [{"name": f"t{n}", "command": ["a"]} for n in range(50_000)], progress=told.append)
    assert told == sorted(told)
    assert told[-1] == 50_000
    assert len(told) >= 2


def test_nothing_to_enqueue_is_no_error(spool):
    result = stream(spool, "\n\n# only a note\n")
    assert (result.added, result.existing, result.batches) == (0, 0, [])
    assert tokens(spool) == []


def test_a_full_disk_leaves_the_spool_as_it_was(tmp_path):
    files = FullFiles(spare=3)
    spool = make_spool(tmp_path, files)
    with pytest.raises(StorageFull, match="Free space or inodes"):
        stream(spool, [{"name": f"t{n}", "command": ["a"]} for n in range(20_000)])
    files.full = False
    assert batches(spool) == []
    assert leftovers(spool) == []
    assert tokens(spool) == []
    assert stream(spool, [{"name": f"t{n}", "command": ["a"]} for n in range(20_000)]).added == 20_000


def test_a_disk_that_fills_between_batches_says_what_was_published(tmp_path):
    files = FullFiles(full=False)
    spool = make_spool(tmp_path, files)
    listed = [{"name": "a", "command": ["a"]}, {"name": "b", "command": ["b"], "gpus": 1}]

    class Filling(FullFiles):
        """Full from the first commit on."""

        def link(self, source, target):
            super().link(source, target)
            self.done = getattr(self, "done", 0) + 1

        def open_new(self, path, *, append=False):
            self.full = getattr(self, "done", 0) > 0
            return super().open_new(path, append=append)

    spool.files = Filling(full=False)
    with pytest.raises(OutOfReach, match=r"1 of 2 batches \(1 tasks\) were published before.*goes on from there"):
        stream(spool, listed)
    spool.files = files
    assert names(spool) == ["a"]
    result = stream(spool, listed)
    assert (result.added, result.existing) == (1, 1)


def test_input_that_cannot_be_read_is_said(spool):
    class Broken(io.BytesIO):
        def read(self, size=-1):
            raise OSError(5, os.strerror(5))

    with pytest.raises(UsageError, match="Cannot read list"):
        module.enqueue_stream(spool, Broken(), "list", PLAIN)
