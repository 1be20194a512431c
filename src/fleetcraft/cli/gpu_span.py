"""Which time a question about GPUs is asked for."""

from __future__ import annotations

import argparse
import time


def span_of(arguments: argparse.Namespace, now_ms: int) -> tuple[int | None, int | None]:
    """`--since` and `--until` in UTC milliseconds, None where not given. Raises UsageError for what is no time."""
    from fleetcraft.actions.gpu_summary import moment_ms

    since_ms, until_ms = (
        None if text is None else moment_ms(text, now_ms, arguments.zone, option)
        for text, option in ((arguments.since, "--since"), (arguments.until, "--until"))
    )
    return since_ms, until_ms


def utc(at_ms: int) -> str:
    """A moment for people."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(at_ms / 1000))
