"""torch.fx graphs, and pytrees for their inputs and outputs."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any

import torch

# Whether torch.fx's own tracer runs: it would call a captured function with proxies.
from torch.fx import _symbolic_trace as _fx_symbolic_trace

# Meta fields that are copied to a node's replacements, functions that stack traces always show, and sequence numbers.
from torch.fx import proxy as _fx_proxy
from torch.fx import traceback as _fx_traceback

# A GraphModule that generates its Python code when the code is first read or run, and so never if it is only compiled.
from torch.fx._lazy_graph_module import _LazyGraphModule as LazyGraphModule

# The code generator of graphs with flat inputs and outputs.
from torch.fx.graph import CodeGen as PlainCodeGen

# The code generator of graphs with nested inputs or outputs, which prints flattening and unflattening code.
from torch.fx.graph import _PyTreeCodeGen as PyTreeCodeGen
from torch.fx.graph import _PyTreeInfo as PyTreeInfo

# How the imports of a graph's code are written.
from torch.fx.graph_module import _format_import_block

# The class of a node's "tensor_meta", which fx passes and backends read.
from torch.fx.passes.shape_prop import TensorMetadata as TensorMetadata
from torch.fx.proxy import _COPY_META_FIELDS as PRESERVED_META_FIELDS

# Records in a node's "from_node": which node of an earlier graph it is made from, by which pass.
from torch.fx.traceback import NodeSource as NodeSource
from torch.fx.traceback import NodeSourceAction as NodeSourceAction
from torch.package import sys_importer

# Pytrees, with every container that a user has registered with torch.
from torch.utils import _pytree as pytree


def is_fx_tracing() -> bool:
    """Whether torch.fx's own tracer is running in this process."""
    return _fx_symbolic_trace._is_fx_tracing_flag


STACK_TRACE_ANCHORS: set[tuple[str, str]] = getattr(_fx_proxy, "_STACK_TRACE_ANCHORS", set())  # since torch 2.13


def keeps_sequence_number_of_meta() -> bool:
    """Whether a node gets the sequence number of the current meta, not autograd's."""
    return getattr(_fx_traceback, "_is_preserving_node_seq_nr", bool)()


def printed_rightly(function: Any, args: Sequence[Any]) -> Any:
    """The function to call in a graph for this one. torch.fx prints operator.pow(-2, n) as `-2 ** n`, which is -(2 ** n)."""
    is_power_of_number = function is operator.pow and isinstance(args[0], int | float)
    return pow if is_power_of_number and math.copysign(1, args[0]) < 0 else function


def import_block(named: dict[str, Any]) -> str:
    """The import statements that give these names to these objects. Raises ObjNotFoundError for an object without a place."""
    return _format_import_block(named, sys_importer)


def graph_codegen(graph: torch.fx.Graph) -> PlainCodeGen:
    """The graph's code generator, which knows the pytrees of its inputs and outputs."""
    return graph._codegen


__all__ = [
    "PRESERVED_META_FIELDS",
    "STACK_TRACE_ANCHORS",
    "LazyGraphModule",
    "PlainCodeGen",
    "PyTreeCodeGen",
    "PyTreeInfo",
    "TensorMetadata",
    "graph_codegen",
    "import_block",
    "is_fx_tracing",
    "keeps_sequence_number_of_meta",
    "pytree",
]
