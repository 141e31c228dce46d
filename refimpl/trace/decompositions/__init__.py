"""The table of decompositions of aten ops into a small core set, written from the definitions of the ops.

`make_fx(f, decomposition_table=refimpl.decomposition_table)` traces into ops of `core.CORE_OPS` and ops that have no rule.
"""

from __future__ import annotations

from refimpl.trace.decompositions import (
    activation_gradients,
    activations,
    factories,
    foreach,
    indexing,
    linear_algebra,
    losses,
    normalisation,
    padding,
    pointwise,
    reductions,
    resampling,
    vector_norms,
    views,
)
from refimpl.trace.decompositions.core import CORE_OPS
from refimpl.trace.decompositions.inplace_and_out import register_variants
from refimpl.trace.decompositions.registry import decomposition_table, get_decompositions

# Importing a module of rules registers its rules.
RULE_FILES = (
    activation_gradients,
    activations,
    factories,
    foreach,
    indexing,
    linear_algebra,
    losses,
    normalisation,
    padding,
    pointwise,
    reductions,
    resampling,
    vector_norms,
    views,
)
register_variants(CORE_OPS)

__all__ = ["CORE_OPS", "RULE_FILES", "decomposition_table", "get_decompositions"]
