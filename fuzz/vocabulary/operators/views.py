"""Views used as operators. `fuzz.vocabulary.statements.views` draws aliasing and writes through views."""

from __future__ import annotations

import math
from typing import Any

from fuzz.draw.choices import Draw
from fuzz.draw.scene import Scene
from fuzz.program.structure import Items, OpCall, Operand
from fuzz.vocabulary.operators.build import ALL, CallBuilder, PartLike, Unfit, op
from fuzz.vocabulary.operators.operands import dim, dims, draw_dim, draw_dims, either, optional, other, x
from fuzz.vocabulary.operators.spec import DrawCall, OpSpec

_CATEGORY = "view"


def _view(
    target: str,
    *parts: PartLike,
    rank: tuple[int, int] = (0, 6),
    results: str = "v",
    name: str = "",
    weight: float = 1.0,
    **keywords: Any,
) -> OpSpec:
    return op(
        target,
        _CATEGORY,
        x(ALL, rank=rank),
        *parts,
        results=results,
        name=name,
        weight=weight,
        is_view=True,
        **keywords,
    )


def _permutation(builder: CallBuilder) -> Items:
    rank = builder.main.dim()
    order = draw_dims(builder.draw, rank, rank)
    return Items(tuple(d - rank if builder.draw.chance(0.2) else d for d in order), "tuple")


def _regrouped(builder: CallBuilder) -> Items:
    """Another shape with the same number of elements: adjacent sizes merged, one size split, sometimes a -1."""
    draw, shape = builder.draw, list(builder.main.shape)
    for _ in range(draw.integer(1, 2)):
        if len(shape) > 1 and draw.chance(0.5):
            at = draw.integer(0, len(shape) - 2)
            shape[at : at + 2] = [shape[at] * shape[at + 1]]
        elif shape:
            at = draw.integer(0, len(shape) - 1)
            factor = draw.choice([f for f in (2, 3, 1, 5) if shape[at] % f == 0])
            shape[at : at + 1] = [shape[at] // factor, factor]
        else:
            shape = [1]
    if draw.chance(0.3) and math.prod(shape) and shape:
        shape[draw.integer(0, len(shape) - 1)] = -1
    return Items(tuple(shape), "tuple")


def _expanded(builder: CallBuilder) -> Items:
    draw = builder.draw
    shape: list[Operand] = [draw.choice((2, 3, 1)) if size == 1 else size for size in builder.main.shape]
    shape = [-1 if isinstance(size, int) and size > 1 and draw.chance(0.2) else size for size in shape]
    return Items((*([draw.choice((2, 1))] if draw.chance(0.4) else []), *shape), "tuple")


def _full_expanded(builder: CallBuilder) -> Items:
    draw = builder.draw
    shape = [draw.choice((2, 3, 1)) if size == 1 else size for size in builder.main.shape]
    return Items((*([2] if draw.chance(0.4) else []), *shape), "tuple")


def _draw_along(target: str, kind: str) -> OpSpec:
    """select, narrow, slices: a place along a dimension."""

    def draw_call(draw: Draw, scene: Scene) -> OpCall | None:
        builder = CallBuilder(draw, scene)
        first = builder.take(builder.find(ALL, rank=(1, 5)))
        along = draw_dim(draw, builder.main.dim())
        size = builder.main.shape[along]
        rest: tuple[Operand, ...]
        if kind == "select":
            if not size:
                return None
            rest = (draw.integer(-size, size - 1),)
        else:
            start = draw.integer(0, size)
            rest = (start, draw.integer(0 if draw.chance(0.1) else min(1, size - start), size - start))
        return OpCall(target=target, args=(first, along, *rest), results=(scene.fresh(),))

    return OpSpec(name=target, category=_CATEGORY, draw_call=draw_call, is_view=True)


def _draw_split_sizes(target: str) -> DrawCall:
    """Two parts whose sizes add up."""

    def draw_call(draw: Draw, scene: Scene) -> OpCall | None:
        builder = CallBuilder(draw, scene)
        first = builder.take(builder.find(ALL, rank=(1, 4), condition=lambda t: max(t.shape) > 1))
        fitting = [i for i, size in enumerate(builder.main.shape) if size > 1]
        along = draw.choice(fitting)
        cut = draw.integer(1, builder.main.shape[along] - 1)
        sizes = Items((cut, builder.main.shape[along] - cut), "list")
        return OpCall(target=target, args=(first, sizes, along), results=(scene.fresh(), scene.fresh()))

    return draw_call


def _half(builder: CallBuilder) -> int:
    """A chunk size that leaves two or three parts of the first dimension."""
    size = builder.main.shape[0]
    return max(1, -(-size // builder.draw.choice((2, 3))))


def _unfolded(builder: CallBuilder) -> int:
    sizes = [size for size in builder.main.shape if size]
    if not sizes:
        raise Unfit
    return min(2, *sizes, 2)


VIEWS = (
    _view("torch.transpose", dim(), dim(), weight=1.5),
    _view("torch.swapaxes", dim(), dim(), weight=0.4),
    _view(".permute", _permutation, weight=1.5),
    _view("torch.permute", _permutation, weight=0.6),
    _view("torch.t", rank=(0, 2)),
    *(op("getattr", _CATEGORY, x(ALL, rank=ranks), attribute, name=f"getattr({attribute})", is_view=True, weight=0.4)
      for attribute, ranks in (("T", (2, 2)), ("mT", (2, 4)), ("H", (2, 2)), ("mH", (2, 4)))),
    _view("torch.movedim", dim(), dim(), rank=(1, 5)),
    _view("torch.moveaxis", dim(), dim(), rank=(1, 5), weight=0.3),
    _view(".reshape", _regrouped, weight=2),
    _view("torch.reshape", _regrouped),
    _view(".view", _regrouped, weight=1.5),
    _view(".view", -1, name=".view(-1)", weight=0.6),
    _view("torch.ravel"),
    _view("torch.flatten", optional(either(0, 1, -2), 0.6), weight=1.2),
    _view("torch.unflatten", either(-1, 0), either(Items((-1, 1), "tuple"), Items((1, -1), "tuple")), rank=(1, 4)),
    _view("torch.squeeze", weight=0.8),
    _view("torch.squeeze", dim(), name="torch.squeeze(dim)"),
    _view("torch.squeeze", dims(high=2, kinds=("tuple",)), rank=(1, 5), name="torch.squeeze(dims)", weight=0.6),
    _view("torch.unsqueeze", dim(grows=1), weight=1.5),
    _view(".expand", _expanded, weight=1.5),
    _view("torch.broadcast_to", _full_expanded),
    op(".expand_as", _CATEGORY, x(ALL), other(ALL, numbers=0, broadcasts=0), is_view=True, weight=0.5),
    op(".view_as", _CATEGORY, x(ALL), other(ALL, numbers=0, broadcasts=0), is_view=True, weight=0.5),
    op(".reshape_as", _CATEGORY, x(ALL), other(ALL, numbers=0, broadcasts=0), is_view=True, weight=0.5),
    op("torch.broadcast_tensors", _CATEGORY, x(ALL), other(ALL, numbers=0, broadcasts=0.9), results="vv", is_view=True),
    _draw_along("torch.select", "select"),
    _draw_along("torch.narrow", "narrow"),
    _view("torch.diagonal", optional(either(0, 1, -1), 0.5), rank=(2, 4)),
    _view("torch.diagonal", dim1=-2, dim2=-1, rank=(2, 4), name="torch.diagonal(dims)", weight=0.6),
    _view(".unfold", dim(least=2), _unfolded, either(1, 2), rank=(1, 4), weight=0.8),
    _view("torch.unbind", dim(least=2, most=6), rank=(1, 4), results="*"),
    _view("torch.chunk", either(2, 3), dim(least=2), rank=(1, 4), results="*", weight=1.2),
    _view("torch.split", _half, rank=(1, 4), results="*"),
    OpSpec(name="torch.split(sizes)", category=_CATEGORY, draw_call=_draw_split_sizes("torch.split"), is_view=True),
    OpSpec(name=".split_with_sizes", category=_CATEGORY, draw_call=_draw_split_sizes(".split_with_sizes"), is_view=True,
           weight=0.5),
    _view("torch.tensor_split", either(2, 3), dim(least=1), rank=(1, 4), results="*"),
    _view("torch.hsplit", either(Items((1,)), Items((1, 2))), rank=(1, 4), results="*", weight=0.4),
    _view("torch.vsplit", either(Items((1,)), Items((1, 2))), rank=(2, 4), results="*", weight=0.4),
    _view("torch.dsplit", either(Items((1,)), Items((1, 2))), rank=(3, 4), results="*", weight=0.4),
)  # fmt: skip
