"""The part of a job's script before the worker: modules, lines and variables of the site, and what must be there.

Pure. What the setup changes in the environment is written down, since tasks get it from the worker.
"""

from __future__ import annotations

from collections.abc import Mapping

from fleetcraft.core.errors import UsageError
from fleetcraft.fleet.quoting import comment, quote
from fleetcraft.fleet.spec import FleetSpec

SETUP_VARIABLE, SETUP_FILE = "FLEETCRAFT_SETUP", "env"


def setup_lines(spec: FleetSpec) -> str:
    """What the script does before anything of ours is started. Raises UsageError."""
    site = spec.site.setup
    exports = _exports({**site.env, **spec.env})
    loads = [
        f"module load {quote(module)} || fail {quote(f'module load {comment(module)} failed')}"
        for module in site.modules
    ]
    loads += [_site_line(line) for line in site.lines]
    loads += [f"unset {name}" for name in site.unset]
    lines = ["# The site's own lines; modules are often written without regard to unset variables.", "set +u"]
    if not loads and not exports:
        changes = []
    elif spec.site.container is None:
        changes = [_keep_environment("before"), *loads, *exports, _keep_environment("after")]
    else:
        # What modules of the host set means nothing in an image; what a person wrote down does.
        changes = [*loads, _keep_environment("before"), *exports, _keep_environment("after")]
    lines += changes
    if changes:
        lines.append(f'export {SETUP_VARIABLE}="$job_dir/{SETUP_FILE}"')
    lines.append("set -u")
    place = '"$job_dir"' if spec.cwd is None else quote(spec.cwd)
    lines.append(f"cd -- {place} || fail 'the working directory cannot be entered'")
    return "\n".join(lines)


def _keep_environment(name: str) -> str:
    """Tasks get what the setup changed: the worker compares the two. Secrets may be in it, so only we may read it."""
    return f'(umask 077; env -0 >"$job_dir/{SETUP_FILE}.{name}") || fail "the environment cannot be written down"'


def runtime_check(spec: FleetSpec) -> str:
    """Say by name what is missing: without it all that stays of the job is a code of 127 or 255."""
    container = spec.site.container
    if container is None:
        return ""
    runtime = comment(container.runtime)
    said = quote(f"{runtime} is not on this node (load it with setup.modules or --module)")
    lines = [f"command -v -- {quote(container.runtime)} >/dev/null 2>&1 || fail {said}"]
    if container.image.startswith("/"):
        said = quote(f"the image {comment(container.image)} is not on this node")
        lines.append(f"[ -e {quote(container.image)} ] || fail {said}")
    return "\n".join(lines) + "\n"


def _exports(env: Mapping[str, str]) -> list[str]:
    return [f"export {name}={quote(value)}" for name, value in sorted(env.items())]


def _site_line(line: str) -> str:
    """A shell line of the profile: it is code, so it is taken as it is, but it stays one line."""
    if any(not character.isprintable() and character != "\t" for character in line):
        raise UsageError(f"The setup line {line!r} holds a line end or a control character.")
    return line
