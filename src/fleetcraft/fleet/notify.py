"""Telling somebody that a fleet drained, is done, or failed: each event once, written down before it is sent.

The record comes first, so two passes at once send one message. A message that could not be sent is not sent again;
its record says why.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import urlsplit

from fleetcraft.core.states import JobState
from fleetcraft.fleet import records as kinds
from fleetcraft.fleet.handle import Fleet
from fleetcraft.fleet.records import Overtaken
from fleetcraft.fleet.state import FleetState
from fleetcraft.fleet.supply import failed_at_start

EMPTY, ACTIVE, DRAINING, DRAINED, DONE, FAILED = "empty", "active", "draining", "drained", "done", "failed"
_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Where a fleet as a whole stands."""

    word: str
    text: str
    key: str = ""  # names the event once: the word and what brought it about


def standing(state: FleetState, fleet: Fleet, *, unfinished: int | None = None) -> Standing:
    """The fleet's state in a word. `unfinished` is the backlog, None when nobody read it: then nothing is done."""
    live = state.live()
    if live:
        word = DRAINING if state.drained else ACTIVE
        return Standing(word=word, text="1 job waits or runs" if len(live) == 1 else f"{len(live)} jobs wait or run")
    stood = [job for job in state.jobs.values() if job.ref is not None and job.serves_work and not job.withdrawn]
    if state.drained:
        why = f" ({state.drain_reason})" if state.drain_reason else ""
        return Standing(word=DRAINED, text=f"drained: no job is left{why}", key=f"{DRAINED}:{state.drain_number}")
    if not stood:
        return Standing(word=EMPTY, text="no job was submitted yet")
    last = stood[-1]
    tries = stood[-fleet.policy.failures :]
    if len(tries) >= fleet.policy.failures and all(failed_at_start(job, fleet.policy) for job in tries):
        text = f"its last {len(tries)} jobs failed at their start ({last.cause or last.raw_state})"
        return Standing(word=FAILED, text=text, key=f"{FAILED}:{last.token}")
    if unfinished == 0 and last.state in (JobState.DONE, JobState.CANCELLED, JobState.TIMEOUT):
        return Standing(word=DONE, text="no job is left, and no task waits", key=f"{DONE}:{last.token}")
    if unfinished and last.state in (JobState.FAILED, JobState.OUT_OF_MEMORY):
        left = f"{unfinished} task{' is' if unfinished == 1 else 's are'} left"
        text = f"its last job failed ({last.cause or last.raw_state}) and {left}"
        return Standing(word=FAILED, text=text, key=f"{FAILED}:{last.token}")
    return Standing(word=ACTIVE if unfinished else EMPTY, text="no job is waiting or running")


class Runner(Protocol):
    """The part of a transport that is needed here."""

    def run(self, argv: Any, *, stdin: bytes = b"", timeout_s: float = 60.0) -> Any:
        """See `Transport.run`."""
        ...


Post = Callable[[str, bytes, float], str]  # url, body, timeout; returns what went wrong, or nothing


def notify(
    fleet: Fleet, state: FleetState, now: Standing, runner: Runner | None, post: Post | None = None
) -> list[str]:
    """Send the event of this standing, if it is one and was not sent yet. Returns in words what was sent or failed."""
    spec = state.spec()
    if not now.key or spec is None or now.key in state.notified:
        return []
    rules = spec.site.notify
    if now.word not in rules.on or not (rules.command or rules.webhook):
        return []
    event = {
        "fleet": fleet.name, "spool": fleet.spool.layout.root, "what": now.word, "text": now.text,
        "at_utc": round(fleet.now(), 3), "jobs": len(state.jobs),
        "gpu_hours": round(state.gpu_seconds(fleet.now()) / 3600, 3),
    }  # fmt: skip
    try:
        fleet.log.decide(kinds.NOTIFIED, key=now.key, what=now.word, text=now.text)
    except Overtaken:
        return []  # the pass that was faster sees the same standing
    said = _send(rules.command, rules.webhook, event, runner, post or post_json)
    failed = [text for ok, text in said if not ok]
    if failed:
        fleet.log.state_fact(kinds.NOTE, what="notify_failed", key=now.key, reason="; ".join(failed))
    return [text for _, text in said]


def _send(
    command: tuple[str, ...], webhook: str | None, event: Mapping[str, Any], runner: Runner | None, post: Post
) -> list[tuple[bool, str]]:
    body = json.dumps(event).encode() + b"\n"
    said: list[tuple[bool, str]] = []
    if command:
        if runner is None:
            said.append((False, "the notify command was not run: there is nothing to run it with"))
        else:
            answer = runner.run(list(command), stdin=body, timeout_s=_TIMEOUT_S)
            fine = answer.code == 0
            why = "" if fine else f" failed: {answer.problem or answer.err.strip()[-200:] or answer.code}"
            said.append((fine, f"{command[0]}{why}"))
    if webhook:
        problem = post(webhook, body, _TIMEOUT_S)
        said.append((not problem, f"{urlsplit(webhook).netloc}{': ' + problem if problem else ''}"))
    return said


def post_json(url: str, body: bytes, timeout_s: float) -> str:
    """POST the event; returns what went wrong, or nothing. Never raises, and goes nowhere but to that address."""
    from urllib.error import HTTPError
    from urllib.request import HTTPRedirectHandler, Request, build_opener

    class Stay(HTTPRedirectHandler):
        """What is told may name hosts and jobs, so an answer cannot send it to another address."""

        def redirect_request(self, *_arguments: Any, **_keywords: Any) -> None:
            return None

    if urlsplit(url).scheme not in ("http", "https"):
        return "only http and https are posted to"
    request = Request(url, data=body, headers={"Content-Type": "application/json"}, method="POST")  # noqa: S310  see above
    try:
        with build_opener(Stay).open(request, timeout=timeout_s) as reply:
            return "" if 200 <= reply.status < 300 else f"answered {reply.status}"
    except HTTPError as error:
        error.close()
        return f"answered {error.code}"
    except (OSError, ValueError) as error:
        return str(error) or type(error).__name__
