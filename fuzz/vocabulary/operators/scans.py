"""Scans along a dimension, sorting, searching, counting."""

from __future__ import annotations

import torch

from fuzz.draw.choices import Draw
from fuzz.draw.inputs.shapes import draw_shape
from fuzz.draw.inputs.specs import FLOATS, INTEGERS
from fuzz.draw.scene import Scene
from fuzz.program.structure import Items, OpCall, Ref
from fuzz.vocabulary.operators.build import DOUBLES, INTEGRAL, NUMERIC, REAL, CallBuilder, op
from fuzz.vocabulary.operators.operands import add_values, dim, either, flag, maybe_dtype, of_shape, optional, same, x
from fuzz.vocabulary.operators.spec import OpSpec

_CATEGORY = "scan"
_SORT = "sort"
_TIES = {
    "results": "the index is not bound: eager leaves open which of equal elements it is",
    "gradient": "no gradient: it would be at the element of that index",
}


def _is_not_empty(tensor: torch.Tensor) -> bool:
    return tensor.numel() > 0


SCANS = (
    op("torch.cumsum", _CATEGORY, x(NUMERIC), dim(), weight=1.5),
    op("torch.cumsum", _CATEGORY, x(REAL), dim(), dtype=maybe_dtype("float64", "float32", chance=1),
       name="torch.cumsum(dtype)", weight=0.5),
    op("torch.cumprod", _CATEGORY, x(NUMERIC), dim()),
    op("torch.logcumsumexp", _CATEGORY, x(FLOATS), dim()),
    op("torch.cummax", _CATEGORY, x(REAL), dim(), results="vv"),
    op("torch.cummin", _CATEGORY, x(REAL), dim(), results="vv"),
    op("torch.diff", _CATEGORY, x(REAL, rank=(1, 4)), n=optional(either(1, 2)), dim=dim(), weight=1.2),
    op("torch.diff", _CATEGORY, x(REAL, rank=(1, 3)), prepend=same(), append=optional(same()),
       name="torch.diff(prepend)", weight=0.6),
    op("torch.trapezoid", _CATEGORY, x(FLOATS, rank=(1, 4)), dx=optional(either(0.5, 2.0)), dim=dim(least=1)),
    op("torch.trapezoid", _CATEGORY, x(FLOATS, rank=(1, 3)), same(), name="torch.trapezoid(x)", weight=0.6),
    op("torch.trapz", _CATEGORY, x(FLOATS, rank=(1, 3)), dim=dim(least=1), weight=0.3),
    op("torch.cumulative_trapezoid", _CATEGORY, x(FLOATS, rank=(1, 4)), dim=dim(least=1)),
    op("torch.gradient", _CATEGORY, x(FLOATS, rank=(2, 3)), results="*", weight=0.4),
    op("torch.cummax", _CATEGORY, x(INTEGERS, rank=(1, 3)), dim(), results="vv", name="torch.cummax(int)", weight=0.3),
)  # fmt: skip


def _boundaries(builder: CallBuilder) -> Ref:
    """An ascending 1-D tensor."""
    dtype = "float32" if builder.main.is_floating_point() else "int64"
    spec = {"$": "tensor", "shape": [builder.draw.choice((4, 1, 7, 0))], "dtype": dtype}
    spec["fill"] = {"kind": "arange", "start": -2, "step": builder.draw.choice((1, 2, 0))}
    return builder.take(builder.scene.add_argument(spec))


def _draw_searchsorted(draw: Draw, scene: Scene) -> OpCall | None:
    """The sorted sequence comes first, and the values have its leading dimensions."""
    builder = CallBuilder(draw, scene)
    dtype = draw.choice(("float32", "int64"))
    lead = (draw.choice(scene.sizes),) if draw.chance(0.3) else ()
    size = draw.choice((4, 1, 7))
    row = [draw.integer(0, 2) for _ in range(size)]
    row = [sum(row[: i + 1]) - 3 for i in range(size)]
    sequence = add_values(builder, (*lead, size), dtype, row * (lead[0] if lead else 1))
    shape = (*lead, *draw_shape(draw, scene.sizes, max_numel=64, rank=1))
    values = builder.take(builder.find((dtype,), shape=shape))
    pairs = (("side", draw.choice(("left", "right"))),) if draw.chance(0.5) else ()
    return OpCall(target="torch.searchsorted", args=(sequence, values), kwargs=pairs, results=(scene.fresh(),))


def _k(builder: CallBuilder) -> int:
    size = builder.main.shape[-1] if builder.main.dim() else 1
    return builder.draw.integer(0 if builder.draw.chance(0.1) else min(1, size), max(min(1, size), size))


SORTS = (
    op("torch.sort", _SORT, x((*REAL, "bool")), dim=dim(), descending=flag(), stable=True, results="vv", weight=1.5),
    op("torch.sort", _SORT, x(REAL, rank=(1, 4)), dim(), results="v_", name="torch.sort(unstable)", why=_TIES,
       has_gradient=False),
    op("torch.argsort", _SORT, x(REAL), dim=dim(), descending=flag(), stable=True),
    op("torch.msort", _SORT, x(REAL, rank=(1, 4)), why=_TIES, has_gradient=False),
    op("torch.topk", _SORT, x(REAL, rank=(1, 4)), _k, largest=either(True, False), results="v_", why=_TIES,
       weight=1.5, has_gradient=False),
    op("torch.topk", _SORT, x(REAL, rank=(1, 4), condition=_is_not_empty), 1, dim(least=1), results="v_",
       name="torch.topk(dim)", why=_TIES, has_gradient=False),
    OpSpec(name="torch.searchsorted", category=_SORT, draw_call=_draw_searchsorted),
    op("torch.bucketize", _SORT, x(("float32", "int64")), _boundaries, right=flag(), out_int32=flag(0.2)),
    op("torch.isin", _SORT, x(REAL), of_shape(lambda b: (b.draw.choice((3, 1, 8)),)), invert=flag(0.3),
       assume_unique=optional(False)),
    op("torch.unique", _SORT, x((*REAL, "bool")), weight=0.7, has_gradient=False),
    op("torch.unique", _SORT, x((*REAL, "bool")), return_inverse=True, return_counts=True, results="vvv",
       name="torch.unique(inverse, counts)", weight=0.7, has_gradient=False),
    op("torch.unique", _SORT, x(INTEGERS, rank=(1, 3)), dim=dim(), name="torch.unique(dim)", weight=0.5),
    op("torch.unique_consecutive", _SORT, x((*REAL, "bool")), weight=0.7, has_gradient=False),
    op("torch.unique_consecutive", _SORT, x(REAL), return_inverse=True, return_counts=True, results="vvv",
       name="torch.unique_consecutive(inverse, counts)", weight=0.5, has_gradient=False),
    op("torch.bincount", _SORT, x(("int64", "int32", "uint8"), rank=(1, 1), domain="index:9", is_strict=True),
       minlength=optional(either(0, 12)), why={"domain": "counts of non-negative integers"}),
    op("torch.histc", _SORT, x(DOUBLES, domain="small", is_strict=True), bins=either(4, 10, 1), min=either(-2, -1),
       max=either(2, 1), why={"domain": "eager refuses NaN and infinity as a range"}),
    op("torch.histogram", _SORT, x(DOUBLES, domain="small", is_strict=True, requires_grad=False), either(4, 7),
       range=Items((-2.0, 2.0), "tuple"), results="vv"),
    op("torch.nonzero_static", _SORT, x(INTEGRAL, rank=(1, 3)), size=either(4, 1, 0, 9), fill_value=optional(-1)),
    op("torch.nonzero", _SORT, x(REAL, rank=(0, 4))),
    op("torch.nonzero", _SORT, x(("bool", *FLOATS), rank=(2, 2)), as_tuple=True, results="vv",
       name="torch.nonzero(as_tuple)"),
    op("torch.argwhere", _SORT, x((*REAL, "bool"), rank=(0, 3)), weight=0.7),
    op("torch.where", _SORT, x(("bool",), rank=(2, 2)), results="vv", name="torch.where(condition)", weight=0.5),
    op(".item", _SORT, x(("float32", "int64", "bool"), condition=lambda t: t.numel() == 1,
                         shape=lambda b: b.draw.choice(((), (1,)))), weight=0.7),
    op(".unique", _SORT, x(INTEGERS), weight=0.3),
)  # fmt: skip
