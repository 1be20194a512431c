"""Which variables tasks get, and how files of variables are read."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetcraft.actions.environment import environment_digest, parse_env_file, record_environment
from fleetcraft.core.errors import TaskInvalid

RECORDED = (
    "PATH", "HOME", "USER", "LANG", "LC_ALL", "LC_NUMERIC", "TZ", "PYTHONPATH", "VIRTUAL_ENV", "CONDA_PREFIX",
    "LD_LIBRARY_PATH", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "HF_HOME", "HF_HUB_OFFLINE", "XDG_CACHE_HOME",
    "MODULEPATH", "LOADEDMODULES", "CUDA_HOME",
)  # fmt: skip
LEFT_OUT = (
    "SLURM_PROCID", "SBATCH_ACCOUNT", "PMI_RANK", "PMIX_RANK", "SSH_AUTH_SOCK", "TMPDIR", "XDG_RUNTIME_DIR", "FOO",
    "CUDA_VISIBLE_DEVICES", "FLEETCRAFT_TASK", "HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "WANDB_API_KEY", "DB_PASSWORD",
    "SECRET_NUM_THREADS", "LC_TOKEN", "lc_all", "BASH_FUNC_x%%", "",
)  # fmt: skip


@pytest.mark.parametrize("name", RECORDED)
def test_a_variable_of_the_list_is_recorded(name):
    assert record_environment({name: "value", "FOO": "x"}) == {name: "value"}


@pytest.mark.parametrize("name", LEFT_OUT)
def test_any_other_is_left_out(name):
    assert record_environment({name: "value"}) == {}


def test_the_digest_knows_names_and_values_and_no_order():
    one = {"A": "1", "B": "2"}
    assert environment_digest(one) == environment_digest(dict(reversed(one.items())))
    assert len({environment_digest(one), environment_digest({"A": "1"}), environment_digest({**one, "B": ""})}) == 3


@pytest.mark.parametrize(
    ("text", "value"),
    (
        ("X=a,b", "a,b"),
        ("X=a b", "a b"),
        ("X=a=b", "a=b"),
        ("X=", ""),
        ('X=""', ""),
        ("X=$HOME", "$HOME"),
        ("X=\u00e9", "\u00e9"),
        ("export X=1", "1"),
        ("export\tX=1", "1"),
        ("  X=1  ", "1"),
        ("X=1 # one", "1"),
        ("X=1#one", "1#one"),
        ("X= #nothing", ""),
        ("X='a # b'", "a # b"),
        ("X='a\\nb'", "a\\nb"),
        ('X="a\\nb"', "a\nb"),
        ('X="a\\tb"', "a\tb"),
        ('X="say \\"hi\\" \\\\ \\$HOME"', 'say "hi" \\ $HOME'),
        ('X="a\\qb"', "a\\qb"),
        ('X="a" # why', "a"),
        ("X=it's", "it's"),
        ("X=1\r", "1"),
        ("\ufeffX=1", "1"),
        ("X=caf\udce9", "caf\udce9"),
        ("X=a\u2028b\x85c", "a\u2028b\x85c"),
    ),
)
def test_values_are_read_as_shells_write_them(text, value):
    assert parse_env_file(f"# head\n\n{text}\n", "vars") == {"X": value}


@pytest.mark.parametrize(
    ("text", "said"),
    (
        ("A=1\nFOO", "vars:2: 'FOO' is not NAME=VALUE"),
        ("A-B=1", "vars:1: 'A-B' is not a valid variable name"),
        ("1A=1", "vars:1: '1A' is not a valid variable name"),
        ("\nX='a", "vars:2: the quote ' is not closed"),
        ('X="a\\"', 'vars:1: the quote " is not closed'),
        ('X="a"b', "vars:1: 'b' stands behind the closing quote"),
        ("=1", "vars:1: '=1' is not NAME=VALUE"),
        ("X =1", "vars:1: 'X =1' is not NAME=VALUE"),
        (f"X={'x' * 131_072}", "vars:1: variable X is longer"),
        ("X=a\0b", "vars:1: variable X must be a text without a zero byte"),
    ),
)
def test_what_is_no_assignment_is_refused_with_its_line(text, said):
    with pytest.raises(TaskInvalid) as error:
        parse_env_file(text, "vars")
    assert str(error.value).startswith(said)


@given(value=st.text(st.characters(exclude_characters="\0"), max_size=50))
def test_every_value_can_be_written_in_double_quotes(value):
    written = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\r", "\\r")
    assert parse_env_file(f'X="{written}"', "vars") == {"X": value}


@given(text=st.text(max_size=80))
def test_any_text_is_read_or_refused_by_line(text):
    try:
        parse_env_file(text, "vars")
    except TaskInvalid as error:
        assert str(error).startswith("vars:")  # noqa: PT017  both answers are right for some text
