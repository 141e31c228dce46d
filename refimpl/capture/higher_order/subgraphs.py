"""Runs a function given to a higher-order operator symbolically, into a graph of its own.

Counterpart: torch/_dynamo/variables/higher_order_ops.py speculate_subgraph; torch/_dynamo/output_graph.py SubgraphTracer
Differs: a separate machine runs the function within one instruction. If its graph breaks, or the operator does not accept it,
the segment is interpreted again and ends before that instruction; nothing has to be undone.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import fx
from torch.fx.node import map_arg

from refimpl._torch import LazyGraphModule
from refimpl.capture.breaks import GraphBreak, UserLine
from refimpl.capture.bytecode.instructions import Op
from refimpl.capture.guards.sources import Source
from refimpl.capture.guards.torch_state import determinism
from refimpl.capture.interpreter.frame import FrameState, Then
from refimpl.capture.interpreter.machine import Machine
from refimpl.capture.interpreter.operations import OPERATIONS
from refimpl.capture.interpreter.signals import Returned, Signal, Yielded
from refimpl.capture.state.graph import SegmentGraph
from refimpl.capture.state.side_effects import version_of
from refimpl.capture.state.snapshot import Snapshot, leaves
from refimpl.capture.values import ErrorValue, NumberValue, TensorValue, Value
from refimpl.capture.values.polyfills import is_polyfill

if TYPE_CHECKING:
    from refimpl.capture.symbolic_execution.symbolic_domain import SymbolicDomain

_TAKES_ERROR = (Op.PUSH_EXC_INFO, Op.RERAISE, Op.STOP_ITERATION_ERROR, Op.CLEANUP_THROW)
_MOST_INSTRUCTIONS = 300_000  # per function


class SubGraph(SegmentGraph):
    """The graph of a function within another graph. Nodes of the outer graph that it uses become its inputs."""

    def __init__(self, around: SegmentGraph) -> None:
        super().__init__(around.notes)
        self.around = around
        self._inputs: dict[fx.Node, fx.Node] = {}  # node of the outer graph -> its input here
        self.seen: list[
            tuple[torch.Tensor, int | None]
        ] = []  # segment inputs that the function was the first to use, with their versions

    def input(self, source: Source, fake: Any, real: Any) -> fx.Node:
        """An input of the segment; it becomes an input of this graph when it is used."""
        if isinstance(fake, torch.Tensor):
            self.seen.append((fake, version_of(fake)))
        return self.around.input(source, fake, real)

    def argument(self, name: str, value: Any) -> fx.Node:
        """An input without a node in the outer graph. These come before the lifted ones, in order."""
        node = self.graph.placeholder(name)
        node.target = node.name  # the name is unique
        node.meta["example_value"] = value
        return node

    def lift(self, around: fx.Node) -> fx.Node:
        """A new input for a node of the outer graph."""
        node = self.argument(around.name, around.meta.get("example_value"))
        self._inputs.setdefault(around, node)
        return node

    def local(self, node: fx.Node) -> fx.Node:
        """The node itself, or for a node of an outer graph its input here."""
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
        """A node for a call whose arguments may be nodes of outer graphs."""
        return super().call(kind, target, map_arg(tuple(args), self.local), map_arg(dict(kwargs), self.local), value)

    def set_state(self, setter: Any, *state: Any, **named: Any) -> fx.Node:
        """Like `call`: torch.vmap enters a mode with the number of slices, which may be a size of the outer graph."""
        return super().set_state(setter, *map_arg(state, self.local), **map_arg(named, self.local))

    @property
    def lifted(self) -> list[fx.Node]:
        """The nodes of the outer graph that are inputs, in order."""
        return [*self._inputs]

    def origin(self, node: fx.Node) -> fx.Node | None:
        """The node of the outer graph that this input stands for; None for other nodes."""
        return next((outer for outer, inner in self._inputs.items() if inner is node), None)

    def arrange(self, nodes: Sequence[fx.Node]) -> None:
        """Makes these nodes of the outer graph the lifted inputs, in this order. They include all that the graph uses."""
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
        """The graph as a module that returns these nodes as a tuple (None for None), or one node."""
        self.graph.output(map_arg(outputs if isinstance(outputs, fx.Node) else tuple(outputs), self.local))
        self.drop_unused()
        self.notes.describe(self.graph)
        return LazyGraphModule(self.attributes, self.graph)

    def hand_on(self) -> None:
        """Marks the outer graph as having this graph's effects, since the operator's node runs it."""
        self.around.has_effects |= self.has_effects
        self.around.sets_state |= self.sets_state


class _BodyMachine(Machine):
    """Runs the frames of the function. A graph break abandons the run."""

    def __init__(self, domain: SymbolicDomain) -> None:
        super().__init__(domain)
        self._count = 0
        self._at = domain.state.position()
        self._waiting: list[FrameState] = []  # suspended generators inside a `try` or `with`

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
        """Breaks the graph if a generator is suspended where dropping it runs code, because the drop would come too late."""
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
            # A generator that a call resumed has returned.
            self._unwind(ErrorValue(StopIteration, [signal.value]), is_new=True)
        else:
            super()._deliver(above, signal)


class _Stacked(Sequence[FrameState]):
    """The frames of the segment followed by those of the function, as they are when they are read."""

    def __init__(self, *stacks: Sequence[FrameState]) -> None:
        self._stacks = stacks

    def __getitem__(self, index: Any) -> Any:
        return [*self][index]

    def __iter__(self) -> Iterator[FrameState]:
        return itertools.chain.from_iterable(self._stacks)

    def __len__(self) -> int:
        return sum(map(len, self._stacks))


@contextlib.contextmanager
def one_instruction(domain: SymbolicDomain) -> Iterator[None]:
    """Within this block the segment changes in ways that cannot be undone: a graph break restarts it, to end before this
    instruction.
    """
    try:
        yield
    except GraphBreak as reason:
        reason.stack = reason.stack or _lines(domain.state.notes.frames)
        if reason.restart_at is None:
            reason.restart_at = domain.state.position()
        raise


def run_body(
    domain: SymbolicDomain, graph: SubGraph, polyfill: Any, args: list[Any], *, what: str, changes: Sequence[Value] = (),
    may_write: Callable[[], Iterable[TensorValue]] = tuple, allows_effects: bool = False, allows_writes: bool = False,
    allows_changes: bool = False,
) -> Value:  # fmt: skip
    """The result of a polyfill on these values. The nodes it makes go into `graph`.

    changes: values that it may change. may_write: called afterwards, returns the tensors that it may have written to.
    allows_effects: it may change any object and write to any tensor; the caller finds out what holds nodes of `graph`.
    allows_writes: it may write to any tensor. allows_changes: it may change any object, but write to no tensor.

    Raises GraphBreak if it breaks the graph, changes anything else from outside, or leaves torch in another mode.
    """
    state = domain.state
    machine = _BodyMachine(domain)
    before = None if allows_effects else Snapshot([arg for arg in args if arg not in changes], state.effects)
    versions = [(value.fake, version_of(value.fake)) for value in state.by_fake.values()]
    around, frames = state.graph, state.notes.frames
    modes = _modes(state)
    state.graph, state.notes.frames = graph, _Stacked(frames, machine.frames)
    try:
        outcome = machine.run(domain.enter_polyfill(polyfill, args).frame)
        machine.check_generators()
    except GraphBreak as reason:
        reason.stack = reason.stack or _lines(state.notes.frames)
        # The function takes other arguments.
        is_not_entered = len(machine.frames) == 1 and reason.details.get("error") == "TypeError"
        reason.is_of_body = not is_not_entered
        raise
    finally:
        state.graph, state.notes.frames = around, frames
    changed = None if before is None or allows_changes else before.changed()
    allowed = {id(value.fake) for value in may_write()}
    written = [fake for fake, version in (*versions, *graph.seen) if version_of(fake) != version]
    is_checked = before is not None and not allows_writes
    if is_checked and changed is None and any(id(fake) not in allowed for fake in written):
        raise GraphBreak("operator_mutates", what=what)
    if changed is None and _modes(state) != modes:
        changed = "the state of torch"
    if changed is not None:
        raise GraphBreak("effect_in_branch", what=what, kind=changed)
    return domain.state.realize(outcome.value)


def _modes(state: Any) -> tuple[Any, ...]:
    """The state of torch that a function must leave as it was."""
    return len(state.open_regions), torch.is_grad_enabled(), determinism()


def come_out(graph: SubGraph, result: Any) -> list[TensorValue | NumberValue]:
    """The tensors and numbers of a result that the function computed, each once."""
    return [leaf for leaf in leaves([result]) if leaf.node is not None and leaf.node.graph is graph.graph]


def computed_in(domain: SymbolicDomain, graph: SubGraph, roots: list[Any]) -> list[TensorValue | NumberValue]:
    """The tensors and numbers that the function computed and that its result, or an object it has changed, holds."""
    state = domain.state
    written = [*state.effects.contents(), *state.effects.attributes(), *(new for _, _, new in state.effects.globals())]
    found = leaves([*roots, *state.notes.frames, *written])
    return [leaf for leaf in found if leaf.node is not None and leaf.node.graph is graph.graph]


def _lines(frames: Sequence[FrameState]) -> tuple[UserLine, ...]:
    codes = [(frame.code.code, frame.line()) for frame in frames if not is_polyfill(frame.code.code)]
    return tuple(UserLine(code.co_filename, line, code.co_name) for code, line in codes)
