"""What the accounting database allows a user: the rows of sacctmgr about associations and QOS."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from fleetcraft.schedulers.api import AccountLimits
from fleetcraft.schedulers.slurm_commands import ASSOCIATION_FIELDS, QOS_FIELDS
from fleetcraft.schedulers.slurm_quantities import read_tres
from fleetcraft.schedulers.slurm_site import config_number
from fleetcraft.schedulers.slurm_times import duration_s

_SHOWN = 120
_Rows = list[dict[str, str]]


def read_associations(text: str) -> tuple[tuple[AccountLimits, ...], tuple[str, ...]]:
    """The rows of `associations_argv`: what each account allows, and what could not be read."""
    rows, problems = _table(text, ASSOCIATION_FIELDS)
    found = []
    for row in rows:
        where = f"association {row['Account']}/{row['User']}"
        if row["Partition"]:
            where += f" in {row['Partition']}"
        limits = _limits(where, row, max_jobs="MaxJobs", max_submit="MaxSubmit", max_tres="GrpTRES")
        found.append(replace(limits, account=row["Account"], partition=row["Partition"]))
    return tuple(found), problems


def read_qos(text: str) -> tuple[tuple[AccountLimits, ...], tuple[str, ...]]:
    """The rows of `qos_argv`: what each QOS allows a user, and what could not be read."""
    rows, problems = _table(text, QOS_FIELDS)
    found = []
    for row in rows:
        row["MaxTRESPU"] = row["MaxTRESPU"] or row["GrpTRES"]
        where = f"QOS {row['Name']}"
        limits = _limits(where, row, max_jobs="MaxJobsPU", max_submit="MaxSubmitPU", max_tres="MaxTRESPU")
        found.append(replace(limits, qos=row["Name"]))
    return tuple(found), problems


def allowed_qos(text: str) -> tuple[str, ...]:
    """The QOS names that the associations of a user allow."""
    rows, _ = _table(text, ASSOCIATION_FIELDS)
    names = {name.lstrip("+-") for row in rows for name in row["QOS"].split(",")}
    return tuple(sorted(names - {""}))


def _table(text: str, fields: Sequence[str]) -> tuple[_Rows, tuple[str, ...]]:
    rows: _Rows = []
    problems: list[str] = []
    for line in text.split("\n"):
        if not line.strip():
            continue
        cells = line.split("|")
        if len(cells) == len(fields):
            rows.append(dict(zip(fields, (cell.strip() for cell in cells), strict=True)))
        else:
            problems.append(f"a row of sacctmgr with {len(cells)} of {len(fields)} columns: {line[:_SHOWN]!r}")
    return rows, tuple(problems)


def _limits(where: str, row: Mapping[str, str], *, max_jobs: str, max_submit: str, max_tres: str) -> AccountLimits:
    together, per_job = read_tres(row[max_tres]), read_tres(row["MaxTRES"])
    return AccountLimits(
        where=where,
        max_jobs=_smaller(config_number(row[max_jobs]), config_number(row["GrpJobs"])),
        max_submit=_smaller(config_number(row[max_submit]), config_number(row["GrpSubmit"])),
        max_nodes=together.get("node"),
        max_gpus=together.get("gres/gpu"),
        max_nodes_per_job=per_job.get("node"),
        max_wall_s=duration_s(row["MaxWall"]),
    )


def _smaller(first: int | None, second: int | None) -> int | None:
    known = [value for value in (first, second) if value is not None]
    return min(known) if known else None
