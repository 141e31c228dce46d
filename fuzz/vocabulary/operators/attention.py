"""Attention: one call, with masks that broadcast, and heads shared between queries."""

from __future__ import annotations

from fuzz.draw.choices import Draw
from fuzz.draw.inputs.specs import FLOATS
from fuzz.draw.scene import Scene, dtype_name
from fuzz.program.structure import OpCall, Operand
from fuzz.vocabulary.operators.build import CallBuilder
from fuzz.vocabulary.operators.spec import OpSpec

_CATEGORY = "attention"
_TARGET = "torch.nn.functional.scaled_dot_product_attention"
_MASK = {"mask": "a row that is masked everywhere is NaN in one kernel and zero in another: masks keep the first key"}


def _draw_attention(draw: Draw, scene: Scene) -> OpCall | None:
    builder = CallBuilder(draw, scene)
    batch = (draw.choice((2, 1)),) if draw.chance(0.85) else ()
    heads, queries, keys = draw.choice((2, 1, 4)), draw.choice((4, 1, 7, 16)), draw.choice((4, 5, 16))
    width = draw.choice((8, 4, 16))
    query = builder.take(builder.find(FLOATS, shape=(*batch, heads, queries, width), domain="small"))
    dtypes = (dtype_name(builder.main),)
    is_grouped = heads == 4 and draw.chance(0.3)
    shape = (*batch, 2 if is_grouped else heads, keys, width)
    key = builder.take(builder.find(dtypes, shape=shape, domain="small"))
    value = builder.take(builder.find(dtypes, shape=shape))
    kwargs: list[tuple[str, Operand]] = []
    kind = draw.weighted({"none": 3, "causal": 2, "added": 2})
    if kind == "causal":
        kwargs.append(("is_causal", True))
    elif kind == "added":
        mask_shape = (queries, keys) if draw.chance(0.6) else (*batch, 1, queries, keys)
        kwargs.append(
            ("attn_mask", builder.take(builder.find(dtypes, shape=mask_shape, domain="small", is_strict=True)))
        )
    if draw.chance(0.25):
        kwargs.append(("scale", draw.choice((0.5, 1.0))))
    if is_grouped:
        kwargs.append(("enable_gqa", True))
    return OpCall(target=_TARGET, args=(query, key, value), kwargs=tuple(kwargs), results=(scene.fresh(),))


ATTENTION = (OpSpec(name=_TARGET, category=_CATEGORY, draw_call=_draw_attention, weight=4, meta=_MASK),)
