"""refimpl: an independent, readable reimplementation of the road from a Python function to a kernel."""

from __future__ import annotations

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
