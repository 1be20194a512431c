"""Whether a folder could be written to, asked without writing: for a dry run, which changes nothing."""

from __future__ import annotations

import errno
import os


def access_error(folder: str) -> OSError | None:
    """What making a file in this folder would end with, as far as that can be told without making one."""
    if not os.path.isdir(folder):
        return NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), folder)
    if os.access(folder, os.W_OK | os.X_OK):
        return None
    number = errno.EROFS if os.statvfs(folder).f_flag & os.ST_RDONLY else errno.EACCES
    return OSError(number, os.strerror(number), folder)
