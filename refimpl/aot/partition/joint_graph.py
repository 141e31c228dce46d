"""A joint graph as partitioners read it: which nodes belong to the forward, which depend on tangents, which own memory.

Counterpart: torch/_functorch/partitioners.py NodeInfo, classify_nodes
Differs: nodes are numbered and all facts are tuples over these numbers, so that partitioners never walk the graph again. Common
subexpressions share a number, without a new graph. The outputs of the graph, and tags if there are any, decide what the
forward is.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from refimpl._torch import SYMBOLIC_TYPES, OpOverload, has_composite_kernel, pytree
from refimpl.aot.errors import UnsplittableJointGraph
from refimpl.aot.joint.backward import is_backward_seed, is_tangent
from refimpl.functionalize.schemas import OpFacts, facts_of, viewed_node
from refimpl.trace.metadata import notes_of

SCALAR_TYPES = (*SYMBOLIC_TYPES, int, float, bool)
NO_MERGES: Mapping[torch.fx.Node, torch.fx.Node] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class JointGraph:
    """A number is a node's position in the graph, not counting its output node and dead nodes.

    inputs: what a node reads, with common subexpressions merged. owner: the node whose memory holds the node's value.
    is_forward: the forward outputs need it, or it is an effect of the forward.
    is_backward: it depends on a tangent, or is an effect of the backward, and cannot run in the forward.
    Nodes that are neither may run in either graph.
    """

    module: torch.fx.GraphModule
    nodes: tuple[torch.fx.Node, ...]
    number_of: Mapping[torch.fx.Node, int]
    inputs: tuple[tuple[int, ...], ...]
    users: tuple[tuple[int, ...], ...]
    facts: tuple[OpFacts | None, ...]
    owner: tuple[int, ...]
    is_forward: tuple[bool, ...]
    is_backward: tuple[bool, ...]
    forward_outputs: tuple[Any, ...]
    backward_outputs: tuple[Any, ...]
    merges: Mapping[torch.fx.Node, torch.fx.Node]

    def value_of(self, number: int) -> Any:
        """The fake value of a node, or None."""
        return self.nodes[number].meta.get("val")

    def is_scalar(self, number: int) -> bool:
        """Whether the node is a number, symbolic or not."""
        return isinstance(self.nodes[number].meta.get("val"), SCALAR_TYPES)

    def is_tuple(self, number: int) -> bool:
        """Whether the node has several results, which `getitem` nodes read."""
        value = self.nodes[number].meta.get("val")
        if value is None:
            users = self.users[number]
            return bool(users) and all(self.nodes[u].target is operator.getitem for u in users)
        return isinstance(value, (tuple, list, dict))

    def is_view(self, number: int) -> bool:
        """Whether the value is in another node's memory."""
        return self.owner[number] != number

    def is_mutated_input(self, number: int) -> bool:
        """Whether the caller's tensor is written to after the forward and before the backward."""
        return notes_of(self.nodes[number]).is_mutated_input

    def numbers_of(self, outputs: Sequence[Any]) -> list[int]:
        """The numbers of the nodes among `outputs`."""
        return [self.number_of[self.resolve(o)] for o in outputs if isinstance(o, torch.fx.Node)]

    def resolve(self, node: torch.fx.Node) -> torch.fx.Node:
        """The node that a common subexpression was merged into, or the node itself."""
        return self.merges.get(node, node)


def read_joint(
    module: torch.fx.GraphModule,
    num_fwd_outputs: int,
    merges: Mapping[torch.fx.Node, torch.fx.Node] = NO_MERGES,
) -> JointGraph:
    """Read the joint graph of `module`, whose first outputs are the forward's."""
    all_nodes = list(module.graph.nodes)
    output = all_nodes.pop()
    outputs = pytree.tree_leaves(output.args[0])
    forward_outputs, backward_outputs = tuple(outputs[:num_fwd_outputs]), tuple(outputs[num_fwd_outputs:])
    reads = {node: tuple(dict.fromkeys(merges.get(n, n) for n in node.all_input_nodes)) for node in all_nodes}
    live = _live(all_nodes, reads, outputs, merges)
    nodes = tuple(node for node in all_nodes if node in live)
    number_of = {node: i for i, node in enumerate(nodes)}
    inputs = tuple(tuple(number_of[n] for n in reads[node]) for node in nodes)
    users: list[list[int]] = [[] for _ in nodes]
    for i, read in enumerate(inputs):
        for j in read:
            users[j].append(i)
    facts = tuple(facts_of(n.target) if n.op == "call_function" else None for n in nodes)

    def numbers(values: Sequence[Any]) -> list[int]:
        return [number_of[merges.get(v, v)] for v in values if isinstance(v, torch.fx.Node)]

    waits = _waits_for_tangents(nodes, inputs)
    is_forward = _forward_nodes(nodes, inputs, facts, waits, numbers(forward_outputs))
    is_backward = _backward_nodes(nodes, inputs, facts, waits, is_forward, numbers(backward_outputs))
    return JointGraph(
        module=module,
        nodes=nodes,
        number_of=number_of,
        inputs=inputs,
        users=tuple(map(tuple, users)),
        facts=facts,
        owner=_owners(nodes, number_of, merges),
        is_forward=tuple(is_forward),
        is_backward=tuple(is_backward),
        forward_outputs=forward_outputs,
        backward_outputs=backward_outputs,
        merges=merges,
    )


def _live(
    nodes: list[torch.fx.Node],
    reads: Mapping[torch.fx.Node, tuple[torch.fx.Node, ...]],
    outputs: Sequence[Any],
    merges: Mapping[torch.fx.Node, torch.fx.Node],
) -> set[torch.fx.Node]:
    """Nodes that an output or an effect needs, and placeholders. A random op without users still advances the generator."""
    live = {merges.get(o, o) for o in outputs if isinstance(o, torch.fx.Node)}
    for node in reversed(nodes):
        if node not in live:
            if node in merges or (node.op != "placeholder" and not _has_effect(node)):
                continue
            live.add(node)
        live.update(reads[node])
    return live


def _has_effect(node: torch.fx.Node) -> bool:
    if node.op == "call_function":
        facts = facts_of(node.target)
        return facts.is_effectful or facts.is_random
    return node.op in ("call_module", "call_method")


def _waits_for_tangents(nodes: Sequence[torch.fx.Node], inputs: Sequence[Sequence[int]]) -> list[bool]:
    waits = [False] * len(nodes)
    for i, node in enumerate(nodes):
        if node.op == "placeholder":
            waits[i] = is_tangent(node) or is_backward_seed(node)
        else:
            waits[i] = any(waits[j] for j in inputs[i]) or node.meta.get("partitioner_tag") == "must_be_in_backward"
    return waits


def _forward_nodes(
    nodes: Sequence[torch.fx.Node],
    inputs: Sequence[Sequence[int]],
    facts: Sequence[OpFacts | None],
    waits: Sequence[bool],
    outputs: Sequence[int],
) -> list[bool]:
    needed = [False] * len(nodes)
    for i in outputs:
        if waits[i]:
            raise UnsplittableJointGraph(
                seen=f"the forward output {nodes[i].name} needs a tangent",
                expected="forward outputs that are made of inputs alone",
                do="check num_fwd_outputs, and that only placeholders of tangents have tangents in their names",
            )
        needed[i] = True
    _spread(needed, inputs)
    is_tagged = any("partitioner_tag" in node.meta for node in nodes)
    end = max((i for i, is_needed in enumerate(needed) if is_needed), default=-1)
    for i, node in enumerate(nodes):
        if waits[i]:
            continue
        fact = facts[i]
        if node.op == "placeholder" or node.meta.get("partitioner_tag") == "must_be_in_forward":
            needed[i] = True
        elif fact is not None and (fact.is_effectful or fact.is_random):
            # Without tags: an effect belongs to the forward if it runs before the last forward output, or has no users.
            ours = node.meta.get("partitioner_tag") != "is_backward" if is_tagged else i <= end or not node.users
            needed[i] = needed[i] or ours
    _spread(needed, inputs)
    return needed


def _backward_nodes(
    nodes: Sequence[torch.fx.Node],
    inputs: Sequence[Sequence[int]],
    facts: Sequence[OpFacts | None],
    waits: Sequence[bool],
    is_forward: Sequence[bool],
    outputs: Sequence[int],
) -> list[bool]:
    """Nodes that depend on tangents, and effects of the backward with the nodes that depend on them.

    Without tangents (a scalar loss, whose tangent is 1), all nodes that are not the forward's.
    """
    if not any(is_tangent(node) for node in nodes):
        return [not f for f in is_forward]
    is_backward = list(waits)
    for i, fact in enumerate(facts):
        if is_forward[i]:
            continue
        if any(is_backward[j] for j in inputs[i]) or (fact is not None and (fact.is_effectful or fact.is_random)):
            is_backward[i] = True
    return is_backward


def _spread(needed: list[bool], inputs: Sequence[Sequence[int]]) -> None:
    for i in range(len(needed) - 1, -1, -1):
        if needed[i]:
            for j in inputs[i]:
                needed[j] = True


def _owners(
    nodes: Sequence[torch.fx.Node],
    number_of: Mapping[torch.fx.Node, int],
    merges: Mapping[torch.fx.Node, torch.fx.Node],
) -> tuple[int, ...]:
    owners = list(range(len(nodes)))
    for i, node in enumerate(nodes):
        source = viewed_node(node)
        if source is not None:
            source = merges.get(source, source)
            if _may_share(node, source):
                owners[i] = owners[number_of[source]]
    return tuple(owners)


def _may_share(node: torch.fx.Node, source: torch.fx.Node) -> bool:
    """Whether a result may share memory with the tensor it is made from. An op such as reshape copies if it has to."""
    if not isinstance(node.target, OpOverload) or not has_composite_kernel(node.target):
        return True
    a, b = node.meta.get("val"), source.meta.get("val")
    if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor):
        return True
    return a.dtype == b.dtype and a.untyped_storage()._cdata == b.untyped_storage()._cdata
