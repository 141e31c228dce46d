"""Classifies the outputs of a program: a new tensor, an input, a view of an input, or a view of an intermediate.

Counterpart: torch/_functorch/_aot_autograd/collect_metadata_analysis.py (output aliases), schemas.py OutputAliasInfo
Differs: the ops that made an output tell which memory it uses; storages are not compared afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from refimpl._torch import creation_of_view
from refimpl.aot.analysis.autograd_graph import has_custom_function, has_gradient_of_base, history_of, is_new_leaf
from refimpl.aot.analysis.inputs import base_of
from refimpl.aot.analysis.metadata import Geometry, OutputInfo, OutputKind
from refimpl.aot.analysis.replay import replay_steps, whole_view
from refimpl.errors import UnsupportedByRefimpl
from refimpl.functionalize.aliases import REINTERPRETING, AliasMap
from refimpl.functionalize.schemas import SET_OPS
from refimpl.trace.metadata import notes_of
from refimpl.trace.tracker import TrackerState

Node = torch.fx.Node
_FORBIDDEN = object()


class ForwardOutputsState:
    """The outputs of the forward graph found so far: new values of inputs, results, bases, numbers. One per trace."""

    def __init__(self) -> None:
        self.values: list[Any] = []
        self.differentiable: dict[int, torch.Tensor] = {}  # position -> tensor with a gradient
        self.bases: list[int] = []

    def add(self, value: Any) -> int:
        """Add an output, and return its position."""
        self.values.append(value)
        return len(self.values) - 1


class OutputAnalysisState:
    """The analysis of the outputs of one trace, after the program has run.

    node_of, tracker: those of the trace. value_of: gives a tensor for a node whose own tensor is not known.
    inference_slots: slots whose real tensors are inference tensors. gradient_slots: slots that require a gradient.
    reread_slots: slots whose real tensors view a base of another dtype, or a conjugated one. Autograd remakes views of these by
    the view ops that were called.
    replays: False if no view is remade, because the caller uses the outputs of the graph as they are.
    inputs: the tensors that the program got for the slots; None if tensors are wrappers.
    """

    def __init__(
        self,
        forward: ForwardOutputsState,
        aliases: AliasMap,
        placeholders: Sequence[Node],
        node_of: Callable[[Any], Node],
        tracker: TrackerState,
        value_of: Callable[[Node], Any],
        *,
        replays: bool,
        inference_slots: frozenset[int] = frozenset(),
        gradient_slots: frozenset[int] = frozenset(),
        inputs: Sequence[Any] | None = None,
        reread_slots: frozenset[int] = frozenset(),
    ) -> None:
        self.forward = forward
        self.aliases = aliases
        self.placeholders = {node: position for position, node in enumerate(placeholders)}
        self.node_of = node_of
        self.tracker = tracker
        self.value_of = value_of
        self.replays = replays
        self.inference_slots = inference_slots
        self.gradient_slots = gradient_slots
        self.reread_slots = reread_slots
        self._roots = None if inputs is None else {id(base_of(t)) for t in inputs if isinstance(t, torch.Tensor)}
        self._siblings: dict[Node, dict[int, torch.Tensor]] = {}  # base -> the results in its memory, by identity
        self._base_positions: dict[Node, int] = {}

    def analyse(
        self, results: Sequence[Any], arguments: Sequence[Any], moved: Sequence[tuple[torch.Tensor, int]] = ()
    ) -> list[OutputInfo]:
        """One info per result; adds results, and what their views need, to the forward outputs.

        moved: inputs that now view other memory, with the positions of that memory among the forward outputs (`placement_of`).
        """
        for tensor, position in moved:
            self._note_sibling(tensor, position)
        first = len(self.forward.values)
        self.forward.values += results
        arguments_by_id = {id(a): i for i, a in reversed(list(enumerate(arguments))) if isinstance(a, torch.Tensor)}
        for index, result in enumerate(results):
            self._note_sibling(result, first + index)
        infos: list[OutputInfo] = []
        seen: dict[int, int] = {}
        for index, result in enumerate(results):
            position = first + index
            if not isinstance(result, torch.Tensor):
                infos.append(OutputInfo(kind=OutputKind.CONSTANT, position=position))
            elif id(result) in arguments_by_id:
                source = arguments_by_id[id(result)]
                infos.append(
                    OutputInfo(
                        kind=OutputKind.INPUT, position=position, source=source, requires_grad=result.requires_grad
                    )
                )
            elif id(result) in seen:
                infos.append(OutputInfo(kind=OutputKind.REPEATED, position=position, source=seen[id(result)]))
            else:
                seen[id(result)] = index
                infos.append(self._output(result, position))
        return infos

    def placement_of(self, tensor: torch.Tensor, position: int) -> OutputInfo:
        """The memory that an input views now, described as an output; for inputs that viewed other memory before."""
        node = self.node_of(tensor)
        kind, source = self._place(tensor, node, position)
        return OutputInfo(
            kind=kind,
            position=position,
            source=source,
            steps=() if source is None else self._steps(node),
            is_inference=torch.is_inference_mode_enabled() and self._is_inference(node),
        )

    def assigns_data(self, tensor: torch.Tensor) -> bool:
        """Whether the last change of the tensor's memory was an assignment `x.data = y`."""
        sets = [step.node for step in self.aliases.calls_to(self.node_of(tensor)) if step.node.target in SET_OPS]
        return bool(sets) and notes_of(sets[-1]).is_data_assignment

    def _note_sibling(self, result: Any, position: int) -> None:
        if not isinstance(result, torch.Tensor) or not self.replays or self._is_left_as_computed(result):
            return
        node = self.node_of(result)
        base = self.aliases.base_of(node)
        if base.op == "placeholder":
            return
        self._siblings.setdefault(base, {})[id(result)] = result
        if not self.aliases.steps_of(node):  # a base that is a result itself serves its siblings
            self._base_positions.setdefault(base, position)

    def _output(self, result: torch.Tensor, position: int) -> OutputInfo:
        node = self.node_of(result)
        kind, source = self._place(result, node, position)
        history = history_of(result, forbidden=_FORBIDDEN) if result.requires_grad else None
        is_view = kind in (OutputKind.VIEW_OF_INPUT, OutputKind.VIEW_OF_INTERMEDIATE)
        is_early = history is _FORBIDDEN and kind is OutputKind.VIEW_OF_INPUT
        is_early |= is_view and not result.requires_grad and self._is_older_than_a_write(result, node)
        # If autograd refuses to read the history, it raises in the backward; but in inference mode such a tensor has no history.
        is_known = history is not _FORBIDDEN or not torch.is_inference_mode_enabled()
        has_history = history is not None and not is_early and is_known
        is_apart = has_history and self._is_apart(result, kind, source)
        is_apart |= has_history and history is _FORBIDDEN and source is not None
        is_put = any(step.node.target in SET_OPS for step in self.aliases.calls_to(node))
        is_put &= torch.is_inference_mode_enabled() or kind is not OutputKind.FRESH
        is_put |= is_apart
        is_own = source is not None and self._keeps_own_gradient(result)
        is_fresh = kind is OutputKind.FRESH or is_own
        if has_history and not is_put and is_fresh and torch.is_inference_mode_enabled():
            raise UnsupportedByRefimpl(
                seen="a result with a gradient, computed in inference_mode(False) while the program is called in inference mode",
                supported="results of one mode of inference, as graphs run in that of the call",
                do="leave inference mode around the compiled function",
            )
        is_put |= is_own
        if has_history and (is_put or kind is OutputKind.FRESH):
            self.forward.differentiable[position] = result
        is_only_view = source is None and not is_put and self._is_hidden_view(result, node)
        own = (whole_view(needs_gradient=result.requires_grad),) if is_only_view else ()
        return OutputInfo(
            kind=kind,
            position=position,
            source=source,
            steps=own if source is None else self._steps(node),
            creation=creation_of_view(result) if is_only_view else None,
            requires_grad=result.requires_grad,
            geometry=Geometry.of(result),
            becomes_leaf=(
                is_new_leaf(result) and not (kind is OutputKind.VIEW_OF_INPUT and has_gradient_of_base(result))
            )
            or (is_put and torch.is_inference_mode_enabled() and self._has_gradient(node)),
            is_put=is_put,
            is_before_writes=is_early and not is_put,
            has_history=has_history,
            is_inference=is_put and torch.is_inference_mode_enabled() and self._is_inference(node),
            becomes_inference=not torch.is_inference_mode_enabled()
            and result.is_inference()
            and result.layout is torch.strided
            and kind is not OutputKind.VIEW_OF_INPUT,
        )

    def _is_older_than_a_write(self, result: torch.Tensor, node: Node) -> bool:
        """Whether a floating-point view was made before a write to its memory.

        Such a view may get a history later: once the base requires a gradient, autograd compares versions and takes the base's.
        """
        if not (result.is_floating_point() or result.is_complex()):
            return False
        steps = self.aliases.calls_to(node)
        return bool(steps) and any(
            steps[-1].node < write for write in self.aliases.writes_to(self.aliases.base_of(node))
        )

    def _is_hidden_view(self, result: torch.Tensor, node: Node) -> bool:
        """Whether the result is a view whose base is neither an argument nor a result."""
        if self._roots is None or not self.replays or result.layout is not torch.strided:
            return False
        return result._is_view() and node not in self.aliases.owners

    def _has_gradient(self, node: Node) -> bool:
        """Whether a tensor in inference mode requires a gradient: it does if it views a tensor that does, also after `set_`."""
        steps = self.aliases.calls_to(node)
        puts = [index for index, step in enumerate(steps) if step.node.target in SET_OPS]
        if not puts:
            return self.placeholders.get(self.aliases.base_of(node)) in self.gradient_slots
        before = steps[puts[-1]].node.args[0]
        assert isinstance(before, Node)
        is_view = puts[-1] + 1 < len(steps)
        return self._has_gradient(before) and not (is_view and self._is_inference(steps[puts[-1]].node))

    def _is_inference(self, node: Node) -> bool:
        """Whether a tensor of a program in inference mode is an inference tensor. A fake tensor made in this mode always says so.

        After `x.data = y` it is one if y is; a view is one if its base is; `set_` changes nothing.
        """
        steps = self.aliases.calls_to(node)
        puts = [index for index, step in enumerate(steps) if step.node.target in SET_OPS]
        if not puts:
            base = self.aliases.base_of(node)
            return self.placeholders[base] in self.inference_slots if base in self.placeholders else True
        last = puts[-1]
        if notes_of(steps[last].node).is_data_assignment:
            return self._is_inference(steps[last - 1].node if last else self.aliases.base_of(node))
        before = steps[last].node.args[0]
        assert isinstance(before, Node)
        return self._is_inference(before)

    def _place(self, tensor: torch.Tensor, node: Node, position: int) -> tuple[OutputKind, int | None]:
        """The kind and source of a forward output, found by the memory it uses."""
        base = self.aliases.base_of(node)
        if not self._is_left_as_computed(tensor):
            if base in self.placeholders:
                return OutputKind.VIEW_OF_INPUT, self.placeholders[base]
            if len(self._siblings.get(base, ())) > 1 and self._base_position(tensor, base) != position:
                return OutputKind.VIEW_OF_INTERMEDIATE, self._base_position(tensor, base)
        return OutputKind.FRESH, None

    def _base_position(self, view: torch.Tensor, base: Node) -> int:
        """The position of the base among the forward outputs. Its first view adds it to them."""
        if base not in self._base_positions:
            self._base_positions[base] = self.forward.add(self._base_tensor(view, base))
            self.forward.bases.append(self._base_positions[base])
        position = self._base_positions[base]
        tensor = self.forward.values[position]
        if self._keeps_own_gradient(view):  # its gradient does not flow through the base
            return position
        if isinstance(tensor, torch.Tensor) and tensor.requires_grad and history_of(tensor) is not None:
            self.forward.differentiable.setdefault(position, tensor)
        return position

    def _base_tensor(self, view: torch.Tensor, base: Node) -> Any:
        """The base as a tensor of the program, if the program still has it; else one made from autograd's base of the view; else
        a value without gradient, made from the node."""
        roots = [base_of(sibling) for sibling in (view, *self._siblings.get(base, {}).values())]
        tracked = [(root, found) for root in roots if (found := self.tracker.find(root)) is not None]
        inside = [(root, found.node) for root, found in tracked if self.aliases.base_of(found.node) is base]
        for root, node in inside:
            if not self.aliases.steps_of(node):
                return root
        like = base.meta["val"]
        for root, _ in inside:
            if self._roots is not None and root.requires_grad and root.dtype == like.dtype and _is_plain(root, like):
                # Autograd's base is itself a view in the graph: its geometry was changed in place, or it comes from an op
                # such as _unsafe_view, whose result is no view for autograd.
                with torch.enable_grad():
                    whole = root.as_strided(like.shape, like.stride(), like.storage_offset())
                self.tracker.track(whole, base)
                return whole
        return self.value_of(base)

    def _is_apart(self, result: torch.Tensor, kind: OutputKind, source: int | None) -> bool:
        """Whether a result has a history that a remade view of its base would not have.

        Examples: `x.detach()` that was written to in grad mode; a view of a tensor that was detached in place afterwards.
        """
        if self._roots is None or source is None:
            return False
        root = base_of(result)
        if kind is OutputKind.VIEW_OF_INPUT:
            return id(root) not in self._roots or not root.requires_grad
        base = self.forward.values[source]
        return not isinstance(base, torch.Tensor) or root is not base_of(base)

    def _steps(self, node: Node) -> tuple[Any, ...]:
        # A write makes autograd remake the views of that memory from the base, by `as_strided`. Views made after the last write
        # keep their chain of view ops, and so do views with a `view(dtype)` or a conjugation in the chain.
        steps = self.aliases.calls_to(node)
        writes = self.aliases.writes_to(self.aliases.base_of(node))
        before = sum(1 for step in steps if writes and step.node < writes[-1])
        is_reread = self.placeholders.get(self.aliases.base_of(node)) in self.reread_slots
        is_reread |= any(step.target in REINTERPRETING for step in steps)
        if before and not is_reread:
            steps = (*self.aliases.steps_of(steps[before - 1].node), *steps[before:])
        return replay_steps(steps, lambda number: self.forward.add(self.value_of(number)))

    def _is_left_as_computed(self, tensor: torch.Tensor) -> bool:
        """Whether the caller gets the output of the graph itself, and not a remade view."""
        return (self._roots is None or not self.replays) and self._keeps_own_gradient(tensor)

    def _keeps_own_gradient(self, tensor: torch.Tensor) -> bool:
        """Whether remaking the view would lose a custom autograd.Function in its history."""
        if not tensor.requires_grad:
            return False
        steps = self.aliases.calls_to(self.node_of(tensor))
        if any(step.node.target in SET_OPS for step in steps):
            return False
        return bool(steps) and has_custom_function(history_of(tensor), len(steps))


def owned_outputs(infos: Sequence[OutputInfo]) -> tuple[int, ...]:
    """Positions of the forward outputs that own their memory for autograd: new tensors, and bases of views."""
    computed = [info.position for info in infos if info.kind is OutputKind.FRESH]
    viewed = [info.source for info in infos if info.kind is OutputKind.VIEW_OF_INTERMEDIATE]
    return tuple(sorted({*computed, *(source for source in viewed if source is not None)}))


def _is_plain(*tensors: torch.Tensor) -> bool:
    return all(t.layout is torch.strided and not t.is_conj() and not t.is_neg() for t in tensors)
