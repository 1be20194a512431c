"""Read an account's balance from what a site's tool printed. Pure: text in, a number or the reason why not out.

A tool that prints several accounts and an account that was not named is no answer: a balance is never guessed.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

_NUMBER = r"[-+]?[0-9][0-9,]*(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?"
_PLAIN = re.compile(rf"\s*({_NUMBER})\s*")
# `Remaining Balance:   991896.00 SU ( 99.19%)`, `Unused: 12.5 kSU`
_LABELLED = re.compile(
    rf"^\s*[\w ]*\b(?:balance|remaining|available|unused|left)\b[\w ]*[:=]\s*({_NUMBER})\s*([kKM]?)(?:SU|hours?|h)?\b",
    re.IGNORECASE | re.MULTILINE,
)
_ACCOUNT_LINE = re.compile(r"^\s*(?:account|project|allocation)\s*[:=]?\s+([\w.-]+)\s*:?\s*$", re.IGNORECASE)
_LEFT_HEADS = ("avail", "available", "balance", "remaining", "unused", "left")
_NAME_HEADS = ("account", "name", "project", "allocation")
_THOUSANDS = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6}


class Unreadable(ValueError):
    """The text holds no balance; the message says what was looked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """One balance. `includes_running`: what running jobs reserve is taken off already."""

    total: float
    includes_running: bool = False


def _number(text: str) -> float:
    value = float(text.replace(",", ""))
    if not math.isfinite(value):
        raise Unreadable(f"{text!r} is no balance")
    return value


def read_plain(text: str, account: str | None = None, key: str | None = None) -> Found:
    """A number alone, or a JSON object that holds it under `key` (else `balance`)."""
    bare = _PLAIN.fullmatch(text)
    if bare:
        return Found(total=_number(bare[1]))
    try:
        body = json.loads(text)
    except ValueError:
        raise Unreadable(f"neither a number nor JSON: {_shown(text)}") from None
    if account is not None and isinstance(body, Mapping) and isinstance(body.get(account), Mapping):
        body = body[account]
    value = body.get(key or "balance") if isinstance(body, Mapping) else None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise Unreadable(f"no number under {key or 'balance'!r}: {_shown(text)}")
    return Found(total=float(value))


def read_pattern(text: str, pattern: str) -> Found:
    """The first group of the profile's own regular expression, which must match exactly one number."""
    found = {match[1] for match in re.finditer(pattern, text, re.MULTILINE)}
    if len(found) != 1:
        raise Unreadable(f"the pattern {pattern!r} found {len(found)} different values in {_shown(text)}")
    value = _PLAIN.fullmatch(found.pop())
    if value is None:
        raise Unreadable(f"the pattern {pattern!r} found no number in {_shown(text)}")
    return Found(total=_number(value[1]))


def read_sbalance(text: str, account: str | None = None) -> Found:
    """Lines `label: number unit`, in one block for each account when there are several."""
    blocks: dict[str, list[str]] = {"": []}
    current = ""
    for line in text.splitlines():
        named = _ACCOUNT_LINE.match(line)
        if named:
            current = named[1]
        blocks.setdefault(current, []).append(line)
    found: dict[str, float] = {}
    for name, lines in blocks.items():
        for value, factor in _LABELLED.findall("\n".join(lines)):
            if name in found and found[name] != _number(value) * _THOUSANDS[factor]:
                raise Unreadable(f"several balances for {name or 'one account'}: {_shown(text)}")
            found[name] = _number(value) * _THOUSANDS[factor]
    if set(found) == {""}:
        return Found(total=found[""])  # a tool that knows only the accounts of this user prints no name
    return Found(total=_of_account(found, account, text))


def read_table(text: str, account: str | None = None) -> Found:
    """A boxed table with a name and an available column, perhaps several accounts side by side."""
    found: dict[str, float] = {}
    heads: list[list[str]] = []
    for line in text.splitlines():
        cells = [cell.split() for cell in line.strip().strip("|").split("|")]
        if any(_is_head(cell) for cell in cells):
            heads = [[word.lower() for word in cell] for cell in cells]
            continue
        for place, cell in enumerate(cells):
            if len(cell) < 2 or place >= len(heads) or not heads[place]:
                continue
            value = _PLAIN.fullmatch(cell[_column(heads[place])]) if len(cell) > _column(heads[place]) else None
            if value is not None:
                found[cell[0]] = _number(value[1])
    if not heads:
        raise Unreadable(f"no line names an account and what is available: {_shown(text)}")
    return Found(total=_of_account(found, account, text))


def _is_head(words: list[str]) -> bool:
    lower = [word.lower() for word in words]
    return bool(lower) and lower[0] in _NAME_HEADS and any(word in _LEFT_HEADS for word in lower)


def _column(head: list[str]) -> int:
    """Which word of a row it is. A heading may take two words (`Avail SUs`) for one column."""
    for place, word in enumerate(head):
        if word in _LEFT_HEADS:
            return place
    return 1


def read_sshare(text: str, account: str | None, tres: str = "billing") -> Found:
    """`sshare -P -o Account,User,GrpTRESMins,GrpTRESRaw,TRESRunMins`: limit less used less promised, in hours."""
    lines = [line.split("|") for line in text.splitlines() if "|" in line]
    heads = [head.strip() for head in lines[0]] if lines else []
    wanted = ("Account", "User", "GrpTRESMins", "GrpTRESRaw", "TRESRunMins")
    missing = [name for name in wanted if name not in heads]
    if missing:
        raise Unreadable(f"sshare printed no column {missing[0]}: {_shown(text)}")
    found: dict[str, float] = {}
    for cells in lines[1:]:
        if len(cells) < len(heads):
            raise Unreadable(f"a row of sshare is cut: {_shown('|'.join(cells))}")
        row = {name: cells[heads.index(name)].strip() for name in wanted}
        limit = _tres(row["GrpTRESMins"]).get(tres)
        if row["User"] or limit is None:
            continue  # the limit stands on the account; its users' rows have none, or one of their own
        used = _tres(row["GrpTRESRaw"]).get(tres)
        promised = _tres(row["TRESRunMins"]).get(tres)
        if used is None or promised is None:
            raise Unreadable(f"sshare tells a limit of {tres} for {row['Account']}, and not what is used of it")
        found[row["Account"]] = (limit - used - promised) / 60
    if not found:
        raise Unreadable(f"no account has a limit of {tres} minutes")
    return Found(total=_of_account(found, account, text), includes_running=True)


def _tres(text: str) -> dict[str, float]:
    pairs = (item.partition("=") for item in text.split(",") if "=" in item)
    return {name: float(value) for name, _, value in pairs if _PLAIN.fullmatch(value)}


def _of_account(found: Mapping[str, float], account: str | None, text: str) -> float:
    if account is not None:
        if account not in found:
            known = ", ".join(sorted(name for name in found if name)) or "none"
            raise Unreadable(f"account {account} is not among those shown ({known})")
        return found[account]
    if len(found) != 1:
        names = ", ".join(sorted(found)) or "none"
        raise Unreadable(f"accounts shown: {names}; name one, since a balance is never guessed: {_shown(text)}")
    return next(iter(found.values()))


def _shown(text: str) -> str:
    flat = " ".join(text.split())
    return repr(flat if len(flat) <= 80 else flat[:77] + "...")
