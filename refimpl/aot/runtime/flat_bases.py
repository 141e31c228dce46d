"""Placeholders of one written storage as one flat tensor over it.

Counterpart: torch/_functorch/_aot_autograd/runtime_wrappers.py AOTSyntheticBaseWrapper
Differs: only below autograd, so that slots keep their own gradients.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from refimpl.aot.runtime.graph_call import BoxedCall
from refimpl.functionalize import AliasGroup


def with_flat_bases(compiled: BoxedCall, replaced: Sequence[AliasGroup]) -> BoxedCall:
    """A function of the slots, where `compiled` takes a flat base for each group in the place of its first member."""
    if not replaced:
        return compiled
    first = {group.members[0]: group for group in replaced}
    dropped = {member for group in replaced for member in group.members[1:]}

    def call(slots: list[Any]) -> Any:
        inputs = [first[i].base(slots) if i in first else slot for i, slot in enumerate(slots) if i not in dropped]
        return compiled(inputs)

    return call


def enlarge_storage(storage: torch.Tensor, group: AliasGroup) -> None:
    """Make the storage of a tensor at its beginning as large as the program has made it; what it holds stays."""
    if not group.enlarges:
        return
    with torch.no_grad():
        if storage.untyped_storage().nbytes() < (group.offset + group.numel) * storage.element_size():
            storage.resize_(group.offset + group.numel)
