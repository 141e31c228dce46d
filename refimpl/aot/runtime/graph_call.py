"""How compiled graphs are called: with a list they may empty, without autocast.

Counterpart: torch/_functorch/_aot_autograd/utils.py make_boxed_func, call_func_at_runtime_with_args
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

BoxedCall = Callable[[list[Any]], Any]
_ASKING_FOR_GRADIENTS = frozenset({torch.ops.aten.mkldnn_rnn_layer.default})


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


def keeps_backward_workspace(graph_module: torch.fx.GraphModule) -> bool:
    """Whether an op of the graph asks if gradients are enabled, and leaves out what its backward needs where they are not."""
    return any(node.target in _ASKING_FOR_GRADIENTS for node in graph_module.graph.nodes)


def with_gradients_enabled(compiled: BoxedCall) -> BoxedCall:
    """The same on tensors that need no gradient, while gradients are enabled: nothing is recorded, but ops that ask hear yes."""

    def call(args: list[Any]) -> Any:
        detached = [arg.detach() if isinstance(arg, torch.Tensor) else arg for arg in args]
        args.clear()
        with torch.enable_grad():
            return compiled(detached)

    return call
