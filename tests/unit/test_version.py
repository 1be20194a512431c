from __future__ import annotations

from importlib import metadata

import fleetcraft


def test_the_installed_package_and_the_source_say_the_same_version():
    assert metadata.version("fleetcraft") == fleetcraft.__version__
