"""Login-node pressure: whether this user may start anything more from here.

Gathering is in `census`. A number that the site limits and that could not be read is a refusal, never a zero.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from typing import Any

from fleetcraft.config.site import LoginRules
from fleetcraft.core.decision import Decision
from fleetcraft.core.quantities import format_bytes

GO, CAUTION, STOP = "go", "caution", "stop"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoginEvidence:
    """What this user has here now. `problem` says what could not be read; then nothing else counts."""

    host: str
    processes: int | None = None
    threads: int | None = None
    ssh: int | None = None  # connections to other hosts: the larger of client processes and open sockets
    memory_bytes: int | None = None  # resident, shared pages counted once for each process: an upper bound
    ours: int | None = None  # of the processes, those that Fleetcraft started
    problem: str = ""

    def as_json(self) -> dict[str, Any]:
        """For a decision's evidence."""
        return {key: value for key, value in asdict(self).items() if value not in (None, "")}


def matches(host: str, patterns: tuple[str, ...]) -> bool:
    """Whether a host name, with or without its domain, is one of those meant."""
    short = host.partition(".")[0]
    return any(fnmatchcase(name, pattern) for name in (host, short) for pattern in patterns)


def is_login_host(host: str, patterns: tuple[str, ...]) -> bool | None:
    """Whether the site calls this host a login node; None when it names no patterns."""
    return matches(host, patterns) if patterns else None


def decide_login(rules: LoginRules, evidence: LoginEvidence) -> Decision:
    """Refuse at a stop line, allow with a caution from a warning line on.

    Where a site names no login nodes, its numbers hold on every host.
    """
    here = evidence.host
    is_login = is_login_host(here, rules.hosts)
    facts = {**evidence.as_json(), "login": is_login, "rules": _rules(rules)}
    if rules.submit_hosts and not matches(here, rules.submit_hosts):
        where = ", ".join(rules.submit_hosts)
        return Decision.refuse(f"this site is submitted to from {where}, and this is {here}", level=STOP, **facts)
    if is_login is False:
        return Decision.allow(f"{here} is not a login node", level=GO, **facts)
    if evidence.problem:
        return Decision.refuse(f"what runs on {here} cannot be read: {evidence.problem}", level=STOP, **facts)
    over: list[str] = []
    near: list[str] = []
    for what, value, warn, stop in _lines(rules, evidence):
        if warn is None and stop is None:
            continue
        if value is None:
            return Decision.refuse(f"{what} on {here} could not be counted", level=STOP, **facts)
        if stop is not None and value >= stop:
            over.append(f"{what} {_shown(what, value)}, stop at {_shown(what, stop)}")
        elif warn is not None and value >= warn:
            near.append(f"{what} {_shown(what, value)}, warned from {_shown(what, warn)}")
    if over:
        return Decision.refuse(
            f"too much of yours runs on {here}: {'; '.join(over)}", level=STOP, over=over, near=near, **facts
        )
    if near:
        return Decision.allow(
            f"close to the site's limits on {here}: {'; '.join(near)}", level=CAUTION, near=near, **facts
        )
    counted = (
        (evidence.processes, "process", "processes"),
        (evidence.threads, "thread", "threads"),
        (evidence.ssh, "ssh connection", "ssh connections"),
    )
    counts = ", ".join(f"{number} {one if number == 1 else more}" for number, one, more in counted)
    return Decision.allow(f"{counts} on {here}", level=GO, **facts)


def _rules(rules: LoginRules) -> dict[str, Any]:
    return {key: value for key, value in asdict(rules).items() if key != "env" and value not in (None, ())}


def _shown(what: str, value: int) -> str:
    return format_bytes(value) if what == "memory" else f"{value:,}"


def _lines(rules: LoginRules, evidence: LoginEvidence) -> tuple[tuple[str, int | None, int | None, int | None], ...]:
    return (
        ("processes", evidence.processes, rules.warn_processes, rules.stop_processes),
        ("threads", evidence.threads, rules.warn_threads, rules.stop_threads),
        ("ssh connections", evidence.ssh, rules.warn_ssh, rules.stop_ssh),
        ("memory", evidence.memory_bytes, rules.warn_memory_bytes, rules.stop_memory_bytes),
    )
