"""Results of functions whose kernels go another way for tensors without data than for those with: made what eager mode gives.

Counterpart: none; torch's traces give copies and strides of their own there
"""

from __future__ import annotations

from typing import Any

import torch
from torch.overrides import TorchFunctionMode

_ONE_HOT = (torch.nn.functional.one_hot,)
_MAX_POOL1D = (torch.nn.functional.max_pool1d, torch.max_pool1d)


class EagerResultsMode(TorchFunctionMode):
    """Dropout that drops nothing gives its argument back, which Python kernels copy; `one_hot` and, on a CPU without gradients,
    `max_pool1d` give row-major results, whatever the argument is."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        is_dropout = func is torch.nn.functional.dropout and _drops_nothing(*args, **kwargs)
        if is_dropout or (func is torch.dropout and _drops_nothing(*_in_order(args, kwargs))):
            return args[0] if args else kwargs["input"]
        result = func(*args, **kwargs)
        if func in _ONE_HOT or (func in _MAX_POOL1D and _is_without_gradient(result)):
            return result.contiguous()
        return result


def _in_order(args: Any, kwargs: Any) -> tuple[Any, ...]:
    """The arguments of torch.dropout, whose names are its own."""
    return (*args, *(kwargs[name] for name in ("input", "p", "train")[len(args) :]))


def _drops_nothing(input: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> bool:
    return 0 <= p <= 1 and (not training or p == 0)


def _is_without_gradient(result: Any) -> bool:
    return isinstance(result, torch.Tensor) and result.device.type == "cpu" and not result.requires_grad
