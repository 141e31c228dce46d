"""Dropout as eager mode has it, where torch's Python kernels, which traces with symbolic sizes take, have another.

Counterpart: none; torch/_decomp/decompositions.py dropout, _rnn_helper are what is put right
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from refimpl._torch import TorchDispatchMode


def sure_dropout(input: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
    """The result where chance has no part in it, else None."""
    if not isinstance(input, torch.Tensor) or not 0 <= p <= 1:
        return None
    if not training or p == 0 or _is_empty(input):
        return input
    if p < 1:
        return None
    zero = torch.zeros([], dtype=input.dtype, device=input.device)
    return input.mul_(zero) if inplace else input.mul(zero)


def _is_empty(tensor: torch.Tensor) -> bool:
    answer = tensor.numel() == 0
    return answer if isinstance(answer, bool) else answer.node.guard_or_false("", 0)


class SureDropoutMode(TorchDispatchMode):
    """Dropout that drops everything draws no numbers: around functions that do not call its kernel by name."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # see RecordingMode

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.native_dropout.default and args[1] == 1 and args[2]:
            return sure_dropout(*args), torch.zeros_like(args[0], dtype=torch.bool)
        return func(*args, **(kwargs or {}))


def by_layers(func: Any, args: Sequence[Any]) -> Any:
    """The result of torch.lstm and its like. The Python kernels of several layers drop nothing between them.

    args: (input, hidden, params, has_biases, layers, p, training, is_two_way, by_batch), as torch.nn.LSTM gives them. Hidden
    states are (layers * directions, batch, size). A packed sequence, whose sizes are data, is left to the kernel.
    """
    if not isinstance(args[3], bool):
        return func(*args)
    values, hidden, params, has_biases, layers, p, training, is_two_way, is_by_batch = args
    if not training or p == 0 or layers < 2:
        return func(*args)
    directions, per_layer = 1 + is_two_way, len(params) // layers
    values, last = values.transpose(0, 1) if is_by_batch else values, []
    for layer in range(layers):
        first = layer * directions
        if isinstance(hidden, torch.Tensor):
            own: Any = hidden.narrow(0, first, directions)
        else:
            own = [state.narrow(0, first, directions) for state in hidden]
        given = params[layer * per_layer : (layer + 1) * per_layer]
        values, *after = func(values, own, given, has_biases, 1, 0.0, training, is_two_way, False)
        last.append(after)
        if layer < layers - 1:
            sure = sure_dropout(values, p)
            values = torch.dropout(values, p, True) if sure is None else sure
    return (values.transpose(0, 1) if is_by_batch else values, *(torch.cat(parts) for parts in zip(*last, strict=True)))
