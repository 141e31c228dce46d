"""Reductions: over everything, one dimension, several of them, with and without keepdim."""

from __future__ import annotations

from typing import Any

import torch

from fuzz.draw.inputs.specs import FLOATS
from fuzz.program.structure import Items, Operand
from fuzz.vocabulary.operators.build import ALL, INEXACT, NUMERIC, REAL, CallBuilder, op
from fuzz.vocabulary.operators.operands import dim, dims, either, flag, maybe_dtype, optional, other, x
from fuzz.vocabulary.operators.spec import OpSpec

_CATEGORY = "reduction"
_TIES = {
    "memory": "elements in places of their own: of expanded tensors eager reads memory beside them",
    "results": "the index is not bound: eager leaves open which of equal elements it is",
    "gradient": "no gradient: it would be at the element of that index",
}


def _family(
    name: str, dtypes: tuple[str, ...], *, weight: float = 1.0, lists: bool = True, **keywords: Any
) -> tuple[OpSpec, ...]:
    """Over everything, over one dimension, over several."""
    target = f"torch.{name}"
    specs = [
        op(target, _CATEGORY, x(dtypes), weight=weight, **keywords),
        op(target, _CATEGORY, x(dtypes), dim=dim(), keepdim=flag(), name=f"{target}(dim)", weight=weight, **keywords),
    ]
    if lists:
        specs.append(
            op(
                target,
                _CATEGORY,
                x(dtypes, rank=(1, 6)),
                dim=dims(low=1),
                keepdim=flag(),
                name=f"{target}(dims)",
                weight=weight,
                **keywords,
            )
        )
    return tuple(specs)


def _reduced_size(builder: CallBuilder) -> Operand:
    """A size that expands to the first tensor's."""
    return Items(tuple(1 if builder.draw.chance(0.5) else size for size in builder.main.shape), "tuple")


_TO_FLOAT = maybe_dtype("float64", "float32")
_CORRECTION = optional(either(0, 1, 2, 0.5), 0.5)

_SUMS = (
    *_family("sum", ALL, weight=2, dtype=_TO_FLOAT),
    *_family("mean", INEXACT, weight=1.5, dtype=_TO_FLOAT),
    *_family("prod", NUMERIC, lists=False),
    *_family("nansum", REAL, weight=0.6),
    *_family("nanmean", FLOATS, weight=0.6),
    *_family("std", FLOATS, weight=0.7, correction=_CORRECTION),
    *_family("var", FLOATS, weight=0.8, correction=_CORRECTION),
    op("torch.std_mean", _CATEGORY, x(FLOATS, rank=(1, 5)), dim=dims(), keepdim=flag(), results="vv"),
    op("torch.var_mean", _CATEGORY, x(FLOATS, rank=(1, 5)), dim=dims(), correction=_CORRECTION, keepdim=flag(),
       results="vv"),
    op("torch.logsumexp", _CATEGORY, x(FLOATS), dim(), keepdim=flag(), weight=1.5),
    op("torch.logsumexp", _CATEGORY, x(FLOATS, rank=(2, 5)), dims(low=2), keepdim=flag(), name="torch.logsumexp(dims)"),
    op("torch.trace", _CATEGORY, x(NUMERIC, rank=(2, 2))),
    *_family("count_nonzero", ALL, lists=False)[:1],
    op("torch.count_nonzero", _CATEGORY, x(ALL), dim=dim(), name="torch.count_nonzero(dim)"),
    op(".sum", _CATEGORY, x(ALL), weight=1.5),
    op(".mean", _CATEGORY, x(INEXACT), dim(), flag()),
    op(".sum_to_size", _CATEGORY, x(NUMERIC, rank=(1, 4)), _reduced_size, weight=0.6),
)  # fmt: skip


_LOGICAL = (
    *_family("all", ALL, lists=True),
    *_family("any", ALL, lists=True),
)

_NONEMPTY = {"condition": "eager refuses to take an extreme of nothing"}


def _is_not_empty(tensor: torch.Tensor) -> bool:
    return tensor.numel() > 0


_EXTREMES = (
    *(
        op(f"torch.{name}", _CATEGORY, x((*REAL, "bool"), condition=_is_not_empty), weight=1.2, why=_NONEMPTY)
        for name in ("amax", "amin", "max", "min", "argmax", "argmin")
    ),
    *(
        op(f"torch.{name}", _CATEGORY, x((*REAL, "bool"), rank=(1, 6)), dim=dim(least=1), keepdim=flag(),
           name=f"torch.{name}(dim)", weight=1.2)
        for name in ("amax", "amin", "argmax", "argmin")
    ),
    *(
        op(f"torch.{name}", _CATEGORY, x((*REAL, "bool"), rank=(1, 6)), dim=dims(low=2), keepdim=flag(),
           name=f"torch.{name}(dims)")
        for name in ("amax", "amin")
    ),
    *(
        op(f"torch.{name}", _CATEGORY, x((*REAL, "bool")), dim=dim(least=1), keepdim=flag(), results="vv",
           name=f"torch.{name}(dim)", weight=1.2)
        for name in ("max", "min")
    ),
    *(
        op(f"torch.{name}", _CATEGORY, x(REAL), other(REAL, numbers=0), name=f"torch.{name}(other)")
        for name in ("max", "min")
    ),
    op("torch.aminmax", _CATEGORY, x(REAL, condition=_is_not_empty), dim=optional(dim(least=1)), keepdim=flag(),
       results="vv"),
)  # fmt: skip

_QUANTILES = either(0.5, 0.25, 0.0, 1.0, 0.1)
_ORDER_STATISTICS = (
    *(op(f"torch.{name}", _CATEGORY, x(REAL, condition=_is_not_empty)) for name in ("median",)),
    op("torch.nanmedian", _CATEGORY, x(REAL, condition=_is_not_empty)),
    *(
        op(f"torch.{name}", _CATEGORY, x(REAL, is_dense=True), dim=dim(least=1), keepdim=flag(), results="v_",
           name=f"torch.{name}(dim)", why=_TIES, has_gradient=False)
        for name in ("median", "nanmedian", "mode")
    ),
    op("torch.kthvalue", _CATEGORY, x(REAL, rank=(1, 4), is_dense=True), 1, dim(least=1), flag(), results="v_", why=_TIES,
       has_gradient=False),
    *(
        op(f"torch.{name}", _CATEGORY, x(("float32", "float64"), condition=_is_not_empty), _QUANTILES,
           dim=optional(dim(least=1)), keepdim=flag(),
           interpolation=optional(either("linear", "lower", "higher", "midpoint", "nearest")))
        for name in ("quantile", "nanquantile")
    ),
)  # fmt: skip

_NORMS = (
    op("torch.norm", _CATEGORY, x(FLOATS), p=either(2, 1, float("inf"), 0, 0.5, 3)),
    op("torch.norm", _CATEGORY, x(FLOATS, rank=(1, 5)), p=either(2, 1, float("inf")), dim=dims(high=2),
       keepdim=flag(), name="torch.norm(dims)"),
    op("torch.linalg.vector_norm", _CATEGORY, x(INEXACT), either(2, 1, float("inf"), float("-inf"), 0, 0.5, 3),
       dim=optional(dim(least=1)), keepdim=flag(), weight=1.5),
    op("torch.linalg.norm", _CATEGORY, x(INEXACT, rank=(1, 2)), either(None, 1, float("inf")), weight=0.8),
    op("torch.linalg.matrix_norm", _CATEGORY, x(INEXACT, rank=(2, 4)), either("fro", 1, float("inf"), -1),
       keepdim=flag()),
    op("torch.dist", _CATEGORY, x(FLOATS), other(FLOATS, numbers=0, mixes=0), either(2, 1, float("inf"))),
    op("torch.renorm", _CATEGORY, x(FLOATS, rank=(2, 4)), p=either(2, 1), dim=dim(), maxnorm=either(1.0, 5.0)),
    op("torch.nn.functional.cosine_similarity", _CATEGORY, x(FLOATS, rank=(1, 4)),
                  other(FLOATS, numbers=0, mixes=0), dim=either(-1, 0), eps=optional(1e-6)),
    op("torch.nn.functional.pairwise_distance", _CATEGORY, x(FLOATS, rank=(1, 3)), other(FLOATS, numbers=0, mixes=0),
       p=either(2, 1), keepdim=flag()),
    op("torch.linalg.vecdot", _CATEGORY, x(INEXACT, rank=(1, 4)), other(INEXACT, numbers=0, mixes=0), dim=optional(-1)),
)  # fmt: skip

REDUCTIONS = (*_SUMS, *_LOGICAL, *_EXTREMES, *_ORDER_STATISTICS, *_NORMS)
