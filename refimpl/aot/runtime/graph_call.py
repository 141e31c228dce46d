"""How compiled graphs are called: with a list they may empty, without autocast.

Counterpart: torch/_functorch/_aot_autograd/utils.py make_boxed_func, call_func_at_runtime_with_args
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

BoxedCall = Callable[[list[Any]], Any]


def boxed(compiled: Callable[..., Any]) -> BoxedCall:
    """A function of one list, which it may empty so that inputs can be freed while it runs."""
    if getattr(compiled, "_boxed_call", False):
        return compiled
    if type(compiled).__call__ is torch.fx.GraphModule.__call__ and isinstance(compiled, torch.fx.GraphModule):
        module = compiled

        def call_module(args: list[Any]) -> Any:
            if module._forward_hooks or module._forward_pre_hooks:
                return module(*args)
            return module.forward(*args)

        return call_module

    def call(args: list[Any]) -> Any:
        return compiled(*args)

    return call
