"""Checks that a forward and a backward graph together compute what their joint graph computes.

Counterpart: none
Differs: upstream has no such check; here every partition is verified.

Partitioners keep the names of nodes, by which these are checked: inputs and outputs are complete and in order; each node computes
what the joint graph's node of that name does; what the backward reads is saved, with numbers after tensors in the forward's
outputs; no node of the forward depends on a tangent; random and effectful ops run exactly once; nothing is saved that shares
memory with an input that is written to before the backward.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from refimpl._torch import pytree
from refimpl.aot.errors import IllegalPartition
from refimpl.aot.joint.backward import is_backward_seed, is_tangent
from refimpl.aot.partition.common_subexpressions import equivalent_nodes
from refimpl.aot.partition.joint_graph import SCALAR_TYPES
from refimpl.functionalize.schemas import facts_of, memory_owners
from refimpl.trace.metadata import notes_of

_COPY_SUFFIX = "_saved"


def verify_partition(
    joint: torch.fx.GraphModule,
    fw: torch.fx.GraphModule,
    bw: torch.fx.GraphModule,
    num_fwd_outputs: int,
    *,
    merges: Mapping[torch.fx.Node, torch.fx.Node] | None = None,
) -> None:
    """Raise IllegalPartition, which lists all problems, unless `fw` and `bw` are a legal partition of `joint`.

    merges: common subexpressions of the joint graph and the nodes that replaced them; None to find them here.
    """
    problems = list(_Check(joint, fw, bw, num_fwd_outputs, merges).problems())
    if problems:
        raise IllegalPartition(problems)


class _Side:
    """One of the three graphs."""

    def __init__(self, module: torch.fx.GraphModule) -> None:
        self.nodes: list[torch.fx.Node] = list(module.graph.nodes)
        output = self.nodes.pop()
        self.outputs: list[Any] = pytree.tree_leaves(output.args[0])
        self.by_name: Mapping[str, torch.fx.Node] = {node.name: node for node in self.nodes}
        self.placeholders = [node for node in self.nodes if node.op == "placeholder"]


class _Check:
    def __init__(
        self,
        joint: torch.fx.GraphModule,
        fw: torch.fx.GraphModule,
        bw: torch.fx.GraphModule,
        num_fwd_outputs: int,
        merges: Mapping[torch.fx.Node, torch.fx.Node] | None,
    ) -> None:
        self.joint_graph = joint.graph
        self.joint, self.fw, self.bw = _Side(joint), _Side(fw), _Side(bw)
        self.count = num_fwd_outputs
        self.saved: list[Any] = self.fw.outputs[num_fwd_outputs:]
        self._merges = merges

    def problems(self) -> Iterator[str]:
        yield from self._inputs()
        yield from self._outputs()
        yield from self._crossing()
        yield from self._computations("forward", self.fw)
        yield from self._computations("backward", self.bw)
        yield from self._tangents()
        yield from self._effects()
        yield from self._mutated_inputs()

    def _inputs(self) -> Iterator[str]:
        expected = [n.name for n in self.joint.placeholders if not is_tangent(n) and not is_backward_seed(n)]
        actual = [n.name for n in self.fw.placeholders]
        if actual != expected:
            yield f"inputs of the forward are {actual}, but should be {expected}"
        own = [n.name for n in self.joint.placeholders if is_tangent(n) or is_backward_seed(n)]
        tail = [n.name for n in self.bw.placeholders][len(self.saved) :]
        if sorted(tail) != sorted(own):
            yield f"inputs of the backward after the saved values are {tail}, but should be {own}"

    def _outputs(self) -> Iterator[str]:
        for side, actual, expected in (
            ("forward", self.fw.outputs[: self.count], self.joint.outputs[: self.count]),
            ("backward", self.bw.outputs, self.joint.outputs[self.count :]),
        ):
            if len(actual) != len(expected):
                yield f"the {side} returns {len(actual)} values, but should return {len(expected)}"
                continue
            for position, (a, e) in enumerate(zip(actual, expected, strict=True)):
                if _shown(a) != _shown(e) and not (side == "backward" and self._is_saved_copy(a, e)):
                    yield f"output {position} of the {side} is {_shown(a)}, but should be {_shown(e)}"

    def _is_saved_copy(self, value: Any, of: Any) -> bool:
        """Whether the backward returns a saved copy: a gradient may be a value of the forward itself."""
        if not isinstance(value, torch.fx.Node) or not isinstance(of, torch.fx.Node) or value.op != "placeholder":
            return False
        copy = self.fw.by_name.get(value.name)
        return copy is not None and _is_copy(copy) and _shown(copy.args[0]) == of.name

    def _crossing(self) -> Iterator[str]:
        names = [_shown(value) for value in self.saved]
        received = [n.name for n in self.bw.placeholders][: len(names)]
        for name in sorted(set(received) - set(names)):
            yield f"the backward reads {name}, which the forward does not save"
        for name in sorted(set(names) - set(received)):
            yield f"the forward saves {name}, which the backward does not take"
        if len(set(names)) != len(names):
            yield f"the forward saves a value twice: {names}"
        kinds = [_is_scalar(value) for value in self.saved]
        if kinds != sorted(kinds):
            yield f"saved numbers stand before saved tensors in the forward's outputs: {names}"
        kinds = [_is_scalar(node) for node in self.bw.placeholders[: len(names)]]
        if kinds != sorted(kinds, reverse=True):
            yield f"saved tensors stand before saved numbers in the backward's inputs: {received}"

    def _computations(self, side_name: str, side: _Side) -> Iterator[str]:
        seen: set[str] = set()
        for node in side.nodes:
            for read in node.all_input_nodes:
                if read.name not in seen:
                    yield f"{node.name} of the {side_name} reads {read.name}, which comes after it"
            seen.add(node.name)
            if node.op == "placeholder" or _is_copy(node):
                continue
            original = self.joint.by_name.get(node.name)
            if original is None:
                yield f"{node.name} of the {side_name} is not in the joint graph"
            elif node.op != original.op or node.target != original.target:
                yield f"{node.name} of the {side_name} calls {node.target}, but should call {original.target}"
            elif not self._reads_the_same(node, original):
                yield (
                    f"{node.name} of the {side_name} reads {node.all_input_nodes}, but should read {original.all_input_nodes} "
                    "with the same constants"
                )

    def _reads_the_same(self, node: torch.fx.Node, original: torch.fx.Node) -> bool:
        actual, actual_nodes = _constants_and_nodes(node)
        expected, expected_nodes = _constants_and_nodes(original)
        if len(actual_nodes) != len(expected_nodes) or not _are_equal(actual, expected):
            return False
        for a, e in zip(actual_nodes, expected_nodes, strict=True):
            names = (a.name, a.name.removesuffix(_COPY_SUFFIX))
            if e.name not in names:
                if self._merges is None:
                    self._merges = equivalent_nodes(self.joint_graph)
                kept = self._merges.get(e)
                if kept is None or kept.name not in names:
                    return False
        return True

    def _tangents(self) -> Iterator[str]:
        waits: set[torch.fx.Node] = set()
        for node in self.joint.nodes:
            if is_tangent(node) or any(n in waits for n in node.all_input_nodes):
                waits.add(node)
                if node.name in self.fw.by_name:
                    yield f"the forward computes {node.name}, which needs a tangent"

    def _effects(self) -> Iterator[str]:
        for node in self.joint.nodes:
            if node.op != "call_function":
                continue
            facts = facts_of(node.target)
            if facts.is_random or facts.is_effectful:
                where = [
                    name
                    for name, side in (("forward", self.fw), ("backward", self.bw))
                    if node.name in side.by_name and side.by_name[node.name].op == "call_function"
                ]
                if len(where) != 1:
                    kind = "random" if facts.is_random else "effectful"
                    yield f"the {kind} op {node.name} ({node.target}) runs {len(where)} times, but should run once"

    def _mutated_inputs(self) -> Iterator[str]:
        if not any(notes_of(n).is_mutated_input for n in self.joint.placeholders):
            return
        mutated = {n.name for n in self.joint.placeholders if notes_of(n).is_mutated_input}
        owners = memory_owners(self.fw.nodes)
        for value in self.saved:
            if isinstance(value, torch.fx.Node) and not _is_scalar(value) and owners[value].name in mutated:
                owner = owners[value].name
                yield f"{value.name} is saved, but shares memory with {owner}, which is written to before the backward"


def _is_copy(node: torch.fx.Node) -> bool:
    """Whether the node is a copy that the partitioner made to save a value. Its name is the value's, with a suffix."""
    source = node.args[0] if node.args else None
    return (
        node.target is torch.ops.aten.clone.default
        and isinstance(source, torch.fx.Node)
        and node.name == source.name + _COPY_SUFFIX
    )


def _shown(value: Any) -> str:
    return value.name if isinstance(value, torch.fx.Node) else repr(value)


def _is_scalar(value: Any) -> bool:
    return isinstance(value, torch.fx.Node) and isinstance(value.meta.get("val"), SCALAR_TYPES)


def _constants_and_nodes(node: torch.fx.Node) -> tuple[list[Any], list[torch.fx.Node]]:
    constants: list[Any] = []
    nodes: list[torch.fx.Node] = []
    waiting: list[Any] = [*node.args, *node.kwargs.values()]
    for value in waiting:
        if isinstance(value, torch.fx.Node):
            nodes.append(value)
        elif isinstance(value, (list, tuple)):
            waiting += value
        elif isinstance(value, dict):
            waiting += value.values()
        elif isinstance(value, slice):
            waiting += (value.start, value.stop, value.step)
        else:
            constants.append(value)
    return constants, nodes


def _are_equal(a: Sequence[Any], b: Sequence[Any]) -> bool:
    return len(a) == len(b) and all(x is y or x == y for x, y in zip(a, b, strict=True))
