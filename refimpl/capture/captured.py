"""A captured function: segments, the places between them, and the loop that runs both.

Counterpart: torch/_dynamo/eval_frame.py _TorchDynamoContext
Differs: no hook. The wrapper interprets what no segment covers, one instruction at a time, by CPython's rules.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from types import FunctionType, GeneratorType, MethodType
from typing import Any

import torch

from refimpl._torch import set_grad_enabled
from refimpl.capture.breaks import GraphBreak
from refimpl.capture.bytecode.errors import UnsupportedCode
from refimpl.capture.interpreter.concrete import ConcreteDomain
from refimpl.capture.interpreter.concrete_calls import frame_of
from refimpl.capture.interpreter.frame import FrameState
from refimpl.capture.interpreter.machine import Machine
from refimpl.capture.interpreter.signals import Returned
from refimpl.capture.recognition import Treatment, defined_in, treatment
from refimpl.capture.segment import Segment, SegmentCache, place_of
from refimpl.capture.translate import Backend, BreaksAt, translate

RECOMPILE_LIMIT = 8  # segments of one place


@dataclass(eq=False)
class CaptureOptions:
    """What a call of `compile` decides for a function and for those that it calls."""

    backend: Backend
    fullgraph: bool = False
    recompile_limit: int = RECOMPILE_LIMIT
    breaks_at: BreaksAt | None = None  # for tests: stop before an instruction, given where the segment began
    functions: dict[FunctionType, CapturedFunction] = field(default_factory=dict)
    breaks: list[GraphBreak] = field(default_factory=list)
    raised: set[type] | None = (
        None  # classes of what the program raised while it runs without graphs, where somebody asks
    )

    def captured(self, function: FunctionType) -> CapturedFunction:
        """The captured form of a function, which is one however it is called."""
        known = self.functions.get(function)
        if known is None:
            known = self.functions[function] = CapturedFunction(function, self)
        return known


class CapturedFunction:
    """Calls of one function. Not for several threads at once: they share the segments, which a call may add to."""

    def __init__(self, function: FunctionType, options: CaptureOptions) -> None:
        self.function = function
        self.options = options
        self.cache = SegmentCache()
        self._domain = StepDomain(options)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        try:
            frame = frame_of(self.function, args, kwargs)
        except UnsupportedCode:
            if self.options.fullgraph:
                raise
            frame = None
        if frame is None or frame.code.is_generator:
            return self.function(*args, **kwargs)
        frame.is_running = True
        return self._run([frame])

    def _run(self, frames: list[FrameState]) -> Any:
        while True:
            found = self._segment(frames)
            if found is None:
                return self._rest(frames)
            segment, kept = found
            try:
                out = () if segment.call is None else _computed(segment, kept)
            except Exception as error:
                if segment.has_effects or not _handles(segment):
                    raise
                return self._raising_again(error, frames)
            result = segment.rebuild(out, kept)
            if segment.reason is None:
                return result
            machine = Machine(self._domain)
            machine.frames = result
            outcome = machine.step()
            # An exception that is handled is in no slot and on no stack: until it is not, the frames are run as they are.
            while outcome is None and any(frame.handled is not None for frame in machine.frames):
                outcome = machine.step()
            if outcome is not None:
                assert isinstance(outcome, Returned)
                return outcome.value
            frames = machine.frames

    def _segment(self, frames: list[FrameState]) -> Any:
        place = place_of(frames)
        found = self.cache.lookup(place, frames)
        if found is not None or place in self.cache.refused:
            return found
        if self.cache.count(place) >= self.options.recompile_limit:
            self.cache.refused.add(place)
            return None
        if any(map(_is_waiting, (*frames[0].slots, *frames[0].stack))):
            self.cache.refused.add(place)
            return None
        options = self.options
        try:
            segment = translate(frames, options.backend, fullgraph=options.fullgraph, breaks_at=options.breaks_at)
        except GraphBreak as reason:  # what the segment leaves cannot be made again
            if options.fullgraph:
                raise
            options.breaks.append(reason)
            self.cache.refused.add(place)
            return None
        self.cache.add(place, segment)
        if segment.reason is not None:
            self.options.breaks.append(segment.reason)
        kept = segment.check(frames)
        assert kept is not None, f"a guard does not hold for what it was made of: {segment.guards.failing(frames)}"
        return segment, kept

    def _raising_again(self, error: Exception, frames: list[FrameState]) -> Any:
        """Without the graph: what the data raise is raised where eager raises it, in the reach of the program's handlers.

        Raises `error` itself where eager raises nothing of its class: then it is the backend's.
        """
        outer, self.options.raised = self.options.raised, set()
        try:
            result = self._rest(frames)
            is_the_programs = any(issubclass(kind, type(error)) for kind in self.options.raised)
        finally:
            inner, self.options.raised = self.options.raised, outer
            if outer is not None:
                outer |= inner
        if not is_the_programs:
            raise error
        return result

    def _rest(self, frames: list[FrameState]) -> Any:
        """Without segments to the end."""
        machine = Machine(self._domain)
        machine.frames = frames
        return machine.resume().value


def _is_waiting(value: Any) -> bool:
    """Whether it is a generator that may run code of the user's when it is dropped: then it must be dropped when it would be."""
    return type(value) is GeneratorType and value.gi_frame is not None


def _handles(segment: Segment) -> bool:
    """Whether a function that the segment runs has a handler, which what its graph raises would have to reach."""
    return any(step.handler is not None for code in segment.codes for step in code.instructions)


def _computed(segment: Segment, kept: tuple[Any, ...]) -> Any:
    """What the graph gives. Where it raises in a region of another grad mode, that is left as the program's `with` leaves it."""
    assert segment.call is not None
    if not segment.sets_state:
        return segment.call(*kept[: segment.inputs])
    mode = torch.is_grad_enabled()
    try:
        return segment.call(*kept[: segment.inputs])
    except BaseException:
        set_grad_enabled(mode)
        raise


class StepDomain(ConcreteDomain):
    """Runs the instruction at a break. Functions that it calls are captured by themselves."""

    def __init__(self, options: CaptureOptions) -> None:
        super().__init__()
        self._options = options

    def user_exception(self, raised: BaseException) -> Any:
        if self._options.raised is not None:
            self._options.raised.add(type(raised))
        return super().user_exception(raised)

    def call(self, frame: FrameState, function: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        target: Any = function
        receiver: list[Any] = []
        if type(function) is MethodType:
            target, receiver = function.__func__, [function.__self__]
        elif issubclass(type(function), torch.nn.Module):
            target, receiver = type(function).__call__, [function]
        if type(target) is FunctionType and is_captured(target):
            return super().call(frame, self._options.captured(target), [*receiver, *args], kwargs)
        return super().call(frame, function, args, kwargs)


def is_captured(function: FunctionType) -> bool:
    """Whether a function that is called at a break is captured by itself: the program's own, and those of torch's modules."""
    module = defined_in(function)
    root = module.partition(".")[0]
    if root in sys.stdlib_module_names or (root == "torch" and not module.startswith("torch.nn.modules")):
        return False
    return treatment(function) is Treatment.ENTER
