"""Where profiles are found, and what one comes to for a request."""

from __future__ import annotations

import json

import pytest

from fleetcraft.config.loading import (
    Overrides,
    default_profile_name,
    list_profiles,
    load_profile,
    parse_profile,
    profile_folder,
    resolve,
)
from fleetcraft.config.options import check_name, check_options
from fleetcraft.config.paths import expand
from fleetcraft.config.problems import ProfileInvalid, ProfileUnknown
from fleetcraft.config.site import NameRules, Partition, from_json
from fleetcraft.core.errors import Refused, UsageError

SHIPPED = ["generic-slurm", "local", "nersc-like", "tacc-like"]
TEXT = """\
format = 1
[scheduler]
allow_options = ["--licenses"]
[defaults]
partition = "gpu"
account = "common"
qos = "normal"
time = "12h"
[partitions.gpu]
max_time = "2d"
gpus_per_node = 4
memory = "200G"
[partitions.big]
submit_as = ""
account = "special"
constraint = "big"
max_time = "1d"
[storage]
spool = "$SCRATCH/spools"
[container]
image = "/images/a.sif"
"""


@pytest.fixture
def env(tmp_path):
    return {"FLEETCRAFT_CONFIG_DIR": str(tmp_path)}


def write(env, name, text=TEXT):
    import pathlib

    folder = pathlib.Path(profile_folder(env))
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.toml"
    path.write_text(text)
    return str(path)


@pytest.mark.parametrize(
    ("env", "folder"),
    (
        ({"FLEETCRAFT_CONFIG_DIR": "/c", "XDG_CONFIG_HOME": "/x"}, "/c/clusters"),
        ({"XDG_CONFIG_HOME": "/x", "HOME": "/h"}, "/x/fleetcraft/clusters"),
        ({"XDG_CONFIG_HOME": "relative", "HOME": "/h"}, "/h/.config/fleetcraft/clusters"),
        ({"HOME": "/h"}, "/h/.config/fleetcraft/clusters"),
    ),
)
def test_the_folder_follows_the_environment(env, folder):
    assert profile_folder(env) == folder


@pytest.mark.parametrize("name", SHIPPED)
def test_every_shipped_profile_is_sound_and_resolves(name, env):
    profile = load_profile(name, env)
    assert profile.warnings == ()
    assert profile.source == f"shipped:{name}"
    assert profile.partitions
    for partition in profile.partitions:
        site = resolve(profile, partition)
        again = from_json(json.loads(json.dumps(site.as_json())))
        assert again == site
        assert again.digest == site.digest


def test_profiles_of_the_person_come_first(env):
    assert [entry.name for entry in list_profiles(env)] == SHIPPED
    path = write(env, "local")
    write(env, "Not A Name")
    entries = list_profiles(env)
    assert (entries[0].name, entries[0].path, entries[0].shipped) == ("local", path, False)
    assert [entry.name for entry in entries if entry.shadowed] == ["local"]
    assert [entry.name for entry in entries[1:]] == SHIPPED
    assert load_profile("local", env).source == path
    assert load_profile("shipped:local", env).source == "shipped:local"
    assert load_profile(path, {}).name == "local"


def test_an_unknown_profile_is_told_with_the_nearest(env):
    with pytest.raises(ProfileUnknown, match="Did you mean 'tacc-like'") as caught:
        load_profile("tac-like", env)
    assert profile_folder(env) in str(caught.value)
    with pytest.raises(ProfileUnknown, match=r"no file /no/such\.toml"):
        load_profile("/no/such.toml", env)


def test_a_broken_profile_is_never_used(env):
    path = write(env, "mine", TEXT.replace("gpus_per_node", "gpus_pernode").replace("memory", "memry"))
    with pytest.raises(
        ProfileInvalid, match=r"mine\.toml:11: there is no key .* Did you mean gpus_per_node.*\(1 more\)"
    ):
        load_profile("mine", env)
    with open(path, "wb") as target:
        target.write(b"\xff")
    with pytest.raises(ProfileInvalid, match="UTF-8"):
        load_profile("mine", env)


def test_a_profile_that_anybody_can_write_is_not_used(env):
    import os

    path = write(env, "mine")
    os.chmod(path, 0o666)
    with pytest.raises(ProfileInvalid, match="written by everybody"):
        load_profile("mine", env)
    os.chmod(path, 0o664)
    assert load_profile("mine", env).name == "mine"


def test_the_default_is_never_a_guess(env):
    with pytest.raises(ProfileUnknown, match="no profile in"):
        default_profile_name(env)
    write(env, "one")
    assert default_profile_name(env) == "one"
    write(env, "two")
    with pytest.raises(ProfileUnknown, match="one, two"):
        default_profile_name(env)
    assert default_profile_name({**env, "FLEETCRAFT_PROFILE": "two"}) == "two"


def test_a_request_takes_the_persons_word_then_the_partitions_then_the_default():
    profile = parse_profile(TEXT, name="x", source="x.toml")
    site = resolve(profile)
    assert site.partition == Partition(
        name="gpu", max_time_s=172800.0, gpus_per_node=4, memory_per_node_bytes=200 << 30
    )
    assert (site.account, site.qos, site.constraint, site.time_limit_s) == ("common", "normal", None, 43200.0)
    assert site.partition.scheduler_name == "gpu"
    big = resolve(profile, "big", Overrides(qos="high", time_limit_s=60.0))
    assert (big.account, big.qos, big.constraint, big.time_limit_s) == ("special", "high", "big", 60.0)
    assert big.partition.scheduler_name is None
    assert big.container is not None
    assert big.container.image == "/images/a.sif"
    assert site.digest != big.digest


def test_a_partition_that_is_not_there_is_told_with_those_that_are():
    profile = parse_profile(TEXT, name="x", source="x.toml")
    with pytest.raises(UsageError, match=r"no partition 'gpq'.*gpu, big"):
        resolve(profile, "gpq")
    without = parse_profile(TEXT.replace('partition = "gpu"\n', ""), name="x", source="x.toml")
    with pytest.raises(UsageError, match=r"no default partition.*gpu, big"):
        resolve(without)


def test_this_machine_is_asked_more_often_than_a_site():
    local = parse_profile('format = 1\n[scheduler]\nkind = "local"\n', name="l", source="l")
    site = resolve(local)
    assert (site.scheduler.poll_floor_s, site.scheduler.submit_gap_s) == (1.0, 0.0)
    assert site.partition == Partition(name="local", submit_as="")
    stated = parse_profile('format = 1\n[scheduler]\nkind = "local"\npoll_floor = "7s"\n', name="l", source="l")
    assert resolve(stated).scheduler.poll_floor_s == 7.0


def test_a_record_of_a_later_version_is_read():
    site = resolve(parse_profile(TEXT, name="x", source="x.toml"))
    record = site.as_json()
    record["later"] = 1
    record["scheduler"]["later"] = 1
    assert from_json(record) == site


def test_paths_are_expanded_where_they_live():
    env = {"HOME": "/home/me", "SCRATCH": "/scratch/me"}
    assert expand("~/a", env) == "/home/me/a"
    assert expand("$SCRATCH/${HOME}x", env) == "/scratch/me//home/mex"
    assert expand("/plain", {}) == "/plain"
    for text in ("$NONE/a", "relative", "~other/a", "$/a", "${SCRATCH/a"):
        with pytest.raises(UsageError):
            expand(text, env)
    with pytest.raises(UsageError, match="SCRATCH"):
        expand("$SCRATCH/spool", {"SCRATCH": ""})


def test_only_allowed_options_pass():
    site = resolve(parse_profile(TEXT, name="x", source="x.toml"))
    assert check_options(site, ["--licenses=a,b"]) == ("--licenses=a,b",)
    with pytest.raises(Refused, match=r"allow_options in x\.toml"):
        check_options(site, ["--mail-user=me"])
    with pytest.raises(UsageError, match="by Fleetcraft itself"):
        check_options(site, ["--partition=x"])
    for word in ("-p", "licenses", "--licenses a\n", "--Licenses", "--a\0=1"):
        with pytest.raises(UsageError, match="form"):
            check_options(site, [word])


def test_names_that_everybody_reads_are_linted():
    rules = NameRules(pattern="[a-z-]+", forbidden=("Secret",))
    assert check_name(rules, "fleet-a").allowed
    assert not check_name(rules, "my-secret").allowed
    assert not check_name(rules, "fleet1").allowed
    assert check_name(NameRules(), "Anything 1").allowed


def test_rates_are_known_by_the_names_that_the_scheduler_has():
    text = """
format = 1
[partitions.a]
su_rate = 2
[partitions.b]
submit_as = "a"
su_rate = 3
[partitions.c]
submit_as = ""
su_rate = 9
[partitions.d]
"""
    site = resolve(parse_profile(text, name="x", source="x"), "c")
    assert site.balance.rates == {"a": 3.0}
    assert site.partition.su_rate == 9.0
