"""The snapshot joins the queue, the records and the heartbeats, and never takes silence for nothing."""

from __future__ import annotations

from typing import Any

from fleetcraft.core.states import JobState
from fleetcraft.fleet import records as kinds
from fleetcraft.fleet.records import Record
from fleetcraft.fleet.state import fold
from fleetcraft.readmodel.fleet_snapshot import take_snapshot
from fleetcraft.schedulers.api import AccountLimits, JobRef, JobRequest, JobView, Limits, Observation, PartitionLimits
from fleetcraft.spool.life import Life
from fleetcraft.spool.reading import SpoolFold
from tests.unit.readmodel.building import make_spool

NOW = 10_000.0
LIMITS = Limits(
    at_utc=NOW,
    partitions=(PartitionLimits(name="gpu", is_default=True, gpus_per_node=4, nodes=9, idle_nodes=2),),
    accounts=(AccountLimits(where="QOS normal", max_submit=5, max_nodes=6),),
)


def job(number: int, state: JobState = JobState.RUNNING, **changes: Any) -> JobView:
    values: dict[str, Any] = {"raw_state": state.value.upper(), "partition": "gpu", "node_count": 2, "gpus": 8}
    return JobView(ref=JobRef(id=str(number)), state=state, **(values | changes))


def seen(*jobs: JobView, answered: bool = True) -> Observation:
    return Observation(at_utc=NOW, jobs={str(one.ref): one for one in jobs}, answered=answered)


def snapshot(tmp_path, mine, *, limits=LIMITS, states=None, **more):
    reader = SpoolFold(make_spool(tmp_path))
    reader.refresh()
    return take_snapshot(mine, limits, states or {}, reader, NOW, **more)


def test_nodes_and_gpus_are_counted_by_partition_assigned_and_pending(tmp_path):
    view = snapshot(
        tmp_path,
        seen(
            job(1),
            job(2, JobState.ENDING),
            job(3, JobState.PENDING, reason_text="waits its turn"),
            job(4, JobState.DONE),
            job(5, partition="cpu", gpus=0),
        ),
    )
    uses = {use.partition: use for use in view.partitions}
    assert (uses["gpu"].assigned.jobs, uses["gpu"].assigned.nodes, uses["gpu"].assigned.gpus) == (2, 4, 16)
    assert (uses["gpu"].pending.jobs, uses["gpu"].pending.nodes, uses["gpu"].pending.gpus) == (1, 2, 8)
    assert uses["cpu"].assigned.gpus == 0


def test_waiting_jobs_are_grouped_by_their_reason_largest_first(tmp_path):
    view = snapshot(
        tmp_path,
        seen(
            job(1, JobState.PENDING, reason_text="waits its turn"),
            job(2, JobState.PENDING, reason_text="waits its turn"),
            job(3, JobState.BLOCKED, reason="PartitionTimeLimit", node_count=1),
            job(4, JobState.UNKNOWN, raw_state="ODD", node_count=1),
        ),
    )
    assert [(one.reason, one.use.jobs, one.use.nodes) for one in view.waiting] == [
        ("waits its turn", 2, 4),
        ("PartitionTimeLimit", 1, 1),
        ("its state is ODD", 1, 1),
    ]


def test_a_job_that_does_not_tell_its_gpus_is_marked_not_counted_as_none(tmp_path):
    view = snapshot(tmp_path, seen(job(1, gpus=None)))
    assert view.partitions[0].assigned.jobs_of_unknown_gpus == 1
    assert view.coverage.gpus is None


def test_gpus_that_come_with_the_nodes_are_known_from_the_fleets_record(tmp_path):
    records = [
        Record(number=1, kind=kinds.INTENT, at_utc=1.0,
               body={"token": "fcaaaaaaaaaa", "nodes": 2, "gpus_per_node": 4}),
        Record(number=2, kind=kinds.SUBMITTED, at_utc=2.0, body={"token": "fcaaaaaaaaaa", "ref": {"id": "1"}}),
    ]  # fmt: skip
    view = snapshot(tmp_path, seen(job(1, gpus=None)), states={"f": fold(records)})
    assert view.partitions[0].assigned.gpus == 8
    assert view.coverage.gpus == 8


def test_what_is_left_of_the_limits_is_told_for_the_request_meant(tmp_path):
    request = JobRequest(token="", name="", script="", partition="gpu", time_limit_s=0.0)
    view = snapshot(tmp_path, seen(job(1), job(2, JobState.PENDING)), request=request)
    told = {(limit.where, limit.limit): (limit.value, limit.used, limit.left) for limit in view.limits}
    assert told["QOS normal", "submitted jobs"] == (5, 2, 3)
    assert told["QOS normal", "nodes at once"] == (6, 2, 4)


def test_without_an_answer_the_records_stand_in_with_their_age(tmp_path):
    records = [
        Record(number=1, kind=kinds.INTENT, at_utc=1.0,
               body={"token": "fcaaaaaaaaaa", "nodes": 2, "gpus_per_node": 4}),
        Record(number=2, kind=kinds.SUBMITTED, at_utc=2.0, body={"token": "fcaaaaaaaaaa", "ref": {"id": "1"}}),
        Record(number=3, kind=kinds.SEEN, at_utc=NOW - 60.0,
               body={"token": "fcaaaaaaaaaa", "ref": {"id": "1"}, "state": "running", "nodes": ["n1", "n2"],
                     "start_utc": 5.0}),
    ]  # fmt: skip
    view = snapshot(tmp_path, seen(answered=False), states={"f": fold(records)})
    assert (view.answered, view.age_s) == (False, 60.0)
    assert [node.node for node in view.nodes] == ["n1", "n2"]
    assert view.partitions[0].assigned.gpus == 8
    assert "did not tell which jobs there are" in view.problems[0]


def test_limits_that_were_not_told_are_no_limits_that_leave_room(tmp_path):
    view = snapshot(tmp_path, seen(), limits=Limits(at_utc=NOW, answered=False, problems=("scontrol timed out",)))
    assert (view.limits_answered, view.limits) == (False, ())
    assert "scontrol timed out" in view.problems


def test_the_heartbeats_of_the_spool_are_read(tmp_path):
    spool = make_spool(tmp_path)
    life = Life.begin(spool, job_id="1")
    gpus = [{"uuid": "GPU-1", "name": "A100", "memory_bytes": 1, "used": 1.0, "reserved_bytes": 0}]
    life.beat({"state": "up", "capacity": {"cpus": 1, "gpus": gpus}, "running": [{"task": "1.0"}]})
    reader = SpoolFold(spool)
    reader.refresh()
    mine = seen(job(1, nodes=("any",), node_count=1, gpus=1))
    view = take_snapshot(mine, LIMITS, {}, reader, spool.clock.utc())
    assert view.gpu_states["working"] == 1
    assert view.coverage.percent == 100.0
    life.close()


def test_the_cluster_is_only_there_when_asked_for_and_everything_is_json(tmp_path):
    import json

    assert snapshot(tmp_path / "a", seen(job(1))).cluster == ()
    view = snapshot(tmp_path / "b", seen(job(1)), cluster=True)
    document = json.loads(json.dumps(view.as_json()))
    assert document["cluster"][0]["idle_nodes"] == 2
    assert document["gpu_states_from"] == "worker heartbeats"
