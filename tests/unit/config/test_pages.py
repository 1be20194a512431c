"""The pages about profiles name every key, and what they show is sound."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fleetcraft.config.check import check_text
from fleetcraft.config.model import ProfileFile
from fleetcraft.config.reading import _keys, _tables

DOCS = Path(__file__).parents[3] / "docs"
REFERENCE = DOCS / "reference" / "formats" / "site-profile.md"


def test_the_reference_names_every_key_in_the_section_of_its_table():
    text = REFERENCE.read_text()
    top, *sections = re.split(r"^### ", text, flags=re.MULTILINE)
    tables = _tables()
    for key in _keys(ProfileFile):
        assert key in tables or key == "partitions" or f"`{key}`" in top, key
    for name, table in tables.items():
        section = next(part for part in sections if f"`[{name}]`" in part.splitlines()[0])
        missing = [key for key in _keys(table) if f"`{key}`" not in section and f"`{name}.{key}`" not in section]
        assert missing == [], name


@pytest.mark.parametrize("text", re.findall(r"```toml\n(.*?)```", REFERENCE.read_text(), re.DOTALL))
def test_every_profile_on_the_page_is_sound(text):
    assert check_text(text, "page") == []


@pytest.mark.parametrize("page", (*sorted((DOCS / "how-to").glob("*.md")), REFERENCE), ids=lambda page: page.name)
def test_the_pages_have_no_em_dash(page):
    assert "\u2014" not in page.read_text()
