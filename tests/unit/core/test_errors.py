"""Every error that a person can meet is a sentence with an exit code of the one table."""

from __future__ import annotations

import inspect

import pytest

from fleetcraft.core import errors


def _classes():
    return [
        value
        for _, value in inspect.getmembers(errors, inspect.isclass)
        if issubclass(value, errors.FleetcraftError) and value.__module__ == errors.__name__
    ]


_TABLE = {
    errors.EXIT_DONE: 0, errors.EXIT_FAILED: 1, errors.EXIT_USAGE: 2, errors.EXIT_GOING: 3,
    errors.EXIT_REFUSED: 4, errors.EXIT_OURS: 70, errors.EXIT_TRY_AGAIN: 75,
}  # fmt: skip


def test_exit_codes_are_those_of_the_table():
    assert all(code == meant for code, meant in _TABLE.items())
    assert {kind.exit_code for kind in _classes()} <= set(_TABLE)


@pytest.mark.parametrize("kind", _classes(), ids=lambda kind: kind.__name__)
def test_an_error_reads_as_message_and_next_command(kind):
    error = kind("The spool is full.", hint="Free space.")
    assert str(error) == "The spool is full. Free space."
    assert (error.message, error.hint) == ("The spool is full.", "Free space.")
    assert str(kind("Only this.")) == "Only this."
    assert kind.__doc__
    assert kind.code


def test_codes_tell_the_kinds_apart():
    codes = [kind.code for kind in _classes()]
    assert len(set(codes)) == len(codes)


@pytest.mark.parametrize(
    ("kind", "exit_code"),
    (
        (errors.TaskInvalid, 2), (errors.NameTaken, 2), (errors.SpoolError, 2), (errors.SpoolDamaged, 1),
        (errors.Refused, 4), (errors.OutOfReach, 75), (errors.StorageFull, 75),
    ),
)  # fmt: skip
def test_each_kind_has_its_exit_code(kind, exit_code):
    assert kind("x").exit_code == exit_code
