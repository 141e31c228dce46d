"""Normalisation."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from fuzz.draw.choices import Draw
from fuzz.draw.geometry import share_memory
from fuzz.draw.inputs.specs import FLOATS
from fuzz.draw.scene import Scene, dtype_name
from fuzz.program.structure import Items, OpCall, Operand, Ref
from fuzz.vocabulary.operators.build import DOUBLES, CallBuilder, op
from fuzz.vocabulary.operators.operands import dim, either, optional, x
from fuzz.vocabulary.operators.spec import DrawCall, OpSpec

_CATEGORY = "norm"
_F = "torch.nn.functional"
_SPREAD = {"elements": "drawn without NaN and extremes every second time: one of them makes a whole group NaN"}


def _parameters(
    builder: CallBuilder, names: Sequence[str], shape: Sequence[int], *, chance: float = 0.6, domain: str = "any"
) -> list[tuple[str, Operand]]:
    """Optional weight and bias as keywords, which share no memory with the running statistics that training writes."""
    dtypes = (dtype_name(builder.main),)
    written = list(builder.operands[1:])

    def is_apart(tensor: torch.Tensor) -> bool:
        return tensor.is_meta or not any(share_memory(tensor, other) for other in written)

    return [
        (name, builder.take(builder.find(dtypes, shape=shape, domain=domain, condition=is_apart)))
        for name in names
        if builder.draw.chance(chance)
    ]


def _over_trailing(name: str, parameters: Sequence[str]) -> DrawCall:
    """layer_norm and rms_norm: over the last one or two dimensions, whose sizes weight and bias have."""

    def draw_call(draw: Draw, scene: Scene) -> OpCall | None:
        builder = CallBuilder(draw, scene)
        first = builder.take(builder.find(FLOATS, rank=(1, 4), domain="small"))
        shape = builder.main.shape
        sizes = tuple(shape[len(shape) - min(len(shape), draw.choice((1, 1, 2))) :])
        kwargs = _parameters(builder, parameters, sizes)
        if draw.chance(0.3):
            kwargs.append(("eps", draw.choice((1e-5, 1e-3))))
        args = (first, Items(sizes, draw.choice(("tuple", "list"))))
        return OpCall(target=f"{_F}.{name}", args=args, kwargs=tuple(kwargs), results=(scene.fresh(),))

    return draw_call


def _over_groups(draw: Draw, scene: Scene) -> OpCall | None:
    builder = CallBuilder(draw, scene)
    channels = draw.choice((4, 6, 2, 8))
    shape = (draw.choice((2, 1, 3)), channels, *draw.choice(((), (5,), (3, 4))))
    first = builder.take(builder.find(FLOATS, shape=shape, domain="small"))
    groups = draw.choice([n for n in (2, 1, channels) if channels % n == 0])
    kwargs = _parameters(builder, ("weight", "bias"), (channels,))
    return OpCall(target=f"{_F}.group_norm", args=(first, groups), kwargs=tuple(kwargs), results=(scene.fresh(),))


def _batched_shape(builder: CallBuilder, *, least: int = 2) -> tuple[int, ...]:
    """Batch, channels, and dimensions of space."""
    draw = builder.draw
    space = draw.choice(((4,), (3, 4), (), (2, 3, 2)))
    if least > 2 and not space:
        space = (4,)
    return (draw.choice((2, 3, 4)), draw.choice((3, 1, 5, 8)), *space)


def _over_batch(*, training: bool) -> DrawCall:
    """batch_norm with running statistics (a variance is not negative), which training writes to."""

    def draw_call(draw: Draw, scene: Scene) -> OpCall | None:
        builder = CallBuilder(draw, scene)
        first = builder.take(builder.find(DOUBLES, shape=_batched_shape(builder), domain="small"))
        channels = builder.main.shape[1]
        dtypes = (dtype_name(builder.main),)
        statistics: list[Operand] = [None, None]
        if not training or draw.chance(0.6):
            layouts = ("contiguous", "offset")
            for i, domain in enumerate(("small", "positive")):
                name = builder.add(dtypes, shape=(channels,), domain=domain, requires_grad=False, layouts=layouts)
                statistics[i] = builder.take(name)
        kwargs = _parameters(builder, ("weight", "bias"), (channels,))
        if training:
            kwargs.append(("training", True))
        if draw.chance(0.4):
            kwargs.append(("momentum", draw.choice((0.1, 0.5))))
        args = (first, *statistics)
        return OpCall(target=f"{_F}.batch_norm", args=args, kwargs=tuple(kwargs), results=(scene.fresh(),))

    return draw_call


def _over_instances(draw: Draw, scene: Scene) -> OpCall | None:
    builder = CallBuilder(draw, scene)
    first = builder.take(builder.find(DOUBLES, shape=_batched_shape(builder, least=3), domain="small"))
    kwargs = _parameters(builder, ("weight", "bias"), (builder.main.shape[1],))
    return OpCall(target=f"{_F}.instance_norm", args=(first,), kwargs=tuple(kwargs), results=(scene.fresh(),))


def _by_hand(name: str, draw_call: Callable[[Draw, Scene], OpCall | None], weight: float, spec: str = "") -> OpSpec:
    return OpSpec(name=spec or f"{_F}.{name}", category=_CATEGORY, draw_call=draw_call, weight=weight, meta=_SPREAD)


def _native_layer_norm(builder: CallBuilder) -> Ref | None:
    if not builder.draw.chance(0.6):
        return None
    return builder.take(builder.find((dtype_name(builder.main),), shape=builder.main.shape[-1:]))


NORMS = (
    _by_hand("layer_norm", _over_trailing("layer_norm", ("weight", "bias")), 2),
    _by_hand("rms_norm", _over_trailing("rms_norm", ("weight",)), 1.2),
    _by_hand("group_norm", _over_groups, 1.2),
    _by_hand("batch_norm", _over_batch(training=False), 1),
    OpSpec(name=f"{_F}.batch_norm(training)", category=_CATEGORY, draw_call=_over_batch(training=True), weight=1.2,
           writes=True, meta=_SPREAD),
    _by_hand("instance_norm", _over_instances, 0.8),
    op(f"{_F}.normalize", _CATEGORY, x(FLOATS, rank=(1, 4)), p=optional(either(1.0, 2.0, float("inf"))), dim=dim(),
       weight=1.2),
    op(f"{_F}.local_response_norm", _CATEGORY, x(DOUBLES, rank=(3, 4)), either(2, 3), weight=0.5),
    op("torch.ops.aten.native_layer_norm", _CATEGORY, x(FLOATS, rank=(1, 3)), lambda b: Items((b.main.shape[-1],)),
       _native_layer_norm, _native_layer_norm, 1e-5, results="vvv", weight=0.7),
    op("torch.ops.aten._softmax", _CATEGORY, x(FLOATS), dim(), False, weight=0.5),
    op("torch.ops.aten._log_softmax", _CATEGORY, x(FLOATS), dim(), False, weight=0.5),
    op("torch.ops.aten._safe_softmax", _CATEGORY, x(FLOATS), dim(), weight=0.5),
)  # fmt: skip
