"""`python -m fleetcraft`: the same as the installed command."""

from __future__ import annotations

import sys

from fleetcraft.cli.main import main

sys.exit(main())
