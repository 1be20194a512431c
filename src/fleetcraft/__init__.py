"""Fleetcraft keeps shared GPU clusters honestly busy."""

__version__ = "0.1.0"

__all__ = ["Spool", "Task", "Worker", "__version__", "progress"]

# Where each public name comes from. It is imported when it is first asked for: the command line and every worker
# import this package, and neither may pay for what it does not use.
_PLACES = {
    "Spool": "fleetcraft.surfaces.python",
    "Task": "fleetcraft.actions.api",
    "Worker": "fleetcraft.actions.api",
    "progress": "fleetcraft.surfaces.progress",
}


def __getattr__(name: str) -> object:
    place = _PLACES.get(name)
    if place is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = globals()[name] = getattr(import_module(place), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
