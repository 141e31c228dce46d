"""Writes the forward and the backward graph for a choice of saved values.

Counterpart: torch/_functorch/partitioners.py _extract_fwd_bwd_modules, _extract_graph_with_inputs_outputs,
reordering_to_mimic_autograd_engine
Differs: the nodes of both graphs are chosen by number first, and each graph is written once. In the backward a recomputed node
comes right before its first user.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx.node import map_arg

from refimpl._torch import SYMBOLIC_TYPES, LazyGraphModule
from refimpl.aot.errors import UnsplittableJointGraph
from refimpl.aot.joint.backward import is_backward_seed, is_tangent
from refimpl.aot.partition.joint_graph import JointGraph
from refimpl.functionalize.schemas import viewed_node
from refimpl.trace.metadata import note


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """The saved values, in order: tensors, other objects, numbers. `in_backward`: the nodes that run in the backward."""

    tensors: tuple[int, ...]
    objects: tuple[int, ...]
    scalars: tuple[int, ...]
    in_backward: frozenset[int]

    @property
    def saved(self) -> tuple[int, ...]:
        """All saved values, in the order in which the forward returns them."""
        return (*self.tensors, *self.objects, *self.scalars)


def plan_split(joint: JointGraph, saved: Collection[int]) -> Split:
    """Find which of `saved` the backward needs, which nodes it runs itself, and which symbols it has to get."""
    candidates = frozenset(saved)
    in_backward: set[int] = set()
    needed: set[int] = set()
    waiting = joint.numbers_of(joint.backward_outputs)
    waiting += [i for i, is_backward in enumerate(joint.is_backward) if is_backward and _is_effect(joint, i)]
    while waiting:
        i = waiting.pop()
        if i in needed or i in in_backward:
            continue
        if i in candidates:
            needed.add(i)
            continue
        node = joint.nodes[i]
        if node.op == "placeholder":
            if is_tangent(node) or is_backward_seed(node):
                continue
            raise UnsplittableJointGraph(
                seen=f"the backward needs the input {node.name}, which is not saved",
                expected="a saved value on every path from an input to the backward",
                do="report it as a fault of the partitioner",
            )
        in_backward.add(i)
        waiting += joint.inputs[i]
    ordered = sorted(needed)
    values = {i: joint.value_of(i) for i in ordered}
    scalars = [i for i in ordered if joint.is_scalar(i)]
    tensors = [i for i in ordered if isinstance(values[i], torch.Tensor) or values[i] is None]
    objects = [i for i in ordered if not joint.is_scalar(i) and i not in set(tensors)]
    return Split(
        tensors=tuple(sorted(tensors, key=lambda i: bool(joint.nodes[i].meta.get("saved_tensor_with_no_vc_check")))),
        objects=tuple(objects),
        scalars=_with_symbols(joint, tensors, scalars),
        in_backward=frozenset(in_backward),
    )


def _is_effect(joint: JointGraph, number: int) -> bool:
    facts = joint.facts[number]
    return facts is not None and (facts.is_effectful or facts.is_random)


def _with_symbols(joint: JointGraph, tensors: Iterable[int], scalars: list[int]) -> tuple[int, ...]:
    """The saved numbers, with first, for every symbol in the backward's inputs, a number that is the symbol itself.

    The compiler of the backward binds symbols to these inputs.
    """
    bindings: dict[Any, int] = {}
    for i in range(len(joint.nodes)):
        if not joint.is_backward[i] and (symbol := _symbol_of(joint.value_of(i))) is not None:
            bindings.setdefault(symbol, i)
    if not bindings:
        return tuple(scalars)
    tangents = [i for i, node in enumerate(joint.nodes) if is_tangent(node)]
    crossing = [_symbols_in(joint.value_of(i)) for i in (*scalars, *tensors, *tangents)]
    binding = [i for i in scalars if _symbol_of(joint.value_of(i)) is not None]
    known = {_symbol_of(joint.value_of(i)) for i in binding}
    for symbols in crossing:
        for symbol in sorted(symbols - known, key=str):
            known.add(symbol)
            if symbol in bindings:  # a size that was never read has no node, and the graphs do not need it
                binding.append(bindings[symbol])
    derived = [i for i in scalars if i not in set(binding)]
    return (*dict.fromkeys(binding), *derived)


def without_derived_numbers(joint: JointGraph, split: Split) -> Split:
    """The split without numbers that the backward can compute from symbols it gets anyway."""
    told = {i for i in split.scalars if _symbol_of(joint.value_of(i)) is not None}
    derived = [i for i in split.scalars if i not in told and _follows_from(joint, i, told)]
    if not derived:
        return split
    return plan_split(joint, {*split.tensors, *split.objects, *split.scalars}.difference(derived))


def _follows_from(joint: JointGraph, number: int, known: Collection[int]) -> bool:
    """Whether a number can be computed from known ones."""
    waiting = [number]
    while waiting:
        i = waiting.pop()
        if i in known:
            continue
        if not joint.is_scalar(i) or joint.nodes[i].op != "call_function" or not joint.inputs[i]:
            return False
        waiting += joint.inputs[i]
    return True


def _symbol_of(value: Any) -> Any:
    """The symbol that a SymInt is; None for an expression and for other values."""
    if not isinstance(value, torch.SymInt):
        return None
    expression = value.node.expr
    return expression if expression.is_Symbol else None


def _symbols_in(value: Any) -> set[Any]:
    if isinstance(value, SYMBOLIC_TYPES):
        return set(value.node.expr.free_symbols)
    if not isinstance(value, torch.Tensor):
        return set()
    numbers: list[Any] = list(value.shape)
    if value.layout is torch.strided and not value.is_nested:
        numbers += [*value.stride(), value.storage_offset()]
    return {symbol for n in numbers if isinstance(n, SYMBOLIC_TYPES) for symbol in n.node.expr.free_symbols}


def write_graphs(
    joint: JointGraph, split: Split, exposed: Collection[int] = ()
) -> tuple[torch.fx.GraphModule, torch.fx.GraphModule]:
    """The forward and the backward graph of a split. Values in memory of an `exposed` owner are saved as copies."""
    lost = [i for i in split.tensors if joint.owner[i] in exposed or _is_memory_of_mutated_input(joint, i)]
    copied = {i: f"{joint.nodes[i].name}_saved" for i in lost}
    forward = _write_forward(joint, split, copied)
    backward = _write_backward(joint, split, copied)
    return LazyGraphModule(joint.module, forward), LazyGraphModule(joint.module, backward)


def _is_memory_of_mutated_input(joint: JointGraph, number: int) -> bool:
    """Whether the value is in an input's memory that is written to before the backward."""
    return joint.is_mutated_input(joint.owner[number])


class _GraphWriter:
    """Copies nodes of a joint graph into a new graph, under their names."""

    def __init__(self, joint: JointGraph) -> None:
        self.joint = joint
        self.graph = torch.fx.Graph()
        self.written: dict[int, torch.fx.Node] = {}

    def placeholder(self, number: int, name: str | None = None) -> None:
        node = self.joint.nodes[number]
        new = self.graph.placeholder(name or (str(node.target) if node.op == "placeholder" else node.name))
        new.meta = dict(node.meta)
        self.written[number] = new

    def copy(self, number: int) -> torch.fx.Node:
        node = self.joint.nodes[number]
        # Arguments are set afterwards because `create_node` walks them in Python, a third of the time.
        new = self.graph.create_node(node.op, node.target, (), {}, node.name, node.type)
        new.args = map_arg(node.args, self.value)
        if node.kwargs:
            new.kwargs = map_arg(node.kwargs, self.value)
        new.meta = dict(node.meta)
        self.written[number] = new
        return new

    def value(self, node: torch.fx.Node) -> torch.fx.Node:
        return self.written[self.joint.number_of[self.joint.resolve(node)]]

    def finish(self, outputs: Sequence[Any]) -> torch.fx.Graph:
        self.graph.output(tuple(outputs))
        return self.graph

    def values(self, outputs: Sequence[Any]) -> list[Any]:
        return [self.value(o) if isinstance(o, torch.fx.Node) else o for o in outputs]


def _write_forward(joint: JointGraph, split: Split, copied: dict[int, str]) -> torch.fx.Graph:
    wanted = [f and not b for f, b in zip(joint.is_forward, joint.is_backward, strict=True)]
    for i in split.saved:
        wanted[i] = True
    for i in range(len(wanted) - 1, -1, -1):
        if wanted[i]:
            for j in joint.inputs[i]:
                wanted[j] = True
    writer = _GraphWriter(joint)
    for i, node in enumerate(joint.nodes):
        if node.op == "placeholder" and not is_tangent(node) and not is_backward_seed(node):
            writer.placeholder(i)
    copies: dict[int, torch.fx.Node] = {}
    for i in copied:
        if joint.nodes[i].op == "placeholder":
            copies[i] = _clone(writer, i, copied[i])
    for i, node in enumerate(joint.nodes):
        if wanted[i] and node.op != "placeholder":
            writer.copy(i)
            if i in copied:
                copies[i] = _clone(writer, i, copied[i])
    saved = [copies.get(i, writer.written[i]) for i in split.saved]
    return writer.finish([*writer.values(joint.forward_outputs), *saved])


def _clone(writer: _GraphWriter, number: int, name: str) -> torch.fx.Node:
    """A clone of the value, to be saved."""
    original = writer.written[number]
    clone = writer.graph.create_node("call_function", torch.ops.aten.clone.default, (original,), name=name)
    clone.meta = dict(original.meta)
    note(clone, is_mutated_input=False)
    return clone


def _write_backward(joint: JointGraph, split: Split, copied: dict[int, str]) -> torch.fx.Graph:
    writer = _GraphWriter(joint)
    for i in (*split.scalars, *split.tensors, *split.objects):
        writer.placeholder(i, copied.get(i))
        note(writer.written[i], is_mutated_input=False)
    for is_wanted in (is_tangent, is_backward_seed):
        for i, node in enumerate(joint.nodes):
            if is_wanted(node):
                writer.placeholder(i)
    emit = _emitter(joint, split.in_backward, writer)
    for i, is_backward in enumerate(joint.is_backward):
        if is_backward and i in split.in_backward:
            emit(i)
    outputs = joint.numbers_of(joint.backward_outputs)
    for i in sorted(set(outputs)):
        emit(i)
    return writer.finish(writer.values(joint.backward_outputs))


def _emitter(joint: JointGraph, in_backward: Collection[int], writer: _GraphWriter) -> Callable[[int], None]:
    """A function that writes a node, after missing nodes it depends on. `getitem` nodes follow the tuple they read."""
    items: dict[int, list[int]] = {}
    for i in in_backward:
        if joint.nodes[i].target is operator.getitem:
            items.setdefault(joint.inputs[i][0], []).append(i)

    def emit(number: int) -> None:
        if number in writer.written:
            return
        missing: set[int] = set()
        waiting = [number]
        while waiting:
            i = waiting.pop()
            if i not in writer.written and i not in missing:
                missing.add(i)
                waiting += joint.inputs[i]
        for i in sorted(missing):
            if i not in writer.written:
                writer.copy(i).meta["autograd_backward"] = True
            for item in sorted(items.get(i, ())):
                if item not in writer.written:
                    writer.copy(item).meta["autograd_backward"] = True

    return emit


def views_on_the_way(joint: JointGraph, number: int) -> list[int]:
    """The chain of views from a view up to the owner of its memory, without the owner."""
    chain: list[int] = []
    while joint.is_view(number):
        chain.append(number)
        source = viewed_node(joint.nodes[number])
        assert source is not None, joint.nodes[number]
        number = joint.number_of[joint.resolve(source)]
    return chain
