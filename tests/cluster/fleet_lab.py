"""A user with a profile, a spool and fleets on the real cluster, and the facts that prove what became of the work.

Everything goes through the command line, as the ordinary user. Each task holds a lock of the kernel while any process
of it lives, and writes down when it began and ended, so a task that ran twice at once cannot stay hidden.
"""

from __future__ import annotations

import fcntl
import itertools
import json
import os
import subprocess
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.cluster import usercode
from tests.cluster.slurm_cluster import SlurmCluster

# Of the worker: how long the scheduler's word that a job ended must hold.
JOB_GRACE = "FLEETCRAFT_JOB_GRACE=2s"
_RUNS = itertools.count()

_PROFILE = """
format = 1
description = "the test cluster"
[scheduler]
kind = "slurm"
poll_floor = "10s"
submit_gap = "0s"
requeue = {requeue}
command_timeout = "{command_timeout_s}s"
[defaults]
partition = "gpu"
time = "10m"
[partitions.gpu]
nodes = {nodes}
gpus_per_node = {gpus}
cpus_per_node = {cpus}
max_time = "1-00:00:00"
su_rate = 2.0
[partitions.low]
nodes = {nodes}
gpus_per_node = {gpus}
cpus_per_node = {cpus}
preemptible = true
[setup]
python = "{python}"
{setup}
{more}
"""

# The lock is let go by the kernel when the process is gone, however it went.
_TASK = """#!/usr/bin/python3 -ISE
# NAME SECONDS: an ordinary task.   NAME SECONDS save: one that saves its state at USR1, and then runs shorter.
import fcntl, os, signal, socket, sys, time
lab, (name, left, *more) = {lab!r}, sys.argv[1:]
saved = os.path.join(lab, "saved", name)
lock = open(os.path.join(lab, "locks", name), "a")
def say(what):
    with open(os.path.join(lab, "ran"), "a") as log:
        log.write(f"{{name}} {{what}} {{time.time()}} {{socket.gethostname()}}\\n")
def save(*_):
    open(saved, "a").close()
    say("saved")
    os._exit(75)
try:
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    with open(os.path.join(lab, "twice"), "a") as log:
        log.write(name + "\\n")
    sys.exit(97)
if more:
    signal.signal(signal.SIGUSR1, save)
say("begin")
time.sleep(0.1 if os.path.exists(saved) else float(left))
say("end")
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One time that a task ran, by its own words."""

    task: str
    begin_utc: float
    node: str
    end_utc: float | None = None
    saved: bool = False


class FleetLab:
    """One person's work on a cluster."""

    def __init__(
        self, cluster: SlurmCluster, *, requeue: bool = False, command_timeout_s: int = 20, more: str = ""
    ) -> None:
        self.cluster = cluster
        self.python = usercode.python_for_user(cluster)
        self.folder = cluster.folder(f"lab-{next(_RUNS)}")
        for name in ("locks", "saved", "home"):
            self._own(self.folder / name, folder=True)
        self.spool = self.folder / "spool"
        self._fresh = itertools.count()
        lines = [f"{name} = {json.dumps(value)}" for name, value in self.python.env.items()]
        text = _PROFILE.format(
            nodes=len(cluster.node_names),
            gpus=cluster.policy.gpus_per_node,
            cpus=cluster.policy.cpus_per_node,
            requeue=str(requeue).lower(),
            command_timeout_s=command_timeout_s,
            python=self.python.path,
            setup="[setup.env]\n" + "\n".join(lines) if lines else "",
            more=more,
        )
        self.profile = self.folder / "lab.toml"
        self._write(self.profile, text)
        self.script = self.folder / "task.py"
        self._write(self.script, _TASK.format(lab=str(self.folder)))
        self.script.chmod(0o755)

    # Files of the user

    def _own(self, path: Path, *, folder: bool = False) -> None:
        if folder:
            path.mkdir()
        os.chown(path, self.cluster.user.pw_uid, self.cluster.user.pw_gid)

    def _write(self, path: Path, text: str) -> None:
        path.write_text(text)
        self._own(path)

    # Commands of the user

    def env(self, *, later: bool = True) -> dict[str, str]:
        """The user's variables. With `later` it is as if the pause between two questions were over."""
        cache = self.folder / "home" / (f"cache-{next(self._fresh)}" if later else "cache")
        return {
            **self.python.env,
            "HOME": str(self.folder / "home"),
            "XDG_CACHE_HOME": str(cache),
            "FLEETCRAFT_SPOOL": str(self.spool),
            "FLEETCRAFT_PROFILE": str(self.profile),
        }

    def call(
        self, *words: str, stdin: str = "", later: bool = True, timeout_s: float = 120.0
    ) -> subprocess.CompletedProcess[str]:
        """`fleetcraft WORDS` as the user, whatever it ends with."""
        return self.cluster.run(
            self.python.argv(*words), env=self.env(later=later), stdin=stdin, check=False, timeout_s=timeout_s
        )

    def ask(self, *words: str, code: int = 0, stdin: str = "", later: bool = True) -> dict[str, Any]:
        """The JSON answer of a command that must end with `code`."""
        answer = self.call(*words, "--json", stdin=stdin, later=later)
        said = f"{' '.join(words)} ended with {answer.returncode}: {answer.stdout}{answer.stderr}"
        assert answer.returncode == code, said
        document: dict[str, Any] = json.loads(answer.stdout)
        return document

    def popen(self, *words: str) -> subprocess.Popen[str]:
        """The same in the background; the test waits for it."""
        return self.cluster.popen(self.python.argv(*words), cwd=self.folder, env=self.env())

    # Work

    def enqueue(self, names: Iterable[str], seconds: float, *options: str, save: bool = False) -> list[str]:
        """Tasks of this lab."""
        names = list(names)
        words = [str(self.script), "", f"{seconds:g}", *(["save"] if save else [])]
        lines = [
            json.dumps({"name": name, "command": [words[0], name, *words[2:]], **_save_keys(save)}) for name in names
        ]
        self.ask("task", "enqueue", "--from", "-", "--form", "jsonl", *options, stdin="\n".join(lines) + "\n")
        return names

    def submit(self, fleet: str = "main", *options: str, code: int = 0) -> list[dict[str, Any]]:
        """`fleet submit`; what it says of each job."""
        words = ("--env", JOB_GRACE, "--worker-cpus", "2", *options)
        said: list[dict[str, Any]] = self.ask("fleet", "submit", fleet, *words, code=code).get("submitted", [])
        return said

    def submit_one(self, fleet: str = "main", *options: str) -> int:
        """The id of the one job."""
        (one,) = self.submit(fleet, *options)
        return int(one["job"])

    def ensure(self, fleet: str = "main", *options: str, code: int = 0) -> dict[str, Any]:
        """One pass."""
        return self.ask("fleet", "ensure", fleet, *options, code=code)

    def status(self, fleet: str = "main", code: int = 0) -> dict[str, Any]:
        """One fleet as `fleet status` shows it; it ends with 75 when the scheduler did not answer."""
        (one,) = self.ask("fleet", "status", fleet, code=code)["fleets"]
        return dict(one)

    # Facts

    def counts(self) -> dict[str, int]:
        """How the tasks stand."""
        said = self.ask("spool", "status")
        return {name: said[name] for name in ("total", "succeeded", "running", "claimed", "waiting", "failed")}

    def tasks(self) -> list[dict[str, Any]]:
        """Every task as `task list` shows it."""
        listed: list[dict[str, Any]] = self.ask("task", "list")["tasks"]
        return listed

    def attempts(self, name: str) -> list[dict[str, Any]]:
        """Every attempt of a task."""
        shown: list[dict[str, Any]] = self.ask("task", "show", name)["attempts"]
        return shown

    def wait_done(self, deadline_s: float = 60.0) -> dict[str, int]:
        """Wait until every task succeeded."""
        last: dict[str, int] = {}

        def look() -> dict[str, int] | None:
            last.clear()
            last.update(self.counts())
            return last if last["succeeded"] == last["total"] else None

        return self.cluster.wait_for(look, "every task succeeded", deadline_s, lambda: (last, self.said()))

    def wait_ran(self, count: int, deadline_s: float = 60.0) -> list[Run]:
        """Wait until so many runs began."""

        def look() -> list[Run] | None:
            runs = self.runs()
            return runs if len(runs) >= count else None

        return self.cluster.wait_for(look, f"{count} runs began", deadline_s, lambda: (len(self.runs()), self.said()))

    def runs(self) -> list[Run]:
        """Every run that a task wrote down, in order of its begin."""
        try:
            lines = (self.folder / "ran").read_text().splitlines()
        except FileNotFoundError:
            return []
        runs: list[Run] = []
        last: dict[str, int] = {}
        for task, what, at, node in (line.split() for line in lines):
            if what == "begin":
                last[task] = len(runs)
                runs.append(Run(task=task, begin_utc=float(at), node=node))
            else:
                old = runs[last[task]]
                runs[last[task]] = Run(
                    task=task, begin_utc=old.begin_utc, node=old.node, end_utc=float(at), saved=what == "saved"
                )  # fmt: skip
        return runs

    def running(self) -> list[str]:
        """The tasks that run now, by the locks that their processes hold."""
        held = []
        for path in sorted((self.folder / "locks").iterdir()):
            with path.open("rb") as lock:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    held.append(path.name)
        return held

    def be_quick(self, names: Iterable[str]) -> None:
        """As if they had saved their state: the next run of each is short."""
        for name in names:
            (self.folder / "saved" / name).touch()

    def workers(self) -> dict[str, dict[str, Any]]:
        """What every life of the spool said of itself at its birth, by its name."""
        paths = self.spool.glob("workers/*/identity.json")
        return {path.parent.name: json.loads(path.read_text()) for path in paths}

    def cpus_by_host(self) -> dict[str, int]:
        """How many CPUs each worker gave out, by its host."""
        found: dict[str, int] = {}
        for path in self.spool.glob("workers/*/journal.jsonl"):
            records = [json.JSONDecoder().raw_decode(line)[0] for line in path.read_text().splitlines()]
            up = next((record for record in records if record.get("what") == "up"), None)
            if up is not None:
                identity = json.loads((path.parent / "identity.json").read_text())
                found[identity["host"]] = up["capacity"]["cpus"]
        return found

    def times(self, job: int) -> tuple[float, float]:
        """Start and end of an ended job by the accounts, in whole seconds."""

        def look() -> list[str] | None:
            words = ["sacct", "-X", "-n", "-P", "-o", "Start,End", "-j", str(job)]
            cells = self.cluster.run(words, env={"SLURM_TIME_FORMAT": "%s"}).stdout.strip().split("|")
            return cells if all(cell.isdigit() for cell in cells) else None

        start, end = self.cluster.wait_for(look, "the accounts know start and end")
        return float(start), float(end)

    def job_of(self, token: str) -> int | None:
        """The job that the fleet's records name for a token."""
        for path in sorted(self.spool.glob("fleets/*/records/*.json")):
            record = json.loads(path.read_text())
            if record.get("token") == token and record["kind"] == "submitted":
                ref = record["ref"]
                return int(ref["id"] if isinstance(ref, dict) else ref)
        return None

    def check_work(self, names: Sequence[str]) -> list[Run]:
        """Nothing lost, nothing twice: each task ran to its end exactly once, and never beside itself."""
        assert not (self.folder / "twice").exists(), (self.folder / "twice").read_text()
        runs = self.runs()
        ended = Counter(run.task for run in runs if run.end_utc is not None and not run.saved)
        assert ended == Counter(names), {name: count for name, count in ended.items() if count != 1}
        listed = self.tasks()
        assert {task["name"]: task["state"] for task in listed} == dict.fromkeys(names, "succeeded")
        return runs

    def jobs_by_token(self) -> dict[str, list[str]]:
        """Job ids by token, from the accounts and the queue: what the scheduler itself says was submitted."""
        words = ["sacct", "-X", "-D", "-n", "-P", "-S", "now-1day", "-E", "now+1day", "-o", "JobName,JobID"]
        text = self.cluster.run(words).stdout
        text += self.cluster.run(["squeue", "-h", "--me", "-t", "all", "-o", "%j|%A"]).stdout
        found: dict[str, set[str]] = {}
        for line in text.splitlines():
            name, _, job = line.rpartition("|")
            found.setdefault(name.rpartition(".")[2], set()).add(job)
        return {token: sorted(jobs) for token, jobs in found.items()}

    def records(self, fleet: str = "main") -> list[dict[str, Any]]:
        """The fleet's own records, in order."""
        folder = self.spool / "fleets" / fleet / "records"
        paths = sorted(folder.glob("*.json"), key=lambda path: int(path.stem))
        return [json.loads(path.read_text()) for path in paths]

    def tokens(self, fleet: str = "main") -> list[str]:
        """Every token that was ever to be submitted."""
        return [record["token"] for record in self.records(fleet) if record["kind"] == "intent"]

    def check_single_submissions(self, *fleets: str) -> int:
        """No token stands on two jobs; how many jobs there are."""
        known = self.jobs_by_token()
        jobs = [known.get(token, []) for fleet in fleets or ("main",) for token in self.tokens(fleet)]
        assert all(len(one) <= 1 for one in jobs), jobs
        return sum(map(len, jobs))

    def said(self) -> str:
        """What the jobs' scripts and workers said, for the message of a failure."""
        texts = [
            f"{path.parent.name}:\n{path.read_text(errors='replace')[-2000:]}"
            for path in sorted(self.spool.glob("fleets/*/jobs/*/output.log"))
        ]
        return "\n".join(texts)


def occupy(cluster: SlurmCluster, *nodes: str) -> int:
    """Other people's work on these nodes, or on all of them."""
    names = nodes or cluster.node_names
    job = cluster.sbatch(f"-N{len(names)}", "-w", ",".join(names), "--exclusive", script="srun sleep 900", user="root")
    cluster.wait_job(job, "RUNNING")
    return job


def _save_keys(save: bool) -> dict[str, Any]:
    return {"checkpoint_signal": "USR1", "checkpoint_grace": 5} if save else {}
