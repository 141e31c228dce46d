"""Functionalization: a graph with mutation and views in, a graph that computes the same without mutation out."""

from __future__ import annotations

from refimpl.functionalize.aliases import VIEWED, AliasMap, ViewStep
from refimpl.functionalize.errors import SymbolicMemory
from refimpl.functionalize.flat_bases import AliasGroup
from refimpl.functionalize.functional_tensors import (
    disable_functionalization,
    enable_functionalization,
    freeze_functional_tensor,
    from_functional_tensor,
    is_functional_tensor,
    sync,
    to_functional_tensor,
)
from refimpl.functionalize.graph_pass import Functionalized, functionalize_graph

__all__ = [
    "VIEWED",
    "AliasGroup",
    "AliasMap",
    "Functionalized",
    "SymbolicMemory",
    "ViewStep",
    "disable_functionalization",
    "enable_functionalization",
    "freeze_functional_tensor",
    "from_functional_tensor",
    "functionalize_graph",
    "is_functional_tensor",
    "sync",
    "to_functional_tensor",
]
