"""The output files of the slots: task output goes straight to a descriptor, and a receipt names the byte range."""

from __future__ import annotations

import os

from fleetcraft.store.files import Files

ROTATE_BYTES = 256 * 1024**2


def log_name(slot: int, file_no: int) -> str:
    """The file name of one output log."""
    return f"output-{slot}.log" if file_no == 0 else f"output-{slot}.{file_no}.log"


class SlotLogs:
    """One append-only file per slot, a new one when it has grown large; open descriptors stay bounded."""

    def __init__(self, files: Files, folder: str) -> None:
        self._files = files
        self._folder = folder
        self._open: dict[int, tuple[int, int]] = {}  # slot: (descriptor, file number)

    def begin(self, slot: int) -> tuple[int, int, int]:
        """(descriptor, file number, offset) for a task that starts now. Raises OSError."""
        descriptor, file_no = self._open.get(slot, (-1, -1))
        if descriptor >= 0:
            offset = os.lseek(descriptor, 0, os.SEEK_END)
            if offset < ROTATE_BYTES:
                return descriptor, file_no, offset
            os.close(descriptor)
            del self._open[slot]
        file_no += 1
        path = os.path.join(self._folder, log_name(slot, file_no))
        descriptor = self._files.open_new(path, append=True)
        self._open[slot] = (descriptor, file_no)
        return descriptor, file_no, 0

    def end(self, slot: int) -> int:
        """The offset where the task's output ends."""
        return os.lseek(self._open[slot][0], 0, os.SEEK_END)

    def tail(self, slot: int, start: int, size: int = 4096) -> bytes:
        """The last bytes of what was written since `start`."""
        descriptor, file_no = self._open[slot]
        end = os.lseek(descriptor, 0, os.SEEK_END)
        low = max(start, end - size)
        if low >= end:
            return b""
        reader = self._files.open_read(os.path.join(self._folder, log_name(slot, file_no)))
        try:
            return os.pread(reader, end - low, low)
        finally:
            os.close(reader)

    def close(self) -> None:
        """Close every descriptor."""
        for descriptor, _ in self._open.values():
            os.close(descriptor)
        self._open.clear()
