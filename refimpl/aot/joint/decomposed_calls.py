"""What a trace remembers of calls that it decomposes: which views the program called, and how results of kernels are laid out.

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
from refimpl.trace.notes import note, notes_of
from refimpl.trace.recording_mode import RecordingMode


class DecomposedViewsState:
    """The views that the program called, before they were decomposed: autograd knows a view by its call. Of one recording.

    Also the tensors that a decomposition returns as views where the program called no view: for autograd these own their memory.
    `record` is called with every op that was decomposed, the innermost first.
    """

    def __init__(self, recording: RecordingMode) -> None:
        self._recording = recording
        self._calls: dict[torch.fx.Node, DecomposedView] = {}
        self._owners: set[torch.fx.Node] = set()

    @property
    def calls(self) -> Mapping[torch.fx.Node, DecomposedView]:
        """By the node that is the view."""
        return MappingProxyType(self._calls)

    @property
    def owners(self) -> frozenset[torch.fx.Node]:
        """What decompositions gave for new tensors, and what `own` was told of."""
        return frozenset(self._owners)

    def own(self, tensor: torch.Tensor) -> None:
        """The tensor is in memory of its own in eager mode."""
        tracked = self._recording.tracker.find(tensor)
        if tracked is not None:
            self._owners.add(tracked.node)

    def record(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        """`result` is what a decomposition gave for a call."""
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
    """A tensor in a decomposed call: the node that has the number among its uses, and its value in the trace."""

    number: int
    value: torch.Tensor


@dataclass(frozen=True, slots=True)
class Decomposed:
    """A call, with operands in the place of tensors that are nodes. `index`: which of its results this one is."""

    func: OpOverload
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    index: int


@contextlib.contextmanager
def noted_layouts(recording: RecordingMode) -> Iterator[None]:
    """Note on the nodes of a backward which kernels were decomposed, with their operands.

    In the graph the layout of such a kernel's result is a constant, or what parts of the kernel make of their operands. Where
    only some of the tangents arrive, the whole kernel is asked again, as its operands may have other layouts then.
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
    """Of the tensors that have one, by place among the leaves."""
    leaves = enumerate(pytree.tree_leaves(values))
    tracked = ((at, recording.tracker.find(leaf)) for at, leaf in leaves if isinstance(leaf, torch.Tensor))
    return {at: found.node for at, found in tracked if found is not None}
