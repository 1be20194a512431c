"""import-linter keeps the floors, and the same contracts fail on a skeleton that breaks them."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from itertools import pairwise
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CONFIG = ROOT / "pyproject.toml"
_LINT_IMPORTS = "from importlinter.cli import lint_imports_command; lint_imports_command()"


def _lint(source: Path) -> subprocess.CompletedProcess[str]:
    # Another process, because this one has the real package imported already.
    return subprocess.run(
        [sys.executable, "-c", _LINT_IMPORTS, "--no-cache", "--no-logo", str(CONFIG)],
        env=os.environ | {"PYTHONPATH": str(source), "NO_COLOR": "1", "COLUMNS": "200"},
        cwd=source,
        capture_output=True,
        text=True,
        check=False,
    )


def _floors() -> list[list[str]]:
    contracts = tomllib.loads(CONFIG.read_text())["tool"]["importlinter"]["contracts"]
    layers = next(contract["layers"] for contract in contracts if contract["id"] == "floors")
    return [[room.strip(" ()") for room in layer.split("|")] for layer in layers]


def _skeleton(source: Path, imports: dict[str, str]) -> None:
    """Writes every room of the design as one module; `imports` says which room imports which."""
    package = source / "fleetcraft"
    package.mkdir()
    (package / "__init__.py").touch()
    for floor in _floors():
        for room in floor:
            target = imports.get(room)
            (package / f"{room}.py").write_text(f"import fleetcraft.{target}\n" if target else "")


def test_floors_hold_for_the_package():
    result = _lint(ROOT / "src")
    assert result.returncode == 0, result.stdout + result.stderr
    assert " 0 broken" in result.stdout


def test_imports_that_point_down_are_kept(tmp_path):
    floors = _floors()
    _skeleton(tmp_path, {upper[0]: lower[-1] for upper, lower in pairwise(floors)})
    result = _lint(tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize("floor", range(len(_floors()) - 1))
def test_an_import_that_points_up_is_named(tmp_path, floor):
    floors = _floors()
    importer, imported = floors[floor + 1][-1], floors[floor][0]
    _skeleton(tmp_path, {importer: imported})
    result = _lint(tmp_path)
    assert result.returncode == 1
    assert f"fleetcraft.{importer} is not allowed to import fleetcraft.{imported}" in result.stdout


@pytest.mark.parametrize("floor", [number for number, rooms in enumerate(_floors()) if len(rooms) > 1])
def test_an_import_between_rooms_of_one_floor_is_named(tmp_path, floor):
    rooms = _floors()[floor]
    _skeleton(tmp_path, {rooms[0]: rooms[-1]})
    result = _lint(tmp_path)
    assert result.returncode == 1
    assert f"fleetcraft.{rooms[0]} is not allowed to import fleetcraft.{rooms[-1]}" in result.stdout


def test_a_room_without_a_floor_is_named(tmp_path):
    _skeleton(tmp_path, {})
    (tmp_path / "fleetcraft" / "utils.py").touch()
    result = _lint(tmp_path)
    assert result.returncode == 1
    assert "fleetcraft.utils" in result.stdout
