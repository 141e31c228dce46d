"""What a caller gets lies in memory as in eager mode, whatever layout a backend has chosen.

Counterpart: torch/_functorch/_aot_autograd/runtime_wrappers.py, and Inductor's own promise to keep the strides of outputs
Differs: checked for every backend that is not the graph itself. Views of an intermediate are made again from a base: a base in
another layout would give views of other strides, or none.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from refimpl.aot.runtime.graph_call import BoxedCall


def with_traced_strides(
    call: BoxedCall, compiled: Callable[..., Any], graph_module: torch.fx.GraphModule, count: int
) -> BoxedCall:
    """`call` is `compiled` with a list; of its first `count` outputs those that lie otherwise than traced are copied.

    Outputs with symbolic sizes or strides are taken as they are.
    """
    if isinstance(compiled, torch.fx.GraphModule):
        return call
    returned: Any = graph_module.graph.output_node().args[0]
    strides = [(position, stride) for position, node in enumerate(returned[:count]) if (stride := _stride(node))]
    if not strides:
        return call

    def run(args: list[Any]) -> Any:
        outs = call(args)
        changed: list[Any] | None = None
        for position, stride in strides:
            out = outs[position]
            if out.stride() != stride and out.dim() == len(stride) and out.numel():
                changed = list(outs) if changed is None else changed
                changed[position] = torch.empty_strided(out.shape, stride, dtype=out.dtype, device=out.device).copy_(
                    out
                )
        return outs if changed is None else changed

    return run


def _stride(node: Any) -> tuple[int, ...]:
    """Empty where nothing is to be checked."""
    value = node.meta.get("val") if isinstance(node, torch.fx.Node) else None
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided or value.is_nested:
        return ()
    numbers = (*value.shape, *value.stride())
    if any(type(n) is not int for n in numbers) or 0 in value.stride():
        return ()
    return tuple(int(s) for s in value.stride())
