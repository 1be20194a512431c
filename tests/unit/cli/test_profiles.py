"""`config` and `cluster` as a person and as a script sees them."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from fleetcraft.actions import profiles as actions
from fleetcraft.actions.profiles import probe_cluster
from fleetcraft.cli.main import main
from fleetcraft.core.errors import NameTaken, OutOfReach, UsageError
from fleetcraft.schedulers.api import Limits, PartitionLimits

SOUND = 'format = 1\n[partitions.gpu]\nmax_time = "1d"\nnodes = 2\n[storage]\nspool = "/scratch/spools"\n'


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("FLEETCRAFT_CONFIG_DIR", str(tmp_path / "config"))
    monkeypatch.delenv("FLEETCRAFT_PROFILE", raising=False)
    return tmp_path / "config" / "clusters"


def write(folder: Path, name: str, text: str = SOUND) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.toml"
    path.write_text(text)
    return path


def ask(capsys, *words):
    code = main([*words, "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_check_tells_file_line_and_remedy(folder, capsys):
    path = write(folder, "mine", SOUND.replace("nodes", "nods"))
    assert main(["config", "check"]) == 2
    text = capsys.readouterr().out
    assert f"error    {path}:4: there is no key partitions.gpu.nods. Did you mean nodes?" in text
    code, document = ask(capsys, "config", "check", "mine", "local")
    assert (code, document["errors"], document["warnings"]) == (2, 1, 0)
    assert [file["sound"] for file in document["files"]] == [False, True]
    assert document["files"][0]["problems"][0]["line"] == 4


def test_check_is_content_with_warnings_unless_strict(folder, capsys):
    write(folder, "mine", SOUND + '[partitions.other]\n[defaults]\npartition = "gpu"\n')
    assert main(["config", "check"]) == 0
    assert "warning" in capsys.readouterr().out
    assert main(["config", "check", "--strict"]) == 2


def test_check_without_any_profile_is_wrong_usage(capsys):
    code, document = ask(capsys, "config", "check")
    assert (code, document["error"]["code"]) == (2, "profile_unknown")
    assert "cluster probe" in document["error"]["hint"]


def test_show_has_the_values_and_their_digest(folder, capsys):
    write(folder, "mine")
    code, document = ask(capsys, "config", "show")
    assert code == 0
    assert document["site"]["partition"]["max_time_s"] == 86400.0
    assert len(document["digest"]) == 64
    assert main(["config", "show", "mine"]) == 0
    assert "partition.nodes = 2\n" in capsys.readouterr().out
    assert main(["config", "show", "mine", "--partition", "x"]) == 2
    assert "mine.toml describes: gpu" in capsys.readouterr().err


def test_show_toml_is_the_file_as_it_is(folder, capsys):
    path = write(folder, "mine", "format = 1\nbroken = 1\n")
    assert main(["config", "show", "mine", "--toml"]) == 0
    assert capsys.readouterr().out == path.read_text()
    assert main(["config", "show", "mine", "--toml", "--partition", "x"]) == 2


def test_cluster_list_shows_what_can_be_used_and_what_not(folder, capsys):
    write(folder, "mine")
    write(folder, "broken", "format = 1\nfoo = 1\n")
    code, document = ask(capsys, "cluster", "list")
    assert code == 0
    found = {cluster["name"]: cluster for cluster in document["clusters"]}
    assert found["mine"]["partitions"] == ["gpu"]
    assert "broken.toml:2" in found["broken"]["problem"]
    assert found["tacc-like"]["shipped"]
    assert main(["cluster", "list"]) == 0
    assert "cannot be used: " in capsys.readouterr().out


def test_cluster_show_says_unknown_with_a_question_mark(folder, capsys):
    write(folder, "mine")
    assert main(["cluster", "show"]) == 0
    text = capsys.readouterr().out
    row = next(line for line in text.splitlines() if line.startswith("gpu"))
    assert row.split()[1:7] == ["2", "?", "?", "?", "1d00h", "?"]
    code, document = ask(capsys, "cluster", "show", "nersc-like")
    assert (code, document["default_partition"], len(document["sites"])) == (0, "regular", 3)


class Told:
    kind = "slurm"

    def __init__(self, limits):
        self.said = limits

    def limits(self):
        return self.said

    def version(self):
        return (22, 5, 8)


LIMITS = Limits(at_utc=0.0, partitions=(PartitionLimits(name="gpu", is_default=True, nodes=4),))


def test_probe_prints_and_writes_only_when_asked(folder, capsys, monkeypatch):
    monkeypatch.setattr(actions, "open_scheduler", lambda rules, env: Told(LIMITS))
    assert main(["cluster", "probe", "mine"]) == 0
    said = capsys.readouterr()
    assert tomllib.loads(said.out)["partitions"] == {"gpu": {"nodes": 4}}
    assert "--write keeps this" in said.err
    assert not folder.exists()
    code, document = ask(capsys, "cluster", "probe", "mine", "--write")
    assert (code, document["written"]) == (0, True)
    path = folder / "mine.toml"
    assert path.read_text() == document["toml"]
    assert main(["config", "check", "mine"]) == 0
    capsys.readouterr()
    path.write_text(SOUND)
    code, document = ask(capsys, "cluster", "probe", "mine", "--write")
    assert (code, document["error"]["code"]) == (2, "name_taken")
    assert path.read_text() == SOUND
    assert main(["cluster", "probe", "mine", "--write", "--force"]) == 0
    assert "marked #?" in capsys.readouterr().out
    assert path.read_text() != SOUND


def test_a_scheduler_that_never_tells_limits_is_not_asked_again(folder):
    silent: Any = Told(Limits(at_utc=0.0, answered=False, problems=("not told",)))
    with pytest.raises(OutOfReach, match="not told") as caught:
        probe_cluster("mine", kind="psij:pbs", scheduler=silent)
    assert "config show generic-slurm" in caught.value.hint


def test_a_profile_without_rules_says_so_in_words(folder, capsys):
    write(folder, "mine", 'format = 1\n[partitions.gpu]\nmax_time = "1d"\n')
    assert main(["cluster", "show", "mine"]) == 0
    assert "none named; no limit is stated" in capsys.readouterr().out
    assert main(["config", "check", "mine"]) == 0
    assert "Write the folder, on a file system that every node sees." in capsys.readouterr().out


def test_a_scheduler_without_an_answer_makes_no_profile(folder):
    silent: Any = Told(Limits(at_utc=0.0, answered=False, problems=("scontrol: timed out",)))
    with pytest.raises(OutOfReach, match="scontrol: timed out"):
        probe_cluster("mine", write=True, scheduler=silent)
    assert not folder.exists()
    with pytest.raises(UsageError, match="no name for a profile"):
        probe_cluster("../mine", scheduler=silent)
    write(folder, "mine")
    told: Any = Told(LIMITS)
    with pytest.raises(NameTaken):
        probe_cluster("mine", write=True, scheduler=told)


@pytest.mark.parametrize(
    "words", (["--version"], ["--help"], ["task", "enqueue", "--", "true"], ["cluster", "probe", "--help"])
)
def test_the_library_behind_profiles_is_imported_only_for_them(words, tmp_path):
    code = f"import sys; from fleetcraft.cli.main import main\nmain({words!r}); print('MODULES', *sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, check=True, text=True)
    loaded = done.stdout.split("MODULES ")[1].split()
    assert not [name for name in loaded if name.startswith(("pydantic", "fleetcraft.config", "fleetcraft.schedulers"))]


def test_the_bundle_says_that_it_has_no_profiles(tmp_path):
    from fleetcraft.actions.bundle import write_bundle

    made = write_bundle(str(tmp_path / "fleetcraft.pyz"))
    python = getattr(sys, "_base_executable", sys.executable)
    done = subprocess.run(
        [python, "-I", "-S", made.path, "cluster", "list"], capture_output=True, check=False, text=True, timeout=60
    )
    assert done.returncode == 2
    assert "The bundle has only the worker side" in done.stderr
