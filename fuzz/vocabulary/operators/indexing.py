"""Indexing: reads at indices and masks, and out-of-place writes. Indices are in range, and distinct where two writes to one
element would be undefined.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fuzz.draw.choices import Draw
from fuzz.draw.inputs.specs import FLOATS
from fuzz.draw.scene import Scene, dtype_name
from fuzz.program.structure import Expr, Items, OpCall, Operand, Ref
from fuzz.vocabulary.operators.build import ALL, NUMERIC, REAL, CallBuilder, Part, Unfit, op
from fuzz.vocabulary.operators.operands import (
    a_number,
    add_distinct,
    add_distinct_along,
    draw_dim,
    either,
    indices,
    mask,
    of_shape,
    same,
    size_of,
    x,
)
from fuzz.vocabulary.operators.spec import DrawCall, OpSpec

_CATEGORY = "index"
_DISTINCT = {"indices": "all different: which of two writes to one place comes last is not defined"}
_IN_RANGE = {"indices": "within the dimension; eager refuses others"}


def _along(
    target: str,
    draw_rest: Callable[[CallBuilder, int, str], tuple[Operand, ...]],
    *,
    dtypes: Sequence[str] = ALL,
    name: str = "",
    why: dict[str, str] | None = None,
    weight: float = 1.0,
    rank: tuple[int, int] = (1, 4),
) -> OpSpec:
    """Draws f(x, dim, *rest). `draw_rest` gets the dimension (not negative) and the dtype of x."""

    def draw_call(draw: Draw, scene: Scene) -> OpCall | None:
        builder = CallBuilder(draw, scene)
        first = builder.take(builder.find(dtypes, rank=rank, condition=lambda t: t.numel() > 0))
        main = builder.main
        along = draw_dim(draw, main.dim())
        rest = draw_rest(builder, along % max(1, main.dim()), dtype_name(main))
        return OpCall(target=target, args=(first, along, *rest), results=(scene.fresh(),))

    return OpSpec(name=name or target, category=_CATEGORY, draw_call=draw_call, weight=weight, meta=why or {})


def _some(builder: CallBuilder, along: int, dtypes: Sequence[str] = ("int64",)) -> tuple[Ref, int]:
    """1-D indices with repetitions along a dimension, and how many."""
    count = builder.draw.choice((3, 1, 5, 0, 2))
    index = indices(lambda b: (count,), lambda b: size_of(along, b.main), dtypes=dtypes)(builder)
    assert isinstance(index, Ref)
    return index, count


def _distinct(builder: CallBuilder, along: int) -> tuple[Ref, int]:
    size = size_of(along, builder.main)
    count = builder.draw.integer(0 if builder.draw.chance(0.1) else min(1, size), min(size, 6))
    return add_distinct(builder, count, size), count


def _source(builder: CallBuilder, along: int, count: int, dtype: str) -> Ref:
    """The values to write: the first tensor's shape with another size along the dimension."""
    main_shape = list(builder.main.shape)
    if main_shape:
        main_shape[along] = count
    return builder.take(builder.find((dtype,), shape=main_shape))


def _index_select(builder: CallBuilder, along: int, dtype: str) -> tuple[Operand, ...]:
    return (_some(builder, along, ("int64", "int32"))[0],)


def _index_add(builder: CallBuilder, along: int, dtype: str) -> tuple[Operand, ...]:
    index, count = _some(builder, along)
    return index, _source(builder, along, count, dtype)


def _index_copy(builder: CallBuilder, along: int, dtype: str) -> tuple[Operand, ...]:
    index, count = _distinct(builder, along)
    return index, _source(builder, along, count, dtype)


def _index_fill(builder: CallBuilder, along: int, dtype: str) -> tuple[Operand, ...]:
    return _some(builder, along)[0], a_number(builder)


def _index_reduce(builder: CallBuilder, along: int, dtype: str) -> tuple[Operand, ...]:
    return (*_index_add(builder, along, dtype), builder.draw.choice(("amax", "amin", "prod", "mean")))


def _smaller_shape(builder: CallBuilder, along: int, *, is_distinct: bool) -> tuple[int, ...]:
    """The shape of the index of a gather or scatter: at most the first tensor's sizes in the other dimensions."""
    draw = builder.draw
    shape = [size if draw.chance(0.7) else draw.integer(min(1, size), size) for size in builder.main.shape]
    if shape and not is_distinct and draw.chance(0.4):
        shape[along] = draw.choice((1, 2, 5))
    return tuple(shape)


def _gather(builder: CallBuilder, along: int, dtype: str) -> tuple[Operand, ...]:
    shape = _smaller_shape(builder, along, is_distinct=False)
    index = indices(lambda b: shape, lambda b: size_of(along, b.main))(builder)
    assert isinstance(index, Ref)
    return (index,)


def _scatter(builder: CallBuilder, along: int, dtype: str) -> tuple[Operand, ...]:
    shape = _smaller_shape(builder, along, is_distinct=True)
    index = add_distinct_along(builder, shape, along, size_of(along, builder.main))
    return index, builder.take(builder.find((dtype,), shape=shape))


def _scatter_value(builder: CallBuilder, along: int, dtype: str) -> tuple[Operand, ...]:
    return (*_gather(builder, along, dtype), a_number(builder))


def _scatter_add(builder: CallBuilder, along: int, dtype: str) -> tuple[Operand, ...]:
    shape = _smaller_shape(builder, along, is_distinct=False)
    index = indices(lambda b: shape, lambda b: size_of(along, b.main))(builder)
    assert isinstance(index, Ref)
    return index, builder.take(builder.find((dtype,), shape=shape))


def _scatter_reduce(builder: CallBuilder, along: int, dtype: str) -> tuple[Operand, ...]:
    return (*_scatter_add(builder, along, dtype), builder.draw.choice(("sum", "prod", "mean", "amax", "amin")))


_ALONG = (
    _along("torch.index_select", _index_select, weight=1.5, why=_IN_RANGE),
    _along("torch.index_add", _index_add, dtypes=NUMERIC, why=_IN_RANGE),
    _along("torch.index_copy", _index_copy, why=_DISTINCT),
    _along("torch.index_fill", _index_fill, why=_IN_RANGE),
    _along("torch.index_reduce", _index_reduce, dtypes=REAL, weight=0.7, why=_IN_RANGE),
    _along("torch.gather", _gather, weight=1.5, why=_IN_RANGE),
    _along("torch.scatter", _scatter, weight=1.2, why=_DISTINCT),
    _along("torch.scatter", _scatter_value, name="torch.scatter(value)", why=_IN_RANGE),
    _along("torch.scatter_add", _scatter_add, dtypes=NUMERIC, weight=1.2, why=_IN_RANGE),
    _along("torch.scatter_reduce", _scatter_reduce, dtypes=REAL, why=_IN_RANGE),
)


def _draw_take_along_dim(draw: Draw, scene: Scene) -> OpCall | None:
    """Dimensions other than the one indexed broadcast."""
    builder = CallBuilder(draw, scene)
    first = builder.take(builder.find(ALL, rank=(1, 4), condition=lambda t: t.numel() > 0))
    main = builder.main
    along = draw_dim(draw, main.dim())
    shape = [1 if draw.chance(0.25) else size for size in main.shape]
    shape[along] = draw.choice((2, 1, 4))
    index = indices(lambda b: shape, lambda b: size_of(along, b.main))(builder)
    assert isinstance(index, Ref)
    return OpCall(target="torch.take_along_dim", args=(first, index, along), results=(scene.fresh(),))


def _bounded_by_numel(count: Callable[[CallBuilder], Sequence[int]]) -> Part:
    return indices(count, lambda b: b.main.numel())


def _draw_put(draw: Draw, scene: Scene) -> OpCall | None:
    """Elements by their number in the flattened tensor."""
    builder = CallBuilder(draw, scene)
    first = builder.take(builder.find(NUMERIC, condition=lambda t: t.numel() > 0))
    count = min(builder.main.numel(), draw.choice((3, 1, 5)))
    index = add_distinct(builder, count, builder.main.numel())
    source = builder.take(builder.find((dtype_name(builder.main),), shape=(count,)))
    kwargs = (("accumulate", True),) if draw.chance(0.4) else ()
    return OpCall(target="torch.put", args=(first, index, source), kwargs=kwargs, results=(scene.fresh(),))


def _draw_index_put(target: str) -> DrawCall:
    """One or two index tensors that broadcast; without accumulation the first one's indices all differ."""

    def draw_call(draw: Draw, scene: Scene) -> OpCall | None:
        builder = CallBuilder(draw, scene)
        first = builder.take(builder.find(ALL, rank=(1, 4), condition=lambda t: t.numel() > 0))
        main = builder.main
        accumulates = draw.chance(0.4) and main.dtype.itemsize > 1
        if accumulates:
            index, count = _some(builder, 0)
        else:
            index, count = _distinct(builder, 0)
        if main.dim() > 1 and draw.chance(0.4):
            second = indices(lambda b: (count,), lambda b: b.main.shape[1])(builder)
            assert isinstance(second, Ref)
            positions, rest = (index, second), main.shape[2:]
        else:
            positions, rest = (index,), main.shape[1:]
        shape = () if draw.chance(0.2) else (count, *rest)
        values = builder.take(builder.find((dtype_name(main),), shape=shape))
        kwargs = (("accumulate", True),) if accumulates else ()
        return OpCall(
            target=target, args=(first, Items(positions, "tuple"), values), kwargs=kwargs, results=(scene.fresh(),)
        )

    return draw_call


_ELEMENTS = (
    OpSpec(name="torch.take_along_dim", category=_CATEGORY, draw_call=_draw_take_along_dim),
    op("torch.take", _CATEGORY, x(ALL, condition=lambda t: t.numel() > 0),
       _bounded_by_numel(lambda b: b.draw.choice(((3,), (), (2, 2), (0,)))), why=_IN_RANGE),
    OpSpec(name="torch.put", category=_CATEGORY, draw_call=_draw_put, weight=0.7, meta=_DISTINCT),
    OpSpec(name="torch.index_put", category=_CATEGORY, draw_call=_draw_index_put("torch.index_put"), meta=_DISTINCT),
    op("torch.masked_fill", _CATEGORY, x(ALL), mask(), a_number, weight=1.5),
    op("torch.masked_fill", _CATEGORY, x(FLOATS), mask(), either(float("-inf"), 0.0, float("inf")),
       name="torch.masked_fill(infinite)"),
    op("torch.masked_select", _CATEGORY, x(ALL), mask()),
    op("torch.masked_scatter", _CATEGORY, x(ALL), mask(broadcasts=0.2), same()),
    op("torch.unravel_index", _CATEGORY, x(("int64",), rank=(1, 2), domain="index:12", is_strict=True),
       Items((3, 4), "tuple"), results="vv", weight=0.5),
    op("torch.select_scatter", _CATEGORY, x(ALL, rank=(1, 4), condition=lambda t: 0 not in t.shape),
       of_shape(lambda b: b.main.shape[1:]), 0, either(0, -1)),
    op("torch.slice_scatter", _CATEGORY, x(ALL, rank=(1, 4), condition=lambda t: t.shape[0] > 1),
       of_shape(lambda b: (b.main.shape[0] - 1, *b.main.shape[1:])), dim=0, start=1),
    op("torch.slice_scatter", _CATEGORY, x(ALL, rank=(1, 4)),
       of_shape(lambda b: (*b.main.shape[:-1], -(-b.main.shape[-1] // 2))), dim=-1, step=2,
       name="torch.slice_scatter(step)"),
    op("torch.diagonal_scatter", _CATEGORY, x(ALL, rank=(2, 2)), of_shape(lambda b: (min(b.main.shape),))),
    op("torch.as_strided_scatter", _CATEGORY, x(FLOATS, rank=(1, 3), layouts=("contiguous",),
                                                condition=lambda t: t.numel() >= 4),
       of_shape(lambda b: (2,)), Items((2,)), Items((2,)), 1, weight=0.4),
    op("torch.nn.functional.one_hot", _CATEGORY, x(("int64",), rank=(0, 3), domain="index:5", is_strict=True),
       either(5, 8), why={"domain": "classes are not negative"}),
    op("torch.nn.functional.one_hot", _CATEGORY, x(("int64",), shape=lambda b: (b.draw.choice((4, 2)),),
                                                  domain="index:5", is_strict=True), name="torch.nn.functional.one_hot(open)",
       weight=0.4),
)  # fmt: skip


def _draw_embedding(draw: Draw, scene: Scene) -> OpCall | None:
    builder = CallBuilder(draw, scene)
    weight = builder.take(builder.find(FLOATS, rank=(2, 2), condition=lambda t: t.shape[0] > 0))
    rows = builder.main.shape[0]
    index = builder.add(
        ("int64", "int32"), shape=draw.choice(((4,), (2, 3), (), (0,), (2, 1, 2))), domain=f"index:{rows}"
    )
    kwargs: tuple[tuple[str, Operand], ...] = (("padding_idx", 0),) if draw.chance(0.3) else ()
    if draw.chance(0.15):
        kwargs += (("scale_grad_by_freq", True),)
    args = (builder.take(index), weight)
    return OpCall(target="torch.nn.functional.embedding", args=args, kwargs=kwargs, results=(scene.fresh(),))


def _draw_embedding_bag(draw: Draw, scene: Scene) -> OpCall | None:
    builder = CallBuilder(draw, scene)
    weight = builder.take(
        builder.find(("float32", "float64"), rank=(2, 2), condition=lambda t: 0 not in t.shape, layouts=("contiguous",))
    )
    rows = builder.main.shape[0]
    mode = draw.choice(("mean", "sum", "max"))
    index = builder.take(builder.add(("int64",), shape=draw.choice(((2, 3), (4, 1))), domain=f"index:{rows}"))
    kwargs: tuple[tuple[str, Operand], ...] = (("mode", mode),)
    if mode == "sum" and draw.chance(0.4):
        shape = tuple(builder.last.shape)
        kwargs += (("per_sample_weights", builder.take(builder.find((dtype_name(builder.main),), shape=shape))),)
    return OpCall(
        target="torch.nn.functional.embedding_bag", args=(index, weight), kwargs=kwargs, results=(scene.fresh(),)
    )


_EMBEDDINGS = (
    OpSpec(name="torch.nn.functional.embedding", category="embedding", draw_call=_draw_embedding, weight=3),
    OpSpec(name="torch.nn.functional.embedding_bag", category="embedding", draw_call=_draw_embedding_bag, weight=0.7),
)


def _getitem(
    name: str, index: Part, *, rank: tuple[int, int] = (1, 4), weight: float = 1.0, is_view: bool = False
) -> OpSpec:
    return op("getitem", _CATEGORY, x(ALL, rank=rank), index, name=f"getitem({name})", weight=weight, is_view=is_view)


def _slices(builder: CallBuilder) -> Items:
    """For each dimension a slice, an integer, None or an ellipsis."""
    draw, main = builder.draw, builder.main
    entries: list[Operand] = []
    for size in main.shape[: draw.integer(1, main.dim())]:
        kind = draw.weighted({"slice": 4, "step": 1.5, "all": 2, "int": 1.5 if size else 0, "new": 0.7})
        match kind:
            case "slice":
                entries.append(Expr(draw.choice(("1:", ":2", ":-1", "-2:", "1:3", "1:1", ":100"))))
            case "step":
                entries.append(Expr(draw.choice(("::2", "1::2", "::3", ":-1:2"))))
            case "int":
                entries.append(draw.choice((0, -1, size // 2)))
            case "new":
                entries += [None, Expr(":")]
            case _:
                entries.append(Expr(":"))
    if draw.chance(0.2):
        entries.insert(0 if len(entries) == main.dim() else len(entries), Expr("..."))
    return Items(tuple(entries), "tuple")


def _listed(builder: CallBuilder) -> Items:
    size = builder.main.shape[0]
    if not size:
        raise Unfit
    return Items(tuple(builder.draw.integer(-size, size - 1) for _ in range(builder.draw.integer(1, 4))), "list")


def _tensor_index(builder: CallBuilder) -> Operand:
    index = indices(lambda b: b.draw.choice(((3,), (), (2, 2), (0,))), lambda b: b.main.shape[0])(builder)
    assert isinstance(index, Ref)
    return index


def _two_tensors(builder: CallBuilder) -> Operand:
    """Adjacent, or apart with a slice between them (which moves the result's dimension to the front)."""
    main = builder.main
    second_at = builder.draw.integer(1, main.dim() - 1)
    first = indices(lambda b: (3,), lambda b: b.main.shape[0])(builder)
    second = indices(lambda b: b.draw.choice(((3,), (2, 1), (1,))), lambda b: b.main.shape[second_at])(builder)
    assert isinstance(first, Ref)
    assert isinstance(second, Ref)
    return Items((first, *([Expr(":")] * (second_at - 1)), second), "tuple")


def _slice_and_tensor(builder: CallBuilder) -> Operand:
    index = indices(lambda b: (2,), lambda b: b.main.shape[1])(builder)
    assert isinstance(index, Ref)
    return Items((Expr(builder.draw.choice((":", "1:", "..."))), index), "tuple")


def _bool_mask(builder: CallBuilder) -> Operand:
    shape = builder.main.shape[: builder.draw.integer(1, builder.main.dim())]
    return builder.take(builder.find(("bool",), shape=shape))


_GETITEMS = (
    _getitem("slices", _slices, weight=2, is_view=True),
    _getitem("list", _listed),
    _getitem("Tensor", _tensor_index, weight=1.5),
    _getitem("Tensors", _two_tensors, rank=(2, 4)),
    _getitem("mask", _bool_mask),
    _getitem("slice, Tensor", _slice_and_tensor, rank=(2, 2)),
    _getitem("None", lambda b: None, rank=(0, 4), weight=0.4, is_view=True),
)  # fmt: skip

INDEXING = (*_ALONG, *_ELEMENTS, *_EMBEDDINGS, *_GETITEMS)
