"""Graphs of torch.fx, and the containers that their inputs and outputs come in."""

from __future__ import annotations

import torch

# Whether torch.fx's own tracer runs: a captured function that it calls would look at proxies.
from torch.fx import _symbolic_trace as _fx_symbolic_trace

# Which fields of a node's meta a node made in its place takes over; functions that a stack trace always shows; whose number.
from torch.fx import proxy as _fx_proxy
from torch.fx import traceback as _fx_traceback

# Code is printed when it is first asked for: a graph module that only serves to be compiled never needs it.
from torch.fx._lazy_graph_module import _LazyGraphModule as LazyGraphModule

# A graph whose inputs and outputs are flat.
from torch.fx.graph import CodeGen as PlainCodeGen

# A graph whose inputs or outputs are nested containers: fx prints the flattening and unflattening code.
from torch.fx.graph import _PyTreeCodeGen as PyTreeCodeGen
from torch.fx.graph import _PyTreeInfo as PyTreeInfo

# What fx passes and backends read as a node's "tensor_meta".
from torch.fx.passes.shape_prop import TensorMetadata as TensorMetadata
from torch.fx.proxy import _COPY_META_FIELDS as PRESERVED_META_FIELDS

# Containers: torch.utils._pytree knows every container a user has registered with torch.
from torch.utils import _pytree as pytree


def is_fx_tracing() -> bool:
    """Whether torch.fx traces a function with proxies in this process."""
    return _fx_symbolic_trace._is_fx_tracing_flag


STACK_TRACE_ANCHORS: set[tuple[str, str]] = getattr(_fx_proxy, "_STACK_TRACE_ANCHORS", set())  # since torch 2.13


def keeps_sequence_number_of_meta() -> bool:
    """Whether nodes are to have the sequence number that the current meta names, not autograd's."""
    return getattr(_fx_traceback, "_is_preserving_node_seq_nr", bool)()


def graph_codegen(graph: torch.fx.Graph) -> PlainCodeGen:
    """What prints the graph as Python, and knows the containers its inputs and outputs come in."""
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
    "is_fx_tracing",
    "keeps_sequence_number_of_meta",
    "pytree",
]
