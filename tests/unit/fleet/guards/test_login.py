from __future__ import annotations

from typing import Any

import pytest

from fleetcraft.config.site import LoginRules
from fleetcraft.fleet.guards.login import LoginEvidence, decide_login, is_login_host

RULES = LoginRules(
    hosts=("login*", "front?.cluster"), warn_processes=25, stop_processes=40, warn_threads=60, stop_threads=120,
    warn_ssh=2, stop_ssh=3, stop_memory_bytes=8 << 30,
)  # fmt: skip


def evidence(**changes):
    values: dict[str, Any] = {
        "host": "login1",
        "processes": 5,
        "threads": 9,
        "ssh": 0,
        "memory_bytes": 1 << 20,
        "ours": 0,
    }
    return LoginEvidence(**(values | changes))


@pytest.mark.parametrize(
    ("host", "expected"),
    (("login1", True), ("login1.site.edu", True), ("front2.cluster", True), ("c101-001", False), ("mylogin1", False)),
)
def test_a_host_is_known_by_the_sites_patterns_with_or_without_its_domain(host, expected):
    assert is_login_host(host, RULES.hosts) is expected


def test_a_quiet_login_node_is_fine_and_the_numbers_are_evidence():
    decision = decide_login(RULES, evidence())
    assert decision.allowed
    assert decision.evidence["level"] == "go"
    assert decision.evidence["processes"] == 5
    assert decision.evidence["rules"]["stop_processes"] == 40


@pytest.mark.parametrize(
    ("changes", "word"),
    (
        ({"processes": 40}, "processes 40, stop at 40"),
        ({"threads": 133}, "threads 133, stop at 120"),
        ({"ssh": 3}, "ssh connections 3, stop at 3"),
        ({"memory_bytes": 9 << 30}, "memory 9.0 GiB, stop at 8.0 GiB"),
    ),
)
def test_each_stop_line_refuses_by_itself(changes, word):
    decision = decide_login(RULES, evidence(**changes))
    assert not decision.allowed
    assert word in decision.reason
    assert decision.evidence["level"] == "stop"


@pytest.mark.parametrize("changes", ({"processes": 39}, {"threads": 119}, {"ssh": 2}))
def test_between_the_lines_it_is_allowed_with_a_caution(changes):
    decision = decide_login(RULES, evidence(**changes))
    assert decision.allowed
    assert decision.evidence["level"] == "caution"
    assert "close to the site's limits" in decision.reason


def test_one_below_the_warning_line_is_no_caution():
    assert decide_login(RULES, evidence(processes=24, threads=59, ssh=1)).evidence["level"] == "go"


@pytest.mark.parametrize("missing", ("processes", "threads", "ssh", "memory_bytes"))
def test_a_number_that_the_site_limits_and_nobody_could_count_refuses(missing):
    decision = decide_login(RULES, evidence(**{missing: None}))
    assert not decision.allowed
    assert "could not be counted" in decision.reason


def test_a_number_without_a_limit_may_be_unknown():
    assert decide_login(LoginRules(hosts=("login*",), stop_processes=40), evidence(ssh=None)).allowed


def test_an_unreadable_proc_refuses_with_the_reason():
    decision = decide_login(RULES, LoginEvidence(host="login1", problem="PermissionError: /proc"))
    assert not decision.allowed
    assert "PermissionError" in decision.reason


def test_elsewhere_than_on_a_login_node_nothing_is_limited():
    assert decide_login(RULES, evidence(host="c101-001", processes=500)).allowed


def test_where_the_site_names_no_login_nodes_its_numbers_hold_everywhere():
    assert not decide_login(LoginRules(stop_processes=40), evidence(host="somewhere", processes=50)).allowed


def test_submissions_from_another_host_than_the_site_wants_are_refused():
    rules = LoginRules(hosts=("login*",), submit_hosts=("login*",))
    decision = decide_login(rules, evidence(host="c101-001"))
    assert not decision.allowed
    assert "login*" in decision.reason
    assert decide_login(rules, evidence()).allowed
