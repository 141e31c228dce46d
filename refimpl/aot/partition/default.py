"""The default partitioner: it saves what the backward reads, so that each graph runs what eager's forward or backward runs.

Counterpart: torch/_functorch/partitioners.py default_partition
Differs: views of saved tensors are remade in the backward, so that no memory is saved twice; the joint graph is not changed. A
joint graph that writes (`disable_functionalization`) is divided where it was recorded.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch

from refimpl.aot.joint.backward import IS_BACKWARD, is_backward_seed, is_tangent
from refimpl.aot.partition.joint_graph import JointGraph, read_joint
from refimpl.aot.partition.recomputation import asked_to_recompute, current_options
from refimpl.aot.partition.split import plan_split, views_on_the_way, write_graphs
from refimpl.aot.partition.verify import verify_partition
from refimpl.functionalize.schemas import is_mutating
from refimpl.trace.metadata import notes_of

Node = torch.fx.Node


def split_joint(
    joint_module: torch.fx.GraphModule, joint_inputs: Sequence[Any], *, num_fwd_outputs: int
) -> tuple[torch.fx.GraphModule, torch.fx.GraphModule]:
    """The simplest partition: every value that both graphs need is saved, and nothing is recomputed or removed."""
    nodes = list(joint_module.graph.nodes)
    tangents = [n for n in nodes if n.op == "placeholder"][len(joint_inputs[0]) :]
    late = set(tangents)
    for node in nodes:
        if node.op != "output" and not late.isdisjoint(node.all_input_nodes):
            late.add(node)
    kept = _read_later(nodes, late, num_fwd_outputs)
    return _write_both(joint_module, late, kept, num_fwd_outputs)


def writes_as_recorded(graph: torch.fx.Graph) -> bool:
    """Whether a joint graph says where each node was recorded, and writes elsewhere than in copies into inputs at its end."""
    is_tagged = any(node.meta.get("partitioner_tag") == IS_BACKWARD for node in graph.nodes)
    return is_tagged and any(is_mutating(node) and not _is_final_copy(node) for node in graph.nodes)


def _is_final_copy(node: Node) -> bool:
    target = node.args[0] if node.args else None
    is_input = isinstance(target, Node) and target.op == "placeholder"
    return node.target is torch.ops.aten.copy_.default and is_input and not node.users


def split_as_recorded(
    joint_module: torch.fx.GraphModule, num_fwd_outputs: int
) -> tuple[torch.fx.GraphModule, torch.fx.GraphModule]:
    """The forward and the backward of a joint graph that writes: what was recorded in each, in that order.

    A write may change what another node reads. So nothing is moved or recomputed, and what the backward reads of the forward is
    saved as it is, like eager's saved tensors.
    """
    nodes = list(joint_module.graph.nodes)
    late: set[Node] = set()
    for node in nodes[:-1]:
        is_item = node.target is operator.getitem and node.args[0] not in late
        is_tagged = node.meta.get("partitioner_tag") in (IS_BACKWARD, "must_be_in_backward")
        is_ours = not is_item and node.op != "get_attr" and (is_tagged or not late.isdisjoint(node.all_input_nodes))
        if is_ours or is_tangent(node) or is_backward_seed(node):
            late.add(node)
    places = {node: place for place, node in enumerate(nodes)}
    kept = sorted(_read_later(nodes, late, num_fwd_outputs), key=places.__getitem__)
    return _write_both(joint_module, late, kept, num_fwd_outputs)


def _read_later(nodes: Sequence[Node], late: Collection[Node], num_fwd_outputs: int) -> list[Node]:
    """The nodes that are not `late` and that late ones read, or that are gradients, in the order of use."""
    returned: Any = nodes[-1].args[0]
    kept: dict[Node, None] = {}
    for node in nodes[:-1]:
        if node in late:
            kept.update(dict.fromkeys(n for n in node.all_input_nodes if n not in late))
    gradients = returned[num_fwd_outputs:]
    kept.update(dict.fromkeys(g for g in gradients if isinstance(g, Node) and g not in late))
    return list(kept)


def _write_both(
    joint_module: torch.fx.GraphModule, late: Collection[Node], kept: Sequence[Node], num_fwd_outputs: int
) -> tuple[torch.fx.GraphModule, torch.fx.GraphModule]:
    """The graphs of the nodes that are not `late`, and of those that are. The first returns `kept` after its outputs."""
    nodes = list(joint_module.graph.nodes)
    tangents = [node for node in nodes if node.op == "placeholder" and node in late]
    returned = list(nodes[-1].args[0])
    gradients = returned[num_fwd_outputs:]
    tensors = [n for n in kept if isinstance(n.meta.get("val"), torch.Tensor) and n.op != "get_attr"]
    numbers = [n for n in kept if not isinstance(n.meta.get("val"), torch.Tensor) and n.op != "get_attr"]

    forward: dict[torch.fx.Node, torch.fx.Node] = {}
    graph = torch.fx.Graph()
    for node in nodes[:-1]:
        if node not in late:
            forward[node] = graph.node_copy(node, forward.__getitem__)
    copies = {n: _clone(graph, forward[n]) if notes_of(n).is_mutated_input else forward[n] for n in tensors}
    outputs = [forward.get(r, r) for r in returned[:num_fwd_outputs]]
    graph.output((*outputs, *(copies[n] for n in tensors), *(forward[n] for n in numbers)))

    backward: dict[torch.fx.Node, torch.fx.Node] = {}
    rest = torch.fx.Graph()
    for node in (*numbers, *tensors, *tangents):
        backward[node] = rest.placeholder(node.name)
        backward[node].meta = dict(node.meta)
    for node in nodes[:-1]:
        if node.op == "get_attr" or (node in late and node not in backward):
            backward[node] = rest.node_copy(node, backward.__getitem__)
    rest.output(tuple(backward.get(g, g) for g in gradients))
    return torch.fx.GraphModule(joint_module, graph), torch.fx.GraphModule(joint_module, rest)


def _clone(graph: torch.fx.Graph, node: torch.fx.Node) -> torch.fx.Node:
    copy = graph.call_function(torch.ops.aten.clone.default, (node,))
    copy.meta = dict(node.meta)
    return copy


def default_partition(
    joint_module: torch.fx.GraphModule,
    _joint_inputs: Any,
    *,
    num_fwd_outputs: int,
    static_lifetime_input_indices: list[int] | None = None,
    static_lifetime_input_nodes: Any = None,
) -> tuple[torch.fx.GraphModule, torch.fx.GraphModule]:
    """The forward and the backward graph of a joint graph whose first `num_fwd_outputs` outputs are the forward's.

    The forward returns these, then saved tensors, then saved numbers; the backward takes numbers, tensors, tangents.
    """
    if writes_as_recorded(joint_module.graph):
        return split_as_recorded(joint_module, num_fwd_outputs)
    joint = read_joint(joint_module, num_fwd_outputs)
    saved = without_repeated_memory(joint, read_by_backward(joint))
    forward, backward = write_graphs(joint, plan_split(joint, saved))
    if current_options().verifies:
        verify_partition(joint_module, forward, backward, num_fwd_outputs)
    return forward, backward


def read_by_backward(joint: JointGraph) -> set[int]:
    """Forward values that nodes of the backward read. Where they read only sizes of a tensor, the sizes."""
    recomputed = asked_to_recompute(joint)
    saved: set[int] = set()
    seen: set[int] = set()
    waiting = joint.numbers_of(joint.backward_outputs)
    waiting += [i for i, is_backward in enumerate(joint.is_backward) if is_backward]
    is_savable = _savable(joint, recomputed)
    while waiting:
        i = waiting.pop()
        if i in seen:
            continue
        seen.add(i)
        if is_savable(i):
            saved.add(i)
        elif joint.nodes[i].op != "placeholder":
            waiting += joint.inputs[i]
    return saved


def _savable(joint: JointGraph, recomputed: frozenset[int]) -> Callable[[int], bool]:
    """A function that says whether a node can be saved: the forward computes it, as one value, and no policy asks to redo it.

    The forward computes what was recorded in it, as in eager, even if only the backward reads it: a mask that the forward of a
    custom torch.autograd.Function saves. Items of tuples and sizes of tensors of the forward can be saved as well. Arithmetic on
    sizes that only the backward needs runs in the backward.
    """
    is_ours = list(joint.is_forward)
    is_tagged = any(node.meta.get("partitioner_tag") == IS_BACKWARD for node in joint.nodes)
    for i, node in enumerate(joint.nodes):
        if is_ours[i] or joint.is_backward[i] or not joint.inputs[i]:
            continue
        if is_tagged and node.meta.get("partitioner_tag") != IS_BACKWARD and not joint.is_scalar(i):
            is_ours[i] = all(is_ours[j] for j in joint.inputs[i])
            continue
        reads_tensor = not all(joint.is_scalar(j) for j in joint.inputs[i])
        if node.target is operator.getitem or (joint.is_scalar(i) and reads_tensor):
            is_ours[i] = all(is_ours[j] for j in joint.inputs[i])

    def is_savable(number: int) -> bool:
        node = joint.nodes[number]
        return is_ours[number] and node.op != "get_attr" and not joint.is_tuple(number) and number not in recomputed

    return is_savable


def without_repeated_memory(joint: JointGraph, saved: set[int]) -> set[int]:
    """`saved` with the base alone in place of a view and its base, or of two views of a base.

    A view of an input is replaced by the input, which is in memory anyway.
    """
    views: dict[int, list[int]] = {}
    for i in saved:
        if joint.is_view(i):
            views.setdefault(joint.owner[i], []).append(i)
    kept = set(saved)
    for owner, of_owner in views.items():
        node = joint.nodes[owner]
        is_one_value = not joint.is_tuple(owner) and not joint.is_backward[owner]
        has_base = owner in saved or node.op == "placeholder" or len(of_owner) > 1
        if not is_one_value or not has_base or joint.is_mutated_input(owner) or not _numbers_are_known(joint, of_owner):
            continue
        kept.difference_update(of_owner)
        if node.op != "get_attr":
            kept.add(owner)
        for view in of_owner:
            for step in views_on_the_way(joint, view):
                kept.update(i for i in joint.inputs[step] if joint.is_scalar(i) and not joint.is_backward[i])
    return kept


def _numbers_are_known(joint: JointGraph, views: list[int]) -> bool:
    """Whether the views can be remade from their base and numbers alone."""
    for view in views:
        chain = views_on_the_way(joint, view)
        known = {joint.owner[view], *chain}
        for step in chain:
            if not all(i in known or joint.is_scalar(i) or joint.is_tuple(i) for i in joint.inputs[step]):
                return False
    return True
