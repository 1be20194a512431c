"""The door to site profiles for verbs: opened late, because what is behind it needs a package and time to import."""

from __future__ import annotations

from types import ModuleType

from fleetcraft.core.errors import UsageError


def profiles() -> ModuleType:
    """The part of the read model that knows profiles. Raises UsageError where it cannot be, as in the bundle."""
    try:
        from fleetcraft.readmodel import profiles as room
    except ModuleNotFoundError as error:
        raise UsageError(
            f"Site profiles cannot be read here: there is no module {error.name}.",
            hint="The bundle has only the worker side; install the whole program: `pip install fleetcraft`.",
        ) from error
    return room
