"""Schedulers under test, each with what it can do, where its jobs may write, and how a second one is opened on it."""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fleetcraft.schedulers.api import JobRef, JobRequest, JobView, Scheduler
from fleetcraft.transports.api import Answer, Surroundings, Transport
from fleetcraft.transports.local import LocalTransport, surround
from tests.cluster.slurm_cluster import SlurmCluster
from tests.support.waiting import wait_for

_TOKEN_LETTERS = "abcdefghijklmnopqrstuvwxyz234567"


def new_token() -> str:
    return "fc" + "".join(random.SystemRandom().choices(_TOKEN_LETTERS, k=10))


class LoginTransport:
    """The login node of the test cluster, as its ordinary user unless it says root."""

    name = "login"

    def __init__(self, cluster: SlurmCluster, *, is_root: bool = False) -> None:
        self._cluster = cluster
        self._is_root = is_root
        self._inner = LocalTransport(base=cluster.environment("root"))

    def run(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        timeout_s: float = 60.0,
        surroundings: Surroundings = Surroundings(),  # noqa: B008
        cwd: str | None = None,
    ) -> Answer:
        if self._is_root:
            return self._inner.run(argv, stdin=stdin, timeout_s=timeout_s, surroundings=surroundings, cwd=cwd)
        env = surround(self._cluster.environment(), surroundings)
        words = self._cluster.user_argv(list(argv), env=env)
        return self._inner.run(words, stdin=stdin, timeout_s=timeout_s, cwd=cwd or str(self._cluster.shared))


@dataclass
class Meddling:
    """A transport that counts commands and loses or refuses some of them, on a fixed seed or on order."""

    inner: Transport
    name: str = "meddling"
    seed: int = 0
    loss: float = 0.0  # the command ran and nobody heard the reply
    never: float = 0.0  # the command did not run, and that looks just the same
    fail: dict[str, Answer] = field(default_factory=dict)  # by program: what is said instead of running it
    counts: Counter[str] = field(default_factory=Counter)
    faults: int = 0

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)

    def run(self, argv: Sequence[str], **rest: Any) -> Answer:
        program = argv[0]
        self.counts[program] += 1
        if program in self.fail:
            return self.fail[program]
        chance = self._random.random()
        if chance < self.never:
            self.faults += 1
            return no_answer(argv)
        answer = self.inner.run(argv, **rest)
        if chance < self.never + self.loss:
            self.faults += 1
            return no_answer(argv)
        return answer


def no_answer(argv: Sequence[str], problem: str = "timed out after 60 s") -> Answer:
    return Answer(argv=tuple(argv), code=None, out="", err="", took_s=60.0, problem=problem)


def refused(text: str, code: int = 1) -> Answer:
    return Answer(argv=(), code=code, out="", err=text, took_s=0.1)


@dataclass
class Site:
    """One scheduler under test. `can` names what a scheduler may lack; a test of it is skipped there."""

    name: str
    scheduler: Scheduler
    folder: Path
    can: frozenset[str]
    again: Callable[[Transport | None], Scheduler]  # another process's scheduler on the same jobs
    transport: Transport
    unknown_id: str = "99999999"
    shortest_limit_s: float = 1.0
    account: str = "lab"
    qos: str = "normal"
    question: str = ""  # the program whose failure leaves `observe` without an answer

    def request(self, *lines: str, **wishes: Any) -> JobRequest:
        script = "\n".join(["#!/bin/bash", *lines, ""])
        token = wishes.pop("token", None) or new_token()
        wishes.setdefault("time_limit_s", 600.0)
        return JobRequest(token=token, name="conf", script=script, **wishes)

    def submit(self, *lines: str, **wishes: Any) -> JobRef:
        reply = self.scheduler.submit(self.request(*lines, **wishes))
        assert reply.ref is not None, reply
        return reply.ref

    def view(self, ref: JobRef) -> JobView | None:
        return self.scheduler.observe([ref]).jobs.get(str(ref))

    def wait(self, ref: JobRef, is_so: Callable[[JobView], bool], what: str, deadline_s: float = 60.0) -> JobView:
        seen: list[JobView | None] = [None]

        def look() -> JobView | None:
            seen[0] = self.view(ref)
            return seen[0] if seen[0] is not None and is_so(seen[0]) else None

        return wait_for(look, what, deadline_s, lambda: seen[0])

    def file(self, name: str) -> Path:
        """A file that a job writes; its name is new."""
        return self.folder / f"{name}.{os.urandom(4).hex()}"
