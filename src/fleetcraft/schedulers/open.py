"""Opens the scheduler that a site profile names, with its polling shared by all processes of the user."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fleetcraft.core.clock import Clock
from fleetcraft.core.errors import UsageError
from fleetcraft.schedulers.api import (
    Change,
    JobRef,
    JobRequest,
    JobView,
    Limits,
    Observation,
    Scheduler,
    StartEstimate,
    Submission,
)
from fleetcraft.schedulers.local import LocalScheduler
from fleetcraft.schedulers.polling import EVERYTHING, FLOOR_S, SharedPoll, poll_folder, site_key
from fleetcraft.schedulers.slurm import SlurmScheduler
from fleetcraft.schedulers.slurm_args import Site
from fleetcraft.schedulers.slurm_verdict import ExitRecord, Policy
from fleetcraft.transports.api import Transport
from fleetcraft.transports.local import LocalTransport

KINDS = ("slurm", "local", "psij")


class PolledScheduler:
    """A scheduler whose observations are shared: inside the floor, everybody gets the last one and its age.

    Only `observe` is: a look-up by token decides about a submission, and an old answer would be a wrong one.
    """

    def __init__(self, inner: Scheduler, poll: SharedPoll, whole: SharedPoll | None = None) -> None:
        self._inner = inner
        self.poll = poll
        self._whole = whole

    @property
    def kind(self) -> str:
        """See `Scheduler.kind`."""
        return self._inner.kind

    def observe(self, refs: Sequence[JobRef]) -> Observation:
        """See `Scheduler.observe`."""
        return self.poll.observe(refs, self._inner.observe)

    def remember(
        self,
        views: Iterable[JobView] = (),
        exit_records: Mapping[str, ExitRecord] | None = None,
        may_requeue: Mapping[str, bool] | None = None,
    ) -> None:
        """Hand on what is known already to an adapter that can use it."""
        if isinstance(self._inner, SlurmScheduler):
            self._inner.remember(views, exit_records, may_requeue)

    def submit(self, request: JobRequest) -> Submission:
        """See `Scheduler.submit`."""
        return self._inner.submit(request)

    def submit_argv(self, request: JobRequest) -> list[str] | None:
        """The words of a submission; None where the adapter has none to show."""
        return self._inner.submit_argv(request) if isinstance(self._inner, SlurmScheduler) else None

    def find(self, token: str) -> Observation:
        """See `Scheduler.find`."""
        return self._inner.find(token)

    def mine(self) -> Observation:
        """See `Scheduler.mine`."""
        return self._inner.mine()

    def mine_shared(self) -> Observation:
        """The same for whoever only looks: inside the floor, the last answer of any process and its age."""
        if self._whole is None:
            return self._inner.mine()
        return self._whole.observe(EVERYTHING, lambda _refs: self._inner.mine())

    def cancel(self, refs: Sequence[JobRef], *, signal: str | None = None, only_waiting: bool = False) -> list[Change]:
        """See `Scheduler.cancel`."""
        return self._inner.cancel(refs, signal=signal, only_waiting=only_waiting)

    def hold(self, refs: Sequence[JobRef]) -> list[Change]:
        """See `Scheduler.hold`."""
        return self._inner.hold(refs)

    def release(self, refs: Sequence[JobRef]) -> list[Change]:
        """See `Scheduler.release`."""
        return self._inner.release(refs)

    def test_only(self, request: JobRequest) -> StartEstimate:
        """See `Scheduler.test_only`."""
        return self._inner.test_only(request)

    def limits(self) -> Limits:
        """See `Scheduler.limits`."""
        return self._inner.limits()

    def nodes_down(self, names: Sequence[str]) -> Mapping[str, str] | None:
        """Which of these nodes are down, where the adapter can tell; None: nobody told."""
        return self._inner.nodes_down(names) if isinstance(self._inner, SlurmScheduler) else None

    def version(self) -> tuple[int, ...] | None:
        """See `Scheduler.version`."""
        return self._inner.version()

    def command(self, words: Sequence[str], job: JobRef | None = None) -> list[str]:
        """See `Scheduler.command`."""
        return self._inner.command(words, job)

    def describe(self) -> Mapping[str, Any]:
        """See `Scheduler.describe`."""
        return {**self._inner.describe(), "next_question_in_s": self.poll.next_allowed_s()}


def open_scheduler(
    kind: str,
    *,
    executor: str | None = None,
    site: Site | None = None,
    timeout_s: float = 60.0,
    poll_floor_s: float = FLOOR_S,
    share_polls: bool = True,
    folder: str | None = None,
    slots: int = 4,
    policy: Policy | None = None,
    transport: Transport | None = None,
    clock: Clock | None = None,
    environ: Mapping[str, str] | None = None,
) -> Scheduler:
    """The scheduler of that kind. `folder` keeps the jobs of `local` and the records of `psij`.

    `executor` names the back end of `psij`; its library is loaded only then.
    """
    env = os.environ if environ is None else environ
    if kind == "local":
        return LocalScheduler(folder or _state_folder(env, "local-jobs"), slots=slots, transport=transport, clock=clock)
    inner: Scheduler
    if kind == "slurm":
        inner = SlurmScheduler(
            transport or LocalTransport(), site=site, timeout_s=timeout_s, policy=policy, clock=clock
        )
    elif kind == "psij":
        if not executor:
            raise UsageError("The scheduler psij needs the name of a back end.", hint="executor = pbs, lsf, flux ...")
        from fleetcraft.schedulers.psij import PsijScheduler

        inner = PsijScheduler(
            executor,
            folder or _state_folder(env, "psij-jobs"),
            transport=transport,
            timeout_s=timeout_s,
            clock=clock,
        )
    else:
        raise UsageError(f"There is no scheduler {kind!r}.", hint=f"One of: {', '.join(KINDS)}.")
    if not share_polls:
        return inner
    # The host belongs to the question too: the same user may watch several sites from one machine.
    where = transport.name if transport is not None else "local"
    keys = (
        site_key(f"{kind}@{where}", cluster=site.cluster if site else None, config=env.get("SLURM_CONF"))
        for kind in (inner.kind, f"{inner.kind}/all")
    )
    return PolledScheduler(
        inner, *(SharedPoll(poll_folder(env), key, floor_s=poll_floor_s, clock=clock) for key in keys)
    )


def _state_folder(env: Mapping[str, str], name: str) -> str:
    base = env.get("XDG_STATE_HOME") or os.path.join(os.path.expanduser("~"), ".local", "state")
    return os.path.join(base, "fleetcraft", name)
