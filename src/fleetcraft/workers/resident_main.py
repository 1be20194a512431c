"""The program of a resident: loads a function once, then answers chunks of calls until its request pipe ends.

It is handed to the task's own Python as text, so it imports nothing of ours and stays within what Python 3.8 knows.
Descriptors: requests come on REQUESTS and answers go on REPLIES, one JSON text a line. PROGRESS is a page of memory
shared with the worker: it names the call in flight even when that call crashes, or never gives the interpreter back.
"""

from __future__ import annotations

import importlib
import json
import math
import mmap
import os
import re
import signal
import sys
import time
from typing import Any

REQUESTS, REPLIES, PROGRESS = 3, 4, 5
# Layout of the shared page: unsigned 64-bit words, then one unsigned 32-bit wall time in microseconds per call.
CHUNK, IN_FLIGHT, SINCE_NS, PLAIN = range(4)
HEADER_BYTES = 64
LONGEST_WALL_US = (1 << 32) - 1
# A success is told at the latest after this time, and before another call when calls turn out to be long.
FLUSH_NS = 50_000_000
LONG_CALL_NS = 10_000_000
TRACEBACK_BYTES = 4096
OUT_OF_MEMORY = re.compile(
    "CUDA out of memory|OutOfMemoryError|CUDA_ERROR_OUT_OF_MEMORY|HIP out of memory|RESOURCE_EXHAUSTED|std::bad_alloc"
    "|Cannot allocate memory"
)
spell = json.JSONEncoder(allow_nan=False, separators=(",", ":")).encode
_PR_SET_PDEATHSIG = 1


def main() -> int:
    for descriptor in (REQUESTS, REPLIES, PROGRESS):
        os.set_inheritable(descriptor, False)  # noqa: FBT003  Python 3.8 has no name for it
    die_with_the_worker()
    with open(REQUESTS, "rb", buffering=1 << 16) as requests:
        return serve(requests)


def serve(requests: Any) -> int:
    """Load, then run one chunk after the other."""
    line = requests.readline()
    if not line:
        return 0
    started = time.monotonic()
    try:
        function, positional = load(json.loads(line))
    except BaseException as error:  # noqa: BLE001  whatever the import or the setup raised is the answer
        answer({"setup_error": describe(error)})
        return 1
    answer({"ready": True, "load_s": round(time.monotonic() - started, 6), "python": sys.version.split()[0]})
    runner = Runner(function, positional)
    for number, line in enumerate(requests, 1):
        runner.run(json.loads(line), number)
    return 0


def die_with_the_worker() -> None:
    """A call may run for an hour and would notice the end of the pipe only after that."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    except (ImportError, OSError, AttributeError):
        pass  # the end of the request pipe is noticed between two chunks


def load(what: dict[str, Any]) -> tuple[Any, tuple[Any, ...]]:
    """The function, and the state that its setup returned as the only positional argument."""
    here = os.getcwd()
    if sys.path[:1] == [""]:
        sys.path[0] = here
    elif here not in sys.path:
        sys.path.insert(0, here)
    function = resolve(what["call"])
    if what["setup"] is None:
        return function, ()
    return function, (resolve(what["setup"])(**what["setup_args"]),)


def resolve(name: str) -> Any:
    """The object that `package.module:name.name` means."""
    module, _, path = name.partition(":")
    found = importlib.import_module(module)
    for part in path.split("."):
        found = getattr(found, part)
    return found


class Runner:
    """Runs the calls of a chunk in order, and answers runs of plain successes together."""

    def __init__(self, function: Any, positional: tuple[Any, ...]) -> None:
        self.function = function
        self.positional = positional
        page = memoryview(mmap.mmap(PROGRESS, 0))
        self.head = page[:HEADER_BYTES].cast("Q")
        self.walls = page[HEADER_BYTES:].cast("I")
        # The function may do to descriptor 1 what it likes.
        self.log = os.dup(1)
        self.streams = (sys.stdout, sys.stderr)
        self.first = self.count = 0
        self.texts: list[str] = []
        self.cpu_s = self.told_cpu_s = time.process_time()
        self.log_end = os.fstat(self.log).st_size

    def run(self, calls: list[dict[str, Any]], number: int) -> None:
        function, positional, now_ns = self.function, self.positional, time.monotonic_ns
        head, walls = self.head, self.walls
        self.first, self.count = 0, len(calls)
        head[IN_FLIGHT] = head[PLAIN] = 0
        head[CHUNK] = number
        told_ns = then_ns = now_ns()
        for index, arguments in enumerate(calls):
            head[SINCE_NS] = then_ns
            try:
                value = function(*positional, **arguments)
                text = None if value is None else spell(plain(value))
                error = None
            except BaseException as caught:  # noqa: BLE001  whatever a call raised is that call's answer
                text, error = None, caught
            end_ns = now_ns()
            wall_ns, then_ns = end_ns - then_ns, end_ns
            walls[index] = min(wall_ns // 1000, LONGEST_WALL_US)
            head[IN_FLIGHT] = index + 1
            cpu_before_s, self.cpu_s = self.cpu_s, time.process_time()
            written = self.written()
            if error is not None or written is not None:
                # What failed or printed stands alone, so that its error and its output have one owner.
                self.tell(index, cpu_before_s)
                self.tell(index + 1, self.cpu_s, error, written, text)
                told_ns = then_ns = now_ns()
                continue
            if text is not None or self.texts:
                self.texts += ["null"] * (index - self.first - len(self.texts))
                self.texts.append(text or "null")
            else:
                head[PLAIN] = index + 1
            if wall_ns > LONG_CALL_NS or end_ns - told_ns > FLUSH_NS:
                self.tell(index + 1, self.cpu_s)
                told_ns = then_ns = now_ns()
        self.tell(self.count, self.cpu_s)

    def written(self) -> tuple[int, int] | None:
        """Where the output that came since the last look stands in the log, or None."""
        for stream in self.streams:
            try:
                stream.flush()
            except (OSError, ValueError):
                pass  # closed by the function, or the disk is full: its own business
        start, end = self.log_end, os.fstat(self.log).st_size
        if start == end:
            return None
        self.log_end = end
        return (start, end)

    def tell(
        self,
        stop: int,
        cpu_s: float,
        error: BaseException | None = None,
        written: tuple[int, int] | None = None,
        text: str | None = None,
    ) -> None:
        """Answer for the calls up to `stop`, when there are any."""
        first, self.first = self.first, stop
        if first == stop:
            return
        used_s, self.told_cpu_s = cpu_s - self.told_cpu_s, cpu_s
        texts, self.texts = self.texts, []
        if text is not None:
            texts = [text]
        reply: dict[str, Any] = {
            "first": first,
            "cpu_s": round(used_s, 6),
            "output": written,
            "last": stop == self.count,
        }
        if error is not None:
            reply["error"] = describe(error)
        walls = ",".join(map(str, self.walls[first:stop].tolist()))
        values = f"[{','.join(texts)}]" if texts else "null"
        write(f'{json.dumps(reply)[:-1]},"walls":[{walls}],"values":{values}}}\n')


def plain(value: Any) -> Any:
    """The value as strict JSON can say it. Raises TypeError that names what it cannot."""
    kind = type(value)
    if value is None or kind is bool or kind is int or kind is str:
        return value
    if kind is float:
        return (
            value if math.isfinite(value) else "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
        )
    if isinstance(value, dict):
        for key in value:
            if not isinstance(key, str):
                raise TypeError(f"the value has a key of type {name_of(type(key))}: JSON takes text only")
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    for base in (str, int, float):
        if isinstance(value, base):
            return plain(base(value))
    # A scalar of numpy, or a tensor of one number.
    if hasattr(value, "dtype") and hasattr(value, "item") and not getattr(value, "ndim", 1):
        item = value.item()
        if type(item) is not kind:
            return plain(item)
    raise TypeError(f"the value has the type {name_of(kind)}, which JSON cannot say")


def name_of(kind: type) -> str:
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def describe(error: BaseException) -> dict[str, Any]:
    """An exception for a record: type, message, the end of its traceback, and whether memory ran out."""
    import traceback

    name = name_of(type(error))
    try:
        message = str(error)
    except Exception as nested:  # noqa: BLE001  an exception that cannot be printed is still told
        message = f"(its message could not be had: {type(nested).__name__})"
    is_memory = isinstance(error, MemoryError) or OUT_OF_MEMORY.search(f"{name}: {message}") is not None
    found: dict[str, Any] = {
        "type": name,
        "message": message[:TRACEBACK_BYTES],
        "kind": "memory" if is_memory else "exception",
    }
    if isinstance(error, SystemExit):
        code = error.code
        found["exit"] = 0 if code is None else code if isinstance(code, int) else 1
        found["message"] = f"the function ended itself with exit code {found['exit']}"
    try:
        # The outermost frame is ours.
        after = error.__traceback__.tb_next if error.__traceback__ else None
        lines = traceback.format_exception(type(error), error, after)
        found["traceback"] = "".join(lines).encode("utf-8", "replace")[-TRACEBACK_BYTES:].decode("utf-8", "ignore")
    except Exception:  # noqa: BLE001
        found["traceback"] = ""
    # Frames hold on to the arguments, and with them to the memory that was short.
    error.__traceback__ = None
    return found


def answer(reply: dict[str, Any]) -> None:
    write(json.dumps(reply) + "\n")


def write(line: str) -> None:
    rest = memoryview(line.encode("ascii"))
    try:
        while rest:
            rest = rest[os.write(REPLIES, rest) :]
    except BrokenPipeError:
        os._exit(1)  # the worker is gone, and with it everyone who would care


if __name__ == "__main__":
    sys.exit(main())
