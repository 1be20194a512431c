"""The grammar of token names: exact both ways, and total over everything else."""

from __future__ import annotations

import string

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fleetcraft.core.names import (
    CLAIM,
    DRAFT,
    FENCED,
    HELD,
    MAX_NAME_BYTES,
    WAITING,
    TaskId,
    Token,
    is_life_id,
    make_life_id,
    parse_task_id,
    parse_token,
)

_WORD = string.ascii_lowercase + string.digits + "-"
_NUMBERS = st.integers(0, 10**18 - 1)
_LIVES = st.builds(
    make_life_id,
    st.text(min_size=0, max_size=40),
    st.integers(1, 2**22),
    st.text("0123456789abcdef", min_size=4, max_size=16),
)


@st.composite
def tokens(draw, forms=(WAITING, HELD, CLAIM, DRAFT, FENCED)):
    start = draw(st.integers(0, 2**24))
    form = draw(st.sampled_from(forms))
    return Token(
        lane=draw(st.text(_WORD, min_size=1, max_size=24)),
        priority=draw(st.integers(0, 999)),
        batch=draw(_NUMBERS),
        start=start,
        stop=start + draw(st.integers(1, 2**24)),
        gen=draw(st.integers(0, 10**6)),
        attempt=draw(st.integers(0, 10**6)),
        form=form,
        life=draw(_LIVES) if form in (CLAIM, DRAFT, FENCED) else "",
    )


@given(tokens())
def test_a_token_is_read_back_from_its_name(token):
    assert parse_token(token.name) == token
    assert len(token.name) <= MAX_NAME_BYTES


@given(st.text(max_size=80) | st.from_regex(r"[a-z0-9.@~!-]{0,60}", fullmatch=True))
@example("c1.500.1.0-4.g0.a1")
@example("c1.500.1.4-4.g0.a1")
@example("c1.500.1.00-4.g0.a1")
@example("c1.500.1.0-4.g0.a1@")
@example("c1.500.1.0-4.g0.a1\n")
@example("c1.500.\u0661.0-4.g0.a1")
def test_any_name_is_a_token_written_so_or_foreign(name):
    token = parse_token(name)
    assert token is None or token.name == name


@given(tokens(), st.data())
def test_one_changed_letter_never_reads_as_the_same_token(token, data):
    place = data.draw(st.integers(0, len(token.name) - 1))
    letter = data.draw(st.characters(max_codepoint=127))
    changed = token.name[:place] + letter + token.name[place + 1 :]
    if changed != token.name:
        assert parse_token(changed) != token


@given(tokens(forms=(WAITING,)), _LIVES)
def test_the_forms_of_one_token_lead_back_to_it(token, life):
    for form in (CLAIM, DRAFT, FENCED):
        owned = token.owned(form, life)
        assert (owned.form, owned.life, owned.count) == (form, life, token.count)
        assert owned.waiting() == token
        assert owned.held().waiting() == token
        assert len({owned.name, token.name, token.held().name}) == 3


@given(tokens(), st.data())
def test_a_token_covers_its_parts_and_nothing_beside(token, data):
    start = data.draw(st.integers(token.start, token.stop - 1))
    stop = data.draw(st.integers(start + 1, token.stop))
    part = token.part(start, stop)
    assert token.covers(part)
    assert part.covers(token) == (part.count == token.count)
    assert not token.covers(token.part(start, token.stop + 1))
    assert parse_token(part.name) == part


@given(st.text(max_size=60), st.integers(0, 2**31), st.text("0123456789abcdef", min_size=1, max_size=16))
def test_any_host_name_gives_a_valid_life_id(host, pid, nonce):
    life = make_life_id(host, pid, nonce)
    assert is_life_id(life)
    assert life.endswith(f"-{pid}-{nonce}")


@pytest.mark.parametrize("name", ("", ".", "..", "-a", "a/b", "A", "a" * 65, "a\n", "ä"))
def test_what_is_no_life_id(name):
    assert not is_life_id(name)


@given(st.integers(0, 10**18 - 1), st.integers(0, 10**18 - 1))
def test_a_task_id_is_read_back(batch, index):
    assert parse_task_id(str(TaskId(batch, index))) == TaskId(batch, index)


@given(st.text(max_size=30))
def test_any_text_is_a_task_id_written_so_or_none(text):
    found = parse_task_id(text)
    assert found is None or str(found) == text
