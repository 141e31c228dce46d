"""Taps: graphs that also return what a captured graph computes on the way, its values or its gradients.

A tapped graph is a program like any other, so that any subject compiles it and the judge compares it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import fx
from torch.utils._pytree import tree_leaves

from oracle.dtypes import ARITHMETIC_COMPLEX, ARITHMETIC_FLOATS, ARITHMETIC_INTEGERS
from oracle.localisation.values.captured import CapturedGraph
from oracle.localisation.values.graph_run import GraphRun
from oracle.symptom import symptom_of
from oracle.verdict import Status, Verdict

# Kinds of a symptom (oracle.symptom) that say that a tensor is wrong, and not only its strides, flags or aliases.
_WRONG = re.compile(r"\w+: |\w+\.(?:shape|dtype|device|layout)$")

GRADIENTS = "grad of (?:args|inputs)"  # of a run's arguments, or of the inputs that they are computed from
_SUMMED = ARITHMETIC_FLOATS | ARITHMETIC_COMPLEX
_UNITED = ARITHMETIC_INTEGERS | {torch.bool}


@dataclass(frozen=True, slots=True, kw_only=True)
class Tap:
    """One value or gradient that is looked at."""

    node: str  # the operator whose forward or backward computes it
    value: str  # the node whose value it is; for a gradient: the argument of `node` that it belongs to
    after: tuple[int, ...]  # positions of the taps that it is computed from


class Taps(Protocol):
    """Values or gradients of one graph, in the order in which they are computed."""

    taps: Sequence[Tap]

    has_backward: bool  # the taps are gradients

    def program(self, chosen: Sequence[int]) -> tuple[fx.GraphModule, tuple[Any, ...]]:
        """The graph with these taps, which also returns what the graph itself returns, and its inputs."""
        ...

    def wrong(self, verdict: Verdict, chosen: Sequence[int]) -> dict[int, str]:
        """The chosen taps that the verdict on this program finds wrong, each with the symptom."""
        ...

    def has_wrong_result(self, verdict: Verdict) -> bool:
        """Whether the verdict on the program with all taps finds something wrong that the graph itself returns."""
        ...

    def ends(self, verdict: Verdict) -> dict[int, str]:
        """The taps that compute what the verdict on the graph without taps finds wrong, each with the symptom."""
        ...

    def is_certain(self, position: int) -> bool:
        """Whether this tap's operator is to blame if the tap is wrong and all that it is computed from are right."""
        ...


def wrong_places(verdict: Verdict, prefix: str) -> dict[int, str]:
    """Index -> symptom, for each wrong tensor at `prefix[index]`, in the order of the verdict. `prefix` is a pattern."""
    path = re.compile(rf"^call \d+: {prefix}\[(\d+)\]")
    found: dict[int, str] = {}
    for text in (verdict.symptom, *verdict.also):
        at = path.match(text)
        kind = symptom_of(replace(verdict, status=Status.FAIL_ACCURACY, symptom=text)).kind
        if at is not None and _WRONG.match(kind):
            found.setdefault(int(at[1]), text)
    return found


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Value:
    """A tensor as it is right after a node: the node's result, or an argument that the node changes in place."""

    node: fx.Node
    of: fx.Node
    is_kept: bool  # no later node changes it
    is_view: bool  # of an earlier tensor


class ValueTaps:
    """The tensors that a graph computes, in topological order."""

    has_backward = False

    def __init__(self, captured: CapturedGraph, run: GraphRun) -> None:
        self._module = captured.module
        self._inputs = captured.inputs
        self._run = run
        self._values: list[_Value] = []
        taps: list[Tap] = []
        last: dict[int, int] = {}  # storage -> position of the last value in it
        for node in run.operators:
            after = tuple(sorted(_sources(run, node, last)))
            named: Any = node.args[0] if run.is_part(node) else node
            for of in _written(run, node):
                taps.append(Tap(node=named.name, value=of.name, after=after))
                is_kept = not run.is_changed_after(node, of)
                self._values.append(_Value(node=node, of=of, is_kept=is_kept, is_view=run.is_view(of)))
                last.update(dict.fromkeys(run.storages(of), len(taps) - 1))
        self.taps: Sequence[Tap] = taps

    def program(self, chosen: Sequence[int]) -> tuple[fx.GraphModule, tuple[Any, ...]]:
        wanted: dict[fx.Node, list[int]] = {}
        for position in chosen:
            wanted.setdefault(self._values[position].node, []).append(position)
        graph, copies, tapped = fx.Graph(), dict[fx.Node, fx.Node](), dict[int, fx.Node]()
        changed = [self._run.tensor(self._values[at].of) for at in chosen if not self._values[at].is_kept]
        neutral = {tensor.dtype: _neutral_element(tensor) for tensor in changed if tensor is not None}
        numbers = {dtype: graph.placeholder(f"neutral_{i}") for i, dtype in enumerate(neutral)}
        for node in self._run.nodes:
            if node.op == "output":
                returned = [copies[leaf] if isinstance(leaf, fx.Node) else leaf for leaf in _returned(node)]
                graph.output((*(tapped[position] for position in chosen), *returned))
                break
            copies[node] = graph.node_copy(node, copies.__getitem__)
            for position in wanted.get(node, ()):
                value = self._values[position]
                tensor = self._run.tensor(value.of)
                assert tensor is not None  # all values are tensors
                tapped[position] = copies[value.of]
                if not value.is_kept:
                    tapped[position] = _copied(graph, copies[value.of], numbers[tensor.dtype], tensor.dtype)
                elif value.is_view:  # AOT autograd computes views that are returned outside of the graph
                    tapped[position] = graph.call_method("clone", (copies[value.of],))
        return fx.GraphModule(self._module, graph), (*neutral.values(), *self._inputs)

    def wrong(self, verdict: Verdict, chosen: Sequence[int]) -> dict[int, str]:
        return {chosen[at]: text for at, text in wrong_places(verdict, "output").items() if at < len(chosen)}

    def has_wrong_result(self, verdict: Verdict) -> bool:
        return any(at >= len(self.taps) for at in wrong_places(verdict, "output"))

    def ends(self, verdict: Verdict) -> dict[int, str]:
        returned = _returned(self._run.nodes[-1])
        inputs = [node for node in self._run.nodes if node.op == "placeholder"]
        wrong: list[tuple[Any, str]] = [(returned[at], text) for at, text in wrong_places(verdict, "output").items()]
        wrong += [(inputs[at], text) for at, text in wrong_places(verdict, "args").items()]
        last: dict[Any, int] = {value.of: position for position, value in enumerate(self._values)}
        return {last[node]: text for node, text in wrong if node in last}

    def is_certain(self, position: int) -> bool:
        return True


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Edge:
    """An argument of an operator, to which a gradient flows back."""

    node: fx.Node
    argument: fx.Node
    same: tuple[fx.Node, ...] = ()  # if the node changes it in place: all nodes that are this tensor
    is_tapped: bool = True


class GradientTaps:
    """The gradients that each operator's backward computes for its arguments, in the order of the backward.

    The tap of an argument is an input of zeros that is added to it: its gradient is the one that flows back here.
    """

    has_backward = True

    def __init__(self, captured: CapturedGraph, run: GraphRun) -> None:
        self._module = captured.module
        self._inputs = captured.inputs
        self._run = run
        every = [edge for node in run.operators for edge in _edges(run, node)]
        every.sort(key=lambda edge: -run.position[edge.node])
        self._untapped = [edge for edge in every if not edge.is_tapped]
        self._edges = [edge for edge in every if edge.is_tapped]
        readers: dict[int, list[int]] = {}  # storage -> positions of the edges to it
        for position, edge in enumerate(self._edges):
            readers.setdefault(_storage_of(run, edge), []).append(position)
        taps: list[Tap] = []
        for edge in self._edges:
            reached = {position for storage in run.written_by(edge.node) for position in readers.get(storage, ())}
            after = [position for position in sorted(reached) if self._is_later(self._edges[position], edge)]
            taps.append(Tap(node=edge.node.name, value=edge.argument.name, after=tuple(after)))
        self.taps: Sequence[Tap] = taps

    def program(self, chosen: Sequence[int]) -> tuple[fx.GraphModule, tuple[Any, ...]]:
        graph, copies = fx.Graph(), dict[fx.Node, fx.Node]()
        zeros = {self._edges[at]: graph.placeholder(f"tap_{number}") for number, at in enumerate(chosen)}
        by_node: dict[fx.Node, list[_Edge]] = {}
        for edge in zeros:
            by_node.setdefault(edge.node, []).append(edge)
        for node in self._run.nodes:
            here = dict[fx.Node, fx.Node]()
            for edge in by_node.get(node, ()):
                added = graph.call_function(torch.add, (copies[edge.argument], zeros[edge]))
                here[edge.argument] = added
                copies.update(dict.fromkeys(edge.same, added))
            copies[node] = graph.node_copy(node, lambda one, here=here: here.get(one, copies[one]))
        tensors = [_zeros_like(self._run.tensor(edge.argument)) for edge in zeros]
        return fx.GraphModule(self._module, graph), (*tensors, *self._inputs)

    def wrong(self, verdict: Verdict, chosen: Sequence[int]) -> dict[int, str]:
        return {chosen[at]: text for at, text in wrong_places(verdict, GRADIENTS).items() if at < len(chosen)}

    def has_wrong_result(self, verdict: Verdict) -> bool:
        return any(at >= len(self.taps) for at in wrong_places(verdict, GRADIENTS))

    def ends(self, verdict: Verdict) -> dict[int, str]:
        inputs = [node for node in self._run.nodes if node.op == "placeholder"]
        found: dict[int, str] = {}
        for at, text in wrong_places(verdict, GRADIENTS).items():
            positions = [i for i, edge in enumerate(self._edges) if edge.argument is inputs[at]]
            # A gradient that several operators add up does not tell which of them is wrong.
            if len(positions) == 1 and all(edge.argument is not inputs[at] for edge in self._untapped):
                found[positions[0]] = text
        return found

    def is_certain(self, position: int) -> bool:
        edge = self._edges[position]
        written = self._run.written_by(edge.node)
        return not any(
            self._is_later(other, edge) and _storage_of(self._run, other) in written for other in self._untapped
        )

    def _is_later(self, other: _Edge, edge: _Edge) -> bool:
        """Whether the operator of `other` comes later in the graph, so that its backward comes before."""
        return self._run.position[other.node] > self._run.position[edge.node]


def _neutral_element(tensor: torch.Tensor) -> torch.Tensor:
    """The number that changes no tensor of this dtype: -0.0 for a sum of floats, 0 for a bitwise or."""
    zero = torch.zeros((), dtype=tensor.dtype, device=tensor.device)
    return -zero if tensor.is_floating_point() or tensor.is_complex() else zero


def _copied(graph: fx.Graph, node: fx.Node, neutral: fx.Node, dtype: torch.dtype) -> fx.Node:
    """A copy that a compiler must make: it may drop a clone, and it does so wrongly where it writes in place."""
    if dtype in _SUMMED:
        return graph.call_function(torch.add, (node, neutral))
    if dtype in _UNITED:
        return graph.call_function(torch.bitwise_or, (node, neutral))
    return graph.call_method("clone", (node,))


def _returned(output: fx.Node) -> list[Any]:
    """The outputs of a graph, nodes and constants, in the order of the judge's paths."""
    return tree_leaves(output.args)


def _written(run: GraphRun, node: fx.Node) -> Iterator[fx.Node]:
    """The node if its result is a tensor, then what it changes and does not return: arguments, and tensors they are views of."""
    result = run.tensor(node)
    if result is not None:
        yield node
    seen = {id(result)}
    for argument in run.changed_by(node):
        for other in (argument, *(run.first_with_storage(storage) for storage in run.storages(argument))):
            if id(run.tensor(other)) not in seen:
                seen.add(id(run.tensor(other)))
                yield other


def _sources(run: GraphRun, node: fx.Node, last: Mapping[int, int]) -> set[int]:
    """Positions of the values that a node reads, through nodes that are no tensors."""
    found: set[int] = set()
    for argument in node.all_input_nodes:
        here = {last[storage] for storage in run.storages(argument) if storage in last}
        found |= here or _sources(run, argument, last)
    return found


def _edges(run: GraphRun, node: fx.Node) -> Iterator[_Edge]:
    for argument in run.differentiates(node):
        (storage,) = run.storages(argument)
        if argument in run.changed_by(node):
            # The sum takes the place of the tensor from here on, which is right only if no view of it exists.
            same = run.earlier_with_storage(node, storage)
            is_alone = all(run.tensor(other) is run.tensor(argument) for other in same)
            yield _Edge(node=node, argument=argument, same=tuple(same), is_tapped=is_alone)
        else:
            # A view of the sum would not see a later change of the tensor.
            is_read_later = storage in run.storages(node) and run.is_changed_after(node, argument)
            yield _Edge(node=node, argument=argument, is_tapped=not is_read_later)


def _storage_of(run: GraphRun, edge: _Edge) -> int:
    (storage,) = run.storages(edge.argument)
    return storage


def _zeros_like(tensor: torch.Tensor | None) -> torch.Tensor:
    assert tensor is not None  # an edge's argument is a tensor
    return torch.zeros_like(tensor.detach()).requires_grad_()
