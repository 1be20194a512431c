"""What a person may add to one submission: options that the site allows, and names that it does not mind."""

from __future__ import annotations

import re
from collections.abc import Sequence

from fleetcraft.config.site import NameRules, ResolvedSite
from fleetcraft.core.decision import Decision
from fleetcraft.core.errors import Refused, UsageError

# Fleetcraft says these itself; a second word about the same thing would make what is recorded untrue.
OWNED = frozenset(
    [
        "account",
        "acctg-freq",
        "array",
        "begin",
        "chdir",
        "clusters",
        "comment",
        "constraint",
        "cpus-per-task",
        "dependency",
        "error",
        "exclude",
        "exclusive",
        "export",
        "export-file",
        "gpus",
        "gpus-per-node",
        "gpus-per-task",
        "gres",
        "hold",
        "input",
        "job-name",
        "kill-on-invalid-dep",
        "mem",
        "nodelist",
        "nodes",
        "no-requeue",
        "ntasks",
        "ntasks-per-node",
        "output",
        "parsable",
        "partition",
        "qos",
        "quiet",
        "requeue",
        "reservation",
        "signal",
        "test-only",
        "time",
        "time-min",
        "wait",
        "wrap",
    ]
)
_OPTION = re.compile(r"--([a-z][a-z0-9-]*)(=[^\x00-\x1f\x7f]*)?")


def option_name(word: str) -> str | None:
    """`licenses` of `--licenses=scratch`; None when the word is not a long option."""
    match = _OPTION.fullmatch(word)
    return match[1] if match else None


def check_options(site: ResolvedSite, options: Sequence[str]) -> tuple[str, ...]:
    """The words that a person adds to one submission. Raises UsageError or Refused."""
    for word in options:
        name = option_name(word)
        if name is None:
            raise UsageError(f"{word!r} is not an option of the form --name=value.", hint="Write each as one word.")
        if name in OWNED:
            raise UsageError(
                f"--{name} is said by Fleetcraft itself.",
                hint="Use its own option; see `fleetcraft fleet submit --help`.",
            )
        if f"--{name}" not in site.scheduler.allow_options:
            allowed = ", ".join(site.scheduler.allow_options) or "none"
            raise Refused(
                f"The profile {site.profile} does not allow --{name}; it allows: {allowed}.",
                hint=f"Add it to scheduler.allow_options in {site.source}.",
            )
    return tuple(options)


def check_name(rules: NameRules, name: str) -> Decision:
    """Whether a job may carry this name where everybody can read it."""
    for word in rules.forbidden:
        if word.casefold() in name.casefold():
            return Decision.refuse(
                f"The name {name!r} holds {word!r}, which the profile forbids.", name=name, word=word
            )
    if rules.pattern is not None and not re.fullmatch(rules.pattern, name):
        return Decision.refuse(
            f"The name {name!r} does not fit names.pattern of the profile.", name=name, pattern=rules.pattern
        )
    return Decision.allow("the name fits", name=name)
