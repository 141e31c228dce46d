"""Losses, with every reduction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fuzz.draw.choices import Draw
from fuzz.draw.inputs.specs import FLOATS
from fuzz.draw.scene import Scene, dtype_name
from fuzz.program.structure import OpCall, Operand, Ref
from fuzz.vocabulary.operators.build import DOUBLES, CallBuilder, PartLike, op
from fuzz.vocabulary.operators.operands import add_values, either, flag, of_shape, optional, other, same, x
from fuzz.vocabulary.operators.spec import OpSpec

_CATEGORY = "loss"
_F = "torch.nn.functional"
_REDUCTION = either("mean", "sum", "none")
_PROBABILITY = {"domain": "eager refuses probabilities outside [0, 1]"}
_SIGN = {"target": "+1 or -1"}


def _loss(name: str, *parts: PartLike, dtypes: Sequence[str] = FLOATS, weight: float = 1.0, **keywords: Any) -> OpSpec:
    return op(f"{_F}.{name}", _CATEGORY, x(dtypes), *parts, reduction=_REDUCTION, weight=weight, **keywords)


_TARGET = same()


def _signs(builder: CallBuilder) -> Ref:
    """+1 or -1 for each element."""
    main = builder.main
    values = [1.0 if builder.draw.chance(0.5) else -1.0 for _ in range(main.numel())]
    builder.may_require_grad = False
    return add_values(builder, tuple(main.shape), dtype_name(main), values)


def _row_signs(builder: CallBuilder) -> Ref:
    values = [1.0 if builder.draw.chance(0.5) else -1.0 for _ in range(builder.main.shape[0])]
    builder.may_require_grad = False
    return add_values(builder, (builder.main.shape[0],), dtype_name(builder.main), values)


def _draw_classes(name: str) -> OpSpec:
    """Scores of classes against class numbers, over a batch and dimensions of space; weights and an ignored class at times."""

    def draw_call(draw: Draw, scene: Scene) -> OpCall | None:
        builder = CallBuilder(draw, scene)
        classes = draw.choice((5, 3, 1, 8))
        space = draw.choice(((), (), (4,), (2, 3)))
        shape = (draw.choice((4, 2, 1)), classes, *space)
        first = builder.take(builder.find(FLOATS, shape=shape, domain="small"))
        dtypes = (dtype_name(builder.main),)
        kwargs: list[tuple[str, Operand]] = [("reduction", draw.choice(("mean", "sum", "none")))]
        if name == "cross_entropy" and draw.chance(0.2):
            target = builder.take(builder.add(dtypes, shape=shape, domain="probability"))
        else:
            target = builder.take(builder.add(("int64",), shape=(shape[0], *space), domain=f"index:{classes}"))
            if draw.chance(0.25):
                kwargs.append(("ignore_index", draw.integer(0, classes)))
        if draw.chance(0.25):
            weight = builder.add(dtypes, shape=(classes,), domain="positive", requires_grad=False)
            kwargs.append(("weight", builder.take(weight)))
        if name == "cross_entropy" and draw.chance(0.25):
            kwargs.append(("label_smoothing", 0.1))
        return OpCall(target=f"{_F}.{name}", args=(first, target), kwargs=tuple(kwargs), results=(scene.fresh(),))

    return OpSpec(name=f"{_F}.{name}", category=_CATEGORY, draw_call=draw_call, weight=2)


def _draw_ctc(draw: Draw, scene: Scene) -> OpCall | None:
    builder = CallBuilder(draw, scene)
    steps, batch, classes, length = draw.choice((6, 8)), draw.choice((2, 1)), 4, draw.choice((2, 3))
    scores = builder.take(builder.add(("float32", "float64"), shape=(steps, batch, classes), domain="small"))
    values = [1 + draw.integer(0, classes - 2) for _ in range(batch * length)]
    target = add_values(builder, (batch, length), "int64", values)
    lengths = [add_values(builder, (batch,), "int64", [n] * batch) for n in (steps, length)]
    args = (scores, target, *lengths)
    kwargs = (("reduction", draw.choice(("mean", "sum", "none"))),)
    return OpCall(target=f"{_F}.ctc_loss", args=args, kwargs=kwargs, results=(scene.fresh(),))


LOSSES = (
    _loss("mse_loss", other(FLOATS, numbers=0, mixes=0, broadcasts=0), weight=1.5),
    _loss("l1_loss", _TARGET, weight=1.2),
    _loss("smooth_l1_loss", _TARGET, beta=optional(either(1.0, 0.5, 0.0))),
    _loss("huber_loss", _TARGET, delta=optional(either(1.0, 0.5))),
    _loss("soft_margin_loss", _signs),
    _loss("hinge_embedding_loss", _signs, margin=optional(either(1.0, 0.2))),
    _loss("margin_ranking_loss", _TARGET, _signs, margin=optional(either(0.0, 0.5))),
    _loss("kl_div", _TARGET, log_target=flag()),
    _loss("poisson_nll_loss", _TARGET, log_input=either(True, False), full=flag()),
    _loss("gaussian_nll_loss", _TARGET, same(domain="positive", is_strict=True), dtypes=DOUBLES, full=flag()),
    _loss("binary_cross_entropy_with_logits", same(domain="probability"), pos_weight=optional(same(domain="positive"), 0.25),
          weight=1.2),
    op(f"{_F}.binary_cross_entropy", _CATEGORY, x(FLOATS, domain="probability", is_strict=True),
       same(domain="probability", is_strict=True), reduction=_REDUCTION, why=_PROBABILITY),
    op(f"{_F}.cosine_embedding_loss", _CATEGORY, x(DOUBLES, rank=(2, 2)), same(), _row_signs, reduction=_REDUCTION,
       margin=optional(either(0.0, 0.5)), why=_SIGN),
    op(f"{_F}.triplet_margin_loss", _CATEGORY, x(DOUBLES, rank=(2, 2)), same(), same(), reduction=_REDUCTION,
       p=optional(either(2.0, 1.0)), swap=flag()),
    op(f"{_F}.triplet_margin_with_distance_loss", _CATEGORY, x(DOUBLES, rank=(2, 2)), same(), same(),
       reduction=_REDUCTION, weight=0.5),
    op(f"{_F}.multilabel_soft_margin_loss", _CATEGORY, x(FLOATS, rank=(2, 2)), same(domain="probability"),
       reduction=_REDUCTION),
    op(f"{_F}.multilabel_margin_loss", _CATEGORY, x(DOUBLES, shape=lambda b: (b.draw.choice((3, 1)), 5), domain="small"),
       of_shape(lambda b: (b.main.shape[0], 5), ("int64",), domain="index:5", is_strict=True), reduction=_REDUCTION,
       weight=0.6),
    op(f"{_F}.multi_margin_loss", _CATEGORY, x(DOUBLES, shape=lambda b: (b.draw.choice((3, 1)), 5), domain="small"),
       of_shape(lambda b: (b.main.shape[0],), ("int64",), domain="index:5", is_strict=True), reduction=_REDUCTION,
       p=optional(either(1, 2)), margin=optional(0.5), weight=0.6),
    _draw_classes("cross_entropy"),
    _draw_classes("nll_loss"),
    OpSpec(name=f"{_F}.ctc_loss", category=_CATEGORY, draw_call=_draw_ctc, weight=0.5,
           meta={"target": "no blanks, and short enough for the steps"}),
)  # fmt: skip
