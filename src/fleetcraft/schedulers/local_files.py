"""The files of one local job: what was asked, what is wanted of it now, how far it is, and how it ended.

Every file has one writer and appears whole. The folder appears whole too, under the token's name: that is what makes
a second submission of the same token impossible. A job that was begun is never begun again.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from fleetcraft.schedulers.api import JobRef, JobRequest
from fleetcraft.schedulers.tokens import check_token, is_token
from fleetcraft.store.files import Files, publish_file
from fleetcraft.transports.processes import Process, boot_id, lives, process

# Every process of a job carries it, with the job's folder as its value, so that they are found whatever their parent,
# group or session is. A token alone would do only within one root.
MARK = "FLEETCRAFT_LOCAL_JOB"
NODES = "FLEETCRAFT_LOCAL_NODES"
NODE = "FLEETCRAFT_NODE"


class JobFolder:
    """The folder of one job. Readers give None for a file that is not there or not whole."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._files = Files()

    @property
    def token(self) -> str:
        """The token, which is the job's id too."""
        return os.path.basename(self.path)

    def at(self, name: str) -> str:
        """Path of a file in the folder."""
        return os.path.join(self.path, name)

    def read(self, name: str) -> dict[str, Any] | None:
        """One record."""
        try:
            found = json.loads(self._files.read(self.at(name)))
        except (OSError, ValueError):
            return None
        return found if isinstance(found, dict) else None

    def write(self, name: str, record: dict[str, Any]) -> None:
        """Replace one record."""
        publish_file(self._files, self.at(name), json.dumps(record).encode())

    def ask(self, name: str) -> None:
        """Leave a wish for the supervisor; asking twice is asking once."""
        with contextlib.suppress(FileExistsError):
            self._files.create(os.path.join(self.path, "asks", name))

    def unask(self, name: str) -> None:
        """Take a wish back, or mark it as done."""
        with contextlib.suppress(FileNotFoundError):
            self._files.unlink(os.path.join(self.path, "asks", name))

    def asks(self) -> list[str]:
        """All wishes, in the order of their names."""
        return sorted(os.listdir(os.path.join(self.path, "asks")))

    def supervisor(self) -> tuple[Process | None, str]:
        """The process that minds the job, if it lives here; else None and why."""
        record = self.read("supervisor.json")
        if record is None:
            return None, "nobody minds it yet"
        if record.get("host") != os.uname().nodename:
            return None, f"it was submitted on the host {record.get('host')}; only that host can tell"
        pid, ticks = int(record.get("pid", 0)), int(record.get("start_ticks", 0))
        if record.get("boot_id") != boot_id():
            return None, "the machine was started anew since"
        return (process(pid), "") if lives(pid, ticks) else (None, "its supervisor is gone")

    def write_supervisor(self) -> None:
        """Sign as the supervisor; only the holder of the lock does."""
        me = process(os.getpid())
        self.write(
            "supervisor.json",
            {
                "host": os.uname().nodename,
                "boot_id": boot_id(),
                "pid": os.getpid(),
                "start_ticks": me.start_ticks if me else 0,
            },
        )

    def is_minded(self) -> bool:
        """Whether some process holds the supervisor's lock."""
        with held(self.at("supervisor.lock")) as mine:
            return not mine


@contextlib.contextmanager
def held(path: str, *, wait: bool = False) -> Iterator[bool]:
    """Hold a lock file; False when another process has it. The kernel drops it with its holder, however that dies."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            yield False
            return
        yield True
    finally:
        os.close(descriptor)


def make(root: str, request: JobRequest, options: dict[str, Any]) -> tuple[JobFolder, bool]:
    """Make the folder of a job; False when a job with this token is there already."""
    files = Files()
    jobs = os.path.join(root, "jobs")
    os.makedirs(jobs, mode=0o700, exist_ok=True)
    folder = JobFolder(os.path.join(jobs, check_token(request.token)))
    if files.exists(folder.path):
        return folder, False
    aside = os.path.join(jobs, f".{request.token}.{os.urandom(8).hex()}")
    files.make_folder(aside)
    files.make_folder(os.path.join(aside, "asks"))
    if request.hold:
        files.create(os.path.join(aside, "asks", "hold"))
    record = {**asdict(request), "options": options}
    publish_file(files, os.path.join(aside, "script"), record.pop("script").encode())
    publish_file(files, os.path.join(aside, "request.json"), json.dumps(record).encode())
    try:
        files.rename(aside, folder.path)  # fails when the folder is there: it is never empty
    except OSError:
        shutil.rmtree(aside, ignore_errors=True)
        if not files.exists(folder.path):
            raise
        return folder, False
    files.sync_folder(jobs)
    return folder, True


def folder_of(root: str, ref: JobRef) -> JobFolder | None:
    """The folder of a job, or None when there is none; raises OSError when that cannot be told."""
    if not is_token(ref.id):
        return None
    path = os.path.join(root, "jobs", ref.id)
    return JobFolder(path) if Files().exists(path) else None


def all_folders(root: str) -> list[JobFolder]:
    """Every job that was ever submitted here."""
    jobs = os.path.join(root, "jobs")
    try:
        names = os.listdir(jobs)
    except FileNotFoundError:
        return []
    return [JobFolder(os.path.join(jobs, name)) for name in sorted(names) if is_token(name)]
