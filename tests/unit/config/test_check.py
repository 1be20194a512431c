"""What the values of a profile must hold together."""

from __future__ import annotations

import pytest

from fleetcraft.config.check import check_text
from fleetcraft.config.problems import Weight

BASE = {
    "scheduler": ['kind = "slurm"'],
    "defaults": [],
    "partitions.gpu": ['max_time = "1-00:00:00"', "nodes = 4"],
    "storage": ['spool = "/scratch/me/spools"'],
}


def profile(**tables: list[str]) -> str:
    named = {name.replace("__", "."): lines for name, lines in tables.items()}
    merged = {name: [*BASE.get(name, []), *named.get(name, [])] for name in {**BASE, **named}}
    return "format = 1\n" + "".join(
        f"[{name}]\n" + "".join(f"{line}\n" for line in lines) for name, lines in merged.items()
    )


def problems(weight: Weight, **tables: list[str]):
    return [problem for problem in check_text(profile(**tables), "site.toml") if problem.weight is weight]


def test_the_base_is_sound():
    assert check_text(profile(), "site.toml") == []


@pytest.mark.parametrize(
    ("tables", "key", "said"),
    (
        ({"scheduler": ['poll_floor = "9s"']}, "scheduler.poll_floor", "at least 10s"),
        ({"scheduler": ['executor = "pbs"']}, "scheduler.executor", "psij"),
        ({"scheduler": ['options = ["--partition=x"]']}, "scheduler.options[0]", "itself"),
        ({"scheduler": ['options = ["-p"]']}, "scheduler.options[0]", "--name=value"),
        ({"scheduler": ['options = ["--a=1", "x y"]']}, "scheduler.options[1]", "--name=value"),
        ({"scheduler": ['allow_options = ["--licenses=a"]']}, "scheduler.allow_options[0]", "only the name"),
        ({"scheduler": ['allow_options = ["--wrap"]']}, "scheduler.allow_options[0]", "itself"),
        ({"defaults": ['partition = "gpq"']}, "defaults.partition", "There are: gpu"),
        ({"defaults": ['partition = "gpu"', 'time = "2d"']}, "defaults.time", "1d00h"),
        ({"partitions__gpu": ["max_nodes = 5"]}, "partitions.gpu.max_nodes", "more than its 4 nodes"),
        ({"partitions__gpu": ["max_nodes = 2", "min_nodes = 3"]}, "partitions.gpu.min_nodes", "max_nodes = 2"),
        ({"partitions__gpu": ['gpu_type = "h100"']}, "partitions.gpu.gpu_type", "gpus_per_node"),
        ({"storage": ['logs = "logs"']}, "storage.logs", "Begin with /"),
        ({"storage": ['logs = "/scratch/../etc"']}, "storage.logs", "not a whole path"),
        ({"storage": ['logs = "/"']}, "storage.logs", "not a whole path"),
        ({"storage": ['logs = "/tmp/me"']}, "storage.logs", "not shared"),
        ({"storage": ['keep_light = ["/scratch"]']}, "storage.spool", "for configuration only"),
        ({"storage": ['logs = "$HOME/x"', 'keep_light = ["~"]']}, "storage.logs", "for configuration only"),
        ({"storage": ['keep_light = ["home"]']}, "storage.keep_light.0", "not a whole path"),
        ({"login": ["stop_processes = 40"]}, "login", "no hosts"),
        ({"login": ['hosts = ["l*"]', "warn_ssh = 4", "stop_ssh = 3"]}, "login.warn_ssh", "stop_ssh = 3"),
        ({"login": ['hosts = ["l*"]', "stop_processes = 4", "cap_processes = 3"]}, "login.stop_processes", "cap"),
        ({"login": ['hosts = ["l*"]', 'warn_memory = "2G"', 'stop_memory = "1G"']}, "login.warn_memory", "stop_memory"),
        ({"balance": ["floor = 5"]}, "balance", "need a provider"),
        ({"balance": ['provider = "command"', "floor = 1"]}, "balance.provider", "balance.command"),
        ({"balance": ['provider = "file"', "floor = 1"]}, "balance.provider", "balance.path"),
        ({"balance": ['provider = "sshare"']}, "balance", "without balance.floor"),
        ({"balance": ['provider = "sshare"', "floor = 1", "burn_stop = 2"]}, "balance.burn_stop", "more than floor"),
        ({"balance": ['provider = "sshare"', "floor = 1", 'pattern = "("']}, "balance.pattern", "no regular"),
        ({"balance": ['provider = "sshare"', "floor = 1", 'pattern = "a"']}, "balance.pattern", "0 groups"),
        ({"names": ['pattern = "["']}, "names.pattern", "no regular"),
        ({"notify": ['webhook = "example.org"']}, "notify.webhook", "no"),
    ),
)
def test_a_contradiction_is_an_error_at_its_key(tables, key, said):
    found = problems(Weight.ERROR, **tables)
    assert [problem.key for problem in found] == [key]
    assert said in f"{found[0].message} {found[0].hint}"
    assert found[0].line is not None


@pytest.mark.parametrize(
    ("tables", "key", "said"),
    (
        ({"partitions__gpu": [], "defaults": ['time = "20:00"']}, "defaults.time", "20:00:00 for hours"),
        ({"partitions__cpu": ['max_time = "1d"']}, "defaults", "each command must name one"),
        ({"scheduler": ['signal_before = "10s"']}, "scheduler.signal_before", "90s or more"),
        ({"balance": ['provider = "sshare"', "floor = 1"]}, "partitions.gpu", "no su_rate"),
        ({"notify": ['webhook = "http://example.org/x"']}, "notify.webhook", "https"),
        ({"partitions__cpu": [], "defaults": ['partition = "gpu"']}, "partitions.cpu", "states no max_time"),
    ),
)
def test_what_is_only_odd_is_a_warning(tables, key, said):
    assert problems(Weight.ERROR, **tables) == []
    found = {problem.key: problem for problem in problems(Weight.WARNING, **tables)}
    assert said in f"{found[key].message} {found[key].hint}"


def test_a_time_zone_must_exist():
    assert check_text('time_zone = "Etc/UTC"\n' + profile(), "f") == []
    assert [problem.key for problem in check_text('time_zone = "Nowhere/X"\n' + profile(), "f")] == ["time_zone"]


def test_a_profile_without_partitions_is_for_this_machine_only():
    assert check_text('format = 1\n[scheduler]\nkind = "local"\n', "f") == []
    found = check_text("format = 1\n", "f")
    assert "no partition is described" in found[0].message
