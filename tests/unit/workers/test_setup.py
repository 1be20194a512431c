"""What the setup of a job changed reaches its tasks: in front of their folders, over their recorded values."""

from __future__ import annotations

import os
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetcraft.core.errors import OutOfReach
from fleetcraft.workers.payload import base_environment
from fleetcraft.workers.setup import SETUP_VARIABLE, compare, setup_of

BEFORE = {"PATH": "/usr/bin:/bin", "OLD": "1", "SAME": "x", "SLURM_JOB_ID": "1", "PWD": "/a"}


def test_what_was_added_to_a_list_stands_in_front_of_the_tasks_own():
    change = compare(BEFORE, {**BEFORE, "PATH": "/mod/bin:/usr/bin", "LD_LIBRARY_PATH": "/mod/lib"})
    made = change.applied({"PATH": "/venv/bin:/usr/bin:/bin"})
    assert made["PATH"] == "/mod/bin:/venv/bin:/usr/bin"
    assert made["LD_LIBRARY_PATH"] == "/mod/lib"


def test_values_are_set_and_removed_and_the_job_and_the_shell_stay_out_of_it():
    after = {"PATH": "/usr/bin:/bin", "SAME": "x", "NEW": "2", "SLURM_JOB_ID": "2", "PWD": "/b", "a%%": "x"}
    made = compare(BEFORE, after).applied({"OLD": "recorded", "SAME": "recorded", "NEW": "recorded"})
    assert made == {"SAME": "recorded", "NEW": "2"}


NAMES = st.sampled_from(["A", "B", "PATH", "LD_LIBRARY_PATH", "SLURM_X"])
ENVIRONMENTS = st.dictionaries(NAMES, st.text("ab:/=\n", max_size=6))


@given(ENVIRONMENTS, ENVIRONMENTS)
def test_what_did_not_change_is_left_alone(before, task):
    assert compare(before, before).applied(task) == task


@given(ENVIRONMENTS, ENVIRONMENTS)
def test_a_task_that_stood_where_the_setup_began_gets_every_plain_value(before, after):
    made = compare(before, after).applied(before)
    for name in ("A", "B"):
        assert made.get(name) == after.get(name)


def test_the_files_that_a_shell_writes_are_read_whatever_stands_in_them(tmp_path):
    script = (
        f'env -0 >"{tmp_path}/env.before"; export ODD=$\'two\\nlines = "x"\' PATH=/mod:$PATH; unset GONE; '
        f'env -0 >"{tmp_path}/env.after"'
    )
    subprocess.run(["/bin/bash", "-c", script], env={"PATH": os.environ["PATH"], "GONE": "1"}, check=True)
    worker = {SETUP_VARIABLE: str(tmp_path / "env"), "PATH": "/elsewhere"}
    made = base_environment({"base_env": {"PATH": "/venv/bin", "GONE": "recorded"}}, worker, ())
    assert made == {b"PATH": b"/mod:/venv/bin", b"ODD": b'two\nlines = "x"'}


def test_a_setup_that_cannot_be_read_is_no_empty_setup(tmp_path):
    with pytest.raises(OutOfReach, match=r"env\.before"):
        setup_of({SETUP_VARIABLE: str(tmp_path / "env")})
    assert setup_of({}).applied({"A": "1"}) == {"A": "1"}
