"""Where a fake tensor does not say whether the tensor it stands for requires a gradient.

Counterpart: none in torch/_dynamo, which takes what fake tensors say
"""

from __future__ import annotations

from typing import Protocol

import torch

from refimpl._torch import storage_key
from refimpl.capture.symbolic.values import TensorValue


class Gradients(Protocol):
    """What is known of the segment's tensors."""

    backward_of: tuple[type, ...]
    by_fake: dict[int, TensorValue]


def unknown_gradient(state: Gradients, value: TensorValue) -> str | None:
    """Why it is not known; None where it is.

    Views that are made in inference mode require a gradient if the argument does that they view; fake tensors forget it.
    """
    if state.backward_of:
        return "in backward"
    if value.source is not None or not value.fake.is_inference():
        return None
    inputs = [one.fake for one in state.by_fake.values() if one.source is not None and one.fake.requires_grad]
    memories = [storage_key(fake) for fake in inputs if fake.layout is torch.strided]
    is_view = value.fake.layout is torch.strided and storage_key(value.fake) in memories
    return "of a view in inference mode" if is_view else None
