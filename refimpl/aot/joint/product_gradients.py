"""Gradients of products, by the way that eager mode takes: whether any factor is 0 decides there, and is an operator in a trace.

Products of the other factors, which are all that autograd records under a dispatch mode, are finite where a quotient is not.

Counterpart: none; torch's traces have products of the other factors only
"""

from __future__ import annotations

from typing import Any

import torch

from refimpl._torch import stands_for_another

Gradients = tuple[torch.Tensor | None, ...]


def eager_product(step: Any, gradients: Gradients, incoming: Gradients) -> Gradients:
    """The gradient of `prod`: a quotient if nothing is 0; else the recorded one, or zeros where a product over all dimensions has
    two factors of 0 and no further gradient is asked for."""
    x, result = saved(step, "self"), saved(step, "result")
    recorded, gradient = gradients[0], incoming[0]
    if x is None or result is None or recorded is None or gradient is None or x.dim() == 0 or stands_for_another(x):
        return gradients
    x, result, given = step._saved_self.to(gradient.dtype), step._saved_result, recorded.dtype  # these have a history
    dim = None if step.name() == "ProdBackward0" else signed(step._saved_dim)
    if dim is not None and not step._saved_keepdim:
        result, gradient = result.unsqueeze(dim), gradient.unsqueeze(dim)
    zeros = x == 0
    has_zeros = zeros.any()
    if torch.is_grad_enabled():  # what is not taken is made of ones, all of it: its own gradients are numbers then
        flat, along = (x.reshape(-1), 0) if dim is None else (x, dim)
        others = _products_of_others(torch.where(has_zeros, flat, 1), along).view(x.shape)
        recorded = torch.where(has_zeros, gradient, 0) * others.conj()
        factors = torch.where(has_zeros, 1, step._saved_self)
        product = factors.prod(dtype=x.dtype) if dim is None else factors.prod(dim, keepdim=True, dtype=x.dtype)
        taken = torch.where(
            has_zeros, recorded, torch.where(has_zeros, 0, gradient) * (product / factors.to(x.dtype)).conj()
        )
    else:
        if dim is None:
            recorded = torch.where(zeros.sum() > 1, 0, recorded)
        taken = torch.where(has_zeros, recorded, gradient * (result / x).conj())
    return (taken.to(given),)


def eager_running_products(step: Any, gradients: Gradients, incoming: Gradients) -> Gradients:
    """The gradient of `cumprod`: sums divided by the factors, along a dimension up to the first factor of 0; up to the second
    one, that of the first alone; zeros behind. Where a further gradient is asked for, sums if nothing is 0, else the recorded
    one."""
    x, result = saved(step, "self"), saved(step, "result")
    recorded, gradient = gradients[0], incoming[0]
    if x is None or result is None or recorded is None or gradient is None or stands_for_another(x):
        return gradients
    dim = signed(step._saved_dim)
    if x.dim() == 0 or x.shape[dim] == 1 or x.numel() == 0:
        return gradients
    x, result, gradient = step._saved_self, step._saved_result, gradient.to(x.dtype)
    zeros = x == 0
    if torch.is_grad_enabled():
        has_zeros = zeros.any()
        factors = torch.where(has_zeros, 1, x)
        products = factors.cumprod(dim, dtype=result.dtype).conj()
        total = _sums_from_behind(torch.where(has_zeros, 0, gradient) * products, dim)
        taken = torch.where(has_zeros, recorded, total / factors.conj())
    else:
        count = zeros.cumsum(dim)
        is_before, is_first = count == 0, zeros & (count == 1)
        products = torch.where((count == 1) & ~zeros, x.conj(), 1).cumprod(dim)
        one = result.new_ones(()).expand_as(result.narrow(dim, 0, 1))
        to_here = torch.cat([one, result.narrow(dim, 0, x.shape[dim] - 1)], dim).conj()
        of_first = (products * torch.where(count == 1, gradient, 0)).sum(dim, keepdim=True) * to_here
        total = _sums_from_behind(torch.where(is_before, result.conj() * gradient, 0), dim)
        taken = torch.where(is_before, total / x.conj(), torch.where(is_first, of_first, 0))
    return (taken.to(recorded.dtype),)


def _sums_from_behind(x: torch.Tensor, dim: int) -> torch.Tensor:
    return x.flip(dim).cumsum(dim).flip(dim)


def _products_of_others(x: torch.Tensor, dim: int) -> torch.Tensor:
    """By element, the product of all others along a dimension."""
    one, count = x.new_ones(()).expand_as(x.narrow(dim, 0, 1)), x.shape[dim] - 1
    before = torch.cat([one, x.narrow(dim, 0, count)], dim).cumprod(dim)
    behind = torch.cat([x.narrow(dim, 1, count), one], dim).flip(dim).cumprod(dim).flip(dim)
    return before * behind


def saved(step: Any, name: str) -> torch.Tensor | None:
    """What a step keeps, unless hooks have packed it."""
    kept = getattr(step, f"_raw_saved_{name}")
    is_packed = getattr(kept, "unpack_hook", None) is not None  # not every torch tells
    return None if is_packed or not isinstance(kept.data, torch.Tensor) else kept.data


def signed(dim: int) -> int:
    """A dimension that autograd keeps: negative ones as unsigned numbers."""
    return dim - (1 << 64) if dim >> 63 else dim
