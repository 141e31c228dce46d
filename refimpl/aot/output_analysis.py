"""What every output of a program is: a new tensor, an input, a view of an input, a view of something the graph computes.

Counterpart: torch/_functorch/_aot_autograd/collect_metadata_analysis.py (output aliases), schemas.py OutputAliasInfo
Differs: which memory an output is in is known from the ops that made it, not from comparing storages afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from refimpl.aot.analysis import Geometry, OutputInfo, OutputKind
from refimpl.aot.replay import has_custom_function, replay_steps
from refimpl.functionalize.aliases import AliasMap
from refimpl.trace.tracker import TrackerState

Node = torch.fx.Node


class ForwardOutputsState:
    """The outputs of the forward graph as they are found: updated inputs, results, bases, numbers. Mutable; one per trace."""

    def __init__(self) -> None:
        self.values: list[Any] = []
        self.differentiable: dict[int, torch.Tensor] = {}  # position -> tensor with a gradient
        self.bases: list[int] = []

    def add(self, value: Any) -> int:
        """Returns its position."""
        self.values.append(value)
        return len(self.values) - 1


class OutputAnalysisState:
    """Of one trace, after the program has run.

    node_of and tracker: of the trace; value_of: what stands for a node that no tensor of the program is known for;
    replays: False where nobody makes views again, because the caller takes what the graph returns.
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
    ) -> None:
        self.forward = forward
        self.aliases = aliases
        self.placeholders = {node: position for position, node in enumerate(placeholders)}
        self.node_of = node_of
        self.tracker = tracker
        self.value_of = value_of
        self.replays = replays
        self._siblings: dict[Node, set[int]] = {}  # base -> the results in its memory, by identity
        self._base_positions: dict[Node, int] = {}

    def analyse(self, results: Sequence[Any], arguments: Sequence[Any]) -> list[OutputInfo]:
        """One info per result; adds results, and what their views need, to the forward outputs."""
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

    def _note_sibling(self, result: Any, position: int) -> None:
        if not isinstance(result, torch.Tensor) or not self.replays or self._keeps_own_gradient(result):
            return
        node = self.node_of(result)
        base = self.aliases.base_of(node)
        if base.op == "placeholder":
            return
        self._siblings.setdefault(base, set()).add(id(result))
        if not self.aliases.steps_of(node):  # a base that is a result itself serves its siblings
            self._base_positions.setdefault(base, position)

    def _output(self, result: torch.Tensor, position: int) -> OutputInfo:
        node = self.node_of(result)
        base = self.aliases.base_of(node)
        kind, source = OutputKind.FRESH, None
        if not self._keeps_own_gradient(result):
            if base in self.placeholders:
                kind, source = OutputKind.VIEW_OF_INPUT, self.placeholders[base]
            elif len(self._siblings.get(base, ())) > 1 and self._base_position(result, base) != position:
                kind, source = OutputKind.VIEW_OF_INTERMEDIATE, self._base_position(result, base)
        if kind is OutputKind.FRESH and result.requires_grad and history_of(result) is not None:
            self.forward.differentiable[position] = result
        return OutputInfo(
            kind=kind,
            position=position,
            source=source,
            steps=() if source is None else self._steps(node),
            requires_grad=result.requires_grad,
            geometry=Geometry.of(result),
            becomes_leaf=is_new_leaf(result),
        )

    def _base_position(self, view: torch.Tensor, base: Node) -> int:
        """Of the base among the forward outputs; it becomes one for its first view."""
        if base not in self._base_positions:
            self._base_positions[base] = self.forward.add(self._base_tensor(view, base))
            self.forward.bases.append(self._base_positions[base])
        position = self._base_positions[base]
        tensor = self.forward.values[position]
        if isinstance(tensor, torch.Tensor) and tensor.requires_grad and history_of(tensor) is not None:
            self.forward.differentiable.setdefault(position, tensor)
        return position

    def _base_tensor(self, view: torch.Tensor, base: Node) -> Any:
        """The base as a tensor of the program, where it is still there; else its node, which has no gradient."""
        known = view._base
        tracked = None if known is None else self.tracker.find(known)
        if (
            tracked is not None
            and self.aliases.base_of(tracked.node) is base
            and not self.aliases.steps_of(tracked.node)
        ):
            return known
        return self.value_of(base)

    def _steps(self, node: Node) -> tuple[Any, ...]:
        # At a write autograd makes all views of that memory again from the base; those made after the last write have the chain
        # of views they were called on.
        steps = self.aliases.calls_to(node)
        writes = self.aliases.writes_to(self.aliases.base_of(node))
        before = sum(1 for step in steps if writes and step.node < writes[-1])
        if before:
            steps = (*self.aliases.steps_of(steps[before - 1].node), *steps[before:])
        return replay_steps(steps, lambda number: self.forward.add(self.value_of(number)))

    def _keeps_own_gradient(self, tensor: torch.Tensor) -> bool:
        """Whether replaying views would lose a user's autograd.Function on the way."""
        if not tensor.requires_grad:
            return False
        steps = self.aliases.calls_to(self.node_of(tensor))
        return bool(steps) and has_custom_function(history_of(tensor), len(steps))


def is_new_leaf(tensor: torch.Tensor) -> bool:
    """Whether the program asked for its gradient by requires_grad_."""
    return tensor.requires_grad and history_of(tensor, forbidden=tensor) is None


def history_of(tensor: torch.Tensor, forbidden: Any = None) -> Any:
    """The autograd node behind a tensor. `forbidden` for a view made without gradients of what was then written to with them:
    autograd raises when it is asked, which a program that returns such a view does not do."""
    try:
        return tensor.grad_fn
    except RuntimeError:
        return forbidden
