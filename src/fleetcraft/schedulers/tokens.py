"""The token of a submission: it becomes part of names, paths and options, so nothing but plain words gets through."""

from __future__ import annotations

import re

from fleetcraft.core.errors import UsageError

_TOKEN = re.compile(r"[a-z0-9][a-z0-9-]{0,39}")


def is_token(text: str) -> bool:
    """True for what may be a token."""
    return _TOKEN.fullmatch(text) is not None


def check_token(token: str) -> str:
    """The token itself, or UsageError."""
    if not is_token(token):
        raise UsageError(f"{token!r} is not a token: 1 to 40 lower-case letters, digits and dashes, no dash first.")
    return token
