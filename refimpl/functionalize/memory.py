"""The values of bases and views during functionalization, as nodes of the new graph: reads and writes of tensors.

Counterpart: FunctionalStorageImpl, FunctionalTensorWrapper::sync_, regenerate_from_base
Differs: values are kept per tensor and version, so that a view is regenerated only when it is stale and used. A write through a
view op without an inverse is done by index, for the whole chain of views at once; torch inverts views one by one.

The state of a base is the node of its value and a version, which counts the writes. A tensor's value is current while its version
is the base's. A write to a view computes new values for it and for the views between it and the base. Such a value is kept
if it has the tensor's strides and no two elements of the tensor share memory.
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
    """Mutable; one per pass. Methods take nodes of the given graph, and return nodes of the new one."""

    def __init__(self, aliases: AliasMap, emit: EmitterState, views: ViewWriter, strategy: Strategy) -> None:
        self.aliases = aliases
        self.emit = emit
        self.views = views
        self.strategy: Strategy = strategy
        self._versions: dict[Node, int] = {}
        self._values: dict[Node, tuple[int, Node]] = {}
        self._calls: dict[Node, tuple[int, Node]] = {}  # calls of view ops with several results
        self.stamps: dict[Node, list[tuple[Node, int]]] = {}  # new node -> the tensors and versions whose value it is
        self.reads: list[
            tuple[Node, Node, Node]
        ] = []  # for the verifier: (reading node, node that it reads, value that it gets)
        self.outgrown: dict[Node, Node] = {}  # base -> the base with larger memory that `resize_` made of it

    def own(self, base: Node, value: Node) -> None:
        """Add a base with its first value."""
        self._versions[base] = 0
        self.keep(base, value)

    def version_of(self, base: Node) -> int:
        """The number of writes to the memory of `base` so far."""
        return self._versions[base]

    def note_read(self, reader: Node, read: Node, value: Node) -> None:
        """Record for the verifier that `reader` reads the tensor `read` and gets `value`."""
        if self.is_known(read):
            self.reads.append((reader, read, value))

    def is_outgrown(self, base: Node) -> bool:
        """Whether `resize_` has replaced the memory of `base` by larger memory."""
        return base in self.outgrown

    def is_known(self, node: Node) -> bool:
        """Whether the base of the node's tensor has a value yet."""
        return self.aliases.base_of(node) in self._versions

    def any_value(self, node: Node) -> Node | None:
        """A current or stale value of the tensor, to read its sizes from."""
        kept = self._values.get(self.aliases.tensor_of(node))
        return None if kept is None else kept[1]

    def read(self, node: Node) -> Node:
        """The current value of the tensor."""
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
            self.keep(step.node, value)
        return value

    def write(self, node: Node, value: Node) -> None:
        """Write `value`, which has the tensor's shape and dtype, to the tensor, and so to its base and all other views."""
        tensor = self.aliases.tensor_of(node)
        base = self.aliases.base_of(tensor)
        if base in self.outgrown:
            tensor, base = self._grown(node, tensor, base)
        fresh: list[tuple[Node, Node]] = [(tensor, value)]
        while (step := self.aliases.step_of(tensor)) is not None:
            tensor, value = self._write_source(step, value)
            fresh.append((tensor, value))
        self._versions[base] += 1
        self.keep(base, value)
        if self.views.is_exact:
            return
        for written, known in fresh[:-1]:
            if _is_as_good(known, written):
                self.keep(written, known)

    def restore_strides(self, base: Node) -> None:
        """Give the value of `base` the strides of the given graph. Values of its views are regenerated when they are used."""
        value = self.views.with_layout(self.read(base), base.meta["val"])
        for member in self.aliases.tensors_in(base):
            self._values.pop(member, None)
            if member.op == "call_function" and member.target is operator.getitem:
                self._calls.pop(member.args[0], None)  # type: ignore[arg-type]
        self.keep(base, value)

    def outgrow(self, base: Node, successor: Node) -> None:
        """Let `successor` stand for the tensor object of `base` from now on. Views of `base` can no longer be used."""
        self.outgrown[base] = successor

    # ------------------------------------------------------------------------------------------------------- one step

    def _write_source(self, step: ViewStep, value: Node) -> tuple[Node, Node]:
        """The source of the step, or of an earlier step if several are inverted at once, and its new value."""
        steps = self._steps_at_once(step)
        source = steps[0].source
        rule = INVERSES.get(step.target)
        if len(steps) == 1 and rule is not None and (self.strategy == "table" or step.target in REINTERPRETING):
            return source, rule(ViewWrite(step, self.views, lambda: self.read(source)), value)
        if any(one.target in REINTERPRETING for one in steps):
            raise CannotFunctionalize(
                step.node,
                seen="the program writes through this view, which reads overlapping elements as another dtype, or conjugated",
                expected="a write through a view without overlapping elements",
                do="write to the viewed tensor instead",
            )
        return source, write_by_index(self.views, steps, self.read(source), value)

    def _steps_at_once(self, last: ViewStep) -> list[ViewStep]:
        """The steps up to `last` that have to be inverted together.

        In the value of an overlapping view (`x.expand(3, 4)`) one element of memory occurs several times. After a write to a part
        of it (`x.expand(3, 4)[0]`) the other occurrences are stale, so the part is written to the source of the overlapping view
        directly. By index, all steps can be inverted together.
        """
        steps = [last]
        above = self.aliases.step_of(last.source)
        if self.strategy != "scatter":
            while above is not None and self._has_copies(above):
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
        while above is not None:  # an overlapping view may be nearer to the base
            steps.insert(0, above)
            if _overlaps(above):
                count = len(steps)
            above = self.aliases.step_of(above.source)
        return steps[len(steps) - count :]

    def _has_copies(self, step: ViewStep) -> bool:
        """Whether two elements of the view share memory; with symbolic sizes, whether they may."""
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

    def keep(self, tensor: Node, value: Node) -> None:
        """Keep the value of a base or view, which is current until the next write to the base."""
        version = self._versions[self.aliases.base_of(tensor)]
        self._values[tensor] = version, value
        self.stamps.setdefault(value, []).append((tensor, version))

    def _grown(self, node: Node, tensor: Node, base: Node) -> tuple[Node, Node]:
        while base in self.outgrown:
            if tensor is not base:
                raise CannotFunctionalize(
                    node,
                    seen=f"it uses a view of {base} that was taken before {self.outgrown[base]} enlarged the memory",
                    expected="views that are taken after the resize",
                    do="take the view again after the resize",
                )
            tensor = base = self.outgrown[base]
        return tensor, base


def _overlaps(step: ViewStep) -> bool:
    """Whether the step itself makes two elements share memory."""
    if step.target not in _MAY_OVERLAP:
        return False
    value = step.node.meta["val"]
    return not is_dense(value) if has_symbols(value) else may_overlap_itself(value)


def _is_as_good(value: Node, tensor: Node) -> bool:
    """Whether a written value can be kept as the tensor's value: it has its strides, and no elements share memory.

    A lazily conjugated or negated tensor stays one, whatever is written to it.
    """
    like, now = tensor.meta["val"], value.meta["val"]
    if not isinstance(like, FakeTensor) or not isinstance(now, FakeTensor) or like.layout is not torch.strided:
        return False
    if like.is_conj() != now.is_conj() or like.is_neg() != now.is_neg():
        return False
    return is_same_layout(like, now) and not may_overlap_itself(like)


# A write through any chain of views, by index, for views without a row in the table of inverses. Tests compare the table with it.
# The elements of the source are numbered row by row, in a tensor with the strides of the source so that `as_strided` works on it.
# The views are replayed on these numbers: the result holds, for each element of the new value, its index in the source.

_aten = torch.ops.aten


def write_by_index(
    views: ViewWriter, steps: Sequence[ViewStep], source: torch.fx.Node, value: torch.fx.Node
) -> torch.fx.Node:
    """The new value of the first step's source, whose value was `source`, after `value` is written to the last step's view.

    No step changes elements (no other dtype, no conjugation). Where elements overlap, the last one counts. The result has the
    strides of the tensor: an op that reads it may return the same strides, or draw random numbers in the order of memory.
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
