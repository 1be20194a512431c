"""Manners of the command: find the noun and verb, import only what that verb needs, and answer errors in one shape.

Nothing heavy is imported here: `fleetcraft --version` is measured.
"""

from __future__ import annotations

import os
import sys

from fleetcraft import __version__
from fleetcraft.core.errors import EXIT_DONE, EXIT_OURS, FleetcraftError, OutOfReach, UsageError

TYPE_CHECKING = False  # checkers take the name for true; importing typing for it would cost every start
if TYPE_CHECKING:
    from fleetcraft.cli.output import Output

# As a shell reports a command that was ended by SIGINT or SIGPIPE.
EXIT_INTERRUPTED = 130
EXIT_PIPE_CLOSED = 141
DEBUG = "FLEETCRAFT_DEBUG"


def main(argv: list[str] | None = None) -> int:
    """Run one command line and return its exit code."""
    if argv is None:
        _speak_utf8()
        argv = sys.argv[1:]
    if argv in (["--version"], ["-V"]):
        sys.stdout.write(f"fleetcraft {__version__}\n")
        return EXIT_DONE
    if "_ARGCOMPLETE" in os.environ:
        from fleetcraft.cli.completion import complete

        complete()
    from fleetcraft.cli.output import Output

    before = argv[: argv.index("--")] if "--" in argv else argv
    output = Output.for_streams(json="--json" in before)
    try:
        from fleetcraft.cli import commands

        code = commands.dispatch(argv, output)
        output.flush()
    except KeyboardInterrupt:
        output.note("interrupted")
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        return _close_quietly()
    except Exception as error:  # noqa: BLE001  the last place where a person can be told in one sentence
        return _tell(error, output)
    return code


def _speak_utf8() -> None:
    """Go on in UTF-8 whatever the locale says: names of tasks and files are bytes, and must come out as they came in.

    Python fixes the encoding of arguments and file names when it starts, so another one can only be had by
    starting it again.
    """
    if sys.getfilesystemencoding() != "utf-8" and sys.executable and not sys.flags.utf8_mode:
        os.execv(sys.executable, [sys.executable, "-X", "utf8", *sys.orig_argv[1:]])  # noqa: S606  ourselves again


def _close_quietly() -> int:
    """The reader went away; what Python still holds must not be written at exit, where it would be an error."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
    return EXIT_PIPE_CLOSED


def _tell(error: Exception, output: Output) -> int:
    if os.environ.get(DEBUG):
        raise error
    known = _known(error)
    try:
        if known is not None:
            output.error(known.code, known.message, known.hint, known.exit_code)
            output.flush()
            return known.exit_code
        path = _keep_traceback(error)
        output.error(
            "internal",
            f"A fault of ours: {type(error).__name__}: {error}",
            f"The traceback is in {path}; {DEBUG}=1 prints it." if path else f"{DEBUG}=1 prints the traceback.",
            EXIT_OURS,
        )
        output.flush()
    except BrokenPipeError:
        return _close_quietly()
    return EXIT_OURS


def _known(error: Exception) -> FleetcraftError | None:
    """Errors that a person can do something about."""
    if isinstance(error, FleetcraftError):
        return error
    if isinstance(error, OSError) and error.errno is not None:
        where = f"{os.fsdecode(error.filename)}: " if isinstance(error.filename, (str, bytes)) else ""
        if isinstance(error, (PermissionError, FileNotFoundError, NotADirectoryError, IsADirectoryError)):
            return UsageError(f"{where}{error.strerror}.", hint="Look at the path, its owner and its permissions.")
        return OutOfReach(f"{where}{error.strerror}.", hint="See `fleetcraft doctor`.")
    return None


def _keep_traceback(error: Exception) -> str | None:
    import tempfile
    import traceback

    try:
        descriptor, path = tempfile.mkstemp(prefix="fleetcraft-traceback-", suffix=".txt")
        with os.fdopen(descriptor, "w", encoding="utf-8", errors="backslashreplace") as target:
            target.write(f"fleetcraft {__version__}\n")
            traceback.print_exception(error, file=target)
    except OSError:
        return None
    return path


if __name__ == "__main__":
    sys.exit(main())
