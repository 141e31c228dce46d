"""A captured function: its segments, and the loop that runs segments and the instructions between them.

Counterpart: torch/_dynamo/eval_frame.py _TorchDynamoContext
Differs: nothing is hooked into CPython. Where no segment applies, the wrapper interprets one instruction at a time by CPython's
rules.
"""

from __future__ import annotations

import contextlib
import logging
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from types import CodeType, FunctionType, GeneratorType, MethodType
from typing import Any, NamedTuple

import torch

from refimpl._torch import (
    forward_mode_level,
    is_fx_tracing,
    is_inside_function_transform,
    is_jit_tracing,
    restore_transforms,
    set_grad_enabled,
    transform_state,
)
from refimpl.aot.runtime.autograd_function import is_of_graph
from refimpl.backend_registry import lookup_backend
from refimpl.capture.breaks import GraphBreak
from refimpl.capture.bytecode.errors import UnsupportedCode
from refimpl.capture.bytecode.instructions import CANNOT_RAISE, Instruction, Op
from refimpl.capture.config import config, settings_of
from refimpl.capture.entry import Entry
from refimpl.capture.graph_overrides import backend_override, settings_override
from refimpl.capture.guards import failures
from refimpl.capture.guards.filters import Filter
from refimpl.capture.guards.torch_state import autocast_state, restore_autocast
from refimpl.capture.interpreter.concrete import ConcreteDomain
from refimpl.capture.interpreter.concrete_calls import frame_of
from refimpl.capture.interpreter.frame import FrameState
from refimpl.capture.interpreter.machine import Machine
from refimpl.capture.interpreter.signals import Returned
from refimpl.capture.public.cloning import checkpoint_params, clone_inputs
from refimpl.capture.public.counters import counters
from refimpl.capture.public.errors import (
    BackendCompilerFailed,
    CaptureError,
    FailOnRecompileLimitHit,
    RecompileError,
    Unsupported,
)
from refimpl.capture.public.fake_values import as_raised
from refimpl.capture.public.marks import LEFT_OUT_ALONE
from refimpl.capture.public.metrics import CompilationMetrics, next_compile_id, record_compilation_metrics
from refimpl.capture.public.running import CAPTURE, DISABLED, RUN_ONLY, capturing, in_mode, running
from refimpl.capture.public.same import same
from refimpl.capture.public.stances import Stance
from refimpl.capture.public.stances import current as stances
from refimpl.capture.public.timing import dynamo_timed, increment_frame
from refimpl.capture.recognition import Treatment, defined_in, is_captured_in, treatment
from refimpl.capture.repro.backend import innermost_backend, wrap_backend_debug
from refimpl.capture.segment import Segment, SegmentCache, contents_of, facts_of_failure, facts_of_segment, place_of
from refimpl.capture.translate import Backend, BreaksAt, translate

_LOG = logging.getLogger(__name__)


class GuardFail(NamedTuple):
    """The argument of a `guard_fail_fn`: why an existing segment does not fit a call."""

    reason: str
    orig_code: Any


@dataclass(eq=False)
class CaptureOptions:
    """What one call of `compile` decides, for a function and for the functions that it calls."""

    backend: Backend
    fullgraph: bool = False
    dynamic: bool | None = None
    recompile_limit: int | None = None  # None: `config.recompile_limit`
    wraps_errors: bool = False  # whether an error of the backend is raised as BackendCompilerFailed
    guard_filter_fn: Filter | None = None  # decides which guards of a new segment are kept
    guard_export_fn: Callable[[Any], None] | None = None  # called with the guards of each new segment
    # Called with the guard that failed, before a new segment is made.
    guard_fail_fn: Callable[[GuardFail], None] | None = None
    # for tests: whether to stop before an instruction, given the offset where the segment began
    breaks_at: BreaksAt | None = None
    functions: dict[tuple[int, int], CapturedCode] = field(default_factory=dict)  # by ids of code and globals
    breaks: list[GraphBreak] = field(default_factory=list)
    # A caller's set that collects the classes of exceptions of the program while it runs without graphs.
    raised: set[type] | None = None

    _lasting: dict[FunctionType, CapturedFunction] = field(default_factory=dict)
    _forced: dict[int, CaptureOptions] = field(default_factory=dict)  # by id of the backend that `set_stance` forces

    def with_backend(self, backend: Backend) -> CaptureOptions:
        """These options with another backend, for a stance that forces one."""
        known = self._forced.get(id(innermost_backend(backend)))
        if known is None:
            known = self._forced[id(innermost_backend(backend))] = replace(
                self, backend=backend, functions={}, breaks=self.breaks, _lasting={}, _forced={}
            )
        return known

    def captured(self, function: FunctionType) -> CapturedFunction:
        """The captured form of a function. Functions with the same code share segments: all that a segment reads is in frames."""
        known = self._lasting.get(function)
        if known is None:
            known = CapturedFunction(function, self)
            if (
                "<locals>" not in function.__qualname__
            ):  # functions that are made again and again must not be kept alive
                self._lasting[function] = known
        return known

    def code_of(self, function: FunctionType) -> CapturedCode:
        """The segments of a function's code."""
        code, scope = function.__code__, function.__globals__
        key = id(code), id(scope)
        known = self.functions.get(key)
        if known is None:
            known = self.functions[key] = CapturedCode(code, scope)
        return known


@dataclass(eq=False, slots=True)
class CapturedCode:
    """The segments of all functions that have the same code and globals."""

    code: CodeType  # kept alive, because its id is the key
    globals: dict[str, Any]
    cache: SegmentCache = field(default_factory=SegmentCache)


class CapturedFunction:
    """Calls of one function. Not thread-safe: calls share the segments and add to them."""

    def __init__(self, function: FunctionType, options: CaptureOptions) -> None:
        self.function = function
        self.options = options
        self.cache = options.code_of(function).cache
        self._domain = StepDomain(options)
        self._entry = Entry(function)
        self._backend_seconds = 0.0  # time in the backend for the segment being made
        self._first: tuple[Any, Any] = (None, None)  # code of the function, and the place of its first instruction

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if stances.stance is not None:
            return self._under_stance(stances.stance, args, kwargs)
        return self.call(args, kwargs)

    def _under_stance(self, stance: Stance, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A call as `set_stance` says."""
        match stance.stance:
            case "force_eager":
                with in_mode(DISABLED):
                    return self.function(*args, **kwargs)
            case "eager_on_recompile":
                with in_mode(RUN_ONLY if running.mode == CAPTURE else running.mode):
                    return self.call(args, kwargs)
            case "eager_then_compile" | "aot_eager_then_compile" if not self._is_begun():
                self._note_sizes(args, kwargs)
                if stance.stance == "eager_then_compile":
                    with in_mode(DISABLED):
                        return self.function(*args, **kwargs)
                return self.options.with_backend(lookup_backend("aot_eager")).captured(self.function).call(args, kwargs)
            case "default" if stance.backend is not None:
                name = stance.backend if isinstance(stance.backend, str) else None
                backend = wrap_backend_debug(lookup_backend(stance.backend), name)
                return self.options.with_backend(backend).captured(self.function).call(args, kwargs)
            case _:
                return self.call(args, kwargs)

    def _is_begun(self) -> bool:
        """Whether the function was called before under a stance that captures the second call."""
        before, self.cache.is_begun = self.cache.is_begun, True
        return before

    def _note_sizes(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Notes the sizes of a call that is not captured: a size that is another one in the next call is a symbol."""
        frame = frame_of(self.function, args, kwargs)
        if frame is not None:
            with settings_of(dynamic=self.options.dynamic, fullgraph=False):
                self.cache.sizes(place_of([frame])).note(frame)

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A call as `compile` says."""
        if running.mode == DISABLED:
            return self.function(*args, **kwargs)
        if is_fx_tracing():
            return self._traced_by_fx(args, kwargs)
        if is_jit_tracing():
            raise _traced("torch.jit.trace")
        code, place = self._first
        segments = self.cache.by_place.get(place)
        if segments and code is self.function.__code__:
            slots = self._entry.slots(args, kwargs)
            if slots is not None:
                for segment in segments:
                    kept = segment.check_contents(slots, ())
                    if kept is not None:
                        if segments[0] is not segment:
                            self.cache.put_first(segments, segment)
                        return self._begun(segment, kept, args, kwargs)
        return self._called(args, kwargs)

    def _begun(self, segment: Segment, kept: tuple[Any, ...], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Runs a call whose arguments fit a segment. A frame is made only if the segment ends in a graph break."""
        try:
            out = () if segment.call is None else _computed(segment, kept)
        except Exception as error:
            if segment.has_effects or not _handles(segment):
                raise
            frame = frame_of(self.function, args, kwargs)
            assert frame is not None
            return self._raising_again(error, [frame])
        result = segment.rebuild(out, kept)
        if segment.after is None:
            return result
        state = [result]
        del result, out, kept, args, kwargs
        return self._after(segment, state)

    def run_as_it_is(self, *args: Any, **kwargs: Any) -> Any:
        """Calls a function that is excluded from capture, while the functions it calls are captured."""
        frame = frame_of(self.function, args, kwargs)
        if frame is None or frame.code.is_generator or running.mode != CAPTURE:
            return self.function(*args, **kwargs)
        frame.is_running = True
        return self._rest([frame])

    def _called(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Runs any call."""
        try:
            frame = frame_of(self.function, args, kwargs)
        except UnsupportedCode:
            if self.options.fullgraph:
                raise
            frame = None
        if frame is None or frame.code.is_generator:
            return self.function(*args, **kwargs)
        frame.is_running = True
        self._first = self.function.__code__, place_of([frame])
        return self._run([frame])

    def _run(self, frames: list[FrameState]) -> Any:
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
        if segment.after is None:
            return result
        state = [result]
        del result, out, kept, found, frames
        return self._after(segment, state)

    def _after(self, segment: Segment, state: list[Any]) -> Any:
        """Runs from a graph break to the end of the function. Makes no frame between two segments that follow each other
        directly.

        state: one item, the contents of the frames there. It is taken out of the list, and nothing here refers to it while the
        program runs: an object that the program drops is freed as early as in eager.
        """
        while (after := segment.after) is not None:
            found, frames, at = None, None, None
            if segment.is_stepped:
                outcome, frames, at = self._stepped(after.frames(state.pop()))
                if outcome is not None:
                    return outcome.value
            else:
                found = self.cache.lookup(after.place, state[0])
            if found is None:
                frames = frames or after.frames(state.pop())
                try:
                    found = self._segment(frames)
                except BaseException as error:
                    return self._thrown(error, frames, at)
                if found is None:
                    return self._rest(frames)
            segment, kept = found
            try:
                out = () if segment.call is None else _computed(segment, kept)
            except Exception as error:
                frames = frames or after.frames(state.pop())
                if segment.has_effects or not _handles(segment):
                    self._thrown(error, frames, at)
                    raise  # some effects have happened and others have not: the program cannot go on
                return self._raising_again(error, frames)
            state = [segment.rebuild(out, kept)]
            del out, kept, found
        return state.pop()

    def _stepped(self, frames: list[FrameState]) -> tuple[Returned | None, list[FrameState], int | None]:
        """Runs the instruction at a graph break. Returns the function's result if it returns there, the frames, and the last
        offset of the topmost frame that ran; None where the frame above it has just returned.
        """
        machine = Machine(self._domain)
        machine.frames = frames
        top, at = frames[-1], frames[-1].offset
        outcome = machine.step()
        # The exception being handled is in no slot and not on the stack, so no segment can begin until it has been handled.
        while outcome is None and any(frame.handled is not None for frame in machine.frames):
            top, at = machine.frames[-1], machine.frames[-1].offset
            outcome = machine.step()
        assert outcome is None or isinstance(outcome, Returned)
        return outcome, machine.frames, at if outcome is not None or machine.frames[-1] is top else None

    def _segment(self, frames: list[FrameState]) -> Any:
        place = place_of(frames)
        found = self.cache.lookup(place, contents_of(frames))
        if found is not None or place in self.cache.refused:
            return found
        if running.mode == RUN_ONLY or config.disable:
            return None
        if is_inside_function_transform() or forward_mode_level() >= 0:
            return None  # forward-mode AD: the program's own functions have no tangent rule for a graph
        if self._is_over_limit(place, frames):
            return None
        if stances.stance is not None and stances.stance.stance == "fail_on_recompile":
            raise self._recompiled(place, frames)
        if any(_is_waiting(value) for contents in contents_of(frames) for value in contents):
            self.cache.refused.add(place)
            return None
        segment = self._captured(frames)
        if segment is None:
            self.cache.refused.add(place)
            return None
        self.cache.add(place, segment)
        kept = segment.check(frames)
        assert kept is not None, (
            f"a guard does not hold for what it was made of: {failures.reason(segment.guards, frames)}"
        )
        return segment, kept

    def _is_over_limit(self, place: Any, frames: list[FrameState]) -> bool:
        """Whether a place has as many segments as it may have. Reports why the most recent one does not fit."""
        segments = self.cache.by_place.get(place)
        total = sum(map(len, self.cache.by_place.values()))
        if segments is None:  # there is nothing to compare with
            return total >= config.accumulated_recompile_limit and self._refuse(place, total, "at other places")
        options, guards = self.options, segments[0].guards
        if options.guard_fail_fn is not None:
            self._tell_failure(options.guard_fail_fn, str(failures.reason(guards, frames)), frames[0].code.code)
        if config.error_on_recompile:
            raise RecompileError(f"{self.function.__qualname__} is captured again: {failures.reason(guards, frames)}")
        limit = config.recompile_limit if options.recompile_limit is None else options.recompile_limit
        if len(segments) < limit and total < config.accumulated_recompile_limit:
            return False
        return self._refuse(place, min(limit, total), failures.reason(guards, frames))

    def _tell_failure(self, watcher: Callable[[GuardFail], None], why: str, code: CodeType) -> None:
        """Calls a `guard_fail_fn`, which only watches: an error of it does not end the program."""
        try:
            watcher(GuardFail(why, code))
        except Exception:
            _LOG.exception("the guard_fail_fn of %s failed", self.function.__qualname__)

    def _recompiled(self, place: Any, frames: list[FrameState]) -> RuntimeError:
        """The error of a call that fits no segment under the stance "fail_on_recompile"."""
        segments = self.cache.by_place.get(place, [])
        why = f": {failures.reason(segments[0].guards, frames)}" if segments else ""
        code = frames[0].code.code
        return RuntimeError(
            "Detected recompile when torch.compile stance is 'fail_on_recompile'. "
            f"filename: '{code.co_filename}', function name: '{code.co_name}', line number: {code.co_firstlineno}{why}"
        )

    def _refuse(self, place: Any, count: int, why: Any) -> bool:
        """Captures nothing more at this place; raises where the limit is an error."""
        counters["recompile_limit"][self.function.__qualname__] += 1
        if config.fail_on_recompile_limit_hit or self.options.fullgraph:
            raise FailOnRecompileLimitHit(
                f"{self.function.__qualname__} was captured {count} times: {why}\n"
                "  expected: inputs that fit what was captured\n  what to do: mark_dynamic, or a higher recompile_limit"
            )
        self.cache.refused.add(place)
        return True

    def _captured(self, frames: list[FrameState]) -> Segment | None:
        """A new segment that begins at these frames; None where nothing can be captured. Either way the metrics are recorded."""
        code, place = frames[0].code.code, place_of(frames)
        increment_frame()
        start_time, began, before = time.time(), time.perf_counter(), len(self.options.breaks)
        self._backend_seconds = 0.0
        segment, raised = None, None
        self._number = next_compile_id()
        changes = settings_override(self._number) if config.debug_dynamo_config_override else None
        try:
            with contextlib.nullcontext() if changes is None else config.patch(changes):
                segment = self._made(frames)
        except Exception as error:
            raised = error
            raise
        finally:
            record_compilation_metrics(
                CompilationMetrics(
                    compile_id=self._number, frame_key=str(place), co_name=code.co_name, co_filename=code.co_filename,
                    co_firstlineno=code.co_firstlineno, cache_size=self.cache.count(place),
                    accumulated_cache_size=len(self.cache.segments()), start_time=start_time,
                    entire_frame_compile_time_s=time.perf_counter() - began, backend_compile_time_s=self._backend_seconds,
                    restart_reasons=tuple(reason.explanation for reason in self.options.breaks[before:]),
                    **facts_of_failure(raised), **facts_of_segment(segment),
                )
            )  # fmt: skip
        return segment

    @dynamo_timed(phase_name="entire_frame_compile")
    def _made(self, frames: list[FrameState]) -> Segment | None:
        options = self.options
        counters["frames"]["total"] += 1
        try:
            with capturing(), settings_of(dynamic=options.dynamic, fullgraph=options.fullgraph):
                segment = translate(
                    frames, self._compiled, fullgraph=options.fullgraph, breaks_at=options.breaks_at,
                    sizes=self.cache.sizes(place_of(frames)), keeps=options.guard_filter_fn,
                )  # fmt: skip
        except GraphBreak as reason:  # the objects that the segment leaves behind cannot be rebuilt
            self._note(reason)
            if options.fullgraph or reason.is_error:
                raise _as_error(reason) from reason.__cause__
            return None
        except Exception as error:
            if not config.suppress_errors or (options.fullgraph and not isinstance(error, BackendCompilerFailed)):
                raise
            _LOG.warning("%s runs without capture: %s", self.function.__qualname__, error)
            return None
        counters["frames"]["ok"] += 1
        if segment.reason is not None:
            self._note(segment.reason)
        if options.guard_export_fn is not None:
            options.guard_export_fn(list(segment.guards))
        return segment

    @dynamo_timed(phase_name="backend_compile")
    def _compiled(self, module: torch.fx.GraphModule, examples: list[Any]) -> Callable[..., Any]:
        """Compiles a graph with the backend."""
        backend = self.options.backend
        if config.debug_backend_override:
            backend = backend_override(self._number) or backend
        calls = sum(node.op.startswith("call") for node in module.graph.nodes)
        counters["stats"]["unique_graphs"] += 1
        counters["stats"]["calls_captured"] += calls
        began = time.perf_counter()
        try:
            compiled = backend(module, examples)
            if config.verify_correctness:
                _check_backend(module, compiled, examples)
        except CaptureError:
            raise
        except Exception as error:
            if not self.options.wraps_errors:
                raise
            raise BackendCompilerFailed(innermost_backend(backend), error) from error
        self._backend_seconds = time.perf_counter() - began
        return compiled

    def _note(self, reason: GraphBreak) -> None:
        self.options.breaks.append(reason)
        counters["graph_break"][reason.explanation] += 1

    def _traced_by_fx(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Runs the function itself for fx proxies: they have no values to guard."""
        if config.error_on_nested_fx_trace and not config.force_compile_during_fx_trace:
            raise _traced("symbolically trace")
        return self.function(*args, **kwargs)

    def _raising_again(self, error: Exception, frames: list[FrameState]) -> Any:
        """Runs without the graph, so that an error which depends on data is raised in eager's place and reaches the program's
        handlers.

        Raises `error` itself where eager raises nothing of its class: then the error is the backend's.
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

    def _thrown(self, error: BaseException, frames: list[FrameState], at: int | None) -> Any:
        """Handles an exception that a segment raised at its beginning, as the program would.

        The handlers that are active there run, also that of a `with` which the graph break has just entered. `at`: the
        instruction that ran last; None for the one before the frame's current one.
        """
        frame = frames[-1]
        machine = Machine(self._domain)
        machine.frames = frames
        instructions = frame.code.instructions
        at, ahead = frame.offset - 1 if at is None else at, _next_that_may_raise(frame)
        if _depth(instructions[ahead]) > _depth(instructions[at]):
            while frame.offset != ahead:
                machine.step()
            at = ahead
        outer = [waiting.current.handler for waiting in frames[:-1]]
        if instructions[at].handler is None and not any(outer):
            raise error
        frame.offset = at + 1
        return machine.resume(error).value

    def _rest(self, frames: list[FrameState]) -> Any:
        """Runs without segments to the end of the function."""
        machine = Machine(self._domain)
        machine.frames = frames
        return machine.resume().value


def _check_backend(module: torch.fx.GraphModule, compiled: Callable[..., Any], examples: list[Any]) -> None:
    """Runs graph and backend on copies of the example inputs. Raises RuntimeError where the results differ.

    Counterpart: torch/_dynamo/output_graph.py WrapperBackend
    """
    restore = checkpoint_params(module)
    correct = module.forward(*clone_inputs(examples))
    restore()
    result = compiled(*clone_inputs(examples))
    restore()
    if not same(correct, result):
        raise RuntimeError(
            f"incorrect results of backend {compiled}\n  expected: {correct}\n  seen: {result}\n"
            "  what to do: fix the backend, or unset config.verify_correctness"
        )


def _traced(how: str) -> RuntimeError:
    """The error for tracing a captured function with fx or TorchScript. The wording is upstream's, because its tests match it."""
    return RuntimeError(
        f"Detected that you are using FX to {how} a dynamo-optimized function\n"
        "  what to do: trace the function itself, or capture what the trace gives"
    )


def _as_error(reason: GraphBreak) -> Exception:
    """The error that a user sees for a graph break that is not allowed."""
    raised = as_raised(reason)
    return Unsupported.of(reason) if raised is reason else raised


def _is_waiting(value: Any) -> bool:
    """Whether the value is a suspended generator. It must be dropped at the time eager drops it, since that may run code of the
    user's.
    """
    return type(value) is GeneratorType and value.gi_frame is not None


def _next_that_may_raise(frame: FrameState) -> int:
    """The next instruction that may raise. In a loop where none may, any instruction."""
    instructions, offset = frame.code.instructions, frame.offset
    for _ in instructions:
        instruction = instructions[offset]
        if instruction.op not in CANNOT_RAISE or instruction.op is Op.RETURN_VALUE:
            break
        offset = instruction.arg if instruction.op is Op.JUMP else offset + 1
    return offset


def _depth(instruction: Instruction) -> int:
    """How many stack values the instruction's handler keeps. For a `with`, that includes `__exit__`."""
    return 0 if instruction.handler is None else instruction.handler.depth


def _handles(segment: Segment) -> bool:
    """Whether a function in the segment has an exception handler, which an error raised by the graph would have to reach."""
    return any(step.handler is not None for code in segment.codes for step in code.instructions)


def _computed(segment: Segment, kept: tuple[Any, ...]) -> Any:
    """Runs the graph. If it raises after it changed grad mode, autocast or inference mode, or within a transform of torch.func,
    these are restored, as `with` does.
    """
    assert segment.call is not None
    if not segment.sets_state:
        return segment.call(*kept[: segment.inputs])
    mode, autocast, transforms = torch.is_grad_enabled(), autocast_state(), transform_state()
    try:
        return segment.call(*kept[: segment.inputs])
    except BaseException as error:
        # Inference mode ends when the guard object that a frame holds is freed.
        traceback.clear_frames(error.__traceback__)
        set_grad_enabled(mode)
        restore_autocast(autocast)
        restore_transforms(transforms)
        raise


class StepDomain(ConcreteDomain):
    """Runs the instruction at a graph break. A function that it calls is captured on its own."""

    def __init__(self, options: CaptureOptions) -> None:
        super().__init__()
        self._options = options

    def user_exception(self, raised: BaseException) -> Any:
        if self._options.raised is not None:
            self._options.raised.add(type(raised))
        return super().user_exception(raised)

    def call(self, frame: FrameState, function: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        before, running.is_called = running.is_called, True
        try:
            return self._call(frame, function, args, kwargs)
        finally:
            running.is_called = before

    def _call(self, frame: FrameState, function: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        target: Any = function
        receiver: list[Any] = []
        if type(function) is MethodType:
            target, receiver = function.__func__, [function.__self__]
        elif issubclass(type(function), torch.nn.Module):
            target, receiver = type(function).__call__, [function]
        if type(target) is FunctionType:
            if is_captured(target):
                return super().call(frame, self._options.captured(target), [*receiver, *args], kwargs)
            if LEFT_OUT_ALONE in target.__dict__:
                return super().call(frame, self._options.captured(target).run_as_it_is, [*receiver, *args], kwargs)
            if target is torch.Tensor.register_hook:
                given = [*receiver, *args, *kwargs.values()]
                if len(given) == 2 and kwargs.keys() <= {"hook"}:
                    function, args, kwargs = target, [given[0], _for_arriving_gradients(*given)], {}
        return super().call(frame, function, args, kwargs)


def is_captured(function: FunctionType) -> bool:
    """Whether a function that is called at a graph break is captured on its own: functions of the program, of torch's modules,
    and those that the recognition table lets capture enter.
    """
    return is_captured_in(defined_in(function)) and treatment(function) is Treatment.ENTER


def _for_arriving_gradients(tensor: Any, hook: Any) -> Any:
    """The hook to pass to `register_hook`. On a result of a graph, it is skipped when only other results of the graph receive
    gradients: in eager the operator that made this tensor would not run in backward.
    """
    if not isinstance(tensor, torch.Tensor) or not is_of_graph(tensor):
        return hook
    return lambda gradient: None if gradient is None else hook(gradient)
