"""Check finds each kind of damage, repairs what can be repaired, and never takes work on the move for lost work."""

from __future__ import annotations

import contextlib
import json
import os
import shutil

import pytest

from fleetcraft.core.errors import FleetcraftError
from fleetcraft.core.names import CLAIM, DRAFT, FENCED, Token, parse_token
from fleetcraft.core.resources import Request
from fleetcraft.spool.check import check
from fleetcraft.spool.evidence import ReapPolicy
from fleetcraft.spool.folding import fold_small
from fleetcraft.spool.life import Life
from fleetcraft.spool.maintenance import CHECKING, take_permit
from fleetcraft.spool.permits import set_ceiling
from fleetcraft.spool.publish import LedgerWriter
from fleetcraft.spool.reading import SpoolFold
from fleetcraft.spool.reap import Reaper
from fleetcraft.spool.requests import commit
from fleetcraft.spool.spool import Spool
from fleetcraft.testing.files import Crash, CrashingFiles, Operation, WrappedFiles
from tests.support import upkeep
from tests.support.upkeep import AtOperation, Template, bury_the_dead, offers, publish, succeed


@pytest.fixture
def spool(tmp_path):
    return Spool.open(str(tmp_path / "spool"), create=True)


def kinds(report) -> list[str]:
    return sorted({finding.kind for finding in report.findings})


def tokens(spool: Spool) -> list[str]:
    return sorted(os.listdir(spool.layout.tokens))


def test_a_sound_spool_has_no_findings(spool):
    publish(spool, [f"t{place}" for place in range(100)])
    life = Life.begin(spool)
    (token,) = spool.tokens().tokens
    os.rename(spool.layout.token(token.name), spool.layout.token(token.owned(CLAIM, life.id).name))
    succeed(life, 1, 0, 40)

    report = check(None, spool)

    assert report.findings == []
    assert (report.batches, report.tasks, report.unfinished, report.tokens, report.lives) == (1, 100, 60, 1, 1)
    assert report.exit_code == 0
    assert json.loads(json.dumps(report.as_json()))["ok"] is True


def test_a_lost_token_is_found_and_offered_again_with_a_higher_attempt(spool):
    publish(spool, [f"t{place}" for place in range(10)])
    life = Life.begin(spool)
    succeed(life, 1, 0, 4, attempt=2)
    life.record({"t": "started", "b": 1, "i": 6, "g": 0, "a": 3, "s": 0, "at": 0.0})
    os.unlink(spool.layout.token(tokens(spool)[0]))

    seen = check(None, spool)
    repaired = check(None, spool, repair=True)

    assert (kinds(seen), seen.exit_code) == (["uncovered"], 1)
    assert seen.findings[0].place == "1.4 to 1.9"
    assert (kinds(repaired), repaired.exit_code) == (["uncovered"], 0)
    assert tokens(spool) == ["c1.500.1.4-10.g0.a4"]
    assert check(None, spool).findings == []


def test_every_uncovered_stretch_gets_its_own_token(spool):
    publish(spool, [f"t{place}" for place in range(10)])
    os.unlink(spool.layout.token(tokens(spool)[0]))
    spool.files.create(spool.layout.token("c1.500.1.3-5.g0.a2"))

    check(None, spool, repair=True)

    assert tokens(spool) == ["c1.500.1.0-3.g0.a3", "c1.500.1.3-5.g0.a2", "c1.500.1.5-10.g0.a3"]


def test_a_held_batch_is_offered_as_held(spool):
    publish(spool, ["waits"], held=True)
    os.unlink(spool.layout.token(tokens(spool)[0]))

    check(None, spool, repair=True)

    assert tokens(spool) == ["c1.500.1.0-1.g0.a1.held"]


def test_a_late_claim_of_a_buried_life_is_left_to_the_reaper(spool):
    publish(spool, ["t"])
    life = Life.begin(spool)
    assert life.close()
    os.rename(spool.layout.token(tokens(spool)[0]), spool.layout.token(f"c1.500.1.0-1.g0.a1@{life.id}"))

    report = check(None, spool, repair=True)

    assert kinds(report) == []
    late = tokens(spool)
    assert late == [f"c1.500.1.0-1.g0.a1@{life.id}"]
    reaper = Reaper(Life.begin(spool), SpoolFold(spool, durable=True))
    reaper.step()
    reaper.step()
    assert tokens(spool) == ["c1.500.1.0-1.g0.a2"]


def test_a_claim_of_a_life_that_nobody_knows_offers_nothing(spool):
    publish(spool, ["t"])
    os.rename(spool.layout.token(tokens(spool)[0]), spool.layout.token("c1.500.1.0-1.g0.a1@nobody-1-ab"))

    report = check(None, spool, repair=True)

    assert kinds(report) == ["uncovered", "void"]
    assert tokens(spool) == ["c1.500.1.0-1.g0.a2"]


def test_nothing_is_repaired_while_a_life_is_being_reaped(spool):
    publish(spool, ["t"])
    life = Life.begin(spool)
    os.rename(os.path.join(life.folder, "state.live"), os.path.join(life.folder, "state.fenced"))
    os.unlink(spool.layout.token(tokens(spool)[0]))

    report = check(None, spool, repair=True)

    (finding,) = report.problems
    assert finding.kind == "uncovered"
    assert "spool reap" in finding.detail
    assert tokens(spool) == []


def test_what_a_living_worker_says_it_has_is_not_uncovered(spool):
    publish(spool, [f"t{place}" for place in range(4)])
    life = Life.begin(spool)
    (name,) = tokens(spool)
    os.unlink(spool.layout.token(name))
    life.beat({"claims": [f"c1.500.1.0-2.g0.a1@{life.id}"], "running": [{"task": "1.3"}]})

    report = check(None, spool)

    assert [finding.place for finding in report.problems] == ["1.2"]


def test_one_listing_is_no_proof(spool):
    """The token is on its way during the first listing, and back in the second."""
    publish(spool, ["t"])
    (name,) = tokens(spool)
    path = spool.layout.token(name)
    away = os.path.join(spool.layout.root, "away")

    class Moving(WrappedFiles):
        listings = 0

        def _around(self, operation: Operation, do):
            if operation == Operation("names", spool.layout.tokens):
                self.listings += 1
                if self.listings == 3:
                    os.rename(path, away)
                elif self.listings == 4:
                    os.rename(away, path)
            return do()

    files = Moving()
    pauses: list[float] = []
    policy = ReapPolicy(cache_limit_s=7)
    report = check(None, Spool.open(spool.layout.root, files=files), policy=policy, pause=pauses.append)

    assert files.listings >= 4, "the listing that misses the token was not reached"
    assert report.findings == []
    assert pauses == [7], "the second look waits for the directory cache"


def test_two_names_for_one_task_are_reported_and_left_alone(spool):
    publish(spool, [f"t{place}" for place in range(4)])
    spool.files.create(spool.layout.token("c1.500.1.2-4.g0.a2"))

    report = check(None, spool, repair=True)

    (finding,) = report.problems
    assert (finding.kind, finding.facts) == ("double_cover", {"other": "c1.500.1.2-4.g0.a2"})
    assert "2 tasks" in finding.detail
    assert len(tokens(spool)) == 2


def test_a_split_that_was_not_committed_is_no_double_cover(spool):
    publish(spool, [f"t{place}" for place in range(4)])
    life = Life.begin(spool)
    (name,) = tokens(spool)
    os.rename(spool.layout.token(name), spool.layout.token(f"{name}@{life.id}"))
    spool.files.create(spool.layout.token(f"c1.500.1.2-4.g0.a1~{life.id}"))

    assert check(None, spool).findings == []


def test_a_committed_publication_is_offered(spool):
    publish(spool, ["t"])
    (name,) = tokens(spool)
    batch = spool.batch(1)
    assert batch is not None
    os.rename(spool.layout.token(name), spool.layout.token(f"{name}~{batch.publication}"))

    assert check(None, spool).findings == [], "the draft of a committed publication is a cover"
    report = check(None, spool, repair=True)

    assert (kinds(report), report.problems) == (["draft_committed"], [])
    assert tokens(spool) == [name]


def test_a_committed_retry_is_offered(spool):
    publish(spool, ["t"])
    succeed(Life.begin(spool), 1, 0, 1)
    os.unlink(spool.layout.token(tokens(spool)[0]))
    draft = Token(lane="c1", priority=500, batch=1, start=0, stop=1, gen=1, form=DRAFT, life="q1234")
    spool.files.create(spool.layout.token(draft.name))
    body = {"kind": "retry", "owner": "q1234", "items": [[1, 1, [[0, 1]]]]}

    before = check(None, spool, repair=True)
    commit(spool, body, lambda _number: "b1.1.json", 1)
    after = check(None, Spool.open(spool.layout.root), repair=True)

    assert kinds(before) == ["draft_open"], "not committed: it offers nothing, and may still be"
    assert kinds(after) == ["draft_committed"]
    assert tokens(spool) == ["c1.500.1.0-1.g1.a1"]


def test_a_lost_retry_is_offered_again_in_its_generation(spool):
    publish(spool, ["a", "b"])
    succeed(Life.begin(spool), 1, 0, 2)
    os.unlink(spool.layout.token(tokens(spool)[0]))
    commit(spool, {"kind": "retry", "owner": "q1", "items": [[1, 1, [[1, 2]]]]}, lambda _number: "b1.1.json", 1)

    check(None, Spool.open(spool.layout.root), repair=True)

    assert tokens(spool) == ["c1.500.1.1-2.g1.a1"]


def test_a_draft_whose_number_was_taken_by_another_publication_is_removed(spool):
    publish(spool, ["t"])
    stray = f"{tokens(spool)[0]}~p0123"
    next_number = "c1.500.2.0-1.g0.a1~p4567"
    for name in (stray, next_number):
        spool.files.create(spool.layout.token(name))

    report = check(None, spool, repair=True)

    assert report.count("draft_open") == 2
    assert tokens(spool) == [tokens(spool)[0], next_number], "that one may still be committed"


def test_a_publication_that_died_before_its_commit_is_reported_and_kept(tmp_path, spool):
    files = CrashingFiles(at=12)
    writer = LedgerWriter(Spool.open(spool.layout.root, files=files), Request(), 500, False, [{}])
    for place in range(70):
        writer.add(f"t{place}", b'{"command":["true"],"name":"t%d"}' % place)
    with pytest.raises(Crash):
        writer.commit()
    assert os.path.exists(spool.layout.aside(writer.publication))

    report = check(None, spool, repair=True)

    assert report.problems == []
    assert report.count("left_over") >= 1
    assert os.path.exists(spool.layout.aside(writer.publication)), "a slow publisher could still commit it"


def test_a_missing_number_is_a_missing_ledger(spool):
    for name in "abc":
        publish(spool, [name])
    os.unlink(spool.layout.ledger(2))

    report = check(None, Spool.open(spool.layout.root))

    assert [(finding.kind, finding.place) for finding in report.problems] == [
        ("ledger_missing", spool.layout.ledger(2)),
        ("token_stranger", "c1.500.2.0-1.g0.a1"),
    ]


@pytest.mark.parametrize(
    ("damage", "says"),
    (
        (lambda data: data[: data[:-1].rindex(b"\n") + 1], "69 lines where 70 are due"),
        (lambda data: data[:-4], "1 lines are not JSON (tasks [69])"),
        (lambda data: data.replace(b'"t9"', b'"t9', 1), "1 lines are not JSON (tasks [9])"),
        (lambda data: data + b'{"name":"more","command":["x"]}\n', "71 lines where 70 are due"),
    ),
)
def test_a_damaged_ledger_is_found(spool, damage, says):
    publish(spool, [f"t{place}" for place in range(70)])
    path = spool.layout.ledger(1)
    with open(path, "rb") as source:
        data = source.read()
    with open(path, "wb") as target:
        target.write(damage(data))

    report = check(None, Spool.open(spool.layout.root))

    assert [finding.kind for finding in report.problems] == ["ledger_damaged"]
    assert says in report.problems[0].detail


def test_index_and_names_are_made_anew_from_the_ledger(spool):
    publish(spool, [f"t{place}" for place in range(70)])
    batch = spool.batch(1)
    assert batch is not None
    index, names = spool.layout.index(batch.publication), spool.layout.names(batch.publication)
    with open(names, "rb") as source:
        wanted = source.read()
    os.unlink(index)
    with open(names, "r+b") as target:
        target.write(b"\0" * 16)

    before = check(None, Spool.open(spool.layout.root))
    check(None, Spool.open(spool.layout.root), repair=True)

    assert [finding.kind for finding in before.problems] == ["index_damaged", "names_damaged"]
    with open(names, "rb") as source:
        assert source.read() == wanted
    fresh = Spool.open(spool.layout.root)
    fresh.refresh()
    assert fresh.find("t69") is not None
    assert check(None, fresh).findings == []


def test_damaged_journal_lines_are_counted_with_their_places(spool):
    publish(spool, ["t"])
    life = Life.begin(spool)
    for place in range(3):
        life.note("remark", place=place)
    path = os.path.join(life.folder, "journal.jsonl")
    with open(path, "rb+") as journal:
        first = len(journal.readline())
        journal.seek(first + 5)
        journal.write(b"\0\0\0")

    report = check(None, spool)

    (finding,) = report.findings
    assert (finding.kind, finding.serious) == ("journal_damaged", False)
    assert finding.facts["count"] == 1
    assert finding.facts["missing"] == 1
    assert finding.facts["lines"][0][0] == first


def test_foreign_names_and_unreadable_requests_are_reported(spool):
    publish(spool, ["t"])
    for name in ("c1.500.1.0-1", "core.1234", "c1.500.1.1-0.g0.a1"):
        spool.files.create(spool.layout.token(name))
    with open(os.path.join(spool.layout.requests, "1.json"), "wb") as target:
        target.write(b"\0\0\0\0")

    report = check(None, spool)

    assert report.foreign == 3
    assert [finding.kind for finding in report.problems] == ["request_damaged"]


def test_permits_that_nobody_has_come_back(spool):
    set_ceiling(spool, "disk", 3)
    ended = Life.begin(spool)
    assert ended.close()
    alive = Life.begin(spool)
    uses = spool.layout.uses
    os.unlink(os.path.join(uses, "disk.1"))
    os.rename(os.path.join(uses, "disk.2"), os.path.join(uses, f"disk.2@{ended.id}"))
    os.rename(os.path.join(uses, "disk.3"), os.path.join(uses, f"disk.3@{alive.id}"))

    before = check(None, spool)
    after = check(None, spool, repair=True)

    assert [finding.kind for finding in before.problems] == ["permit_missing", "permit_stuck"]
    assert after.problems == []
    assert {"disk.1", "disk.2", f"disk.3@{alive.id}"} <= set(os.listdir(uses))


def test_lives_that_say_nothing_and_are_gone_are_removed(spool):
    unborn = Life.begin(spool)
    os.unlink(os.path.join(unborn.folder, "state.live"))
    being_born = Life.begin(spool)
    os.unlink(os.path.join(being_born.folder, "state.live"))
    upkeep.pretend_dead(spool, unborn.id)

    report = check(None, spool, repair=True)

    assert report.count("life_empty") == 2
    assert not os.path.exists(unborn.folder)
    assert os.path.exists(being_born.folder), "its process is there and may be slow"


def test_only_one_check_repairs_at_a_time(spool):
    publish(spool, ["t"])
    os.unlink(spool.layout.token(tokens(spool)[0]))
    other = Life.begin(spool)
    assert take_permit(other, CHECKING)

    report = check(None, spool, repair=True)

    assert kinds(report) == ["busy", "uncovered"]
    assert report.exit_code == 1
    assert tokens(spool) == []


def lose_the_token(spool: Spool) -> None:
    publish(spool, [f"t{place}" for place in range(3)])
    os.unlink(spool.layout.token(tokens(spool)[0]))


@pytest.mark.slow
def test_a_check_that_was_reaped_in_its_sleep_offers_nothing_twice(tmp_path):
    """At any operation of a repair, this check is taken for dead and another one repairs."""
    template = Template(tmp_path, lose_the_token)

    def others(root: str) -> None:
        bury_the_dead(Spool.open(root))
        check(None, Spool.open(root), repair=True)

    at = 0
    while True:
        root = template.copy()
        files = AtOperation(at, lambda root=root: others(root))  # type: ignore[misc]
        with contextlib.suppress(OSError, FleetcraftError):
            check(None, Spool.open(root, files=files), repair=True)
        if not files.acted:
            break
        bury_the_dead(Spool.open(root))
        check(None, Spool.open(root), repair=True)
        found = offers(root)
        assert set(found.values()) == {1}, at
        assert len(found) == 3, at
        shutil.rmtree(root)
        at += 1
    assert at > 50


@pytest.mark.slow
def test_a_crash_anywhere_in_a_repair_is_repaired_by_the_next(tmp_path):
    template = Template(tmp_path, lose_the_token)
    at = 0
    while True:
        root = template.copy()
        files = CrashingFiles(at=at)
        try:
            check(None, Spool.open(root, files=files), repair=True)
        except Crash:
            bury_the_dead(Spool.open(root))
            report = check(None, Spool.open(root), repair=True)
            assert report.problems == [], files.crashed
            found = offers(root)
            assert set(found.values()) == {1}, files.crashed
            assert len(found) == 3, files.crashed
        else:
            break
        shutil.rmtree(root)
        at += 1
    assert at > 50


def test_tokens_of_a_folded_batch_are_void(spool, monkeypatch):
    monkeypatch.setattr("fleetcraft.spool.foldgroups.FOLD_AT", 2)
    for name in "ab":
        publish(spool, [name])
    fold_small(spool)
    reaped = Life.begin(spool)
    spool.files.create(spool.layout.token(f"c1.500.1.0-1.g0.a1{FENCED}{reaped.id}"))
    spool.files.create(spool.layout.token("c1.500.2.0-1.g0.a2"))

    seen = check(None, spool)
    check(None, spool, repair=True)

    assert (kinds(seen), seen.problems) == (["void"], [])
    left = [token for name in tokens(spool) if (token := parse_token(name))]
    assert [(token.batch, token.form) for token in left] == [(1, FENCED), (3, "")]
