"""Every error a person can meet: each names the thing, the place and the next command.

FleetcraftError
├── UsageError (exit 2)          wrong usage or an invalid file
│   ├── TaskInvalid              a task description cannot be accepted
│   └── NameTaken                the name exists already with other content
├── SpoolError (exit 2)          the spool is missing, foreign or unsafe
│   └── SpoolDamaged             a file that is never rewritten cannot be read
├── Refused (exit 4)             a guard or a rule said no
├── OutOfReach (exit 75)         the storage did not answer; try again
│   ├── StorageFull              no space, quota or inodes left
│   └── NotAllowed (exit 2)      permissions or the path forbid it; again is no help until a person mends that
└── LifeEnded                    internal: this life was taken for dead; stop at once
"""

from __future__ import annotations

EXIT_DONE = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_GOING = 3
EXIT_REFUSED = 4
EXIT_OURS = 70
EXIT_TRY_AGAIN = 75


class FleetcraftError(Exception):
    """Base of all errors that are shown as one sentence; `hint` is the next command."""

    exit_code = EXIT_FAILED
    code = "error"

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} {self.hint}" if self.hint else self.message


class UsageError(FleetcraftError):
    """The command line or a file handed in is wrong."""

    exit_code = EXIT_USAGE
    code = "usage"


class TaskInvalid(UsageError):
    """A task description cannot be accepted; the place says which line and which key."""

    code = "task_invalid"


class NameTaken(UsageError):
    """A name is unique in its spool; this one exists with other content."""

    code = "name_taken"


class SpoolError(FleetcraftError):
    """The spool is missing, of another format, or unsafe to use."""

    exit_code = EXIT_USAGE
    code = "spool"


class SpoolDamaged(SpoolError):
    """A file that is never rewritten cannot be read."""

    exit_code = EXIT_FAILED
    code = "spool_damaged"


class Refused(FleetcraftError):
    """A rule refused, with evidence."""

    exit_code = EXIT_REFUSED
    code = "refused"


class OutOfReach(FleetcraftError):
    """The storage or a person is needed; nothing changed and the same command may be run again."""

    exit_code = EXIT_TRY_AGAIN
    code = "out_of_reach"


class StorageFull(OutOfReach):
    """The file system has no space, quota or inodes left; nothing was lost."""

    code = "storage_full"


class NotAllowed(OutOfReach):
    """The storage answered and forbids it: a person must look at the path or its permissions. Nothing changed."""

    exit_code = EXIT_USAGE
    code = "not_allowed"


class LifeEnded(FleetcraftError):
    """This worker life was taken for dead by a reaper while it was paused; it must stop and record nothing new."""

    code = "life_ended"
