"""The decompositions of the code generator: those of operators without a lowering."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from refimpl.codegen.lowering.graph import RULES
from refimpl.trace.decompositions import decomposition_table
from refimpl.trace.decompositions.inplace_and_out import variant_rules


def codegen_decompositions() -> dict[Any, Callable[..., Any]]:
    """refimpl's table without lowered operators. In-place and out variants of those decompose into them."""
    lowered = [overload for overload in decomposition_table if overload in RULES]
    variants = dict(pair for overload in lowered for pair in variant_rules(overload, overload))
    table = decomposition_table | {
        variant: rule for variant, rule in variants.items() if variant in decomposition_table
    }
    return {overload: function for overload, function in table.items() if overload not in RULES}
