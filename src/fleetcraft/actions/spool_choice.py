"""Where the spool of a site lies: the one that the profile names, and the places where the site wants none."""

from __future__ import annotations

import os
from collections.abc import Mapping

from fleetcraft.config.paths import expand
from fleetcraft.config.site import ResolvedSite
from fleetcraft.core.errors import Refused, UsageError

# Under `storage.spool`, which is for all spools of the site.
NAME = "main"


def spool_of_profile(profile: str | None, env: Mapping[str, str] = os.environ) -> str | None:
    """The spool of this profile, or of the default one. None when there is no profile, or it names no folder.

    Raises UsageError.
    """
    # These bring pydantic.
    from fleetcraft.config.loading import default_profile_name, load_profile, resolve
    from fleetcraft.config.problems import ProfileUnknown

    try:
        name = profile or default_profile_name(env)
    except ProfileUnknown:
        return None
    folder = resolve(load_profile(name, env)).storage.spool
    return None if folder is None else os.path.join(expand(folder, env), NAME)


def check_spool_place(site: ResolvedSite, root: str, env: Mapping[str, str] = os.environ) -> None:
    """Refuse a spool where the site wants only configuration. Raises Refused, UsageError."""
    here = os.path.realpath(root)
    for kept in site.storage.keep_light:
        try:
            light = os.path.realpath(expand(kept, env))
        except UsageError:
            continue  # what has no place on this machine holds no spool here
        if os.path.commonpath((here, light)) != light or _is_meant(site, here, env):
            continue
        folder = site.storage.spool
        raise Refused(
            f"The spool {root} lies under {kept}, which {site.profile} keeps for configuration (storage.keep_light).",
            hint=f"Put it under {folder}: `--spool {folder}/{NAME}`." if folder else "Put it on the large file system.",
        )


def _is_meant(site: ResolvedSite, here: str, env: Mapping[str, str]) -> bool:
    """True where the profile itself wants spools: a large file system may be mounted inside a small one."""
    if site.storage.spool is None:
        return False
    try:
        folder = os.path.realpath(expand(site.storage.spool, env))
    except UsageError:
        return False
    return os.path.commonpath((here, folder)) == folder
