"""Pre-dispatch tracing: records above autograd and autocast. Composite ops stay whole; grad mode and autocast changes are nodes.

Counterpart: torch/fx/experimental/proxy_tensor.py PreDispatchTorchFunctionMode, ProxyTorchDispatchMode with pre_dispatch=True
Differs: autocast regions are found from the state that ops run in (see the note below). Where inference mode or a backward pass
switches gradients off, the graph does so as well, and `requires_grad_` is a node. `x.data` is recorded as `detach`; upstream
keeps the tensor as a constant. Ops inside torch.func transforms, and ops on Tensor subclasses, are recorded below autograd.

Note [How calls arrive]
The dispatcher's highest key, PreDispatch, calls one Python mode in a slot. The slot accepts three classes by isinstance:
upstream's proxy mode, its functional tensor mode, and the mode that checks schemas. `PreDispatchRecordingMode` inherits from the
last one only to be accepted. The dispatcher takes the mode out of the slot while it handles a call, so that ops called below
(autocast, autograd, fake kernels) are not recorded again. Alternatives fail. A dispatch key with a Python fallback does not work
while another dispatch mode is active. An ordinary mode with autograd's keys excluded runs after autocast. Function modes do not
see calls from C++.

Note [Backward passes inside of the trace]
Autograd unpacks a saved tensor as a new tensor. A saved result has the `grad_fn` of the original result, by which its node is
found; a saved argument is the argument itself. An intermediate of a composite op, such as a transposed weight, has no node, and
the backward pass is refused; upstream makes it a constant.

Note [Calls that are no ops]
`torch._C._set_grad_enabled` (torch.no_grad and others call it) is seen by a function mode: it becomes a node, and runs. Autocast
regions notify upstream's own mode only. So the autocast state (a flag and a dtype per device) and the nesting depth are compared
at every op and at the end; a change becomes `_enter_autocast` and `_exit_autocast` nodes. A region without ops is not in the
graph, and two equal regions with no op between them become one. The function mode also calls higher-order operators, which it
sees first.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from refimpl._torch import (
    PRE_DISPATCH_KEY,
    DispatchMode,
    FakeTensorMode,
    HigherOrderOperator,
    PreDispatchSlot,
    autocast_device_types,
    enter_autocast,
    exit_autocast,
    is_any_mode_active_but,
    is_inside_backward,
    is_inside_function_transform,
    is_traceable_wrapper_subclass,
    no_python_dispatcher,
    pytree,
    set_grad_enabled,
    without_pre_dispatch_modes,
    without_wrappers,
)
from refimpl.errors import UnsupportedByRefimpl, user_line
from refimpl.trace.collectives import functional_form
from refimpl.trace.fake_kernels import CachingMode, FakeKernelsState
from refimpl.trace.graph_builder import GraphBuilder
from refimpl.trace.options import TraceOptions
from refimpl.trace.recording_mode import RecordingMode, paused_recordings
from refimpl.trace.symbolic_indexing import (
    get_item,
    has_symbolic_integer,
    is_of_symbolic_numbers,
    set_item,
    tensor_of_numbers,
)

_OF_DUAL_LEVELS = (torch.ops.aten._make_dual.default, torch.ops.aten._unpack_dual.default)


class PreDispatchRecordingMode(RecordingMode, PreDispatchSlot):
    """A recording mode that sees every call before autocast and autograd. Results have a grad_fn as in eager."""

    def __init__(self, builder: GraphBuilder, options: TraceOptions, fake_mode: FakeTensorMode | None = None) -> None:
        super().__init__(builder, options, fake_mode)
        self._dispatch_key = PRE_DISPATCH_KEY  # TorchDispatchMode.__enter__ puts the mode into this key's slot
        self._caching: CachingMode | None = None
        if self._kernels is not None and fake_mode is not None:
            # Results need a grad_fn, which cached ones lack, so the cache serves the ops that arrive below autograd instead.
            if self._kernels.is_caching:
                self._caching = CachingMode(self._kernels, self.tracker)
            self._kernels = FakeKernelsState(fake_mode, is_caching=False)
        self.regions = RegionsState(builder)
        self._is_below = False
        # id(grad_fn) -> the grad_fn, and the nodes of its results by output_nr.
        self._results: dict[int, tuple[Any, dict[int, torch.fx.Node]]] = {}
        self._set_aside_by_entry: list[contextlib.ExitStack] = []

    def __enter__(self) -> PreDispatchRecordingMode:
        set_aside = contextlib.ExitStack()
        set_aside.enter_context(paused_recordings())
        set_aside.enter_context(without_pre_dispatch_modes())
        self._set_aside_by_entry.append(set_aside)
        super().__enter__()
        return self

    def __exit__(self, exc_type: Any, exc_val: Any, exc_tb: Any) -> None:
        super().__exit__(exc_type, exc_val, exc_tb)
        self._set_aside_by_entry.pop().close()

    def _dispatch(self, func: Any, args: Any, kwargs: Any) -> Any:
        if self._is_below:
            return super()._dispatch(func, args, kwargs)
        self.regions.follow()
        if is_inside_function_transform():
            return self._below(func, args, kwargs)
        if func in _OF_DUAL_LEVELS:
            raise UnsupportedByRefimpl(
                seen=f"forward-mode AD inside of a trace with pre_dispatch=True, whose graph cannot enter a level{user_line()}",
                supported="forward-mode AD in other traces, which record the ops that compute tangents",
                do="trace without pre_dispatch",
            )
        # Tensors that the function of torch.func.vjp keeps are wrappers of a transform that has ended.
        args, kwargs = pytree.tree_map_only(torch.Tensor, without_wrappers, (args, kwargs))
        if is_inside_backward():
            self._adopt_saved((args, kwargs))
        result = super()._dispatch(func, args, kwargs)
        return self._below(func, args, kwargs) if result is NotImplemented else result

    def track(self, value: Any, node: torch.fx.Node, *, constant: torch.Tensor | None = None) -> None:
        super().track(value, node, constant=constant)
        history = _history_of(value) if isinstance(value, torch.Tensor) else None
        if history is not None:
            _, outputs = self._results.setdefault(id(history), (history, {}))
            outputs[value.output_nr] = node

    def _run(self, func: Any, args: Any, kwargs: Any, tensors: list[torch.Tensor]) -> Any:
        if self._caching is not None and not is_any_mode_active_but(self.fake_mode):  # which may want to see every call
            with self._caching:
                return super()._run(func, args, kwargs, tensors)
        if self.fake_mode is not None:
            return super()._run(func, args, kwargs, tensors)
        with no_python_dispatcher():  # only the PreDispatch slot needs it; real tensors use eager's kernels
            return super()._run(func, args, kwargs, tensors)

    def _adopt_saved(self, arguments: Any) -> None:
        """Track saved tensors that a backward op has for arguments by the nodes of the results that were saved."""
        for tensor in pytree.tree_leaves(arguments):
            if not isinstance(tensor, torch.Tensor) or self.tracker.find(tensor) is not None:
                continue
            _, outputs = self._results.get(id(tensor.grad_fn), (None, {}))
            node = outputs.get(tensor.output_nr) if tensor.grad_fn is not None else None
            if node is not None:
                self.track(tensor, node)
            elif not self.builder.is_constant(tensor) and not (tensor.is_leaf and tensor.requires_grad):
                raise UnsupportedByRefimpl(
                    seen="a backward pass inside of a trace with pre_dispatch=True that needs a saved tensor without a node in "
                    f"the graph, of shape {tuple(tensor.shape)}{user_line()}: a composite op or a saved tensor hook "
                    "made it",
                    supported="a backward pass through ops that save only their arguments and results",
                    do="take the gradient of the graph, or trace without pre_dispatch",
                )

    def recorded_again(self) -> contextlib.AbstractContextManager[Any]:
        """Below autograd the operators of a decomposition arrive below autograd too, where the slot is not asked."""
        return _RecordingBelowAutograd(self) if self._is_below else self

    def _below(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Run the call and record the ops that arrive below autograd, after torch.func transforms and Tensor subclasses."""
        self._is_below = True
        try:
            with _RecordingBelowAutograd(self):
                return func(*args, **kwargs)
        finally:
            self._is_below = False


def _history_of(value: torch.Tensor) -> Any:
    """The grad_fn; None where autograd refuses to make one: a view made under no_grad whose base has been mutated since."""
    try:
        return value.grad_fn
    except RuntimeError:
        return None


class _RecordingBelowAutograd(DispatchMode):
    """An ordinary dispatch mode that records for a PreDispatchRecordingMode while that handles a call."""

    supports_higher_order_operators = True

    def __init__(self, recording: PreDispatchRecordingMode) -> None:
        super().__init__()
        self._recording = recording

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self._recording.__torch_dispatch__(func, types, args, kwargs)


AutocastState = tuple[tuple[bool, torch.dtype], ...]  # per device: is autocast on, and to which dtype it casts

_DEVICES = tuple(autocast_device_types())


@dataclass(frozen=True, slots=True, kw_only=True)
class _Region:
    """An autocast region in the graph: its nesting depth, its state, and an enter node for every device that it changes."""

    depth: int
    state: AutocastState
    nodes: tuple[torch.fx.Node, ...]


class RegionsState:
    """The grad mode and the autocast regions that the graph is in. See Note [Calls that are no ops]."""

    def __init__(self, builder: GraphBuilder) -> None:
        self._builder = builder
        self._has_gradients = torch.is_grad_enabled()
        self._is_implied = False  # at the last op inference mode or a backward pass had switched gradients off
        self._outside = _autocast_state()
        self._regions: list[_Region] = []

    def set_gradients(self, is_on: bool) -> None:
        """Record that the program switches gradients on or off."""
        self._follow_autocast()
        self._switch_gradients(is_on)

    def follow(self) -> None:
        """Called before each op: record changes of grad mode and autocast since the last one."""
        is_off = not torch.is_grad_enabled() and (torch.is_inference_mode_enabled() or is_inside_backward())
        self._imply(is_off)
        self._follow_autocast()

    def finish(self) -> None:
        """Called when the program has returned: exit all autocast regions, and undo a grad mode that was only implied."""
        self._imply(False)
        while self._regions:
            self._leave()

    def _imply(self, is_off: bool) -> None:
        if is_off:
            if self._has_gradients:
                self._switch_gradients(False)
                self._is_implied = True
        elif self._is_implied:
            self._is_implied = False
            if torch.is_grad_enabled() != self._has_gradients:
                self._switch_gradients(torch.is_grad_enabled())

    def _switch_gradients(self, is_on: bool) -> None:
        self._call(set_grad_enabled, (is_on,))
        self._has_gradients = is_on

    def _follow_autocast(self) -> None:
        depth, state = _autocast_depth(), _autocast_state()
        while self._regions:
            inner = self._regions[-1]
            if inner.depth < depth or (inner.depth == depth and inner.state == state):
                break
            self._leave()
        around = self._regions[-1].state if self._regions else self._outside
        if state != around:
            is_cached = torch.is_autocast_cache_enabled()
            nodes = tuple(
                self._call(enter_autocast, (device, dtype, is_on, is_cached))
                for device, (is_on, dtype), before in zip(_DEVICES, state, around, strict=True)
                if (is_on, dtype) != before
            )
            self._regions.append(_Region(depth=depth, state=state, nodes=nodes))

    def _leave(self) -> None:
        for node in reversed(self._regions.pop().nodes):
            self._call(exit_autocast, (node,))

    def _call(self, function: Any, args: tuple[Any, ...]) -> torch.fx.Node:
        node = self._builder.call(function, args, {})
        node.meta["val"] = None  # verifiers of exported programs expect a `val`
        return node


def _autocast_state() -> AutocastState:
    return tuple((torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)) for device in _DEVICES)


def _autocast_depth() -> int:
    depth = torch.autocast_increment_nesting() - 1
    torch.autocast_decrement_nesting()
    return depth


_CURRENT: contextvars.ContextVar[PreDispatchFunctionMode | None] = contextvars.ContextVar(
    "refimpl_pre_dispatch_function_mode", default=None
)


class PreDispatchFunctionMode(TorchFunctionMode):
    """Records calls that no dispatch mode sees: changes of grad mode, `x.data`, `requires_grad_`, and higher-order operators."""

    def __init__(self, recording: PreDispatchRecordingMode) -> None:
        super().__init__()
        self._recording = recording
        self._pauses = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        recording = self._recording
        if self._pauses or not recording.is_recording:
            return func(*args, **kwargs)
        if func is set_grad_enabled:
            recording.regions.set_gradients(*args)
        elif isinstance(func, HigherOrderOperator):
            with without_pre_dispatch_modes():
                return recording.__torch_dispatch__(func, types, args, kwargs)
        elif func == _DATA_OF_TENSOR:
            return args[0].detach()
        elif func is torch.Tensor.requires_grad_ or func == _SET_REQUIRES_GRAD:
            self._record_requires_grad(*args, **kwargs)
        elif func in _INDEXING and has_symbolic_integer(args[1]):
            return _INDEXING[func](*args)
        elif func is torch.tensor and len(args) == 1 and is_of_symbolic_numbers(args[0], kwargs):
            return tensor_of_numbers(*args, **kwargs)
        elif func == _SET_DATA_OF_TENSOR:
            return set_data(*args)
        elif (collective := functional_form(func, args, kwargs)) is not None:
            return collective()
        return func(*args, **kwargs)

    def _record_requires_grad(self, tensor: torch.Tensor, requires_grad: bool = True) -> None:
        """Record `requires_grad_`, which does not go through the dispatcher, as the aten op of that name."""
        if tensor.requires_grad == requires_grad or is_inside_function_transform():
            return
        op, recording = torch.ops.aten.requires_grad_.default, self._recording
        with paused_recordings():
            node = recording.builder.call(op, (recording.node_of(tensor), requires_grad), {})
            recording.builder.describe(node, tensor)
            recording.track(tensor, node)

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """A block in which the mode does nothing. It stays on the stack of modes."""
        self._pauses += 1
        try:
            yield
        finally:
            self._pauses -= 1


_INDEXING: dict[Any, Callable[..., Any]] = {torch.Tensor.__getitem__: get_item, torch.Tensor.__setitem__: set_item}


def set_data(tensor: torch.Tensor, value: torch.Tensor) -> None:
    """`tensor.data = value` as `set_`, which dispatches; the assignment does not. Both leave the tensor in the value's memory.

    Raises UnsupportedByRefimpl where they differ: autograd refuses `set_` on a leaf, and gives other tensors another history.
    """
    if tensor.requires_grad or tensor.dtype != value.dtype:
        raise UnsupportedByRefimpl(
            seen=f"`x.data = y` with an x that requires a gradient at {user_line()}"
            if tensor.requires_grad
            else f"`x.data = y` with an x of {tensor.dtype} and a y of {value.dtype} at {user_line()}",
            supported="x.data = y where x requires no gradient, and has the dtype of y",
            do="use x.copy_(y), under torch.no_grad() if x is a parameter",
        )
    if is_traceable_wrapper_subclass(tensor):
        raise UnsupportedByRefimpl(
            seen=f"`x.data = y` with a {type(tensor).__name__}, which computes with the tensors inside of it, at {user_line()}",
            supported="new data of dense tensors",
            do="copy the values into the tensors inside of it (copy_), or make a new wrapper",
        )
    tensor.set_(value.detach())  # type: ignore[call-overload]


_SET_DATA_OF_TENSOR = torch.Tensor.data.__set__  # pyright: ignore[reportAttributeAccessIssue]
_DATA_OF_TENSOR = torch.Tensor.data.__get__  # pyright: ignore[reportAttributeAccessIssue]
_SET_REQUIRES_GRAD = torch.Tensor.requires_grad.__set__  # pyright: ignore[reportAttributeAccessIssue]


@contextlib.contextmanager
def calls_that_are_no_ops(recording: PreDispatchRecordingMode) -> Iterator[None]:
    """The block of a trace, with the function mode on. Grad mode is restored at the end."""
    had_gradients = torch.is_grad_enabled()
    mode = PreDispatchFunctionMode(recording)
    token = _CURRENT.set(mode)
    try:
        with mode:
            yield
        recording.regions.finish()
    finally:
        _CURRENT.reset(token)
        with without_pre_dispatch_functions():  # an outer trace must not record this
            torch.set_grad_enabled(had_gradients)


@contextlib.contextmanager
def without_pre_dispatch_functions() -> Iterator[PreDispatchFunctionMode | None]:
    """A block in which the innermost trace's function mode does nothing: calls that are no ops are not recorded.

    Counterpart: torch/fx/experimental/proxy_tensor.py _temp_remove_pre_dispatch_torch_function_mode
    Differs: nothing is popped and pushed again, so that other function modes keep their order.
    """
    mode = _CURRENT.get()
    if mode is None:
        yield None
        return
    with mode.paused():
        yield mode
