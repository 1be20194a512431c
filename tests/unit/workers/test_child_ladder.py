"""Which process belongs to which attempt, and the steps of ending one: on a table of processes that is made up."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import threading

import pytest

from fleetcraft.transports.local import LocalTransport
from fleetcraft.transports.running import RUNNING
from fleetcraft.workers.kin import Kin
from fleetcraft.workers.ladder import Child, End, Graces, Ladder, Stage
from fleetcraft.workers.process_table import ProcessTable, Seen
from tests.support.waiting import wait_for

ME = os.getpid()


class Clock:
    def __init__(self):
        self.now_s = 1000.0

    def utc(self):
        return self.now_s

    mono = boot = utc


class Table(ProcessTable):
    """Processes of our own invention. A process in `deaf` ignores TERM, one in `stuck` also KILL."""

    def __init__(self):
        self.seen: dict[int, Seen] = {}
        self.marks: dict[int, str] = {}
        self.sent: list[tuple[int, int]] = []
        self.deaf: set[int] = set()
        self.stuck: set[int] = set()
        self.kin: Kin | None = None

    def add(self, pid, parent, *, session=None, mark=None, ticks=1):
        self.seen[pid] = Seen(pid, "D" if pid in self.stuck else "S", parent, session or pid, session or pid, ticks)
        if mark:
            self.marks[pid] = mark

    def end(self, pid):
        del self.seen[pid]
        self.marks.pop(pid, None)
        for other, seen in list(self.seen.items()):
            if seen.parent == pid:
                self.seen[other] = seen._replace(parent=ME)

    def pids(self):
        return list(self.seen)

    def look(self, pid):
        return self.seen.get(pid)

    def mark(self, pid):
        return self.marks.get(pid)

    def is_thread(self, pid):
        return False

    def where(self, pid):
        return f"state {self.seen[pid].state}, in nfs_wait"

    def send(self, pid, number):
        self.sent.append((pid, number))
        harmless = number == signal.SIGCONT or (number == signal.SIGTERM and pid in self.deaf) or pid in self.stuck
        if pid in self.seen and not harmless:
            self.end(pid)
            assert self.kin is not None
            self.kin.on_reaped(pid)


class World:
    """A kin and a ladder over such a table, without any real process."""

    def __init__(self, monkeypatch):
        self.clock, self.table = Clock(), Table()
        self.kin = self.table.kin = Kin(self.clock, self.table)
        self.ladder = Ladder(self.kin, self.table, Graces(settle_s=0.1, sweep_s=2.0, declare_s=10.0))
        self.leaders: dict[int, Child] = {}
        self.open: dict[str, Child] = {}
        self.groups: list[tuple[int, int]] = []
        monkeypatch.setattr(os, "killpg", lambda pid, number: self.groups.append((pid, number)))
        monkeypatch.setattr(self.kin, "_strangers", self._strangers)

    def _strangers(self, leaders, ended, now_s):
        known = {*leaders, *self.kin.orphans, *self.kin.nobodys}
        return [pid for pid, seen in self.table.seen.items() if seen.parent == ME and pid not in known]

    def start(self, pid, mark):
        child = self.leaders[pid] = self.open[mark] = Child(pid, mark, 0.0, self.clock.now_s, 0)
        self.table.add(pid, ME, mark=mark)
        return child

    def end_leader(self, child):
        self.table.end(child.pid)
        del self.leaders[child.pid]
        child.leader_lives = False

    def step(self, child, end, after_s=0.0):
        self.clock.now_s += after_s
        self.kin.begin_step()
        assert self.kin.refresh(self.leaders, self.open, (), self.clock.now_s)
        return self.ladder.step(child, end, self.open, self.clock.now_s)


@pytest.fixture
def world(monkeypatch):
    made = World(monkeypatch)
    yield made
    made.kin.close()


def test_an_attempt_that_left_nothing_is_over(world):
    child = world.start(900, "a")
    world.end_leader(child)
    assert world.step(child, End())


def test_what_was_left_is_asked_then_killed_then_the_attempt_is_over(world):
    child, end = world.start(900, "a"), End()
    world.table.add(901, 900, session=900, mark="a")
    world.table.deaf.add(901)
    world.end_leader(child)
    assert not world.step(child, end)
    assert world.table.sent == []
    assert not world.step(child, end, 0.1)
    assert world.table.sent == [(901, signal.SIGTERM), (901, signal.SIGCONT)]
    assert not world.step(child, end, 1.9)
    assert len(world.table.sent) == 2
    assert not world.step(child, end, 0.1)
    assert world.table.sent[2:] == [(901, signal.SIGKILL)]
    assert world.step(child, end)
    assert end.background == {901}


def test_what_ends_by_itself_in_a_moment_was_not_left_behind(world):
    child, end = world.start(900, "a"), End()
    world.table.add(901, 900, session=900)
    world.end_leader(child)
    assert not world.step(child, end)
    world.table.end(901)
    world.kin.on_reaped(901)
    assert world.step(child, end, 0.05)
    assert end.background == set()
    assert world.table.sent == []


def test_a_process_in_the_kernel_is_declared_with_its_evidence(world):
    child, end = world.start(900, "a"), End()
    world.table.stuck.add(901)
    world.table.add(901, 900, session=900, mark="a")
    world.end_leader(child)
    for after_s in (0.0, 0.1, 2.0, 5.0):
        assert not world.step(child, end, after_s)
    assert world.step(child, end, 5.0)
    assert end.unkillable == ((901, "state D, in nfs_wait"),)


def test_a_leader_in_the_kernel_is_declared_too(world):
    child, end = world.start(900, "a"), End()
    world.table.stuck.add(900)
    world.table.add(900, ME, mark="a")
    world.ladder.ask(child, end, signal.SIGTERM, 3.0, world.clock.now_s)
    assert not world.step(child, end, 2.9)
    assert not world.step(child, end, 0.1)
    assert world.groups == [(900, signal.SIGTERM), (900, signal.SIGKILL)]
    assert not world.step(child, end, 9.9)
    assert world.step(child, end, 0.1)
    assert end.unkillable == ((900, "state D, in nfs_wait"),)


def test_the_grace_is_that_of_the_request_also_for_what_the_leader_left(world):
    # A wrapping shell ends at once; the program in its group still writes its checkpoint.
    child, end = world.start(900, "a"), End()
    world.table.add(901, 900, session=900, mark="a")
    world.table.deaf.add(901)
    world.ladder.ask(child, end, signal.SIGUSR1, 25.0, world.clock.now_s)
    world.end_leader(child)
    assert not world.step(child, end)
    assert not world.step(child, end, 24.9)
    assert world.table.sent == []
    assert not world.step(child, end, 0.2)
    assert world.table.sent == [(901, signal.SIGKILL)]


def test_what_escaped_from_the_group_is_asked_too_and_only_once(world):
    child, end = world.start(900, "a"), End()
    world.table.add(901, 900, session=901, mark="a")
    world.table.deaf.add(901)
    world.ladder.ask(child, end, signal.SIGTERM, 25.0, world.clock.now_s)
    world.end_leader(child)
    for _ in range(3):
        assert not world.step(child, end, 0.1)
    assert world.table.sent == [(901, signal.SIGTERM), (901, signal.SIGCONT)]


def test_new_processes_are_killed_until_none_is_left(world):
    child, end = world.start(900, "a"), End()
    world.table.add(901, 900, session=901, mark="a")
    world.end_leader(child)
    world.ladder.kill(child, end, world.clock.now_s)
    for born in range(902, 906):
        assert not world.step(child, end, 0.2)
        world.table.add(born, ME, session=born, mark="a")
    assert not world.step(child, end, 0.2)
    assert world.step(child, end, 0.2)
    assert {pid for pid, _ in world.table.sent} == set(range(901, 906))


def test_the_daemon_of_an_attempt_that_runs_is_left_alone(world):
    first, second = world.start(900, "a"), world.start(910, "b")
    world.table.add(911, ME, session=911, mark="b")  # its parent is gone, its attempt is not
    world.end_leader(first)
    assert world.step(first, End())
    del world.open["a"]
    end = End()
    world.end_leader(second)
    assert not world.step(second, end)
    assert not world.step(second, end, 0.1)
    assert world.table.sent == [(911, signal.SIGTERM)]


def test_an_orphan_without_a_mark_goes_with_the_last_attempt_that_may_be_its_origin(world):
    first, second, third = world.start(900, "a"), world.start(910, "b"), None
    world.table.add(920, ME, session=920)
    world.end_leader(first)
    assert world.step(first, End())
    del world.open["a"]
    third = world.start(930, "c")  # began after the orphan was seen: cannot be its origin
    world.end_leader(third)
    assert world.step(third, End())
    del world.open["c"]
    world.end_leader(second)
    end = End()
    assert not world.step(second, end)
    assert not world.step(second, end, 0.1)
    assert (920, signal.SIGTERM) in world.table.sent


def test_an_orphan_without_a_mark_is_known_by_the_session_of_its_attempt(world):
    first, second = world.start(900, "a"), world.start(910, "b")
    world.table.add(911, 910, session=910)
    world.table.add(901, 900, session=900)
    world.end_leader(first)
    end = End()
    assert not world.step(first, end)
    assert not world.step(first, end, 0.1)
    assert world.table.sent == [(901, signal.SIGTERM)]
    assert second.leader_lives


def test_an_orphan_that_ends_while_it_is_looked_at_makes_us_look_again(world):
    # Its own child came home after the list was read; without a second look the attempt would seem to be over.
    child = world.start(900, "a")
    world.table.add(901, ME, session=901, mark="a")
    world.table.seen[901] = world.table.seen[901]._replace(state="Z", is_gone=True)
    world.end_leader(child)
    assert not world.kin.refresh(world.leaders, world.open, (), world.clock.now_s)
    assert world.clock.now_s < world.kin.walk_again_s < world.clock.now_s + 0.1
    world.table.end(901)
    world.table.add(902, ME, session=902, mark="a")
    assert not world.step(child, End())
    assert [orphan.seen.pid for orphan in world.kin.orphans_of(child, world.open)] == [902]


def test_descendants_are_found_through_parents_whatever_their_mark(world):
    # A worker inside of an attempt gives its own marks.
    child = world.start(900, "a")
    world.table.add(901, 900, session=901, mark="a")
    world.table.add(902, 901, session=902, mark="inner")
    world.table.add(903, 902, session=902)
    assert set(world.kin.members(child, (), leader_lives=True)) == {901, 902, 903}


def test_neither_we_nor_our_ancestors_are_ever_signalled(world):
    child = world.start(900, "a")
    for pid in (ME, os.getppid(), 1):
        world.table.add(pid, 0, session=900, mark="a")
        world.kin.signal(world.table.seen[pid], signal.SIGKILL)
    assert world.kin.members(child, (), leader_lives=True) == {}
    assert world.table.sent == []


def test_a_reused_number_is_not_signalled(world):
    world.table.add(901, 1, ticks=77)
    world.kin.signal(world.table.seen[901]._replace(start_ticks=5), signal.SIGKILL)
    assert world.table.sent == []


def test_a_new_session_with_the_number_of_an_ended_leader_is_somebody_elses(world):
    child = world.start(900, "a")
    world.end_leader(child)
    world.table.add(900, 1, ticks=99)
    world.table.add(905, 900, session=900)
    assert world.kin.members(child, (), leader_lives=False) == {}


def test_a_stray_of_an_attempt_that_is_over_is_found(world):
    world.start(900, "a")
    world.table.add(901, ME, session=901, mark="gone")
    assert world.kin.refresh(world.leaders, {}, (), 0.0)
    assert [orphan.seen.pid for orphan in world.kin.strays(())] == [901]


def test_children_that_were_here_before_are_never_touched(world):
    world.kin.nobodys.add(800)
    world.kin._may_guess = False
    world.table.add(800, ME)
    child = world.start(900, "a")
    world.table.add(801, ME)
    world.end_leader(child)
    assert world.step(child, End())
    assert world.kin.strays(()) == []


@pytest.mark.parametrize("order", range(6))
def test_any_order_of_requests_begins_one_end(world, order):
    child, end = world.start(900, "a"), End()
    world.ladder.ask(child, end, signal.SIGTERM, 5.0, world.clock.now_s)
    for later_s in ([1.0, 2.0, 1.5] * 2)[order : order + 3]:
        assert not world.step(child, end, later_s)
    assert end.kill_at_s == 1005.0
    assert end.stage is Stage.ASKED or world.clock.now_s >= 1005.0


def test_without_a_subreaper_the_mark_and_the_session_are_looked_for(world):
    world.kin.is_subreaper = False
    child, end = world.start(900, "a"), End()
    world.table.add(901, 1, session=901, mark="a")
    world.table.add(902, 1, session=900)
    world.table.deaf |= {901, 902}
    world.end_leader(child)
    assert not world.step(child, end)
    assert not world.step(child, end, 0.1)
    assert end.due_s < math.inf
    assert {pid for pid, number in world.table.sent if number == signal.SIGTERM} == {901, 902}
    assert not world.step(child, end, 2.0)
    assert world.step(child, end, 0.1)


def _answer(kin, folder, newest):
    """Let the kernel say that `newest` is the last pid it gave out."""
    (folder / "loadavg").write_bytes(b"0.00 0.01 0.05 1/123 %b\n" % newest)
    with (folder / "loadavg").open("rb") as answer:
        os.dup2(answer.fileno(), kin._cursor, inheritable=False)


def children_of_ours():
    """By the kernel's word on every process, so that it holds for children of all threads."""
    table = ProcessTable()
    return {pid for pid in table.pids() if (seen := table.look(pid)) and seen.parent == ME and not seen.is_gone}


class TestStrangers:
    """The three ways to know our children, on real processes and on made-up answers of the kernel."""

    @pytest.fixture
    def kin(self):
        made = Kin(Clock(), ProcessTable())
        yield made
        made.close()

    def test_the_kernels_list_is_compared_by_its_length(self, kin, tmp_path):
        answer = tmp_path / "children"
        descriptor = os.open(answer, os.O_RDONLY | os.O_CREAT)
        try:
            answer.write_bytes(b"900 901 ")
            assert kin._listed(descriptor, {900: 0, 901: 0}) == []
            assert kin._listed(descriptor, {900: 0}) == [901]
            answer.write_bytes(b"".join(b"%d " % pid for pid in range(10_000, 14_000)))
            assert kin._listed(descriptor, range(10_000, 13_999)) == [13_999]
            answer.write_bytes(b"")
            assert kin._listed(descriptor, {}) == []
        finally:
            os.close(descriptor)

    @pytest.mark.parametrize(
        ("newest", "age_s", "epoch", "few"),
        ((b"930", 0.5, 0, True), (b"930", 1.5, 0, False), (b"930", 0.5, 1, False), (b"2000", 0.5, 0, False)),
    )
    def test_only_few_and_certain_numbers_are_tried(self, kin, tmp_path, newest, age_s, epoch, few):
        _answer(kin, tmp_path, newest)
        kin.on_pid(900)
        kin.epoch = epoch
        child = Child(900, "a", 0.0, 1000.0 - age_s, 0)
        assert kin._recent([child], 1000.0) == (range(901, 931) if few else None)

    def test_numbers_that_came_round_are_not_trusted(self, kin, tmp_path):
        _answer(kin, tmp_path, b"310")
        child = Child(32_000, "a", 0.0, 1000.0, kin.on_pid(32_000))
        assert kin._recent([child], 1000.0) is None
        assert kin.epoch == 1

    def test_walking_through_proc_keeps_its_share(self, kin, monkeypatch):
        kin._list = None
        clock = kin._clock

        def walk():
            clock.now_s += 0.1
            return []

        monkeypatch.setattr(kin._table, "pids", walk)
        assert kin.refresh({}, {}, (), clock.now_s)
        assert kin.walk_again_s == pytest.approx(clock.now_s + 2.0)
        assert not kin.refresh({}, {}, (), clock.now_s)
        clock.now_s += 2.01
        assert kin.refresh({}, {}, (), clock.now_s)

    def test_a_command_of_another_thread_is_no_stray(self, kin):
        """A worker asks the scheduler while its tasks end; where the kernel lists no children, both look alike."""
        kin._list = None
        before = children_of_ours()
        stray = subprocess.Popen(["sleep", "60"])
        asked = threading.Thread(target=LocalTransport().run, args=(["sleep", "60"],), kwargs={"timeout_s": 60.0})
        asked.start()
        try:
            command = wait_for(
                lambda: {pid for pid in children_of_ours() if RUNNING.is_command(pid)}, "the command runs"
            )
            assert stray.pid not in command
            kin.walk_again_s = 0.0
            assert kin.refresh({}, {"a": None}, (), kin._clock.now_s)
            assert stray.pid in kin.orphans
            assert command.isdisjoint(kin.orphans)
        finally:
            for pid in children_of_ours() - before:
                os.kill(pid, signal.SIGKILL)
            stray.wait()
            asked.join()

    def test_while_a_command_is_being_started_nothing_is_concluded(self, kin):
        kin._list = None
        with RUNNING.starting(), subprocess.Popen(["sleep", "60"]) as child:
            try:
                assert not kin.refresh({}, {"a": None}, (), kin._clock.now_s)
                assert not kin.is_quiet({}, (), kin.walk_again_s)
                assert child.pid not in kin.orphans
                RUNNING.began(os.getsid(child.pid))
                assert kin.refresh({}, {"a": None}, (), kin.walk_again_s)
                assert child.pid not in kin.orphans
                RUNNING.ended(os.getsid(child.pid))
            finally:
                child.kill()
