"""A stand-in `nvidia-smi`: a program that answers from a file which a test writes anew between questions."""

from __future__ import annotations

import json
import stat
import sys
from pathlib import Path
from typing import Any

_PROGRAM = """#!{python} -S
import json, sys, time
told = json.load(open({state!r}))
words = sys.argv[1:]
import os
with open({log!r}, "a") as log:
    log.write(json.dumps([words, os.environ.get("LC_ALL")]) + "\\n")
if told.get("hang"):
    time.sleep(600)
if told.get("fails"):
    sys.stdout.write(told["fails"][0]); sys.exit(told["fails"][1])
gpus = told["gpus"]
if words[:1] == ["-L"]:
    for gpu in gpus:
        if gpu.get("lost"):
            print("Unable to determine the device handle for gpu %s: GPU is lost." % gpu["pci.bus_id"])
            continue
        print("GPU %s: %s (UUID: %s)" % (gpu["index"], gpu["name"], gpu["uuid"]))
        for line in gpu.get("instances", []):
            print("  MIG %s     Device  %d: (UUID: %s)" % tuple(line))
    sys.exit(0)
if words[0].startswith("--query-compute-apps="):
    for gpu in gpus:
        for pid, memory in gpu.get("processes", []):
            print("%s, %s, %s" % (gpu["uuid"], pid, memory))
    sys.exit(0)
fields = words[0].partition("=")[2].split(",")
for field in fields:
    if field in told.get("invalid", []):
        print('Field "%s" is not a valid field to query.' % field); sys.exit(2)
if "-i" in words:
    chosen = words[words.index("-i") + 1].split(",")
    gpus = [gpu for gpu in gpus if gpu["uuid"] in chosen]
for gpu in gpus:
    if gpu.get("lost"):
        print("Unable to determine the device handle for GPU %s: GPU is lost.  Reboot the system to recover this GPU"
              % gpu["pci.bus_id"])
        sys.exit(15)
    print(", ".join(str(gpu.get(field, "[N/A]")) for field in fields))
"""


class FakeSmi:
    """`gpus` are dictionaries by the names of `--query-gpu`; call `write` after a change."""

    def __init__(self, folder: Path, count: int) -> None:
        self._state, self._log = folder / "smi.json", folder / "smi.log"
        self.program = str(folder / "nvidia-smi")
        self.told: dict[str, Any] = {"gpus": [_gpu(index) for index in range(count)]}
        text = _PROGRAM.format(python=sys.executable, state=str(self._state), log=str(self._log))
        Path(self.program).write_text(text)
        Path(self.program).chmod(stat.S_IRWXU)
        self.write()

    def gpu(self, uuid: str) -> dict[str, Any]:
        return next(gpu for gpu in self.told["gpus"] if gpu["uuid"] == uuid)

    def write(self) -> None:
        new = self._state.with_suffix(".new")
        new.write_text(json.dumps(self.told))
        new.rename(self._state)

    def asked(self) -> list[Any]:
        """The words of each question so far, and what LC_ALL was."""
        return [json.loads(line) for line in self._log.read_text().splitlines()] if self._log.exists() else []


def _gpu(index: int) -> dict[str, Any]:
    return {
        "uuid": f"GPU-0000000{index}-aaaa", "index": index, "pci.bus_id": f"00000000:{index + 1:02X}:00.0",
        "utilization.gpu": 0, "memory.used": 4, "memory.total": 81559, "memory.reserved": 551,
        "power.draw.instant": "71.23", "temperature.gpu": 30, "clocks.sm": 345, "clocks.mem": 1593, "pstate": "P0",
        "clocks_event_reasons.active": "0x0000000000000001", "ecc.errors.corrected.volatile.total": 0,
        "ecc.errors.uncorrected.volatile.total": 0, "pcie.link.gen.current": 5, "pcie.link.width.current": 16,
        "enforced.power.limit": "700.00", "clocks.max.sm": 1980, "mig.mode.current": "Disabled",
        "driver_version": "550.54.15", "name": "NVIDIA H100 80GB HBM3, Rev 2",
    }  # fmt: skip
