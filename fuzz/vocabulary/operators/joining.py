"""Joining, repeating, padding, moving: operators that move elements of their inputs to other positions."""

from __future__ import annotations

from fuzz.draw.choices import Draw
from fuzz.draw.inputs.specs import FLOATS
from fuzz.draw.scene import Scene, dtype_name
from fuzz.program.structure import Items, OpCall, Operand
from fuzz.vocabulary.operators.build import ALL, NUMERIC, CallBuilder, op
from fuzz.vocabulary.operators.operands import (
    dim,
    dims,
    draw_dim,
    either,
    flag,
    indices,
    integer,
    optional,
    several,
    x,
)
from fuzz.vocabulary.operators.spec import DrawCall, OpSpec

_CATEGORY = "shape"


def _draw_cat(target: str) -> DrawCall:
    """Parts that differ along the dimension; an empty one, another dtype, the same one twice now and then."""

    def draw_call(draw: Draw, scene: Scene) -> OpCall | None:
        builder = CallBuilder(draw, scene)
        parts = [builder.take(builder.find(ALL, rank=(1, 4)))]
        main = builder.main
        along = draw_dim(draw, main.dim())
        for _ in range(draw.integer(1, 3)):
            shape = list(main.shape)
            if draw.chance(0.4):
                shape[along] = draw.choice((1, 2, 0, 3))
            dtypes = ALL if draw.chance(0.12) else (dtype_name(main),)
            parts.append(builder.take(builder.find(dtypes, shape=shape)))
        kind = draw.choice(("list", "tuple"))
        return OpCall(target=target, args=(Items(tuple(parts), kind), along), results=(scene.fresh(),))

    return draw_call


def _repeats(builder: CallBuilder) -> Items:
    extra = builder.draw.choice((0, 0, 1))
    counts = [builder.draw.choice((1, 2, 3, 0) if builder.draw.chance(0.1) else (1, 2)) for _ in builder.main.shape]
    return Items((*([2] * extra), *counts), "tuple")


def _tiles(builder: CallBuilder) -> Items:
    """Repetitions: as many as dimensions, fewer, or more."""
    return Items(tuple(builder.draw.choice((1, 2, 3)) for _ in range(builder.draw.integer(1, 3))), "tuple")


def _shifts(builder: CallBuilder) -> Operand:
    return builder.draw.choice((1, -1, 2, 0, 5, -7))


def _draw_roll(draw: Draw, scene: Scene) -> OpCall | None:
    builder = CallBuilder(draw, scene)
    first = builder.take(builder.find(ALL, rank=(1, 4)))
    if draw.chance(0.3):
        return OpCall(target="torch.roll", args=(first, _shifts(builder)), results=(scene.fresh(),))
    chosen = dims(high=2, kinds=("tuple",))(builder)
    assert isinstance(chosen, Items)
    shifts = Items(tuple(_shifts(builder) for _ in chosen.items), "tuple")
    return OpCall(target="torch.roll", args=(first, shifts, chosen), results=(scene.fresh(),))


def _draw_pad(mode: str) -> DrawCall:
    """Pads the last dimensions; constant also by less than nothing."""

    def draw_call(draw: Draw, scene: Scene) -> OpCall | None:
        builder = CallBuilder(draw, scene)
        ranks = (1, 5) if mode == "constant" else (2, 5)
        first = builder.take(builder.find(ALL if mode == "constant" else FLOATS, rank=ranks))
        main = builder.main
        padded = draw.integer(1, min(3, main.dim())) if mode == "constant" else max(1, main.dim() - 2)
        amounts: list[Operand] = []
        for size in list(reversed(main.shape))[:padded]:
            largest = 3 if mode in ("constant", "replicate") else min(3, size - 1 if mode == "reflect" else size)
            low = -1 if mode == "constant" and size > 2 and draw.chance(0.25) else 0
            amounts += [draw.integer(low, max(0, largest)), draw.integer(low, max(0, largest))]
        kwargs: tuple[tuple[str, Operand], ...] = (("mode", mode),)
        if mode == "constant" and draw.chance(0.5):
            kwargs = (("value", scene.number(main)),)
        return OpCall(
            target="torch.nn.functional.pad",
            args=(first, Items(tuple(amounts), "tuple")),
            kwargs=kwargs,
            results=(scene.fresh(),),
        )

    return draw_call


def _draw_repeat_interleave(draw: Draw, scene: Scene) -> OpCall | None:
    """A count an element: the size of the result depends on data."""
    builder = CallBuilder(draw, scene)
    first = builder.take(builder.find(ALL, rank=(1, 3)))
    along = draw_dim(draw, builder.main.dim())
    size = builder.main.shape[along]
    counts = indices(lambda b: (size,), lambda b: 4)(builder)
    assert not isinstance(counts, tuple)
    return OpCall(target="torch.repeat_interleave", args=(first, counts, along), results=(scene.fresh(),))  # type: ignore[arg-type]


def _square_blocks(b: CallBuilder) -> tuple[int, ...]:
    return b.draw.choice((1, 2)), 4 * b.draw.choice((1, 2)), 4, 2 * b.draw.choice((1, 2))


JOINING = (
    OpSpec(name="torch.cat", category=_CATEGORY, draw_call=_draw_cat("torch.cat"), weight=3),
    OpSpec(name="torch.concat", category=_CATEGORY, draw_call=_draw_cat("torch.concat"), weight=0.3),
    op("torch.stack", _CATEGORY, several(ALL), dim(grows=1), weight=2),
    *(op(f"torch.{name}", _CATEGORY, several(ALL), weight=0.7)
      for name in ("hstack", "vstack", "dstack", "column_stack", "row_stack")),
    op(".repeat", _CATEGORY, x(ALL, rank=(0, 4)), _repeats, weight=1.2),
    op("torch.tile", _CATEGORY, x(ALL, rank=(0, 4)), _tiles),
    op("torch.repeat_interleave", _CATEGORY, x(ALL), either(2, 1, 3, 0), dim=dim(), weight=1.2),
    op("torch.repeat_interleave", _CATEGORY, x(ALL), either(2, 3), name="torch.repeat_interleave(flat)"),
    OpSpec(name="torch.repeat_interleave(Tensor)", category=_CATEGORY, draw_call=_draw_repeat_interleave),
    OpSpec(name="torch.roll", category=_CATEGORY, draw_call=_draw_roll, weight=1.2),
    op("torch.flip", _CATEGORY, x(ALL, rank=(1, 5)), dims(), weight=1.5),
    op("torch.fliplr", _CATEGORY, x(ALL, rank=(2, 4)), weight=0.4),
    op("torch.flipud", _CATEGORY, x(ALL, rank=(1, 4)), weight=0.4),
    op("torch.rot90", _CATEGORY, x(ALL, rank=(2, 4)), either(1, -1, 2, 3), dims(low=2, high=2, kinds=("list",))),
    op("torch.tril", _CATEGORY, x(ALL, rank=(2, 4)), optional(either(1, -1, 2)), weight=1.2),
    op("torch.triu", _CATEGORY, x(ALL, rank=(2, 4)), optional(either(1, -1, 2)), weight=1.2),
    op("torch.diag", _CATEGORY, x(ALL, rank=(1, 2)), optional(either(1, -1))),
    op("torch.diag_embed", _CATEGORY, x(ALL, rank=(1, 3)), offset=optional(either(1, -1))),
    op("torch.diagflat", _CATEGORY, x(ALL, rank=(0, 2)), optional(either(1, -1)), weight=0.6),
    op("torch.cartesian_prod", _CATEGORY, x(NUMERIC, rank=(1, 1)), x(NUMERIC, rank=(1, 1)), weight=0.5),
    op("torch.combinations", _CATEGORY, x(NUMERIC, rank=(1, 1)), r=either(2, 1), with_replacement=flag(), weight=0.5),
    op("torch.meshgrid", _CATEGORY, x(NUMERIC, rank=(1, 1)), x(NUMERIC, rank=(1, 1)), indexing=either("ij", "xy"),
       results="vv"),
    *(OpSpec(name=f"torch.nn.functional.pad({mode})", category=_CATEGORY, draw_call=_draw_pad(mode), weight=weight)
      for mode, weight in (("constant", 2.0), ("reflect", 1.0), ("replicate", 1.0), ("circular", 1.0))),
    op("torch.nn.functional.pixel_shuffle", _CATEGORY, x(NUMERIC, shape=_square_blocks), 2),
    op("torch.nn.functional.pixel_unshuffle", _CATEGORY, x(NUMERIC, shape=_square_blocks), 2),
    op("torch.nn.functional.channel_shuffle", _CATEGORY, x(FLOATS, shape=_square_blocks), either(2, 4)),
    op("torch.nn.functional.unfold", _CATEGORY, x(FLOATS, shape=_square_blocks), either(2, 1),
       padding=optional(either(1)), stride=optional(either(2)), dilation=optional(either(1))),
    op("torch.nn.functional.fold", _CATEGORY,
       x(FLOATS, shape=lambda b: (b.draw.choice((1, 2)), 4 * b.draw.choice((1, 3)), 9)), Items((4, 4), "tuple"), 2),
    op("torch.atleast_1d", _CATEGORY, x(ALL, rank=(0, 1)), is_view=True, weight=0.4),
    op("torch.atleast_2d", _CATEGORY, x(ALL, rank=(0, 2)), is_view=True, weight=0.4),
    op("torch.atleast_3d", _CATEGORY, x(ALL, rank=(0, 3)), is_view=True, weight=0.4),
    op("torch.narrow_copy", _CATEGORY, x(ALL, rank=(1, 3), condition=lambda t: t.shape[0] > 0), 0, 0, integer(0, 1),
       weight=0.4),
)  # fmt: skip
