"""Runs COUNT equal programs on a HyperQueue LocalCluster, inside HyperQueue's own environment.

Usage: hyperqueue_run.py --output|--no-output COUNT CORES DIRECTORY MARKER PROGRAM [ARG...]

Waiting for jobs asks once a second, so a last task that depends on all others leaves MARKER: its time is the true end.
"""

import json
import sys
from pathlib import Path

from hyperqueue import Job, LocalCluster
from hyperqueue.cluster import WorkerConfig


def main() -> int:
    output, count, cores = sys.argv[1] == "--output", int(sys.argv[2]), int(sys.argv[3])
    directory, marker, argv = Path(sys.argv[4]), sys.argv[5], sys.argv[6:]
    silent = {"stdout": None, "stderr": None}
    seen = 0

    def on_progress(jobs: dict) -> None:
        nonlocal seen
        seen = sum(job["finished"] for job in jobs.values())

    # The binding takes strings only, whatever its annotations say.
    with LocalCluster(server_dir=str(directory / "server"), worker_config=WorkerConfig(cores=cores)) as cluster:
        client = cluster.client()
        job = Job(default_workdir=directory)
        tasks = [job.program(argv, **({} if output else silent)) for _ in range(count)]
        job.program(["/usr/bin/touch", marker], deps=tasks, **silent)
        submitted = client.submit(job)
        failed = client.connection.wait_for_jobs([submitted.id], on_progress)
    print(json.dumps({"done": seen - 1, "failed_jobs": len(failed)}))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
