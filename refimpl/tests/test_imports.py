"""Importing refimpl loads nothing; a name of it loads the part it belongs to, and no other."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

import refimpl

REPORT = "import json, sys; print(json.dumps(sorted(sys.modules)))"


def modules_after(code: str) -> set[str]:
    """The names of the modules that a fresh process has loaded after running the code."""
    done = subprocess.run([sys.executable, "-c", f"{code}\n{REPORT}"], capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout))


def test_importing_the_package_loads_neither_torch_nor_a_module_of_ours() -> None:
    loaded = modules_after("import refimpl")
    assert [name for name in loaded if name == "torch" or name.startswith("refimpl.")] == []


def test_a_name_loads_the_parts_it_needs(run_fresh: Callable[..., Any]) -> None:
    """One process loads all names, those that need the fewest parts first, and then a backend."""
    parts = {
        f"refimpl.{part}" for part in ("aot", "backends", "capture", "codegen", "export", "functionalize", "trace")
    }
    seen: list[tuple[str, list[str]]] = []
    code = "import json, sys, refimpl\n"
    for name in ("SUBSTITUTIONS", "RefimplError", "make_fx", "aot_function", "compile_aot", "compile", "export"):
        code += f"refimpl.{name}; print(json.dumps(['{name}', sorted(sys.modules)]))\n"
    code += "import refimpl.backends as b; assert 'triton' in b.list_backends()\n"
    code += "print(json.dumps(['backends', sorted(sys.modules)]))\n"
    code += "b.lookup_backend('triton'); print(json.dumps(['the backend of kernels', sorted(sys.modules)]))\n"
    done = run_fresh(code)
    assert done.returncode == 0, done.stderr
    before: set[str] = set()
    for line in done.stdout.splitlines():
        name, modules = json.loads(line)
        seen.append((name, sorted((parts & set(modules)) - before)))
        before |= set(modules)
    assert seen == [
        ("SUBSTITUTIONS", []),
        ("RefimplError", []),
        ("make_fx", ["refimpl.trace"]),
        ("aot_function", ["refimpl.aot", "refimpl.functionalize"]),
        ("compile_aot", []),
        ("compile", ["refimpl.capture"]),
        ("export", ["refimpl.export"]),
        ("backends", ["refimpl.backends"]),
        ("the backend of kernels", ["refimpl.codegen"]),
    ]


@pytest.mark.parametrize("name", refimpl.__all__)
def test_every_name_is_there_and_listed(name: str) -> None:
    assert hasattr(refimpl, name)
    assert name in dir(refimpl)


def test_functions_can_be_pickled() -> None:
    for name in ("compile", "functionalize", "export_graph", "make_fx"):
        function = getattr(refimpl, name)
        assert pickle.loads(pickle.dumps(function)) is function


def test_functionalize_stays_the_function_when_the_package_of_its_name_is_imported() -> None:
    code = (
        "import refimpl.functionalize, refimpl\n"
        "from refimpl.aot.functional_transform import functionalize\n"
        "assert refimpl.functionalize is functionalize"
    )
    assert "refimpl.functionalize" in modules_after(code)


def test_a_name_that_is_not_there_is_named() -> None:
    with pytest.raises(AttributeError, match="'refimpl' has no attribute 'compil'"):
        refimpl.compil  # noqa: B018
