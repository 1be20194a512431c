"""The cluster to play with comes down when it is asked to, however it was started."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = [pytest.mark.needs_slurm, pytest.mark.slow]
_ROOT = Path(__file__).resolve().parents[2]
# What a script does to a command that it starts in the background.
_IGNORING = (
    "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_IGN);"
    " os.execv(sys.executable, [sys.executable, '-m', 'tests.cluster.play', '--nodes', '1'])"
)


def test_ctrl_c_is_heard_where_it_was_inherited_as_ignored():
    with subprocess.Popen([sys.executable, "-c", _IGNORING], cwd=_ROOT, stdout=subprocess.PIPE) as play:
        try:
            assert play.stdout is not None
            said = b""
            deadline_s = time.monotonic() + 120.0
            while b"Ctrl-C takes it down" not in said:
                left_s = deadline_s - time.monotonic()
                assert left_s > 0, f"the cluster did not come up; last seen: {said!r}"
                assert play.poll() is None, said
                if select.select([play.stdout], [], [], left_s)[0]:
                    said += os.read(play.stdout.fileno(), 65536)
            play.send_signal(signal.SIGINT)
            rest, _ = play.communicate(timeout=60.0)
            assert play.returncode == 0
            assert b"The cluster is down." in rest
        finally:
            if play.poll() is None:
                play.terminate()
