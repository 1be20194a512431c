"""What is kept of the jobs of a PSI/J back end: what was asked, the id, and what the script itself says of its end.

PSI/J remembers nothing between processes and most back ends forget exit codes. A record without an id is an
intention whose reply was lost; the job tells its id itself when it begins.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import Any

from fleetcraft.schedulers.api import JobRequest
from fleetcraft.store.files import Files, publish_file

# The first argument is where the records of the job begin.
_WRAPPER = """#!/bin/sh
here=$1
id=${SLURM_JOB_ID:-${PBS_JOBID:-${LSB_JOBID:-${FLUX_JOB_ID:-$$}}}}
echo "$id $(date +%s)" >"$here.began.tmp" && mv "$here.began.tmp" "$here.began"
/bin/bash "$here.script"
code=$?
echo "$code $(date +%s)" >"$here.ended.tmp" && mv "$here.ended.tmp" "$here.ended"
exit $code
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class PsijRecord:
    """What one job's files say."""

    asked: dict[str, Any]
    began: tuple[str, float] | None  # under which id, and when
    ended: tuple[int, float] | None  # with which code, and when

    @property
    def native_id(self) -> str | None:
        """The id, from the reply or from the job itself."""
        found = self.asked.get("native_id") or (self.began[0] if self.began is not None else None)
        return None if found is None else str(found)


class PsijRecords:
    """All jobs that were submitted from one folder."""

    def __init__(self, folder: str) -> None:
        self.folder = os.path.abspath(folder)
        self._files = Files()
        os.makedirs(self.folder, mode=0o700, exist_ok=True)

    def at(self, token: str, ending: str) -> str:
        """Path of one file of a job."""
        return os.path.join(self.folder, f"{token}.{ending}")

    def of(self, token: str) -> PsijRecord | None:
        """The record of a job, None when there is none; raises OSError when that cannot be told."""
        try:
            asked = json.loads(self._files.read(self.at(token, "json")))
        except FileNotFoundError:
            return None
        return PsijRecord(asked=asked, began=self._pair(token, "began"), ended=_numbers(self._pair(token, "ended")))

    def _pair(self, token: str, ending: str) -> tuple[str, float] | None:
        try:
            first, second = self._files.read(self.at(token, ending)).decode().split()
            return first, float(second)
        except (OSError, ValueError):
            return None

    def tokens(self) -> dict[str, str]:
        """Token by native id."""
        found: dict[str, str] = {}
        for name in sorted(os.listdir(self.folder)):
            token, dot, ending = name.rpartition(".")
            record = self.of(token) if dot and ending == "json" and token and not token.startswith(".") else None
            if record is not None and record.native_id is not None:
                found[record.native_id] = token
        return found

    def intend(self, request: JobRequest, now_utc: float) -> None:
        """Write everything down; from here on only a look-up may say that the job is not there."""
        token = request.token
        publish_file(self._files, self.at(token, "script"), request.script.encode())
        publish_file(self._files, self.at(token, "run"), _WRAPPER.encode())
        asked = {
            "name": request.name,
            "at_utc": now_utc,
            "nodes": request.nodes,
            "gpus": request.nodes * request.gpus_per_node,
            "time_limit_s": request.time_limit_s,
            "qos": request.qos,
            "account": request.account,
        }
        self._write(token, asked)

    def note_id(self, token: str, native_id: str) -> None:
        """The reply came."""
        record = self.of(token)
        self._write(token, {**(record.asked if record is not None else {}), "native_id": native_id})

    def forget(self, token: str) -> None:
        """Nothing was submitted: the token is free."""
        self._files.unlink(self.at(token, "json"))

    def _write(self, token: str, asked: dict[str, Any]) -> None:
        publish_file(self._files, self.at(token, "json"), json.dumps(asked).encode())


def _numbers(pair: tuple[str, float] | None) -> tuple[int, float] | None:
    return (int(pair[0]), pair[1]) if pair is not None and pair[0].isdigit() else None
