"""Burn stop: with almost nothing left on the account, fleets that exist are let go, too.

Only a balance that was read lets a fleet go. One that cannot be read stops new work (see `balance`), and no more.
"""

from __future__ import annotations

from dataclasses import asdict

from fleetcraft.core.decision import Decision
from fleetcraft.fleet.guards.balance import Balance, Charges


def decide_burn(charges: Charges, balance: Balance) -> Decision:
    """Whether a running fleet may go on."""
    facts = {"burn_stop": charges.burn_stop, "balance": asdict(balance)}
    if charges.burn_stop is None:
        return Decision.allow("the profile names no burn stop", **facts)
    if balance.total is None:
        return Decision.allow(f"the balance cannot be read, which ends nothing: {balance.problem}", **facts)
    unit = charges.unit
    if balance.unit == unit and balance.total <= charges.burn_stop:
        return Decision.refuse(
            f"{balance.total:,.1f} {unit} are left, and fleets are let go at {charges.burn_stop:,.1f}", **facts
        )
    return Decision.allow(f"{balance.total:,.1f} {balance.unit} are left", **facts)
