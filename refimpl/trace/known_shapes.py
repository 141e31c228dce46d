"""Fake results of ops whose output shapes follow from the arguments although upstream's fake kernels raise or ask for data.

Counterpart: torch/_subclasses/fake_impls.py (its refusals of ops with Tag.dynamic_output_shape); torch/_meta_registrations.py
_meta_grouped_mm_common
Differs: rules per operator. A rule returns NotImplemented for calls whose shapes do depend on data; then upstream's kernel runs.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch

from refimpl._torch import OpOverload

aten = torch.ops.aten


def _linalg_lstsq(a: torch.Tensor, b: torch.Tensor, rcond: float | None = None, *, driver: str | None = None) -> Any:
    """The residuals' shape depends on the rank found, but not with `gelsy` (no residuals) and `gels` (assumes full rank)."""
    if a.dim() < 2 or b.dim() < 1:
        return NotImplemented
    driver = driver or ("gelsy" if a.device.type == "cpu" else "gels")
    rows, columns = a.shape[-2:]
    is_vector = b.dim() == 1 or b.shape == a.shape[:-1]
    is_plain = is_vector or (b.dim() == a.dim() and b.shape[-2] == rows)
    if not is_plain or (driver in ("gelsd", "gelss") and rows > columns):
        return NotImplemented
    batch = torch.broadcast_shapes(a.shape[:-2], b.shape[:-1] if is_vector else b.shape[:-2])
    if is_vector:
        batch = a.shape[:-2]
    count = 1 if is_vector else b.shape[-1]
    # LAPACK returns (*batch, count, max(rows, columns)) in column-major order; the solution is its first rows.
    solution = b.new_empty((*batch, count, max(rows, columns))).mT.narrow(-2, 0, columns)
    real = a.dtype.to_real()
    has_residuals = driver == "gels" and rows > columns
    has_values = driver in ("gelsd", "gelss")
    return (
        solution.squeeze(-1) if is_vector else solution,
        a.new_empty((*batch, count) if has_residuals else (0,), dtype=real),
        a.new_empty((0,) if driver == "gels" else a.shape[:-2], dtype=torch.int64),
        a.new_empty((*a.shape[:-2], min(rows, columns)) if has_values else (0,), dtype=real),
    )


def _ctc_loss(
    log_probs: torch.Tensor,
    targets: torch.Tensor,
    input_lengths: Sequence[int],
    target_lengths: Sequence[int],
    blank: int = 0,
    zero_infinity: bool = False,
) -> Any:
    """The number of states follows from the longest target, whose length is an int argument."""
    if log_probs.dim() != 3 or not target_lengths:
        return NotImplemented
    steps, batch, _ = log_probs.shape
    states = 2 * max(target_lengths) + 1
    return log_probs.new_empty(batch), log_probs.new_empty((batch, steps, states))


def _grouped_mm(
    a: torch.Tensor,
    b: torch.Tensor,
    offs: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> Any:
    """The CPU kernel takes other dtypes than bfloat16 as well."""
    if a.device.type != "cpu" or a.dtype is torch.bfloat16 or a.dtype is not b.dtype or bias is not None:
        return NotImplemented
    match a.dim(), b.dim():
        case 2, 2 if offs is not None:
            return a.new_empty((offs.shape[0], a.shape[0], b.shape[1]))
        case (2, 3) | (3, 2) if offs is not None:
            return a.new_empty((a.shape[-2], b.shape[-1]))
        case 3, 3:
            return a.new_empty((a.shape[0], a.shape[1], b.shape[2]))
        case _:
            return NotImplemented


def _shrink_backward(x: torch.Tensor, y: torch.Tensor, lambd: float) -> Any:
    """For operands of one floating point dtype, where upstream's fake kernel raises."""
    if x.dtype is not y.dtype or not x.is_floating_point():
        return NotImplemented
    return x.new_empty(torch.broadcast_shapes(x.shape, y.shape))


def _upsample_backward(
    grad_output: torch.Tensor, output_size: Sequence[Any], input_size: Sequence[Any], *others: Any
) -> Any:
    """For symbolic sizes, for which upstream's fake kernels fail or specialize."""
    if all(type(size) is int for size in (*grad_output.shape, *output_size, *input_size)):
        return NotImplemented
    return grad_output.new_empty(tuple(input_size))


def _upsample(x: torch.Tensor, output_size: Sequence[Any], *others: Any, **named: Any) -> Any:
    """For inputs without images or channels, for which some of upstream's fake kernels use a product of sizes as a bool."""
    if x.dim() != len(output_size) + 2 or not all(size > 0 for size in (*x.shape[2:], *output_size)):
        return NotImplemented
    if x.shape[1] == 0:
        raise RuntimeError(f"Non-empty {x.dim()}D data tensor expected but got a tensor with sizes {list(x.shape)}")
    if x.shape[0] != 0:
        return NotImplemented
    return x.new_empty((*x.shape[:2], *output_size))


def _margin_loss_backward(grad: torch.Tensor, x: torch.Tensor, *others: Any) -> Any:
    """Upstream has no fake kernel for symbolic sizes, only a C++ one for ints."""
    return x.new_empty(x.shape)


# Whether a fake kernel fails although the shapes follow from the arguments shows in no schema or tag, so each op is named.
RULES: Mapping[Any, Callable[..., Any]] = MappingProxyType(
    {
        aten.linalg_lstsq.default: _linalg_lstsq,
        aten._ctc_loss.default: _ctc_loss,
        aten._grouped_mm.default: _grouped_mm,
        aten.hardshrink_backward.default: _shrink_backward,
        aten.softshrink_backward.default: _shrink_backward,
        aten.multi_margin_loss_backward.default: _margin_loss_backward,
        aten.multilabel_margin_loss_backward.default: _margin_loss_backward,
    }
)


@functools.cache
def _rule_of(func: Any) -> Callable[..., Any] | None:
    """The op's rule; those of all upsampling follow from the schema."""
    if func in RULES or not isinstance(func, OpOverload) or func.namespace != "aten":
        return RULES.get(func)
    names = [argument.name for argument in func._schema.arguments if not argument.is_out]
    if len(names) < len(func._schema.arguments) or not any(name.startswith("scales") for name in names):
        return None
    if names[:3] == ["grad_output", "output_size", "input_size"]:
        return _upsample_backward
    return _upsample if names[:2] == ["self", "output_size"] else None


def known_result(func: Any, args: Any, kwargs: Any) -> Any:
    """The fake result by the op's rule; NotImplemented if it has none for this call. Called with the fake mode active."""
    rule = _rule_of(func)
    return NotImplemented if rule is None else rule(*args, **kwargs)
