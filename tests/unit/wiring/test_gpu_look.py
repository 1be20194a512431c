"""What a look keeps when a fleet or a job was asked for, and when it asks whether silent nodes are down."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from fleetcraft.core.clock import SystemClock
from fleetcraft.readmodel.fleet_gpus import NodeView
from fleetcraft.testing.scheduler_memory import MemoryScheduler
from fleetcraft.wiring.gpu_look import Looker, LookOptions, narrowed
from tests.support.gpu_pictures import BUSY, picture, segment, served


def node(name: str, job: str, gpus: int | None = 2) -> NodeView:
    return NodeView(
        node=name, job=job, partition="gpu", worker=None, reports=False, reason="nobody told", expected_gpus=gpus,
        gpus=(),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("options", "hosts"),
    (
        (LookOptions(fleet="blue"), ["bare", "n1", "n2"]),
        (LookOptions(fleet="red"), ["n3"]),
        (LookOptions(job="7"), ["n1"]),
        (LookOptions(job="8"), ["bare", "n2"]),
        (LookOptions(fleet="blue", job="9"), []),
        (LookOptions(), ["bare", "n1", "n2", "n3"]),
    ),
)
def test_a_host_without_samples_belongs_to_the_fleet_of_its_job(tmp_path, options, hosts):
    segment(tmp_path, "n1", BUSY, job="7", fleet="blue")
    nodes = [node("n2", "8"), node("n3", "9"), node("bare", "8", None)]
    whole = picture(tmp_path, served=[served("n1", ["GPU-n1-0"])], nodes=nodes)
    seen = narrowed(whole, options, {"7": "blue", "8": "blue", "9": "red"})
    assert [host.host for host in seen.hosts] == hosts
    assert all(len(host.gpus) == 2 for host in seen.hosts if host.host in ("n2", "n3"))


class Nodes(MemoryScheduler):
    """A scheduler that knows which nodes are down."""

    def __init__(self) -> None:
        super().__init__(SystemClock())
        self.asked: list[Sequence[str]] = []
        self.down: Mapping[str, str] | None = {"n1": "down"}

    def nodes_down(self, names: Sequence[str]) -> Mapping[str, str] | None:
        self.asked.append(list(names))
        return self.down


def test_the_scheduler_is_asked_for_nodes_only_while_some_are_silent_and_not_at_every_look():
    scheduler = Nodes()
    looker = Looker(LookOptions(), None, SystemClock(), _scheduler=scheduler)
    assert looker._ask_for_silent([]) == {}
    assert scheduler.asked == []
    assert looker._ask_for_silent(["n2", "n1.site.example"]) == {"n1": "down"}
    assert looker._ask_for_silent(["n1"]) == {"n1": "down"}
    assert scheduler.asked == [["n1", "n2"]]
    assert looker._ask_for_silent([]) == {}


def test_no_answer_is_no_node_down_and_nobody_is_asked_where_that_was_said():
    scheduler = Nodes()
    scheduler.down = None
    assert Looker(LookOptions(), None, SystemClock(), _scheduler=scheduler)._ask_for_silent(["n1"]) == {}
    assert Looker(LookOptions(ask=False), None, SystemClock(), _scheduler=scheduler)._ask_for_silent(["n1"]) == {}
    assert scheduler.asked == [["n1"]]
