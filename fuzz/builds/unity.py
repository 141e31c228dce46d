"""Joins several kernels into one translation unit, and compiles it. Does not import torch.

Each source gets its own namespace, and Inductor's flags are used. The library is copied to every path at which Inductor expects
one. Sources share their bindings (`bindings.py`). Sources with errors are left out; their workers compile them alone, and get the
compiler's own message.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from typing_extensions import Self

from fuzz.builds.bindings import with_common_bindings
from fuzz.builds.linking import quicker

LIMIT_S = 120.0  # for one call of the compiler
_INCLUDE = re.compile(r"^[ \t]*#[ \t]*include\b.*$", re.MULTILINE)
_ERROR = re.compile(r"^[^\n:]*unity\.cpp:(\d+):\d+: (?:fatal )?error:", re.MULTILINE)
_BEGIN = re.compile(r"namespace unity_(\d+) \{")
_END = "// the end of one"
_SSIZE_T = "#define PY_SSIZE_T_CLEAN"
_RENAMED = ("kernel", "PyInit_kernel")  # what every source defines with C linkage


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildJob:
    """One library: its source, its path, and the command that would build it alone."""

    source: str
    target: str
    command: str

    def general_command(self) -> str:
        """The command line without the names of this job's files. Jobs with equal ones may be built together."""
        return self.command.replace(self.source, "SOURCE").replace(self.target, "TARGET")

    def to_json(self) -> dict[str, str]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        return cls(source=data["source"], target=data["target"], command=data["command"])


def build(jobs: Sequence[BuildJob], *, stubs: Path | None = None) -> list[BuildJob]:
    """Build jobs with equal general commands in one call of the compiler, or a few if some have errors. Returns those built.

    `stubs` is a directory for empty libraries that the linker reads instead of the large ones (`linking.py`); None: it reads
    those.
    """
    left = list(jobs)
    try:
        while left:
            guilty = _attempt(left, stubs)
            if guilty is None:
                return left
            if not guilty:  # an error that belongs to no single source
                return []
            left = [job for number, job in enumerate(left) if number not in guilty]
    except (
        OSError,
        subprocess.TimeoutExpired,
    ):  # for example a full disk or a cleared cache: the worker will see the error
        return []
    return []


def _attempt(jobs: Sequence[BuildJob], stubs: Path | None) -> set[int] | None:
    """Call the compiler once. Returns None if the libraries were built, else the numbers of the jobs with errors."""
    with tempfile.TemporaryDirectory(prefix="unity-", dir=Path(jobs[0].target).parent) as folder:
        source, library = Path(folder) / "unity.cpp", Path(folder) / "unity.so"
        text = unity_source([(Path(job.source).read_text(), Path(job.target).name) for job in jobs])
        source.write_text(text)
        renames = {jobs[0].source: str(source), jobs[0].target: str(library)}
        words = quicker([renames.get(word, word) for word in shlex.split(jobs[0].command)], stubs)
        environment = {**os.environ, "LC_ALL": "C"}
        done = subprocess.run(
            words, cwd=folder, capture_output=True, check=False, timeout=LIMIT_S, env=environment, errors="replace"
        )
        if done.returncode or not library.exists():
            return guilty_of(done.stderr, text)
        for job in jobs:
            _put(library, Path(job.target))
    return None


def guilty_of(messages: str, text: str) -> set[int]:
    """The numbers of the kernels that the compiler's error messages point to."""
    owners: list[int] = []
    current = -1
    for line in text.splitlines():
        if (found := _BEGIN.fullmatch(line)) is not None:
            current = int(found[1])
        elif line == _END:
            current = -1
        owners.append(current)
    lines = [int(number) for number in _ERROR.findall(messages)]
    return {owners[line - 1] for line in lines if 0 < line <= len(owners)} - {-1}


def _put(library: Path, target: Path) -> None:
    """Copy the library atomically. A link would not do: the loader takes two names of one file for one library."""
    handle, name = tempfile.mkstemp(dir=target.parent)
    os.close(handle)
    try:
        shutil.copy(library, name)
        os.replace(name, target)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise


def unity_source(kernels: Sequence[tuple[str, str]]) -> str:
    """One source from several, each given with the file name of its library.

    The library is loaded under several names. Its single `PyInit_kernel` finds out under which, and returns that kernel's module.
    """
    includes = dict.fromkeys([_SSIZE_T, "#include <Python.h>"])
    for text, _ in kernels:
        includes.update(dict.fromkeys(line.strip() for line in _INCLUDE.findall(text)))
    common, changed = with_common_bindings([_INCLUDE.sub("", text).replace(_SSIZE_T, "") for text, _ in kernels])
    bodies, choices = [], []
    for number, (body, (_, library)) in enumerate(zip(changed, kernels, strict=True)):
        defines = "\n".join(f"#define {name} {name}_{number}" for name in _RENAMED)
        undefines = "\n".join(f"#undef {name}" for name in _RENAMED)
        bodies.append(f"{defines}\nnamespace unity_{number} {{\n{body}\n}}\n{undefines}\n{_END}\n")
        choices.append(f'    if (name == "{library}") return unity_{number}::PyInit_kernel_{number}();')
    return "\n".join(
        [
            *includes,
            "#include <dlfcn.h>\n#include <string>",
            *common,
            *bodies,
            "static int unity_anchor;",
            "PyMODINIT_FUNC PyInit_kernel(void) {",
            "    Dl_info info;",
            "    std::string name = dladdr(&unity_anchor, &info) ? info.dli_fname : std::string();",
            "    name = name.substr(name.rfind('/') + 1);",
            *choices,
            '    PyErr_SetString(PyExc_ImportError, "no kernel of this name was built");',
            "    return nullptr;",
            "}\n",
        ]
    )
