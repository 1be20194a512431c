"""A short job that proves a site: environment, GPUs, spool, driver library, and one task from enqueue to receipt.

Each check leaves its exit code and its output in the job's folder, so a job that is killed half-way still tells how far
it came. The verdicts are made by whoever reads them.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from typing import Any

from fleetcraft.fleet.handle import Fleet
from fleetcraft.fleet.names import FleetFolder
from fleetcraft.fleet.quoting import quote_all
from fleetcraft.fleet.records import Overtaken
from fleetcraft.fleet.render import Launch, assemble, contained, script_line
from fleetcraft.fleet.spec import SMOKE_CHECK, FleetSpec
from fleetcraft.fleet.state import SMOKE, Job
from fleetcraft.fleet.submit import Draft, Submitted, Wish, declare, draft, submit
from fleetcraft.store.files import GONE

TIME_LIMIT_S = 1800.0
CHECKS = ("environment", "gpus", "spool", "nvml", "task")
PASSED, FAILED, SKIPPED, MISSING = "passed", "failed", "skipped", "missing"
_SKIP_CODE = 77
_NVML = (
    "import sys; from fleetcraft.telemetry.nvml import NvmlSensor; sensor = NvmlSensor(); "
    "found = sensor.devices(); print(sensor.reason); "
    "print(len(found), 'devices'); print(*found, sep='\\n'); sys.exit(len(found) < int(sys.argv[1]))"
)
_MOST_TEXT = 2000
_TASK = "smoke"
_RECEIPT = re.compile(r"^  attempt +\d+  .*$", re.MULTILINE)


# A job of which a check failed has failed, too; what matters here is that it came to its end.
_STATES = {
    "done": "ended", "failed": "ended", "running": "runs", "pending": "waits", "timeout": "ran into its time limit",
    "cancelled": "was cancelled",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One check: its verdict and what it said."""

    name: str
    verdict: str
    code: int | None
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SmokeResult:
    """All checks of one smoke job."""

    token: str
    job: str | None
    state: str
    host: str | None
    checks: tuple[Check, ...]

    @property
    def sentence(self) -> str:
        """How the job and its checks stand."""
        where = f" on {self.host}" if self.host else ""
        wrong = {
            word: [check.name for check in self.checks if check.verdict == verdict]
            for word, verdict in (("failed", FAILED), ("did not run", MISSING))
        }
        told = [f"{' and '.join(names)} {word}" for word, names in wrong.items() if names]
        state = _STATES.get(self.state, f"is {self.state}")
        return f"job {self.job or self.token} {state}{where}: {'; '.join(told) or 'all is well'}"

    @property
    def ok(self) -> bool:
        """True when nothing failed and nothing is missing."""
        return all(check.verdict in (PASSED, SKIPPED) for check in self.checks)

    def as_json(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            "token": self.token, "job": self.job, "state": self.state, "host": self.host, "ok": self.ok,
            "checks": [
                {"name": one.name, "verdict": one.verdict, "code": one.code, "text": one.text} for one in self.checks
            ],
        }  # fmt: skip


_RUN_CHECK = r"""
checks="$job_dir/smoke"
mkdir -p -- "$checks"
check() {
  [ -z "$heard" ] || return 0
  ("check_$1") >"$checks/.$1.out" 2>&1
  result=$?
  mv -f -- "$checks/.$1.out" "$checks/$1.out"
  printf '%s\n' "$result" >"$checks/.$1.code" && mv -f -- "$checks/.$1.code" "$checks/$1.code"
  [ "$result" -eq 0 ] || [ "$result" -eq 77 ] || code=1
}
code=0
""".strip("\n")


def render_smoke(spec: FleetSpec, folder: FleetFolder, token: str, launch: Launch) -> str:
    """The script of a smoke job."""
    spool = folder.spool
    bench = os.path.join(folder.job(token).smoke, "spool")

    def ours(*words: str) -> str:
        return quote_all(contained(spec, [*spec.program, *words], spool))

    worker = [*spec.program, "worker", "run", "--spool", bench, "--idle-exit", "0s", "--gpus", spec.worker.gpus]
    body = "\n".join(
        (
            _RUN_CHECK,
            "check_environment() {",
            "  uname -a && date && pwd && umask",
            f"  {ours('--version')}",
            "}",
            "check_gpus() {",
            f"  asked={spec.gpus_per_node}",
            '  [ "$asked" -gt 0 ] || { echo "no GPU was asked for"; return 77; }',
            *_without(spec, ("simulated:",)),
            "  timeout 60 nvidia-smi -L || return 1",
            "  found=$(timeout 60 nvidia-smi -L | grep -c '^GPU ')",
            '  [ "$found" -ge "$asked" ] || { echo "$found GPUs are visible, $asked were asked for"; return 1; }',
            "}",
            "check_spool() {",
            '  probe="$checks/probe.$$"',
            '  : >"$probe" && ln -- "$probe" "$probe.link" && mv -- "$probe.link" "$probe.moved" || return 1',
            '  sync -- "$probe.moved" && rm -- "$probe" "$probe.moved" || return 1',
            f"  {ours('spool', 'status', '--spool', spool)}",
            "}",
            "check_nvml() {",
            f"  asked={spec.gpus_per_node}",
            '  [ "$asked" -gt 0 ] || { echo "no GPU was asked for"; return 77; }',
            *_without(spec, ("simulated:", "none")),
            f"  {_python_line(spec, spool)}",
            "}",
            "check_task() {",
            f"  {ours('task', 'enqueue', '--spool', bench, '--name', _TASK, '--', 'true')} || return 1",
            f"  {script_line(launch(contained(spec, worker, spool)))} || return 1",
            f"  {ours('task', 'show', '--spool', bench, _TASK)} || return 1",
            f"  {ours('spool', 'status', '--spool', bench, '--exit-code')}",
            "}",
            *(f"check {name}" for name in CHECKS),
        )
    )
    return assemble(spec, folder, token, body, title="checks of the site")


def _without(spec: FleetSpec, kinds: tuple[str, ...]) -> list[str]:
    """A line that leaves a check out where the workers are told to use no real GPU."""
    if not spec.worker.gpus.startswith(kinds):
        return []
    return [f'  echo "workers get --gpus {spec.worker.gpus}: no driver is expected"; return 77']


def _python_line(spec: FleetSpec, spool: str) -> str:
    """The program's own interpreter, with its own code."""
    program, asked = spec.program, str(spec.gpus_per_node)
    if len(program) == 2 and program[1].endswith(".pyz"):
        words = contained(spec, ["env", f"PYTHONPATH={program[1]}", program[0], "-c", _NVML, asked], spool)
    elif len(program) >= 3 and program[-2:] == ("-m", "fleetcraft"):
        words = contained(spec, [*program[:-2], "-c", _NVML, asked], spool)
    else:
        return 'echo "the program is no Python that could be asked"; return 77'
    return quote_all(words)


def check_spec(spec: FleetSpec) -> FleetSpec:
    """The same site and nodes, for half an hour at most."""
    limit_s = min(spec.time_limit_s, TIME_LIMIT_S)
    return replace(spec, shape=SMOKE_CHECK, lanes=0, min_nodes=0, time_limit_s=limit_s)


def smoke_draft(fleet: Fleet, spec: FleetSpec) -> Draft:
    """What would be submitted."""
    spec = check_spec(spec)
    wish = Wish(spec=spec, why="a check of the site", purpose=SMOKE)
    return draft(
        fleet, fleet.state(), wish, script_for=lambda token: render_smoke(spec, fleet.folder, token, fleet.launch())
    )


def submit_smoke(fleet: Fleet, spec: FleetSpec) -> Submitted:
    """Submit the checks. Raises Overtaken after too many races."""
    fleet.log.create()
    spec = check_spec(spec)
    for _ in range(fleet.policy.attempts):
        try:
            number = declare(fleet, fleet.state(), spec)
            return submit(fleet, smoke_draft(fleet, spec), spec_number=number)
        except Overtaken:
            continue
    raise Overtaken(f"Other passes over the fleet {fleet.name} were faster.", hint="Run it again.")


def read_smoke(fleet: Fleet, token: str) -> SmokeResult:
    """The verdicts so far. What is not there yet is missing, not failed."""
    from fleetcraft.fleet.look import read_file

    job: Job | None = fleet.state().jobs.get(token)
    started = read_file(fleet, fleet.folder.job(token).started)
    return SmokeResult(
        token=token,
        job=str(job.ref) if job is not None and job.ref else None,
        state=job.state.value if job is not None and job.state else "unknown",
        host=str(started.get("host")) if started else None,
        checks=tuple(_read_check(fleet, fleet.folder.job(token).smoke, name) for name in CHECKS),
    )


def _read_check(fleet: Fleet, folder: str, name: str) -> Check:
    raw = _read(fleet, os.path.join(folder, f"{name}.code")).strip()
    text = _read(fleet, os.path.join(folder, f"{name}.out")).strip()[-_MOST_TEXT:]
    code = int(raw) if raw.isdigit() else None
    receipts = _RECEIPT.findall(text) if name == "task" else []
    if receipts:
        # Above what led to it: the outcome is what this check is about.
        text = f"{' '.join(receipts[-1].split())}\n{text}"
    if code is None:
        return Check(name=name, verdict=MISSING, code=None, text=text or "it has not run")
    verdict = PASSED if code == 0 else (SKIPPED if code == _SKIP_CODE else FAILED)
    return Check(name=name, verdict=verdict, code=code, text=text)


def _read(fleet: Fleet, path: str) -> str:
    try:
        return fleet.spool.files.read(path).decode("utf-8", "replace")
    except OSError as error:
        if error.errno in GONE:
            return ""
        raise
