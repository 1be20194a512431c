"""Ask a site what an account still holds: by a command, from a file, or with the tools that sites have.

A provider never raises and never guesses: a failure is a `Balance` without a total, and the guard refuses.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fleetcraft.core.clock import Clock
from fleetcraft.core.errors import UsageError
from fleetcraft.fleet.guards.balance import Balance
from fleetcraft.fleet.guards.balance_text import (
    Found,
    Unreadable,
    read_pattern,
    read_plain,
    read_sbalance,
    read_sshare,
    read_table,
)
from fleetcraft.transports.api import Surroundings, Transport

_LARGEST_BYTES = 1 << 20
SSHARE = ("sshare", "-P", "-o", "Account,User,GrpTRESMins,GrpTRESRaw,TRESRunMins")
_CLEAN = Surroundings(drop_prefixes=("SLURM_", "SSHARE_", "SACCT_"))


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderSpec:
    """Which tool tells the balance, as the profile says it."""

    kind: str  # one of KINDS
    command: tuple[str, ...] = ()
    path: str = ""
    pattern: str = ""  # for text of any tool: a regular expression whose first group is the number
    key: str = ""  # for JSON: the key of the number
    account: str | None = None
    unit: str = "SU"
    tres: str = "billing"  # for sshare: which resource the limit counts
    max_age_s: float | None = None  # for a file: an older one is no answer
    timeout_s: float = 30.0


def ask(spec: ProviderSpec, transport: Transport, clock: Clock) -> Balance:
    """One answer of the provider."""
    try:
        text, at_utc = _text(spec, transport, clock)
        found = _readers()[spec.kind](spec, text)
    except (Unreadable, OSError) as error:
        return Balance(
            total=None, unit=spec.unit, account=spec.account, at_utc=clock.utc(), source=spec.kind, problem=str(error)
        )
    return Balance(
        total=found.total,
        unit=spec.unit,
        account=spec.account,
        at_utc=at_utc,
        source=spec.kind,
        includes_running=found.includes_running,
    )


def _text(spec: ProviderSpec, transport: Transport, clock: Clock) -> tuple[str, float]:
    if spec.kind not in KINDS:
        raise UsageError(f"There is no balance provider {spec.kind!r}.", hint=f"It is one of: {', '.join(KINDS)}.")
    if spec.kind == "file":
        return _from_file(spec, clock)
    argv = spec.command or (_sshare(spec) if spec.kind == "sshare" else ())
    if not argv:
        raise Unreadable("the profile names no command for it")
    answer = transport.run(argv, timeout_s=spec.timeout_s, surroundings=_CLEAN)
    if not answer.answered:
        raise Unreadable(f"`{argv[0]}` gave no answer: {answer.problem}")
    if answer.code:
        raise Unreadable(f"`{argv[0]}` ended with {answer.code}: {' '.join(answer.err.split())[:200]}")
    return answer.out, clock.utc()


def _sshare(spec: ProviderSpec) -> tuple[str, ...]:
    return (*SSHARE, "-A", spec.account) if spec.account else SSHARE


def _from_file(spec: ProviderSpec, clock: Clock) -> tuple[str, float]:
    with open(spec.path, encoding="utf-8", errors="replace") as source:
        written_utc = os.fstat(source.fileno()).st_mtime
        text = source.read(_LARGEST_BYTES)
    age_s = clock.utc() - written_utc
    if spec.max_age_s is not None and age_s > spec.max_age_s:
        raise Unreadable(f"{spec.path} is {age_s:.0f} s old; {spec.max_age_s:.0f} s are allowed")
    return text, written_utc


def _readers() -> dict[str, Callable[[ProviderSpec, str], Found]]:
    return {
        "command": _any_text,
        "file": _any_text,
        "sbalance": lambda spec, text: read_sbalance(text, spec.account),
        "tacc": lambda spec, text: read_table(text, spec.account),
        "sshare": lambda spec, text: read_sshare(text, spec.account, spec.tres),
    }


def _any_text(spec: ProviderSpec, text: str) -> Found:
    if spec.pattern:
        return read_pattern(text, spec.pattern)
    return read_plain(text, spec.account, spec.key or None)


KINDS: Sequence[str] = ("command", "file", "sbalance", "sshare", "tacc")
