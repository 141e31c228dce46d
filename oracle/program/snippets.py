"""Snippets: programs in .py files, which are parsed here and never executed.

A snippet file has

- a docstring, whose first line says what the program tests;
- `PROGRAM = {...}`: a literal with the keys of `_KEYS`, parsed with `ast`;
- `DEVICE = "cpu"`: the device of its inputs and parameters; the line is rewritten for another device;
- `program`, `inputs(call)` and perhaps `derive`, as described in `oracle.program`.

Each execution of the source has its own namespace, and so a fresh target with fresh globals.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from oracle.errors import InternalError
from oracle.program import Call, ComparePolicy, Program

_DEVICE_LINE = re.compile(r'^DEVICE = "cpu"$', re.MULTILINE)

# key of PROGRAM -> its types
_KEYS: Mapping[str, type | tuple[type, ...]] = {
    "tags": tuple,
    "rung": str,  # of a regression: the subject it was reported for
    "where": str,  # and the part of that compiler, as far as it is known
    "calls": list,  # of dicts with the fields of oracle.program.Call
    "is_module": bool,
    "dynamic": bool,
    "sizes": dict,  # ranges of the sizes that may vary, as in oracle.program.Program
    "config": dict,  # torch configuration while a subject compiles and runs
    "expects_raise": bool,
    "policy": dict,  # the fields of oracle.program.ComparePolicy
    "seed": int,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Snippet:
    """One snippet file: its text and the fields of its `PROGRAM`."""

    name: str  # the file's stem
    doc: str  # first line of the docstring
    source: str
    tags: tuple[str, ...]
    rung: str = ""
    where: str = ""
    calls: tuple[Call, ...] = (Call(),)
    is_module: bool = False
    dynamic: bool | None = None
    sizes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    expects_raise: bool = False
    policy: ComparePolicy = ComparePolicy()
    seed: int = 0

    @property
    def direction(self) -> str:
        """ "backward" if some call of the plan differentiates, else "forward"."""
        return "backward" if any(call.backward for call in self.calls) else "forward"

    def to_program(self, *, name: str, device: str) -> Program:
        """The program on one device ("cpu", "cuda", "cuda:1")."""
        return Program(
            name=name,
            source=source_on(self.source, device),
            calls=self.calls,
            seed=self.seed,
            is_module=self.is_module,
            dynamic=self.dynamic,
            sizes=self.sizes,
            config=self.config,
            expects_raise=self.expects_raise,
            policy=self.policy,
        )


def source_on(source: str, device: str) -> str:
    """The snippet's text with its DEVICE line set to `device`."""
    return source if device == "cpu" else _DEVICE_LINE.sub(f'DEVICE = "{device}"', source)


def parse_snippet(name: str, source: str) -> Snippet:
    """The snippet of a text. Raises InternalError if it does not have the form above, since snippets are our own files."""
    tree = ast.parse(source, filename=f"{name}.py")
    doc = ast.get_docstring(tree)
    literals = [
        node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and [ast.unparse(target) for target in node.targets] == ["PROGRAM"]
    ]
    if not doc or len(literals) != 1 or len(_DEVICE_LINE.findall(source)) != 1:
        raise InternalError(f'snippet {name}: needs a docstring, one PROGRAM literal and one line DEVICE = "cpu"')
    fields = ast.literal_eval(literals[0])
    for key, value in fields.items():
        if key not in _KEYS or not isinstance(value, _KEYS[key]):
            raise InternalError(f"snippet {name}: PROGRAM[{key!r}] = {value!r}; known keys are {', '.join(_KEYS)}")
    if not fields.get("tags"):
        raise InternalError(f"snippet {name}: PROGRAM has no tags")
    if "calls" in fields:
        fields["calls"] = tuple(Call(**call) for call in fields["calls"])
    if "policy" in fields:
        fields["policy"] = _policy(fields["policy"])
    return Snippet(name=name, doc=doc.splitlines()[0], source=source, **fields)


def _policy(fields: dict[str, Any]) -> ComparePolicy:
    policy = ComparePolicy(**fields)
    if not policy.reason:
        raise InternalError(f"a policy that departs from the defaults without a reason: {fields}")
    return policy


def read_snippets(folder: Path) -> dict[str, Snippet]:
    """All snippets of a folder by name, sorted."""
    paths = sorted(path for path in folder.glob("*.py") if path.stem != "__init__")
    return {path.stem: parse_snippet(path.stem, path.read_text(encoding="utf-8")) for path in paths}
