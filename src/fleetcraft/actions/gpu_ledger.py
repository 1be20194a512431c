"""Before a ledger is read: the schedulers are asked how the jobs stand, so that those that ended count to their end."""

from __future__ import annotations

from collections.abc import Sequence

from fleetcraft.actions.fleet_open import open_existing, site_of
from fleetcraft.actions.fleet_together import by_site, look_together
from fleetcraft.config.site import ResolvedSite
from fleetcraft.core.errors import FleetcraftError, UsageError
from fleetcraft.fleet.handle import Fleet
from fleetcraft.fleet.records import list_fleets
from fleetcraft.spool.spool import Spool


def ask_fleets(spool_root: str, only: str | None = None) -> list[str]:
    """Ask the scheduler of each fleet once and write down what changed; returns whom nobody could ask, and why.

    Raises UsageError for an unknown fleet, OutOfReach.
    """
    spool = Spool.open(spool_root, create=False)
    names = list_fleets(spool.files, spool.layout.root)
    if only is not None and only not in names:
        raise UsageError(f"There is no fleet {only!r} in {spool.layout.root}.", hint="See `fleetcraft fleet list`.")
    problems: list[str] = []
    found: list[tuple[ResolvedSite, Fleet]] = []
    for name in names if only is None else [only]:
        try:
            site, fleet = site_of(spool, name), open_existing(spool, name)
        except (FleetcraftError, OSError) as error:
            problems.append(_not_asked(name, str(error)))
            continue
        found.append((site, fleet))
    for fleets in by_site(found):
        problems += _ask_together(fleets)
    return problems


def _not_asked(name: str, why: str) -> str:
    return f"fleet {name}: its scheduler could not be asked ({why}); jobs stand as on record"


def _ask_together(fleets: Sequence[Fleet]) -> list[str]:
    problems: list[str] = []
    for name, seen in look_together(fleets).items():
        if isinstance(seen, Exception):
            problems.append(_not_asked(name, str(seen)))
        elif not seen.answered:
            problems.append(_not_asked(name, "; ".join(seen.problems) or "no answer"))
    return problems
