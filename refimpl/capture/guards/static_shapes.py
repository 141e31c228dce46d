"""Which tensors always have numbers for sizes: parameters, and tensors that a module owns.

Counterpart: torch/_dynamo/utils.py tensor_always_has_static_shape, TensorStaticReason
Differs: a module owns a tensor if its source goes through the module's tables of parameters and buffers.
"""

from __future__ import annotations

from enum import Enum
from typing import Any

import torch

from refimpl.capture.config import config
from refimpl.capture.guards.sources import OwnAttributeSource, Source

_OF_MODULES = ("_parameters", "_buffers")


class TensorStaticReason(Enum):
    """Why the sizes are numbers. The values are upstream's."""

    PARAMETER = 2
    NOT_TENSOR = 4
    NN_MODULE_PROPERTY = 5


_MESSAGES = {
    TensorStaticReason.PARAMETER: "mark_dynamic on a parameter, whose sizes are numbers",
    TensorStaticReason.NOT_TENSOR: "mark_dynamic on what is captured as a non tensor",
    TensorStaticReason.NN_MODULE_PROPERTY: "mark_dynamic on a tensor that an nn module owns, whose sizes are numbers",
}


def tensor_static_reason_to_message(reason: TensorStaticReason) -> str:
    """The reason as a clause of a message. Raises AssertionError for what is no reason."""
    assert reason in _MESSAGES, f"Illegal reason {reason}\n  expected: one of {[*TensorStaticReason]}"
    return _MESSAGES[reason]


def tensor_always_has_static_shape(
    tensor: Any, is_tensor: bool, tensor_source: Source
) -> tuple[bool, TensorStaticReason | None]:
    """Whether the sizes are numbers, and why: owned by a module, a parameter, or an object that is not captured as a tensor.

    `config.force_nn_module_property_static_shapes` and `config.force_parameter_static_shapes` decide on the first two.
    """
    if config.force_nn_module_property_static_shapes and is_of_module(tensor_source):
        return True, TensorStaticReason.NN_MODULE_PROPERTY
    if config.force_parameter_static_shapes and type(tensor) is torch.nn.Parameter:
        return True, TensorStaticReason.PARAMETER
    return (False, None) if is_tensor else (True, TensorStaticReason.NOT_TENSOR)


def is_of_module(source: Source) -> bool:
    """Whether the source goes through a module's table of parameters or buffers."""
    return any(isinstance(step, OwnAttributeSource) and step.attribute in _OF_MODULES for step in source.way())
