"""Telling about a fleet: each event once, whoever sees it first, and a message that fails costs nothing but a note."""

from __future__ import annotations

import http.server
import json
import threading

import pytest

from fleetcraft.config.site import NotifyRules
from fleetcraft.core.states import JobState
from fleetcraft.fleet.drain import drain
from fleetcraft.fleet.ensure import PassOptions
from fleetcraft.fleet.launch import launch
from fleetcraft.fleet.notify import post_json
from fleetcraft.fleet.records import NOTIFIED
from fleetcraft.transports.api import Answer
from tests.support.fleets import another_process, later, make_fleet, one_pass, scheduler_of, spec


class Recorder:
    def __init__(self, code=0):
        self.calls = []
        self.code = code

    def run(self, argv, *, stdin=b"", timeout_s=60.0):
        self.calls.append((list(argv), json.loads(stdin), timeout_s))
        return Answer(argv=tuple(argv), code=self.code, out="", err="no such list", took_s=0.0)


def over(fleet):
    for job in scheduler_of(fleet).jobs.values():
        scheduler_of(fleet).end(job.ref.id, JobState.DONE, "COMPLETED")


def rules(**more):
    return {"notify": NotifyRules(command=("tell", "me"), **more)}


def test_a_done_fleet_tells_once(tmp_path):
    fleet = make_fleet(tmp_path)
    launch(fleet, spec(site=rules()), wait=lambda _s: None)
    runner = Recorder()
    one_pass(fleet, runner=runner)
    assert runner.calls == []
    later(fleet, 100)
    over(fleet)
    for process in (fleet, another_process(fleet), fleet):
        one_pass(process, runner=runner)
    assert len(runner.calls) == 1
    argv, event, timeout_s = runner.calls[0]
    assert argv == ["tell", "me"]
    assert timeout_s <= 30
    assert (event["fleet"], event["what"]) == ("blue", "done")
    assert event["gpu_hours"] == round(2 * 4 * 100 / 3600, 3)


def test_a_drained_fleet_tells_again_after_a_new_drain(tmp_path):
    fleet = make_fleet(tmp_path)
    wanted = spec(site=rules())
    runner = Recorder()
    for _ in range(2):
        launch(fleet, wanted, wait=lambda _s: None)
        assert not fleet.state().drained
        drain(fleet, "enough")
        later(fleet, 10)
        over(fleet)
        one_pass(fleet, runner=runner)
        one_pass(fleet, runner=runner)
    assert [event["what"] for _, event, _ in runner.calls] == ["drained", "drained"]


def test_a_failed_message_is_noted_and_not_repeated(tmp_path):
    fleet = make_fleet(tmp_path)
    launch(fleet, spec(site=rules()), wait=lambda _s: None)
    later(fleet, 10)
    over(fleet)
    runner = Recorder(code=1)
    report = one_pass(fleet, runner=runner)
    assert report.notified == ["tell failed: no such list"]
    one_pass(fleet, runner=runner)
    assert len(runner.calls) == 1
    assert fleet.state().notes[-1].body["what"] == "notify_failed"


def test_only_the_events_that_were_asked_for_are_told(tmp_path):
    fleet = make_fleet(tmp_path)
    launch(fleet, spec(site=rules(on=("failed",))), wait=lambda _s: None)
    over(fleet)
    runner = Recorder()
    one_pass(fleet, PassOptions(), runner=runner)
    assert runner.calls == []
    assert NOTIFIED not in [record.kind for record in fleet.log.records]


class _Hook(http.server.BaseHTTPRequestHandler):
    got: list[bytes] = []  # noqa: RUF012  of the one server of a test

    def do_POST(self):
        self.got.append(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response({"/no": 500, "/elsewhere": 302}.get(self.path, 204))
        if self.path == "/elsewhere":
            self.send_header("Location", "/yes")
        self.end_headers()

    def log_message(self, *_arguments):
        return


@pytest.fixture
def hook():
    server = http.server.HTTPServer(("127.0.0.1", 0), _Hook)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_webhook_gets_the_event_as_json(hook):
    assert post_json(f"{hook}/yes", b'{"a": 1}', 5.0) == ""
    assert _Hook.got[-1] == b'{"a": 1}'
    assert post_json(f"{hook}/no", b"{}", 5.0) == "answered 500"
    assert "refused" in post_json("http://127.0.0.1:1/", b"{}", 5.0)
    assert post_json("file:///etc/passwd", b"{}", 5.0) == "only http and https are posted to"


def test_a_webhook_cannot_send_the_event_elsewhere(hook):
    before = len(_Hook.got)
    assert post_json(f"{hook}/elsewhere", b'{"secret": 1}', 5.0) == "answered 302"
    assert len(_Hook.got) == before + 1
