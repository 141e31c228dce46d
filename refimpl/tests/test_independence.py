"""refimpl never uses what it is compared with: neither in its text, nor when it runs."""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import refimpl
from refimpl.tests.corpus import programs_of
from refimpl.tests.watched_child import report_of_child

PACKAGE = Path(refimpl.__file__).parent
DOOR = PACKAGE / "_torch"
SOURCES = sorted(path for path in PACKAGE.rglob("*.py") if "tests" not in path.relative_to(PACKAGE).parts)
FORBIDDEN = (
    "torch._dynamo",
    "torch._functorch",
    "torch._inductor",
    "torch._export",
    "torch.export",
    "torch.compile",
    "torch.compiler",
    "torch.fx.experimental",
    "torch.func.functionalize",
    "torch._to_functional_tensor",
    "torch._subclasses.functional_tensor",
)
# `refimpl/_torch` is the only door to these; FakeTensorMode is the named exception to independence.
DOOR_ONLY = ("torch._", "torch.utils._", "torch.fx._", "torch.fx.graph._")


def names_used(source: str) -> set[str]:
    """Dotted names a module imports or spells out from `torch` on."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import():
                names.update(alias.name for alias in node.names)
            case ast.ImportFrom():
                names.update(f"{node.module}.{alias.name}" for alias in node.names)
            case ast.Attribute():
                names.add(ast.unparse(node))
            case ast.Constant(value=str() as text) if (
                text.startswith("torch.") and text.replace(".", "").isidentifier()
            ):
                names.add(text)  # importlib.import_module, getattr chains
            case _:
                pass
    return {name for name in names if name == "torch" or name.startswith("torch.")}


def _dots(name: str) -> list[int]:
    return [position for position, character in enumerate(name) if character == "."]


def modes_run_by_dynamo(source: str) -> list[str]:
    """Dispatch modes whose handler the base class would wrap in torch._dynamo.disable."""
    return [
        node.name
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.ClassDef)
        and any(ast.unparse(base).endswith("TorchDispatchMode") for base in node.bases)
        and not any(isinstance(part, ast.FunctionDef) and part.name == "_should_skip_dynamo" for part in node.body)
    ]


def is_under(name: str, prefixes: tuple[str, ...]) -> bool:
    return any(name == prefix or name.startswith(f"{prefix}.") for prefix in prefixes)


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_dispatch_modes_run_none_of_dynamos_code(path: Path) -> None:
    assert modes_run_by_dynamo(path.read_text(encoding="utf-8")) == []


def test_a_dispatch_mode_that_dynamo_would_run_is_seen() -> None:
    assert modes_run_by_dynamo("class Mode(TorchDispatchMode):\n    def __torch_dispatch__(self): pass") == ["Mode"]


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_the_source_names_nothing_forbidden(path: Path) -> None:
    used = names_used(path.read_text(encoding="utf-8"))
    allowed: set[str] = set()
    if path == PACKAGE / "upstream" / "substitutions.py":  # names of what is stood in for, and of the modules it is in
        stood_in_for = [name for part in refimpl.SUBSTITUTION_PARTS.values() for name in part]
        allowed = {name[:end] for name in stood_in_for for end in (*_dots(name), len(name))}
    if path == DOOR / "tensors.py":
        # only for the error types in UPSTREAM_SHAPE_ERRORS, and for settings that the user has made
        allowed = {"torch.fx.experimental.symbolic_shapes", "torch.fx.experimental._config", "torch._functorch.config"}
    if path == PACKAGE / "export" / "input_contract.py":  # asks whether torch.compile traces the exported module
        allowed = {"torch.compiler", "torch.compiler.is_compiling"}
    if path == DOOR / "transforms.py":  # functions of torch.func that capture recognizes, compared by identity
        allowed = {f"torch._functorch.{name}" for name in ("apis", "eager_transforms", "predispatch", "vmap")}
    assert sorted(name for name in used - allowed if is_under(name, FORBIDDEN)) == []
    if path.parent != DOOR:
        private = {name for name in used - allowed if name.startswith(DOOR_ONLY) and not name.startswith("torch.__")}
        assert sorted(private) == [], "goes through refimpl/_torch"


@pytest.mark.parametrize(
    "source",
    [
        "import torch._dynamo",
        "from torch.fx.experimental.proxy_tensor import make_fx",
        "from torch.fx import experimental",
        "import torch\ntorch._dynamo.reset()",
        "import importlib\nimportlib.import_module('torch._functorch.aot_autograd')",
        "import torch\ntorch.compile(f)",
    ],
)
def test_the_scan_finds_what_is_forbidden(source: str) -> None:
    assert any(is_under(name, FORBIDDEN) for name in names_used(source))


# Traces in real mode while every Python call is watched. What `import torch` and the constructor of FakeTensorMode (the named
# exception: real mode describes its nodes with fake tensors) load is loaded before; what runs after counts.
CHILD = """
import json, sys, threading
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
FakeTensorMode()
loaded_by_torch = set(sys.modules)
import refimpl
from refimpl.tests.corpus import programs_of
from pathlib import Path

root = Path(torch.__file__).parent
FORBIDDEN_CODE = tuple(
    str(root / part)
    for part in ("_dynamo", "_functorch", "_inductor", "_export", "export", "compiler", "fx/experimental",
                 "_subclasses/functional_tensor.py", "_subclasses/functional_tensor")
)
KERNELS = tuple(str(root / part) + "/" for part in ("_refs", "_decomp", "_prims"))
FORBIDDEN_CODE += KERNELS
FAKE_TENSORS = str(root / "_subclasses/fake_tensor.py")
ran = set()

def watch(frame, event, argument):
    if event == "call" and frame.f_code.co_filename.startswith(FORBIDDEN_CODE):
        if frame.f_back.f_code.co_filename == FAKE_TENSORS and not frame.f_code.co_filename.startswith(KERNELS):
            return  # a fake tensor asks torch.compiler about itself when it is made
        ran.add(f"{frame.f_code.co_filename}:{frame.f_code.co_name}")

if PROVOKE:
    def trace(function, arguments):
        from torch.fx.experimental.proxy_tensor import make_fx
        for kernel in (torch._refs.nn.functional.celu, torch._decomp.decompositions.silu, torch._prims._cbrt_aten):
            kernel(torch.ones(2))
        return make_fx(function)(*arguments)
else:
    def trace(function, arguments):
        return refimpl.make_fx(function)(*arguments)

programs = {program.name: program for program in programs_of("trace")}
arguments = {name: p.make(p.with_gradients == (True,)).arguments for name, p in programs.items()}
traced = 0
sys.setprofile(watch)
threading.setprofile(watch)
try:
    for name, program in programs.items():
        trace(program.build(), arguments[name])
        traced += 1
    if not PROVOKE:
        for name in ("attention", "convolution_block", "mutate_input"):
            options = {"pre_dispatch": True, "record_stack_traces": True}
            refimpl.make_fx(programs[name].build(), **options)(*arguments[name])
finally:
    sys.setprofile(None)
    threading.setprofile(None)
FORBIDDEN_MODULES = tuple("torch." + m for m in "_dynamo _functorch _inductor _export export fx.experimental".split())
new = sorted(m for m in set(sys.modules) - loaded_by_torch if m.startswith(FORBIDDEN_MODULES))
print(json.dumps({"ran": sorted(ran), "new_modules": new, "traced": traced}))
"""


def test_a_trace_runs_no_forbidden_code_and_loads_no_forbidden_module(run_fresh: Callable[[str], Any]) -> None:
    report = report_of_child(run_fresh, CHILD)
    assert report["traced"] == len(programs_of("trace"))
    assert report["ran"] == []
    assert report["new_modules"] == []


def test_the_watch_sees_forbidden_code_when_it_runs(run_forked: Callable[[str], Any]) -> None:
    report = report_of_child(run_forked, CHILD, provokes=True)
    ran = "\n".join(map(str, report["ran"]))
    for function in (
        "proxy_tensor.py:proxy_call",
        "_refs/nn/functional/__init__.py:celu",
        "_decomp/decompositions.py:silu",
        "_prims/__init__.py:_cbrt_aten",
    ):
        assert function in ran
