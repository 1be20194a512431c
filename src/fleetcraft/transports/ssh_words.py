"""What ssh says on its standard error when it does not get to a host, as one word and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass

# What ssh itself ends with; any other code is that of the command over there.
SSH_FAILED = 255
_BETTER = "read the files that samplers write, or look with srun --overlap"


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why a host is out of reach; `reason` is for programs."""

    reason: str
    advice: str


_KNOWN = (
    (
        "REMOTE HOST IDENTIFICATION HAS CHANGED",
        "host_key_changed",
        f"nodes are installed anew: {_BETTER}; remove this one key if you must, and never switch the check off",
    ),
    ("Host key verification failed", "host_key_unknown", f"{_BETTER}, or accept this host's key once by hand"),
    ("Permission denied", "no_permission", f"this host lets nobody in without a job there: {_BETTER}"),
    ("Could not resolve hostname", "unknown_host", "the name is not known here; it may be known on a login node"),
    ("Connection timed out", "timeout", f"the host does not answer: {_BETTER}"),
    ("Connection refused", "refused", f"no ssh server runs there: {_BETTER}"),
    ("No route to host", "no_route", f"this machine cannot reach it: {_BETTER}"),
)


def refusal_of(stderr: str, code: int | None) -> Refusal | None:
    """Why ssh failed; None where the command over there was run."""
    if code is not None and code != SSH_FAILED:
        return None
    for words, reason, advice in _KNOWN:
        if words.lower() in stderr.lower():
            return Refusal(reason=reason, advice=advice)
    return Refusal(reason="ssh_failed" if code is not None else "timeout", advice=f"ssh did not get there: {_BETTER}")
