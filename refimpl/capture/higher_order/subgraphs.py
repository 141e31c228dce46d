"""Functions that a higher-order operator is given: run symbolically at once, into graphs of their own.

Counterpart: torch/_dynamo/variables/higher_order_ops.py speculate_subgraph; torch/_dynamo/output_graph.py SubgraphTracer
Differs: a body is run by a machine of its own inside of one instruction. If anything in it breaks, or is not what the operator
takes, the segment is interpreted once more and ends before that instruction; nothing has to be undone.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import fx
from torch.fx.node import map_arg

from refimpl._torch import LazyGraphModule
from refimpl.capture.breaks import GraphBreak, UserLine
from refimpl.capture.bytecode.instructions import Op
from refimpl.capture.guards.sources import Source
from refimpl.capture.interpreter.frame import FrameState, Then
from refimpl.capture.interpreter.machine import Machine
from refimpl.capture.interpreter.operations import OPERATIONS
from refimpl.capture.interpreter.signals import Returned, Signal, Yielded
from refimpl.capture.state.graph import SegmentGraph
from refimpl.capture.state.snapshot import Snapshot, leaves
from refimpl.capture.values import ErrorValue, NumberValue, TensorValue, Value
from refimpl.capture.values.polyfills import is_polyfill

_TAKES_ERROR = (Op.PUSH_EXC_INFO, Op.RERAISE, Op.STOP_ITERATION_ERROR, Op.CLEANUP_THROW)
_MOST_INSTRUCTIONS = 300_000  # of one body


class SubGraph(SegmentGraph):
    """The graph of a body. Nodes of the graph around it that it uses become its inputs."""

    def __init__(self, around: SegmentGraph) -> None:
        super().__init__(around.notes)
        self.around = around
        self._inputs: dict[fx.Node, fx.Node] = {}  # by the node around, its own
        self.seen: list[
            tuple[torch.Tensor, int | None]
        ] = []  # inputs of the segment first seen in the body, their versions

    def input(self, source: Source, fake: Any, real: Any) -> fx.Node:
        """An input of the segment; it becomes one of this graph where it is used."""
        if isinstance(fake, torch.Tensor):
            self.seen.append((fake, version_of(fake)))
        return self.around.input(source, fake, real)

    def argument(self, name: str, value: Any) -> fx.Node:
        """An input that has no node around it. They come before the others, in order."""
        node = self.graph.placeholder(name)
        node.target = node.name  # which is no other's
        node.meta["example_value"] = value
        return node

    def lift(self, around: fx.Node) -> fx.Node:
        """A new input for a node of the graph around."""
        node = self.argument(around.name, around.meta.get("example_value"))
        self._inputs.setdefault(around, node)
        return node

    def local(self, node: fx.Node) -> fx.Node:
        """The node, of this graph or of one around it, as this graph has it."""
        if node.graph is self.graph:
            return node
        outer = self.around.local(node)
        known = self._inputs.get(outer)
        if known is None:
            with self.graph.inserting_after(self._last_argument()):
                known = self.lift(outer)
        return known

    def _last_argument(self) -> fx.Node:
        last = self.graph._root
        for node in self.graph.nodes:
            if node.op != "placeholder":
                break
            last = node
        return last

    def call(self, kind: str, target: Any, args: Sequence[Any], kwargs: Any, value: Any) -> fx.Node:
        """A node for a call, of nodes of this graph or of those around it."""
        return super().call(kind, target, map_arg(tuple(args), self.local), map_arg(dict(kwargs), self.local), value)

    @property
    def lifted(self) -> list[fx.Node]:
        """The nodes around that are inputs, in order."""
        return [*self._inputs]

    def arrange(self, nodes: Sequence[fx.Node]) -> None:
        """Makes these nodes around the lifted inputs, in this order; those that it uses are among them."""
        assert self._inputs.keys() <= {*nodes}
        for node in nodes:
            place = self._last_argument()
            if node not in self._inputs:
                with self.graph.inserting_after(place):
                    self.lift(node)
            elif place is not self._inputs[node]:
                place.append(self._inputs[node])
        self._inputs = {node: self._inputs[node] for node in nodes}

    def module(self, outputs: Sequence[Any] | fx.Node) -> fx.GraphModule:
        """The body as a graph module that gives these nodes as a tuple, None for None; or one node."""
        self.graph.output(map_arg(outputs if isinstance(outputs, fx.Node) else tuple(outputs), self.local))
        self.drop_unused()
        self.notes.describe(self.graph)
        return LazyGraphModule(self.attributes, self.graph)

    def hand_on(self) -> None:
        """The graph around does, in the node of the operator, what this one does."""
        self.around.has_effects |= self.has_effects
        self.around.sets_state |= self.sets_state


class _BodyMachine(Machine):
    """Runs the frames of a body. Nothing goes on where it breaks."""

    def __init__(self, domain: Any) -> None:
        super().__init__(domain)
        self._count = 0
        self._at = domain.state.offset()
        self._waiting: list[FrameState] = []  # generators, in a `try` or `with`

    def advance(self, frame: FrameState) -> Signal:
        instructions, domain = frame.code.instructions, self.domain
        while True:
            instruction = instructions[frame.offset]
            if instruction.op in _TAKES_ERROR and type(frame.stack[-1]) is not ErrorValue:
                raise GraphBreak("unsupported_operation", what="handling", kind="an exception that was raised before")
            if instruction.op is Op.YIELD_VALUE and instruction.handler is not None:
                self._waiting.append(frame)
            frame.offset += 1
            self._count += 1
            if self._count > _MOST_INSTRUCTIONS:
                raise GraphBreak("too_many_instructions", what=_MOST_INSTRUCTIONS)
            signal = OPERATIONS[instruction.op](domain, frame, instruction.arg)
            if signal is not None:
                return signal

    def check_generators(self) -> None:
        """None may wait where dropping it runs code: that would be done later than it is in the body."""
        for frame in self._waiting:
            handler = None if frame.is_done else frame.current.handler
            if handler is not None and frame.code.instructions[handler.target].op is not Op.STOP_ITERATION_ERROR:
                raise GraphBreak("generator_waits")

    def _unwind(self, error: Any, *, is_new: bool) -> None:
        if error.raised_at is None:
            error.raised_at = self._at
        super()._unwind(error, is_new=is_new)

    def _deliver(self, above: FrameState, signal: Returned | Yielded) -> None:
        if isinstance(signal, Returned) and above.code.is_generator and above.then is Then.PUSH:
            self._unwind(ErrorValue(StopIteration, [signal.value]), is_new=True)  # it was resumed by a call
        else:
            super()._deliver(above, signal)


class _Stacked(Sequence[FrameState]):
    """The frames of the segment and those of a body, as they are when they are looked at."""

    def __init__(self, *stacks: Sequence[FrameState]) -> None:
        self._stacks = stacks

    def __getitem__(self, index: Any) -> Any:
        return [*self][index]

    def __iter__(self) -> Iterator[FrameState]:
        return itertools.chain.from_iterable(self._stacks)

    def __len__(self) -> int:
        return sum(map(len, self._stacks))


@contextlib.contextmanager
def one_instruction(domain: Any) -> Iterator[None]:
    """Within it the segment is changed in ways that an instruction that breaks may not leave behind: it is then made anew."""
    try:
        yield
    except GraphBreak as reason:
        reason.stack = reason.stack or _lines(domain.state.notes.frames)
        if reason.restart_at is None:
            reason.restart_at = domain.state.offset()
        raise


def run_body(
    domain: Any, graph: SubGraph, polyfill: Any, args: list[Any], *, what: str, changes: Sequence[Value] = (),
    may_write: Callable[[], Iterable[TensorValue]] = tuple,
) -> Value:  # fmt: skip
    """What a function of polyfills gives for these values, with the nodes that it makes in `graph`.

    changes: what of these it may change. may_write: asked afterwards, the tensors that it may have written to.

    Raises GraphBreak where it breaks, changes anything else that was there before it, or leaves torch in another state.
    """
    state = domain.state
    machine = _BodyMachine(domain)
    before = Snapshot([arg for arg in args if arg not in changes], state.effects)
    versions = [(value.fake, version_of(value.fake)) for value in state.by_fake.values()]
    around, frames = state.graph, state.notes.frames
    regions, grad_mode = len(state.open_regions), torch.is_grad_enabled()
    state.graph, state.notes.frames = graph, _Stacked(frames, machine.frames)
    try:
        outcome = machine.run(domain.enter_polyfill(polyfill, args).frame)
        machine.check_generators()
    except GraphBreak as reason:
        reason.stack = reason.stack or _lines(state.notes.frames)
        raise
    finally:
        state.graph, state.notes.frames = around, frames
    changed = before.changed()
    allowed = {id(value.fake) for value in may_write()}
    written = [fake for fake, version in (*versions, *graph.seen) if version_of(fake) != version]
    if changed is None and any(id(fake) not in allowed for fake in written):
        changed = "a tensor that was there before"
    if changed is None and (len(state.open_regions), torch.is_grad_enabled()) != (regions, grad_mode):
        changed = "the state of torch"
    if changed is not None:
        raise GraphBreak("effect_in_branch", what=what, kind=changed)
    return domain.state.realize(outcome.value)


def come_out(graph: SubGraph, result: Any) -> list[TensorValue | NumberValue]:
    """The tensors and numbers of a result that the body made, each once."""
    return [leaf for leaf in leaves([result]) if leaf.node is not None and leaf.node.graph is graph.graph]


def _lines(frames: Sequence[FrameState]) -> tuple[UserLine, ...]:
    codes = [(frame.code.code, frame.line()) for frame in frames if not is_polyfill(frame.code.code)]
    return tuple(UserLine(code.co_filename, line, code.co_name) for code, line in codes)


def version_of(tensor: torch.Tensor) -> int | None:
    """The count of writes to its storage."""
    return None if tensor.is_inference() else tensor._version
