"""Calls of higher-order operators that run one function once (`wrap`, `hints_wrapper`, `strict_mode` ...), or none (`print`,
`out_dtype`): a node of the operator, with the function's graph.

Counterpart: torch/_dynamo/variables/higher_order_ops.py WrapHigherOrderVariable, HintsWrapperHigherOrderVariable,
StrictModeHigherOrderVariable, BaseHOPVariable, DynamoBypassingWrapperHigherOrderVariable, PrintHigherOrderVariable,
OutDtypeHigherOrderVariable
Differs: only what the function computes is an output of its graph. Constants among its results, and containers, stay values of
capture.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from refimpl._torch import BaseHOP, HigherOrderOperator, OpOverload, below_autograd
from refimpl.capture.breaks import GraphBreak
from refimpl.capture.guards.guard_list import GuardKind
from refimpl.capture.higher_order.bodies import results
from refimpl.capture.higher_order.subgraphs import SubGraph, come_out, one_instruction, run_body
from refimpl.capture.interpreter.frame import FrameState
from refimpl.capture.values import (
    ConstantValue,
    DictValue,
    LocalFunctionValue,
    NumberValue,
    ObjectValue,
    SequenceValue,
    TensorValue,
    Value,
    polyfills,
)
from refimpl.capture.values.value import unsupported
from refimpl.trace.higher_order.attention import IndexedByTensors, elements, score_of

if TYPE_CHECKING:
    from refimpl.capture.symbolic_execution.symbolic_domain import SymbolicDomain

OperatorRule = Callable[["SymbolicDomain", HigherOrderOperator, list[Any], dict[str, Any]], Any]
_Arguments = Callable[[fx.Node, Sequence[fx.Node]], tuple[tuple[Any, ...], dict[str, Any]]]
_BYPASSED = "_dynamo_bypassing_wrapper_fn"  # where the body's `meta` keeps the wrapper, as upstream names it
_HINTS = (bool, int, float, str)


def call_operator(
    domain: SymbolicDomain, frame: FrameState, function: ObjectValue, args: list[Any], kwargs: dict[str, Any]
) -> Any:
    """A call of a higher-order operator without a rule of its own."""
    operator: Any = function.object
    if function.source is not None:
        domain.state.guard(GuardKind.ID, function.source, operator)
    rule = _RULES.get(operator.name(), _base_operator if isinstance(operator, BaseHOP) else _without_function)
    return rule(domain, operator, args, kwargs)


def recorded(
    domain: SymbolicDomain,
    operator: Any,
    stem: str,
    call: tuple[Any, Sequence[Any], dict[str, Any]],
    arguments: _Arguments | None = None,
    *,
    around: contextlib.AbstractContextManager[Any] | None = None,
    meta: dict[str, Any] | None = None,
) -> Value:
    """The result of a function, whose graph becomes an argument of the operator's node.

    stem: the name of the graph. call: the function with its arguments. arguments: those of the node, made of the graph's node
    and the nodes that the graph reads; default: all of them in order. around: torch's state while the function runs. meta: of
    the graph.
    """
    function, given, named = call
    outer = domain.state.graph
    with one_instruction(domain), around or contextlib.nullcontext():
        graph = SubGraph(outer)
        values = [function, SequenceValue(tuple, [*given]), domain.named(named)]
        result = run_body(domain, graph, polyfills.called_named, values, what=operator.name())
        made = come_out(graph, result)
        body = graph.module([leaf.node for leaf in made])
        body.meta.update(meta or {})
        graph.hand_on()
        fakes = tuple(leaf.fake if isinstance(leaf, TensorValue) else leaf.number for leaf in made)
        node_args, node_kwargs = (arguments or _in_order)(outer.attach(stem, body), graph.lifted)
        node = outer.call("call_function", operator, node_args, node_kwargs, fakes)
        for index, (leaf, fake) in enumerate(zip(made, fakes, strict=True)):
            leaf.node = outer.part(node, index, fake)
    return result


def _in_order(body: fx.Node, operands: Sequence[fx.Node]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return (body, *operands), {}


# --------------------------------------------------------------------------------------------------------------- wrappers


def _wrap(domain: SymbolicDomain, operator: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """`wrap(function, *args, **kwargs)`."""
    function, *given = _at_least(1, operator, args)
    return recorded(domain, operator, "wrap_body", (function, given, kwargs))


def _wrap_with_set_grad_enabled(domain: SymbolicDomain, operator: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """`wrap_with_set_grad_enabled(is_enabled, function, *args, **kwargs)`."""
    flag, function, *given = _at_least(2, operator, args)
    is_enabled = domain.constant_of(flag, operator.name())
    return recorded(
        domain, operator, "wrap_body", (function, given, kwargs),
        lambda body, operands: ((is_enabled, body, *operands), {}), around=torch.set_grad_enabled(is_enabled),
    )  # fmt: skip


def _wrap_with_autocast(domain: SymbolicDomain, operator: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """`wrap_with_autocast(device_type, dtype, is_enabled, cache_enabled, function, *args, **kwargs)`."""
    *settings, function = _at_least(5, operator, args)[:5]
    known = tuple(domain.constant_of(setting, operator.name()) for setting in settings)
    return recorded(
        domain, operator, "wrap_body", (function, args[5:], kwargs),
        lambda body, operands: ((*known, body, *operands), {}), around=torch.autocast(*known),
    )  # fmt: skip


def _bypassing(domain: SymbolicDomain, operator: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """`dynamo_bypassing_wrapper(wrapper, function, *args, **kwargs)`: only the function is captured. The wrapper is taken to
    return what the function returns.
    """
    wrapper, function, *given = _at_least(2, operator, args)
    known = domain.state.realize(wrapper)
    if not isinstance(known, (ObjectValue, LocalFunctionValue)):
        raise GraphBreak("not_a_graph_argument", what=known.kind)
    if known.source is not None:
        domain.state.guard(GuardKind.ID, known.source, known.object)
    return recorded(
        domain, operator, "wrap_body", (function, given, kwargs),
        lambda body, operands: ((_BYPASSED, body, *operands), {}), meta={_BYPASSED: known.object},
    )  # fmt: skip


def _hints_wrapper(domain: SymbolicDomain, operator: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """`hints_wrapper(function, args, kwargs, hints)`: torch takes tensors and numbers, no keyword arguments, and plain hints."""
    named = {**dict(zip(("body_fn", "args", "kwargs", "hints"), args, strict=False)), **kwargs}
    if named.keys() != {"body_fn", "args", "kwargs", "hints"}:
        raise GraphBreak("op_raises_on_fake", what=operator.name(), error="TypeError")
    given = [domain.state.realize(item) for item in domain.elements(named["args"])]
    rest, hints = domain.state.realize(named["kwargs"]), _constants(domain, named["hints"], operator)
    is_plain = all(isinstance(item, (TensorValue, NumberValue)) or _is_plain_number(item) for item in given)
    is_empty = isinstance(rest, DictValue) and not rest.items
    if not is_plain or not is_empty or not all(type(hint) in _HINTS for hint in hints.values()):
        raise GraphBreak("op_raises_on_fake", what=operator.name(), error="RuntimeError")
    return recorded(
        domain, operator, "hints_wrapper_body", (named["body_fn"], given, {}),
        lambda body, operands: ((body, tuple(operands), {}), {"hints": hints}),
    )  # fmt: skip


def _is_plain_number(value: Value) -> bool:
    return isinstance(value, ConstantValue) and type(value.value) in (bool, int, float)


def _constants(domain: SymbolicDomain, value: Any, operator: Any) -> dict[Any, Any]:
    known = domain.state.realize(value)
    if not isinstance(known, DictValue):
        raise GraphBreak("op_raises_on_fake", what=operator.name(), error="RuntimeError")
    pairs = known.items.values()
    return {domain.constant_of(key, operator.name()): domain.constant_of(item, operator.name()) for key, item in pairs}


def _operands_second(stem: str) -> OperatorRule:
    """The rule of `operator(function, operands)`."""

    def rule(domain: SymbolicDomain, operator: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        if len(args) != 2 or kwargs:
            raise GraphBreak("op_raises_on_fake", what=operator.name(), error="TypeError")
        return recorded(
            domain, operator, stem, (args[0], domain.elements(args[1]), {}),
            lambda body, operands: ((body, tuple(operands)), {}),
        )  # fmt: skip

    return rule


def _base_operator(domain: SymbolicDomain, operator: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """`operator(function, *operands, **settings)` of torch's BaseHOP: the operator keeps the settings."""
    function, *given = _at_least(1, operator, args)
    outer = domain.state.graph
    settings = {name: _setting(domain, outer, value, operator) for name, value in kwargs.items()}
    return recorded(
        domain, operator, "subgraph", (function, given, {}), lambda body, operands: ((body, *operands), settings)
    )


def _setting(domain: SymbolicDomain, graph: Any, value: Any, operator: Any) -> Any:
    known = domain.state.realize(value)
    if isinstance(known, ObjectValue) and not known.is_class:
        if known.source is not None:
            domain.state.guard(GuardKind.ID, known.source, known.object)
        return graph.attach_object(type(known.object).__name__, known.object)
    return domain.constant_of(known, operator.name())


def _flex_attention(domain: SymbolicDomain, operator: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """`flex_attention(query, key, value, score_mod, block_mask, scale, kernel_options)`: the functions of scores and masks run on
    single elements. What they close over are buffers of the node.
    """
    if kwargs or (len(_at_least(7, operator, args)) > 7 and any(domain.elements(arg) for arg in args[7:])):
        raise GraphBreak("op_raises_on_fake", what=operator.name(), error="TypeError")
    state, outer = domain.state, domain.state.graph
    score_mod, mask = args[3], domain.elements(args[4])
    with one_instruction(domain):
        query = state.realize(args[0]).as_fake(state, operator.name())
        with state.fake_mode:
            examples = score_of(query), *elements(query, count=4)
        bodies, buffers = [], []
        for stem, function, given in (("score_mod", score_mod, examples), ("mask_fn", mask[-1], examples[1:])):
            graph = SubGraph(outer)
            values = SequenceValue(tuple, [_element(domain, graph, fake) for fake in given])
            with IndexedByTensors():
                result = run_body(domain, graph, polyfills.called, [function, values], what=operator.name())
            if not isinstance(result, TensorValue):
                unsupported(f"a result of a function given to {operator.name()}", result)
            body = graph.module(graph.local(result.node))
            graph.hand_on()
            bodies.append((outer.attach(stem, body), body))
            buffers.append(tuple(graph.lifted))
        options = _constants(domain, args[6], operator)
        fakes = [state.fake_of(arg, operator.name()) for arg in (*args[:3], *mask[:-1], args[5])]
        with state.fake_mode, below_autograd():
            made = operator(
                *fakes[:3], bodies[0][1], (*fakes[3:-1], bodies[1][1]), fakes[-1], options,
                *(tuple(node.meta["example_value"] for node in nodes) for nodes in buffers),
            )  # fmt: skip
        nodes = [_local(outer, state.argument_of(arg)) for arg in (*args[:3], *mask[:-1], args[5])]
        given = (*nodes[:3], bodies[0][0], (*nodes[3:-1], bodies[1][0]), nodes[-1], options, *buffers)
        found = results(domain, made, [*nodes, *buffers[0]])
        node = outer.call("call_function", operator, given, {}, tuple(found))
        return SequenceValue(tuple, [state.part_of(node, index, part) for index, part in enumerate(found)])


def _element(domain: SymbolicDomain, graph: SubGraph, fake: torch.Tensor) -> TensorValue:
    value = TensorValue(graph.argument("child", fake), fake)
    domain.state.by_fake[id(fake)] = value
    return value


def _local(graph: Any, argument: Any) -> Any:
    return graph.local(argument) if isinstance(argument, fx.Node) else argument


def _at_least(count: int, operator: Any, args: list[Any]) -> list[Any]:
    if len(args) < count:
        raise GraphBreak("op_raises_on_fake", what=operator.name(), error="TypeError")
    return args


# ------------------------------------------------------------------------------------------- operators without a function


def _without_function(domain: SymbolicDomain, operator: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """A call on tensors, numbers, constants and operators, which becomes a node as it is."""
    domain.state.graph.has_effects = True  # an operator does not say whether it has
    as_given = [_with_operator(domain, arg) for arg in args]
    return domain.state.operator(operator, as_given, kwargs)


def _with_operator(domain: SymbolicDomain, arg: Any) -> Any:
    """An operator among the arguments (`aten.mm.default`) as a constant, others unchanged."""
    known = domain.state.realize(arg)
    if isinstance(known, ObjectValue) and isinstance(known.object, (OpOverload, HigherOrderOperator)):
        if known.source is not None:
            domain.state.guard(GuardKind.ID, known.source, known.object)
        return ConstantValue(known.object)
    return arg


_RULES: dict[str, OperatorRule] = {
    "wrap": _wrap,
    "wrap_with_set_grad_enabled": _wrap_with_set_grad_enabled,
    "wrap_with_autocast": _wrap_with_autocast,
    "dynamo_bypassing_wrapper": _bypassing,
    "flex_attention": _flex_attention,
    "hints_wrapper": _hints_wrapper,
    "strict_mode": _operands_second("strict_mode_body"),
    "run_const_graph": _operands_second("const_graph"),
}
