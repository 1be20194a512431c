"""Which variables of the person's shell a task gets: an explicit list, recorded once per enqueue with a digest.

Neither everything (a missing activation would stay hidden, and secrets would reach a file) nor nothing. What a
task needs beyond the list is named with `--env` or `--env-file`.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping

from fleetcraft.core.errors import TaskInvalid
from fleetcraft.core.task import canonical, check_env

# Recorded under exactly these names. TMPDIR is left to the machine that runs the task.
RECORDED = frozenset(
    {
        "PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ",
        "PYTHONPATH", "PYTHONHOME", "PYTHONUNBUFFERED", "PYTHONNOUSERSITE", "PYTHONHASHSEED", "PYTHONUTF8",
        "VIRTUAL_ENV", "CONDA_PREFIX", "CONDA_DEFAULT_ENV", "LD_LIBRARY_PATH", "LIBRARY_PATH", "CPATH",
        "MODULEPATH", "MODULESHOME", "LOADEDMODULES", "_LMFILES_",
        "CUDA_HOME", "CUDA_PATH", "ROCM_PATH", "PYTORCH_CUDA_ALLOC_CONF",
        "HF_HOME", "HF_HUB_CACHE", "HF_HUB_OFFLINE", "HF_DATASETS_CACHE", "HF_DATASETS_OFFLINE",
        "TRANSFORMERS_CACHE", "TRANSFORMERS_OFFLINE", "TORCH_HOME", "TRITON_CACHE_DIR",
        "OMP_PROC_BIND", "OMP_PLACES", "MKL_THREADING_LAYER", "KMP_AFFINITY",
    }
)  # fmt: skip
# Recorded when the whole name looks like this.
RECORDED_PATTERNS = ("LC_[A-Z]+", "[A-Z][A-Z0-9_]*_NUM_THREADS", "XDG_(CACHE|CONFIG|DATA|STATE)_(HOME|DIRS)")
# Never recorded, whatever the lists above say: a job's own variables mislead torchrun and MPI, a session's are
# gone on another machine, and a secret has no place in a ledger.
REFUSED_PATTERNS = (
    "SLURM_.*",
    "SBATCH_.*",
    "PMI.*",
    "SSH_.*",
    "FLEETCRAFT_.*",
    ".*(TOKEN|KEY|SECRET|PASSWORD|PASSWD|CREDENTIAL).*",
)

_RECORDED = re.compile("|".join(RECORDED_PATTERNS))
_REFUSED = re.compile("|".join(REFUSED_PATTERNS), re.IGNORECASE)
_ASSIGNMENT = re.compile(r"(?:export[ \t]+)?([^=\s]+)=(.*)", re.DOTALL)
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", '"': '"', "\\": "\\", "$": "$", "`": "`"}


def record_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The part of an environment that tasks get, sorted by name."""
    return {name: environ[name] for name in sorted(environ) if is_recorded(name)}


def is_recorded(name: str) -> bool:
    """True when a variable of this name is passed on to tasks."""
    return (name in RECORDED or _RECORDED.fullmatch(name) is not None) and _REFUSED.fullmatch(name) is None


def environment_digest(environ: Mapping[str, str]) -> str:
    """16 hex digits that differ when any name or value differs."""
    return hashlib.blake2b(canonical(dict(environ)), digest_size=8).hexdigest()


def parse_env_file(text: str, label: str) -> dict[str, str]:
    r"""Variables from lines of `NAME=VALUE`, as shells write them.

    `export` before the name, blank lines and lines that begin with # are allowed. A value in single quotes is
    taken as it is; in double quotes `\n`, `\t`, `\r`, `\"`, `\\`, `\$` and `\`` are escapes; without
    quotes it ends before ` #`. Nothing is expanded: `$HOME` stays `$HOME`. Raises TaskInvalid with the line.
    """
    found: dict[str, str] = {}
    for number, raw in enumerate(text.split("\n"), 1):
        where = f"{label}:{number}"
        line = raw.removesuffix("\r").removeprefix("\ufeff").strip(" \t")
        if not line or line.startswith("#"):
            continue
        match = _ASSIGNMENT.fullmatch(line)
        if match is None:
            raise TaskInvalid(f"{where}: {line[:40]!r} is not NAME=VALUE.")
        name, value = match.groups()
        if not _VARIABLE.fullmatch(name):
            raise TaskInvalid(f"{where}: {name!r} is not a valid variable name.")
        found[name] = _value(value, where)
        check_env({name: found[name]}, where)
    return found


def _value(raw: str, where: str) -> str:
    quote = raw[:1]
    if quote not in ("'", '"'):
        return re.split(r"[ \t]#|^#", raw, maxsplit=1)[0].rstrip(" \t")
    value, end = _quoted(raw, quote)
    if end < 0:
        raise TaskInvalid(f"{where}: the quote {quote} is not closed.", hint=r"Write a newline as \n in double quotes.")
    rest = raw[end:].strip(" \t")
    if rest and not rest.startswith("#"):
        raise TaskInvalid(f"{where}: {rest[:40]!r} stands behind the closing quote.")
    return value


def _quoted(raw: str, quote: str) -> tuple[str, int]:
    """The value of a quoted text and the position behind it; -1 when it is not closed."""
    parts: list[str] = []
    at = 1
    while at < len(raw):
        letter = raw[at]
        if letter == quote:
            return "".join(parts), at + 1
        if letter == "\\" and quote == '"' and raw[at + 1 : at + 2] in _ESCAPES and at + 1 < len(raw):
            parts.append(_ESCAPES[raw[at + 1]])
            at += 1
        else:
            parts.append(letter)
        at += 1
    return "", -1
