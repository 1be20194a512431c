from __future__ import annotations

import importlib
import pkgutil
import re
from pathlib import Path

import fleetcraft
from fleetcraft.cli.command import EXITS
from fleetcraft.cli.main import EXIT_INTERRUPTED, EXIT_PIPE_CLOSED
from fleetcraft.cli.reference import render
from fleetcraft.core import errors
from fleetcraft.core.errors import FleetcraftError

REFERENCE = Path(__file__).parents[3] / "docs" / "reference"


def all_errors() -> set[type[FleetcraftError]]:
    for room in ("core", "store", "spool", "readmodel", "actions"):
        package = importlib.import_module(f"fleetcraft.{room}")
        for module in pkgutil.iter_modules(package.__path__):
            importlib.import_module(f"fleetcraft.{room}.{module.name}")
    found, pending = set(), [FleetcraftError]
    while pending:
        one = pending.pop()
        for child in one.__subclasses__():
            if child.__module__.startswith(fleetcraft.__name__):
                found.add(child)
                pending.append(child)
    return found


def test_the_page_of_the_command_line_is_what_the_parsers_say():
    written = (REFERENCE / "cli.md").read_text()
    assert written == render(), "write it anew: python -m fleetcraft.cli.reference > docs/reference/cli.md"


def test_the_page_of_exit_codes_has_every_code_and_no_other():
    table = (REFERENCE / "exit-codes.md").read_text().split("## Errors")[0]
    written = {int(code) for code in re.findall(r"^\| (\d+) \|", table, re.MULTILINE)}
    constants = {value for name, value in vars(errors).items() if name.startswith("EXIT_")}
    assert written == constants | {EXIT_INTERRUPTED, EXIT_PIPE_CLOSED}
    assert written >= EXITS.keys()


def test_the_page_of_exit_codes_has_every_error_with_its_exit():
    table = (REFERENCE / "exit-codes.md").read_text().split("## Errors")[1]
    written = {code: int(number) for code, number in re.findall(r"^\| `(\w+)` \| (\d+) \|", table, re.MULTILINE)}
    raised = {error.code: error.exit_code for error in all_errors() if error.code != FleetcraftError.code}
    assert written == {**raised, "internal": errors.EXIT_OURS}
