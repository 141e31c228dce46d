"""Operators whose result depends on the order of a sum where that overflows on the way: they get no elements near the largest.

`3e38 + 3e38 - 3e38` is infinite or not, as a kernel adds: none of the answers is wrong. Infinities and NaN themselves are fine:
what they give does not depend on the order.
"""

from __future__ import annotations

import re

import torch

from fuzz.vocabulary.operators.spec import OpSpec

_CATEGORIES = frozenset(
    ["matmul", "linalg", "conv", "norm", "loss", "attention", "fft", "scan", "resize", "masked", "embedding"]
)
_NAMES = re.compile(
    r"sum|mean|prod|\bstd|\bvar|norm|dist|trace|mm\b|mv|bmm|addr|avg_pool|lp_pool|similarity|index_add|index_reduce|scatter_add"
    r"|scatter_reduce|accumulate|index_put|\bput\b|fold|im2col|trap|linear|grid_|upsample|quantile|polynomial|embedding|cov|dot"
    r"|matmul|softmax|_backward"
)
_LARGEST_HALF = 256.0  # whose square float16 still holds


def adds_up(spec: OpSpec) -> bool:
    """Whether the operator adds or multiplies elements of one tensor."""
    return spec.category in _CATEGORIES or _NAMES.search(spec.name) is not None


def can_overflow(tensor: torch.Tensor) -> bool:
    """Whether a sum of products of its finite elements may leave the range of the dtype."""
    if not (tensor.is_floating_point() or tensor.is_complex()) or tensor.element_size() == 1 or not tensor.numel():
        return False
    dtype = tensor.dtype.to_real() if tensor.is_complex() else tensor.dtype
    bound = _LARGEST_HALF if dtype is torch.float16 else torch.finfo(dtype).max ** 0.5 / tensor.numel()
    with torch.no_grad():
        parts = torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor
        return bool((parts.abs().masked_fill(~parts.isfinite(), 0) > bound).any())
