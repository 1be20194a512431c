"""The schedulers that the suite runs over: this machine, a real Slurm, and both again by way of PSI/J."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fleetcraft.core.clock import SystemClock
from fleetcraft.schedulers.local import LocalScheduler
from fleetcraft.schedulers.psij import PsijScheduler
from fleetcraft.schedulers.slurm import SlurmScheduler
from fleetcraft.schedulers.slurm_verdict import Policy
from fleetcraft.testing.scheduler_memory import MemoryScheduler
from fleetcraft.transports.local import LocalTransport
from tests.cluster import conf
from tests.cluster.policy import ClusterPolicy
from tests.cluster.slurm_cluster import SlurmCluster
from tests.conformance.schedulers.sites import LoginTransport, Site
from tests.support.waiting import wait_for

_ALL = frozenset(
    {
        "begin",
        "hold",
        "signal",
        "time_limit",
        "early_signal",
        "runs",
        "lookup",
        "nodes",
        "depends",
        "attach",
        "mine",
        "account",
    }
)
_CAN = {
    "local": _ALL,
    # The shipped fake keeps books and runs nothing.
    "memory": frozenset({"lookup", "begin", "books"}),
    "slurm": _ALL | {"command", "sacct", "lost_reply"},
    # It works inside this process and keeps no time; only its own process can end its jobs.
    "psij-local": frozenset({"lookup", "runs"}),
    "psij-slurm": frozenset({"command", "runs", "time_limit", "nodes", "attach", "mine", "lookup"}),
}
# Short, so that an absence is judged within a test; the real ones are the defaults.
POLICY = Policy(grace_s=8.0, min_polls=3, requeue_s=20.0, requeue_delay_s=5.0, requeue_margin_s=5.0)


@pytest.fixture(scope="session")
def slurm_cluster() -> Iterator[SlurmCluster]:
    with SlurmCluster.start(ClusterPolicy()) as cluster:
        yield cluster


def local_site(tmp_path) -> Iterator[Site]:
    root = str(tmp_path / "jobs")

    def again(transport):
        return LocalScheduler(root, kill_wait_s=1.0, transport=transport)

    site = Site(
        name="local",
        scheduler=again(None),
        folder=tmp_path,
        can=_CAN["local"],
        again=again,
        transport=LocalTransport(),
        unknown_id="nosuchjob",
    )
    yield site
    live = [view.ref for view in site.scheduler.mine().jobs.values() if not view.state.ended]
    site.scheduler.cancel(live)
    wait_for(
        lambda: all(view.state.ended for view in site.scheduler.mine().jobs.values()), "the machine is left as it was"
    )


def memory_site(tmp_path) -> Iterator[Site]:
    scheduler = MemoryScheduler(SystemClock())
    yield Site(
        name="memory",
        scheduler=scheduler,
        folder=tmp_path,
        can=_CAN["memory"],
        again=lambda _transport: scheduler,
        transport=LocalTransport(),
    )


def slurm_site(cluster: SlurmCluster, tmp_path) -> Iterator[Site]:
    transport = LoginTransport(cluster)

    def again(other):
        # Answers fail here for one question only, and the next one is another story.
        return SlurmScheduler(
            other or transport, policy=POLICY, settle_s=0.0, silence_s=0.0, pause=lambda _seconds: None
        )

    yield Site(
        name="slurm",
        scheduler=again(None),
        folder=cluster.folder(tmp_path.name),
        can=_CAN["slurm"],
        again=again,
        transport=transport,
        shortest_limit_s=60.0,
        account=conf.ACCOUNT,
        question="squeue",
    )
    cluster.cancel_all()


def psij_local_site(tmp_path) -> Iterator[Site]:
    records = str(tmp_path / "records")

    def again(transport):
        return PsijScheduler("local", records, transport=transport)

    site = Site(
        name="psij-local",
        scheduler=again(None),
        folder=tmp_path,
        can=_CAN["psij-local"],
        again=again,
        transport=LocalTransport(),
    )
    yield site
    live = [view.ref for view in site.scheduler.mine().jobs.values() if not view.state.ended]
    site.scheduler.cancel(live)


def psij_slurm_site(cluster: SlurmCluster, tmp_path) -> Iterator[Site]:
    transport = LoginTransport(cluster, is_root=True)
    folder = cluster.folder(tmp_path.name)
    records = cluster.folder(f"{tmp_path.name}-records")

    def again(other):
        return PsijScheduler("slurm", str(records), transport=other or transport)

    yield Site(
        name="psij-slurm",
        scheduler=again(None),
        folder=folder,
        can=_CAN["psij-slurm"],
        again=again,
        transport=transport,
        shortest_limit_s=60.0,
        question="squeue",
    )
    cluster.cancel_all()


def _marks(name: str, needed: set[str]) -> list[pytest.MarkDecorator]:
    marks = [pytest.mark.needs_slurm] if "slurm" in name else []
    # A minute and a half of waiting, for the one word that PSI/J has for every bad end.
    return [*marks, pytest.mark.soak] if name == "psij-slurm" and "time_limit" in needed else marks


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Each test over all schedulers that can do what it needs."""
    if "site" not in metafunc.fixturenames:
        return
    needed = {mark.args[0] for mark in metafunc.definition.iter_markers("needs")}
    names = [name for name, can in _CAN.items() if needed <= can]
    params = [pytest.param(name, marks=_marks(name, needed)) for name in names]
    metafunc.parametrize("site", params, indirect=True)


@pytest.fixture
def site(request, tmp_path) -> Iterator[Site]:
    if request.param in ("slurm", "psij-slurm"):
        cluster = request.getfixturevalue("slurm_cluster")
        made = (slurm_site if request.param == "slurm" else psij_slurm_site)(cluster, tmp_path)
    else:
        made = {"local": local_site, "psij-local": psij_local_site, "memory": memory_site}[request.param](tmp_path)
    yield next(made)
    next(made, None)
