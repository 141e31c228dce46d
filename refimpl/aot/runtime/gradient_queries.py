"""Kernels that ask whether gradients are wanted, and leave out what their backward needs where they are told no.

Counterpart: none; upstream runs forward graphs without gradients, and fails in the backward of such an op
"""

from __future__ import annotations

from typing import Any

import torch

from refimpl.aot.runtime.graph_call import BoxedCall
from refimpl.errors import UnsupportedByRefimpl

_ASKING_FOR_MODE = frozenset({torch.ops.aten.mkldnn_rnn_layer.default})
_ASKING_OF_TENSORS = torch.ops.aten._sparse_mm_reduce_impl.default
_NEEDING_POSITIONS = ("amax", "amin")


def with_answers(compiled: BoxedCall, graph_module: torch.fx.GraphModule) -> BoxedCall:
    """A forward graph in which such ops hear that gradients are enabled; as it is if it has none.

    Raises UnsupportedByRefimpl for an op that asks the tensors themselves: inside of a graph they require no gradient.
    """
    for node in graph_module.graph.nodes:
        if node.target is _ASKING_OF_TENSORS and node.args[2] in _NEEDING_POSITIONS:
            raise UnsupportedByRefimpl(
                seen=f"the gradient of a sparse product reduced by {node.args[2]}",
                supported="sums and means: of others the kernel keeps no positions unless its inputs require a gradient",
                do="compute it outside of what is compiled",
            )
    if any(node.target in _ASKING_FOR_MODE for node in graph_module.graph.nodes):
        return _with_gradients_enabled(compiled)
    return compiled


def _with_gradients_enabled(compiled: BoxedCall) -> BoxedCall:
    """The same on tensors that need no gradient, so that nothing is recorded."""

    def call(args: list[Any]) -> Any:
        detached = [arg.detach() if isinstance(arg, torch.Tensor) else arg for arg in args]
        args.clear()
        with torch.enable_grad():
            return compiled(detached)

    return call
