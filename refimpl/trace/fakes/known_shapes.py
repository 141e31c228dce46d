"""Fake results of ops whose shapes follow from their arguments, where upstream's fake kernels refuse them or ask for data.

Counterpart: torch/_subclasses/fake_impls.py (its refusals of ops with Tag.dynamic_output_shape); torch/_meta_registrations.py
_meta_grouped_mm_common
Differs: a rule may say that this call's shapes do depend on data (NotImplemented), and then upstream's kernel is asked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch

aten = torch.ops.aten


def _linalg_lstsq(a: torch.Tensor, b: torch.Tensor, rcond: float | None = None, *, driver: str | None = None) -> Any:
    """Residuals depend on the rank that is found; but `gelsy` gives none, and `gels` takes the rank for full."""
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
    # (*batch, count, longer side): written column by column; the solution is the first rows.
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
    """Lengths given as numbers say how many states the longest target has."""
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
    """On the CPU other types than bfloat16 work too."""
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
    """Upstream's kernels of some operators are made for integers only."""
    if x.dtype is not y.dtype or not x.is_floating_point():
        return NotImplemented
    return x.new_empty(torch.broadcast_shapes(x.shape, y.shape))


def _upsample_aa_backward(
    grad_output: torch.Tensor, output_size: Sequence[Any], input_size: Sequence[Any], *others: Any
) -> Any:
    """The kernels in C++ take sizes for plain ints."""
    if all(type(size) is int for size in (*grad_output.shape, *input_size)):
        return NotImplemented
    return grad_output.new_empty(tuple(input_size))


def _upsample_backward(
    grad_output: torch.Tensor, output_size: Sequence[Any], input_size: Sequence[Any], *others: Any
) -> Any:
    """As above."""
    if all(type(size) is int for size in (*grad_output.shape, *output_size, *input_size)):
        return NotImplemented
    return grad_output.new_empty(tuple(input_size))


def _upsample_nearest(x: torch.Tensor, output_size: Sequence[Any], *others: Any, **named: Any) -> Any:
    """Upstream's kernels take a product of sizes for a truth value where there are no images, or images of no channels."""
    if x.dim() != len(output_size) + 2 or not all(size > 0 for size in (*x.shape[2:], *output_size)):
        return NotImplemented
    if x.shape[1] == 0:
        raise RuntimeError(f"Non-empty {x.dim()}D data tensor expected but got a tensor with sizes {list(x.shape)}")
    if x.shape[0] != 0:
        return NotImplemented
    return x.new_empty((*x.shape[:2], *output_size))


def _margin_loss_backward(grad: torch.Tensor, x: torch.Tensor, *others: Any) -> Any:
    """Upstream has no kernel; it takes the one in C++ where sizes are plain ints."""
    return x.new_empty(x.shape)


RULES: Mapping[Any, Callable[..., Any]] = MappingProxyType(
    {
        aten.linalg_lstsq.default: _linalg_lstsq,
        aten._ctc_loss.default: _ctc_loss,
        aten._grouped_mm.default: _grouped_mm,
        aten.hardshrink_backward.default: _shrink_backward,
        aten.softshrink_backward.default: _shrink_backward,
        **dict.fromkeys(
            (
                aten.upsample_nearest1d.default,
                aten.upsample_nearest2d.default,
                aten.upsample_nearest3d.default,
                aten._upsample_nearest_exact1d.default,
                aten._upsample_nearest_exact2d.default,
                aten._upsample_nearest_exact3d.default,
            ),
            _upsample_nearest,
        ),
        **dict.fromkeys(
            (
                aten.upsample_linear1d_backward.default,
                aten.upsample_bilinear2d_backward.default,
                aten.upsample_trilinear3d_backward.default,
                aten.upsample_bicubic2d_backward.default,
                aten.upsample_nearest1d_backward.default,
                aten.upsample_nearest3d_backward.default,
                aten._upsample_nearest_exact1d_backward.default,
                aten._upsample_nearest_exact3d_backward.default,
            ),
            _upsample_backward,
        ),
        aten._upsample_bicubic2d_aa_backward.default: _upsample_aa_backward,
        aten._upsample_bilinear2d_aa_backward.default: _upsample_aa_backward,
        aten.multi_margin_loss_backward.default: _margin_loss_backward,
        aten.multilabel_margin_loss_backward.default: _margin_loss_backward,
    }
)


def known_result(func: Any, args: Any, kwargs: Any) -> Any:
    """The fake result by a rule; NotImplemented where there is none for this call. To be called where fake tensors are made."""
    rule = RULES.get(func)
    return NotImplemented if rule is None else rule(*args, **kwargs)
