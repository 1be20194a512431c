"""What we write for Slurm reads back as what was meant: host lists, array elements, requests."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from fleetcraft.core.errors import UsageError
from fleetcraft.schedulers.api import JobRef, JobRequest
from fleetcraft.schedulers.hostlist import compress, expand
from fleetcraft.schedulers.slurm_args import (
    carries,
    check_request,
    job_comment,
    job_name,
    sbatch_argv,
    script_bytes,
    token_in,
)
from fleetcraft.schedulers.slurm_ids import array_text, parse_array_spec, parse_job_id
from fleetcraft.schedulers.slurm_quantities import memory_option, memory_request
from fleetcraft.schedulers.slurm_times import requested_s

_HOST = st.from_regex(r"[a-z][a-z0-9-]{0,6}[0-9]{0,5}|[a-z]{1,3}-?0{0,2}[0-9]{1,3}(-ib)?", fullmatch=True)
_TOKEN = st.from_regex(r"fc[a-z2-7]{10}", fullmatch=True)
_NAME = st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,20}", fullmatch=True)


@given(st.lists(_HOST, max_size=30))
def test_a_host_list_reads_back_as_the_same_set(names):
    found = expand(compress(names))
    assert found is not None
    assert sorted(found) == sorted(set(names))


@given(st.integers(0, 200), st.integers(0, 300), st.integers(0, 4))
def test_a_run_of_hosts_becomes_one_range(first, length, width):
    names = [f"n{number:0{width}d}" for number in range(first, first + length + 2)]
    assert compress(names).count("-") <= 3
    assert sorted(expand(compress(names)) or ()) == sorted(names)


@given(st.sets(st.integers(0, 5000), min_size=1, max_size=60), st.none() | st.integers(1, 99))
def test_array_elements_read_back(indexes, limit):
    text = array_text(indexes, limit)
    spec = parse_array_spec(text)
    assert spec is not None
    assert spec.tasks() == tuple(sorted(indexes))
    assert spec.throttle == limit
    shown = parse_job_id(f"77_[{text}]")
    assert shown is not None
    assert shown.tasks() == spec.tasks()


@given(st.sets(st.integers(0, 5000), min_size=2, max_size=60), st.data())
def test_a_cut_list_never_names_an_element_that_was_not_there(indexes, data):
    text = f"77_[{array_text(indexes)}]"
    cut = text[: data.draw(st.integers(4, len(text) - 1))] + data.draw(st.sampled_from(("", "...", "...]", "...%3]")))
    shown = parse_job_id(cut)
    if shown is None:
        return
    assert shown.tasks() is None
    assert shown.truncated
    assert set(shown.known_prefix()) <= indexes


@given(st.integers(0, 2**50))
def test_memory_asked_for_is_never_less_than_wanted(size):
    option = memory_option(size)
    assert memory_request(option) == option
    if size:
        assert int(option[:-1]) * 1024**2 >= size > (int(option[:-1]) - 1) * 1024**2


_PLAIN_FIELDS = ("partition", "account", "qos", "reservation", "constraint", "output", "cwd")
_VALUE = st.text(st.characters(exclude_categories=("C", "Z")), min_size=1, max_size=12).filter(
    lambda text: not text.startswith("-")
)
_REQUEST = st.builds(
    JobRequest,
    token=_TOKEN,
    name=_NAME,
    script=st.just("#!/bin/sh\n"),
    nodes=st.integers(1, 5000),
    gpus_per_node=st.integers(0, 16),
    memory_bytes=st.none() | st.integers(0, 2**45),
    exclusive=st.booleans(),
    time_limit_s=st.none() | st.floats(min_value=0.001, max_value=10**7),
    partition=st.none() | _VALUE,
    account=st.none() | _VALUE,
    qos=st.none() | _VALUE,
    constraint=st.none() | _VALUE,
    exclude=st.lists(_HOST, max_size=5).map(tuple),
    begin_utc=st.none() | st.floats(min_value=0, max_value=2 * 10**9),
    after_any=st.lists(st.integers(1, 10**9).map(lambda number: JobRef(id=str(number))), max_size=3).map(tuple),
    array=st.sets(st.integers(0, 1000), max_size=6).map(tuple),
    signal=st.sampled_from((None, "USR1", "SIGTERM", "10")),
    requeue=st.booleans(),
    output=st.none() | _VALUE,
    cwd=st.none() | _VALUE,
    hold=st.booleans(),
)


@given(_REQUEST, st.floats(min_value=0, max_value=2 * 10**9))
def test_a_request_becomes_words_that_say_it_and_nothing_else(request_, now_utc):
    words = sbatch_argv(request_, now_utc=now_utc)
    assert words[0] == "sbatch"
    options: dict[str, str] = {}
    for word in words[1:]:
        assert word.startswith("--"), "no word is a script, and none is read as a short option"
        name, _, value = word.partition("=")
        assert name not in options
        options[name] = value
    assert token_in(options["--job-name"]) == token_in("", options["--comment"]) == request_.token
    assert options["--nodes"] == str(request_.nodes)
    assert options["--export"] == "ALL"
    assert ("--requeue" in options) != ("--no-requeue" in options)
    for field in _PLAIN_FIELDS:
        option = "--chdir" if field == "cwd" else f"--{field}"
        assert options.get(option) == getattr(request_, field)
    if request_.time_limit_s is not None:
        granted_s = requested_s(options["--time"])
        assert granted_s is not None
        assert request_.time_limit_s <= granted_s < request_.time_limit_s + 60
    if request_.begin_utc is not None and request_.begin_utc > now_utc:
        wait_s = int(options["--begin"].removeprefix("now+"))
        assert wait_s == math.ceil(request_.begin_utc - now_utc)
    assert sorted(expand(options.get("--exclude", "")) or ()) == sorted(set(request_.exclude))
    if request_.array:
        spec = parse_array_spec(options["--array"])
        assert spec is not None
        assert spec.tasks() == tuple(sorted(request_.array))
    assert script_bytes(request_) == b"#!/bin/sh\n"


@given(
    _REQUEST, st.sampled_from((*_PLAIN_FIELDS, "name", "token", "gpu_type", "signal")), st.text(max_size=10), st.data()
)
def test_a_value_that_could_be_an_order_is_refused_by_name(request_, field, text, data):
    bad = data.draw(
        st.sampled_from((f"-{text}", f"{text}\n--wrap=x", f"{text}\0", f"{text}\x1b[0m", "", "--", "\n#SBATCH"))
    )
    asked = replace(request_, **{field: bad})
    with pytest.raises(UsageError, match=rf"^{field}:"):
        sbatch_argv(asked, now_utc=0.0)


@given(_TOKEN, _NAME, st.text(max_size=20))
def test_a_token_is_found_again_and_no_other_job_carries_it(token, name, other):
    request_ = JobRequest(token=token, name=name, script="#!/bin/sh\n")
    check_request(request_)
    assert carries(token, job_name(request_), "")
    assert carries(token, "", job_comment(token))
    assert token_in(job_name(request_)) == token
    assume(token not in other)
    assert not carries(token, other, other)
    assert token_in(other) != token


@given(_REQUEST, st.lists(st.text(max_size=12), min_size=1, max_size=3))
def test_an_extra_word_is_an_option_or_refused(request_, extra):
    asked = replace(request_, extra=tuple(extra))
    try:
        words = sbatch_argv(asked, now_utc=0.0)
    except UsageError:
        with pytest.raises(UsageError, match=r"^extra:"):
            check_request(asked)
        return
    assert all(word.isprintable() for word in extra)
    assert all(re.fullmatch(r"-.+", word) for word in words[-len(extra) :])
