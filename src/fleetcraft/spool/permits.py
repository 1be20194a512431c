"""Permits for named resources: `uses/<name>.<k>`, taken and given back by rename, like tokens.

A ceiling is set for the whole spool (`fleetcraft spool limit scratch_io=5`); whoever raises it creates the
missing permits. A name without a ceiling is not limited.
"""

from __future__ import annotations

import os
import random
import re

from fleetcraft.spool.requests import LIMIT, RequestLog, ask
from fleetcraft.spool.spool import Spool
from fleetcraft.spool.tokens import Moved, move
from fleetcraft.store.files import GONE

FAMILY_PREFIX = "family:"
_PERMIT = re.compile(
    r"(?P<name>[A-Za-z0-9_][A-Za-z0-9_.-]{0,63})\.(?P<number>[1-9][0-9]{0,5})(?:@(?P<life>[a-z0-9-]{1,64}))?"
)


def list_permits(spool: Spool) -> list[tuple[str, int, str]]:
    """(name, number, owner or "") of every permit seen in one listing."""
    found = []
    for name in spool.files.names(spool.layout.uses)[0]:
        match = _PERMIT.fullmatch(name)
        if match:
            found.append((match["name"], int(match["number"]), match["life"] or ""))
    return found


def set_ceiling(spool: Spool, name: str, ceiling: int) -> None:
    """Set how many permits of a name exist. Lowering takes effect as held permits come back.

    The request is committed first: its exclusive number decides who may create permits beyond the old ceiling.
    """
    log = RequestLog(spool)
    log.refresh()
    old = log.limits.get(name, 0)
    ask(spool, LIMIT, name=name, ceiling=ceiling)
    if name.startswith(FAMILY_PREFIX):
        return  # how many of a family share one GPU is counted by each worker; there is nothing to take
    for number in range(old + 1, ceiling + 1):
        try:
            spool.files.create(os.path.join(spool.layout.uses, f"{name}.{number}"))
        except FileExistsError:
            continue  # left over from a higher ceiling
    spool.files.sync_folder(spool.layout.uses)


def take_permits(
    spool: Spool, life: str, wanted: tuple[tuple[str, int], ...], limits: dict[str, int]
) -> list[str] | None:
    """Take all permits of a request, or none. Returns what to give back later; None when some are not free."""
    taken: list[str] = []
    free = list_permits(spool)
    for name, count in wanted:
        if name not in limits:
            continue
        numbers = [number for kind, number, owner in free if kind == name and not owner and number <= limits[name]]
        random.shuffle(numbers)
        missing = count
        for number in numbers:
            base = os.path.join(spool.layout.uses, f"{name}.{number}")
            if missing and move(spool.files, base, f"{base}@{life}") is Moved.YES:
                taken.append(f"{base}@{life}")
                missing -= 1
        if missing:
            return_permits(spool, taken)
            return None
    return taken


def return_permits(spool: Spool, taken: list[str]) -> None:
    """Give permits back."""
    for path in taken:
        base = path.rsplit("@", 1)[0]
        move(spool.files, path, base)


def give_back_permits(spool: Spool, life: str) -> None:
    """Give back what a dead life held; its children are gone by then. Raises OSError."""
    try:
        held = [(name, number) for name, number, owner in list_permits(spool) if owner == life]
    except OSError as error:
        if error.errno in GONE:
            return
        raise
    for name, number in held:
        base = os.path.join(spool.layout.uses, f"{name}.{number}")
        move(spool.files, f"{base}@{life}", base)
