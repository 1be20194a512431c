"""Every mistake in a profile is told at its line, with what was meant or what is allowed."""

from __future__ import annotations

import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetcraft.config.check import check_text
from fleetcraft.config.lines import key_lines, line_of
from fleetcraft.config.problems import Weight
from fleetcraft.config.reading import read

GOOD = """\
format = 1
[scheduler]
kind = "slurm"
[partitions.gpu]
max_time = "1-00:00:00"
[storage]
spool = "/scratch/me/spools"
"""


def only(text: str):
    found = [problem for problem in check_text(text, "site.toml") if problem.weight is Weight.ERROR]
    assert len(found) == 1, found
    return found[0]


def test_a_sound_profile_has_no_problem():
    assert check_text(GOOD, "site.toml") == []


@pytest.mark.parametrize(
    ("line", "key", "at", "said"),
    (
        ("format = 1\nhots = 1", "hots", 2, "There are: balance, container"),
        ("format = 1\nschedular = 1", "schedular", 2, "Did you mean scheduler?"),
        ('format = 1\npoll_floor = "30s"', "poll_floor", 2, "Did you mean scheduler.poll_floor?"),
        ('format = 1\nhost = "far"', "host", 2, "not supported yet"),
        ('format = 1\nextends = "generic"', "extends", 2, "stands alone"),
        ("format = 1\n[partitons.gpu]\nnodes = 1", "partitons", 2, "Did you mean partitions?"),
        ('format = 1\n[scheduler]\npol_floor = "30s"', "scheduler.pol_floor", 3, "Did you mean poll_floor?"),
        ("format = 1\n[partitions.a]\n\nmax_node = 2", "partitions.a.max_node", 4, "Did you mean max_nodes?"),
        ('format = 1\n[partitions.a]\nmax_time_s = "2d"', "partitions.a.max_time_s", 3, "Did you mean max_time?"),
    ),
)
def test_an_unknown_key_is_refused_with_the_nearest_one(line, key, at, said):
    problem = only(line)
    assert (problem.key, problem.line, problem.place) == (key, at, f"site.toml:{at}")
    assert f"there is no key {key}." in problem.message
    assert said in problem.hint


@pytest.mark.parametrize(
    ("table", "line", "said"),
    (
        ("scheduler", 'kind = "slrum"', "'slurm', 'local' or 'psij'"),
        ("scheduler", 'requeue = "yes"', "true or false"),
        ("scheduler", "requeue = 1", "true or false"),
        ("scheduler", "poll_floor = 12:00:00", '"12:00:00"'),
        ("scheduler", 'poll_floor = "soon"', '"90s"'),
        ("scheduler", "poll_floor = true", '"90s"'),
        ("scheduler", "poll_floor = -5", '"90s"'),
        ("scheduler", 'options = "--x=1"', 'a list: ["one", "two"]'),
        ("scheduler", "options = [1]", "one word in quotes"),
        ("partitions.gpu", "nodes = 0", "at least 1"),
        ("partitions.gpu", 'nodes = "4"', "a whole number"),
        ("partitions.gpu", "nodes = 4.5", "a whole number"),
        ("partitions.gpu", "nodes = true", "a whole number"),
        ("partitions.gpu", 'memory = "lots"', '"200G"'),
        ("partitions.gpu", "su_rate = nan", "a number"),
        ("partitions.gpu", "su_rate = -1", "at least 0"),
        ("partitions.gpu", f"su_rate = 1{'0' * 400}", "a number"),
        ("partitions.gpu", f"max_time = 1{'0' * 400}", '"90s"'),
        ("partitions.gpu", 'qos = "two words"', "one word of letters"),
        ("partitions.gpu", 'max_time = "0s"', "more than 0"),
        ("limits", "max_lanes = 5", "at most 4"),
        ("setup", 'lines = ["a\\nb"]', "one line of text"),
        ("setup", 'unset = ["A B"]', "environment variable"),
        ("setup", 'env = { "A=B" = "1" }', "environment variable"),
        ("setup", "env = { A = 1 }", "a text in quotes"),
        ("container", 'image = "x"\nruntime = "docker"', "'apptainer' or 'singularity'"),
        ("notify", 'on = ["sometimes"]', "'drained', 'done' or 'failed'"),
    ),
)
def test_a_wrong_value_names_key_value_and_what_is_allowed(table, line, said):
    problem = only(f"format = 1\n\n[{table}]\n{line}\n")
    key = line.splitlines()[-1].partition(" ")[0]
    assert problem.key.startswith(f"{table}.{key}")
    assert problem.line is not None
    assert problem.line >= 4
    assert said in problem.hint
    assert problem.sentence.startswith(f"site.toml:{problem.line}: ")


def test_what_is_missing_is_named():
    assert only("[scheduler]\n").key == "format"
    assert only("format = 1\n[container]\noptions = []\n").key == "container.image"
    assert "1" in only("format = 2\n").hint


def test_what_is_not_toml_is_told_with_its_line():
    problem = only("format = 1\n[scheduler\n")
    assert "not TOML" in problem.message
    assert problem.line == 2


@pytest.mark.parametrize("text", (f"format = {'9' * 5000}", f"format = {'[' * 5000}"), ids=("digits", "brackets"))
def test_what_the_parser_cannot_read_is_told_too(text):
    assert "not TOML" in only(text).message


def test_all_mistakes_are_told_at_once():
    text = 'format = 1\n[scheduler]\nkind = "x"\nfoo = 1\n[partitions.a]\nnodes = 0\n'
    assert [problem.line for problem in check_text(text, "f")] == [3, 4, 6]


def test_a_table_of_the_wrong_kind_is_said_to_be_one():
    assert "a table" in only("format = 1\nscheduler = 3\n").hint
    assert "a table" in only("format = 1\n[partitions]\ngpu = 3\n").hint


LINES = '''\
format = 1 # a = 2
"time_zone" = "x"
[a.b] # c
text = """
x = 1
[not.a.table]
"""
'one.two' = 3
d.e = 4
list = [
  "f = 5",
]
[[g]]
h = 6
'''


def test_lines_of_keys_are_found_in_every_spelling():
    lines = key_lines(LINES)
    assert lines == {
        ("format",): 1, ("time_zone",): 2, ("a",): 3, ("a", "b"): 3, ("a", "b", "text"): 4, ("a", "b", "one.two"): 8,
        ("a", "b", "d", "e"): 9, ("a", "b", "list"): 10, ("g",): 13, ("g", "h"): 14,
    }  # fmt: skip
    assert line_of(lines, ("a", "b", "list", 0)) == 10
    assert line_of(lines, ("a", "b", "nowhere")) == 3
    assert line_of(lines, ("nowhere",)) is None


VALUES = st.recursive(
    st.one_of(st.booleans(), st.integers(), st.floats(), st.text(max_size=8)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=8), inner, max_size=3)),
    max_leaves=8,
)


@given(st.text(max_size=200))
def test_no_text_makes_the_reader_raise(text):
    found, problems, _ = read(text, "f")
    assert (found is None) == bool(problems)


@given(st.sampled_from(tuple(tomllib.loads(GOOD))), VALUES)
def test_no_value_makes_the_reader_raise(key, value):
    import unittest.mock

    with unittest.mock.patch("tomllib.loads", return_value={"format": 1, key: value}):
        found, problems, _ = read("", "f")
    assert (found is None) == bool(problems)
    assert all(problem.message for problem in problems)
