"""A description becomes a ledger line, or is refused with its place and its key."""

from __future__ import annotations

import pytest

from fleetcraft.core.errors import TaskInvalid, UsageError
from fleetcraft.core.task import (
    MAX_ARGUMENT_BYTES,
    MAX_COMMAND_BYTES,
    check_argv,
    draft_task,
    encode_text,
    is_plain,
    signal_name,
)


def _draft(task, **defaults):
    return draft_task(task, "tasks.jsonl:7", defaults)


def test_a_plain_line_runs_under_a_shell():
    assert _draft("echo hello > out").line == {"shell": "echo hello > out"}


def test_texts_become_lists_and_times_become_seconds():
    draft = _draft(
        {
            "command": ["train"], "outputs": "model.pt", "tags": ["a"], "validate": "test -s model.pt",
            "timeout": "20m", "backoff": 5, "checkpoint_signal": 10, "name": "t1", "priority": 900, "after": "prepare",
        }
    )  # fmt: skip
    assert draft.line["outputs"] == ["model.pt"]
    assert draft.line["validate"] == ["/bin/sh", "-c", "test -s model.pt"]
    assert (draft.line["timeout"], draft.line["backoff"], draft.line["checkpoint_signal"]) == (1200.0, 5.0, "SIGUSR1")
    assert (draft.name, draft.priority, draft.after) == ("t1", 900, ("prepare",))
    assert "priority" not in draft.line
    assert "after" not in draft.line


def test_a_line_wins_over_the_defaults_of_the_enqueue():
    assert _draft({"shell": "x", "cpus": 2}, cpus=8, gpus=1).request.cpus == 2
    assert _draft({"shell": "x"}, cpus=8, gpus=1, priority=3).priority == 3
    assert _draft({"shell": "x"}, cpus=8, gpus=1).request.gpus == 1.0


@pytest.mark.parametrize(
    ("task", "words"),
    (
        ([], "must be a JSON object or a plain line"),
        ({"commnad": ["x"]}, "unknown key 'commnad'. Did you mean 'command'?"),
        ({}, "exactly one of command, shell, call; found none"),
        ({"shell": "x", "command": ["x"]}, "found command and shell"),
        ({"command": "x"}, "must be a list of texts"),
        ({"command": []}, "must be a list of texts"),
        ({"command": ["", "x"]}, "empty program name"),
        ({"command": ["x", "a\0b"]}, "argument 1 holds a zero byte"),
        ({"command": ["x", "a" * (MAX_ARGUMENT_BYTES + 1)]}, "argument 1 has 131072 bytes"),
        ({"command": ["x"] + ["a" * 100_000] * 19}, f"the kernel takes {MAX_COMMAND_BYTES}"),
        ({"shell": "  "}, "shell must be a line of text"),
        ({"call": "no_colon"}, "must look like package.module:function"),
        ({"call": "a:b", "args": [1]}, "args must be a JSON object"),
        ({"shell": "x", "args": {}}, "args goes with call"),
        ({"call": "a:b", "node": True}, "node goes with a command"),
        ({"call": "a:b", "args": {"x": float("inf")}}, "args has no strict JSON form"),
        ({"shell": "x", "name": ""}, "name '' must be text"),
        ({"shell": "x", "name": "a" * 2000}, "is longer than 1024 bytes"),
        ({"shell": "x", "priority": 1000}, "whole number from 0 to 999"),
        ({"shell": "x", "retries": -1}, "retries -1"),
        ({"shell": "x", "retries": True}, "retries True"),
        ({"shell": "x", "env": {"A-B": "1"}}, "'A-B' is not a valid variable name"),
        ({"shell": "x", "env": {"A": 1}}, "variable A must be a text"),
        ({"shell": "x", "cwd": "relative"}, "must be an absolute path"),
        ({"shell": "x", "checkpoint_signal": "KILL"}, "not a signal that a task can catch"),
        ({"shell": "x", "gpus": 1.5}, "a fraction below one, or a whole number"),
        ({"shell": "x", "after": [1]}, "after must be a name or a list"),
    ),
)
def test_what_cannot_run_is_refused_with_its_place(task, words):
    with pytest.raises(UsageError) as caught:
        _draft(task)
    assert words in str(caught.value)
    assert "tasks.jsonl:7" in str(caught.value)


def test_awkward_words_are_kept_as_they_are():
    argv = ["/opt/my tool", "--", "-x", "a'b\"c", "line\nbreak", "ünï\u2028code", "\udc80", "", "$HOME"]
    check_argv(argv, "here: command")
    assert _draft({"command": argv, "name": "-odd name\n"}).line["command"] == argv
    assert is_plain({"name": "-odd name\n", "command": argv})
    assert encode_text("\udc80")


def test_a_200_kb_shell_line_is_taken():
    assert _draft("echo " + "a" * 200_000).line["shell"].startswith("echo")


@pytest.mark.parametrize(
    ("given", "name"), (("usr1", "SIGUSR1"), ("SIGTERM", "SIGTERM"), (2, "SIGINT"), ("15", "SIGTERM"))
)
def test_signals_have_one_spelling(given, name):
    assert signal_name(given, "here") == name


@pytest.mark.parametrize("given", ("STOP", "KILL", "nothing", "", 0, 9, 99, "²"))
def test_what_is_no_signal(given):
    with pytest.raises(TaskInvalid, match="not a signal"):
        signal_name(given, "here")
