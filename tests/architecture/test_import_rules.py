"""The import rules hold for the package, and each of them is seen to fail on a breach."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.architecture import import_rules as rules

SOURCE = Path(__file__).parents[2] / "src"


@pytest.mark.parametrize("rule", rules.RULES, ids=lambda rule: rule.__name__)
def test_rule_holds_for_the_package(rule):
    assert list(rule(SOURCE)) == []


@pytest.mark.parametrize(
    ("rule", "module", "code"),
    (
        ("node_side_is_standard_library", "spool/claim.py", "import numpy"),
        ("node_side_is_standard_library", "workers/loop.py", "def f():\n    from rich.text import Text"),
        ("node_side_is_standard_library", "telemetry/nvml.py", "import pynvml"),
        ("vendor_library_has_one_place", "workers/slots.py", "def f():\n    import pynvml"),
        ("node_side_is_standard_library", "schedulers/slurm.py", "import pydantic"),
        ("node_side_is_standard_library", "transports/local.py", "import psutil"),
        ("node_side_is_standard_library", "schedulers/psij.py", "import psij"),
        ("psij_has_one_place", "schedulers/open.py", "def f():\n    import psij"),
        ("psij_has_one_place", "fleet/submit.py", "from fleetcraft.schedulers.psij import PsijScheduler"),
        ("processes_start_in_few_places", "workers/loop.py", "import subprocess"),
        ("processes_start_in_few_places", "workers/childish.py", "from subprocess import run"),
        ("processes_start_in_few_places", "spool/reap.py", "import os\nos.posix_spawn('/bin/true', [], {})"),
        ("processes_start_in_few_places", "cli/main.py", "from os import system"),
        ("core_is_words", "core/states.py", "import os"),
        ("core_is_words", "core/states.py", "from time import monotonic"),
        ("surfaces_use_two_doors", "surfaces/http/app.py", "from fleetcraft import spool"),
        ("surfaces_use_two_doors", "surfaces/tui.py", "from fleetcraft.workers.loop import run"),
        ("async_stays_at_the_edge", "workers/loop.py", "import asyncio"),
        ("fakes_stay_out_of_the_product", "spool/claim.py", "from fleetcraft.testing import clock"),
        ("imports_are_absolute", "spool/claim.py", "from . import record"),
    ),
)
def test_rule_fails_on_a_breach(tmp_path, rule, module, code):
    path = tmp_path / "fleetcraft" / module
    path.parent.mkdir(parents=True)
    path.write_text(code)
    assert len(list(getattr(rules, rule)(tmp_path))) == 1


@pytest.mark.parametrize(
    ("rule", "module", "code"),
    (
        ("node_side_is_standard_library", "telemetry/nvml.py", "def f():\n    import pynvml"),
        ("node_side_is_standard_library", "cli/render.py", "import rich"),
        ("node_side_is_standard_library", "schedulers/psij.py", "def f():\n    import psij"),
        ("node_side_is_standard_library", "transports/openssh.py", "import rich"),
        ("psij_has_one_place", "schedulers/psij.py", "def f():\n    from psij import Job"),
        (
            "psij_has_one_place",
            "schedulers/open.py",
            "def f():\n    from fleetcraft.schedulers.psij import PsijScheduler",
        ),
        ("processes_start_in_few_places", "workers/child.py", "import subprocess"),
        ("processes_start_in_few_places", "transports/local.py", "from subprocess import run"),
        ("core_is_words", "core/clock.py", "import time"),
        ("surfaces_use_two_doors", "surfaces/http/app.py", "from fleetcraft.readmodel import views"),
        ("async_stays_at_the_edge", "surfaces/http/app.py", "import asyncio"),
    ),
)
def test_rule_allows_what_the_design_allows(tmp_path, rule, module, code):
    path = tmp_path / "fleetcraft" / module
    path.parent.mkdir(parents=True)
    path.write_text(code)
    assert list(getattr(rules, rule)(tmp_path)) == []
