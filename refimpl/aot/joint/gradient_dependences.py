"""Which tangents each gradient depends on, and with which of them it is a constant, or requires a gradient itself.

Counterpart: none; torch's aot_autograd gives zeros where eager mode gives None
"""

from __future__ import annotations

import contextlib
import functools
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch

from refimpl.aot.analysis.autograd_graph import has_custom_function, steps_behind
from refimpl.aot.analysis.subclasses import build, dense_parts, layout_of
from refimpl.aot.joint.backward import IS_BACKWARD, is_tangent, step_number
from refimpl.aot.joint.zero_gradients import is_made_as_zeros, zeros_of_zeros
from refimpl.trace.notes import note, notes_of
from refimpl.trace.recording_mode import RecordingMode
from refimpl.trace.tracker import Tracked


def gradient_dependences(
    joint: torch.fx.GraphModule, tangents: Sequence[torch.fx.Node], first_gradient: int, num_gradients: int
) -> tuple[frozenset[int], ...]:
    """Of every gradient that the joint graph returns, the indices of the tangents it is computed from."""
    bits = _read(joint.graph, {node: 1 << index for index, node in enumerate(tangents)})
    returned: Any = joint.graph.output_node().args[0]
    gradients = returned[first_gradient : first_gradient + num_gradients]
    return tuple(
        frozenset(i for i in range(len(tangents)) if isinstance(g, torch.fx.Node) and bits.get(g, 0) >> i & 1)
        for g in gradients
    )


class AnswersState:
    """What backwards of the user's gave when they were recorded: they may have effects, and are called once."""

    def __init__(self, find: Callable[[torch.Tensor], Tracked | None], constants: torch.nn.Module) -> None:
        self._find = find
        self._constants = constants  # of the graph
        self._found: dict[Any, tuple[tuple[Any, ...], Any]] = {}  # by step: what arrived, and what it returned
        self._read: dict[Any, list[set[int]]] = {}  # by step: what arrived that each gradient is computed of
        self._is_partial = False  # gradients may arrive at some of the outputs
        self._of_tangents: set[torch.fx.Node] = set()  # of those up to `_last`
        self._last: torch.fx.Node | None = None
        self._adding: list[Any] = []  # steps that may give something else than zeros where zeros arrive

    @contextlib.contextmanager
    def recorded(self, outputs: Iterable[torch.Tensor]) -> Iterator[None]:
        """Within, the backwards behind these outputs are called and remembered."""
        behind = list(outputs)
        self._is_partial = len(behind) > 1
        with _called_instead(steps_behind(behind), self._ask):
            yield

    @contextlib.contextmanager
    def given_again(self, steps: Iterable[Any]) -> Iterator[None]:
        """Within, these known steps give what they gave, but what was computed of what does not arrive alone."""
        with _called_instead(steps, self._answer):
            yield

    def adding(self, outputs: Sequence[torch.Tensor]) -> tuple[frozenset[int], ...]:
        """For backwards that may give more than zeros where zeros arrive: the outputs in front of each, if not all are."""
        if not self._adding:
            return ()
        behind = [set(steps_behind([output])) for output in outputs]
        found = [frozenset(i for i, steps in enumerate(behind) if step in steps) for step in self._adding]
        return tuple(dict.fromkeys(one for one in found if 0 < len(one) < len(outputs)))

    def known_steps(self, graph: torch.fx.Graph) -> set[Any]:
        """The steps whose gradients are computed of what arrives, or zeros: of no other can one output's part be told."""
        sources: dict[Any, int] = {}
        first, total = {}, 0
        for step, (gradients, _) in self._found.items():
            first[step] = total
            for index, gradient in enumerate(gradients, total):
                tracked = None if gradient is None else self._find(gradient)
                if tracked is not None:
                    sources[tracked.node] = sources.get(tracked.node, 0) | 1 << index
            total += len(gradients)
        bits = _read(graph, sources)
        for step, (gradients, returned) in self._found.items():
            found = [self._find(t) for t in _as_tuple(returned) if isinstance(t, torch.Tensor)]
            of_step = [0 if t is None else bits.get(t.node, 0) >> first[step] for t in found]
            read = [{i for i in range(len(gradients)) if one >> i & 1} for one in of_step]
            if all(one or (t is not None and is_made_as_zeros(t.node)) for one, t in zip(read, found, strict=True)):
                self._read[step] = read
        return set(self._read)

    def _ask(self, step: Any, *gradients: Any) -> Any:
        arrived = [self._find(part) for gradient in gradients for part in _tensors_of(gradient)]
        sources = [one.node for one in arrived if one is not None]
        last = next(iter(reversed(sources[0].graph.nodes))) if sources else None
        returned = type(step).apply(step, *gradients)
        if self._is_partial and last is not None:
            returned = self._tied(returned, gradients)
            zeros = zeros_of_zeros(last, sources, self._constants)
            given = [self._find(part) for value in _as_tuple(returned) for part in _tensors_of(value)]
            if any(one is None or one.node not in zeros for one in given):
                self._adding.append(step)
        self._found[step] = gradients, returned
        return returned

    def _tied(self, returned: Any, gradients: Sequence[Any]) -> Any:
        """The same, where what is not computed of what arrives, and is not zeros, reads that without using it: autograd gives it
        where anything arrives, and calls the backward nowhere else."""
        arrived = [part for gradient in gradients for part in _tensors_of(gradient) if self._arrives(part)]
        told: torch.Tensor | None = None
        found: list[Any] = []
        for value in _as_tuple(returned):
            untold = [] if not arrived or any(map(self._arrives, _tensors_of(value))) else self._constants_of(value)
            if untold:
                told = _never(arrived) if told is None else told
                parts = [part.masked_fill(told, 0) if id(part) in untold else part for part in dense_parts(value)]
                value = build(layout_of(value), parts)
            found.append(value)
        return tuple(found) if isinstance(returned, tuple) else found[0]

    def _constants_of(self, value: Any) -> list[int]:
        """By id, the dense tensors of a value that are not made as zeros."""
        tensors = [(part, self._find(part)) for part in _tensors_of(value) if part.layout is torch.strided]
        return [id(part) for part, one in tensors if one is None or not is_made_as_zeros(one.node)]

    def _arrives(self, tensor: torch.Tensor) -> bool:
        """Whether it is computed of incoming gradients: zeros in the place of one that there is none of are not."""
        tracked = self._find(tensor)
        if tracked is None:
            return False
        nodes = tracked.node.graph.nodes
        node = next(iter(nodes)) if self._last is None else self._last.next
        while node.op != "root":
            if is_tangent(node) or not self._of_tangents.isdisjoint(node.all_input_nodes):
                self._of_tangents.add(node)
            self._last, node = node, node.next
        return tracked.node in self._of_tangents

    def _answer(self, step: Any, *gradients: Any) -> Any:
        arrived, returned = self._found[step]
        missing = {i for i, gradient in enumerate(gradients) if gradient is None and arrived[i] is not None}
        read = iter(self._read[step])
        left = [
            t if isinstance(t, torch.Tensor) and not _is_lost(next(read), missing) else None
            for t in _as_tuple(returned)
        ]
        return tuple(left)


def _never(gradients: Sequence[torch.Tensor]) -> torch.Tensor:
    """False, of what the gradients are: one element of each where there is one for sure."""
    with torch.no_grad():
        odd: torch.Tensor | None = None
        for gradient in gradients:
            is_known = gradient.layout is torch.strided and all(type(size) is int and size for size in gradient.shape)
            one = gradient.detach()[(0,) * gradient.dim()] if is_known else gradient.detach()
            one = one != one if is_known else (one != one).any()
            odd = one if odd is None else odd | one
        assert odd is not None
        return odd & ~odd


def _tensors_of(value: Any) -> list[torch.Tensor]:
    """A tensor; of a wrapper subclass those that are zeros in zeros like it: not its integers."""
    parts = [part for part in dense_parts(value) if isinstance(part, torch.Tensor)]
    return [part for part in parts if part.is_floating_point() or part.is_complex()]


def _is_lost(read: set[int], missing: set[int]) -> bool:
    return bool(read) and read <= missing


def _as_tuple(returned: Any) -> tuple[Any, ...]:
    return returned if isinstance(returned, tuple) else (returned,)


@contextlib.contextmanager
def _called_instead(steps: Iterable[Any], call: Callable[..., Any]) -> Iterator[None]:
    """Autograd looks up `apply` of a step of the user's when it runs it."""
    custom = [step for step in steps if has_custom_function(step, 1)]
    for step in custom:
        step.apply = functools.partial(call, step)
    try:
        yield
    finally:
        for step in custom:
            del step.apply


def given_unread(
    graph: torch.fx.Graph,
    outputs: Sequence[torch.Tensor],
    tangents: Sequence[torch.Tensor],
    gradients: Sequence[tuple[torch.Tensor, torch.Tensor]],
    node_of: Callable[[torch.Tensor], Any],
    answers: AnswersState,
) -> tuple[frozenset[int], ...]:
    """Of every gradient, the indices of the tangents that autograd gives one for without reading them: that of `x ** 0` is zeros.

    gradients: of which leaf each is, and what was recorded for it; answers: of the backwards of the user's, which are not called
    again. To be called while nothing is recorded.
    """
    parts = [(index, part) for index, tangent in enumerate(tangents) for part in _tensors_of(tangent)]
    bits = _read(graph, {node_of(part): 1 << index for index, part in parts})
    reads = [functools.reduce(operator.or_, [bits.get(node_of(t), 0) for t in _tensors_of(g)], 0) for _, g in gradients]
    known = answers.known_steps(graph)
    found: list[set[int]] = [set() for _ in gradients]
    for index, (output, tangent) in enumerate(zip(outputs, tangents, strict=True)):
        unread = [g for g, read in enumerate(reads) if not read >> index & 1]
        steps = set(steps_behind([output])) if unread else set()
        if any(has_custom_function(step, 1) and step not in known for step in steps):
            continue
        for g in unread:
            leaf = gradients[g][0]
            if torch.autograd.graph.get_gradient_edge(leaf).node not in steps:
                continue
            with answers.given_again(steps):
                (gradient,) = torch.autograd.grad(output, leaf, tangent, allow_unused=True, retain_graph=True)
            if gradient is not None:
                found[g].add(index)
    return tuple(map(frozenset, found))


def _read(graph: torch.fx.Graph, sources: dict[Any, int]) -> dict[Any, int]:
    """By node, the bits of the sources it is computed from."""
    bits = dict(sources)
    for node in graph.nodes:
        if node.op == "call_function":
            found = bits.get(node, 0)
            for argument in node.all_input_nodes:
                found |= bits.get(argument, 0)
            bits[node] = found
    return bits


# Which gradients require a gradient in eager mode: those that a backward computes of values that depend on the inputs.

_DETACHED = frozenset({torch.ops.aten.detach.default, torch.ops.aten.detach_.default})


def note_history(node: torch.fx.Node, recording: RecordingMode) -> None:
    """Note on a recorded node of the backward whether it reads a tensor that requires a gradient."""
    if any(tensor.requires_grad for tensor in recording.operands):
        note(node, reads_history=True)
    if recording.decomposed is not None:
        note(node, is_decomposed_gradient=True)


def gradient_histories(
    joint: torch.fx.GraphModule, tangents: Sequence[torch.fx.Node], first_gradient: int, num_gradients: int
) -> tuple[frozenset[int], ...]:
    """Of every gradient that the joint graph returns, the indices of the tangents whose arrival lets it require a gradient in
    eager mode, also if they themselves do not: what is computed with them reads values that do.

    Counterpart: none; upstream asks whether saved tensors require gradients, and of what a compiled forward has made none does
    """
    reads = {node: 1 << index for index, node in enumerate(tangents)}
    found: dict[torch.fx.Node, int] = {}
    has_history: set[torch.fx.Node] = set()  # that no tangent has a part in
    for node in joint.graph.nodes:
        if node.op != "call_function":
            continue
        sources = node.all_input_nodes
        bits = histories = 0
        for source in sources:
            bits |= reads.get(source, 0)
            histories |= found.get(source, 0)
        if bits:
            reads[node] = bits
        if not _is_differentiable(node):
            continue
        if notes_of(node).reads_history or not has_history.isdisjoint(sources):
            histories |= bits
            if not bits:
                has_history.add(node)
        if histories:
            found[node] = histories
    returned: Any = joint.graph.output_node().args[0]
    everything = (1 << len(tangents)) - 1
    gradients = returned[first_gradient : first_gradient + num_gradients]
    by_gradient = [everything if g in has_history else found.get(g, 0) for g in gradients]
    return tuple(frozenset(i for i in range(len(tangents)) if bits >> i & 1) for bits in by_gradient)


def _is_differentiable(node: torch.fx.Node) -> bool:
    """Whether a result has the history of what it is computed from."""
    if notes_of(node).is_decomposed_gradient:
        return True
    value = node.meta.get("val")
    is_number = isinstance(value, torch.Tensor) and not (value.is_floating_point() or value.is_complex())
    return node.target not in _DETACHED and not is_number


_SUMS = (torch.ops.aten.add.Tensor, torch.ops.aten.add_.Tensor)


def note_constants(graph: torch.fx.Graph, outputs: Sequence[torch.Tensor]) -> None:
    """Note on gradients that are constants, as the zeros of `sgn`, which tangents must arrive before autograd produces them.

    The graph does not tell: it adds them to gradients computed of other tangents. outputs: the results that the backward begins
    at. To be called before provenance is copied.
    """
    of_tangents: set[torch.fx.Node] = set()
    constants: dict[torch.fx.Node, set[int | None]] = {}  # of the backward: numbers of the steps that make them
    summands: dict[torch.fx.Node, set[int | None]] = {}
    for node in graph.nodes:
        if is_tangent(node) or not of_tangents.isdisjoint(node.all_input_nodes):
            of_tangents.add(node)
            if node.target in _SUMS:
                summands.update((read, constants[read]) for read in node.all_input_nodes if read in constants)
        elif node.op == "call_function" and node.meta.get("partitioner_tag") == IS_BACKWARD:
            made = [constants[read] for read in node.all_input_nodes if read in constants]
            constants[node] = set().union(*made) if made else {step_number(node)}
    if not summands:
        return
    behind = [{step._sequence_nr() for step in steps_behind([output])} for output in outputs]
    is_sure = not any(has_custom_function(step, 1) for step in steps_behind(outputs))
    for node, steps in summands.items():
        with_all = [frozenset(i for i, numbers in enumerate(behind) if step in numbers) for step in steps]
        if all(with_all):
            note(node, given_with=frozenset().union(*with_all), is_given_for_sure=is_sure)


def constants_behind(graph: torch.fx.Graph) -> dict[torch.fx.Node, frozenset[int]]:
    """Of every node of a backward graph: the tangents with which autograd surely produces the constants it is computed of."""
    behind: dict[torch.fx.Node, frozenset[int]] = {}
    for node in graph.nodes:
        notes = notes_of(node)
        own = notes.given_with if notes.is_given_for_sure else None
        behind[node] = (own or frozenset()).union(*(behind[read] for read in node.all_input_nodes))
    return behind
