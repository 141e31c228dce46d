"""Functionalize random numbers: the graphs take the states of generators as inputs, and return the new states.

Counterpart: torch/_functorch/_aot_autograd/graph_capture_wrappers.py create_functionalized_rng_ops_wrapper
Differs: this is a pass over the functional graph. The state is an opaque tensor instead of seed and offset, so CPU generators
have one too (see refimpl.aot.random_ops). As upstream, forward and backward have placeholders of their own. Random ops of the
backward take the state at the time it runs. Forward ops that it recomputes take the forward's state, and draw the same numbers.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from refimpl._torch import FakeTensorMode, HigherOrderOperator, OpOverload
from refimpl.aot.joint.backward import backward_nodes
from refimpl.aot.random_ops import default_generator, device_of, functional_random_op
from refimpl.aot.runtime.graph_call import BoxedCall
from refimpl.errors import UnsupportedByRefimpl
from refimpl.functionalize.schemas import facts_of


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomStates:
    """Devices whose generator states the forward and the backward take, as their last inputs, and return.

    `position` is the index of the first state among the forward's outputs. The backward's states are its last outputs.
    """

    forward: tuple[torch.device, ...] = ()
    backward: tuple[torch.device, ...] = ()
    position: int = 0
    examples: tuple[torch.Tensor, ...] = ()  # fake states for the backward's placeholders


def functionalize_random(
    graph_module: torch.fx.GraphModule, fake_mode: FakeTensorMode, num_forward_outputs: int
) -> RandomStates:
    """Replace the random ops of a functional graph, in place. New placeholders are named fwd_seed_cpu, bwd_seed_cpu and so on."""
    graph = graph_module.graph
    found = [
        (node, replacement) for node in graph.nodes if (replacement := _replacement(graph_module, node)) is not None
    ]
    if not found:
        return RandomStates()
    is_backward = backward_nodes(graph)
    chains = {
        is_late: _Chain(graph, fake_mode, "bwd_seed" if is_late else "fwd_seed", is_late=is_late)
        for is_late in (False, True)
    }
    for node, replacement in found:
        chains[node in is_backward].append(node, replacement)
    forward, backward = chains[False], chains[True]
    output = next(node for node in reversed(graph.nodes) if node.op == "output")
    outputs = list(output.args[0])
    outputs[num_forward_outputs:num_forward_outputs] = forward.states.values()
    output.args = ([*outputs, *backward.states.values()],)
    graph.lint()
    graph_module.recompile()
    return RandomStates(
        forward=tuple(forward.states),
        backward=tuple(backward.states),
        position=num_forward_outputs,
        examples=tuple(backward.examples),
    )


def _replacement(graph_module: torch.fx.GraphModule, node: torch.fx.Node) -> OpOverload | None:
    if node.op != "call_function":
        return None
    if isinstance(node.target, HigherOrderOperator):
        _refuse_random_functions(graph_module, node)
        return None
    if not isinstance(node.target, OpOverload) or not facts_of(node.target).is_random:
        return None
    generator = _given_generator(node)
    if generator is not None and generator.op != "get_attr":
        return None
    if generator is not None and getattr(graph_module, str(generator.target)) is not torch.default_generator:
        return None  # the program's own generator: the op stays as it is, and is never recomputed
    return functional_random_op(node.target)


def _given_generator(node: torch.fx.Node) -> torch.fx.Node | None:
    assert isinstance(node.target, OpOverload)
    names = [a.name for a in node.target._schema.arguments]
    given = dict(zip(names, node.args, strict=False)) | node.kwargs
    generator = given.get("generator")
    return generator if isinstance(generator, torch.fx.Node) else None


def _refuse_random_functions(graph_module: torch.fx.GraphModule, node: torch.fx.Node) -> None:
    for argument in node.all_input_nodes:
        inner = getattr(graph_module, str(argument.target), None) if argument.op == "get_attr" else None
        if not isinstance(inner, torch.fx.GraphModule):
            continue
        for call in inner.graph.nodes:
            if call.op == "call_function" and isinstance(call.target, OpOverload) and facts_of(call.target).is_random:
                raise UnsupportedByRefimpl(
                    seen=f"{call.target} in a function of {node.target}, with functional random numbers",
                    supported="random ops outside of the functions of higher-order operators",
                    do="leave functionalize_rng_ops off",
                )


class _Chain:
    """Passes the states of the forward, or of the backward, from one random op to the next. Mutable."""

    def __init__(self, graph: torch.fx.Graph, fake_mode: FakeTensorMode, name: str, *, is_late: bool) -> None:
        self._graph = graph
        self._fake_mode = fake_mode
        self._name = name
        self._is_late = is_late  # its placeholders come after the tangents
        self.states: dict[torch.device, torch.fx.Node] = {}
        self.examples: list[torch.Tensor] = []

    def append(self, node: torch.fx.Node, target: OpOverload) -> None:
        """Replace the node by a call of `target`, which takes the latest state of the device."""
        assert isinstance(node.target, OpOverload)
        device = _device(node)
        state = self.states[device] if device in self.states else self._placeholder(device)
        arguments, keywords = _without_generator(node)
        graph = self._graph
        with graph.inserting_before(node):
            call = graph.call_function(target, (state, *arguments), keywords)
            new_state = graph.call_function(operator.getitem, (call, 0))
            results = [graph.call_function(operator.getitem, (call, i + 1)) for i in range(_num_results(node))]
        values = _values(node)
        call.meta = {**node.meta, "val": (state.meta["val"], *values)}
        new_state.meta = {**node.meta, "val": state.meta["val"]}
        for result, value in zip(results, values, strict=True):
            result.meta = {**node.meta, "val": value}
        if len(node.target._schema.returns) == 1:
            node.replace_all_uses_with(results[0])
        else:
            for element in list(node.users):
                element.replace_all_uses_with(results[element.args[1]])  # type: ignore[index]
                graph.erase_node(element)
        graph.erase_node(node)
        self.states[device] = new_state

    def _placeholder(self, device: torch.device) -> torch.fx.Node:
        with self._fake_mode:
            value = torch.empty(default_generator(device).get_state().shape, dtype=torch.uint8)
        graph = self._graph
        placeholders = [n for n in graph.nodes if n.op == "placeholder"]
        before = [n for n in placeholders if self._is_late or not _is_of_backward(n)]
        suffix = device.type if device.index is None else f"{device.type}{device.index}"
        with graph.inserting_after(before[-1]) if before else graph.inserting_before(next(iter(graph.nodes))):
            node = graph.placeholder(f"{self._name}_{suffix}")
        node.meta["val"] = value
        self.examples.append(value)
        return node


def _is_of_backward(node: torch.fx.Node) -> bool:
    return "tangents" in str(node.target) or "bwd_seed" in str(node.target)


def _device(node: torch.fx.Node) -> torch.device:
    values = [v for v in _values(node) if isinstance(v, torch.Tensor)]
    return values[0].device if values else device_of(node.args, dict(node.kwargs))


def _values(node: torch.fx.Node) -> list[Any]:
    value = node.meta["val"]
    return list(value) if isinstance(value, (tuple, list)) else [value]


def _num_results(node: torch.fx.Node) -> int:
    assert isinstance(node.target, OpOverload)
    return len(node.target._schema.returns)


def _without_generator(node: torch.fx.Node) -> tuple[tuple[Any, ...], dict[str, Any]]:
    assert isinstance(node.target, OpOverload)
    names = [a.name for a in node.target._schema.arguments]
    arguments = tuple(value for name, value in zip(names, node.args, strict=False) if name != "generator")
    return arguments, {name: value for name, value in node.kwargs.items() if name != "generator"}


# ----------------------------------------------------------------------------------------------------------- at run time


def with_forward_states(compiled: BoxedCall, states: RandomStates) -> BoxedCall:
    """Wrap the forward: it takes the states of the devices' generators, and sets them to the states that the graph returns."""
    if not states.forward:
        return compiled
    return _with_states(compiled, states.forward, states.position)


def with_backward_states(get_backward: Callable[[], BoxedCall], states: RandomStates) -> Callable[[], BoxedCall]:
    """The same for the backward graph."""
    if not states.backward:
        return get_backward
    return lambda: _with_states(get_backward(), states.backward, -len(states.backward))


def _with_states(compiled: BoxedCall, devices: Sequence[torch.device], position: int) -> BoxedCall:
    generators = [default_generator(device) for device in devices]

    def call(inputs: list[Any]) -> list[Any]:
        found = list(compiled([*inputs, *[generator.get_state() for generator in generators]]))
        first = position if position >= 0 else len(found) + position
        for generator, state in zip(generators, found[first : first + len(generators)], strict=True):
            generator.set_state(state)
        del found[first : first + len(generators)]
        return found

    return call
