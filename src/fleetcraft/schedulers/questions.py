"""The commands that the Slurm adapter runs: one for the queue, one for every 200 jobs that left it, few for the site.

What the site is changes rarely, so its answers are kept; what a column is called is asked only when one was refused.
A controller that gave no answer is not asked again for some seconds: the next question would wait as long for nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from fleetcraft.core.clock import Clock
from fleetcraft.schedulers import slurm_commands as commands
from fleetcraft.schedulers import slurm_site as site_text
from fleetcraft.schedulers.api import AccountLimits, JobRef, Limits, PartitionLimits
from fleetcraft.schedulers.slurm_accounting import (
    ACCOUNT_FIND_FIELDS,
    AccountAnswer,
    read_sacct,
)
from fleetcraft.schedulers.slurm_args import Site
from fleetcraft.schedulers.slurm_limits import read_associations, read_qos
from fleetcraft.schedulers.slurm_rows import QUEUE_LOOK, QueueAnswer, read_squeue
from fleetcraft.transports.api import Answer, Surroundings, Transport

T = TypeVar("T")

# Slurm's default, where the site sets none.
_CREDENTIAL = re.compile(r"cred_expire=(\d{1,9})")
_CREDENTIAL_S = 120.0
_ZONE = re.compile(r"([+-])(\d\d)(\d\d)")
# How long the answers about the site are kept.
_SITE_S = 300.0
# What the site is has small answers. Whoever waits for them may be a person.
_PROBE_S = 20.0
# So long the questions after one without an answer get its problem at once.
SILENCE_S = 8.0  # less than the pause between two polls
_OF_CONTROLLER = ("squeue", "scontrol", "sbatch")
_UNREACHED = re.compile(
    r"Unable to contact slurm controller|controller \(\w+ failure\)|Connection refused|No route to host"
    r"|Host is unreachable|Could not establish a configuration source|failed to fetch config|DNS SRV lookup failed"
    r"|timed out on send/recv|Unable to resolve|Unable to process configuration file|cannot stat file",
    re.IGNORECASE,
)
# Far enough back for every submission whose reply can still matter.
_FIND_WINDOW_S = 14 * 86_400.0


class Questions:
    """Commands of one site over one transport."""

    def __init__(
        self, transport: Transport, site: Site, timeout_s: float, clock: Clock, silence_s: float = SILENCE_S
    ) -> None:
        self._transport = transport
        self._site = site
        self._timeout_s = timeout_s
        self._clock = clock
        self._silence_s = silence_s
        self._kept: dict[str, tuple[float, Any]] = {}
        # With the names: an id alone does not tell whose job a row speaks of.
        self._fields: tuple[str, ...] = ACCOUNT_FIND_FIELDS
        self._has_accounting: bool | None = None
        self._silence: tuple[float, str] | None = None  # since when, by the clock that only grows, and the problem

    def ask(self, argv: Sequence[str], *, stdin: bytes = b"", surroundings: Surroundings | None = None) -> Answer:
        """A question that changes nothing over there. After one without an answer the next ones get none at once."""
        return self._ask(argv, self._timeout_s, stdin=stdin, surroundings=surroundings)

    def _probe(self, argv: Sequence[str]) -> Answer:
        return self._ask(argv, min(self._timeout_s, _PROBE_S))

    def _ask(
        self,
        argv: Sequence[str],
        timeout_s: float,
        *,
        stdin: bytes = b"",
        surroundings: Surroundings | None = None,
    ) -> Answer:
        is_controller = argv[0] in _OF_CONTROLLER
        problem = self.silence() if is_controller else ""
        if problem:
            return Answer(argv=tuple(argv), code=None, out="", err="", took_s=0.0, problem=problem)
        said = self.run(argv, stdin=stdin, surroundings=surroundings, timeout_s=timeout_s)
        if is_controller:
            self._note(said)
        return said

    def _note(self, said: Answer) -> None:
        if said.code is None:
            self._silence = (self._clock.mono(), f"{said.argv[0]}: {said.problem}")
        elif said.code != 0 and (_UNREACHED.search(said.err) or said.took_s >= SILENCE_S):
            self._silence = (self._clock.mono(), " ".join(said.err.split())[:300])
        else:
            self._silence = None

    def silence(self) -> str:
        """What was wrong with a question of a moment ago that got no answer; else empty."""
        if self._silence is None or self._clock.mono() - self._silence[0] >= self._silence_s:
            return ""
        return self._silence[1]

    def run(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        surroundings: Surroundings | None = None,
        cwd: str | None = None,
        timeout_s: float | None = None,
    ) -> Answer:
        """Run one command in an environment that cannot reshape its answer, whatever became of the last question."""
        return self._transport.run(
            argv,
            stdin=stdin,
            timeout_s=self._timeout_s if timeout_s is None else timeout_s,
            surroundings=commands.query_surroundings() if surroundings is None else surroundings,
            cwd=cwd,
        )

    # Jobs

    def queue(self, fields: tuple[str, ...] = QUEUE_LOOK) -> QueueAnswer:
        """Every job of this user that the controller knows, in one question."""
        answer = self._ask_queue(fields)
        if answer.query == "unsupported_option" and self._site.me_option and (user := self.user()) is not None:
            # Before 20.02 there was no --me.
            self._site = replace(self._site, me_option=False, user=user)
            answer = self._ask_queue(fields)
        return answer

    def _ask_queue(self, fields: tuple[str, ...]) -> QueueAnswer:
        said = self.ask(commands.squeue_argv(fields, site=self._site))
        return read_squeue(said.out, said.err, said.code, fields=fields, problem=said.problem)

    def accounting(
        self, refs: Sequence[JobRef], submitted_utc: Mapping[str, float]
    ) -> tuple[dict[str, AccountAnswer], tuple[str, ...], int]:
        """The answer that speaks for each base id, the problems, and how many questions it took."""
        answers: dict[str, AccountAnswer] = {}
        problems: list[str] = []
        chunks = commands.chunks(commands.base_ids(refs))
        for ids in chunks:
            answer = self._account(ids, submitted_utc)
            if answer.query == "failed":
                problems.append(answer.text or "sacct gave no answer")
            elif answer.query == "disabled":
                self._has_accounting = False
            else:
                self._has_accounting = True
            problems += answer.problems
            answers |= dict.fromkeys(ids, answer)
        return answers, tuple(problems), len(chunks)

    def _account(self, ids: Sequence[str], submitted_utc: Mapping[str, float]) -> AccountAnswer:
        answer = self._ask_account(ids, submitted_utc)
        if answer.hint == "drop_field" and (known := self._account_fields()) != self._fields:
            self._fields = known
            answer = self._ask_account(ids, submitted_utc)
        return answer

    def _ask_account(self, ids: Sequence[str], submitted_utc: Mapping[str, float]) -> AccountAnswer:
        said = self.run(commands.sacct_argv(ids, fields=self._fields, site=self._site))
        return read_sacct(
            said.out, said.err, said.code, fields=self._fields, submitted_utc=submitted_utc, problem=said.problem
        )

    def _account_fields(self) -> tuple[str, ...]:
        said = self.run(commands.helpformat_argv())
        known = set(said.out.lower().split()) if said.code == 0 else set()
        return tuple(name for name in ACCOUNT_FIND_FIELDS if name.lower() in known) or self._fields

    def accounting_of_user(self) -> AccountAnswer:
        """The jobs of this user since two weeks ago, with their names."""
        user = self.user()
        if user is None:
            return AccountAnswer(query="failed", retry=True, text="`id -un` did not tell who we are")
        said = self.run(commands.sacct_find_argv(user=user, window_s=_FIND_WINDOW_S, site=self._site))
        return read_sacct(said.out, said.err, said.code, fields=ACCOUNT_FIND_FIELDS, problem=said.problem)

    # The site

    def _keep(self, what: str, ask: Callable[[], T | None]) -> T | None:
        """Ask at most every five minutes; what was not answered is not kept."""
        now_s = self._clock.mono()
        if what not in self._kept or now_s - self._kept[what][0] > _SITE_S:
            answer = ask()
            if answer is None:
                return None
            self._kept[what] = (now_s, answer)
        kept: T = self._kept[what][1]
        return kept

    def user(self) -> str | None:
        """Who we are over there."""

        def ask() -> str | None:
            said = self.run(["id", "-un"])
            return said.out.strip() or None if said.code == 0 else None

        return self._site.user or self._keep("user", ask)

    def utc_offset_s(self) -> float | None:
        """The zone of that host now: an estimate of a start is printed in it."""

        def ask() -> float | None:
            said = self.run(["date", "+%z"])
            match = _ZONE.fullmatch(said.out.strip())
            if said.code != 0 or match is None:
                return None
            seconds = int(match[2]) * 3600.0 + int(match[3]) * 60.0
            return -seconds if match[1] == "-" else seconds

        return self._keep("zone", ask)

    def version(self) -> tuple[int, ...] | None:
        """What the client programs call themselves."""

        def ask() -> tuple[int, ...] | None:
            said = self.run(commands.version_argv(), timeout_s=min(self._timeout_s, _PROBE_S))
            return site_text.read_version(said.out) if said.code == 0 else None

        return self._keep("version", ask)

    def config(self) -> dict[str, str] | None:
        """The controller's configuration."""

        def ask() -> dict[str, str] | None:
            said = self._probe(commands.show_config_argv())
            return (site_text.read_config(said.out) or None) if said.code == 0 else None

        return self._keep("config", ask)

    def requeue_delay_s(self) -> float | None:
        """How long a requeued job waits at least: until its credential of before has expired."""
        config = self.config()
        if config is None:
            return None
        match = _CREDENTIAL.search(config.get("AuthInfo", ""))
        return float(match[1]) if match else _CREDENTIAL_S

    def limits(self) -> Limits:
        """What the site allows, from four questions at most every five minutes."""
        config = self.config()
        partitions = self._partitions() if config is not None else None
        nodes = self._nodes() if partitions is not None else None
        if config is None or partitions is None or nodes is None:
            # One question without an answer is enough: the others would wait as long for as little.
            what = "configuration" if config is None else "partitions" if partitions is None else "nodes"
            return Limits(at_utc=self._clock.utc(), answered=False, problems=(self._not_told(what),))
        accounts, accounts_problem = self._accounts()
        return Limits(
            at_utc=self._clock.utc(),
            partitions=tuple(site_text.with_nodes(partition, nodes) for partition in partitions),
            accounts=accounts,
            max_array_size=site_text.config_number(config.get("MaxArraySize", "")),
            max_array_tasks=site_text.scheduler_parameter(config, "max_array_tasks"),
            min_job_age_s=site_text.config_seconds(config.get("MinJobAge", "")),
            kill_wait_s=site_text.config_seconds(config.get("KillWait", "")),
            requeue_delay_s=self.requeue_delay_s(),
            has_accounting=self.has_accounting(),
            problems=(accounts_problem,) if accounts_problem else (),
        )

    def _not_told(self, what: str) -> str:
        problem = self.silence()
        if problem:
            return f"the scheduler gave no answer ({problem})"
        return f"the scheduler did not tell its {what}"

    def _partitions(self) -> tuple[PartitionLimits, ...] | None:
        def ask() -> tuple[PartitionLimits, ...] | None:
            said = self._probe(commands.show_partition_argv())
            return site_text.read_partitions(said.out)[0] if said.code == 0 else None

        return self._keep("partitions", ask)

    def _nodes(self) -> tuple[site_text.NodeRow, ...] | None:
        def ask() -> tuple[site_text.NodeRow, ...] | None:
            said = self._probe(commands.show_node_argv())
            return site_text.read_nodes(said.out)[0] if said.code == 0 else None

        # Which nodes are idle changes by the minute, so this one is never kept.
        return ask()

    def nodes_down(self, names: Sequence[str]) -> dict[str, str] | None:
        """Which of these nodes are down or do not answer the controller, in its words; None: no answer."""
        said = self._probe(commands.show_node_argv(names))
        rows = site_text.read_nodes(said.out)[0]
        if said.code != 0 and not rows:
            return None  # with rows it only did not know one of the names
        return {row.name: row.down for row in rows if row.down}

    def _accounts(self) -> tuple[tuple[AccountLimits, ...], str]:
        """What associations and QOS leave to this user, and why that is not known."""
        if self.has_accounting() is False:
            return (), ""
        user = self.user()
        if user is None:
            return (), "who the user is was not told"

        def ask() -> tuple[AccountLimits, ...] | None:
            own, levels = self._probe(commands.associations_argv(user)), self._probe(commands.qos_argv())
            if own.code != 0 or levels.code != 0:
                return None
            return (*read_associations(own.out)[0], *read_qos(levels.out)[0])

        found = self._keep("accounts", ask)
        return (found, "") if found is not None else ((), "the accounts were not told")

    def has_accounting(self) -> bool | None:
        """Whether the site keeps accounts; None when it did not say."""
        config = self.config()
        if config is None or "AccountingStorageType" not in config:
            return self._has_accounting
        return not config["AccountingStorageType"].endswith(("/none", "(null)"))

    def describe(self) -> dict[str, Any]:
        """What was found out about the site so far."""
        config = self.config() or {}
        version = self.version()
        names = ("ClusterName", "MinJobAge", "MaxArraySize", "KillWait", "PreemptMode", "SelectType", "AuthInfo")
        return {
            "version": ".".join(map(str, version)) if version else None,
            "has_accounting": self.has_accounting(),
            "accounting_columns": list(self._fields),
            "user": self.user(),
            "cluster": self._site.cluster,
            "config": {name: config.get(name) for name in names},
        }
