"""The subjects file: TOML with a table for each subject of the user. Does not import torch.

[subjects.mine]
path = "mypackage.backend:compile_graph"   # found on the current directory and PYTHONPATH
kind = "backend"                           # or "compiler"; without a path: the name of a built-in subject
options = { dynamic = true }
env = { MY_FLAG = "1" }                    # set before torch is imported, in separate workers
rng = "own"                                # it draws its own random numbers, which are judged by distribution
eager_stream = { "torch._inductor.config.fallback_random" = true }   # with this it draws eager's, and values are judged
double_backward = true                     # promises a double backward: refusing one is a finding
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from oracle.configure import CONFIG_MODULES
from oracle.errors import UsageError
from oracle.subjects.options import flatten_tables

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # pyright: ignore[reportMissingImports]  # installed on Python 3.10 only

_NAME = re.compile(r"^[A-Za-z_][A-Za-z0-9_.-]*$")
_KEYS = ("path", "kind", "options", "env", "rng", "eager_stream", "double_backward")


@dataclass(frozen=True, slots=True, kw_only=True)
class SubjectEntry:
    """One table of the file, validated."""

    path: str = ""
    kind: str = "backend"
    options: Mapping[str, Any] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    rng: str = ""
    double_backward: bool = False
    eager_stream: Mapping[str, Any] = field(default_factory=dict)


def read_subjects_file(file: Path) -> dict[str, SubjectEntry]:
    """The subjects of the file by name, in order. Raises UsageError that names the file and the key."""
    try:
        data = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            seen=f"subjects file {file}: {error}", expected="a readable TOML file", do="correct the path"
        ) from error
    except tomllib.TOMLDecodeError as error:
        raise UsageError(
            seen=f"subjects file {file}: {error}", expected="TOML", do="correct the file at that place"
        ) from error
    for key in data:
        if key != "subjects":
            raise _bad(file, key, "only tables [subjects.NAME]")
    tables = data.get("subjects", {})
    if not isinstance(tables, dict):
        raise _bad(file, "subjects", "tables [subjects.NAME]")
    return {name: _entry(file, name, table) for name, table in tables.items()}


def _entry(file: Path, name: str, table: object) -> SubjectEntry:
    at = f"subjects.{name}"
    if not isinstance(table, dict):
        raise _bad(file, at, "a table")
    if not _NAME.match(name):
        raise _bad(file, at, "a name of letters, digits, '_', '-' and '.'; quote a dotted name")
    for key in table:
        if key not in _KEYS:
            raise _bad(file, f"{at}.{key}", f"one of {', '.join(_KEYS)}")
    path, kind, rng = (table.get(key, "") for key in ("path", "kind", "rng"))
    for key, value in (("path", path), ("kind", kind), ("rng", rng)):
        if not isinstance(value, str):
            raise _bad(file, f"{at}.{key}", "a string")
    if path and ":" not in path:
        raise _bad(file, f"{at}.path", '"module:function"')
    if path.startswith("compile:"):
        kind, path = kind or "compiler", path.removeprefix("compile:")
    if not path and not kind:
        raise _bad(file, at, 'a path = "module:function", or the kind of a built-in subject')
    if path and kind not in ("", "backend", "compiler"):
        raise _bad(file, f"{at}.kind", '"backend" or "compiler" beside a path')
    if rng not in ("", "eager", "own"):
        raise _bad(file, f"{at}.rng", '"eager" (the same random numbers) or "own" (the same distribution)')
    double_backward = table.get("double_backward", False)
    if not isinstance(double_backward, bool):
        raise _bad(file, f"{at}.double_backward", "true or false")
    for key in ("options", "env", "eager_stream"):
        if not isinstance(table.get(key, {}), dict):
            raise _bad(file, f"{at}.{key}", "a table")
    for variable, value in table.get("env", {}).items():
        if not isinstance(value, str):
            raise _bad(file, f"{at}.env.{variable}", "a string in quotes")
    options = flatten_tables(table.get("options", {}))
    for option, value in options.items():
        if not isinstance(value, (bool, int, float, str)):
            raise _bad(file, f"{at}.options.{option}", "a number, a string, true or false")
    eager_stream = flatten_tables(table.get("eager_stream", {}))
    for name in eager_stream:
        if not name.startswith(tuple(f"{module}." for module in CONFIG_MODULES)):
            raise _bad(file, f"{at}.eager_stream.{name}", f"an option of {', '.join(CONFIG_MODULES)}, in quotes")
    return SubjectEntry(
        path=path,
        kind=kind or "backend",
        options=options,
        env=table.get("env", {}),
        rng=rng,
        double_backward=double_backward,
        eager_stream=eager_stream,
    )


def _bad(file: Path, key: str, expected: str) -> UsageError:
    return UsageError(
        seen=f"{key} in subjects file {file}",
        expected=expected,
        do='correct the file; a table looks like this: [subjects.mine] path = "mypackage.backend:compile_graph"',
    )
