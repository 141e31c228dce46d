"""Hand-written calls of the overloads that PyTorch's operator database does not reach.

Most are overloads that only a compiler's passes make (copying views, functional batch norm, unsafe indexing), scalar overloads
of binary ops, and kernels that are chosen by shape or by a flag.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from refimpl._torch import OpOverload
from refimpl.tests.decompositions.calls import Call

aten = torch.ops.aten
Make = Callable[..., torch.Tensor]


def direct_calls(dtype: torch.dtype) -> Iterator[Call]:
    """The calls of the table below, their tensors made in that type; fewer for types that are not real floats."""
    torch.default_generator.manual_seed(0)

    def make(*shape: int) -> torch.Tensor:
        if dtype.is_floating_point or dtype.is_complex:
            return torch.randn(shape, dtype=torch.complex64 if dtype.is_complex else torch.float32).to(dtype)
        return torch.randint(0, 5, shape).to(dtype)

    rows = _calls_of_any_type(make)
    if dtype.is_floating_point:
        rows += _calls_of_floats(make)
    for overload, args, kwargs in rows:
        yield Call(overload=overload, args=args, kwargs=kwargs, source="written by hand")


Row = tuple[OpOverload, tuple[Any, ...], dict[str, Any]]


def _row(overload: OpOverload, *args: Any, **kwargs: Any) -> Row:
    return overload, args, kwargs


def _calls_of_any_type(make: Make) -> list[Row]:
    x, square = make(4, 6), make(4, 4)
    rows = torch.tensor([2, 0, 3])
    mask = torch.tensor([True, False, True, True])
    index = torch.tensor([[0, 2, 1], [3, 3, 0]])
    return [
        _row(aten.alias_copy.default, x),
        _row(aten.all.dims, x, [0, 1]),
        _row(aten.all.dims, x, None, True),
        _row(aten.count_nonzero.dim_IntList, x, [0, 1]),
        _row(aten.detach_copy.default, x),
        _row(aten.embedding.default, x, index),
        _row(aten.fill.Tensor, x, make()),
        _row(aten.floor_divide.Scalar, x, 2),
        _row(aten.index_reduce.default, square, 0, rows[:2], make(2, 4), "prod"),
        _row(aten.index_reduce.default, square, 1, rows, make(4, 3), "amax", include_self=False),
        _row(aten.isin.Scalar_Tensor, 2, x),
        _row(aten.isin.Scalar_Tensor, 2, x, invert=True),
        _row(aten.isin.Tensor_Scalar, x, 2),
        _row(aten.isin.Tensor_Scalar, x, 2, invert=True),
        _row(aten.lift.default, x),
        _row(aten.remainder.Scalar_Tensor, 7, x + 1),
        _row(aten.remainder.Scalar_Tensor, 7.3, make() + 1),
        _row(aten._reshape_alias.default, x, [2, 12], [12, 1]),
        _row(aten.scatter.reduce, square, 0, index, make(2, 3), reduce="add"),
        _row(aten.scatter.reduce, square, 0, index, make(2, 3), reduce="multiply"),
        _row(aten.scatter.value_reduce, square, 1, index, 2, reduce="add"),
        _row(aten.scatter.value_reduce, square, 1, index, 2, reduce="multiply"),
        _row(aten.select_copy.int, x, 1, -2),
        _row(aten.slice_copy.Tensor, x, 1, 1, 5, 2),
        _row(aten.split_copy.Tensor, x, 4, 1),
        _row(aten.squeeze_copy.dims, x.unsqueeze(1), [1, 2]),
        _row(aten.unsafe_split_with_sizes.default, x, [1, 3], 0),
        _row(aten._unsafe_index.Tensor, x, [rows, None]),
        _row(aten._unsafe_index.Tensor, x, [None, rows]),
        _row(aten._unsafe_index_put.default, x, [rows], make(3, 6)),
        _row(aten._unsafe_index_put.default, x, [mask], make(6)),
        _row(aten._unsafe_masked_index.default, x, mask[:3], [rows - 2, rows + 1], 1),
        _row(aten._unsafe_masked_index_put_accumulate.default, x, mask[:3], [rows - 2, rows + 1], make(3)),
        _row(aten.view.dtype, x, x.dtype),
        _row(aten.view_copy.dtype, x, x.dtype),
        _row(aten.zero.default, x),
        _row(aten.new_empty_strided.default, x, [2, 3], [1, 2]),
        _row(aten.empty_permuted.default, [2, 3, 4], [2, 0, 1], dtype=x.dtype),
        _row(aten.lerp.Tensor, *(make(3, 4) for _ in range(3))),
        _row(aten.norm.Scalar, x, 3),
        _row(aten.rrelu_with_noise.default, x, make(4, 6), 0.1, 0.3, False),
        _row(aten.any.dims, x, [0, 1]),
        _row(aten.bitwise_and.Scalar, x, 5),
        _row(aten.bitwise_or.Scalar, x, 5),
        _row(aten.bitwise_xor.Scalar, x, 5),
        _row(aten.copy.default, x, make(6)),
        _row(aten.div.Scalar_mode, x, 2, rounding_mode="trunc"),
        _row(aten.fmod.Scalar, x, 3),
        _row(aten.lift_fresh_copy.default, x),
        _row(aten.bitwise_and.Scalar_Tensor, 5, x),
        _row(aten.bitwise_or.Scalar_Tensor, 5, x),
        _row(aten.bitwise_xor.Scalar_Tensor, 5, x),
        _row(aten.clamp_max.default, x, 1),
        _row(aten.copysign.Scalar, x, -1),
        _row(aten.copysign.Scalar, x, 1.0),
        _row(aten.xlogy.Scalar_Other, x, 3),
        _row(aten.xlogy.Scalar_Self, 2, x + 1),
        _row(aten.special_xlog1py.other_scalar, x, 3),
        _row(aten.special_xlog1py.self_scalar, 2, x + 1),
        _row(aten.view_as_real_copy.default, x),
        _row(aten.view_as_complex_copy.default, make(3, 2)),
        _row(aten.masked_fill.Tensor, square, mask, make()),
        _row(aten.addr.default, square, make(4), make(4), beta=2, alpha=3),
        _row(aten.addmv.default, make(4), square, make(4), beta=2, alpha=3),
        _row(aten.isneginf.default, x),
        _row(aten.isposinf.default, x),
        _row(aten.nan_to_num.default, x),
    ]


def _calls_of_floats(make: Make) -> list[Row]:
    x, image, volume = make(2, 3, 5), make(2, 3, 4, 5), make(2, 2, 3, 4, 5)
    weight, bias, mean, var = make(3), make(3), make(3), make(3).abs() + 0.5
    mask = [True, True, True]
    noise = make(4, 6).abs()
    rows = [
        _row(aten._batch_norm_no_update.default, x, weight, bias, mean, var, 0.1, 1e-5),
        _row(aten._native_batch_norm_legit.no_stats, x, weight, bias, True, 0.1, 1e-5),
        _row(aten._native_batch_norm_legit.no_stats, image, None, None, True, 0.1, 1e-3),
        _row(aten._native_batch_norm_legit_no_training.default, image, weight, bias, mean, var, 0.1, 1e-5),
        _row(aten._native_batch_norm_legit_no_training.default, x, None, None, mean, var, 0.1, 1e-5),
        _row(aten._native_batch_norm_legit_functional.default, x, weight, bias, mean, var, True, 0.1, 1e-5),
        _row(aten._native_batch_norm_legit_functional.default, x, weight, bias, mean, var, False, 0.1, 1e-5),
        _row(aten._fused_rms_norm.default, x, [5], make(5), 1e-5),
        _row(aten._fused_rms_norm.default, image, [4, 5], None, None),
        _row(aten._fused_rms_norm_backward.default, x, make(2, 3, 5), [5], make(2, 3, 1).abs(), make(5), mask[:2]),
        _row(aten._weight_norm_interface.default, make(4, 3), make(4, 1), 0),
        _row(aten._weight_norm_interface.default, make(4, 3), make(1, 3), 1),
        _row(
            aten._weight_norm_interface_backward.default,
            *(make(4, 3), make(4, 3), make(4, 1), make(4, 1).abs() + 0.5, 0),
        ),
        _row(aten.native_layer_norm.default, x, [3, 5], make(3, 5), make(3, 5), 1e-5),
        _row(aten.native_layer_norm.default, x + 100, [5], None, None, 1e-5),
        _row(
            aten.native_group_norm_backward.default,  # rows of whole vectors: the rule leaves others to the operator
            *(make(2, 4, 4, 4), make(2, 4, 4, 4), make(2, 2), make(2, 2).abs() + 0.5, make(4), 2, 4, 16, 2, mask),
        ),
        _row(aten.norm.ScalarOpt_dtype, x, 2, dtype=torch.float64),
        _row(aten.norm.ScalarOpt_dim_dtype, x, 2, [1], False, dtype=torch.float64),
        _row(aten.rrelu_with_noise_backward.default, make(4, 6), make(4, 6), noise, 0.1, 0.3, True, False),
        _row(aten.rrelu_with_noise_backward.default, make(4, 6), make(4, 6), noise, 0.1, 0.3, False, False),
        _row(aten.im2col.default, image, [2, 3], [1, 1], [1, 0], [1, 2]),
        _row(aten.im2col.default, image[0], [2, 2], [2, 1], [0, 1], [1, 1]),
        _row(aten.native_channel_shuffle.default, make(1, 6, 2, 2).transpose(1, 3).contiguous().transpose(1, 3), 3),
        _row(aten.col2im.default, make(2, 3 * 6, 15), [4, 5], [2, 3], [1, 1], [1, 1], [1, 1]),
        _row(aten.embedding_dense_backward.default, make(6, 3), torch.tensor([0, 2, 2, 4, 0, 0]), 5, 4, True),
        _row(aten.affine_grid_generator.default, make(2, 2, 3), [2, 3, 4, 5], True),
        _row(aten.affine_grid_generator.default, make(2, 2, 3), [2, 3, 4, 5], False),
        _row(aten.affine_grid_generator.default, make(2, 3, 4), [2, 3, 2, 3, 4], False),
        _row(aten.linspace.default, -1.5, 2.25, 7, dtype=x.dtype),
        _row(aten.logspace.default, 0.0, 2.0, 5, 2.0, dtype=x.dtype),
        _row(aten.round.decimals, x * 100, decimals=1),
        _row(aten.round.decimals, x * 100, decimals=-1),
        _row(aten.nll_loss2d_forward.default, image, torch.randint(0, 3, (2, 4, 5)), weight, 1, 1),
        _row(aten.logsumexp.default, x * 100, [0, 2], True),
    ]
    sides = {1: (x, [2, 1]), 2: (image, [2, 1, 1, 3]), 3: (volume, [2, 1, 0, 3, 1, 1])}
    for n, (inputs, padding) in sides.items():
        for kind in ("reflection", "replication"):
            forward = getattr(aten, f"{kind}_pad{n}d").default
            pads = padding if kind == "replication" or n < 3 else [2, 1, 0, 3, 1, 1]
            out = forward(inputs, pads)
            rows.append(_row(forward, inputs, pads))
            rows.append(_row(getattr(aten, f"{kind}_pad{n}d_backward").default, make(*out.shape), inputs, pads))
    return rows + _calls_of_upsampling(make)


def _calls_of_upsampling(make: Make) -> list[Row]:
    rows: list[Row] = []
    images = {1: make(2, 3, 5), 2: make(2, 3, 4, 5), 3: make(2, 2, 3, 4, 5)}
    names = {1: ["linear"], 2: ["bilinear", "bicubic"], 3: ["trilinear"]}
    for n, image in images.items():
        size = [7, 3, 9][:n]
        grad = make(*image.shape[:2], *size)
        for prefix in ("upsample_nearest", "_upsample_nearest_exact"):
            rows.append(_row(getattr(aten, f"{prefix}{n}d").default, image, size))
            rows.append(_row(getattr(aten, f"{prefix}{n}d_backward").default, grad, size, list(image.shape)))
        for name in names[n]:
            for align_corners in (True, False):
                forward = getattr(aten, f"upsample_{name}{n}d").default
                backward = getattr(aten, f"upsample_{name}{n}d_backward").default
                rows.append(_row(forward, image, size, align_corners))
                rows.append(_row(backward, grad, size, list(image.shape), align_corners))
    return rows
