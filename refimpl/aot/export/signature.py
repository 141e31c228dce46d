"""The signature of an exported module's graph: which node is which parameter, buffer, input, update, output or gradient.

Counterpart: torch/_functorch/_aot_autograd/schemas.py GraphSignature, BackwardSignature; input_output_analysis.py
create_graph_signature
Differs: it is built from positions, not names, so a buffer may have the name of a node. Every updated input and every gradient
has a node of its own; if two share one, upstream loses an entry of a dictionary or fails an assertion. `loss_output` is the loss;
upstream 2.13 uses its index among user outputs as one among all outputs, and names an updated buffer if there is one
(create_graph_signature, `graph_output_names[loss_index]`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NewType

import torch

from refimpl._torch import pytree

GraphInputName = NewType("GraphInputName", str)
GraphOutputName = NewType("GraphOutputName", str)
FQN = NewType("FQN", str)


@dataclass(frozen=True, slots=True)
class BackwardSignature:
    """Which output of a joint graph is the gradient of which parameter or user input, and which is the loss."""

    gradients_to_parameters: dict[GraphOutputName, FQN]
    gradients_to_user_inputs: dict[GraphOutputName, GraphInputName]
    loss_output: GraphOutputName


@dataclass(frozen=True, slots=True)
class GraphSignature:
    """The graph takes (tokens, parameters, buffers, user inputs) and returns (tokens, updated inputs, user outputs, gradients).

    `in_spec` is the pytree spec of ((*parameters, *buffers, *args), kwargs), `out_spec` that of the module's result. A user
    output that is a constant, not a node, has the name None.
    """

    parameters: list[FQN]
    buffers: list[FQN]
    user_inputs: list[GraphInputName]
    user_outputs: list[GraphOutputName]
    inputs_to_parameters: dict[GraphInputName, FQN]
    inputs_to_buffers: dict[GraphInputName, FQN]
    buffers_to_mutate: dict[GraphOutputName, FQN]
    parameters_to_mutate: dict[GraphOutputName, FQN]
    user_inputs_to_mutate: dict[GraphOutputName, GraphInputName]
    in_spec: pytree.TreeSpec
    out_spec: pytree.TreeSpec
    backward_signature: BackwardSignature | None
    input_tokens: list[GraphInputName]
    output_tokens: list[GraphOutputName]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleGraphOutputs:
    """The values that a module's graph is to return. Keys are positions of inputs, without tokens."""

    tokens: Sequence[torch.fx.Node] = ()
    updates: Mapping[int, torch.fx.Node]
    user_outputs: Sequence[Any]
    gradients: Mapping[int, torch.fx.Node]
    loss: int | None = None  # position among the user outputs

    def values(self) -> list[Any]:
        """All values in the order in which the graph returns them."""
        return [*self.tokens, *self.updates.values(), *self.user_outputs, *self.gradients.values()]


def with_nodes_of_their_own(graph: torch.fx.Graph, outputs: ModuleGraphOutputs) -> ModuleGraphOutputs:
    """Adds a `clone` for each update or gradient whose node is already the update or gradient of another input."""
    seen: set[torch.fx.Node] = set()

    def own(node: torch.fx.Node) -> torch.fx.Node:
        if node in seen:
            with graph.inserting_before(graph.output_node()):
                clone = graph.call_function(torch.ops.aten.clone.default, (node,))
            clone.meta = dict(node.meta)
            return clone
        seen.add(node)
        return node

    updates = {position: own(node) for position, node in outputs.updates.items()}
    gradients = {position: own(node) for position, node in outputs.gradients.items()}
    return replace(outputs, updates=updates, gradients=gradients)


def graph_signature(
    graph: torch.fx.Graph,
    outputs: ModuleGraphOutputs,
    *,
    parameters: Sequence[str],
    buffers: Sequence[str],
    in_spec: pytree.TreeSpec,
    out_spec: pytree.TreeSpec,
) -> GraphSignature:
    """The signature of a graph that takes (tokens, parameters, buffers, user inputs) and returns `outputs`."""
    placeholders = [GraphInputName(node.name) for node in graph.find_nodes(op="placeholder")]
    input_tokens, inputs = placeholders[: len(outputs.tokens)], placeholders[len(outputs.tokens) :]
    fqns = [FQN(name) for name in (*parameters, *buffers)]
    first_buffer, first_user_input = len(parameters), len(fqns)
    to_mutate: tuple[dict[GraphOutputName, Any], ...] = ({}, {}, {})
    for position, node in outputs.updates.items():
        kind = (position >= first_buffer) + (position >= first_user_input)
        to_mutate[kind][_name(node)] = [*fqns, *inputs[first_user_input:]][position]
    user_outputs = [_name(value) for value in outputs.user_outputs]
    backward_signature = None
    if outputs.loss is not None:
        gradients = outputs.gradients.items()
        backward_signature = BackwardSignature(
            gradients_to_parameters={_name(node): fqns[i] for i, node in gradients if i < first_user_input},
            gradients_to_user_inputs={_name(node): inputs[i] for i, node in gradients if i >= first_user_input},
            loss_output=user_outputs[outputs.loss],
        )
    return GraphSignature(
        parameters=fqns[:first_buffer],
        buffers=fqns[first_buffer:],
        user_inputs=inputs[first_user_input:],
        user_outputs=user_outputs,
        inputs_to_parameters=dict(zip(inputs, fqns[:first_buffer], strict=False)),
        inputs_to_buffers=dict(zip(inputs[first_buffer:], fqns[first_buffer:], strict=False)),
        buffers_to_mutate=to_mutate[1],
        parameters_to_mutate=to_mutate[0],
        user_inputs_to_mutate=to_mutate[2],
        in_spec=in_spec,
        out_spec=out_spec,
        backward_signature=backward_signature,
        input_tokens=input_tokens,
        output_tokens=[_name(token) for token in outputs.tokens],
    )


def _name(value: Any) -> Any:
    return getattr(value, "name", None)
