"""The part of check that looks for what somebody left half done: old ledgers, open publications, segments, permits."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping

from fleetcraft.core.errors import SpoolDamaged
from fleetcraft.spool.checkfiles import Finding, Report
from fleetcraft.spool.layout import batch_number
from fleetcraft.spool.life import DEAD, FENCED_STATE, find_state
from fleetcraft.spool.maintenance import aside_publication, folding_life, remove
from fleetcraft.spool.permits import list_permits
from fleetcraft.spool.segments import Segment, open_segment, segment_numbers, segment_path, segment_records
from fleetcraft.spool.spool import Spool
from fleetcraft.spool.tokens import move
from fleetcraft.store.files import GONE

LISTINGS = 3  # what three of them in a row say is so
_COMPACTION_FILE = re.compile(r"\.?c[0-9a-f]{6}-(?P<life>[a-z0-9][a-z0-9-]*)\.(?:jsonl|logs)")


def check_batches_folder(spool: Spool, report: Report, *, repair: bool) -> None:
    """Ledgers of folded batches, publications that never committed, index files of nobody."""
    folder = spool.layout.batches
    before = spool.files.names(folder)[0]
    spool.refresh()
    # What a publisher made or committed between the two listings is none of our business.
    names = set(before) & set(spool.files.names(folder)[0])
    live = {batch.publication for batch in spool.batches()}
    asides = {publication for name in before if (publication := aside_publication(name)) is not None}
    asides = {publication for publication in asides if not _judge_aside(spool, publication, live)[1]}
    folded: dict[str, str] = {}
    for name in names:
        number = batch_number(name)
        if number is not None and spool.is_folded(number):
            batch = spool.batch(number)
            folded[name] = batch.publication if batch else ""
    for name in sorted(names):
        path = os.path.join(folder, name)
        stem, _, ending = name.rpartition(".")
        publication = aside_publication(name)
        if name in folded:
            detail, gone = "Its batch lives on in a larger one.", True
        elif publication is not None:
            detail, gone = _judge_aside(spool, publication, live)
        elif ending in ("idx", "names") and stem not in live:
            # An index without its ledger aside cannot be committed any more.
            detail, gone = "It belongs to no batch that is there.", stem not in asides
        elif ending == "tmp" and name.startswith("."):
            detail, gone = "A file that was being written.", False
        else:
            continue
        if gone and repair:
            remove(spool, path)
        report(Finding(kind="left_over", place=path, detail=detail, serious=False, repaired=gone and repair))


def _judge_aside(spool: Spool, publication: str, live: set[str]) -> tuple[str, bool]:
    if publication in live:
        return "A second name of a ledger that is in place.", True
    if _is_dead_fold(spool, publication):
        return "A fold that was never committed; its life has ended.", True
    # Its publisher may be slow, or asleep on another machine. It can still commit, and then it counts.
    return (
        "A publication that has not committed, so its tasks do not count; enqueue them again if its command ended.",
        False,
    )


def _is_dead_fold(spool: Spool, publication: str) -> bool:
    life = folding_life(publication)
    return life is not None and find_state(spool.files, spool.layout.life(life)) in (None, FENCED_STATE, DEAD)


def check_segments(spool: Spool, report: Report, *, repair: bool) -> bool:
    """Every packed record and all packed output is there. False when a header cannot be read: then nothing counts."""
    used: set[str] = set()
    readable = True
    for number in segment_numbers(spool):
        path = segment_path(spool, number)
        try:
            segment = open_segment(spool, number)
        except SpoolDamaged as error:
            report(Finding(kind="segment_damaged", place=path, detail=error.message))
            readable = False
            continue
        used.add(os.path.basename(segment.logs))
        wanted = sum(packed.records for packed in segment.lives.values())
        found = sum(1 for _ in segment_records(spool, number))
        if found != wanted:
            report(Finding(kind="segment_damaged", place=path, detail=f"{found} records where {wanted} are due."))
        _check_packed_output(spool, segment, report)
    if readable:
        _check_segments_folder(spool, used, report, repair=repair)
    return readable


def _check_packed_output(spool: Spool, segment: Segment, report: Report) -> None:
    wanted = max((one.at + sum(one.blocks) for packed in segment.lives.values() for one in packed.files), default=0)
    try:
        size = spool.files.size(segment.logs)
    except OSError as error:
        if error.errno not in GONE:
            raise
        size = -1
    if size < wanted:
        detail = f"It holds {max(size, 0)} bytes where {wanted} are due: output of tasks is lost, no outcome is."
        report(Finding(kind="output_damaged", place=segment.logs, detail=detail))


def _check_segments_folder(spool: Spool, used: set[str], report: Report, *, repair: bool) -> None:
    """What compactions left that died before their commit."""
    folder = spool.layout.segments
    before = spool.files.names(folder)[0]
    for number in segment_numbers(spool):
        used.add(os.path.basename(open_segment(spool, number).logs))
    for name in sorted(set(before) - used):
        match = _COMPACTION_FILE.fullmatch(name)
        if match is None:
            continue
        gone = find_state(spool.files, spool.layout.life(match["life"])) in (None, FENCED_STATE, DEAD)
        if gone and repair:
            remove(spool, os.path.join(folder, name))
        detail = "Part of a compaction that was not finished."
        place = os.path.join(folder, name)
        report(Finding(kind="left_over", place=place, detail=detail, serious=False, repaired=gone and repair))


def check_permits(
    spool: Spool, limits: Mapping[str, int], report: Report, *, repair: bool, again: Callable[[], None]
) -> None:
    """Permits that a ceiling promises and nobody has; permits of lives that ended. `again` waits between listings."""
    uses = spool.layout.uses
    missing: set[tuple[str, int]] = set()
    stuck: set[tuple[str, int, str]] = set()
    for turn in range(LISTINGS):
        if turn:
            if not missing and not stuck:
                return
            again()
        found = list_permits(spool)
        promised = {(name, number) for name, ceiling in limits.items() for number in range(1, ceiling + 1)}
        born = (name.removeprefix(".born") for name in spool.files.names(uses)[0] if name.startswith(".born"))
        promised |= {(name, 1) for name in born}
        absent = promised - {(name, number) for name, number, _ in found}
        gone = {(name, number, owner) for name, number, owner in found if owner and _has_ended(spool, owner)}
        missing, stuck = (missing & absent, stuck & gone) if turn else (absent, gone)
    for name, number in sorted(missing):
        base = os.path.join(uses, f"{name}.{number}")
        if repair:
            spool.files.create(base)
        report(Finding(kind="permit_missing", place=base, detail="Nobody has this permit.", repaired=repair))
    for name, number, owner in sorted(stuck):
        base = os.path.join(uses, f"{name}.{number}")
        if repair:
            move(spool.files, f"{base}@{owner}", base)
        detail = f"Its holder {owner} has ended."
        report(Finding(kind="permit_stuck", place=base, detail=detail, repaired=repair))


def _has_ended(spool: Spool, life: str) -> bool:
    return find_state(spool.files, spool.layout.life(life)) in (None, DEAD)
