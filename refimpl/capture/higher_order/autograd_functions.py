"""`torch.autograd.Function.apply`: interpreted if nothing requires grad, else a node with graphs for forward and backward.

Counterpart: torch/_dynamo/variables/misc.py AutogradFunctionVariable; higher_order_ops.py AutogradFunctionApplyVariable
Differs: the node is a Function made of these graphs, so autograd itself handles views, writes and second derivatives. As in
upstream, backward is captured together with forward and sees Python objects as they are then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from refimpl._torch import transform_depth
from refimpl.capture.breaks import GraphBreak
from refimpl.capture.guards.guard_list import GuardKind
from refimpl.capture.guards.sources import AttributeSource, ItemSource, KeptSource, Source
from refimpl.capture.higher_order.function_graphs import (
    FUNCTION,
    Application,
    context_for,
    function_node,
    needs_gradient,
    parts_of,
    static_function,
)
from refimpl.capture.higher_order.graph_functions import autograd_function_apply
from refimpl.capture.higher_order.subgraphs import one_instruction
from refimpl.capture.higher_order.transformed_functions import TransformedApplication
from refimpl.capture.interpreter.frame import FrameState
from refimpl.capture.rules.rule_table import Rule
from refimpl.capture.values import ConstantValue, ObjectValue, SequenceValue, TensorValue, Value, polyfills
from refimpl.capture.values.classes import in_mro, is_a
from refimpl.capture.values.value import unsupported

if TYPE_CHECKING:
    from refimpl.capture.symbolic_execution.symbolic_domain import SymbolicDomain

_SAYS_MORE = frozenset(["mark_dirty", "set_materialize_grads", "mark_shared_storage"])


def _apply(domain: SymbolicDomain, frame: FrameState, args: list[Any], kwargs: dict[str, Any]) -> Any:
    function = domain.state.realize(args[0])
    class_ = function.object if isinstance(function, ObjectValue) else None
    forward = static_function(class_, "forward")
    has_setup = getattr(class_, "setup_context", None) is not FUNCTION.setup_context
    if forward is None or (kwargs and not has_setup):
        raise GraphBreak("call_of_native_code", what="torch.autograd.Function.apply")
    kept = KeptSource(class_, class_.__qualname__)  # pyright: ignore[reportOptionalMemberAccess]
    way = AttributeSource(kept, "forward")
    given = [domain.state.realize(arg) for arg in args[1:]]
    if has_setup:
        given += _further(domain, class_, len(given), kwargs, way)
    for arg in given:
        if isinstance(arg, ObjectValue) and is_a(arg.object, torch.Tensor):
            unsupported("torch.autograd.Function.apply", arg)  # it may contain tensors that require grad
    if transform_depth():
        with one_instruction(domain):
            return TransformedApplication(domain, class_, kept, given).value()
    if has_setup or needs_gradient(domain, given) or _SAYS_MORE & {*forward.__code__.co_names}:
        with one_instruction(domain):
            return Application(domain, class_, kept, given).value()
    polyfill = polyfills.applied_under if torch.is_grad_enabled() else polyfills.applied
    manager = [ObjectValue(torch.no_grad)] if torch.is_grad_enabled() else []
    outputs = ObjectValue(polyfills.outputs_of)
    context = context_for(given)
    function = domain.load_attr(ObjectValue(class_, kept), "forward")
    return domain.enter_polyfill(polyfill, [*manager, function, context, SequenceValue(tuple, given), outputs])


def _further(domain: SymbolicDomain, class_: Any, count: int, kwargs: dict[str, Any], way: Source) -> list[Value]:
    """The arguments after the first ones: those given by name, and default values. `setup_context` receives them too."""
    forward = static_function(class_, "forward")
    assert forward is not None
    names, defaults = forward.__code__.co_varnames[: forward.__code__.co_argcount], forward.__defaults__ or ()
    names = names[1:] if isinstance(in_mro(class_, "forward"), classmethod) else names
    first = len(names) - len(defaults)
    if not kwargs.keys() <= {*names[count:]} or not {*names[count:first]} <= kwargs.keys():
        raise GraphBreak("call_of_native_code", what="torch.autograd.Function.apply")
    where = AttributeSource(way, "__defaults__")
    return [
        domain.state.realize(kwargs[names[i]])
        if names[i] in kwargs
        else domain.state.wrap(defaults[i - first], ItemSource(where, i - first))
        for i in range(count, len(names))
    ]


def _outputs_of(domain: SymbolicDomain, frame: FrameState, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """The outputs of `forward`. A returned argument becomes another tensor, unless it is marked dirty."""
    result, given = domain.state.realize(args[0]), [domain.state.realize(arg) for arg in domain.elements(args[1])]
    written = domain.state.realize(args[2]).attributes.get("dirty_tensors")
    dirty = [] if written is None else [domain.state.realize(item) for item in written.items]
    parts = parts_of(domain, result)
    for index, part in enumerate(parts):
        is_given = isinstance(part, TensorValue) and any(part is arg for arg in given)
        if is_given and not any(part is arg for arg in dirty):
            parts[index] = domain.state.operator("view_as", [part, part], {}, kind="call_method")
    return SequenceValue(tuple, parts) if isinstance(result, SequenceValue) and result.class_ is tuple else parts[0]


def _apply_again(domain: SymbolicDomain, frame: FrameState, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """Captures such a node of an already captured graph, with its graphs unchanged."""
    state = domain.state
    if len(args) != 4:
        raise GraphBreak("call_of_native_code", what="autograd_function_apply")
    settings = {name: domain.constant_of(value, "autograd_function_apply") for name, value in kwargs.items()}
    graphs = []
    for value in map(state.realize, [args[0], *domain.elements(args[1])]):
        if not isinstance(value, ObjectValue) or not is_a(value.object, fx.GraphModule):
            unsupported("autograd_function_apply", value)
        if value.source is not None:
            state.guard(GuardKind.ID, value.source, value.object)
        graphs.append(value.object)
    operands = [[state.argument_of(item) for item in domain.elements(values)] for values in args[2:]]
    if not all(isinstance(node, fx.Node) for nodes in operands for node in nodes):
        raise GraphBreak("not_a_graph_argument", what="constant")
    operands = [[state.graph.local(node) for node in nodes] for nodes in operands]
    with one_instruction(domain):
        return SequenceValue(tuple, function_node(state, graphs[0], graphs[1:], operands, settings))


def _is_grad_enabled(domain: SymbolicDomain, frame: FrameState, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """Within a backward, grad mode depends on `create_graph` of the caller, so the graph breaks."""
    if domain.state.backward_of:
        raise GraphBreak("unsupported_operation", what="torch.is_grad_enabled()", kind="backward")
    return ConstantValue(torch.is_grad_enabled())


AUTOGRAD_RULES: dict[int, Rule] = {
    id(FUNCTION.apply.__func__): _apply,
    id(autograd_function_apply): _apply_again,
    id(polyfills.outputs_of): _outputs_of,
    id(torch.is_grad_enabled): _is_grad_enabled,
}
