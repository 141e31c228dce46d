"""Which operators are taken apart before a graph is lowered: those that have a decomposition and no rule."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from refimpl.codegen.lowering.graph import RULES
from refimpl.trace.decompositions import decomposition_table


def codegen_decompositions() -> dict[Any, Callable[..., Any]]:
    """refimpl's table without what is lowered as it is."""
    return {overload: function for overload, function in decomposition_table.items() if overload not in RULES}
