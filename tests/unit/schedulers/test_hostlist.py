"""Host lists against Slurm's own expansion, where Slurm is installed."""

from __future__ import annotations

import os
import subprocess

import pytest

from fleetcraft.schedulers.hostlist import compress, expand

_LISTS = (
    "n1",
    "n[1-3]",
    "n[001-003,007]-ib[1-2]",
    "a1,b[2-3],c",
    "r[1-2]c[08-11]",
    "n[9-11],n[099-101]",
    "n,,m",
)


@pytest.mark.needs_command("scontrol")
@pytest.mark.parametrize("text", (*_LISTS, compress([f"x{number:02d}" for number in range(120)])))
def test_it_expands_as_slurm_does(tmp_path, text):
    # The command wants a configuration to read, and asks no daemon.
    conf = tmp_path / "slurm.conf"
    conf.write_text("ClusterName=none\nSlurmctldHost=localhost(127.0.0.1)\nAuthType=auth/none\nNodeName=n1\n")
    said = subprocess.run(
        ["scontrol", "show", "hostnames", text],
        env={**os.environ, "SLURM_CONF": str(conf)},
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    if said.returncode:
        pytest.fail(f"scontrol did not expand {text!r}: {said.stderr}")
    assert expand(text) == tuple(said.stdout.split())


def test_a_list_beyond_the_bound_is_refused_before_it_is_built():
    assert expand("n[1-5]", limit=4) is None
    assert expand("a[1-300]b[1-300]c[1-300]") is None
    assert expand("n[1-5]", limit=5) == ("n1", "n2", "n3", "n4", "n5")


@pytest.mark.parametrize(
    ("names", "text"),
    (
        (("n1", "n2", "n3", "x7"), "n[1-3],x7"),
        (("n08", "n09", "n10", "n12"), "n[08-10,12]"),
        (("n9", "n10"), "n[9-10]"),
        (("b", "a", "a"), "a,b"),
        ((), ""),
    ),
)
def test_names_are_put_together(names, text):
    assert compress(names) == text
