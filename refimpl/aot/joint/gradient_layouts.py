"""Gradients whose formula takes another way under a dispatch mode than in eager mode, laid out as eager mode's.

There autograd writes into memory that is like an argument, or, for a product without zeros among its factors, divides by them;
in a trace it joins results of operators instead. Which way a product takes is known only when it runs: the numbers are that way's
(refimpl.aot.joint.product_gradients), the layout is the common one's.

Counterpart: none; torch's traces give strides of their own there
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch

from refimpl.aot.joint.product_gradients import Gradients, eager_product, eager_running_products, saved, signed
from refimpl.trace.layouts.elementwise import Layout, elementwise_strides, kept_strides
from refimpl.trace.size_checks import is_known

Strides = tuple[int, ...] | None  # None where it is to be left as it is
Rule = Callable[[Any, Gradients, Gradients], Sequence[Strides]]


@contextlib.contextmanager
def eager_layouts(steps: Iterable[Any]) -> Iterator[None]:
    """To be entered around a backward that runs these steps of autograd."""
    known = [(step, _RULES[step.name()]) for step in steps if step.name() in _RULES]
    handles = [step.register_hook(functools.partial(_laid_out, step, rule)) for step, rule in known]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _laid_out(step: Any, rule: Rule, gradients: Gradients, incoming: Gradients) -> Gradients:
    if step.name() in _NUMBERS:
        gradients = _NUMBERS[step.name()](step, gradients, incoming)
    if not all(is_known(size) for gradient in gradients if gradient is not None for size in gradient.shape):
        return gradients
    return tuple(map(_in_layout, gradients, rule(step, gradients, incoming)))


def _in_layout(gradient: torch.Tensor | None, strides: Strides) -> torch.Tensor | None:
    if gradient is None or strides is None or gradient.numel() == 0 or gradient.stride() == strides:
        return gradient
    memory = torch.empty_strided(gradient.shape, strides, dtype=gradient.dtype, device=gradient.device)
    return memory.copy_(gradient)


def _of_selection(step: Any, gradients: Gradients, incoming: Gradients) -> Sequence[Strides]:
    """As `zeros_like` of the argument; where the mask is larger, that was summed up, which leaves no trace of it."""
    left: list[Strides] = [None] * len(gradients)
    x, mask = saved(step, "self"), saved(step, "mask")
    if x is None or mask is None or not all(map(is_known, (*x.shape, *mask.shape))):
        return left
    if tuple(torch.broadcast_shapes(x.shape, mask.shape)) == tuple(x.shape):
        left[0] = kept_strides(tuple(x.shape), x.stride())
    return left


def _of_product(step: Any, gradients: Gradients, incoming: Gradients) -> Sequence[Strides]:
    """As `incoming * (result / x)`."""
    x, result, gradient = saved(step, "self"), saved(step, "result"), incoming[0]
    if x is None or result is None or gradient is None or x.dim() == 0:
        return (None,) * len(gradients)
    shape = tuple(x.shape)
    is_dropped = step.name() == "ProdBackward1" and not step._saved_keepdim
    dim = signed(step._saved_dim) if is_dropped else None
    steps = tuple(x.stride()) if x.dtype is gradient.dtype else kept_strides(shape, x.stride())
    quotient = elementwise_strides(shape, [_with_dim(result, dim, len(shape)), (shape, steps)])
    return (elementwise_strides(shape, [_with_dim(gradient, dim, len(shape)), (shape, quotient)]),)


def _of_running_products(step: Any, gradients: Gradients, incoming: Gradients) -> Sequence[Strides]:
    """As row-major sums divided by the argument; along a size of 1 the gradient goes on as it is."""
    x = saved(step, "self")
    if x is None or x.dim() == 0 or x.numel() == 0 or x.shape[signed(step._saved_dim)] == 1:
        return (None,) * len(gradients)
    shape = tuple(x.shape)
    sums = torch.empty(shape, device="meta").stride()
    return (elementwise_strides(shape, [(shape, sums), (shape, tuple(x.stride()))]),)


def _with_dim(x: torch.Tensor, dim: int | None, count: int) -> Layout:
    """The layout, with a size of 1 where a dimension of so many was dropped."""
    shape, strides = tuple(x.shape), tuple(x.stride())
    if dim is None:
        return shape, strides
    at = dim % count
    return (*shape[:at], 1, *shape[at:]), (*strides[:at], 1, *strides[at:])


def _of_reflections(step: Any, gradients: Gradients, incoming: Gradients) -> Sequence[Strides]:
    """As `zeros_like` of what holds the reflections; what they are applied to is left."""
    is_product = step.name() == "LinalgHouseholderProductBackward0"
    arguments = [saved(step, name) for name in (("input", "tau") if is_product else ("self", "input2"))]
    strides = [None if x is None else kept_strides(tuple(x.shape), x.stride()) for x in arguments]
    return strides if is_product else [*strides, None]


_RULES: Mapping[str, Rule] = MappingProxyType(
    {
        "MaskedSelectBackward0": _of_selection,
        "ProdBackward0": _of_product,
        "ProdBackward1": _of_product,
        "CumprodBackward0": _of_running_products,
        "LinalgHouseholderProductBackward0": _of_reflections,
        "OrmqrBackward0": _of_reflections,
    }
)
_NUMBERS: Mapping[str, Callable[[Any, Gradients, Gradients], Gradients]] = MappingProxyType(
    {"ProdBackward0": eager_product, "ProdBackward1": eager_product, "CumprodBackward0": eager_running_products}
)
