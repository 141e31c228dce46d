"""Functionalization: a graph with mutation and views in, a graph that computes the same without mutation out."""

from __future__ import annotations

from refimpl.functionalize.aliases import VIEWED, AliasMap, ViewStep
from refimpl.functionalize.flat_bases import AliasGroup
from refimpl.functionalize.graph_pass import Functionalized, functionalize_graph

__all__ = ["VIEWED", "AliasGroup", "AliasMap", "Functionalized", "ViewStep", "functionalize_graph"]
