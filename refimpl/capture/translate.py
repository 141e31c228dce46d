"""Captures a segment: interprets a frame symbolically until it returns or the graph breaks.

Counterpart: torch/_dynamo/convert_frame.py; torch/_dynamo/symbolic_convert.py InstructionTranslator
"""

from __future__ import annotations

import bisect
import contextlib
import functools
import logging
import time
import warnings
from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import fx

from refimpl._torch import (
    LazyGraphModule,
    function_modes_on,
    set_determinism,
    without_overrides,
    without_torch_function,
)
from refimpl.capture.breaks import GraphBreak, UserLine
from refimpl.capture.bytecode.instructions import Op
from refimpl.capture.config import config
from refimpl.capture.guards.filters import Filter, filtered
from refimpl.capture.guards.guard_list import GuardKind, InputFacts
from refimpl.capture.guards.size_history import SizeHistory
from refimpl.capture.guards.sources import AttributeSource, DrawsSource, KeptSource, SlotSource, Source, StackSource
from refimpl.capture.guards.static_shapes import is_of_module
from refimpl.capture.guards.torch_state import determinism
from refimpl.capture.higher_order.compile_regions import around_backend, inline_regions, runnable
from refimpl.capture.interpreter.frame import UNBOUND, FrameState, Then
from refimpl.capture.interpreter.machine import DEPTH_LIMIT, Machine
from refimpl.capture.interpreter.operations import OPERATIONS
from refimpl.capture.interpreter.signals import Returned, Signal, Yielded
from refimpl.capture.public.running import running
from refimpl.capture.rebuild import Emitter
from refimpl.capture.recognition import is_captured_in
from refimpl.capture.segment import Resumption, Segment
from refimpl.capture.state.capture_state import CaptureState
from refimpl.capture.state.side_effects import SideEffects
from refimpl.capture.symbolic_execution.symbolic_domain import SymbolicDomain
from refimpl.capture.values import ErrorValue, LazyValue
from refimpl.capture.values.classes import ends_with_code
from refimpl.capture.values.polyfills import is_polyfill
from refimpl.capture.values.value import end_of
from refimpl.errors import BadParameter
from refimpl.symbolic.stacks import interpreting
from refimpl.trace.composite_kernels import keeping_composite_kernels
from refimpl.trace.higher_order.direct_calls import launches_recorded

_LOG = logging.getLogger(__name__)
Backend = Callable[[fx.GraphModule, list[Any]], Callable[..., Any]]
BreaksAt = Callable[[int, int], bool]
_TAKES_ERROR = (Op.PUSH_EXC_INFO, Op.RERAISE, Op.STOP_ITERATION_ERROR, Op.CLEANUP_THROW)  # pop a raised exception
_CALLS = (Op.CALL, Op.CALL_KW, Op.CALL_EX)
_CLEARING = (Op.DELETE_FAST, Op.LOAD_FAST_AND_CLEAR)
MOST_INSTRUCTIONS = 300_000  # per segment


class SymbolicMachine(Machine):
    """Runs frames of values. An instruction that breaks the graph leaves its frame as it was before.

    A position is the number of instructions that ran before one. Every attempt to capture a segment runs the same instructions,
    so a later attempt can stop at a position that an earlier one found.
    """

    def __init__(
        self, domain: SymbolicDomain, bases: list[FrameState], forced: dict[int, GraphBreak], breaks_at: BreaksAt | None
    ) -> None:
        super().__init__(domain)
        for base in bases:
            self.push(base)
        self._bases = len(bases)  # how many of the frames that the segment began in still run
        self._nested = len(bases)  # how many of the lowest frames can continue after a graph break, if breaks nest
        self._taken, self._untake = domain.taken, domain.untake
        self._effects = domain.state.effects
        self._nests = lambda: domain.state.breaks_nest
        self._start = bases[-1].offset
        self._forced = forced
        self._breaks_at = breaks_at
        self._count = 0
        self._entered_at: dict[FrameState, int] = {}  # positions of the instructions that entered the frames
        self._ends: list[int] = []  # positions at which a segment can end
        # suspended generators inside a `try` or `with` -> the position
        self._waiting: dict[FrameState, int] = {}
        # objects on the stack at the begin whose end runs code
        entered = [value for base in bases for value in base.stack if type(value) is LazyValue]
        self._ending = [value.object for value in entered if ends_with_code(value.object)]

    @property
    def continued(self) -> int:
        """How many of the lowest frames continue if the graph breaks now: the frames that the segment began in and, if breaks
        nest, those of inlined calls above them.
        """
        nests = self._nested > self._bases and self._nests()
        return min(len(self.frames), self._nested if nests else self._bases)

    @property
    def at(self) -> int:
        """The position of the running instruction, or of the call in the topmost frame that can continue."""
        continued = self.continued
        if continued == len(self.frames):
            return max(self._count - 1, 0)
        return self._entered_at[self.frames[continued]]

    def behind(self, position: int) -> int | None:
        """The first position after this one at which a segment can end; None if it is not reached yet."""
        index = bisect.bisect_right(self._ends, position)
        return self._ends[index] if index < len(self._ends) else None

    @property
    def restart_at(self) -> int | None:
        """Where the exception that is being handled was raised: if the graph breaks now, the segment has to end before that."""
        handled = self._handled()
        return None if handled is None else handled.raised_at

    def dropped(self, kept: Container[int]) -> int | None:
        """The position at which a generator suspended that would be dropped unfinished; `kept`: ids of the frames that live
        on.
        """
        for frame, position in self._waiting.items():
            if not frame.is_done and id(frame) not in kept and _has_cleanup(frame, before=1):
                return position
        return None

    def _keep_ends_in_order(self, effects: SideEffects) -> None:
        """Ends the segment before an instruction that dropped an object whose end runs code: it would run after the segment."""
        dropped = effects.dropped()
        if self._ending:
            held = {
                id(getattr(value, "object", None)) for frame in self.frames for value in (*frame.stack, *frame.slots)
            }
            dropped = next((ending for ending in self._ending if id(ending) not in held), dropped)
        if dropped is not None:
            raise end_of(type(dropped)).restarting_at(self._ends[-1])

    def advance(self, frame: FrameState) -> Signal:
        instructions, domain, effects = frame.code.instructions, self.domain, self._effects
        can_end = len(self.frames) <= self._nested
        while True:
            offset, stack = frame.offset, frame.stack.copy()
            if self._count in self._forced:
                raise self._forced[self._count]
            if effects.held or self._ending:
                self._keep_ends_in_order(effects)
            if can_end and self._breaks_at is not None and self._is_broken(offset, self._breaks_at):
                raise GraphBreak("user_break")
            instruction = instructions[offset]
            if instruction.op in _TAKES_ERROR and type(stack[-1]) is not ErrorValue:
                raise GraphBreak("unsupported_operation", what="handling", kind="an exception that was raised before")
            if instruction.op is Op.YIELD_VALUE and _has_cleanup(frame):
                self._waiting.setdefault(frame, self.at)
            frame.offset += 1
            if can_end:
                self._ends.append(self._count)
                self._taken.clear()
            self._count += 1
            try:
                if self._count > MOST_INSTRUCTIONS:
                    raise GraphBreak("too_many_instructions", what=MOST_INSTRUCTIONS)
                signal = OPERATIONS[instruction.op](domain, frame, instruction.arg)
            except GraphBreak:
                frame.offset, frame.stack = offset, stack
                self._untake()
                raise
            except RecursionError as error:  # a list that contains itself
                frame.offset, frame.stack = offset, stack
                raise GraphBreak("too_deep", what=DEPTH_LIMIT) from error
            if signal is not None:
                return signal

    def _is_broken(self, offset: int, breaks_at: BreaksAt) -> bool:
        """Whether a test wants a break before this instruction. In inlined functions it gets no offset."""
        if len(self.frames) <= self._bases:
            return breaks_at(self._start, offset)
        return self.continued == len(self.frames) and breaks_at(self._start, -1)

    def _pop(self, *, is_done: bool) -> FrameState:
        frame = super()._pop(is_done=is_done)
        self._bases, self._nested = min(self._bases, len(self.frames)), min(self._nested, len(self.frames))
        return frame

    def _enter(self, frame: FrameState) -> None:
        below = len(self.frames)
        if self._nested == below and _can_continue(self.frames[-1], frame):
            self._nested += 1
        self._entered_at[frame] = self._count - 1
        if below >= DEPTH_LIMIT:  # the call has begun: its frame cannot continue before it
            raise GraphBreak("too_deep", what=DEPTH_LIMIT).restarting_at(self._entered_at[self.frames[self._bases]])
        super()._enter(frame)

    def _unwind(self, error: Any, *, is_new: bool) -> None:
        if error.raised_at is None:
            handled = self._handled()
            error.raised_at = self.at if handled is None else handled.raised_at
        super()._unwind(error, is_new=is_new)

    def _reraise(self, error: Any) -> None:
        if error is None and self._handled() is None:
            self.frames[-1].offset -= 1  # the graph breaks, and the instruction runs again
        super()._reraise(error)

    def _deliver(self, above: FrameState, signal: Returned | Yielded) -> None:
        if isinstance(signal, Returned) and above.code.is_generator and above.then is Then.PUSH:
            args = [] if self.domain.is_none(signal.value) else [signal.value]
            self._unwind(ErrorValue(StopIteration, args), is_new=True)  # a generator that a call resumed has returned
        else:
            super()._deliver(above, signal)

    def user_stack(self) -> tuple[UserLine, ...]:
        """The program's call stack, outermost first."""
        return tuple(_user_line(frame) for frame in self.frames if not is_polyfill(frame.code.code))

    def user_line(self) -> UserLine | None:
        """The innermost line of the program, at the instruction that runs next."""
        frame = next((frame for frame in reversed(self.frames) if not is_polyfill(frame.code.code)), None)
        return None if frame is None else _user_line(frame)

    def running_line(self) -> UserLine | None:
        """The innermost line of the program, at the instruction that runs now."""
        frame = next((frame for frame in reversed(self.frames) if not is_polyfill(frame.code.code)), None)
        return None if frame is None else UserLine(frame.code.code.co_filename, frame.line(), frame.code.code.co_name)


def _can_continue(caller: FrameState, frame: FrameState) -> bool:
    """Whether a frame can continue on its own after a graph break: it runs a function that the program calls by a call, and that
    is captured when it is called at a break.
    """
    code = frame.code.code
    is_plain = frame.then is Then.PUSH and not frame.code.is_generator and frame.names is None and not is_polyfill(code)
    return is_plain and caller.current.op in _CALLS and is_captured_in(str(frame.globals.get("__name__")))


def _has_cleanup(frame: FrameState, before: int = 0) -> bool:
    """Whether dropping a generator suspended at this instruction runs code of the user's, because it is inside a `try` or
    `with`.
    """
    instructions = frame.code.instructions
    handler = instructions[frame.offset - before].handler
    return handler is not None and instructions[handler.target].op is not Op.STOP_ITERATION_ERROR


def _user_line(frame: FrameState) -> UserLine:
    return UserLine(frame.code.code.co_filename, _line_of(frame), frame.code.code.co_name)


def _line_of(frame: FrameState) -> int:
    instructions = frame.code.instructions
    line = instructions[min(frame.offset, len(instructions) - 1)].line
    return frame.line() if line is None else line


@contextlib.contextmanager
def _modes_restored() -> Iterator[None]:
    """Restores grad mode and determinism after the program's own changes. Made where no mode of the program answers torch's
    calls."""
    is_on, only_warns = determinism()
    try:
        with torch.set_grad_enabled(torch.is_grad_enabled()):
            yield
    finally:
        if determinism() != (is_on, only_warns):
            set_determinism(is_on, warn_only=only_warns)


def translate(
    frames: list[FrameState],
    backend: Backend,
    *,
    fullgraph: bool,
    breaks_at: BreaksAt | None = None,
    sizes: SizeHistory | None = None,
    keeps: Filter | None = None,
) -> Segment:
    """The segment that begins at these frames, of which none handles an exception. The first is the function's; those above it
    are of inlined calls that an earlier graph broke in.

    breaks_at: whether to stop before an instruction of a frame, given the offset where the segment began.
    sizes: the input sizes seen at this place before; this capture's are added. keeps: says which guards are kept.

    If the graph breaks in an inlined function that cannot continue on its own (`SymbolicMachine.continued`), the segment has to
    end before its call, and is interpreted again up to there. Raises GraphBreak where a break is not allowed (`fullgraph`,
    `error_on_graph_break`), and if an object that the segment leaves cannot be rebuilt; raises the backend's errors.
    Before any of these, floats that are symbols become constants, at this place from then on.
    """
    forced: dict[int, GraphBreak] = {}
    sizes = SizeHistory() if sizes is None else sizes
    began = first = time.perf_counter()
    while True:
        attempt = _Attempt(frames, forced, breaks_at, sizes, fullgraph=fullgraph)
        try:
            with _overrides_off(), keeping_composite_kernels(), launches_recorded(), _modes_restored():
                ended = _attempted(attempt, forced, fullgraph=fullgraph)
            if ended is not None:
                return replace(ended.segment(backend, frames, keeps), restart_seconds=began - first)
        except Exception as error:
            if not attempt.state.has_floats or sizes.holds_floats:
                raise
            _LOG.info("captured again with constants for floats: %s", error)
            sizes.holds_floats = True
        finally:
            attempt.release()
        began = time.perf_counter()


def _overrides_off() -> Any:
    """No mode and no class of the program answers calls while it is interpreted: their `__torch_function__` is interpreted."""
    return without_overrides() if function_modes_on() else without_torch_function()


def _attempted(attempt: _Attempt, forced: dict[int, GraphBreak], *, fullgraph: bool) -> _Ended | None:
    """One attempt; None if the segment has to end earlier: `forced` then holds the position to stop at."""
    try:
        with interpreting(attempt.machine.running_line):
            value = attempt.machine.resume().value
    except GraphBreak as reason:
        reason.stack = reason.stack or attempt.machine.user_stack()
        reason.is_error = reason not in forced.values() and attempt.state.breaks_are_errors
        if fullgraph or reason.is_error:
            raise
        reason.__traceback__ = None  # its frames keep the program's objects alive
        at = reason.restart_at if reason.restart_at is not None else attempt.machine.restart_at
        at = attempt.before_transforms(at)
        if at is None and len(attempt.machine.frames) > attempt.machine.continued:
            at = attempt.machine.at
        if at is not None:
            return _stop_before(at, reason, forced)
        finish = functools.partial(attempt.ended_at, reason)
    else:
        finish = functools.partial(attempt.returned, value)
    try:
        return finish()
    except RecursionError as error:  # objects that are nested deeply, or that contain each other
        raise GraphBreak("too_deep", what=DEPTH_LIMIT) from error
    except GraphBreak as reason:
        if reason.restart_at is None or fullgraph:
            raise
        return _stop_before(reason.restart_at, reason, forced)


def _stop_before(position: int, reason: GraphBreak, forced: dict[int, GraphBreak]) -> None:
    assert position not in forced, "a segment that stops before an instruction does not get beyond it"
    reason.restart_at, reason.is_done = None, False
    forced[position] = reason


class _Attempt:
    """One symbolic run."""

    def __init__(
        self, frames: list[FrameState], forced: dict[int, GraphBreak], breaks_at: BreaksAt | None, sizes: SizeHistory, *,
        fullgraph: bool,
    ) -> None:  # fmt: skip
        self._machine: SymbolicMachine | None = None
        self.state = CaptureState(self._line, sizes, reads_data=fullgraph)
        self.bases = [_unread_frame(number, frame) for number, frame in enumerate(frames)]
        self._unbound = [
            frozenset(i for i, value in enumerate(frame.slots) if value is UNBOUND) if frame.offset else ()
            for frame in frames
        ]
        self.machine = self._machine = SymbolicMachine(SymbolicDomain(self.state), self.bases, forced, breaks_at)
        self.state.notes.frames = self.machine.frames
        self.state.position = lambda: self.machine.at
        self.state.behind = self.machine.behind
        self.state.stops = frozenset(forced)

    def _line(self) -> UserLine | None:
        return None if self._machine is None else self._machine.user_line()

    def release(self) -> None:
        """Releases the program's objects, and the cycle between machine and state."""
        self._machine = None
        self.state.release()
        for base in self.bases:
            base.slots.clear()
            base.stack.clear()

    def before_transforms(self, at: int | None) -> int | None:
        """Where a segment ends that should end at `at`: before a transform of torch.func that is active there."""
        entered = self.state.transforms_at
        return at if entered is None or (at is not None and at < entered) else entered

    def returned(self, value: Any) -> _Ended:
        """The function has returned."""
        if self.state.overrides.changed_at is not None:
            kept = GraphBreak("unsupported_operation", what="a mode that stays on", kind="function")
            raise kept.restarting_at(self.state.overrides.changed_at)
        return self._ended(lambda emitter: emitter.expression(value), None)

    def ended_at(self, reason: GraphBreak) -> _Ended:
        """The graph breaks before the current instruction of the topmost frame."""
        if self.state.open_regions:
            raise reason.restarting_at(self.state.open_regions[0][1])
        if self.state.overrides.changed_at is not None:
            raise reason.restarting_at(self.state.overrides.changed_at)
        frames = self.machine.frames
        if reason.is_done and frames[-1].code.instructions[frames[-1].offset].op in _CALLS:
            self._pass(frames[-1])
        for number, (base, unbound) in enumerate(zip(self.bases, self._unbound, strict=True)):
            if not base.is_done:
                self._pass_unbound_on(number, base, unbound)
        return self._ended(lambda emitter: emitter.state(frames), reason)

    def _pass(self, frame: FrameState) -> None:
        """Moves the end of the segment behind a call that only breaks the graph."""
        instruction = frame.code.instructions[frame.offset]
        self.state.passes_breaks = True
        frame.offset += 1
        OPERATIONS[instruction.op](self.machine.domain, frame, instruction.arg)

    def _pass_unbound_on(self, number: int, base: FrameState, unbound: Iterable[int]) -> None:
        """Handles variables that are unbound at this entry but may be bound at another: they are passed on unread, or guarded."""
        clears = {step.arg for step in base.code.instructions if step.op in _CLEARING}
        for slot in unbound:
            source = SlotSource(number, slot, base.code.slots[slot])
            if slot in clears:
                self.state.guard(GuardKind.ID, source, UNBOUND)
            elif base.slots[slot] is UNBOUND:
                base.slots[slot] = LazyValue(UNBOUND, source)

    def _ended(self, result: Callable[[Emitter], str], reason: GraphBreak | None) -> _Ended:
        emitter = Emitter()
        emitter.advance(self.state.iterators)
        if config.replay_side_effects:
            emitter.effects(self.state.effects)
            emitter.later_calls(self.state.effects)
        _tell_effects(self.state.effects)
        expression = result(emitter)
        dropped = self.machine.dropped(emitter.frames_made)
        if dropped is not None:
            raise GraphBreak("generator_waits").restarting_at(dropped)
        self.state.guard_shapes()
        emitter.modes(self.state.leave_modes())
        after = None if reason is None else Resumption.of(self.machine.frames)
        return _Ended(self.state, emitter, expression, reason, after, has_passed=self.state.passes_breaks)


def _tell_effects(effects: SideEffects) -> None:
    """Warns of changes to the program's objects, or raises, as `side_effect_replay_policy` says."""
    policy = config.side_effect_replay_policy
    if policy in ("warn", "error") and (changed := effects.kinds()):
        text = f"the captured code changes objects of the program: {', '.join(changed)}"
        if policy == "error":
            raise RuntimeError(text)
        warnings.warn(text, stacklevel=2)


def _as_example(source: Source, example: Any) -> Source:
    """The source for guards on inputs. A random number is a new tensor each time, and is not drawn before the guards hold."""
    is_drawn = any(isinstance(each, DrawsSource) for each in source.way())
    return KeptSource(example, "random") if is_drawn else source


class _Ended:
    """A finished run, from which the segment is made."""

    def __init__(
        self, state: CaptureState, emitter: Emitter, result: str, reason: GraphBreak | None, after: Resumption | None, *,
        has_passed: bool,
    ) -> None:  # fmt: skip
        self.state, self.emitter, self.result, self.reason, self.has_passed = state, emitter, result, reason, has_passed
        self.after = after

    def segment(self, backend: Backend, frames: list[FrameState], keeps: Filter | None) -> Segment:
        graph, emitter = self.state.graph, self.emitter
        is_followed = self.after is not None or running.is_called
        if config.install_free_tensors:
            for source, tensor in graph.install(is_of_module, emitter.outputs):
                self.state.guard(GuardKind.ID, source, tensor)
        module, compiled = graph.finish(emitter.outputs, is_followed=is_followed), None
        if self.state.draws is not None:
            emitter.kept(DrawsSource(self.state.draws))  # also where no number is used
        emitter.settle(graph.sources)
        if module is not None:
            inline_regions(module)
            has_gradients = self.state.grad_mode or graph.sets_state
            with without_overrides():
                may_keep = any(map(_keeps_its_memory, graph.examples))
            if not is_followed and has_gradients and may_keep:
                self.state.guard(GuardKind.ID, AttributeSource(KeptSource(running, "running"), "is_called"), False)
            with without_overrides() if self.state.hides_overrides else contextlib.nullcontext():
                with around_backend(module):
                    compiled = runnable(module, backend(module, list(graph.examples)))
            if not callable(compiled):
                raise BadParameter(
                    seen=f"the backend gave {compiled!r}, a {type(compiled).__name__}",
                    expected="a function of the inputs",
                )
            inputs = tuple(_as_example(*pair) for pair in zip(graph.sources, graph.examples, strict=True))
            for holds in module.meta["captured"].input_guards:
                self.state.guard(GuardKind.INPUTS, inputs[0], InputFacts(holds, inputs))
            compiled = _without_module(compiled, module)
            if self.state.hides_overrides:
                compiled = _with_overrides_off(compiled)
        elif emitter.outputs:
            compiled = graph.inputs_given(emitter.outputs)
        guards = self.state.guards if keeps is None else filtered(self.state.guards, keeps, frames)
        return Segment(
            check_contents=guards.reader(emitter.sources, len(frames)), after=self.after,
            inputs=len(graph.sources), sources=tuple(emitter.sources), call=compiled,
            rebuild=emitter.function(self.result), reason=self.reason, is_stepped=not self.has_passed,
            has_effects=graph.has_effects, sets_state=graph.sets_state, guards=guards, graph=module,
            codes=(*(frame.code for frame in frames), *self.state.entered),
        )  # fmt: skip


def _keeps_its_memory(example: Any) -> bool:
    """Whether a backward may keep this tensor itself, without a copy, if the program does not go on after the graph."""
    return isinstance(example, torch.nn.Parameter) or (
        isinstance(example, torch.Tensor) and example.requires_grad and example.is_leaf
    )


def _with_overrides_off(compiled: Callable[..., Any]) -> Callable[..., Any]:
    """A compiled graph whose nodes ask no `__torch_function__`: the graph holds what the answers were."""

    def run(*inputs: Any) -> Any:
        with without_overrides():
            return compiled(*inputs)

    return run


def _without_module(compiled: Callable[..., Any], graph_module: fx.GraphModule) -> Callable[..., Any]:
    """The `forward` of a graph module that the backend returned unchanged, which saves the cost of `Module.__call__`."""
    is_itself = compiled is graph_module or getattr(compiled, "__self__", None) is graph_module
    if not is_itself or getattr(compiled, "__name__", "forward") not in ("forward", "_lazy_forward", "__call__"):
        return compiled
    if graph_module._forward_hooks or graph_module._forward_pre_hooks:
        return compiled
    LazyGraphModule.force_recompile(graph_module)
    return graph_module.forward


def _unread_frame(number: int, frame: FrameState) -> FrameState:
    """A frame of values that are read when they are needed."""
    slots = [
        _unread(value, SlotSource(number, i, name))
        for i, (value, name) in enumerate(zip(frame.slots, frame.code.slots, strict=True))
    ]
    return FrameState(
        code=frame.code, slots=slots, globals=frame.globals, builtins=frame.builtins, offset=frame.offset, then=frame.then,
        stack=[LazyValue(value, StackSource(number, i)) for i, value in enumerate(frame.stack)],
    )  # fmt: skip


def _unread(value: Any, source: SlotSource) -> Any:
    return UNBOUND if value is UNBOUND else LazyValue(value, source)
