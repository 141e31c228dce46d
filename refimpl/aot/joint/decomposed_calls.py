"""What a trace records of calls before it decomposes them: the view ops of the program, and kernels whose strides matter later.

Counterpart: none; upstream's traces for metadata run without decompositions
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch

from refimpl._torch import FakeTensor, OpOverload, pytree, storage_key
from refimpl.functionalize.aliases import DecomposedView, view_of
from refimpl.trace.eager_facts import gives_new_tensors
from refimpl.trace.metadata import note, notes_of
from refimpl.trace.recording_mode import RecordingMode


class DecomposedViewsState:
    """The view ops that the program called, before their decomposition. Autograd remakes a view by its original op.

    Also the tensors that a decomposition returns as views although the program called no view op: for autograd these own their
    memory. One per recording. `record` is called with every op that was decomposed, the innermost first.
    """

    def __init__(self, recording: RecordingMode) -> None:
        self._recording = recording
        self._calls: dict[torch.fx.Node, DecomposedView] = {}
        self._owners: set[torch.fx.Node] = set()

    @property
    def calls(self) -> Mapping[torch.fx.Node, DecomposedView]:
        """Keys are the nodes of the views."""
        return MappingProxyType(self._calls)

    @property
    def owners(self) -> frozenset[torch.fx.Node]:
        """Nodes of new tensors that decompositions returned as views, and those `own` was called with."""
        return frozenset(self._owners)

    def own(self, tensor: torch.Tensor) -> None:
        """Record that the tensor owns its memory in eager."""
        tracked = self._recording.tracker.find(tensor)
        if tracked is not None:
            self._owners.add(tracked.node)

    def record(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        """`result`: what the decomposition returned for the call."""
        alias = view_of(func)
        if alias is None:
            self._record_owners(args, kwargs, result)
            return
        source = alias.parameter.of(args, kwargs)
        if not isinstance(source, torch.Tensor):
            return
        viewed = self._recording.tracker.find(source)
        for index, tensor in enumerate(result if alias.is_list else [result]):
            tracked = self._recording.tracker.find(tensor)
            if viewed is None or tracked is None or tracked.node is viewed.node:
                continue
            self._calls[tracked.node] = DecomposedView(
                target=func,
                args=self._recording.node_of(args),
                kwargs=self._recording.node_of(kwargs),
                output_index=index if alias.is_list else None,
            )

    def _record_owners(self, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        given = {storage_key(tensor) for tensor in _tensors_with_memory((args, kwargs))}
        for tensor in _tensors_with_memory(result):
            if storage_key(tensor) not in given:
                self.own(tensor)


def _tensors_with_memory(values: Any) -> list[FakeTensor]:
    tensors = [value for value in pytree.tree_leaves(values) if type(value) is FakeTensor]
    return [tensor for tensor in tensors if tensor.layout is torch.strided and not tensor.is_nested]


@dataclass(frozen=True, slots=True)
class Operand:
    """A tensor argument of a decomposed call. `number` is in `operand_numbers` of its node; `value` is its fake tensor."""

    number: int
    value: torch.Tensor


@dataclass(frozen=True, slots=True)
class Decomposed:
    """A decomposed call, with an Operand for every tensor that has a node. `index`: which of its results the noted node is."""

    func: OpOverload
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    index: int


@contextlib.contextmanager
def noted_layouts(recording: RecordingMode) -> Iterator[None]:
    """Within, note on nodes of the backward the kernel of whose decomposition they are the result, with its operands.

    In the graph, the strides of such a result are constants, or follow from parts of the kernel. If only some of the tangents
    arrive, operands may have other strides, and the whole kernel says which strides its result then has.
    """
    count = 0

    def operand(tensor: torch.Tensor) -> Any:
        nonlocal count
        tracked = recording.tracker.find(tensor)
        if tracked is None:
            return tensor
        note(tracked.node, operand_numbers=(*notes_of(tracked.node).operand_numbers, count))
        count += 1
        return Operand(count - 1, tensor)

    def note_call(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        nonlocal count
        read = set(_nodes(recording, (args, kwargs)).values())
        found = _nodes(recording, result)
        if not gives_new_tensors(func) or not read.isdisjoint(found.values()):
            return
        given, named = pytree.tree_map_only(torch.Tensor, operand, (args, kwargs))
        for index, node in found.items():
            note(node, decomposed_call=Decomposed(func, given, named, index))

    assert recording.on_decomposed is None
    recording.on_decomposed = note_call
    try:
        yield
    finally:
        recording.on_decomposed = None


def _nodes(recording: RecordingMode, values: Any) -> dict[int, torch.fx.Node]:
    """The nodes of the tensors that have one, by position among the leaves."""
    leaves = enumerate(pytree.tree_leaves(values))
    tracked = ((at, recording.tracker.find(leaf)) for at, leaf in leaves if isinstance(leaf, torch.Tensor))
    return {at: found.node for at, found in tracked if found is not None}
