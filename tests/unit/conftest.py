"""Lives and writers that a test leaves behind die with their process in earnest; here their descriptors are closed."""

from __future__ import annotations

import pytest

from tests.support.descriptors import closing_leftovers


@pytest.fixture(autouse=True)
def _descriptors():
    with closing_leftovers(with_python_files=True):
        yield
