from __future__ import annotations

import io
import json
import shlex
from contextlib import redirect_stdout

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleetcraft.cli import commands
from fleetcraft.cli.command import Command
from fleetcraft.cli.main import main
from fleetcraft.cli.output import Output
from fleetcraft.cli.parser import build_parser
from fleetcraft.core.errors import EXIT_USAGE, UsageError

ALL = list(commands.all_commands())
IDS = [" ".join(command.path) for command in ALL]


def parse(command: Command, words: list[str]):
    return build_parser(command).parse(words)


def test_the_table_and_the_commands_agree():
    for noun, verbs in commands.VERBS.items():
        for verb in verbs:
            assert commands.load(noun, verb).path == ((noun, verb) if verb else (noun,))
    assert commands.VERBS.keys() == commands.NOUNS.keys()


@pytest.mark.parametrize("command", ALL, ids=IDS)
def test_help_has_an_example_and_names_its_exit_codes(command, capsys):
    assert main([*command.path, "--help"]) == 0
    text = capsys.readouterr().out
    assert "usage: fleetcraft " + " ".join(command.path) in text
    assert f"  {command.examples[0].line}\n" in text
    assert f"  {command.examples[0].what}\n" in text
    assert "exit codes:\n  0   " in text
    assert "  2   " in text
    assert "--json" in text
    assert command.schema in text
    assert "\u2014" not in text


@pytest.mark.parametrize("command", ALL, ids=IDS)
def test_every_example_parses(command):
    for example in command.examples:
        words = shlex.split(example.line.removeprefix('eval "$(').removesuffix(')"'))
        for stop in ("&&", ">", "|"):
            if stop in words:
                left, right = words[: words.index(stop)], words[words.index(stop) + 1 :]
                words = left if left[0] == "fleetcraft" else right
        assert words[: 1 + len(command.path)] == ["fleetcraft", *command.path]
        rest = words[1 + len(command.path) :]
        if command.takes_command and "--" in rest:
            rest = rest[: rest.index("--")]
        parse(command, rest)


@pytest.mark.parametrize("argv", ([], ["--help"], ["help"], ["-h"]))
def test_the_overview_names_every_verb(argv, capsys):
    assert main(argv) == 0
    text = capsys.readouterr().out
    for command in ALL:
        assert " ".join(command.path) in text
        assert command.summary in text


@pytest.mark.parametrize(
    ("argv", "said"),
    (
        (["taks"], "Did you mean 'task'?"),
        (["task"], "needs a verb"),
        (["task", "enqeue"], "Did you mean 'enqueue'?"),
        (["task", "list", "--stat", "failed"], "Did you mean --state?"),
        (["task", "show"], "required: NAME"),
        (["task", "enqueue", "echo", "hi"], "Put -- before the command"),
        (["task", "enqueue"], "nothing to enqueue"),
        (["task", "enqueue", "--"], "no command after --"),
        (["task", "enqueue", "--timeout", "5 parsecs", "--", "x"], "--timeout '5 parsecs' is not a time"),
        (["task", "enqueue", "--args", "[1]", "--call", "m:f"], "--args must be a JSON object"),
        (["task", "enqueue", "--env", "NO_SUCH_VARIABLE", "--", "x"], "no such variable"),
        (["task", "enqueue", "--name", "a", "--from", "x"], "--name names one task"),
        (["task", "enqueue", "--from", "/no/such/file"], "/no/such/file"),
        (["worker", "run", "--gpus", "lots"], "--gpus 'lots'"),
        (["worker", "run", "--idle-exit", "soon"], "--idle-exit 'soon' is not a time"),
        (["worker", "run", "--deadline", "2031-13-01"], "2031-13-01"),
        (["worker", "drain"], "--all"),
        (["spool", "limit", "io:5"], "scratch_io=5"),
        (["spool", "status"], "no spool"),
        (["completion", "tcsh"], "tcsh"),
    ),
)
def test_wrong_usage_is_one_sentence_and_exit_2(argv, said, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(argv) == EXIT_USAGE
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("fleetcraft: ")
    assert captured.err.count("\n") == 1
    assert said in captured.err


@pytest.mark.parametrize(
    ("argv", "code"),
    (
        (["task", "show", "--json"], "usage"),
        (["nonsense", "--json"], "usage"),
        (["spool", "status", "--json"], "spool"),
        (["task", "enqueue", "--json", "--", ""], "task_invalid"),
        (["task", "list", "--json", "--limit", "many"], "usage"),
    ),
)
def test_errors_are_json_too(argv, code, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(argv) == EXIT_USAGE
    captured = capsys.readouterr()
    assert captured.err == ""
    document = json.loads(captured.out)
    assert document["schema"] == "fleetcraft.error/1"
    assert document["error"].keys() == {"code", "message", "hint", "exit"}
    assert (document["error"]["code"], document["error"]["exit"]) == (code, EXIT_USAGE)


def test_everything_after_the_first_bare_dashes_is_the_command(monkeypatch, capsys):
    seen: dict[str, object] = {}

    def run(arguments, output):
        seen.update(tail=arguments.tail, json=output.json, name=arguments.name)
        return 0

    enqueue = commands.load("task", "enqueue")
    fake = Command(
        path=enqueue.path,
        summary="",
        run=run,
        examples=enqueue.examples,
        arguments=enqueue.arguments,
        takes_command=True,
    )
    monkeypatch.setattr(commands, "load", lambda _noun, _verb: fake)
    assert main(["task", "enqueue", "--name", "a", "--", "echo", "--", "--json", "--name", "-h"]) == 0
    assert seen == {"tail": ["echo", "--", "--json", "--name", "-h"], "json": False, "name": "a"}
    assert main(["task", "enqueue", "--json", "--name", "--", "x"]) == EXIT_USAGE  # a name is missing before the dashes
    assert json.loads(capsys.readouterr().out)["error"]["exit"] == EXIT_USAGE


def test_a_name_that_begins_with_a_dash_comes_after_dashes(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["task", "enqueue", "--name=-odd", "--", "true"]) == 0
    capsys.readouterr()
    assert main(["task", "show", "--", "-odd"]) == 0
    assert capsys.readouterr().out.startswith("-odd  waiting")


_WORDS = st.one_of(
    st.text(max_size=12),
    st.sampled_from(
        ["--", "-", "--json", "--spool", "-h", "--name=", "--limit=-1", "9" * 30, "\0", "\udcff", "--state=failed"]
    ),
)


@settings(max_examples=150)
@given(data=st.data())
def test_parsing_never_fails_otherwise_than_by_a_sentence(data):
    command = data.draw(st.sampled_from(ALL))
    options = [option for action in build_parser(command)._actions for option in action.option_strings if option]
    words = data.draw(st.lists(st.one_of(_WORDS, st.sampled_from(options)), max_size=6))
    errors = io.StringIO()
    output = Output(io.StringIO(), errors)
    parser = build_parser(command)
    try:
        with redirect_stdout(io.StringIO()):  # --help may come up
            parser.parse(words)
    except UsageError as error:
        output.error(error.code, error.message, error.hint, error.exit_code)
        assert errors.getvalue().count("\n") == 1
    except SystemExit as ended:
        assert ended.code in (0, None)  # noqa: PT017  --help ends so
