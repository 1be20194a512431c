"""Commands that run on a login node find the variables there that the profile wants for them (`login.env`).

A submission is left alone: its environment is closed, and would be the job's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from fleetcraft.config.site import ResolvedSite
from fleetcraft.fleet.guards.login import is_login_host
from fleetcraft.spool.host import host_name
from fleetcraft.transports.api import Answer, Surroundings, Transport
from fleetcraft.transports.local import LocalTransport


class LoginTransport:
    """Another transport, with these variables for everything that it starts in an open environment."""

    def __init__(self, inner: Transport, env: Mapping[str, str]) -> None:
        self._inner = inner
        self._env = dict(env)

    @property
    def name(self) -> str:
        """See `Transport.name`."""
        return self._inner.name

    def run(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        timeout_s: float = 60.0,
        surroundings: Surroundings = Surroundings(),  # noqa: B008  an immutable value, and the seam's own signature
        cwd: str | None = None,
    ) -> Answer:
        """See `Transport.run`."""
        if "" not in surroundings.drop_prefixes:
            surroundings = replace(surroundings, add={**self._env, **surroundings.add})
        return self._inner.run(argv, stdin=stdin, timeout_s=timeout_s, surroundings=surroundings, cwd=cwd)


def transport_for(site: ResolvedSite, host: str | None = None) -> Transport:
    """How commands are run on this machine, by the rules of a site."""
    plain = LocalTransport()
    if not site.login.env or not is_login_host(host or host_name(), site.login.hosts):
        return plain
    return LoginTransport(plain, site.login.env)
