"""Calling conventions of compiled graphs: boxed arguments, flat bases, tangents and outputs with the strides of the trace.

Counterpart: torch/_functorch/_aot_autograd/utils.py make_boxed_func, call_func_at_runtime_with_args
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from refimpl._torch import LazyGraphModule
from refimpl.aot.analysis.metadata import TangentInfo
from refimpl.errors import UnsupportedByRefimpl
from refimpl.functionalize import AliasGroup

BoxedCall = Callable[[list[Any]], Any]
FlatCall = Callable[[list[Any]], list[Any]]  # from the flat list of arguments to the flat list of results


def boxed(compiled: Callable[..., Any]) -> BoxedCall:
    """A function of one list, which it may empty so that inputs can be freed while it runs."""
    if getattr(compiled, "_boxed_call", False):
        return compiled
    if isinstance(compiled, torch.fx.GraphModule) and _calls_forward(type(compiled)):
        module, has_code = compiled, False

        def call_module(args: list[Any]) -> Any:
            nonlocal has_code
            if module._forward_hooks or module._forward_pre_hooks:
                return module(*args)
            if not has_code:  # the `forward` of a module without code calls the module, with the hooks of all modules
                LazyGraphModule.force_recompile(module)
                has_code = True
            return module.forward(*args)

        return call_module

    def call(args: list[Any]) -> Any:
        return compiled(*args)

    return call


def _calls_forward(class_: type[torch.fx.GraphModule]) -> bool:
    """Whether calling a graph module runs its `forward` and hooks, and no `__call__` that a subclass defines.

    `recompile` replaces the `__call__` of the class by one that adds a line of the graph's code to errors.
    """
    wrapped: Any = vars(class_).get("_wrapped_call")
    if wrapped is not None and class_.__call__.__module__ == torch.fx.GraphModule.__module__:
        return getattr(wrapped, "cls_call", wrapped) is None
    return class_.__call__ is torch.fx.GraphModule.__call__


def with_traced_strides(
    call: BoxedCall, compiled: Callable[..., Any], graph_module: torch.fx.GraphModule, positions: range
) -> BoxedCall:
    """A function that copies those of the graph's outputs at `positions` whose strides differ from the trace.

    call: `compiled` as a function of a list, whose outputs begin with the first of `positions`. Outputs with symbolic sizes or
    strides are not checked.
    Counterpart: torch/_functorch/_aot_autograd/runtime_wrappers.py, and Inductor, which keeps the strides of outputs
    Differs: checked for every backend. Views are remade from outputs: with other strides in the base, they would differ,
    or could not be made.
    """
    if isinstance(compiled, torch.fx.GraphModule):
        return call
    returned: Any = graph_module.graph.output_node().args[0]
    checked = returned[positions.start : positions.stop]
    strides = [(position, stride) for position, node in enumerate(checked) if (stride := _stride(node))]
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
    """The traced strides of an output; empty if they are not checked."""
    value = node.meta.get("val") if isinstance(node, torch.fx.Node) else None
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided or value.is_nested:
        return ()
    numbers = (*value.shape, *value.stride())
    if any(type(n) is not int for n in numbers) or 0 in value.stride():
        return ()
    return tuple(int(s) for s in value.stride())


_ASKING_FOR_MODE = frozenset({torch.ops.aten.mkldnn_rnn_layer.default})
_ASKING_OF_TENSORS = torch.ops.aten._sparse_mm_reduce_impl.default
_NEEDING_POSITIONS = ("amax", "amin")


def with_answers(compiled: BoxedCall, graph_module: torch.fx.GraphModule) -> BoxedCall:
    """The forward of a training graph, in grad mode if one of its kernels computes what its backward needs in grad mode only.

    Raises UnsupportedByRefimpl for a kernel that reads `requires_grad` of its inputs, which is False inside a graph.
    Counterpart: none; upstream runs forward graphs in no_grad mode, and fails in the backward of such an op
    """
    for node in graph_module.graph.nodes:
        if node.target is _ASKING_OF_TENSORS and node.args[2] in _NEEDING_POSITIONS:
            raise UnsupportedByRefimpl(
                seen=f"the gradient of a sparse product reduced by {node.args[2]}",
                supported="sums and means: for others the kernel saves no positions unless its inputs require a gradient",
                do="compute it outside of the compiled function",
            )
    if any(node.target in _ASKING_FOR_MODE for node in graph_module.graph.nodes):
        return _with_gradients_enabled(compiled)
    return compiled


def _with_gradients_enabled(compiled: BoxedCall) -> BoxedCall:
    """The call in grad mode. Autograd records nothing, because no input requires a gradient."""

    def call(args: list[Any]) -> Any:
        detached = [arg.detach() if isinstance(arg, torch.Tensor) else arg for arg in args]
        args.clear()
        with torch.enable_grad():
            return compiled(detached)

    return call


def with_flat_bases(compiled: BoxedCall, replaced: Sequence[AliasGroup]) -> BoxedCall:
    """A function of the slots. `compiled` takes one flat tensor over each written storage in place of all slots in that storage,
    at the position of the first of them.

    Counterpart: torch/_functorch/_aot_autograd/runtime_wrappers.py AOTSyntheticBaseWrapper
    Differs: only below autograd, so that slots keep their own gradients.
    """
    if not replaced:
        return compiled
    first = {group.members[0]: group for group in replaced}
    dropped = {member for group in replaced for member in group.members[1:]}

    def call(slots: list[Any]) -> Any:
        inputs = [first[i].base(slots) if i in first else slot for i, slot in enumerate(slots) if i not in dropped]
        return compiled(inputs)

    return call


def enlarge_storage(storage: torch.Tensor, group: AliasGroup) -> None:
    """Resize a storage to the size that the program gave it. `storage`: a tensor with offset 0."""
    if not group.enlarges:
        return
    with torch.no_grad():
        if storage.untyped_storage().nbytes() < (group.offset + group.numel) * storage.element_size():
            storage.resize_(group.offset + group.numel)


def coerce_tangent(info: TangentInfo) -> Callable[[torch.Tensor], torch.Tensor]:
    """A function that returns a tangent with the strides that the backward graph was traced with: itself, or a copy.

    Counterpart: torch/_functorch/_aot_autograd/runtime_wrappers.py AOTDispatchAutograd.process_runtime_tangent
    """
    geometry = info.geometry
    if geometry is None:
        return _unchanged
    order = _order(geometry.stride)
    expected = geometry.stride if all(type(n) is int for n in (*geometry.size, *geometry.stride)) else None
    size = geometry.size
    back = [order.index(d) for d in range(len(order))]
    is_contiguous = order == list(range(len(order)))

    def coerce(tangent: torch.Tensor) -> torch.Tensor:
        if expected is not None and (tangent.stride() == expected or tuple(tangent.shape) != size):
            return tangent
        if is_contiguous:
            return tangent.contiguous()
        return tangent.permute(order).contiguous().permute(back)

    return coerce


def zeros_like_later(output: torch.Tensor) -> Callable[[], torch.Tensor]:
    """A function that makes zeros for a missing tangent, without keeping the output alive."""
    shape, dtype, device = output.shape, output.dtype, output.device
    return lambda: torch.zeros(shape, dtype=dtype, device=device)


def _unchanged(tangent: torch.Tensor) -> torch.Tensor:
    return tangent


def _order(stride: tuple[object, ...]) -> list[int]:
    """Dimensions from the outermost in memory to the innermost."""
    hints = [s if type(s) is int else s.node.hint for s in stride]  # type: ignore[attr-defined]
    # Strides without a hint count as the largest.
    return sorted(range(len(hints)), key=lambda d: (hints[d] is not None, -(hints[d] or 0), d))
