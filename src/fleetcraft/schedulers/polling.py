"""One question at a time for all processes of a user: a shared floor between questions, and a shared last answer.

Sites ask for few questions, and five terminals that watch the same fleet are one user. Whoever finds the last
question too young gets its answer again, with its age. Who asks, asks for the jobs that the others want to know too.
A lock that dies with its holder keeps two from asking at once; a torn or foreign file is no answer.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any

from fleetcraft.core.clock import Clock, SystemClock
from fleetcraft.core.states import JobState
from fleetcraft.schedulers.api import JobRef, JobView, Observation
from fleetcraft.store.files import Files, publish_file
from fleetcraft.transports.processes import boot_id

FLOOR_S = 10.0  # below it no site profile can go
_FORMAT = 1
# In place of jobs: a question about all of them, whose answer is not cut to those asked for.
EVERYTHING = (JobRef(id="*"),)
# Jobs that somebody asked about are asked for again this long, whoever asks.
_WANTED_S = 900.0
_MOST_WANTED = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How long to wait until the next look. Every figure can be set by a site profile."""

    floor_s: float = FLOOR_S
    busy_s: float = 30.0  # while something changes
    growth: float = 1.5
    idle_s: float = 180.0
    per_duration: float = 5.0  # never spend more than a fifth of the time asking
    jitter: float = 0.1

    def next_s(
        self,
        last_s: float | None,
        *,
        has_changed: bool,
        took_s: float = 0.0,
        chance: Callable[[], float] = random.random,
    ) -> float:
        """Seconds until the next look, from the last interval and from what the last look showed."""
        calm_s = self.busy_s if has_changed or last_s is None else min(last_s * self.growth, self.idle_s)
        wait_s = max(calm_s, self.per_duration * took_s, self.floor_s, FLOOR_S)
        # Only ever later: users who started at the same minute drift apart, and no floor is broken.
        return wait_s * (1.0 + self.jitter * chance())


def poll_folder(environ: Mapping[str, str]) -> str:
    """Where the processes of this user meet: as set, else this machine's runtime folder, else the cache at home."""
    if environ.get("FLEETCRAFT_POLLS"):
        return os.path.expanduser(environ["FLEETCRAFT_POLLS"])
    runtime = environ.get("XDG_RUNTIME_DIR", "")
    if runtime and os.path.isdir(runtime) and os.access(runtime, os.W_OK):
        return os.path.join(runtime, "fleetcraft", "polls")
    cache = environ.get("XDG_CACHE_HOME", "") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(cache, "fleetcraft", "polls")


def site_key(kind: str, *, cluster: str | None = None, config: str | None = None, user: str | None = None) -> str:
    """What makes two questions the same: scheduler, cluster, its configuration file and the user."""
    return json.dumps([kind, cluster or "", config or "", str(os.getuid()) if user is None else user])


class SharedPoll:
    """The meeting point for one site."""

    def __init__(self, folder: str, key: str, *, floor_s: float = FLOOR_S, clock: Clock | None = None) -> None:
        self._folder = folder
        self._key = key
        self._floor_s = max(floor_s, FLOOR_S)
        self._clock = clock or SystemClock()
        self._files = Files()
        self._boot = boot_id()
        # Two sites never meet: the name holds the key's digest, and the content the key itself.
        self._name = hashlib.sha256(key.encode()).hexdigest()[:24]
        # Only where no folder can be shared: then at least this process keeps to the floor.
        self._own: tuple[float, Observation] | None = None

    def observe(self, refs: Sequence[JobRef], ask: Callable[[Sequence[JobRef]], Observation]) -> Observation:
        """The answer to `ask`, or the last one of any process of this user when that is younger than the floor."""
        try:
            os.makedirs(self._folder, mode=0o700, exist_ok=True)
            with self._lock() as is_mine:
                self._want(refs)
                age_s = self._age_s()
                if not is_mine or (age_s is not None and age_s < self._floor_s):
                    return self._again(refs, "another process asks just now" if not is_mine else "")
                return self._ask(refs, ask)
        except OSError as error:
            return self._alone(refs, ask, f"{error.filename or self._folder}: {error.strerror}")

    def _ask(self, refs: Sequence[JobRef], ask: Callable[[Sequence[JobRef]], Observation]) -> Observation:
        wanted = self._wanted()
        asked = list(dict.fromkeys([*refs, *wanted]))
        # Before the question: a process that dies while it asks has asked.
        self._stamp()
        seen = ask(asked)
        self._stamp()
        if seen.answered:
            self._write("answer", {"observation": _encode(seen)})
        return _only(seen, refs)

    def _again(self, refs: Sequence[JobRef], why: str) -> Observation:
        record = self._read("answer")
        now_utc = self._clock.utc()
        seen = _decode(record["observation"]) if record is not None else None
        if seen is None:
            return Observation(
                at_utc=now_utc,
                jobs={},
                answered=False,
                problems=(why or f"the last question is younger than {self._floor_s:g} s and had no answer",),
                from_cache=True,
            )
        return replace(_only(seen, refs), from_cache=True, queries=0)

    def _alone(
        self, refs: Sequence[JobRef], ask: Callable[[Sequence[JobRef]], Observation], problem: str
    ) -> Observation:
        now_s = self._clock.mono()
        if self._own is not None and now_s - self._own[0] < self._floor_s:
            return replace(_only(self._own[1], refs), from_cache=True, queries=0)
        seen = ask(refs)
        said = f"questions are not shared with other processes: {problem}"
        seen = replace(seen, problems=(*seen.problems, said))
        self._own = (self._clock.mono(), seen)
        return seen

    def next_allowed_s(self) -> float:
        """Seconds until a question may be asked; 0 when it may be now."""
        age_s = self._age_s()
        return 0.0 if age_s is None else max(self._floor_s - age_s, 0.0)

    def _path(self, what: str) -> str:
        return os.path.join(self._folder, f"{self._name}.{what}")

    @contextmanager
    def _lock(self) -> Iterator[bool]:
        descriptor = os.open(self._path("lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
                return
            yield True
        finally:
            os.close(descriptor)

    def _stamp(self) -> None:
        self._write("asked", {"utc": self._clock.utc(), "boot": self._boot, "boot_s": self._clock.boot()})

    def _age_s(self) -> float | None:
        """Age of the last question; None when there was none, or when its time cannot be told."""
        record = self._read("asked")
        if record is None:
            return None
        if self._boot is not None and record.get("boot") == self._boot:
            # This clock cannot be set.
            return float(max(self._clock.boot() - record["boot_s"], 0.0))
        age_s = self._clock.utc() - record["utc"]
        # From the future: the wall clock was set, and waiting for it could take for ever.
        return age_s if age_s >= 0 else None

    def _want(self, refs: Sequence[JobRef]) -> None:
        """Let whoever asks next know what this process wants to know."""
        now_utc = self._clock.utc()
        record = self._read("wanted")
        wanted: dict[str, float] = record["refs"] if record is not None else {}
        fresh = {text: at for text, at in wanted.items() if abs(now_utc - at) < _WANTED_S}
        asked = {str(ref): now_utc for ref in refs}
        # Two processes may write at once, and one of them is forgotten until it asks again. Nothing depends on it.
        if any(text not in fresh or now_utc - fresh[text] > _WANTED_S / 2 for text in asked):
            fresh |= asked
            self._write("wanted", {"refs": dict(sorted(fresh.items(), key=lambda item: -item[1])[:_MOST_WANTED])})

    def _wanted(self) -> list[JobRef]:
        record = self._read("wanted")
        return [_ref(text) for text in record["refs"]] if record is not None else []

    def _write(self, what: str, record: dict[str, Any]) -> None:
        body = json.dumps({"format": _FORMAT, "key": self._key, **record})
        digest = hashlib.sha256(body.encode()).hexdigest()
        publish_file(self._files, self._path(what), f"{digest}\n{body}".encode(), durable=False)

    def _read(self, what: str) -> dict[str, Any] | None:
        try:
            digest, _, body = self._files.read(self._path(what)).partition(b"\n")
            if hashlib.sha256(body).hexdigest().encode() != digest:
                return None
            record = json.loads(body)
        except (OSError, ValueError):
            return None
        if not isinstance(record, dict) or record.get("format") != _FORMAT or record.get("key") != self._key:
            return None
        return record


def _ref(text: str) -> JobRef:
    job, _, cluster = text.partition(";")
    return JobRef(id=job, cluster=cluster or None)


def _only(seen: Observation, refs: Sequence[JobRef]) -> Observation:
    """The part of an observation that was asked for."""
    if tuple(refs) == EVERYTHING:
        return seen
    wanted = {str(ref) for ref in refs}
    return replace(
        seen,
        jobs={text: view for text, view in seen.jobs.items() if text in wanted},
        absent=tuple(ref for ref in seen.absent if str(ref) in wanted),
    )


def _encode(seen: Observation) -> dict[str, Any]:
    return asdict(replace(seen, jobs=dict(seen.jobs)))


def _decode(data: dict[str, Any]) -> Observation | None:
    """An observation that another process wrote; None when another version of this code did."""
    try:
        jobs = {text: _view(view) for text, view in data.pop("jobs").items()}
        absent = tuple(JobRef(**ref) for ref in data.pop("absent"))
        return Observation(**{**data, "jobs": jobs, "absent": absent, "problems": tuple(data["problems"])})
    except (KeyError, TypeError, ValueError, AttributeError):
        return None


def _view(data: dict[str, Any]) -> JobView:
    return JobView(
        **{
            **data,
            "ref": JobRef(**data["ref"]),
            "state": JobState(data["state"]),
            "nodes": tuple(data["nodes"]),
            "notes": tuple(data["notes"]),
        }
    )
