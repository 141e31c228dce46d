"""Effect tokens: values by which ops with side effects depend on each other, to keep the order of the program.

Counterpart: torch/_higher_order_ops/effects.py handle_effects, torch/_functorch/_aot_autograd/utils.py unlift_tokens
Differs: a pass over the functional graph before it is partitioned, so that the order is that of the trace. The backward has
tokens of its own, even if the forward has none.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from refimpl._torch import FakeTensorMode, OpOverload, registered_effect, with_effects
from refimpl.aot.joint.backward import backward_nodes, is_backward_seed, is_tangent
from refimpl.aot.runtime.graph_call import BoxedCall

TOKEN = "tokens_"
BACKWARD_TOKEN = "tangents_token"  # as upstream names it; partitioners take it for an incoming gradient
_MAKE = torch.ops.prims._make_token.default
_REGION: Any = torch.ops.higher_order.invoke_subgraph
_SINK = torch.ops.prims._sink_tokens.default


@dataclass(frozen=True, slots=True, kw_only=True)
class EffectTokens:
    """Example inputs for the tokens of a joint graph, one for each kind of effect.

    The forward's tokens are the first inputs and outputs of the graph, the backward's the last.
    """

    forward: tuple[torch.Tensor, ...] = ()
    backward: tuple[torch.Tensor, ...] = ()


def thread_tokens(graph_module: torch.fx.GraphModule, fake_mode: FakeTensorMode) -> EffectTokens:
    """Change every op with a registered effect into `with_effects(token, op, ...)`, in place.

    A region with such ops takes and returns their tokens before its own operands and results.
    """
    graph = graph_module.graph
    if not _kinds_in(graph_module):
        return EffectTokens()
    is_backward = backward_nodes(graph)
    forward, backward = _Chains(graph, fake_mode, TOKEN), _Chains(graph, fake_mode, BACKWARD_TOKEN)
    threaded: dict[int, tuple[Any, ...]] = {}
    _thread(graph_module, lambda node: backward if node in is_backward else forward, threaded)
    output = next(node for node in reversed(graph.nodes) if node.op == "output")
    output.args = ([*forward.tokens.values(), *output.args[0], *backward.tokens.values()],)
    graph.lint()
    graph_module.recompile()
    return EffectTokens(forward=tuple(forward.examples), backward=tuple(backward.examples))


def _thread(
    module: torch.fx.GraphModule, chain_of: Callable[[torch.fx.Node], _Chains], threaded: dict[int, tuple[Any, ...]]
) -> None:
    for node in list(module.graph.nodes):
        effect = effect_of(node)
        if effect is not None:
            chain_of(node).append(node, effect)
        elif (body := _region_of(module, node)) is not None:
            kinds = _thread_region(body, chain_of(node), threaded)
            if kinds:
                chain_of(node).append_region(node, kinds)


def _thread_region(
    body: torch.fx.GraphModule, around: _Chains, threaded: dict[int, tuple[Any, ...]]
) -> tuple[Any, ...]:
    """Give a region's graph, which several calls may share, tokens as its first inputs and outputs. Returns their kinds."""
    known = threaded.get(id(body))
    if known is not None:
        return known
    if _kinds_in(body):
        chains = _Chains(body.graph, around.fake_mode, TOKEN)
        _thread(body, lambda _: chains, threaded)
        output = body.graph.output_node()
        returned: Any = output.args[0]
        output.args = (type(returned)([*chains.tokens.values(), *returned]),)
        body.recompile()
        known = tuple(chains.tokens)
    threaded[id(body)] = known = known or ()
    return known


def _kinds_in(module: torch.fx.GraphModule) -> set[Any]:
    """The kinds of effects of the graph's ops and of regions that it calls."""
    found = {effect for node in module.graph.nodes if (effect := effect_of(node)) is not None}
    for node in module.graph.nodes:
        body = _region_of(module, node)
        found |= set() if body is None else _kinds_in(body)
    return found


def _region_of(module: torch.fx.GraphModule, node: torch.fx.Node) -> torch.fx.GraphModule | None:
    """The graph that a call of `invoke_subgraph` runs; None for another node."""
    if node.target is not _REGION:
        return None
    attribute: Any = node.args[0]
    body = getattr(module, attribute.target, None)
    return body if isinstance(body, torch.fx.GraphModule) else None


def unlift_tokens(
    graph_module: torch.fx.GraphModule,
    *,
    first_inputs: int | None = None,
    first_outputs: int = 0,
    last_outputs: int = 0,
) -> None:
    """Remove tokens from a graph's inputs and outputs, in place: the graph creates them, and ends them with `_sink_tokens`.

    first_inputs: how many of its first inputs are tokens; by default those with names of tokens are. first_outputs,
    last_outputs: how many of its first and last outputs are.
    """
    graph = graph_module.graph
    placeholders = [n for n in graph.nodes if n.op == "placeholder"]
    given = placeholders[:first_inputs]
    if first_inputs is None:
        given = [n for n in placeholders if str(n.target).startswith((TOKEN, BACKWARD_TOKEN))]
    after = next(n for n in graph.nodes if n.op != "placeholder")
    for node in given:
        with graph.inserting_before(after):
            made = graph.call_function(_MAKE, ())
        made.meta = dict(node.meta)
        node.replace_all_uses_with(made)
        graph.erase_node(node)
    output = next(node for node in reversed(graph.nodes) if node.op == "output")
    outputs = list(output.args[0])
    last = len(outputs) - last_outputs
    tokens = [*outputs[:first_outputs], *outputs[last:]]
    if tokens:
        with graph.inserting_before(output):
            graph.call_function(_SINK, (tokens,))
        output.args = (type(output.args[0])(outputs[first_outputs:last]),)
    graph.lint()
    graph_module.recompile()


def number_inputs(graph: torch.fx.Graph, pattern: str, *, first: int = 0) -> None:
    """Number the tokens and the inputs of the program, from `first` on. `pattern`: their name."""
    placeholders = graph.find_nodes(op="placeholder")
    inputs = [n for n in placeholders if not (is_tangent(n) or is_backward_seed(n) or "fwd_seed" in str(n.target))]
    for number, node in enumerate(inputs, first):
        node.name = node.target = pattern.format(number)


def new_tokens(count: int) -> list[torch.Tensor]:
    """Tokens for one call of a graph. They carry no data."""
    return [torch.empty(0, device="cpu") for _ in range(count)]


def with_first_tokens(call: BoxedCall, count: int) -> BoxedCall:
    """A function without the `count` tokens that are a graph's first inputs and outputs.

    Counterpart: torch/_functorch/_aot_autograd/runtime_wrappers.py EffectTokensWrapper
    Differs: passes empty tensors, as in the example inputs; upstream passes None
    """
    return (lambda inputs: call([*new_tokens(count), *inputs])[count:]) if count else call


def effect_of(node: torch.fx.Node) -> Any:
    """The registered kind of side effect of a call; None if it has none."""
    if node.op != "call_function" or node.target is with_effects:
        return None
    return registered_effect(node.target)


class _Chains:
    """The last token of each kind of effect. Mutable."""

    def __init__(self, graph: torch.fx.Graph, fake_mode: FakeTensorMode, name: str) -> None:
        self._graph = graph
        self.fake_mode = fake_mode
        self._name = name
        self.tokens: dict[Any, torch.fx.Node] = {}
        self.examples: list[torch.Tensor] = []

    def append(self, node: torch.fx.Node, effect: Any) -> None:
        """Order the node after all nodes appended for its kind of effect."""
        graph = self._graph
        token = self.tokens[effect] if effect in self.tokens else self._placeholder()
        arguments: Any = (token, node.target, *node.args)
        with graph.inserting_before(node):
            call = graph.call_function(with_effects, arguments, node.kwargs)
            new_token = graph.call_function(operator.getitem, (call, 0))
        value = node.meta.get("val")
        values = value if isinstance(value, tuple) else (value,)
        call.meta = {**node.meta, "val": (token.meta["val"], *values)}
        new_token.meta = {**node.meta, "val": token.meta["val"]}
        if _returns_several(node, value):
            for element in list(node.users):
                element.args = (call, element.args[1] + 1)  # type: ignore[operator]
        else:
            with graph.inserting_before(node):
                result = graph.call_function(operator.getitem, (call, 1))
            result.meta = {**node.meta}
            node.replace_all_uses_with(result)
            if not result.users:  # upstream's names count it too
                graph.erase_node(result)
        graph.erase_node(node)
        self.tokens[effect] = new_token

    def append_region(self, node: torch.fx.Node, kinds: Sequence[Any]) -> None:
        """Give a call of a region the last tokens of these kinds, and take its tokens from there on."""
        graph, count = self._graph, len(kinds)
        tokens = [self.tokens[kind] if kind in self.tokens else self._placeholder() for kind in kinds]
        for element in list(node.users):
            element.args = (node, element.args[1] + count)  # type: ignore[operator]
        node.args = (*node.args[:2], *tokens, *node.args[2:])
        values = node.meta.get("val")
        if isinstance(values, (tuple, list)):
            node.meta["val"] = (*(token.meta["val"] for token in tokens), *values)
        for position, kind in reversed([*enumerate(kinds)]):
            with graph.inserting_after(node):
                made = graph.call_function(operator.getitem, (node, position))
            made.meta = {**node.meta, "val": tokens[position].meta["val"]}
            self.tokens[kind] = made

    def _placeholder(self) -> torch.fx.Node:
        with self.fake_mode:
            value = torch.empty(0)
        graph = self._graph
        placeholders = [n for n in graph.nodes if n.op == "placeholder"]
        number = len(self.tokens)
        if self._name is TOKEN:
            position = number
            where = graph.inserting_before(placeholders[position] if position < len(placeholders) else _first(graph))
            name = f"{TOKEN}{number + 1}"
        else:
            where = graph.inserting_after(placeholders[-1]) if placeholders else graph.inserting_before(_first(graph))
            name = BACKWARD_TOKEN if number == 0 else f"{BACKWARD_TOKEN}_{number}"
        with where:
            node = graph.placeholder(name)
        node.meta["val"] = value
        self.examples.append(value)
        return node


def _first(graph: torch.fx.Graph) -> torch.fx.Node:
    return next(n for n in graph.nodes if n.op != "placeholder")


def _returns_several(node: torch.fx.Node, value: Any) -> bool:
    if isinstance(node.target, OpOverload):
        return len(node.target._schema.returns) > 1
    return isinstance(value, tuple)
