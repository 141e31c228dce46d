"""Symbolic sizes, strides and storage offset of an input.

Counterpart: ShapeEnv._create_symbolic_sizes_strides_storage_offset, _compute_symbolic_stride of
torch/fx/experimental/symbolic_shapes.py
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sympy

from refimpl.symbolic.dynamic_shapes import DimSpec
from refimpl.symbolic.protocols import SymbolSource
from refimpl.symbolic.sources import Source, size_source, storage_offset_source, stride_source


def symbolic_geometry(
    env: SymbolSource,
    sizes: Sequence[int],
    strides: Sequence[int],
    offset: int,
    source: Source,
    specs: Sequence[DimSpec],
) -> tuple[tuple[Any, ...], tuple[Any, ...], Any]:
    """Sizes, strides and offset as ints and SymInts.

    A stride that is the product of a smaller stride and its size (contiguous, channels last, transposed) becomes that product.
    Strides 0 and 1 remain ints. Other strides, and offsets other than 0, get symbols. If all sizes are static, so is the rest.
    """
    exprs = [env.create_dim(size, size_source(source, d), specs[d]) for d, size in enumerate(sizes)]
    all_static = all(spec.policy == "STATIC" for spec in specs)
    stride_exprs = _strides(env, exprs, sizes, strides, source, all_static)
    offset_policy = "STATIC" if all_static else "DUCK"
    offset_expr = env.create_symbol(offset, storage_offset_source(source), offset_policy)
    return (
        tuple(env.create_symintnode(e, hint=size) for e, size in zip(exprs, sizes, strict=True)),
        tuple(env.create_symintnode(e, hint=stride) for e, stride in zip(stride_exprs, strides, strict=True)),
        env.create_symintnode(offset_expr, hint=offset),
    )


def _strides(
    env: SymbolSource,
    exprs: Sequence[Any],
    sizes: Sequence[int],
    strides: Sequence[int],
    source: Source,
    all_static: bool,
) -> list[Any]:
    result: list[Any] = [None] * len(sizes)
    products: dict[int, Any] = {}  # possible next stride -> its expression
    # Innermost first: by stride, and of equal strides the last dimension first.
    for stride, negative_dim in sorted((stride, -d) for d, stride in enumerate(strides)):
        d = -negative_dim
        follows = d + 1 < len(sizes) and stride == sizes[d + 1] * strides[d + 1] and result[d + 1] is not None
        if follows:
            expr = exprs[d + 1] * result[d + 1]
        elif stride in (0, 1):
            expr = sympy.Integer(stride)
        elif stride in products:
            expr = products[stride]
        else:
            expr = env.create_symbol(stride, stride_source(source, d), "STATIC" if all_static else "DUCK")
        result[d] = expr
        products[sizes[d] * stride] = exprs[d] * expr
    return result
