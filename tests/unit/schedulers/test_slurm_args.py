"""The words of every command: what they are for one request, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fleetcraft.core.errors import UsageError
from fleetcraft.schedulers.api import JobRef, JobRequest
from fleetcraft.schedulers.slurm_args import (
    LOGIN_VARIABLES,
    Site,
    check_request,
    sbatch_argv,
    sbatch_surroundings,
    script_bytes,
    token_in,
)
from fleetcraft.schedulers.slurm_commands import (
    associations_argv,
    base_ids,
    chunks,
    hold_argv,
    query_surroundings,
    release_argv,
    requeue_argv,
    sacct_argv,
    sacct_find_argv,
    scancel_argv,
    squeue_argv,
    srun_argv,
    step_surroundings,
)

_REQUEST = JobRequest(token="fcabc2defgh3", name="fit", script="#!/bin/bash\ntrue\n")


def test_a_full_request():
    request = replace(
        _REQUEST,
        nodes=2,
        cpus_per_node=8,
        gpus_per_node=4,
        gpu_type="a100",
        memory_bytes=10**9,
        exclusive=True,
        time_limit_s=90,
        partition="gpu",
        account="proj",
        qos="normal",
        constraint="a&b",
        nodelist=("n1", "n2"),
        exclude=("n9",),
        begin_utc=1000.2,
        after_any=(JobRef(id="17_3"), JobRef(id="32+1", cluster="west")),
        array=(0, 1, 2, 9),
        array_limit=2,
        signal="SIGUSR1",
        signal_before_s=119.5,
        output="/scratch/my job/%j.out",
        cwd="/scratch/my job",
        hold=True,
        extra=("--licenses=a:1",),
    )
    assert sbatch_argv(request, now_utc=900.0) == [
        "sbatch",
        "--parsable",
        "--job-name=fit.fcabc2defgh3",
        "--comment=fleetcraft:fcabc2defgh3",
        "--export=ALL",
        "--no-requeue",
        "--open-mode=append",
        "--nodes=2",
        "--ntasks-per-node=1",
        "--cpus-per-task=8",
        "--gpus-per-node=a100:4",
        "--mem=954M",
        "--exclusive",
        "--partition=gpu",
        "--account=proj",
        "--qos=normal",
        "--constraint=a&b",
        "--nodelist=n[1-2]",
        "--exclude=n9",
        "--time=2",
        "--begin=now+101",
        "--signal=B:USR1@120",
        "--dependency=afterany:17_3:32+1",
        "--array=0-2,9%2",
        "--output=/scratch/my job/%j.out",
        "--chdir=/scratch/my job",
        "--hold",
        "--licenses=a:1",
    ]


@pytest.mark.parametrize(
    ("option", "word"),
    (("gpus-per-node", "--gpus-per-node=2"), ("gres", "--gres=gpu:2"), ("none", None)),
)
def test_gpus_are_asked_for_as_the_site_wants_it(option, word):
    words = sbatch_argv(replace(_REQUEST, gpus_per_node=2), now_utc=0.0, site=Site(gpu_option=option))
    assert [item for item in words if "gpu" in item] == ([] if word is None else [word])


def test_what_is_not_asked_for_is_not_said():
    words = sbatch_argv(replace(_REQUEST, begin_utc=5.0, requeue=True), now_utc=6.0, test_only=True)
    assert words == [
        "sbatch",
        "--parsable",
        "--test-only",
        "--job-name=fit.fcabc2defgh3",
        "--comment=fleetcraft:fcabc2defgh3",
        "--export=ALL",
        "--requeue",
        "--open-mode=append",
        "--nodes=1",
        "--ntasks-per-node=1",
    ]


@pytest.mark.parametrize(
    ("field", "value"),
    (
        ("token", "UPPER"),
        ("token", "a" * 41),
        ("name", 'a"b'),
        ("name", "x" * 129),
        ("nodes", 0),
        ("tasks_per_node", 0),
        ("gpus_per_node", -1),
        ("cpus_per_node", 0),
        ("memory_bytes", -1),
        ("time_limit_s", 0),
        ("time_limit_s", float("inf")),
        ("time_limit_s", -60),
        ("begin_utc", float("nan")),
        ("signal", "USR1@1"),
        ("signal_before_s", 70_000),
        ("array", (-1,)),
        ("array_limit", 0),
        ("exclude", ("n[1-2]",)),
        ("nodelist", ("-x",)),
        ("after_any", (JobRef(id="17 rm"),)),
        ("after_any", (JobRef(id="17_[1-3]"),)),
        ("env", {"A B": "1"}),
        ("env", {"A": "x\0y"}),
        ("env", {"SBATCH_PARTITION": "x"}),
        ("env", {"SLURM_CLUSTERS": "x"}),
        ("extra", ("job.sh",)),
        ("extra", ("--comm=x",)),
        ("extra", ("--job-name=x",)),
        ("extra", ("-Jx",)),
        ("extra", ("--wrap=rm",)),
        ("extra", ("--wait",)),
        ("extra", ("--",)),
        ("extra", ("-",)),
    ),
)
def test_a_field_that_cannot_be_is_named(field, value):
    with pytest.raises(UsageError, match=rf"^{field}:"):
        sbatch_argv(replace(_REQUEST, **{field: value}), now_utc=0.0)


def test_cpus_that_do_not_fit_the_tasks_are_refused():
    with pytest.raises(UsageError, match=r"^cpus_per_node: 7 "):
        check_request(replace(_REQUEST, tasks_per_node=2, cpus_per_node=7))


def test_an_option_that_only_begins_like_ours_is_taken():
    assert "--wait-all-nodes=1" in sbatch_argv(replace(_REQUEST, extra=("--wait-all-nodes=1",)), now_utc=0.0)


@pytest.mark.parametrize(
    "script",
    (
        "true\n",
        "#!/bin/sh\r\ntrue\n",
        "#!/bin/sh\n#SBATCH --account=other\ntrue\n",
        "#!/bin/sh\n\n# a word\n#PBS -q x\n",
        "#!/bin/sh\n\0",
        "#!/bin/sh\n\ud800",
        "#!/bin/sh\n" + "#" * (5 * 1024 * 1024),
    ),
    ids=("no-interpreter", "line-ends", "directive", "other-directive", "null", "surrogate", "too-long"),
)
def test_a_script_that_sbatch_would_refuse_or_read_orders_from_is_refused(script):
    with pytest.raises(UsageError, match=r"^script:"):
        script_bytes(replace(_REQUEST, script=script))


def test_a_directive_behind_the_first_command_is_only_a_comment():
    script = "#!/bin/sh\ntrue\n#SBATCH --account=other\n"
    assert script_bytes(replace(_REQUEST, script=script)) == script.encode()


def test_the_environment_of_a_job_is_closed():
    around = sbatch_surroundings(replace(_REQUEST, env={"A": 'x,y\n"z"'}))
    assert around.drop_prefixes == ("",)
    assert around.keep == LOGIN_VARIABLES
    assert around.add == {"A": 'x,y\n"z"'}
    assert sbatch_surroundings(_REQUEST, test_only=True).add == {"SLURM_TIME_FORMAT": "%s"}


@pytest.mark.parametrize(
    "name",
    (
        *("SQUEUE_PARTITION", "SQUEUE_STATES", "SACCT_FORMAT", "SBATCH_PARTITION", "SLURM_CLUSTERS", "SALLOC_ACCOUNT"),
        *("SLURM_TIME_FORMAT", "SLURM_BITSTR_LEN", "SRUN_CPUS_PER_TASK", "SCANCEL_STATE", "SINFO_FORMAT"),
        *("BASH_FUNC_squeue%%", "LC_ALL", "LC_TIME"),
    ),
)
def test_what_reshapes_an_answer_is_dropped(name):
    around = query_surroundings()
    assert name.startswith(around.drop_prefixes)
    assert name not in around.keep


def test_a_question_is_asked_in_plain_terms():
    around = query_surroundings()
    assert around.keep == ("SLURM_CONF",)
    assert around.add == {"SLURM_BITSTR_LEN": "0", "SLURM_TIME_FORMAT": "%s", "LC_ALL": "C"}
    assert not "SLURM_JOB_ID".startswith(step_surroundings().drop_prefixes)


def test_tokens_of_others_are_none():
    assert token_in("fit.fcabc2defgh3") == "fcabc2defgh3"
    assert token_in("fit.fcabc2defgh3.sh") == ""
    assert token_in("run.final") == ""
    assert token_in("anything", "fleetcraft:my-token-1") == "my-token-1"
    assert token_in("anything", "fleetcraft:MY TOKEN") == ""


def test_the_other_commands():
    jobs = [JobRef(id="17_3"), JobRef(id="17_[4-6%2]"), JobRef(id="5;west"), JobRef(id="17_3")]
    assert scancel_argv(jobs) == ["scancel", "17_3", "17_[4-6%2]", "5"]
    assert scancel_argv(jobs[2:3], only_waiting=True) == ["scancel", "--state=PENDING", "5"]
    assert scancel_argv(jobs[:1], signal="SIGUSR1", site=Site(cluster="west")) == [
        *("scancel", "--clusters=west", "--signal=USR1", "--full", "17_3")
    ]
    assert hold_argv(jobs[:1]) == ["scontrol", "hold", "17_3"]
    assert release_argv([jobs[0], jobs[2]]) == ["scontrol", "release", "17_3,5"]
    assert requeue_argv(jobs[2:3]) == ["scontrol", "requeue", "5"]
    assert base_ids(jobs) == ["17", "5"]
    assert chunks([str(number) for number in range(401)]) == [
        [str(number) for number in range(start, min(start + 200, 401))] for start in (0, 200, 400)
    ]
    sacct = sacct_argv(["17", "5"])
    assert "--jobs=17,5" in sacct
    assert {"--allocations", "--duplicates", "--parsable2", "--delimiter=\x1f"} <= set(sacct)
    assert "--allocations" not in sacct_argv(["17"], steps=True)
    assert "--starttime=now-61minutes" in sacct_find_argv(user="ann", window_s=3600)
    assert squeue_argv()[:4] == ["squeue", "--me", "--noheader", "--states=all"]
    assert squeue_argv(site=Site(me_option=False, user="ann"))[1] == "--user=ann"
    assert not any(word.startswith(("--me", "--user")) for word in squeue_argv(everybody=True))


def test_a_step_for_every_node_and_one_beside_the_others():
    assert srun_argv(["python", "-m", "x"], nodes=3, cpus_per_task=4) == [
        *("srun", "--nodes=3", "--ntasks=3", "--ntasks-per-node=1", "--cpus-per-task=4", "--export=ALL"),
        *("--cpu-bind=none", "--mpi=none", "--kill-on-bad-exit=0", "--wait=0", "python", "-m", "x"),
    ]
    shell = srun_argv(["bash"], job=JobRef(id="9"), node="n3", overlap=True, pty=True)
    assert shell[1:5] == ["--jobid=9", "--nodes=1", "--ntasks=1", "--nodelist=n3"]
    assert shell[-3:] == ["--overlap", "--pty", "bash"]


_WRONG = (
    (lambda: scancel_argv([]), "job"),
    (lambda: scancel_argv([JobRef(id="all")]), "job"),
    (lambda: scancel_argv([JobRef(id="17.batch")]), "job"),
    (lambda: scancel_argv([JobRef(id="17_[1-3,")]), "job"),
    (lambda: scancel_argv([JobRef(id="17")], signal="-9"), "signal"),
    (lambda: sacct_argv([]), "ids"),
    (lambda: sacct_argv([str(number) for number in range(201)]), "ids"),
    (lambda: squeue_argv(site=Site(cluster="-x")), "cluster"),
    (lambda: squeue_argv(site=Site(me_option=False)), "user"),
    (lambda: associations_argv("a b"), "user"),
    (lambda: sacct_find_argv(user="ann", window_s=1, name="-x"), "name"),
    (lambda: srun_argv([]), "command"),
    (lambda: srun_argv(["x"], node="--wrap"), "node"),
)


@pytest.mark.parametrize(("call", "field"), _WRONG, ids=[f"{field}-{n}" for n, (_, field) in enumerate(_WRONG)])
def test_what_cannot_stand_on_a_command_line_is_named(call, field):
    with pytest.raises(UsageError, match=rf"^{field}:"):
        call()
