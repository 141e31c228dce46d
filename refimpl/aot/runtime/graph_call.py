"""How compiled graphs are called: what they take (one list, flat bases, tangents as traced) and what is made of what they give.

Counterpart: torch/_functorch/_aot_autograd/utils.py make_boxed_func, call_func_at_runtime_with_args
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from refimpl.aot.analysis.metadata import TangentInfo
from refimpl.errors import UnsupportedByRefimpl
from refimpl.functionalize import AliasGroup

BoxedCall = Callable[[list[Any]], Any]
FlatCall = Callable[[list[Any]], list[Any]]  # from the flat list of arguments to the flat list of results


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


def with_traced_strides(
    call: BoxedCall, compiled: Callable[..., Any], graph_module: torch.fx.GraphModule, count: int
) -> BoxedCall:
    """Callers see eager's strides, whatever layout a backend has chosen: of the first `count` outputs, those with other strides
    than traced are copied.

    call: `compiled` as a function of a list. Outputs with symbolic sizes or strides are taken as they are.
    Counterpart: torch/_functorch/_aot_autograd/runtime_wrappers.py, and Inductor's own promise to keep the strides of outputs
    Differs: checked for every backend that is not the graph itself. Views of an intermediate are made again from a base: of a
    base in another layout they would have other strides, or could not be made.
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


_ASKING_FOR_MODE = frozenset({torch.ops.aten.mkldnn_rnn_layer.default})
_ASKING_OF_TENSORS = torch.ops.aten._sparse_mm_reduce_impl.default
_NEEDING_POSITIONS = ("amax", "amin")


def with_answers(compiled: BoxedCall, graph_module: torch.fx.GraphModule) -> BoxedCall:
    """The forward graph of a training program, with gradients enabled where one of its kernels asks for that, and would otherwise
    leave out what its backward needs; as it is if there is none.

    Raises UnsupportedByRefimpl for a kernel that asks the tensors themselves: inside of a graph they require no gradient.
    Counterpart: none; upstream runs forward graphs without gradients, and fails in the backward of such an op
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
    """Gradients are enabled, but autograd records nothing, as no tensor requires one."""

    def call(args: list[Any]) -> Any:
        detached = [arg.detach() if isinstance(arg, torch.Tensor) else arg for arg in args]
        args.clear()
        with torch.enable_grad():
            return compiled(detached)

    return call


def with_flat_bases(compiled: BoxedCall, replaced: Sequence[AliasGroup]) -> BoxedCall:
    """A function of the slots, where `compiled` takes one flat tensor over a written storage in place of all slots in it.

    It stands where the first of these slots does.
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
    """Make a storage as large as the program has made it; what it holds stays. `storage`: a tensor that begins where it does."""
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
    """A function that makes zeros for a tangent that does not arrive. It does not keep the output alive."""
    shape, dtype, device = output.shape, output.dtype, output.device
    return lambda: torch.zeros(shape, dtype=dtype, device=device)


def _unchanged(tangent: torch.Tensor) -> torch.Tensor:
    return tangent


def _order(stride: tuple[object, ...]) -> list[int]:
    """Dimensions from the outermost in memory to the innermost."""
    hints = [s if type(s) is int else s.node.hint for s in stride]  # type: ignore[attr-defined]
    # Only a run knows what has no hint: taken as the largest, in order.
    return sorted(range(len(hints)), key=lambda d: (hints[d] is not None, -(hints[d] or 0), d))
