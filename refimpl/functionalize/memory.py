"""What every piece of memory holds at a point of the program, as nodes of the new graph: reading and writing tensors.

Counterpart: FunctionalStorageImpl, FunctionalTensorWrapper::sync_, regenerate_from_base
Differs: values are kept per tensor and version, so that a view is regenerated only when it is stale and used. Views
that the table of inverses lacks are written through by index, a whole chain at once; torch inverts views one by one.

The state of a base is the node of its value and a version, which counts the writes. A tensor's value may be used while its
version is the base's. After a write the new values of the view, and of what lies between it and the base, are known by
construction; they are kept where their layout is the tensor's own, and no two of its elements share a place.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, Literal

import torch

from refimpl._torch import FakeTensor
from refimpl.functionalize.aliases import REINTERPRETING, AliasMap, ViewStep
from refimpl.functionalize.emitter import EmitterState
from refimpl.functionalize.errors import CannotFunctionalize
from refimpl.functionalize.geometry import has_symbols, is_dense, is_same_layout, may_overlap_itself
from refimpl.functionalize.inverse_views import INVERSES, ViewWrite
from refimpl.functionalize.views import ViewWriter

Node = torch.fx.Node
Strategy = Literal["table", "scatter"]


_MAY_OVERLAP = frozenset(
    {torch.ops.aten.expand.default, torch.ops.aten.as_strided.default, torch.ops.aten.unfold.default}
)


class MemoryState:
    """Mutable; one per pass. Nodes given to its methods are of the given graph, nodes it gives of the new one."""

    def __init__(self, aliases: AliasMap, emit: EmitterState, views: ViewWriter, strategy: Strategy) -> None:
        self.aliases = aliases
        self.emit = emit
        self.views = views
        self.strategy: Strategy = strategy
        self._versions: dict[Node, int] = {}
        self._values: dict[Node, tuple[int, Node]] = {}
        self._calls: dict[Node, tuple[int, Node]] = {}  # of view ops with several results
        self.stamps: dict[Node, list[tuple[Node, int]]] = {}  # new node -> the tensors and versions whose value it is
        self.reads: list[tuple[Node, Node, Node]] = []  # for the verifier: reader, what it reads, the new node for it
        self.outgrown: dict[Node, Node] = {}  # bases whose memory was replaced by larger memory, and by whom

    def own(self, base: Node, value: Node) -> None:
        """The memory of `base` begins with this value."""
        self._versions[base] = 0
        self._keep(base, value)

    def version_of(self, base: Node) -> int:
        """How often the memory of `base` was written so far."""
        return self._versions[base]

    def note_read(self, reader: Node, read: Node, value: Node) -> None:
        """For the verifier."""
        if self.is_known(read):
            self.reads.append((reader, read, value))

    def is_outgrown(self, base: Node) -> bool:
        """Whether larger memory has taken the place of this."""
        return base in self.outgrown

    def is_known(self, node: Node) -> bool:
        """Whether the memory that the node's tensor is in has begun to be."""
        return self.aliases.base_of(node) in self._versions

    def keep_view(self, tensor: Node, value: Node) -> None:
        """The value of a view that was written from the source's value of now."""
        self._keep(tensor, value)

    def any_value(self, node: Node) -> Node | None:
        """A value that the tensor has now or had before: its sizes can be read from it."""
        kept = self._values.get(self.aliases.tensor_of(node))
        return None if kept is None else kept[1]

    def read(self, node: Node) -> Node:
        """The tensor's value now."""
        tensor = self.aliases.tensor_of(node)
        base = self.aliases.base_of(tensor)
        if base in self.outgrown:
            tensor, base = self._grown(node, tensor, base)
        version = self._versions[base]
        chain: list[ViewStep] = []
        while True:
            kept = self._values.get(tensor)
            if kept is not None and kept[0] == version:
                value = kept[1]
                break
            step = self.aliases.step_of(tensor)
            assert step is not None, f"{node} is read before it has a value"
            chain.append(step)
            tensor = step.source
        for step in reversed(chain):
            value = self._regenerate(step, value, version)
            self._keep(step.node, value)
        return value

    def write(self, node: Node, value: Node) -> None:
        """The tensor gets this value, of its shape and dtype, and all that share memory with it change too."""
        tensor = self.aliases.tensor_of(node)
        base = self.aliases.base_of(tensor)
        if base in self.outgrown:
            tensor, base = self._grown(node, tensor, base)
        fresh: list[tuple[Node, Node]] = [(tensor, value)]
        while (step := self.aliases.step_of(tensor)) is not None:
            tensor, value = self._write_source(step, value)
            fresh.append((tensor, value))
        self._versions[base] += 1
        self._keep(base, value)
        if self.views.is_exact:
            return
        for written, known in fresh[:-1]:
            if _is_as_good(known, written):
                self._keep(written, known)

    def lay_out(self, base: Node) -> None:
        """From now on the value of `base` has the strides it has in the given graph, and so have views of it."""
        value = self.views.with_layout(self.read(base), base.meta["val"])
        for member in self.aliases.members_of(base):
            self._values.pop(member, None)
            if member.op == "call_function" and member.target is operator.getitem:
                self._calls.pop(member.args[0], None)  # type: ignore[arg-type]
        self._keep(base, value)

    def outgrow(self, base: Node, successor: Node) -> None:
        """From now on the tensor object that owned the memory is `successor`; views of it are of memory that has moved."""
        self.outgrown[base] = successor

    # ------------------------------------------------------------------------------------------------------- one step

    def _write_source(self, step: ViewStep, value: Node) -> tuple[Node, Node]:
        """The tensor that the written one is a view of, perhaps by several steps, and its new value."""
        steps = self._steps_at_once(step)
        source = steps[0].source
        rule = INVERSES.get(step.target)
        if len(steps) == 1 and rule is not None and (self.strategy == "table" or step.target in REINTERPRETING):
            return source, rule(ViewWrite(step, self.views, lambda: self.read(source)), value)
        if any(one.target in REINTERPRETING for one in steps):
            raise CannotFunctionalize(
                step.node,
                seen="something writes through it, and it reads overlapping views as another dtype, or conjugated",
                expected="such views of tensors whose elements each have a place of their own",
                do="write to a tensor that is no such view",
            )
        return source, write_by_index(self.views, steps, self.read(source), value)

    def _steps_at_once(self, last: ViewStep) -> list[ViewStep]:
        """The steps that end with `last` and have to be inverted together.

        An element of a view that overlaps itself has one place and several values in the view's value: those that were not
        written are out of date. Where a view of such a view is written, it counts where the written elements are, in what the
        overlapping one is a view of. By index, all steps can be inverted together.
        """
        steps = [last]
        above = self.aliases.step_of(last.source)
        if self.strategy != "scatter":
            while above is not None and self._has_copies(
                above
            ):  # once each element has a place of its own, its value is whole
                steps.insert(0, above)
                above = self.aliases.step_of(above.source)
            return steps
        count = 1
        while above is not None:
            if above.target in REINTERPRETING or last.target in REINTERPRETING:
                break
            steps.insert(0, above)
            count = len(steps)
            above = self.aliases.step_of(above.source)
        while above is not None:  # an overlapping view may be further up
            steps.insert(0, above)
            if _overlaps(above):
                count = len(steps)
            above = self.aliases.step_of(above.source)
        return steps[len(steps) - count :]

    def _has_copies(self, step: ViewStep) -> bool:
        """Whether two elements of what the step gives share a place; with symbolic sizes, whether they may."""
        value = step.node.meta["val"]
        if not has_symbols(value):
            return may_overlap_itself(value)
        above: ViewStep | None = step
        while above is not None and not _overlaps(above):
            above = self.aliases.step_of(above.source)
        return above is not None

    def _regenerate(self, step: ViewStep, parent: Node, version: int) -> Node:
        source = step.source.meta["val"]
        origin = self.emit.origin
        self.emit.origin = step.node
        try:
            if step.output_index is None:
                return self.views.apply(step, parent, source)
            call: Any = step.node.args[0]
            kept = self._calls.get(call)
            if kept is None or kept[0] != version:
                kept = self._calls[call] = version, self.views.apply(step, parent, source)
            return self.emit.element(kept[1], step.output_index)
        finally:
            self.emit.origin = origin

    def _keep(self, tensor: Node, value: Node) -> None:
        version = self._versions[self.aliases.base_of(tensor)]
        self._values[tensor] = version, value
        self.stamps.setdefault(value, []).append((tensor, version))

    def _grown(self, node: Node, tensor: Node, base: Node) -> tuple[Node, Node]:
        while base in self.outgrown:
            if tensor is not base:
                raise CannotFunctionalize(
                    node,
                    seen=f"it is a view of {base}, whose memory {self.outgrown[base]} has made larger",
                    expected="no use of a view after what it views was resized",
                    do="take the view again after the resize",
                )
            tensor = base = self.outgrown[base]
        return tensor, base


def _overlaps(step: ViewStep) -> bool:
    """Whether two elements of what the step gives share a place, and did not in what it views."""
    if step.target not in _MAY_OVERLAP:
        return False
    value = step.node.meta["val"]
    return not is_dense(value) if has_symbols(value) else may_overlap_itself(value)


def _is_as_good(value: Node, tensor: Node) -> bool:
    """Whether a value that was written may stand for the tensor itself: laid out alike, each element in a place of its own.

    A lazily conjugated or negated tensor stays one, whatever is written to it.
    """
    like, now = tensor.meta["val"], value.meta["val"]
    if not isinstance(like, FakeTensor) or not isinstance(now, FakeTensor) or like.layout is not torch.strided:
        return False
    if like.is_conj() != now.is_conj() or like.is_neg() != now.is_neg():
        return False
    return is_same_layout(like, now) and not may_overlap_itself(like)


# Writing through any chain of views by index. It needs nothing but the views themselves: they are replayed on the numbers of the
# elements. A view without a row in the table of inverses is written through this way, and tests compare the table with it.
# The elements of the source are numbered row by row. The numbers have the strides of the source, so that `as_strided` finds the
# right ones. What the views make of the numbers says where each element of the new value goes.

_aten = torch.ops.aten


def write_by_index(
    views: ViewWriter, steps: Sequence[ViewStep], source: torch.fx.Node, value: torch.fx.Node
) -> torch.fx.Node:
    """The value of the tensor that `steps` begin at, `source` before the write, after their last view got `value`.

    The steps change no elements (no other dtype, no conjugation). Where views overlap, the last of equal numbers counts. The
    value lies in memory as the tensor does: what reads it next may lay out its result alike, or draw numbers in that order.
    """
    emit = views.emit
    like = steps[0].source.meta["val"]
    shape = emit.number(like.shape)
    numbers = emit.call(_aten.arange.default, emit.number(like.numel()), device=like.device)
    numbers = views.reshape(numbers, shape)
    for step in steps:
        numbers = views.apply(step, numbers, step.source.meta["val"])
        if step.output_index is not None:
            numbers = emit.element(numbers, step.output_index)
    flat = views.reshape(source, [-1])
    written = emit.call(_aten.index_put.default, flat, [views.reshape(numbers, [-1])], views.reshape(value, [-1]))
    return views.with_layout(views.reshape(written, shape), like)
