"""A cluster as seen from its login node: commands of the ordinary user and of root, jobs, and what they came to."""

from __future__ import annotations

import contextlib
import os
import pwd
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, TypeVar

from tests.cluster import conf, machine
from tests.cluster.policy import ClusterPolicy
from tests.support import waiting

T = TypeVar("T")
# Each look is a process or two, and the controller has to answer it.
_LOOK_EVERY_S = 0.2


class Login:
    """Where people type. Commands run as the ordinary user unless they say root."""

    root: Path
    user: pwd.struct_passwd
    site: conf.Site
    background: list[subprocess.Popen[str]]  # commands that a test left running

    # Facts

    @property
    def policy(self) -> ClusterPolicy:
        return self.site.policy

    @property
    def node_names(self) -> tuple[str, ...]:
        return self.site.node_names

    @property
    def slurm_conf(self) -> Path:
        return self.root / "etc" / "slurm.conf"

    @property
    def shared(self) -> Path:
        """A folder that everybody may write in, as a scratch file system is."""
        return self.root / "shared"

    def folder(self, name: str) -> Path:
        """A new folder of the ordinary user, on what all nodes share."""
        path = self.shared / name
        path.mkdir()
        os.chown(path, self.user.pw_uid, self.user.pw_gid)
        return path

    def node_states(self) -> dict[str, str]:
        """State by node, in the controller's words (idle, mixed, allocated, down*, ...)."""
        answer = self.run(["sinfo", "-h", "-N", "-p", "gpu", "-o", "%N %T"], user="root", check=False)
        pairs = (line.split() for line in answer.stdout.splitlines())
        return {pair[0]: pair[1] for pair in pairs if len(pair) == 2}

    def all_idle(self) -> bool:
        states = self.node_states()
        return len(states) == len(self.node_names) and set(states.values()) == {"idle"}

    # Commands

    def environment(self, user: str = machine.USER) -> dict[str, str]:
        """What a login on this cluster gives to a user."""
        home = str(self.root / "home") if user == machine.USER else "/root"
        return {
            "PATH": machine.PATH,
            "HOME": home,
            "USER": user,
            "LOGNAME": user,
            "SHELL": "/bin/bash",
            "LANG": "C.UTF-8",
            "SLURM_CONF": str(self.slurm_conf),
        }

    def user_argv(self, words: Sequence[str], env: Mapping[str, str] | None = None) -> list[str]:
        """The argv, for root, that runs `words` as the ordinary user in the environment of a login."""
        identity = [f"--reuid={self.user.pw_uid}", f"--regid={self.user.pw_gid}", "--clear-groups"]
        variables = {**self.environment(), **(env or {})}
        assignments = [f"{name}={value}" for name, value in variables.items()]
        return [machine.program("setpriv"), *identity, "/usr/bin/env", "-i", *assignments, *words]

    def run(
        self,
        words: Sequence[str],
        *,
        user: str = machine.USER,
        cwd: Path | str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: str = "",
        timeout_s: float = 60.0,
        check: bool = True,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command on the login node, as the ordinary user or as root, and wait for it."""
        argv = self.user_argv(words, env) if user == machine.USER else list(words)
        answer = subprocess.run(
            argv,
            cwd=cwd or self.shared,
            env=None if user == machine.USER else {**self.environment(user), **(env or {})},
            input=stdin,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            check=False,
        )
        if check and answer.returncode != 0:
            raise AssertionError(f"{' '.join(words)} ended with {answer.returncode}: {answer.stderr}{answer.stdout}")
        return answer

    def popen(
        self, words: Sequence[str], *, cwd: Path, env: Mapping[str, str] | None = None, stdin: IO[str] | None = None
    ) -> subprocess.Popen[str]:
        """The same as the ordinary user in the background. A test waits for it; one that fails may have left it."""
        started = subprocess.Popen(
            self.user_argv(words, env),
            cwd=cwd,
            stdin=stdin or subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,  # so that what it started ends with it
        )
        self.background.append(started)
        return started

    def end_background(self) -> None:
        """End the commands that still run: one of them might submit a job into the next test."""
        while self.background:
            started = self.background.pop()
            if started.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(started.pid, signal.SIGKILL)
            if started.stdout is not None and not started.stdout.closed:
                started.communicate()

    def sacctmgr(self, *words: str) -> str:
        """Change or read the accounts, as the administrator, without a question."""
        return self.run(["sacctmgr", "-i", *words], user="root").stdout

    def scontrol(self, *words: str, user: str = "root") -> str:
        return self.run(["scontrol", *words], user=user).stdout

    def sbatch(self, *options: str, script: str, cwd: Path | None = None, user: str = machine.USER) -> int:
        """Submit a script of bash lines; the id of the job."""
        text = script if script.startswith("#!") else f"#!/bin/bash\n{script}\n"
        return int(self.run(["sbatch", "--parsable", *options], stdin=text, cwd=cwd, user=user).stdout.split(";")[0])

    def job_state(self, job_id: int) -> str:
        """What the queue says of a job, then what accounting says; empty when neither knows it."""
        live = self.run(["squeue", "-h", "-t", "all", "-o", "%T", "-j", str(job_id)], check=False).stdout.split()
        if live or not self.policy.accounting:
            return live[0] if live else ""
        done = self.run(["sacct", "-X", "-n", "-P", "-o", "State", "-j", str(job_id)], check=False).stdout.splitlines()
        return done[-1] if done else ""

    def job(self, job_id: int) -> dict[str, str]:
        """The controller's fields of a job. Values with spaces are cut; our names have none."""
        text = self.run(["scontrol", "-o", "show", "job", str(job_id)], user="root", check=False).stdout
        return dict(word.split("=", maxsplit=1) for word in text.split() if "=" in word)

    def wait_for(
        self,
        fact: Callable[[], T | None],
        what: str,
        deadline_s: float = 60.0,
        seen: Callable[[], object] | None = None,
    ) -> T:
        """Wait on a fact that costs a command: as `waiting.wait_for`, but with fewer looks."""
        return waiting.wait_for(fact, what, deadline_s, seen, _LOOK_EVERY_S)

    def wait_job(self, job_id: int, *states: str, deadline_s: float = 60.0) -> str:
        """Wait until a job is in one of the states; a state matches by its beginning."""

        def look() -> str | None:
            state = self.job_state(job_id)
            return state if state.startswith(states) else None

        return self.wait_for(
            look,
            f"job {job_id} is {' or '.join(states)}",
            deadline_s,
            lambda: self.job(job_id) or self.job_state(job_id),
        )

    def cancel_all(self, deadline_s: float = 60.0) -> None:
        """Cancel every job and wait until nothing waits, runs or completes: what a test leaves to the next.

        The controller remembers how they ended for MinJobAge, and nothing makes it forget them earlier: no test may
        expect `squeue --states=all` to be empty.
        """

        def queue() -> list[str] | None:
            # Without states it shows what has not ended, and of that which has whatever is still completing.
            answer = self.run(["squeue", "-h", "-a", "-o", "%A %T"], user="root", check=False)
            return answer.stdout.splitlines() if answer.returncode == 0 else None

        def queue_is_empty() -> bool:
            rows = queue()
            ids = sorted({row.split()[0] for row in rows or () if not row.endswith("COMPLETING")})
            if ids:
                # First what does not ask, since what traps SIGTERM would have the whole KillWait.
                self.run(["scancel", "--full", "--signal=KILL", *ids], user="root", check=False)
                self.run(["scancel", *ids], user="root", check=False)
            return rows == []

        self.wait_for(queue_is_empty, "the queue is empty", deadline_s, queue)
