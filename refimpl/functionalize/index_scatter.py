"""Writing through any chain of views by index: the views are replayed on the numbers of the elements.

Counterpart: none; torch inverts views one by one
Differs: needs nothing but the views themselves. The reference that the table of inverses is compared with, and the way to write
through a view that the table does not have.

The elements of the source are numbered row by row; the numbers are laid out in memory as the source is, so that `as_strided`
finds the right ones; what the views make of them says where each element of the new value goes.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from refimpl.functionalize.aliases import ViewStep
from refimpl.functionalize.views import ViewWriter

_aten = torch.ops.aten


def write_by_index(
    views: ViewWriter, steps: Sequence[ViewStep], source: torch.fx.Node, value: torch.fx.Node
) -> torch.fx.Node:
    """The value of the tensor that `steps` begin at, `source` before the write, after their last view got `value`.

    The steps change no elements (no other dtype, no conjugation). Where views overlap, the last of equal numbers counts. The
    value lies in memory as the tensor does: what reads it next may lay out its result alike, or draw numbers in that order.
    """
    emit = views.emit
    like = steps[0].source.meta["val"]
    shape = emit.number(like.shape)
    numbers = emit.call(_aten.arange.default, emit.number(like.numel()), device=like.device)
    numbers = views.reshape(numbers, shape)
    for step in steps:
        numbers = views.apply(step, numbers, step.source.meta["val"])
        if step.output_index is not None:
            numbers = emit.element(numbers, step.output_index)
    flat = views.reshape(source, [-1])
    written = emit.call(_aten.index_put.default, flat, [views.reshape(numbers, [-1])], views.reshape(value, [-1]))
    return views.with_layout(views.reshape(written, shape), like)
