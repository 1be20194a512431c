"""The import rules of the design that a layers contract cannot say, as functions over source files.

Each rule gives one sentence per breach. Imports inside functions and under TYPE_CHECKING count like all others.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

# Rooms that must run from a bare Python on a cluster node.
NODE_ROOMS = frozenset({"core", "store", "spool", "workers", "telemetry", "schedulers"})
# Of the room that reaches hosts, the node side needs only what stays on this machine.
NODE_MODULES = frozenset({f"fleetcraft.transports.{name}" for name in ("api", "local", "processes")})
# Other batch systems come by way of a library, loaded only by who asks for one of them.
_PSIJ_PLACE = "fleetcraft.schedulers.psij"
# Where processes may be started. The worker has exactly one such file.
PROCESS_PLACES = ("fleetcraft.transports", "fleetcraft.workers.child")
# Reckoning on all cores: parts of this very process that end with their answer, and no program is started.
_FORK_PLACES = ("fleetcraft.usage.parallel",)
# What would start a process without importing subprocess.
_OS_SPAWNERS = frozenset(
    {"fork", "forkpty", "popen", "posix_spawn", "posix_spawnp", "system"}
    | {f"spawn{kind}" for kind in ("l", "le", "lp", "lpe", "v", "ve", "vp", "vpe")}
)
# core is words: it reads no clock and touches no file, process or network.
_NOT_IN_CORE = frozenset({"asyncio", "fcntl", "glob", "io", "os", "shutil", "socket", "subprocess", "tempfile"})
_ASYNC_PLACES = ("fleetcraft.surfaces.http", "fleetcraft.surfaces.mcp")
_SURFACES_MAY_IMPORT = frozenset({"core", "readmodel", "actions", "surfaces"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Import:
    """One imported name, with the module that imports it and where."""

    module: str
    target: str
    line: int
    at_top: bool

    @property
    def top(self) -> str:
        return self.target.split(".", maxsplit=1)[0]

    @property
    def room(self) -> str:
        """The room of ours that is imported, or an empty string."""
        return _room(self.target)

    def breach(self, rule: str) -> str:
        return f"{self.module}:{self.line} imports {self.target}: {rule}"


def _room(module: str) -> str:
    parts = module.split(".")
    return parts[1] if parts[0] == "fleetcraft" and len(parts) > 1 else ""


def _within(module: str, places: tuple[str, ...]) -> bool:
    return any(module == place or module.startswith(f"{place}.") for place in places)


def modules(source: Path) -> Iterator[tuple[str, ast.Module]]:
    for path in sorted(source.rglob("*.py")):
        parts = path.relative_to(source).with_suffix("").parts
        yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), ast.parse(path.read_bytes(), str(path))


def imports(source: Path) -> Iterator[Import]:
    for module, tree in modules(source):
        top_level = {id(node) for node in tree.body}
        for node in ast.walk(tree):
            if isinstance(node, ast.Import | ast.ImportFrom):
                for target in _targets(node):
                    yield Import(module=module, target=target, line=node.lineno, at_top=id(node) in top_level)


def _targets(node: ast.Import | ast.ImportFrom) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if node.level or not node.module:
        return []
    # "from fleetcraft import spool" names a room only together with the name behind it.
    return [f"{node.module}.{alias.name}" for alias in node.names] if node.module == "fleetcraft" else [node.module]


def node_side_is_standard_library(source: Path) -> Iterator[str]:
    for found in imports(source):
        if _room(found.module) not in NODE_ROOMS and found.module not in NODE_MODULES:
            continue
        if found.top in sys.stdlib_module_names or found.top == "fleetcraft":
            continue
        if found.top == "psij" and found.module == _PSIJ_PLACE and not found.at_top:
            continue
        if found.target == "pynvml" and found.module == "fleetcraft.telemetry.nvml" and not found.at_top:
            continue
        # It comes with a ROCm installation and with nothing else.
        if found.target == "amdsmi" and found.module == "fleetcraft.telemetry.amd" and not found.at_top:
            continue
        yield found.breach("the node side runs on the standard library alone")


def vendor_library_has_one_place(source: Path) -> Iterator[str]:
    for found in imports(source):
        if found.top == "pynvml" and found.module != "fleetcraft.telemetry.nvml":
            yield found.breach("pynvml belongs to fleetcraft.telemetry.nvml")


def psij_has_one_place(source: Path) -> Iterator[str]:
    for found in imports(source):
        if found.top == "psij" and found.module != _PSIJ_PLACE:
            yield found.breach(f"psij belongs to {_PSIJ_PLACE}")
        # Who loads that module at the top would make every start slower, on nodes too.
        if found.target == _PSIJ_PLACE and found.at_top and _room(found.module) != "testing":
            yield found.breach("the PSI/J adapter is loaded only where it was asked for")


def processes_start_in_few_places(source: Path) -> Iterator[str]:
    rule = f"processes are started in {' and '.join(PROCESS_PLACES)} only"
    for found in imports(source):
        if found.top in {"subprocess", "multiprocessing", "pty"} and not _within(found.module, PROCESS_PLACES):
            yield found.breach(rule)
    for module, tree in modules(source):
        if _within(module, PROCESS_PLACES):
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                if node.attr == "fork" and _within(module, _FORK_PLACES):
                    continue
                if node.value.id == "os" and node.attr in _OS_SPAWNERS:
                    yield f"{module}:{node.lineno} uses os.{node.attr}: {rule}"
            elif isinstance(node, ast.ImportFrom) and node.module == "os":
                for alias in node.names:
                    if alias.name in _OS_SPAWNERS:
                        yield f"{module}:{node.lineno} imports os.{alias.name}: {rule}"


def core_is_words(source: Path) -> Iterator[str]:
    for found in imports(source):
        if _room(found.module) != "core":
            continue
        if found.top in _NOT_IN_CORE:
            yield found.breach("core touches no file, process or network")
        if found.top == "time" and found.module != "fleetcraft.core.clock":
            yield found.breach("time is a parameter; only core.clock names the real one")


def surfaces_use_two_doors(source: Path) -> Iterator[str]:
    for found in imports(source):
        if _room(found.module) == "surfaces" and found.room and found.room not in _SURFACES_MAY_IMPORT:
            yield found.breach("a surface looks through readmodel, acts through actions, and knows words")


def async_stays_at_the_edge(source: Path) -> Iterator[str]:
    for found in imports(source):
        if found.top == "asyncio" and not _within(found.module, _ASYNC_PLACES):
            yield found.breach("the code is synchronous; async lives in surfaces.http and surfaces.mcp")


def fakes_stay_out_of_the_product(source: Path) -> Iterator[str]:
    for found in imports(source):
        if found.room == "testing" and _room(found.module) != "testing":
            yield found.breach("the shipped fakes are for tests")


def imports_are_absolute(source: Path) -> Iterator[str]:
    for module, tree in modules(source):
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.level:
                yield f"{module}:{node.lineno} imports by dots: a name has one address"


RULES = (
    node_side_is_standard_library,
    vendor_library_has_one_place,
    psij_has_one_place,
    processes_start_in_few_places,
    core_is_words,
    surfaces_use_two_doors,
    async_stays_at_the_edge,
    fakes_stay_out_of_the_product,
    imports_are_absolute,
)
