"""Which tangents each gradient depends on, and for which tangents it is a constant or requires a gradient itself.

Counterpart: none; torch's aot_autograd returns zeros where eager returns None
"""

from __future__ import annotations

import contextlib
import functools
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch

from refimpl._torch import gradients_in_trace
from refimpl.aot.analysis.autograd_graph import has_custom_function, steps_behind
from refimpl.aot.analysis.subclasses import build, dense_parts, layout_of
from refimpl.aot.joint.backward import IS_BACKWARD, is_tangent, step_number
from refimpl.aot.joint.zero_gradients import is_made_as_zeros, zeros_of_zeros
from refimpl.trace.metadata import note, notes_of
from refimpl.trace.recording_mode import RecordingMode
from refimpl.trace.tracker import Tracked


def gradient_dependences(
    joint: torch.fx.GraphModule, tangents: Sequence[torch.fx.Node], first_gradient: int, num_gradients: int
) -> tuple[frozenset[int], ...]:
    """For every gradient that the joint graph returns, the indices of the tangents it is computed from."""
    bits = _read(joint.graph, {node: 1 << index for index, node in enumerate(tangents)})
    returned: Any = joint.graph.output_node().args[0]
    gradients = returned[first_gradient : first_gradient + num_gradients]
    return tuple(
        frozenset(i for i in range(len(tangents)) if isinstance(g, torch.fx.Node) and bits.get(g, 0) >> i & 1)
        for g in gradients
    )


class AnswersState:
    """What the backwards of custom torch.autograd.Functions returned when they were recorded.

    They may have side effects, so that each is called once. A later question is answered from the record.
    """

    def __init__(self, find: Callable[[torch.Tensor], Tracked | None], constants: torch.nn.Module) -> None:
        self._find = find
        self._constants = constants  # of the graph
        # Keys are autograd nodes.
        self._found: dict[Any, tuple[tuple[Any, ...], Any]] = {}  # the gradients it got, and what it returned
        self._read: dict[Any, list[set[int]]] = {}  # for each returned gradient, the gradients it is computed from
        self._is_partial = False  # there are several outputs, some of which may get no gradient
        self._of_tangents: set[torch.fx.Node] = set()  # nodes up to `_last` that depend on tangents
        self._last: torch.fx.Node | None = None
        self._adding: list[Any] = []  # autograd nodes that may return something else than zeros for zeros

    @contextlib.contextmanager
    def recorded(self, outputs: Iterable[torch.Tensor]) -> Iterator[None]:
        """Within, custom backwards behind these outputs are called, and what they return is recorded."""
        behind = list(outputs)
        self._is_partial = len(behind) > 1
        with _called_instead(steps_behind(behind), self._ask):
            yield

    @contextlib.contextmanager
    def given_again(self, steps: Iterable[Any]) -> Iterator[None]:
        """Within, these autograd nodes return what was recorded, with None for gradients of missing tangents alone."""
        with _called_instead(steps, self._answer):
            yield

    def adding(self, outputs: Sequence[torch.Tensor]) -> tuple[frozenset[int], ...]:
        """For every backward that may return something else than zeros for zeros: the outputs it is behind, if not all."""
        if not self._adding:
            return ()
        behind = [set(steps_behind([output])) for output in outputs]
        found = [frozenset(i for i, steps in enumerate(behind) if step in steps) for step in self._adding]
        return tuple(dict.fromkeys(one for one in found if 0 < len(one) < len(outputs)))

    def known_steps(self, graph: torch.fx.Graph) -> set[Any]:
        """The autograd nodes whose returned gradients are computed from the gradients they got, or are zeros.

        Only for these does the record say what they return for the gradient of one output.
        """
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
        """The returned gradients, with an artificial dependence on the incoming ones for those that are constants but not zeros.

        Autograd returns such a constant if any gradient arrives, and does not call the backward otherwise.
        """
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
        """The ids of the dense tensors of a value that are not created as zeros."""
        tensors = [(part, self._find(part)) for part in _tensors_of(value) if part.layout is torch.strided]
        return [id(part) for part, one in tensors if one is None or not is_made_as_zeros(one.node)]

    def _arrives(self, tensor: torch.Tensor) -> bool:
        """Whether it is computed from tangents. Zeros that autograd created for a missing gradient are not."""
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
    """A tensor that is False and depends on all gradients: on one element of each that certainly has one."""
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
    """The tensor, or the dense tensors of a wrapper subclass that `zeros_like` would fill: those that are not of integers."""
    parts = [part for part in dense_parts(value) if isinstance(part, torch.Tensor)]
    return [part for part in parts if part.is_floating_point() or part.is_complex()]


def _is_lost(read: set[int], missing: set[int]) -> bool:
    return bool(read) and read <= missing


def _as_tuple(returned: Any) -> tuple[Any, ...]:
    return returned if isinstance(returned, tuple) else (returned,)


@contextlib.contextmanager
def _called_instead(steps: Iterable[Any], call: Callable[..., Any]) -> Iterator[None]:
    """Within, autograd calls `call(step, ...)` in place of the backward of a custom function."""
    custom = [step for step in steps if has_custom_function(step, 1)]
    for step in custom:  # autograd looks `apply` up when it runs the node
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
    """For every gradient, the tangents that autograd needs for it but does not read: the gradient of `x ** 0` is zeros.

    gradients: pairs of a leaf and its recorded gradient; answers: the record of custom backwards, which are not called again.
    Recording must be paused.
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
                (gradient,) = gradients_in_trace(output, leaf, tangent, allow_unused=True, retain_graph=True)
            if gradient is not None:
                found[g].add(index)
    return tuple(map(frozenset, found))


def _read(graph: torch.fx.Graph, sources: dict[Any, int]) -> dict[Any, int]:
    """For every node, the bits of the sources it is computed from."""
    bits = dict(sources)
    for node in graph.nodes:
        if node.op == "call_function":
            found = bits.get(node, 0)
            for argument in node.all_input_nodes:
                found |= bits.get(argument, 0)
            bits[node] = found
    return bits


# Which gradients require a gradient in eager: those that the backward computes from values that depend on the inputs.

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
    """For every gradient that the joint graph returns, the tangents that make it require a gradient in eager.

    They do so even if they require none themselves, because the nodes that read them also read values that do: the gradient of
    `x ** 2` is `2 * x * tangent`.

    Counterpart: none; upstream asks whether saved tensors require gradients, but those a compiled forward computed never do
    """
    reads = {node: 1 << index for index, node in enumerate(tangents)}
    found: dict[torch.fx.Node, int] = {}
    has_history: set[torch.fx.Node] = set()  # nodes that require a gradient and depend on no tangent
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
    """Whether the result requires a gradient if an argument does."""
    if notes_of(node).is_decomposed_gradient:
        return True
    value = node.meta.get("val")
    is_number = isinstance(value, torch.Tensor) and not (value.is_floating_point() or value.is_complex())
    return node.target not in _DETACHED and not is_number


_SUMS = (torch.ops.aten.add.Tensor, torch.ops.aten.add_.Tensor)


def note_constants(graph: torch.fx.Graph, outputs: Sequence[torch.Tensor]) -> None:
    """Note on gradients that are constants, such as the zeros of `sgn`, the tangents one of which autograd needs to produce them.

    The graph does not show it: it adds them to gradients computed from other tangents. outputs: where the backward starts. To be
    called before `copy_forward_provenance`.
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
    """For every node of a backward graph, the tangents for which autograd certainly produces the constants it depends on."""
    behind: dict[torch.fx.Node, frozenset[int]] = {}
    for node in graph.nodes:
        notes = notes_of(node)
        own = notes.given_with if notes.is_given_for_sure else None
        behind[node] = (own or frozenset()).union(*(behind[read] for read in node.all_input_nodes))
    return behind
