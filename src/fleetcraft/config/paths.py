"""Paths of a profile keep their `~` and `$NAME` until they are on the machine where they mean something."""

from __future__ import annotations

import re
from collections.abc import Mapping

from fleetcraft.core.errors import UsageError

_NAME = re.compile(r"\$(?:\{([A-Za-z_][A-Za-z0-9_]*)\}|([A-Za-z_][A-Za-z0-9_]*))")


def expand(text: str, env: Mapping[str, str]) -> str:
    """The absolute path on the machine whose environment this is. Raises UsageError.

    An unset name is an error and never an empty text: `$SCRATCH/spool` must not become `/spool`.
    """
    if text == "~" or text.startswith("~/"):
        text = "$HOME" + text[1:]

    def replace(match: re.Match[str]) -> str:
        name = match[1] or match[2]
        value = env.get(name, "")
        if not value:
            raise UsageError(
                f"{text} needs ${name}, which is not set on this machine.", hint="Set it, or write the path out."
            )
        return value

    path = _NAME.sub(replace, text)
    if not path.startswith("/") or "$" in path:
        raise UsageError(f"{text} is not an absolute path on this machine (it reads {path!r}).")
    return path


def looks_absolute(text: str) -> bool:
    """True when the text can become an absolute path: it begins with `/`, `~/` or a variable."""
    return text == "~" or text.startswith(("/", "~/")) or _NAME.match(text) is not None


def lies_under(text: str, root: str) -> bool:
    """True when one written path lies in another, as far as the texts alone tell (`~` and `$HOME` are one)."""
    inner, outer = _plain(text), _plain(root)
    return inner == outer or inner.startswith(outer + "/")


def _plain(text: str) -> str:
    text = _NAME.sub(lambda match: f"${match[1] or match[2]}", text)
    if text == "~" or text.startswith("~/"):
        text = "$HOME" + text[1:]
    return re.sub(r"/+", "/", text).rstrip("/")
