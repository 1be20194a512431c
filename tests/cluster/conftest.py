"""One cluster for all tests of a test process, as new before each of them, and its logs when one fails."""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from tests.cluster.policy import ClusterPolicy
from tests.cluster.slurm_cluster import LOGS, SlurmCluster

_HERE = Path(__file__).parent
_CLUSTER = pytest.StashKey[SlurmCluster]()


# Deadlines in these tests add up to more than one test may take elsewhere, and it is them that tell what was seen last.
_TEST_S = 300


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """More time for each test here, unless the command line or the test itself says how much."""
    if config.getoption("timeout") is not None:
        return
    for item in items:
        if item.path.is_relative_to(_HERE) and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(_TEST_S))


class Keeping:
    """The cluster of this test process; a new one when a test left the old one beyond repair."""

    def __init__(self, policy: ClusterPolicy) -> None:
        self.policy = policy
        self.cluster: SlurmCluster | None = None

    def get(self) -> SlurmCluster:
        if self.cluster is None:
            self.cluster = SlurmCluster.start(self.policy)
        return self.cluster

    def restore(self) -> None:
        assert self.cluster is not None
        try:
            self.cluster.restore(deadline_s=60.0 + self.policy.slurmd_timeout_s)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        if self.cluster is not None:
            self.cluster.close()
            self.cluster = None


@pytest.fixture(scope="session")
def policy(pytestconfig: pytest.Config) -> ClusterPolicy:
    """Short timers, or those of a real site with --real-timers. Deadlines of tests follow from it."""
    short = ClusterPolicy()
    return short.with_real_timers() if pytestconfig.getoption("--real-timers") else short


@pytest.fixture(scope="session")
def _keeping(policy: ClusterPolicy) -> Iterator[Keeping]:
    keeping = Keeping(policy)
    yield keeping
    keeping.close()


@pytest.fixture
def cluster(_keeping: Keeping, request: pytest.FixtureRequest) -> Iterator[SlurmCluster]:
    """A cluster of four nodes at rest. A test may break what it likes: what it broke is mended after it."""
    cluster = _keeping.get()
    request.node.stash[_CLUSTER] = cluster
    yield cluster
    _keeping.restore()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Keep the logs of a cluster while it is still there, and say where they are."""
    report = yield
    cluster = item.stash.get(_CLUSTER, None)
    if cluster is not None and report.failed and cluster.root.is_dir():
        target = LOGS / re.sub(r"\W+", "-", item.nodeid).strip("-")
        cluster.save_logs(target)
        report.sections.append(("cluster", f"logs of all daemons: {target}\n{cluster.daemons.said('slurmctld')}"))
    return report
