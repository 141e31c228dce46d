"""Functionalization: a graph with mutation and views in, a graph that computes the same without mutation out."""

from __future__ import annotations

from refimpl.functionalize.aliases import VIEWED, AliasMap, ViewStep

__all__ = ["VIEWED", "AliasMap", "ViewStep"]
