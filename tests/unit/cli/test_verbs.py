"""What each verb prints and answers, on hand-made spools; in this process, so that it costs nothing."""

from __future__ import annotations

import io
import json
import os

import pytest

from fleetcraft.cli.main import main
from fleetcraft.cli.output import Output
from fleetcraft.cli.progress import Progress
from fleetcraft.cli.tables import bar, cut, table, width_of
from fleetcraft.core.names import CLAIM
from fleetcraft.spool.life import Life
from tests.unit.readmodel.building import make_spool, only_token, publish, receipt, replace_tokens, started


@pytest.fixture
def spool(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FLEETCRAFT_SPOOL", str(tmp_path / "spool"))
    return make_spool(tmp_path)


def ask(capsys, *words):
    """(exit code, document) of one command line with --json."""
    code = main([*words, "--json"])
    return code, json.loads(capsys.readouterr().out)


def say(capsys, *words):
    code = main(list(words))
    return code, capsys.readouterr().out


def test_status_has_the_numbers_that_scripts_rely_on(spool, capsys):
    batch = publish(spool, ["a", "b", "c"])
    receipt(Life.begin(spool), batch, 0)
    code, document = ask(capsys, "spool", "status")
    assert code == 0
    assert document["schema"] == "fleetcraft.spool.status/1"
    numbers = ("total", "waiting", "running", "succeeded", "failed", "quarantined", "cancelled")
    assert {key: document[key] for key in numbers} == {
        "total": 3, "waiting": 2, "running": 0, "succeeded": 1, "failed": 0, "quarantined": 0, "cancelled": 0,
    }  # fmt: skip


def test_status_answers_by_its_exit_code_only_when_asked(spool, capsys):
    batch = publish(spool, ["a", "b"])
    life = Life.begin(spool)
    assert say(capsys, "spool", "status")[0] == 0
    assert say(capsys, "spool", "status", "--exit-code")[0] == 3
    receipt(life, batch, 0)
    receipt(life, batch, 1, "failed")
    assert say(capsys, "spool", "status", "--exit-code")[0] == 1
    receipt(life, batch, 1, attempt=2)
    assert say(capsys, "spool", "status", "--exit-code")[0] == 0


def test_watching_in_a_pipe_writes_a_line_for_each_change_and_ends(spool, capsys):
    batch = publish(spool, ["a"])
    receipt(Life.begin(spool), batch, 0)
    code, text = say(capsys, "spool", "status", "--watch")
    assert (code, text) == (0, "1 of 1 ended: 1 succeeded\n")


def test_list_shows_tasks_and_says_when_there_are_more(spool, capsys):
    publish(spool, [f"t{number}" for number in range(5)], extra={"tags": ["x"]})
    code, text = say(capsys, "task", "list", "--limit", "3")
    assert code == 0
    assert text.count("waiting") == 3
    assert "--limit 0 shows all" in text
    assert "and more" not in say(capsys, "task", "list", "--limit", "5")[1]
    assert say(capsys, "task", "list", "--tag", "y")[1] == "no such tasks\n"
    code, document = ask(capsys, "task", "list", "--tag", "x", "--brief")
    assert [task["name"] for task in document["tasks"]] == [f"t{number}" for number in range(5)]
    assert document["schema"] == "fleetcraft.task.list/1"
    assert "wall_s" not in document["tasks"][0]
    assert "wall_s" in ask(capsys, "task", "list")[1]["tasks"][0]


def test_show_logs_and_why_of_a_task_that_is_not_there(spool, capsys):
    for words in (("task", "show"), ("task", "logs"), ("why", "task")):
        code, document = ask(capsys, *words, "nobody")
        assert code == 2
        assert document["error"]["code"] == "task_unknown"


def test_logs_are_text_or_json(spool, capfdbinary):
    batch = publish(spool, ["a"])
    life = Life.begin(spool)
    with open(os.path.join(life.folder, "output-0.log"), "wb") as log:
        log.write(b"one\xff\n")
    receipt(life, batch, 0, log=[0, 0, 5])
    assert main(["task", "logs", "a"]) == 0
    assert capfdbinary.readouterr().out == "one\ufffd\n".encode()
    assert main(["task", "logs", "a", "--json"]) == 0
    assert json.loads(capfdbinary.readouterr().out)["output"] == "one\ufffd\n"


def test_output_that_is_gone_is_said_to_be_gone(spool, capsys):
    batch = publish(spool, ["a"])
    receipt(Life.begin(spool), batch, 0, log=[0, 0, 5])
    code, document = ask(capsys, "task", "logs", "a")
    assert (code, document["error"]["code"]) == (1, "log_gone")


def test_cancel_and_retry_say_what_they_did_and_what_not(spool, capsys):
    batch = publish(spool, ["a", "b"])
    receipt(Life.begin(spool), batch, 0, "failed")
    code, document = ask(capsys, "task", "cancel", "--all")
    assert (code, document["cancelled"], document["refused"]["count"]) == (0, 1, 1)
    assert ask(capsys, "task", "cancel", "--all")[0] == 4
    code, document = ask(capsys, "task", "retry", "a")
    assert (code, document["retried"], document["names"]) == (0, 1, ["a"])
    code, document = ask(capsys, "task", "retry", "a")
    assert (code, document["refused"]["by_state"]) == (4, {"waiting": 1})
    assert ask(capsys, "task", "retry")[1]["error"]["code"] == "usage"


def test_stop_resume_and_limit(spool, capsys):
    publish(spool, ["a"])
    assert ask(capsys, "spool", "stop", "--reason", "looking")[0] == 0
    assert "looking" in ask(capsys, "spool", "status")[1]["in_the_way"][0]
    assert ask(capsys, "spool", "resume")[0] == 0
    assert not ask(capsys, "spool", "status")[1]["stopped"]
    assert ask(capsys, "spool", "limit", "io=2")[1]["limits"] == {"io": {"ceiling": 2, "held": 0}}
    assert "io" in say(capsys, "spool", "limit")[1]


def test_drain_names_one_worker_by_its_begin(spool, capsys):
    life = Life.begin(spool)
    code, document = ask(capsys, "worker", "drain", life.id[:-3])
    assert (code, document["workers"]) == (0, [life.id])
    assert ask(capsys, "worker", "drain", "nobody")[0] == 2
    assert ask(capsys, "worker", "drain", "--all")[1]["workers"] == [life.id]


def test_a_worker_whose_gpus_are_not_measured_is_shown_as_such(spool, capsys):
    life = Life.begin(spool)
    life.beat({"state": "up", "telemetry": {"state": "on", "interval_s": 10.0}})
    (worker,) = ask(capsys, "worker", "list")[1]["workers"]
    assert (worker["telemetry"], worker["telemetry_reason"]) == ("on", None)
    assert "not measured" not in say(capsys, "worker", "list")[1]
    life.beat({"state": "up", "telemetry": {"state": "failed", "reason": "ended with exit code 2: no GPU"}})
    text = "its GPUs are not measured: the sampler ended with exit code 2: no GPU"
    assert text in say(capsys, "worker", "list")[1]
    assert text in say(capsys, "spool", "status")[1]
    assert ask(capsys, "spool", "status")[1]["workers"][0]["telemetry"] == "failed"


def test_worker_list_leaves_out_what_ended(spool, capsys):
    life = Life.begin(spool)
    life.note("hello")
    assert [worker["life"] for worker in ask(capsys, "worker", "list")[1]["workers"]] == [life.id]
    assert life.close()
    assert ask(capsys, "worker", "list")[1]["workers"] == []
    assert [worker["state"] for worker in ask(capsys, "worker", "list", "--all")[1]["workers"]] == ["stopped"]
    assert say(capsys, "worker", "list") == (0, "no worker is up\n")


def test_check_finds_and_repairs_what_no_token_offers(spool, capsys):
    batch = publish(spool, ["a", "b"])
    replace_tokens(spool, batch, [only_token(spool, batch).part(0, 1)])
    assert ask(capsys, "spool", "check")[0] == 1
    assert say(capsys, "spool", "check", "--repair")[0] == 0
    code, text = say(capsys, "spool", "check")
    assert code == 0
    assert "offered exactly once" in text
    assert ask(capsys, "spool", "status")[1]["uncovered"] == 0


def test_reap_takes_over_from_a_worker_that_is_gone(spool, capsys):
    batch = publish(spool, ["a", "b"])
    life = Life.begin(spool)
    replace_tokens(spool, batch, [only_token(spool, batch).owned(CLAIM, life.id)])
    started(life, batch, 0)
    path = os.path.join(life.folder, "identity.json")
    with open(path, encoding="utf-8") as source:
        text = source.read()
    with open(path, "w", encoding="utf-8") as target:
        target.write(text.replace(f'"pid":{os.getpid()}', '"pid":4194305'))
    code, document = ask(capsys, "spool", "reap")
    assert code == 0
    (row,) = document["lives"]
    assert (row["life"], row["state"], row["lost"], row["returned"]) == (life.id, "dead", 1, 1)
    assert ask(capsys, "spool", "status")[1]["waiting"] == 2
    assert say(capsys, "spool", "reap") == (0, "no worker has anything to be taken over\n")


def test_verify_tells_by_its_exit_code(spool, capsys, tmp_path):
    batch = publish(spool, ["a"], extra={"cwd": str(tmp_path), "outputs": ["x"]})
    digest = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    receipt(Life.begin(spool), batch, 0, outputs=[{"path": "x", "size": 3, "sha256": digest}])
    code, document = ask(capsys, "task", "verify")
    assert (code, document["wrong"], document["findings"][0]["found"]) == (1, 1, "missing")
    (tmp_path / "x").write_bytes(b"abc")
    assert ask(capsys, "task", "verify")[:1] == (0,)


def test_options_of_enqueue_reach_the_ledger(spool, capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("FROM_HERE", "here")
    (tmp_path / "vars.env").write_text("A=1\nB='two words'\n")
    words = [
        "--name", "a", "--gpus", "0.25", "--cpus", "2", "--vram", "20G", "--needs", "20m", "--uses", "io:2",
        "--family", "f", "--priority", "700", "--output", "x", "--output", "y", "--timeout", "1h", "--retries", "3",
        "--backoff", "5s", "--validate", "test -s x", "--checkpoint-signal", "USR1", "--checkpoint-grace", "30s",
        "--resume-exit", "9", "--notify", "echo done", "--tag", "t1", "--tag", "t2", "--cwd", "sub", "--env-file",
        "vars.env", "--env", "B=2", "--env", "FROM_HERE",
    ]  # fmt: skip
    assert main(["task", "enqueue", *words, "--", "echo", "--odd"]) == 0
    capsys.readouterr()
    document = ask(capsys, "task", "show", "a")[1]
    assert document["priority"] == 700
    assert document["request"] == {
        "gpus": 0.25, "cpus": 2, "vram_bytes": 20 << 30, "uses": {"io": 2}, "family": "f", "needs_s": 1200.0,
    }  # fmt: skip
    task = document["task"]
    assert task["command"] == ["echo", "--odd"]
    assert task["env"] == {"A": "1", "B": "2", "FROM_HERE": "here"}
    assert task["outputs"] == ["x", "y"]
    assert task["cwd"] == str(tmp_path / "sub")
    assert (task["timeout"], task["retries"], task["backoff"]) == (3600.0, 3, 5.0)
    assert (task["checkpoint_signal"], task["checkpoint_grace"], task["resume_exit"]) == ("SIGUSR1", 30.0, 9)
    assert task["tags"] == ["t1", "t2"]


def test_declared_work_reaches_the_ledger(spool, capsys):
    formula = {"formula": "transformer_infer", "parameters": 1e9, "layers": 2, "width": 8, "context": 16}
    for name, flops in (("a", 3.2e18), ("b", formula)):
        words = ("--name", name, "--flops", json.dumps(flops), "--precision", "fp8", "--", "true")
        assert say(capsys, "task", "enqueue", *words)[0] == 0
        task = ask(capsys, "task", "show", name)[1]["task"]
        assert (task["flops"], task["precision"]) == (flops, "fp8")
    assert main(["task", "enqueue", "--name", "c", "--flops", "many", "--", "true"]) == 2
    assert "--flops 'many'" in capsys.readouterr().err


def test_enqueue_reads_lines_and_says_what_was_there_already(spool, capsys, tmp_path):
    (tmp_path / "c.txt").write_text("echo a\necho b\n# a comment\n\n")
    code, document = ask(capsys, "task", "enqueue", "--from", "c.txt")
    assert (code, document["added"], document["existing"]) == (0, 2, 0)
    code, document = ask(capsys, "task", "enqueue", "--from", "c.txt")
    assert (code, document["added"], document["existing"]) == (0, 0, 2)
    (tmp_path / "empty").write_text("")
    assert "nothing to enqueue" in say(capsys, "task", "enqueue", "--from", "empty")[1]


def test_a_call_is_enqueued_with_its_arguments(spool, capsys):
    words = ["--name", "c", "--call", "m:f", "--args", '{"x": 1}', "--setup", "m:g", "--setup-args", '{"y": 2}']
    assert main(["task", "enqueue", *words]) == 0
    capsys.readouterr()
    task = ask(capsys, "task", "show", "c")[1]["task"]
    assert (task["call"], task["args"], task["setup"], task["setup_args"]) == ("m:f", {"x": 1}, "m:g", {"y": 2})


def test_doctor_looks_at_everything_and_leaves_nothing(spool, capsys):
    before = sorted(os.listdir(spool.layout.root))
    code, document = ask(capsys, "doctor")
    looked_at = {finding["what"] for finding in document["findings"]}
    assert {
        "python",
        "/proc",
        "subreaper",
        "inotify",
        "limits",
        "clock",
        "gpus",
        "spool",
        "space",
        "file system",
    } <= looked_at
    assert code == (1 if document["bad"] else 0)
    assert sorted(os.listdir(spool.layout.root)) == before
    assert all(finding["advice"] for finding in document["findings"] if finding["level"] != "ok")


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_progress_bar_is_drawn_on_a_terminal_only():
    for stream, drawn in ((Terminal(), True), (io.StringIO(), False)):
        with Progress(Output(io.StringIO(), stream), "read", begin_after_s=0.0) as progress:
            progress(5, 10)
        assert bool(stream.getvalue()) is drawn
        assert not drawn or "5 of 10 (50 %)" in stream.getvalue()


def test_a_table_in_a_pipe_is_whole_and_aligned():
    output = Output(io.StringIO(), io.StringIO())
    rows = [("short", "1"), ("漢字", "22"), ("line\nbreak", "3")]
    lines = list(table(output, ("NAME", "N"), rows))
    assert lines == ["NAME         N", "short        1", "漢字         22", "line\\nbreak  3"]
    assert {width_of(line[: line.rindex(" ")]) for line in lines} == {12}


def test_cutting_counts_columns():
    assert cut("abcdef", 4) == "abc…"
    assert cut("漢字漢字", 5) == "漢字…"
    assert cut("abc", 3) == "abc"


def test_a_bar_shows_everything_that_exists():
    output = Output(io.StringIO(), io.StringIO())
    drawn = bar(output, [("succeeded", 999_999), ("failed", 1)], 1_000_000, width=10)
    assert drawn == "█████████▓"
    assert len(bar(output, [("succeeded", 1), ("failed", 1), ("running", 1)], 1000, width=10)) == 10
