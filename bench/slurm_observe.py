#!/usr/bin/env python3
"""What one look at Slurm costs: commands for 1,000 live jobs and for those that left, and the time that reading takes.

The login node is played, so that the figures are those of our code alone; the commands are counted where they are run.
Exit 0: every figure was reached.

usage: bench/slurm_observe.py [--json]
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(os.path.dirname(HERE), "src"))

from fleetcraft.schedulers.api import JobRef  # noqa: E402  the path comes first
from fleetcraft.schedulers.slurm import SlurmScheduler  # noqa: E402
from fleetcraft.schedulers.slurm_accounting import ACCOUNT_FIND_FIELDS, AccountAnswer, read_sacct  # noqa: E402
from fleetcraft.schedulers.slurm_rows import QUEUE_LOOK, QueueAnswer, read_squeue  # noqa: E402
from fleetcraft.transports.api import Answer  # noqa: E402

ROWS = 10_000
LIVE = 1_000
LEFT = 1_000
MOST_S = 0.2
REPEATS = 7


def queue_text(ids: Sequence[int]) -> str:
    """Rows of squeue as a real one prints them; every seventh job waits."""
    rows = []
    for number in ids:
        waits = number % 7 == 0
        start = 1_796_080_400 + number
        cells = (
            str(number),
            "PENDING" if waits else "RUNNING",
            "1796080390",
            "N/A" if waits else str(start),
            "N/A" if waits else str(start + 3600),
            "1:00:00",
            "gpu",
            "4",
            "" if waits else f"n[{number % 90 + 1}-{number % 90 + 4}]",
            "Priority" if waits else "None",
            "bench",
            "normal",
            "fleetcraft:fcabc2defgh3",
            "bench.fcabc2defgh3",
        )
        rows.append("\x1f".join(cells))
    return "\n".join(rows) + "\n"


def account_text(ids: Sequence[int]) -> str:
    """Rows of sacct as a real one prints them; every eleventh job failed."""
    rows = []
    for number in ids:
        failed = number % 11 == 0
        cells = (
            str(number),
            str(number),
            "FAILED" if failed else "COMPLETED",
            "1:0" if failed else "0:0",
            "0:0",
            "1796080390",
            "1796080400",
            str(1_796_081_000 + number),
            f"n[{number % 90 + 1}-{number % 90 + 4}]",
            "bench",
            "normal",
            "bench.fcabc2defgh3",
        )
        rows.append("\x1f".join(cells))
    return "\n".join(rows) + "\n"


class CountingLogin:
    """A login node that knows `live` jobs in its queue and everything else in its accounting."""

    name = "played"

    def __init__(self, live: Sequence[int]) -> None:
        self.counts: Counter[str] = Counter()
        self._queue = queue_text(live)

    def run(self, argv: Sequence[str], **_rest: Any) -> Answer:
        """See `Transport.run`."""
        self.counts[argv[0]] += 1
        out = self._queue
        if argv[0] == "sacct":
            asked = next(word for word in argv if word.startswith("--jobs=")).removeprefix("--jobs=")
            out = account_text([int(job) for job in asked.split(",")])
        return Answer(argv=tuple(argv), code=0, out=out, err="", took_s=0.0)


def read_queue(text: str) -> QueueAnswer:
    """The answer as the adapter reads it."""
    return read_squeue(text, "", 0, fields=QUEUE_LOOK)


def read_account(text: str) -> AccountAnswer:
    """The answer as the adapter reads it."""
    return read_sacct(text, "", 0, fields=ACCOUNT_FIND_FIELDS)


def median_s(work: Callable[[], object]) -> float:
    """Median of some runs, after one that fills the caches of the interpreter."""
    work()
    spent = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        work()
        spent.append(time.perf_counter() - began)
    return statistics.median(spent)


def observe(live: int, left: int) -> dict[str, Any]:
    """One pass over so many live jobs and so many that left the queue."""
    refs = [JobRef(id=str(number)) for number in range(1, live + left + 1)]
    login = CountingLogin(range(1, live + 1))
    seen = SlurmScheduler(login).observe(refs)
    if len(seen.jobs) != live + left or not seen.answered:
        raise SystemExit(f"observe told of {len(seen.jobs)} of {live + left} jobs: {seen.problems}")
    return {
        "squeue": login.counts["squeue"],
        "sacct": login.counts["sacct"],
        "others": login.counts.total() - login.counts["squeue"] - login.counts["sacct"],
        "median_s": median_s(lambda: SlurmScheduler(CountingLogin(range(1, live + 1))).observe(refs)),
    }


def measure() -> dict[str, Any]:
    """All figures, and whether each was reached."""
    queue, account = queue_text(range(1, ROWS + 1)), account_text(range(1, ROWS + 1))
    if len(read_queue(queue).rows) != ROWS or len(read_account(account).jobs) != ROWS:
        raise SystemExit("not every row was read")
    alive, gone = observe(LIVE, 0), observe(0, LEFT)
    squeue_s, sacct_s = (
        median_s(lambda: read_queue(queue)),
        median_s(lambda: read_account(account)),
    )
    chunks = -(-LEFT // 200)
    return {
        "observe_live": {"jobs": LIVE, **alive},
        "observe_left": {"jobs": LEFT, **gone},
        "parse_squeue": {"rows": ROWS, "median_s": squeue_s, "most_s": MOST_S},
        "parse_sacct": {"rows": ROWS, "median_s": sacct_s, "most_s": MOST_S},
        "reached": {
            "live_is_one_squeue": (alive["squeue"], alive["sacct"], alive["others"]) == (1, 0, 0),
            "one_sacct_per_200": (gone["squeue"], gone["sacct"], gone["others"]) == (1, chunks, 0),
            "parse_squeue": squeue_s <= MOST_S,
            "parse_sacct": sacct_s <= MOST_S,
        },
    }


def show(found: dict[str, Any]) -> None:
    """The same as a table."""
    live, left = found["observe_live"], found["observe_left"]
    print(f"{'figure':<44} {'found':>24}  reached")
    rows = (
        (f"observe {live['jobs']} live jobs", f"{live['squeue']} squeue, {live['sacct']} sacct", "live_is_one_squeue"),
        (
            f"observe {left['jobs']} jobs that left",
            f"{left['squeue']} squeue, {left['sacct']} sacct",
            "one_sacct_per_200",
        ),
        (f"read {ROWS} rows of squeue", f"{found['parse_squeue']['median_s']:.3f} s", "parse_squeue"),
        (f"read {ROWS} rows of sacct", f"{found['parse_sacct']['median_s']:.3f} s", "parse_sacct"),
    )
    for what, value, key in rows:
        print(f"{what:<44} {value:>24}  {'yes' if found['reached'][key] else 'NO'}")
    print(f"whole pass: {live['median_s']:.3f} s for the live ones, {left['median_s']:.3f} s for the others")


if __name__ == "__main__":
    result = measure()
    if "--json" in sys.argv[1:]:
        print(json.dumps(result, indent=2))
    else:
        show(result)
    sys.exit(0 if all(result["reached"].values()) else 1)
