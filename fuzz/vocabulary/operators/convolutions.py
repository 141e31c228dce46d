"""Convolutions, pooling, resizing, sampling."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from fuzz.draw.choices import Draw
from fuzz.draw.inputs.specs import FLOATS
from fuzz.draw.scene import Scene, dtype_name
from fuzz.program.structure import Items, OpCall, Operand
from fuzz.vocabulary.operators.build import DOUBLES, INEXACT, CallBuilder, PartLike, op
from fuzz.vocabulary.operators.operands import either, flag, of_shape, optional, x
from fuzz.vocabulary.operators.spec import DrawCall, OpSpec

_CONV = "conv"
_POOL = "pool"
_RESIZE = "resize"
_F = "torch.nn.functional"
_SPACES: dict[int, tuple[tuple[int, ...], ...]] = {
    1: ((7,), (8,), (3,), (16,)),
    2: ((5, 6), (4, 4), (7, 3), (8, 8)),
    3: ((3, 4, 4), (4, 3, 5)),
}
_GRID = {"grid": "finite and near [-1, 1]: other floats are converted to integers, which is not defined for large ones"}


def _space(draw: Draw, rank: int) -> tuple[int, ...]:
    return draw.choice(_SPACES[rank])


def _images(
    rank: int, *, batched: float = 0.85, channels: Sequence[int] = (2, 3, 1, 4, 8)
) -> Callable[[CallBuilder], Sequence[int]]:
    """(N, C, *space), or without N."""

    def shape(builder: CallBuilder) -> tuple[int, ...]:
        draw = builder.draw
        lead = (draw.choice((2, 1, 3)),) if draw.chance(batched) else ()
        return (*lead, draw.choice(channels), *_space(draw, rank))

    return shape


def _draw_conv(rank: int, *, is_transposed: bool = False) -> DrawCall:
    """Groups that divide the channels, kernels that fit, every spelling of padding."""

    def draw_call(draw: Draw, scene: Scene) -> OpCall | None:
        builder = CallBuilder(draw, scene)
        channels = draw.choice((4, 2, 3, 1, 6))
        groups = draw.choice([n for n in (1, 1, 2, channels) if channels % n == 0])
        first = builder.take(
            builder.find(
                INEXACT[:4] if draw.chance(0.9) else INEXACT, shape=_images(rank, channels=(channels,))(builder)
            )
        )
        dtypes = (dtype_name(builder.main),)
        produced = groups * draw.choice((1, 2, 3))
        kernel = tuple(draw.choice((3, 1, 2)) for _ in range(rank))
        shape = (channels, produced // groups, *kernel) if is_transposed else (produced, channels // groups, *kernel)
        layouts = ("contiguous", "channels_last") if draw.chance(0.5) else ()
        weight = builder.take(builder.find(dtypes, shape=shape, layouts=layouts))
        args: list[Operand] = [first, weight]
        if draw.chance(0.5):
            args.append(builder.take(builder.find(dtypes, shape=(produced,))))
        kwargs: list[tuple[str, Operand]] = [("groups", groups)] if groups > 1 else []
        stride = draw.choice((1, 1, 2, 3))
        if stride > 1:
            kwargs.append(("stride", stride))
        if not is_transposed and stride == 1 and draw.chance(0.2):
            kwargs.append(("padding", draw.choice(("same", "valid"))))
        elif draw.chance(0.5):
            kwargs.append(("padding", draw.choice((1, 0, Items((1,) * rank, "tuple")))))
        if draw.chance(0.2):
            kwargs.append(("dilation", 2))
        if is_transposed and stride > 1 and draw.chance(0.4):
            kwargs.append(("output_padding", 1))
        name = f"conv_transpose{rank}d" if is_transposed else f"conv{rank}d"
        return OpCall(target=f"{_F}.{name}", args=tuple(args), kwargs=tuple(kwargs), results=(scene.fresh(),))

    return draw_call


_CONVOLUTIONS = tuple(
    OpSpec(
        name=f"{_F}.conv{'_transpose' * is_transposed}{rank}d",
        category=_CONV,
        draw_call=_draw_conv(rank, is_transposed=is_transposed),
        weight={1: 2.5, 2: 4, 3: 1}[rank] * (0.5 if is_transposed else 1),
    )
    for is_transposed in (False, True)
    for rank in (1, 2, 3)
)


def _pool(
    name: str,
    rank: int,
    *parts: PartLike,
    results: str = "v",
    weight: float = 1.0,
    spec: str = "",
    **keywords: Any,
) -> OpSpec:
    return op(f"{_F}.{name}{rank}d", _POOL, x(FLOATS, shape=_images(rank)), *parts, results=results, weight=weight,
              name=spec, **keywords)  # fmt: skip


_KERNEL = either(2, 3)
_STRIDE = optional(either(1, 2))
_POOLS = (
    *(
        _pool("max_pool", rank, _KERNEL, stride=_STRIDE, padding=optional(either(1)), ceil_mode=flag(),
              dilation=optional(either(1, 2), 0.2), weight={1: 1, 2: 1.5, 3: 0.5}[rank])
        for rank in (1, 2, 3)
    ),
    *(
        _pool("max_pool", rank, _KERNEL, stride=_STRIDE, return_indices=True, results="vv",
              spec=f"{_F}.max_pool{rank}d(indices)", weight=0.4)
        for rank in (1, 2)
    ),
    *(
        _pool("avg_pool", rank, _KERNEL, stride=_STRIDE, padding=optional(either(1)), ceil_mode=flag(),
              count_include_pad=optional(either(False)), weight={1: 1, 2: 1.5, 3: 0.5}[rank])
        for rank in (1, 2, 3)
    ),
    _pool("avg_pool", 2, _KERNEL, divisor_override=either(3, 1), spec=f"{_F}.avg_pool2d(divisor)", weight=0.4),
    *(_pool("adaptive_avg_pool", rank, either(2, 1, 3), weight={1: 0.8, 2: 1.2, 3: 0.4}[rank]) for rank in (1, 2, 3)),
    _pool("adaptive_avg_pool", 2, either(Items((3, None), "tuple"), Items((1, 2), "tuple")),
          spec=f"{_F}.adaptive_avg_pool2d(sizes)", weight=0.4),
    *(_pool("adaptive_max_pool", rank, either(2, 1, 3), weight={1: 0.6, 2: 0.8, 3: 0.3}[rank]) for rank in (1, 2, 3)),
    *(
        op(f"{_F}.lp_pool{rank}d", _POOL, x(DOUBLES, shape=_images(rank), domain="positive"), either(2.0, 1.0), _KERNEL,
           ceil_mode=flag(), weight=0.4, why={"domain": "roots of sums of powers: real and differentiable for positive"})
        for rank in (1, 2)
    ),
)  # fmt: skip


_FINITE = {"domain": "finite every second time: decompositions multiply infinities by zero, eager does not"}


def _interpolate(mode: str, rank: int, *, aligns: bool, spec: str) -> tuple[OpSpec, ...]:
    corners: dict[str, Any] = {"align_corners": optional(either(True, False))} if aligns else {}
    images = x(FLOATS, shape=_images(rank, batched=1), domain="small")
    return (
        op(f"{_F}.interpolate", _RESIZE, images, scale_factor=either(2, 0.5, 1.5, 3.0),
           recompute_scale_factor=optional(True, 0.2), mode=either(mode), name=f"{_F}.interpolate({spec})", why=_FINITE,
           **corners),
        op(f"{_F}.interpolate", _RESIZE, images, size=either(Items((3,) * rank, "tuple"), Items((9,) * rank, "tuple")),
           mode=either(mode), name=f"{_F}.interpolate({spec}, size)", weight=0.6, why=_FINITE, **corners),
    )  # fmt: skip


_RESIZES = (
    *_interpolate("nearest", 2, aligns=False, spec="nearest"),
    *_interpolate("nearest", 1, aligns=False, spec="nearest1d"),
    *_interpolate("nearest-exact", 2, aligns=False, spec="nearest-exact"),
    *_interpolate("linear", 1, aligns=True, spec="linear"),
    *_interpolate("bilinear", 2, aligns=True, spec="bilinear"),
    *_interpolate("bicubic", 2, aligns=True, spec="bicubic"),
    *_interpolate("trilinear", 3, aligns=True, spec="trilinear"),
    *_interpolate("area", 2, aligns=False, spec="area"),
    op(f"{_F}.interpolate", _RESIZE, x(DOUBLES, shape=_images(2, batched=1)), size=Items((3, 4), "tuple"),
       mode=either("bilinear", "bicubic"), antialias=True, name=f"{_F}.interpolate(antialias)", weight=0.5),
    op(f"{_F}.upsample_nearest", _RESIZE, x(FLOATS, shape=_images(2, batched=1)), scale_factor=2, weight=0.3),
    op(f"{_F}.upsample_bilinear", _RESIZE, x(FLOATS, shape=_images(2, batched=1)), scale_factor=2, weight=0.3),
    op(f"{_F}.grid_sample", _RESIZE, x(DOUBLES, shape=_images(2, batched=1)),
       of_shape(lambda b: (b.main.shape[0], *b.draw.choice(((3, 2), (4, 4))), 2), domain="small", is_strict=True),
       mode=either("bilinear", "nearest", "bicubic"), padding_mode=either("zeros", "border", "reflection"),
       align_corners=either(False, True), why=_GRID),
    op(f"{_F}.grid_sample", _RESIZE, x(DOUBLES, shape=_images(3, batched=1)),
       of_shape(lambda b: (b.main.shape[0], 2, 3, 2, 3), domain="small", is_strict=True),
       mode=either("bilinear", "nearest"), padding_mode=either("zeros", "border", "reflection"),
       align_corners=either(False, True), name=f"{_F}.grid_sample(3d)", weight=0.4, why=_GRID),
    op(f"{_F}.affine_grid", _RESIZE, x(DOUBLES, shape=lambda b: (b.draw.choice((2, 1)), 2, 3)),
       lambda b: Items((b.main.shape[0], 1, 3, 4), "tuple"), align_corners=either(False, True), weight=0.6),
)  # fmt: skip

CONVOLUTIONS = (*_CONVOLUTIONS, *_POOLS, *_RESIZES)
