"""What runs beside what: CPUs, GPUs by UUID and by fraction, GPU memory, families, named resources, the whole node."""

from __future__ import annotations

from collections import defaultdict

from fleetcraft.spool.permits import list_permits, set_ceiling
from tests.support.lab import Lab
from tests.support.waiting import wait_for

# Says which GPUs it got, meets the others of its kind, and leaves when a file says so.
MEET = 'echo "$CUDA_VISIBLE_DEVICES" > "at-$FLEETCRAFT_TASK"; while [ ! -e go ]; do sleep 0.02; done'


def meet(name: str, **more: object) -> dict[str, object]:
    return {"name": name, "command": ["sh", "-c", MEET], **more}


def here(lab: Lab) -> dict[str, str]:
    """Who has arrived, and with which GPUs."""
    return {path.name.removeprefix("at-"): path.read_text().strip() for path in lab.folder.glob("at-*")}


def here_names(lab: Lab) -> set[str]:
    return {path.name for path in lab.folder.glob("at-*")}


def wait_here(lab: Lab, count: int) -> dict[str, str]:
    return wait_for(
        lambda: found if len(found := here(lab)) >= count and all(found.values()) else None,
        f"{count} tasks run at once", seen=lambda: (here(lab), lab.picture()),
    )  # fmt: skip


def most_at_once(spans: list[tuple[float, float]]) -> int:
    """How many of the spans overlap at most; touching ends do not count."""
    steps = sorted([(end - 0.003, -1) for _, end in spans] + [(begin + 0.003, 1) for begin, _ in spans])
    most = now = 0
    for _, step in steps:
        now += step
        most = max(most, now)
    return most


def spans(lab: Lab, prefix: str) -> list[tuple[float, float]]:
    lab.spool.refresh()
    found = []
    for record in lab.records():
        if record["t"] == "receipt":
            place = lab.spool.places()[record["b"]]
            if place.cover.task(place.offset + record["i"])["name"].startswith(prefix):
                found.append((record["at"], record["end"]))
    return found


def test_four_quarters_share_one_gpu_and_a_fifth_goes_to_the_next(lab: Lab):
    lab.enqueue([meet(f"q{number}", gpus=0.25) for number in range(5)])
    worker = lab.worker(cpus=8, gpus="simulated:2")
    found = wait_here(lab, 5)
    by_gpu = defaultdict(list)
    for name, uuid in found.items():
        by_gpu[uuid].append(name)
    assert sorted(len(names) for names in by_gpu.values()) == [1, 4]
    assert all("," not in uuid and not uuid.isdigit() for uuid in by_gpu)
    (lab.folder / "go").touch()
    assert worker.wait() == 0
    receipt = lab.receipts("q0")[0]
    assert receipt["gpus"] == [found["q0"]]


def test_whole_gpus_are_nobody_elses(lab: Lab):
    lab.enqueue([meet("pair", gpus=2), meet("one", gpus=1), meet("other", gpus=1), meet("late", gpus=1)])
    worker = lab.worker(cpus=8, gpus="simulated:4")
    found = wait_here(lab, 3)
    given = [uuid for uuids in found.values() for uuid in uuids.split(",")]
    assert len(given) == len(set(given))
    (lab.folder / "go").touch()
    assert worker.wait() == 0
    assert lab.counts() == {"succeeded": 4}


def test_a_worker_holds_no_more_gpu_tasks_than_it_has_gpus_for(lab: Lab):
    lab.enqueue([meet(f"w{number}", gpus=1) for number in range(3)])
    lab.worker(cpus=8, gpus="simulated:1")
    wait_here(lab, 1)
    lab.worker(cpus=8, gpus="simulated:1")
    wait_here(lab, 2)
    (lab.folder / "go").touch()
    wait_here(lab, 3)


def test_what_does_not_fit_beside_a_long_task_is_left_to_another_worker(lab: Lab):
    lab.enqueue([meet("first")])
    lab.worker(cpus=2)
    wait_for(lambda: here_names(lab), "the first task runs", seen=lab.picture)
    lab.enqueue([meet(f"later{number}") for number in range(3)])
    wait_for(lambda: len(here_names(lab)) == 2, "the free slot is used", seen=lab.picture)
    lab.worker(cpus=2)
    wait_for(lambda: len(here_names(lab)) == 4, "nothing waits in a full worker's hand", seen=lab.picture)
    (lab.folder / "go").touch()


def test_a_task_without_gpus_sees_none(lab: Lab):
    lab.enqueue([{"name": "plain", "command": ["sh", "-c", 'echo "[$CUDA_VISIBLE_DEVICES]"']}])
    lab.drain(gpus="simulated:4")
    assert lab.output("plain") == b"[]\n"


def test_memory_that_is_promised_is_not_promised_twice(lab: Lab):
    """Simulated GPUs have 80 GB: two of 30 G fit beside each other, a third does not."""
    lab.enqueue([meet(f"m{number}", gpus=0.1, vram="30G") for number in range(3)])
    worker = lab.worker(cpus=8, gpus="simulated:1")
    wait_here(lab, 2)
    life = lab.life_of(worker)
    sequence = lab.heartbeat(life)["sequence"]
    wait_for(lambda: lab.heartbeat(life)["sequence"] > sequence + 2, "the worker had time for a third")
    assert len(here(lab)) == 2
    (lab.folder / "go").touch()
    assert worker.wait() == 0
    assert lab.counts() == {"succeeded": 3}


def test_a_task_that_ran_out_of_gpu_memory_is_given_more(lab: Lab):
    script = 'echo try >> tries; test "$(wc -l < tries)" -ge 2 || { echo "CUDA out of memory"; exit 1; }'
    lab.enqueue(
        [
            {
                "name": "grows",
                "command": ["sh", "-c", script],
                "gpus": 0.5,
                "vram": "40G",
                "retries": 1,
                "backoff": "0.05s",
            }
        ]
    )
    worker = lab.worker(cpus=2, gpus="simulated:1")
    assert worker.wait() == 0
    assert lab.outcomes("grows") == ["out_of_memory", "succeeded"]


def test_what_no_gpu_here_can_hold_waits_for_another_worker(lab: Lab):
    lab.enqueue([meet("huge", gpus=1, vram="500G"), {"name": "small", "command": ["true"]}])
    lab.drain(gpus="simulated:1")
    assert lab.counts() == {"succeeded": 1}
    assert [token.form for token in lab.tokens()] == [""]


def test_a_family_limit_holds_on_every_gpu(lab: Lab):
    set_ceiling(lab.spool, "family:decode", 2)
    lab.enqueue(
        [{"name": f"d{number}", "command": ["sleep", "0.1"], "gpus": 0.1, "family": "decode"} for number in range(12)]
    )
    lab.drain(cpus=12, gpus="simulated:1")
    assert lab.counts() == {"succeeded": 12}
    assert most_at_once(spans(lab, "d")) == 2


def test_a_named_resource_is_shared_by_all_workers(lab: Lab):
    set_ceiling(lab.spool, "scratch_io", 3)
    lab.enqueue([{"name": f"u{number}", "command": ["sleep", "0.08"], "uses": "scratch_io:1"} for number in range(24)])
    workers = [lab.worker(cpus=4), lab.worker(cpus=4)]
    assert [worker.wait() for worker in workers] == [0, 0]
    assert lab.counts() == {"succeeded": 24}
    assert most_at_once(spans(lab, "u")) <= 3
    assert [owner for _, _, owner in list_permits(lab.spool)] == [""] * 3


def test_the_permits_of_a_killed_worker_come_back(lab: Lab):
    set_ceiling(lab.spool, "license", 1)
    lab.enqueue([meet("holder", uses="license:1"), meet("next", uses="license:1")])
    first = lab.worker()
    wait_for(lambda: here(lab), "one has the permit")
    first.kill()
    (lab.folder / "go").touch()
    lab.drain()
    assert lab.counts() == {"succeeded": 2}
    assert [owner for _, _, owner in list_permits(lab.spool)] == [""]


def test_a_timed_task_has_the_node_to_itself(lab: Lab):
    lab.enqueue([{"name": f"before{number}", "command": ["sleep", "0.15"]} for number in range(12)])
    lab.enqueue(
        [{"name": f"timed{number}", "command": ["sleep", "0.15"], "timed": True} for number in range(3)], priority=900
    )
    lab.enqueue([{"name": f"after{number}", "command": ["sleep", "0.15"]} for number in range(12)])
    lab.drain(cpus=4)
    assert lab.counts() == {"succeeded": 27}
    everything = spans(lab, "")
    for begin, end in spans(lab, "timed"):
        beside = [
            span for span in everything if span != (begin, end) and span[0] < end - 0.003 and span[1] > begin + 0.003
        ]
        assert beside == []
    assert most_at_once(everything) == 4


def test_a_node_task_holds_every_gpu(lab: Lab):
    lab.enqueue([meet("node", node=True), meet("small", gpus=0.25)])
    worker = lab.worker(cpus=4, gpus="simulated:2")
    wait_for(lambda: here(lab), "one of them runs")
    (lab.folder / "go").touch()
    assert worker.wait() == 0
    found = here(lab)
    assert len(found["node"].split(",")) == 2
    assert most_at_once(spans(lab, "")) == 1


def test_higher_priorities_go_first(lab: Lab):
    for priority in (100, 900, 500):
        lab.enqueue([{"name": f"p{priority}-{number}", "command": ["true"]} for number in range(10)], priority=priority)
    lab.drain(cpus=1)
    lab.spool.refresh()
    places = lab.spool.places()
    ran = [places[record["b"]].cover.priority for record in lab.records() if record["t"] == "started"]
    assert ran == [900] * 10 + [500] * 10 + [100] * 10


def test_a_large_task_is_not_kept_out_for_ever_by_small_ones(lab: Lab):
    lab.enqueue([{"name": f"s{number}", "command": ["sleep", "0.05"]} for number in range(200)])
    lab.enqueue([{"name": "large", "command": ["true"], "cpus": 4}], priority=900)
    lab.drain(cpus=4)
    large = lab.receipts("large")[0]["at"]
    later = [begin for begin, _ in spans(lab, "s") if begin > large]
    assert len(later) > 100, "it had to wait for nearly everything"


def test_a_long_task_beside_work_in_hand_costs_the_worker_nothing(lab: Lab):
    """A loop that turns while nothing happens would take a CPU from the tasks."""
    tasks = [{"name": f"t{number}", "command": MEET_LATE if number == 20 else ["true"]} for number in range(60)]
    lab.enqueue(tasks)
    worker = lab.worker(cpus=1)
    lab.wait_running("t20")
    before_s, begun_s = _cpu_s(worker.pid), lab.spool.clock.mono()
    wait_for(lambda: lab.spool.clock.mono() - begun_s > 2.0, "two seconds of work")
    used_s = _cpu_s(worker.pid) - before_s
    (lab.folder / "go").touch()
    assert worker.wait() == 0
    assert used_s < 0.3, f"the worker itself used {used_s:.2f} s of CPU in 2 s"


def test_a_retry_that_finds_no_free_slot_costs_the_worker_nothing(lab: Lab):
    fails = {"name": "fails", "command": ["false"], "retries": 1, "backoff": "4s"}
    lab.enqueue([fails, {"name": "long", "command": MEET_LATE}])
    worker = lab.worker(cpus=1)
    lab.wait_running("long")
    assert lab.outcomes("fails") == ["failed"]
    due_utc = lab.receipts("fails")[0]["end"] + 4.0
    wait_for(lambda: lab.spool.clock.utc() > due_utc, "the backoff is over, and the slot is not free")
    before_s, begun_s = _cpu_s(worker.pid), lab.spool.clock.mono()
    wait_for(lambda: lab.spool.clock.mono() - begun_s > 2.0, "two seconds of waiting")
    used_s = _cpu_s(worker.pid) - before_s
    (lab.folder / "go").touch()
    assert worker.wait() == 0
    assert lab.outcomes("fails") == ["failed", "failed"]
    assert used_s < 0.3, f"the worker itself used {used_s:.2f} s of CPU in 2 s"


MEET_LATE = ["sh", "-c", "while [ ! -e go ]; do sleep 0.02; done"]


def _cpu_s(pid: int) -> float:
    with open(f"/proc/{pid}/stat", encoding="ascii") as source:
        fields = source.read().rsplit(") ", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / 100
