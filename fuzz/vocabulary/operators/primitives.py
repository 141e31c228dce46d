"""Aten overloads without a Python function of their name, copies of views, masked reductions, packed operators."""

from __future__ import annotations

from typing import Any

from fuzz.draw.inputs.specs import COMPLEX, FLOATS
from fuzz.program.structure import Expr, Items, Operand
from fuzz.vocabulary.operators.build import ALL, DOUBLES, NUMERIC, REAL, CallBuilder, PartLike, op
from fuzz.vocabulary.operators.operands import (
    a_number,
    add_values,
    dim,
    either,
    flag,
    indices,
    mask,
    of_shape,
    optional,
    other,
    same,
    x,
)
from fuzz.vocabulary.operators.spec import OpSpec

_ATEN = "aten"
_COPY = "view copy"
_MASKED = "masked"


def _aten(name: str, *parts: PartLike, results: str = "v", spec: str = "", **keywords: Any) -> OpSpec:
    overload = name if "." in name else f"{name}.default"
    return op(f"torch.ops.aten.{name}", _ATEN, *parts, results=results, name=spec and f"torch.ops.aten.{spec}", weight=0.4,
              aten=(f"aten.{overload}",), **keywords)  # fmt: skip


def _copy(
    name: str, *parts: PartLike, rank: tuple[int, int] = (0, 4), results: str = "v", has_gradient: bool = True
) -> OpSpec:
    return op(f"torch.{name}_copy", _COPY, x(ALL, rank=rank), *parts, results=results, weight=0.25,
              has_gradient=has_gradient, aten=(f"aten.{name}_copy.default",))  # fmt: skip


def _order(builder: CallBuilder) -> Items:
    return Items(tuple(reversed(range(builder.main.dim()))), "list")


def _same_shape(builder: CallBuilder) -> Items:
    return Items(tuple(builder.main.shape), "list")


def _flat(builder: CallBuilder) -> Items:
    return Items((builder.main.numel(),), "list")


def _masked_index(builder: CallBuilder) -> Operand:
    return Items((indices(lambda b: (4,), lambda b: b.main.shape[0])(builder),), "list")  # type: ignore[arg-type]


def _dtype_of(builder: CallBuilder) -> Operand:
    """The dtype that the gradient is to have."""
    return Expr(str(builder.main.dtype))


def _first_of_windows(builder: CallBuilder) -> Operand:
    """Indices of a maximum in each of four windows of two by two."""
    return add_values(builder, (2, 1, 2, 2), "int64", [0, 3, 9, 15, 5, 2, 8, 10])


_IMAGES = x(DOUBLES, shape=lambda b: (2, b.draw.choice((1, 3)), 5, 6))
_VECTORS = x(FLOATS, rank=(1, 3))

_MASKED_ROWS: tuple[tuple[str, tuple[str, ...], dict[str, Any]], ...] = (
    ("sum", REAL, {"keepdim": flag()}), ("prod", REAL, {}), ("mean", FLOATS, {"keepdim": flag()}), ("amax", REAL, {}),
    ("amin", REAL, {}), ("var", FLOATS, {"unbiased": either(True, False)}), ("std", FLOATS, {}), ("logsumexp", FLOATS, {}),
    ("cumsum", REAL, {}), ("cumprod", REAL, {}), ("softmax", FLOATS, {}), ("log_softmax", FLOATS, {}),
    ("softmin", FLOATS, {}), ("argmax", REAL, {}), ("argmin", REAL, {}),
)  # fmt: skip
PRIMITIVES = (
    _aten("add.Scalar", x(NUMERIC), a_number),
    _aten("mul.Scalar", x(NUMERIC), a_number),
    _aten("div.Tensor_mode", x(FLOATS), other(FLOATS, numbers=0, mixes=0), rounding_mode=either("floor", "trunc", None)),
    _aten("sum.dim_IntList", x(NUMERIC, rank=(1, 4)), Items((-1,)), flag()),
    _aten("mean.dim", x(FLOATS, rank=(1, 4)), Items((0,)), flag()),
    _aten("var.correction", x(FLOATS, rank=(1, 4)), Items((-1,)), correction=either(1, 0), keepdim=flag()),
    _aten("var_mean.correction", x(FLOATS, rank=(1, 4)), Items((-1,)), correction=either(1, 0), keepdim=flag(), results="vv"),
    _aten("constant_pad_nd", x(ALL, rank=(1, 4)), either(Items((1, 0)), Items((2, 1)), Items((-1, 2))), a_number),
    _aten("expand", x(ALL, rank=(1, 3)), _same_shape, spec="expand"),
    _aten("_unsafe_view", x(ALL, layouts=("contiguous",)), _flat),
    _aten("alias", x(ALL)),
    _aten("lift_fresh_copy", x(ALL)),
    _aten("_to_copy", x(ALL), spec="_to_copy(same)"),
    _aten("_adaptive_avg_pool2d", _IMAGES, Items((2, 3))),
    _aten("native_group_norm", x(DOUBLES, shape=lambda b: (2, 4, 3), layouts=("contiguous",)), None, None, 2, 4, 3, 2,
          1e-5, results="vvv"),
    _aten("_native_batch_norm_legit.no_stats", x(DOUBLES, shape=lambda b: (3, 2, 4), domain="small"), None, None, True, 0.1, 1e-5,
          results="vvv"),
    _aten("_softmax_backward_data", _VECTORS, same(), -1, _dtype_of),
    _aten("_log_softmax_backward_data", _VECTORS, same(), -1, _dtype_of),
    _aten("threshold_backward", x(FLOATS), same(), either(0, 0.5)),
    _aten("gelu_backward", x(FLOATS), same(), approximate=either("none", "tanh")),
    _aten("tanh_backward", x(FLOATS), same()),
    _aten("sigmoid_backward", x(FLOATS), same()),
    _aten("silu_backward", x(FLOATS), same(), has_gradient=False),
    _aten("max_pool2d_with_indices", _IMAGES, Items((2, 2)), Items((2, 2)), results="vv"),
    _aten("upsample_bilinear2d", _IMAGES, Items((3, 7)), either(True, False), spec="upsample_bilinear2d"),
    _aten("upsample_nearest2d", _IMAGES, Items((3, 7)), spec="upsample_nearest2d"),
    _aten("_upsample_bilinear2d_aa", _IMAGES, Items((3, 4)), either(False, True), spec="_upsample_bilinear2d_aa"),
    _aten("im2col", _IMAGES, Items((2, 2)), Items((1, 1)), Items((1, 0)), Items((2, 1))),
    _aten("grid_sampler_2d", _IMAGES, of_shape(lambda b: (2, 3, 3, 2), domain="small", is_strict=True), either(0, 1, 2),
          either(0, 1, 2), either(False, True)),
    _aten("index.Tensor", x(ALL, rank=(1, 3), condition=lambda t: t.shape[0] > 0), _masked_index),
    _aten("_unsafe_index.Tensor", x(ALL, rank=(1, 3), condition=lambda t: t.shape[0] > 0), _masked_index),
    _aten("unsafe_chunk", x(ALL, rank=(1, 3), condition=lambda t: t.shape[0] > 1), 2, results="*"),
    _aten("unsafe_split.Tensor", x(ALL, rank=(1, 3), condition=lambda t: 1 < t.shape[0] < 6), 1, results="*"),
    _aten("addmm", x(FLOATS, rank=(2, 2)), of_shape(lambda b: (b.main.shape[0], 3)), of_shape(lambda b: (3, b.main.shape[1])),
          spec="addmm"),
    _aten("_addmm_activation", x(("float32",), rank=(2, 2)), of_shape(lambda b: (b.main.shape[0], 3)),
          of_shape(lambda b: (3, b.main.shape[1])), use_gelu=flag(), has_gradient=False),
    _aten("bucketize.Tensor", x(("float32",)), of_shape(lambda b: (1,)), out_int32=flag()),
    _aten("embedding_dense_backward", x(("float32",), shape=lambda b: (4, 3)),
          of_shape(lambda b: (4,), ("int64",), domain="index:5", is_strict=True), 5, -1, False),
    _aten("slice_backward", x(FLOATS, shape=lambda b: (2, 3)), Items((4, 3)), 0, 1, 3, 1),
    _aten("select_backward", x(FLOATS, shape=lambda b: (3,)), Items((4, 3)), 0, either(1, -1)),
    _aten("diagonal_backward", x(FLOATS, shape=lambda b: (3,)), Items((3, 4)), 0, 0, 1),
    _aten("native_dropout_backward", x(FLOATS), mask(broadcasts=0), 2.0),
    _aten("grid_sampler_3d", x(DOUBLES, shape=lambda b: (2, 1, 3, 4, 3)),
          of_shape(lambda b: (2, 2, 2, 2, 3), domain="small", is_strict=True), 0, either(0, 1, 2), either(False, True)),
    _aten("max_pool2d_with_indices_backward", x(DOUBLES, shape=lambda b: (2, 1, 2, 2)), of_shape(lambda b: (2, 1, 4, 4)),
          Items((2, 2)), Items((2, 2)), Items((0, 0)), Items((1, 1)), False, _first_of_windows),
    _aten("_unsafe_masked_index", x(DOUBLES, rank=(1, 1), condition=lambda t: t.shape[0] > 0),
          of_shape(lambda b: (4,), ("bool",)), _masked_index, either(0.0, 1.5)),
    _aten("_unsafe_masked_index_put_accumulate", x(DOUBLES, rank=(1, 1), condition=lambda t: t.shape[0] > 0),
          of_shape(lambda b: (4,), ("bool",)), _masked_index, of_shape(lambda b: (4,))),
    _aten("native_batch_norm", x(DOUBLES, shape=lambda b: (3, 2, 4), domain="small"), None, None, None, None, True, 0.1, 1e-5,
          results="vvv"),
    _aten("slice.Tensor", x(ALL, rank=(1, 4)), 0, either(0, 1, None), either(2, -1, 100), either(1, 2)),
    *(
        op(f"torch.masked.{name}", _MASKED, x(dtypes, rank=(1, 4)), dim=dim(least=1), mask=mask(broadcasts=0), weight=0.3,
           **extra)
        for name, dtypes, extra in _MASKED_ROWS
    ),
    op("torch.masked.norm", _MASKED, x(FLOATS, rank=(1, 4)), 2.0, dim(least=1), mask=mask(broadcasts=0), weight=0.3),
    op("torch.masked.normalize", _MASKED, x(FLOATS, rank=(1, 4)), 2.0, dim(least=1), mask=mask(broadcasts=0), weight=0.3),
    op("torch.masked.logaddexp", _MASKED, x(DOUBLES), same(), weight=0.2),
    op("torch.masked.median", _MASKED, x(FLOATS, rank=(1, 3)), dim(least=1), mask=mask(broadcasts=0), weight=0.2),
    _copy("view", _flat),
    _copy("permute", _order),
    _copy("transpose", dim(), dim()),
    _copy("t", rank=(0, 2)),
    _copy("squeeze"),
    _copy("unsqueeze", dim(grows=1)),
    _copy("expand", _same_shape),
    _copy("alias"),
    _copy("detach", has_gradient=False),
    _copy("diagonal", rank=(2, 4)),
    _copy("select", dim(least=1), 0, rank=(1, 4)),
    _copy("slice", 0, 0, 2, rank=(1, 4)),
    _copy("unbind", dim(least=2, most=6), rank=(1, 3), results="*"),
    _copy("unfold", dim(least=2), 2, either(1, 2), rank=(1, 3)),
    op("torch.view_as_real_copy", _COPY, x(COMPLEX), weight=0.2),
    op("torch.split_with_sizes_copy", _COPY, x(ALL, rank=(1, 3), condition=lambda t: t.shape[0] > 1),
       lambda b: Items((1, b.main.shape[0] - 1)), results="vv", weight=0.2),
    op("torch.as_strided_copy", _COPY, x(ALL, rank=(1, 3), layouts=("contiguous",), condition=lambda t: t.numel() >= 6),
       Items((2, 2)), Items((1, 2)), 1, weight=0.2),
    op("torch.as_strided", "view", x(ALL, rank=(1, 3), layouts=("contiguous",), condition=lambda t: t.numel() >= 6),
       Items((2, 2)), either(Items((2, 1)), Items((1, 2)), Items((1, 1)), Items((0, 3))), optional(either(1, 0)), is_view=True,
       weight=0.6),
)  # fmt: skip
