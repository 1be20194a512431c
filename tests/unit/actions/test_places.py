"""Which spool is meant when none is named, where none may lie, and what commands on a login node find."""

from __future__ import annotations

import errno
import os
import sys

import pytest

from fleetcraft.actions.login_transport import LoginTransport, transport_for
from fleetcraft.actions.spool_choice import check_spool_place, spool_of_profile
from fleetcraft.actions.writable import access_error
from fleetcraft.config.site import LoginRules, Storage
from fleetcraft.core.errors import Refused, UsageError
from fleetcraft.transports.api import Surroundings
from fleetcraft.transports.local import LocalTransport
from tests.support.fleets import site

PROFILE = 'format = 1\n[scheduler]\nkind = "slurm"\n[partitions.gpu]\n[defaults]\npartition = "gpu"\n'
SHOW = (sys.executable, "-c", "import os; print(os.environ.get('MALLOC_ARENA_MAX'), os.environ.get('OTHER'))")


@pytest.fixture
def env(tmp_path):
    (tmp_path / "clusters").mkdir()
    return {"FLEETCRAFT_CONFIG_DIR": str(tmp_path), "HOME": "/home/me", "SCRATCH": "/scratch/me"}


def write(env, text, name="here"):
    with open(f"{env['FLEETCRAFT_CONFIG_DIR']}/clusters/{name}.toml", "w", encoding="utf-8") as target:
        target.write(PROFILE + text)


def test_the_profile_names_the_spool_that_nobody_else_named(env):
    assert spool_of_profile(None, env) is None  # no profile, no word
    write(env, '[storage]\nspool = "$SCRATCH/spools"\n')
    assert spool_of_profile(None, env) == "/scratch/me/spools/main"
    write(env, "", "other")
    assert spool_of_profile("other", env) is None
    assert spool_of_profile(None, env) is None  # of two profiles none is guessed


def test_a_folder_that_cannot_be_written_out_is_an_error_and_no_other_folder(env):
    write(env, '[storage]\nspool = "$WORK/spools"\n')
    with pytest.raises(UsageError, match="WORK"):
        spool_of_profile(None, env)


@pytest.mark.parametrize(
    ("root", "refused"),
    (("/home/me/run/.fleetcraft", True), ("/home/me", True), ("/home/meander/x", False), ("/home/me/scratch/x", False)),
)
def test_no_spool_lies_where_the_site_keeps_configuration(env, root, refused):
    there = site(storage=Storage(keep_light=("~", "$UNSET"), spool="$HOME/scratch"))
    if not refused:
        check_spool_place(there, root, env)
        return
    with pytest.raises(Refused, match="keep_light") as caught:
        check_spool_place(there, root, env)
    assert "--spool $HOME/scratch/main" in caught.value.hint


def test_commands_on_a_login_node_find_what_the_profile_wants_for_them():
    there = site(login=LoginRules(hosts=("login*",), env={"MALLOC_ARENA_MAX": "2", "OTHER": "profile"}))
    transport = transport_for(there, "login3.example")
    assert isinstance(transport, LoginTransport)
    assert transport.run(SHOW, surroundings=Surroundings(add={"OTHER": "asked"})).out == "2 asked\n"
    # The environment of a submission is closed: it is the job's.
    closed = Surroundings(drop_prefixes=("",), add={"OTHER": "job"})
    assert transport.run(SHOW, surroundings=closed).out == "None job\n"


@pytest.mark.parametrize(("hosts", "host"), (((), "login3"), (("login*",), "n1")))
def test_elsewhere_nothing_is_added(hosts, host):
    rules = LoginRules(hosts=hosts, env={"MALLOC_ARENA_MAX": "2"})
    assert isinstance(transport_for(site(login=rules), host), LocalTransport)


def test_a_folder_that_takes_no_file_is_told_without_making_one(tmp_path, monkeypatch):
    assert access_error(str(tmp_path)) is None
    file = tmp_path / "file"
    file.touch()
    error = access_error(str(file))
    assert error is not None
    assert error.errno == errno.ENOTDIR
    monkeypatch.setattr(os, "access", lambda *_words: False)
    error = access_error(str(tmp_path))
    assert error is not None
    assert error.errno == errno.EACCES
    assert list(tmp_path.iterdir()) == [file]
