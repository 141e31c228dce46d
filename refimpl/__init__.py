"""refimpl: an independent, readable reimplementation of the road from a Python function to a kernel.

Importing this package loads nothing: each name below loads its module on first use.
"""

from __future__ import annotations

import ast
import functools
import inspect
import sys
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from refimpl.aot.export.joint_simple import aot_export_joint_simple
    from refimpl.aot.export.module import aot_export_module
    from refimpl.aot.functional_transform import functionalize
    from refimpl.aot.partition import default_partition, min_cut_rematerialization_partition
    from refimpl.aot_entry_points import aot_function, aot_module, aot_module_simplified
    from refimpl.backends import list_backends, register_backend
    from refimpl.capture.compile import compile, optimize, optimize_assert
    from refimpl.capture.entry_points.decorators import (
        allow_in_graph,
        assume_constant_result,
        disable,
        disallow_in_graph,
        graph_break,
        mark_dynamic,
        mark_static,
        mark_static_address,
        maybe_mark_dynamic,
        run,
    )
    from refimpl.capture.entry_points.explain import explain
    from refimpl.capture.entry_points.export import export as export_graph
    from refimpl.capture.entry_points.optimized_module import OptimizedModule
    from refimpl.capture.entry_points.reset import reset
    from refimpl.capture.public.running import is_compiling
    from refimpl.errors import DataDependentRead, RefimplError, UnsupportedByRefimpl, UntraceableOutput
    from refimpl.pipeline import compile_aot
    from refimpl.trace.decompositions import decomposition_table, get_decompositions
    from refimpl.trace.make_fx import make_fx
    from refimpl.upstream.substitutions import SUBSTITUTION_PARTS, SUBSTITUTIONS

__all__ = [
    "SUBSTITUTIONS",
    "SUBSTITUTION_PARTS",
    "DataDependentRead",
    "OptimizedModule",
    "RefimplError",
    "UnsupportedByRefimpl",
    "UntraceableOutput",
    "allow_in_graph",
    "aot_export_joint_simple",
    "aot_export_module",
    "aot_function",
    "aot_module",
    "aot_module_simplified",
    "assume_constant_result",
    "compile",
    "compile_aot",
    "decomposition_table",
    "default_partition",
    "disable",
    "disallow_in_graph",
    "explain",
    "export_graph",
    "functionalize",
    "get_decompositions",
    "graph_break",
    "is_compiling",
    "list_backends",
    "make_fx",
    "mark_dynamic",
    "mark_static",
    "mark_static_address",
    "maybe_mark_dynamic",
    "min_cut_rematerialization_partition",
    "optimize",
    "optimize_assert",
    "register_backend",
    "reset",
    "run",
]


@functools.cache
def _homes() -> dict[str, tuple[str, str]]:
    """Name -> the module it is in and its name there, as the imports above say it to type checkers."""
    return {
        alias.asname or alias.name: (node.module, alias.name)
        for node in ast.walk(ast.parse(inspect.getsource(sys.modules[__name__])))
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("refimpl.")
        for alias in node.names
    }


def __getattr__(name: str) -> Any:
    if name in __all__:
        module, attribute = _homes()[name]
        found = globals()[name] = getattr(import_module(module), attribute)
        return found
    if not name.startswith("__") and find_spec(f"refimpl.{name}") is not None:
        return import_module(f"refimpl.{name}")  # so `refimpl.export.export` needs no import of its own
    raise AttributeError(f"module 'refimpl' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__


class _Package(ModuleType):
    """`refimpl.functionalize` is a function, as in torch.func: importing the package of that name does not replace it."""

    @property
    def functionalize(self) -> Any:
        return __getattr__("functionalize")

    @functionalize.setter
    def functionalize(self, package: ModuleType) -> None:
        """Keep the function."""


sys.modules[__name__].__class__ = _Package
