from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetcraft.fleet.guards.balance_text import (
    Unreadable,
    read_pattern,
    read_plain,
    read_sbalance,
    read_sshare,
    read_table,
)

# The layouts of public tools; the names and the numbers are made up.
SBALANCE = (
    "Account balances for user: someone\n\tAllocation:    1000000.00 SU\n\tRemaining Balance:  991896.00 SU ( 99.19%)\n"
)
SBALANCE_K = "Account: lab-a\n Limit:    50.00 kSU\n Unused:   12.50 kSU\nAccount: lab-b\n Unused:   1.00 kSU\n"
TACC = (
    "-------------------- Project balances for user someone ---------------------\n"
    "| Name           Avail SUs     Expires | Name           Avail SUs     Expires |\n"
    "| LAB-A              9,123  2027-01-31 | LAB-B               1050  2026-12-31 |\n"
    "--------------------- Disk quotas for user someone ----------------------\n"
    "| Disk         Usage (GB)     Limit    %Used   File Usage       Limit   %Used |\n"
)
SSHARE = (
    "Account|User|GrpTRESMins|GrpTRESRaw|TRESRunMins\n"
    "root||||cpu=0,billing=0\n"
    " lab-a||billing=60000|cpu=5,billing=12000|cpu=60,billing=600\n"
    "  lab-a|someone||cpu=5,billing=12000|billing=600\n"
)


@pytest.mark.parametrize(
    ("text", "total"), (("1234.5\n", 1234.5), (" 1,234 ", 1234.0), ('{"balance": 7}', 7.0), ("-3", -3.0))
)
def test_a_number_alone_or_in_json_is_a_balance(text, total):
    assert read_plain(text).total == total


def test_json_may_have_a_key_of_its_own_and_one_object_for_each_account():
    assert read_plain('{"left": 2.5, "balance": 9}', key="left").total == 2.5
    assert read_plain('{"lab": {"balance": 4}, "balance": 9}', account="lab").total == 4.0


@pytest.mark.parametrize(
    "text", ("", "none", "12 13", "nan", "1e999", '{"balance": null}', '{"balance": true}', "[1]", '{"balance": "7"}')
)
def test_everything_else_is_unreadable_never_zero(text):
    with pytest.raises(Unreadable):
        read_plain(text)


def test_a_pattern_must_find_exactly_one_number():
    assert read_pattern("left=12 SU", r"left=(\S+)").total == 12.0
    for text in ("left=12 left=13", "", "left=much"):
        with pytest.raises(Unreadable):
            read_pattern(text, r"left=(\S+)")


def test_sbalance_with_one_account_and_with_several():
    assert read_sbalance(SBALANCE).total == 991896.0
    assert read_sbalance(SBALANCE_K, "lab-a").total == 12500.0
    assert read_sbalance(SBALANCE_K, "lab-b").total == 1000.0
    with pytest.raises(Unreadable, match="name one"):
        read_sbalance(SBALANCE_K)
    with pytest.raises(Unreadable, match="lab-c"):
        read_sbalance(SBALANCE_K, "lab-c")


def test_the_boxed_table_gives_the_account_that_was_asked_for():
    assert read_table(TACC, "LAB-A").total == 9123.0
    assert read_table(TACC, "LAB-B").total == 1050.0
    with pytest.raises(Unreadable, match="LAB-A, LAB-B"):
        read_table(TACC)
    with pytest.raises(Unreadable):
        read_table("no table here", "LAB-A")


def test_sshare_is_limit_less_used_less_what_running_jobs_reserve_in_hours():
    found = read_sshare(SSHARE, "lab-a")
    assert found.total == (60000 - 12000 - 600) / 60
    assert found.includes_running


@pytest.mark.parametrize(
    "text",
    (
        "",
        "Account|User\nlab-a|\n",
        SSHARE.replace("billing=60000", ""),
        SSHARE.replace("cpu=5,billing=12000|cpu=60,billing=600", "|"),
        SSHARE.replace("|cpu=60,billing=600", ""),
    ),
)
def test_an_sshare_without_every_number_is_unreadable(text):
    with pytest.raises(Unreadable):
        read_sshare(text, "lab-a")


@given(st.text(max_size=200), st.sampled_from([None, "lab"]))
def test_no_text_makes_a_reader_fail_otherwise(text, account):
    for read in (read_plain, read_sbalance, read_table, read_sshare):
        try:
            found = read(text, account)
        except Unreadable:
            continue
        assert abs(found.total) < float("inf")
